//! Finds the default number of threads of the CPU backend: the CPUs that the process may
//! use, at most one for each physical core.

use std::collections::BTreeSet;
use std::path::Path;

/// Returns the default number of threads: the CPUs that this process may use, but no
/// more than the machine's physical cores.
///
/// The standard library knows the CPUs that the process may use, from its affinity and,
/// on Linux, the quota of its control group. A second thread on the same core shares the
/// arithmetic units with the first: it gains nothing and slows the first one down.
pub(crate) fn default() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    match physical_cores(Path::new("/sys/devices/system/cpu")) {
        Some(cores) => allowed.min(cores),
        None => allowed,
    }
}

/// Counts the machine's physical cores: the distinct (package, core) pairs under `root`,
/// which is laid out like Linux's `/sys/devices/system/cpu`. Returns `None` if there are
/// none.
fn physical_cores(root: &Path) -> Option<usize> {
    let mut cores = BTreeSet::new();
    for entry in std::fs::read_dir(root).ok()?.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix("cpu"));
        if number.is_none_or(|n| n.parse::<u32>().is_err()) {
            continue;
        }
        let topology = entry.path().join("topology");
        let read = |file: &str| std::fs::read_to_string(topology.join(file)).ok();
        // A core that is offline has no topology.
        if let (Some(package), Some(core)) = (read("physical_package_id"), read("core_id")) {
            cores.insert((package, core));
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_core_count_once() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(physical_cores(root.path()), None);
        // Two packages of two cores; the first package has two threads a core.
        let cpus = [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1)];
        for (i, (package, core)) in cpus.into_iter().enumerate() {
            let topology = root.path().join(format!("cpu{i}/topology"));
            std::fs::create_dir_all(&topology).unwrap();
            std::fs::write(topology.join("physical_package_id"), format!("{package}\n")).unwrap();
            std::fs::write(topology.join("core_id"), format!("{core}\n")).unwrap();
        }
        std::fs::create_dir_all(root.path().join("cpu6")).unwrap();
        std::fs::create_dir_all(root.path().join("cpufreq/topology")).unwrap();
        assert_eq!(physical_cores(root.path()), Some(4));
        assert!(default() >= 1);
    }
}

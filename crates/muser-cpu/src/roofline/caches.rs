//! Finds the size of a buffer that no cache holds, for measuring memory bandwidth.

use std::path::Path;

/// Returns the size in bytes of a buffer for measuring memory bandwidth: four
/// times the largest cache that the system reports, 256 MiB at least.
pub fn beyond_caches() -> usize {
    let largest = largest(Path::new("/sys/devices/system/cpu/cpu0/cache"));
    (4 * largest.unwrap_or(0)).max(256 << 20)
}

/// Returns the size in bytes of the largest cache under `root`, which is laid out like
/// Linux's `…/cpu0/cache`.
fn largest(root: &Path) -> Option<usize> {
    let entries = std::fs::read_dir(root).ok()?.flatten();
    let size = |path: &Path| {
        let text = std::fs::read_to_string(path.join("size")).ok()?;
        let (number, unit) = text
            .trim()
            .split_at_checked(text.trim().len().checked_sub(1)?)?;
        let unit = match unit {
            "K" => 1 << 10,
            "M" => 1 << 20,
            _ => return None,
        };
        // More than a terabyte of cache is an error in the file.
        let size = number.parse::<usize>().ok()?.checked_mul(unit)?;
        (size <= 1 << 40).then_some(size)
    };
    entries.filter_map(|entry| size(&entry.path())).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_cache_is_found_and_bad_sizes_are_ignored() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(largest(&root.path().join("none")), None);
        assert_eq!(largest(root.path()), None);
        let sizes = [
            "48K",
            "1024K",
            "300M\n",
            "",
            "K",
            "9T",
            "99999999999999999999K",
        ];
        for (i, size) in sizes.into_iter().enumerate() {
            let index = root.path().join(format!("index{i}"));
            std::fs::create_dir_all(&index).unwrap();
            std::fs::write(index.join("size"), size).unwrap();
        }
        assert_eq!(largest(root.path()), Some(300 << 20));
        assert!(beyond_caches() >= 256 << 20);
    }
}

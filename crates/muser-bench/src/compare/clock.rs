//! Reads the CPU time of processes and of the whole machine. A comparison of speed
//! checks with it that llama.cpp and muser never computed at once, and records how busy
//! other programs kept the machine.

use std::fs;
use std::time::Instant;

/// Returns the CPU time, in seconds, of the live threads of a process; `None`
/// if the operating system does not report it.
pub(super) fn process(id: u32) -> Option<f64> {
    let threads = fs::read_dir(format!("/proc/{id}/task")).ok()?;
    let mut nanoseconds = 0;
    for thread in threads.flatten() {
        // The thread may have ended since the folder was listed.
        let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else {
            continue;
        };
        nanoseconds += scheduled(&text)?;
    }
    Some(nanoseconds as f64 / 1e9)
}

/// Parses the text of a thread's `schedstat` file in `/proc`: returns its first field,
/// the thread's CPU time in nanoseconds.
fn scheduled(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// CPU time that one side of a comparison of speed (llama.cpp or muser) used while the
/// other one was timed and it should have been idle.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Overlap {
    wall: f64,
    used: Option<f64>,
}

impl Overlap {
    /// Runs `work`, the timed calls of one side (llama.cpp or muser), and adds up the
    /// CPU time that the other side's process `idle` uses meanwhile.
    pub(super) fn during<T>(&mut self, idle: u32, work: impl FnOnce() -> T) -> T {
        let (before, start) = (process(idle), Instant::now());
        let out = work();
        self.add(start.elapsed().as_secs_f64(), before.zip(process(idle)));
        out
    }

    fn add(&mut self, wall: f64, used: Option<(f64, f64)>) {
        self.wall += wall;
        if let Some((before, after)) = used {
            *self.used.get_or_insert(0.0) += (after - before).max(0.0);
        }
    }

    /// Returns how much CPU time the process that should be idle used while the other
    /// one was timed, as a share of one CPU; `None` if it was not measured.
    pub(super) fn share(&self) -> Option<f64> {
        (self.wall > 0.0).then_some(self.used? / self.wall)
    }
}

/// Clock ticks of all CPUs of the machine since it started: the idle ones, those that
/// the host of a virtual machine took (steal), and all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ticks {
    idle: u64,
    steal: u64,
    total: u64,
}

impl Ticks {
    pub(super) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|l| l.strip_prefix("cpu "))?;
        // The fields are user nice system idle iowait irq softirq steal; the guest
        // fields after them are contained in the first two.
        let fields: Option<Vec<u64>> = line
            .split_whitespace()
            .take(8)
            .map(|f| f.parse().ok())
            .collect();
        match fields?[..] {
            [user, nice, system, idle, wait, irq, soft, steal] => Some(Self {
                idle: idle + wait,
                steal,
                total: user + nice + system + idle + wait + irq + soft + steal,
            }),
            _ => None,
        }
    }

    /// Returns two shares of the time of all CPUs since the reading `then`: busy with
    /// any program, and taken by the host of a virtual machine (steal).
    pub(super) fn since(self, then: Self) -> (f64, f64) {
        let total = self.total.saturating_sub(then.total).max(1) as f64;
        let share = |ticks: u64| ticks as f64 / total;
        let idle = share(self.idle.saturating_sub(then.idle));
        let steal = share(self.steal.saturating_sub(then.steal));
        ((1.0 - idle - steal).max(0.0), steal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read() {
        assert_eq!(scheduled("56787468 39789499 160\n"), Some(56_787_468));
        assert_eq!(scheduled(""), None);
        let then = Ticks::parse("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1 2 3\n").unwrap();
        let now = Ticks::parse("cpu  30 5 20 120 5 3 2 15 9 9\n").unwrap();
        // 100 clock ticks later: 45 idle, 15 stolen by the host.
        assert_eq!(then.total, 100);
        let (busy, steal) = now.since(then);
        assert!((busy - 0.40).abs() < 1e-9 && (steal - 0.15).abs() < 1e-9);
        assert_eq!(Ticks::parse("cpu  1 2\n"), None);
        assert_eq!(now.since(now), (1.0, 0.0));
    }

    #[test]
    fn overlaps_add_up() {
        let mut overlap = Overlap::default();
        assert_eq!(overlap.share(), None);
        overlap.add(1.0, None);
        assert_eq!(overlap.share(), None);
        overlap.add(2.0, Some((5.0, 6.0)));
        overlap.add(1.0, Some((6.0, 7.0)));
        assert_eq!(overlap.share(), Some(0.5));
    }
}

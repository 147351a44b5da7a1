//! Measures the int8 multiply-add rate that the thread team reaches: the
//! roofline of prefill.

use crate::kernels::table::KernelTable;
use crate::team::Team;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The number of rounds of multiply-adds in one task when the int8 rate is measured. A
/// task takes about 100 µs: short, so that a thread that starts late leaves few tasks to
/// the others.
const ROUNDS: u32 = 30_000;
/// The number of tasks for each thread in one pass when the int8 rate is measured.
const TASKS: usize = 64;
/// The number of passes when the int8 rate is measured. The first one is slower, because
/// the clock frequency rises and threads wake up.
const PASSES: usize = 5;

/// Measures the int8 operations a second that the thread team reaches, a multiply-add
/// being two: the best of [`PASSES`]. Returns `None` if the instruction-set level has no
/// int8 dot product.
pub(crate) fn measure(team: &mut Team, threads: usize, table: &KernelTable) -> Option<f64> {
    if table.int8_peak(1) == 0 {
        return None;
    }
    let rates = (0..PASSES).map(|_| {
        let done = AtomicU64::new(0);
        let start = Instant::now();
        team.run(TASKS * threads, &|_| {
            done.fetch_add(table.int8_peak(ROUNDS), Ordering::Relaxed);
        });
        2.0 * done.into_inner() as f64 / start.elapsed().as_secs_f64()
    });
    rates.reduce(f64::max)
}

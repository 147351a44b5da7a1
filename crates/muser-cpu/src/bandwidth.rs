//! The read bandwidth that this machine gives this team: the roofline of
//! decode.

use crate::kernels::read::STEP;
use crate::kernels::table::KernelTable;
use crate::rows::for_chunks;
use crate::team::Team;
use std::hint::black_box;
use std::time::Instant;

/// Bytes read by one task.
const TASK: usize = 1 << 20;
/// Passes; the first also brings clocks and threads up.
const PASSES: usize = 5;

/// Bytes a second at which the team reads a buffer of `bytes`, the best of
/// several passes. The buffer should be several times the last-level cache.
pub(crate) fn measure(team: &mut Team, table: &KernelTable, bytes: usize) -> f64 {
    const { assert!(TASK % STEP == 0) };
    let bytes = bytes.next_multiple_of(TASK);
    let mut data = vec![1u8; bytes];
    // Written by the threads that read it, so that its pages are theirs.
    for_chunks(team, &mut data, TASK, |i, part| part.fill(i as u8 | 1));
    let seconds = (0..PASSES).map(|_| {
        let start = Instant::now();
        team.run(bytes / TASK, &|i| {
            black_box(table.read(&data[i * TASK..][..TASK]));
        });
        start.elapsed().as_secs_f64()
    });
    bytes as f64 / seconds.fold(f64::INFINITY, f64::min)
}

//! The read bandwidth that this machine gives this team: the roofline of
//! decode.

use crate::rows::for_chunks;
use crate::team::Team;
use std::hint::black_box;
use std::time::Instant;

/// Values summed by one task at a time: 1 MiB.
const TASK: usize = 1 << 17;

/// Bytes a second at which the team reads a buffer of `bytes`, the best of
/// four passes. The buffer should be several times the last-level cache.
pub(crate) fn measure(team: &mut Team, bytes: usize) -> f64 {
    let values = (bytes / size_of::<u64>()).max(TASK);
    let mut data = vec![1u64; values];
    // Written by the threads that read it, so that its pages are theirs.
    for_chunks(team, &mut data, TASK, |i, part| part.fill(i as u64 | 1));
    let tasks = values.div_ceil(TASK);
    let seconds = (0..4).map(|_| {
        let start = Instant::now();
        team.run(tasks, &|i| {
            let part = &data[i * TASK..values.min((i + 1) * TASK)];
            // Wrapping adds in order-free lanes: the compiler vectorises them,
            // and the loads are the bottleneck by far.
            black_box(part.iter().fold(0u64, |a, &b| a.wrapping_add(b)));
        });
        start.elapsed().as_secs_f64()
    });
    (values * size_of::<u64>()) as f64 / seconds.fold(f64::INFINITY, f64::min)
}

//! Measures the read bandwidth that the thread team reaches: the roofline of
//! decode.

use crate::kernels::read::STEP;
use crate::kernels::table::KernelTable;
use crate::rows::for_chunks;
use crate::team::Team;
use memmap2::MmapMut;
use std::hint::black_box;
use std::ops::DerefMut;
use std::time::Instant;

/// The number of bytes that one task reads when the read bandwidth is measured.
const TASK: usize = 1 << 20;
/// The number of passes over the buffer when the read bandwidth is measured. The first
/// one is slower, because the clock frequency rises and threads wake up.
const PASSES: usize = 5;

/// Measures the read bandwidth, in bytes a second, at which the thread team reads a
/// buffer of `bytes`: the best of [`PASSES`]. The buffer should be several times the
/// last-level cache ([`beyond_caches`](super::beyond_caches)).
pub(crate) fn measure(team: &mut Team, table: &KernelTable, bytes: usize) -> f64 {
    const { assert!(TASK.is_multiple_of(STEP)) };
    let bytes = bytes.next_multiple_of(TASK);
    let mut data = buffer(bytes);
    // The team writes first, so that every page exists, on the NUMA node of a thread
    // that will read.
    for_chunks(team, &mut data, TASK, |i, part| part.fill(i as u8 | 1));
    let data: &[u8] = &data;
    let seconds = (0..PASSES).map(|_| {
        let start = Instant::now();
        team.run(bytes / TASK, &|i| {
            black_box(table.read(&data[i * TASK..][..TASK]));
        });
        start.elapsed().as_secs_f64()
    });
    bytes as f64 / seconds.fold(f64::INFINITY, f64::min)
}

/// Allocates the memory that is read to measure the bandwidth, in huge pages where the
/// system has them. With small pages, page-table walks take up to half of the bandwidth,
/// which a mapped model file does not pay.
fn buffer(bytes: usize) -> Box<dyn DerefMut<Target = [u8]>> {
    let Ok(map) = MmapMut::map_anon(bytes) else {
        return Box::new(vec![0; bytes]);
    };
    // If the system refuses the advice, the measured bandwidth is lower, not wrong.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Box::new(map)
}

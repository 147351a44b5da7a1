//! The read bandwidth that this machine gives this team: the roofline of
//! decode.

use crate::kernels::read::STEP;
use crate::kernels::table::KernelTable;
use crate::rows::for_chunks;
use crate::team::Team;
use memmap2::MmapMut;
use std::hint::black_box;
use std::ops::DerefMut;
use std::time::Instant;

/// Bytes read by one task.
const TASK: usize = 1 << 20;
/// Passes; the first also brings clocks and threads up.
const PASSES: usize = 5;

/// Bytes a second at which the team reads a buffer of `bytes`, the best of
/// several passes. The buffer should be several times the last-level cache.
pub(crate) fn measure(team: &mut Team, table: &KernelTable, bytes: usize) -> f64 {
    const { assert!(TASK.is_multiple_of(STEP)) };
    let bytes = bytes.next_multiple_of(TASK);
    let mut data = buffer(bytes);
    // Written by the team: every page exists, and near one that reads.
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

/// Memory in huge pages where the system has them: in small ones the walks of the
/// page tables cost up to half of the bandwidth, and a mapped model file does not
/// pay them.
fn buffer(bytes: usize) -> Box<dyn DerefMut<Target = [u8]>> {
    let Ok(map) = MmapMut::map_anon(bytes) else {
        return Box::new(vec![0; bytes]);
    };
    // Advice: without it the measure is lower, not wrong.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Box::new(map)
}

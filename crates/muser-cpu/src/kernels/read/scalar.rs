//! Reads memory in portable code, 8 bytes at a time, without prefetching, to measure the
//! bandwidth.

use super::STEP;

/// Reads a slice of bytes, in whole steps of 512, and combines them to one word by xor,
/// to measure the read bandwidth.
pub(crate) fn read(bytes: &[u8]) -> u64 {
    let mut sums = [0; 8];
    for step in bytes.as_chunks::<STEP>().0 {
        for line in step.as_chunks::<64>().0 {
            for (sum, value) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum ^= u64::from_le_bytes(*value);
            }
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}

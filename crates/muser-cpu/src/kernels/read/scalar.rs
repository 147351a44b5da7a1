//! Reading as the hardware's prefetchers allow.

use super::STEP;

/// The bytes (whole steps of them), folded.
pub(crate) fn read(bytes: &[u8]) -> u64 {
    let mut lanes = [0; 8];
    for step in bytes.as_chunks::<STEP>().0 {
        for line in step.as_chunks::<64>().0 {
            for (lane, value) in lanes.iter_mut().zip(line.as_chunks::<8>().0) {
                *lane ^= u64::from_le_bytes(*value);
            }
        }
    }
    lanes.iter().fold(0, |all, lane| all ^ lane)
}

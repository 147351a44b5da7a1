//! The scalar level has no int8 dot product, so there is nothing to measure.

/// Does nothing. Returns 0 multiply-adds.
pub(crate) fn int8_peak(_rounds: u32) -> u64 {
    0
}

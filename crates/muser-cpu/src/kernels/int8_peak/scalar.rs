//! No int8 dot product at this level: nothing to measure.

/// Does nothing; gives no multiply-add.
pub(crate) fn int8_peak(_rounds: u32) -> u64 {
    0
}

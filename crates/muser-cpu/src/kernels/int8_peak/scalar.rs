//! The scalar level's measurement of the peak int8 rate: it has no int8 dot product, so
//! there is nothing to measure.

/// Does nothing and returns 0 multiply-adds, since the scalar level has no int8 dot
/// product.
pub(crate) fn int8_peak(_rounds: u32) -> u64 {
    0
}

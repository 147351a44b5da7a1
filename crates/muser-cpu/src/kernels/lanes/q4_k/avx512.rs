//! Q4_K rows by lanes at the avx512 level: the avx2 kernel.
//!
//! The contract's eight lanes are a 256-bit register, and the rung is for few
//! columns, where the stream of weights is the limit and not the arithmetic.

pub(crate) use super::avx2::lanes;

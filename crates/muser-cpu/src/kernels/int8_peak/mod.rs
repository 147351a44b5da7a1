//! Multiplies and adds bytes in registers, to measure the peak int8 rate of an
//! instruction-set level, which bounds the projections of wide batches. It is no
//! operation of a model.
//!
//! ```text
//! chains[i] for i in 0..CHAINS                    each a register of i32
//! for each round: chains[i] += the level's int8 dot of the register's bytes
//! ```
//!
//! The chains start from different values; otherwise the compiler would merge them. In
//! each step, both the sum and a factor come from the step before; otherwise the compiler
//! would move the product out of the loop and leave only an addition.
//!
//! Traffic: none.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

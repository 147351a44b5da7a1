//! The int8 peak: multiply-adds in registers alone, as many as the level's
//! instructions give. No operation of a model; what the projections of a wide
//! batch are measured against.
//!
//! ```text
//! chains[i] for i in 0..CHAINS                    each a register of i32
//! for each round: chains[i] += the level's int8 dot of the register's bytes
//! ```
//!
//! The chains start from different values, or the compiler would make one of
//! them; both the sum and a factor of each step come from the one before, or
//! it would take the product out of the loop and leave an addition.
//!
//! Traffic: none.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

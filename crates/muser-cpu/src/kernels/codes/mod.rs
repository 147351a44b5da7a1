//! Unpacks the codes of a block of quantised weights, in natural order.
//!
//! There is one function for each packing ([`SuperCodes`], [`GroupCodes`]) and level.
//! Product kernels pick it by the constants of their format, so a format with a known
//! packing needs no code here. A new packing is a new variant of these enums, which does
//! not compile until each level has a function for it.
//!
//! [`SuperCodes`]: muser_quant::SuperCodes
//! [`GroupCodes`]: muser_quant::GroupCodes

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

//! Unpacking: the codes of a block in natural order, by packing and level.
//!
//! One function a packing ([`SuperCodes`], [`GroupCodes`]) and level; the
//! families of products pick it by the constants of their format, so that a
//! format with a known packing needs no code here. A packing that is new is a
//! variant there, which does not compile until each level has its function.
//!
//! [`SuperCodes`]: muser_quant::SuperCodes
//! [`GroupCodes`]: muser_quant::GroupCodes

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

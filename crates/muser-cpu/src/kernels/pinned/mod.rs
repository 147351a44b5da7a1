//! Kernels of the pinned lane alone.
//!
//! What both lanes compute lies beside them: a kernel that differs in a sum or a
//! function only is a function named `…_pinned` in the strict lane's file, and
//! slabs serve both lanes by the rule that links a superblock to its chain.

pub(crate) mod attention;
pub(crate) mod float;
pub(crate) mod narrow;

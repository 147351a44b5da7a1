//! The pinned lane: llama.cpp's own bits, by named reference profile.
//!
//! Its oracle is llama.cpp itself (`crates/muser-reference`, run by `cargo
//! xtask parity`); the scalar functions here say the same in our words and are
//! what fast kernels will be compared with where llama.cpp is not at hand.
//!
//! So far the lane covers the products with K-quant weights
//! ([`project`](mod@project)), the family that a token's time goes into. The
//! command line does not offer the lane until the whole forward pass is
//! covered: a lane never borrows an operation from another.

pub mod project;

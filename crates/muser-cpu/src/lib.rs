//! The CPU backend of the inference engine: [`Cpu`] computes a model's operations with
//! SIMD kernels and a team of threads.
//!
//! Kernels are compiled for three instruction-set [`Level`]s, `scalar`, `avx2` and
//! `avx512`; the backend picks one when it opens. All levels compute the bits of the
//! oracle (the scalar functions that define each operation). Work is cut by output rows
//! and shared by a team of threads; the bits of a row do not depend on the thread that
//! computes it.
//!
//! ```
//! use muser_cpu::{Cpu, CpuOptions};
//! use muser_ops::Backend;
//! let options = CpuOptions { threads: Some(2), ..CpuOptions::default() };
//! let cpu = Cpu::open(options).unwrap();
//! assert_eq!(cpu.info().threads, 2);
//! ```
//!
//! `unsafe` is allowed in `simd` (vector loads and stores), `rows` and `team` (buffers
//! shared with threads), `buffer` (aligned storage) and `kernels::table` (calling a
//! level's functions), and nowhere else.
#![deny(unsafe_code)]

mod backend;
#[expect(unsafe_code, reason = "aligned storage seen as values")]
mod buffer;
// Kernels index arrays of registers: a closure or an iterator that is not inlined into
// a level's function costs a factor of two.
#[allow(
    clippy::needless_range_loop,
    reason = "loops over arrays of registers are written by index"
)]
mod kernels;
mod kv;
pub mod ladder;
mod level;
mod roofline;
#[expect(unsafe_code, reason = "disjoint parts of a buffer for several threads")]
mod rows;
#[expect(unsafe_code, reason = "the memory intrinsics take pointers")]
mod simd;
mod sync;
#[expect(unsafe_code, reason = "the job is borrowed by the workers")]
mod team;
mod threads;
mod unpacked;

pub use backend::{Batch, Cpu, CpuError, CpuOptions, Rope};
pub use buffer::Buffer;
pub use kv::Kv;
pub use level::{Level, UnknownLevel};
pub use roofline::beyond_caches;

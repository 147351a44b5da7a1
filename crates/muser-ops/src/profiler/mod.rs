//! The profiler: measures the time, traffic and operation counts of another backend.
//!
//! [`Profiled`] is a backend with a [hook](crate::hook) that passes each operation on
//! unchanged, so its bits are those of the backend inside. The profiler counts
//! compulsory traffic: each byte of an operand or result once for each operation,
//! whatever caches and kernels make of it.
//!
//! A projection counts as one projection set and as many dispatches as the set has
//! matrices. Any other operation counts as one dispatch, except for the transfers
//! `write` and `read`, which count as none.

mod hook;
#[cfg(test)]
mod tests;

use crate::Stage;
use crate::hook::Hooked;
pub use hook::Profiler;
use std::sync::Arc;
use std::time::Duration;

/// A backend whose operations are measured: their times, bytes and arithmetic
/// operations.
pub type Profiled<B> = Hooked<B, Profiler>;

/// The kind of an operation of a [`Backend`](crate::Backend) that takes time, for the
/// profiler's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the methods")]
pub enum Op {
    Embed,
    Project,
    RmsNorm,
    HeadNorm,
    AddRmsNorm,
    Add,
    Rope,
    Attention,
    SigmoidGate,
    SiluProduct,
    SoftCap,
    CopyRows,
    Gather,
    Write,
    Read,
    Choose,
}

impl Op {
    /// Returns the name of the backend's method for this operation: `rms_norm`, …
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Project => "project",
            Self::RmsNorm => "rms_norm",
            Self::HeadNorm => "head_norm",
            Self::AddRmsNorm => "add_rms_norm",
            Self::Add => "add",
            Self::Rope => "rope",
            Self::Attention => "attention",
            Self::SigmoidGate => "sigmoid_gate",
            Self::SiluProduct => "silu_product",
            Self::SoftCap => "soft_cap",
            Self::CopyRows => "copy_rows",
            Self::Gather => "gather",
            Self::Write => "write",
            Self::Read => "read",
            Self::Choose => "choose",
        }
    }
}

/// The bytes moved and the operations computed by one or several operations of a
/// backend, as totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of calls of the backend's operations.
    pub calls: u64,
    /// The number of calls that project by a set of matrices, all of which multiply the
    /// same input.
    pub sets: u64,
    /// The number of kernel dispatches: one for each matrix of a projection set, one for
    /// any other operation, none for transfers.
    pub dispatches: u64,
    /// The number of bytes of weights read, norm weights included.
    pub weight_bytes: u64,
    /// The number of bytes of K and V that attention reads.
    pub kv_read: u64,
    /// The number of bytes of K and V that attention stores.
    pub kv_written: u64,
    /// The number of bytes of activations read and written, in f32.
    pub activation_bytes: u64,
    /// The number of arithmetic operations in projections and attention; a
    /// multiply-add is two.
    pub flops: u64,
}

impl Counts {
    /// Returns the profiler's counts for one operation of one kernel dispatch that reads
    /// and writes `values` activations in all.
    fn values(values: usize) -> Self {
        Self {
            calls: 1,
            dispatches: 1,
            activation_bytes: bytes_of(values),
            ..Self::default()
        }
    }

    /// Returns an operation's counts with the bytes of `len` norm weights as the weights
    /// that it reads.
    fn with_vector(self, len: usize) -> Self {
        Self {
            weight_bytes: bytes_of(len),
            ..self
        }
    }

    /// Returns the number of all bytes that the operations move: weights, K and V, and
    /// activations.
    pub fn bytes(&self) -> u64 {
        self.weight_bytes + self.kv_read + self.kv_written + self.activation_bytes
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.sets += other.sets;
        self.dispatches += other.dispatches;
        self.weight_bytes += other.weight_bytes;
        self.kv_read += other.kv_read;
        self.kv_written += other.kv_written;
        self.activation_bytes += other.activation_bytes;
        self.flops += other.flops;
    }
}

/// Returns the number of bytes in `values` f32 values.
fn bytes_of(values: usize) -> u64 {
    values as u64 * size_of::<f32>() as u64
}

/// The profiler's record of one operation of a backend: what it was, when it ran and how
/// much it moved.
#[derive(Clone, Debug)]
pub struct Event {
    /// The stage of the forward pass (embedding, attention or FFN of a layer, head) that
    /// the operation belongs to; `None` before the first [`mark`](crate::Backend::mark).
    pub stage: Option<Stage>,
    /// The kind of operation that was measured.
    pub op: Op,
    /// The names of the weight matrices that the operation multiplied with, in the order
    /// of the projection set, or of an embedding's table; else empty.
    pub matrices: Vec<Arc<str>>,
    /// The time from the start of the profiler to the start of the measured operation.
    pub start: Duration,
    /// The time that the measured operation took.
    pub time: Duration,
    /// The bytes that the measured operation moved and the arithmetic operations that it
    /// computed.
    pub counts: Counts,
}

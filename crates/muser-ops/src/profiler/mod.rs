//! The profiler: measures the time, traffic and operation counts of another backend.
//!
//! [`Profiled`] is a backend with a [hook](crate::hook) that passes each operation on
//! unchanged, so its bits are those of the backend inside. It counts compulsory
//! traffic: each byte of an operand or result once for each operation, whatever caches
//! and kernels make of it.
//!
//! A projection counts as one set and as many dispatches as the set has matrices. Any
//! other operation counts as one dispatch, except for the transfers `write` and `read`,
//! which count as none.

mod hook;
#[cfg(test)]
mod tests;

use crate::Stage;
use crate::hook::Hooked;
pub use hook::Profiler;
use std::sync::Arc;
use std::time::Duration;

/// A backend whose operations are measured.
pub type Profiled<B> = Hooked<B, Profiler>;

/// An operation of [`Backend`](crate::Backend) that takes time.
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
    /// The name of the backend's method: `rms_norm`, …
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

/// Totals of one or several operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of calls of the backend.
    pub calls: u64,
    /// The number of projection sets.
    pub sets: u64,
    /// The number of kernel dispatches: one for each matrix of a set, one for any other
    /// operation.
    pub dispatches: u64,
    /// The number of bytes of weights read, norm weights included.
    pub weight_bytes: u64,
    /// The number of bytes of K and V that attention reads.
    pub kv_read: u64,
    /// The number of bytes of K and V stored.
    pub kv_written: u64,
    /// The number of bytes of activations read and written, in f32.
    pub activation_bytes: u64,
    /// The number of arithmetic operations in projections and attention; a
    /// multiply-add is two.
    pub flops: u64,
}

impl Counts {
    /// Counts one operation of one dispatch that reads and writes so many values.
    fn values(values: usize) -> Self {
        Self {
            calls: 1,
            dispatches: 1,
            activation_bytes: bytes_of(values),
            ..Self::default()
        }
    }

    /// Adds `len` norm weights that are read.
    fn with_vector(self, len: usize) -> Self {
        Self {
            weight_bytes: bytes_of(len),
            ..self
        }
    }

    /// The number of all bytes: weights, K and V, and activations.
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

/// The number of bytes in so many f32 values.
fn bytes_of(values: usize) -> u64 {
    values as u64 * size_of::<f32>() as u64
}

/// One measured operation.
#[derive(Clone, Debug)]
pub struct Event {
    /// The stage of the forward pass; `None` before the first
    /// [`mark`](crate::Backend::mark).
    pub stage: Option<Stage>,
    /// The operation.
    pub op: Op,
    /// The names of the matrices of a projection, in the set's order, or of the table
    /// of an embedding; else empty.
    pub matrices: Vec<Arc<str>>,
    /// The time from the start of the profiler to the start of the operation.
    pub start: Duration,
    /// The duration of the operation.
    pub time: Duration,
    /// The bytes that it moved and the operations that it computed.
    pub counts: Counts,
}

//! A backend that measures another: every operation's time, bytes and counts.
//!
//! [`Profiled`] is a [hook](crate::hook) that hands each operation on unchanged,
//! so the bits are those of the backend inside. What it counts is compulsory traffic: each byte of an
//! operand or result once an operation, whatever caches and kernels make of
//! it.
//!
//! A projection set is one set and as many kernel dispatches as it has
//! matrices; any other operation is one dispatch and no set; `write` and
//! `read` are transfers and neither.

mod profiler;
#[cfg(test)]
mod tests;

use crate::Stage;
use crate::hook::Hooked;
pub use profiler::Profiler;
use std::sync::Arc;
use std::time::Duration;

/// A backend and what it did.
pub type Profiled<B> = Hooked<B, Profiler>;

/// The operations of [`Backend`](crate::Backend) that take time.
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
    /// The method's name.
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

/// What operations amount to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls of the backend.
    pub calls: u64,
    /// Projection sets.
    pub sets: u64,
    /// Kernel dispatches: one a matrix of a set, one any other operation.
    pub dispatches: u64,
    /// Bytes of weights and norm weights read.
    pub weight_bytes: u64,
    /// Bytes of K and V read by attention.
    pub kv_read: u64,
    /// Bytes of K and V stored.
    pub kv_written: u64,
    /// Bytes of activations read and written, f32.
    pub activation_bytes: u64,
    /// Operations of projections and attention, two a multiply-add.
    pub flops: u64,
}

impl Counts {
    /// One operation that is one dispatch and moves these values.
    fn values(values: usize) -> Self {
        Self {
            calls: 1,
            dispatches: 1,
            activation_bytes: bytes_of(values),
            ..Self::default()
        }
    }

    /// The same with these norm weights read.
    fn with_vector(self, len: usize) -> Self {
        Self {
            weight_bytes: bytes_of(len),
            ..self
        }
    }

    /// Every byte.
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

/// Bytes of f32 values.
fn bytes_of(values: usize) -> u64 {
    values as u64 * size_of::<f32>() as u64
}

/// One operation as it was.
#[derive(Clone, Debug)]
pub struct Event {
    /// Where in the forward pass; `None` before the first [`mark`](crate::Backend::mark).
    pub stage: Option<Stage>,
    /// What was done.
    pub op: Op,
    /// The matrices of a projection set by their names, in the set's order;
    /// the table of an embedding.
    pub matrices: Vec<Arc<str>>,
    /// When it began, since the profiler was made.
    pub start: Duration,
    /// How long it took.
    pub time: Duration,
    /// What it moved and computed.
    pub counts: Counts,
}

//! The kernel table: the kernels of one instruction-set level (scalar, avx2, avx512),
//! chosen once when the backend opens.
//!
//! The list at the end of this file, together with the products of [`super::products`],
//! is the inventory of all kernels; the backend can call no other. Kernels are stored as
//! safe function pointers. The compiler allows that only inside a function of the
//! kernel's own level, so a kernel that needs a feature that its level lacks does not
//! compile here. `unsafe` in this module: calling the function that stores the pointers,
//! which [`KernelTable::new`] does only if the machine has the level.

use super::attention::ChunkSpan;
use super::pinned::attention::{Queries, Single};
use super::products::{self, Product};
use super::quantize::{Block, Groups};
use crate::kv::HeadView;
use crate::ladder::Family;
use crate::level::Level;
use muser_levels::levels;
use muser_ops::{Attention, Profile};
use muser_quant::{DType, QK};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The kernel table of the CPU backend: pointers to all kernels of one instruction-set
/// level.
pub(crate) struct KernelTable {
    level: Level,
    others: Others,
    products: Vec<Product>,
    /// The number of calls of each kernel so far, if calls are counted.
    calls: Option<Mutex<BTreeMap<&'static str, u64>>>,
}

impl KernelTable {
    /// Makes the kernel table of an instruction-set level; `None` if this machine lacks
    /// the level.
    pub(crate) fn new(level: Level) -> Option<Self> {
        if !level.is_available() {
            return None;
        }
        let (others, products) = match level {
            Level::Scalar => (scalar::others(), products::scalar::products()),
            // SAFETY: the machine has every feature of the level, checked above:
            // the list of the check is the list that functions of the level are
            // compiled with.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { (avx2::others(), products::avx2::products()) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as for AVX2.
            Level::Avx512 => unsafe { (avx512::others(), products::avx512::products()) },
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::Avx512 => return None,
        };
        Some(Self {
            level,
            others,
            products,
            calls: None,
        })
    }

    /// Returns the instruction-set level that the table's kernels are compiled for.
    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// Returns the names of all kernels, without the instruction-set level:
    /// `matvec/q4_k`, `norm/rms_norm`, …
    pub(crate) fn inventory(&self) -> Vec<&'static str> {
        let products = self.products.iter().map(|p| p.name);
        OTHERS.iter().copied().chain(products).collect()
    }

    /// Finds the matrix-product kernel of a family (matvec, slab, …) for weights of this
    /// format.
    pub(crate) fn product(&self, family: Family, dtype: DType) -> Option<&Product> {
        let mut products = self.products.iter();
        products.find(|p| (p.family, p.dtype) == (family, dtype))
    }

    /// Begins to count the calls of every kernel in the table.
    pub(crate) fn count_calls(&mut self) {
        let none = self.inventory().into_iter().map(|name| (name, 0));
        self.calls = Some(Mutex::new(none.collect()));
    }

    /// Returns the number of calls of every kernel so far, by name; `None` if they are
    /// not counted.
    pub(crate) fn calls(&self) -> Option<BTreeMap<&'static str, u64>> {
        let calls = self.calls.as_ref()?;
        Some(calls.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Counts a call of the kernel with this name, if calls are counted. If not, this
    /// costs a comparison.
    #[inline]
    pub(crate) fn called(&self, name: &'static str) {
        if let Some(calls) = &self.calls {
            let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
            *calls.entry(name).or_default() += 1;
        }
    }
}

macro_rules! table {
    ($(
        $(#[$doc:meta])*
        $name:literal $field:ident = $($path:ident)::+ ($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;
    )*) => {
        /// Pointers to the kernels of one instruction-set level, other than those of
        /// matrix products.
        struct Others {
            $($field: fn($($ty),*) $(-> $ret)?,)*
        }

        /// The names of all kernels other than those of matrix products.
        const OTHERS: &[&str] = &[$($name),*];

        #[levels]
        mod kernels {
            use crate::kernels::*;

            /// Returns pointers to the kernels of this instruction-set level, other than
            /// those of matrix products.
            pub(super) fn others() -> super::Others {
                super::Others {
                    $($field: $($path)::+,)*
                }
            }
        }

        impl KernelTable {
            $(
                $(#[$doc])*
                #[inline]
                pub(crate) fn $field(&self, $($arg: $ty),*) $(-> $ret)? {
                    self.called($name);
                    (self.others.$field)($($arg),*)
                }
            )*
        }
    };
}

table! {
    /// Quantises 256 activations to eight groups of 32 int8 codes, with a scale for each.
    "quantize/groups" quantize_groups = quantize::level::quantize_groups
        (x: &[f32; QK]) -> Groups;
    /// Quantises 256 activations to a block of int8 codes with one scale.
    "quantize" quantize = quantize::level::quantize (x: &[f32; QK]) -> Block;
    /// Computes the RMS norm of a row of activations.
    "norm/rms_norm" rms_norm = norm::level::rms_norm
        (x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]);
    /// Computes the RMS norm of each head of a row of activations, in place.
    "norm/head_norm" head_norm = norm::level::head_norm (x: &mut [f32], weight: &[f32], eps: f32);
    /// Adds the RMS norm of one row of activations to another row.
    "norm/add_rms_norm" add_rms_norm = norm::level::add_rms_norm
        (x: &mut [f32], y: &[f32], weight: &[f32], eps: f32);
    /// Computes the RMS norm of a row of activations, in the pinned lane (llama.cpp's
    /// arithmetic).
    "norm/rms_norm/pinned" rms_norm_pinned = norm::level::rms_norm_pinned
        (x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]);
    /// Computes the RMS norm of each head of a row, in place, in the pinned lane
    /// (llama.cpp's arithmetic).
    "norm/head_norm/pinned" head_norm_pinned = norm::level::head_norm_pinned
        (x: &mut [f32], weight: &[f32], eps: f32);
    /// Adds the RMS norm of one row to another row, in the pinned lane (llama.cpp's
    /// arithmetic).
    "norm/add_rms_norm/pinned" add_rms_norm_pinned = norm::level::add_rms_norm_pinned
        (x: &mut [f32], y: &[f32], weight: &[f32], eps: f32);
    /// Applies rotary position encoding to each head of a row, in place.
    "rope" rope = rope::level::rope (x: &mut [f32], cos: &[f32], sin: &[f32]);
    /// Applies rotary position encoding to each head of a row, in the pinned lane
    /// (llama.cpp's arithmetic).
    "rope/pinned" rope_pinned = rope::level::rope_pinned (x: &mut [f32], cos: &[f32], sin: &[f32]);
    /// Stores K and V of one head at one position in the KV cache.
    "kv_store" kv_store = kv_store::level::kv_store
        (k: &[f32], v: &[f32], slot: usize, k_chunk: &mut [u16], v_row: &mut [u16]);
    /// Computes attention, at one position, of the query heads that share one KV head.
    "attention" attention = attention::level::attention
        (desc: &Attention, p: usize, q: &[f32], kv: &HeadView<'_>, out: &mut [f32]);
    /// Computes attention over a span of chunks (64 cached positions each), without
    /// merging their partial results.
    "attention/span" attention_span = attention::level::attention_span
        (desc: &Attention, span: &ChunkSpan, q: &[f32], kv: &HeadView<'_>, out: &mut [f32]);
    /// Merges the partial attention results of all chunks (64 cached positions each) for
    /// one query head.
    "attention/merge" attention_merge = attention::level::attention_merge
        (parts: &[f32], heads: usize, padded: usize, head: usize, out: &mut [f32]);
    /// Computes attention, at one position, of the query heads that share one KV head, in
    /// the pinned lane (llama.cpp's arithmetic).
    "flash/single" flash_single = pinned::attention::level::flash_single
        (how: Single, desc: &Attention, p: usize, q: &[f32], kv: &HeadView<'_>, out: &mut [f32]);
    /// Computes attention of a tile of queries of one head, in the pinned lane
    /// (llama.cpp's arithmetic).
    "flash/tile" flash_tile = pinned::attention::level::flash_tile
        (profile: Profile, desc: &Attention, queries: &Queries<'_>, kv: &HeadView<'_>,
            out: &mut [f32]);
    /// Computes the sigmoid gate `x *= sigmoid(gate)` for each activation.
    "elementwise/sigmoid_gate" sigmoid_gate = elementwise::level::sigmoid_gate
        (x: &mut [f32], gate: &[f32]);
    /// Computes the SiLU product `gate = silu(gate) * up` for each activation.
    "elementwise/silu_product" silu_product = elementwise::level::silu_product
        (gate: &mut [f32], up: &[f32]);
    /// Scales logits and, with a cap, soft-caps each logit x to cap · tanh(x / cap).
    "elementwise/soft_cap" soft_cap = elementwise::level::soft_cap
        (x: &mut [f32], scale: f32, cap: Option<f32>);
    /// Computes the sigmoid gate `x *= sigmoid(gate)` for each activation, in the pinned
    /// lane (llama.cpp's arithmetic).
    "elementwise/sigmoid_gate/pinned" sigmoid_gate_pinned = elementwise::level::sigmoid_gate_pinned
        (x: &mut [f32], gate: &[f32]);
    /// Computes the SiLU product `gate = silu(gate) * up` for a row or a part of one, in
    /// the pinned lane (llama.cpp's arithmetic).
    "elementwise/silu_product/pinned" silu_product_pinned = elementwise::level::silu_product_pinned
        (profile: Profile, whole: usize, gate: &mut [f32], up: &[f32]);
    /// Scales logits and, with a cap, soft-caps them, in the pinned lane (llama.cpp's
    /// arithmetic).
    "elementwise/soft_cap/pinned" soft_cap_pinned = elementwise::level::soft_cap_pinned
        (x: &mut [f32], scale: f32, cap: Option<f32>);
    /// Multiplies and adds bytes in registers, to measure the peak int8 rate. Returns the
    /// number of multiply-adds.
    "int8_peak" int8_peak = int8_peak::level::int8_peak (rounds: u32) -> u64;
    /// Reads bytes and folds them into one word, to measure the memory's read bandwidth.
    "read" read = read::level::read (bytes: &[u8]) -> u64;
}

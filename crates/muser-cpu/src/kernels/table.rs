//! The kernel table: one level's kernels, chosen once when the backend opens.
//!
//! The list at the end, with the products of [`super::products`], is the
//! inventory: a kernel that is not in it does not exist. Kernels are stored as
//! safe pointers, which the compiler makes of a kernel only inside a function of
//! the kernel's own level: one that is compiled for a feature more than its level
//! has does not compile here. `unsafe` in this module: calling that function,
//! which [`KernelTable::new`] does only where the level is present.

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

/// The kernels of one level.
pub(crate) struct KernelTable {
    level: Level,
    others: Others,
    products: Vec<Product>,
    /// Calls of each kernel, where they are counted.
    calls: Option<Mutex<BTreeMap<&'static str, u64>>>,
}

impl KernelTable {
    /// The kernels of a level; `None` where this machine lacks it.
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
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
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

    /// The level.
    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// Every kernel, as `family/…` without its level.
    pub(crate) fn inventory(&self) -> Vec<&'static str> {
        let products = self.products.iter().map(|p| p.name);
        OTHERS.iter().copied().chain(products).collect()
    }

    /// The product of a family with weights of this format; `None` if there is
    /// none.
    pub(crate) fn product(&self, family: Family, dtype: DType) -> Option<&Product> {
        let mut products = self.products.iter();
        products.find(|p| (p.family, p.dtype) == (family, dtype))
    }

    /// Counts the calls of every kernel from here on.
    pub(crate) fn count_calls(&mut self) {
        let none = self.inventory().into_iter().map(|name| (name, 0));
        self.calls = Some(Mutex::new(none.collect()));
    }

    /// The calls of every kernel since they are counted; `None` if they are not.
    pub(crate) fn calls(&self) -> Option<BTreeMap<&'static str, u64>> {
        let calls = self.calls.as_ref()?;
        Some(calls.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Counts a call, where they are counted: a test of a pointer elsewhere.
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
        /// The kernels of one level that are no products.
        struct Others {
            $($field: fn($($ty),*) $(-> $ret)?,)*
        }

        /// Their names.
        const OTHERS: &[&str] = &[$($name),*];

        #[levels]
        mod kernels {
            use crate::kernels::*;

            /// The kernels of this level.
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
    /// Quantises eight groups of 32 activations.
    "quantize/groups" quantize_groups = quantize::level::quantize_groups
        (x: &[f32; QK]) -> Groups;
    /// Quantises 256 activations.
    "quantize" quantize = quantize::level::quantize (x: &[f32; QK]) -> Block;
    /// Norm of a row.
    "norm/rms_norm" rms_norm = norm::level::rms_norm
        (x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]);
    /// Norm of each head of a row.
    "norm/head_norm" head_norm = norm::level::head_norm (x: &mut [f32], weight: &[f32], eps: f32);
    /// A row plus the norm of another.
    "norm/add_rms_norm" add_rms_norm = norm::level::add_rms_norm
        (x: &mut [f32], y: &[f32], weight: &[f32], eps: f32);
    /// Norm of a row, in the pinned lane.
    "norm/rms_norm/pinned" rms_norm_pinned = norm::level::rms_norm_pinned
        (x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]);
    /// Norm of each head of a row, in the pinned lane.
    "norm/head_norm/pinned" head_norm_pinned = norm::level::head_norm_pinned
        (x: &mut [f32], weight: &[f32], eps: f32);
    /// A row plus the norm of another, in the pinned lane.
    "norm/add_rms_norm/pinned" add_rms_norm_pinned = norm::level::add_rms_norm_pinned
        (x: &mut [f32], y: &[f32], weight: &[f32], eps: f32);
    /// Turns each head of a row.
    "rope" rope = rope::level::rope (x: &mut [f32], cos: &[f32], sin: &[f32]);
    /// Turns each head of a row, in the pinned lane.
    "rope/pinned" rope_pinned = rope::level::rope_pinned (x: &mut [f32], cos: &[f32], sin: &[f32]);
    /// Stores one head's K and V.
    "kv_store" kv_store = kv_store::level::kv_store
        (k: &[f32], v: &[f32], slot: usize, k_chunk: &mut [u16], v_row: &mut [u16]);
    /// The query heads of one KV head at one position.
    "attention" attention = attention::level::attention
        (desc: &Attention, p: usize, q: &[f32], kv: &HeadView<'_>, out: &mut [f32]);
    /// The same of some chunks, not merged.
    "attention/span" attention_span = attention::level::attention_span
        (desc: &Attention, span: &ChunkSpan, q: &[f32], kv: &HeadView<'_>, out: &mut [f32]);
    /// The chunks of one query head merged.
    "attention/merge" attention_merge = attention::level::attention_merge
        (parts: &[f32], heads: usize, padded: usize, head: usize, out: &mut [f32]);
    /// The query heads of one KV head at one position, in the pinned lane.
    "flash/single" flash_single = pinned::attention::level::flash_single
        (how: Single, desc: &Attention, p: usize, q: &[f32], kv: &HeadView<'_>, out: &mut [f32]);
    /// A tile of queries of one head, in the pinned lane.
    "flash/tile" flash_tile = pinned::attention::level::flash_tile
        (profile: Profile, desc: &Attention, queries: &Queries<'_>, kv: &HeadView<'_>,
            out: &mut [f32]);
    /// `x *= sigmoid(gate)`.
    "elementwise/sigmoid_gate" sigmoid_gate = elementwise::level::sigmoid_gate
        (x: &mut [f32], gate: &[f32]);
    /// `gate = silu(gate) * up`.
    "elementwise/silu_product" silu_product = elementwise::level::silu_product
        (gate: &mut [f32], up: &[f32]);
    /// Scaled, soft-capped logits.
    "elementwise/soft_cap" soft_cap = elementwise::level::soft_cap
        (x: &mut [f32], scale: f32, cap: Option<f32>);
    /// `x *= sigmoid(gate)`, in the pinned lane.
    "elementwise/sigmoid_gate/pinned" sigmoid_gate_pinned = elementwise::level::sigmoid_gate_pinned
        (x: &mut [f32], gate: &[f32]);
    /// `gate = silu(gate) * up` of a row or a part of one, in the pinned lane.
    "elementwise/silu_product/pinned" silu_product_pinned = elementwise::level::silu_product_pinned
        (profile: Profile, whole: usize, gate: &mut [f32], up: &[f32]);
    /// Scaled, soft-capped logits, in the pinned lane.
    "elementwise/soft_cap/pinned" soft_cap_pinned = elementwise::level::soft_cap_pinned
        (x: &mut [f32], scale: f32, cap: Option<f32>);
    /// Multiply-adds of bytes in registers, for the peak; gives their number.
    "int8_peak" int8_peak = int8_peak::level::int8_peak (rounds: u32) -> u64;
    /// Bytes read and folded, for the bandwidth.
    "read" read = read::level::read (bytes: &[u8]) -> u64;
}

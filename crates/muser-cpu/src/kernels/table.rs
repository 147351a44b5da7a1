//! The kernel table: one level's kernels, chosen once when the backend opens.
//!
//! The list at the end is the inventory: a kernel that is not in it does not
//! exist. `unsafe` in this module: a kernel compiled for a level may be called
//! only on a machine that has the level, which [`KernelTable::new`] checks.

use super::attention::Span;
use super::flash::{Queries, Single};
use super::ggml_dot::Order;
use super::quantize::Block;
use crate::kv::HeadView;
use crate::level::Level;
use crate::rows::Tile;
use muser_ops::{Attention, Profile};
use muser_quant::QK;

macro_rules! table {
    ($(
        $(#[$doc:meta])*
        $name:literal $field:ident = $($module:ident)::+ ($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;
    )*) => {
        /// The kernels of one level.
        pub(crate) struct KernelTable {
            level: Level,
            $($field: unsafe fn($($ty),*) $(-> $ret)?,)*
        }

        impl KernelTable {
            /// The kernels of a level that this machine has.
            pub(crate) fn new(level: Level) -> Option<Self> {
                if !level.is_available() {
                    return None;
                }
                Some(match level {
                    Level::Scalar => Self {
                        level,
                        $($field: table!(@path scalar, $field, $($module)::+),)*
                    },
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => Self {
                        level,
                        $($field: table!(@path avx2, $field, $($module)::+),)*
                    },
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 => Self {
                        level,
                        $($field: table!(@path avx512, $field, $($module)::+),)*
                    },
                    #[cfg(not(target_arch = "x86_64"))]
                    _ => return None,
                })
            }

            /// The level.
            pub(crate) fn level(&self) -> Level {
                self.level
            }

            $(
                $(#[$doc])*
                #[inline]
                pub(crate) fn $field(&self, $($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the kernel needs the features of `self.level`, and
                    // a table is made only where they are present (`new`).
                    unsafe { (self.$field)($($arg),*) }
                }
            )*
        }

        /// Every kernel, as `family/…` without its level.
        pub(crate) const INVENTORY: &[&str] = &[$($name),*];
    };
    (@path $level:ident, $field:ident, $a:ident :: $f:ident) => {
        super::$a::$level::$f
    };
    (@path $level:ident, $field:ident, $a:ident :: $b:ident :: $f:ident) => {
        super::$a::$b::$level::$f
    };
}

table! {
    /// Quantises 256 activations.
    "quantize" quantize = quantize::quantize (x: &[f32; QK]) -> Block;
    /// Q4_K rows with a quantised vector of `blocks` blocks.
    "matvec/q4_k" matvec_q4_k = matvec::q4_k::matvec
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// Q5_K rows with a quantised vector of `blocks` blocks.
    "matvec/q5_k" matvec_q5_k = matvec::q5_k::matvec
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// Q6_K rows with a quantised vector of `blocks` blocks.
    "matvec/q6_k" matvec_q6_k = matvec::q6_k::matvec
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// Q4_K rows with quantised vectors.
    "slab/q4_k" slab_q4_k = slab::q4_k::slab
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// Q4_K rows with quantised vectors, by the pinned lane's tiled route.
    "slab/q4_k/tiled" slab_q4_k_tiled = slab::q4_k::slab_tiled
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// Q4_K rows with quantised vectors, by the pinned lane's interleaved route of four.
    "slab/q4_k/fours" slab_q4_k_fours = slab::q4_k::slab_fours
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// Q5_K rows with quantised vectors.
    "slab/q5_k" slab_q5_k = slab::q5_k::slab
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// Q5_K rows with quantised vectors, by the pinned lane's tiled route.
    "slab/q5_k/tiled" slab_q5_k_tiled = slab::q5_k::slab_tiled
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// Q6_K rows with quantised vectors.
    "slab/q6_k" slab_q6_k = slab::q6_k::slab
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// Q6_K rows with quantised vectors, by the pinned lane's tiled route.
    "slab/q6_k/tiled" slab_q6_k_tiled = slab::q6_k::slab_tiled
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// Q4_K rows with quantised vectors, by the pinned lane's lanes.
    "lanes/q4_k" lanes_q4_k = lanes::q4_k::lanes
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// Q5_K rows with quantised vectors, by the pinned lane's lanes.
    "lanes/q5_k" lanes_q5_k = lanes::q5_k::lanes
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// Q6_K rows with quantised vectors, by the pinned lane's lanes.
    "lanes/q6_k" lanes_q6_k = lanes::q6_k::lanes
        (w: &[u8], x: &[Block], blocks: usize, columns: usize, tile: &mut Tile<'_>);
    /// F16 rows with rounded vectors of `cols` values, in the pinned lane.
    "ggml_dot/f16" ggml_dot_f16 = ggml_dot::f16::ggml_dot
        (w: &[u8], x: &[f32], cols: usize, columns: usize, order: Order, tile: &mut Tile<'_>);
    /// BF16 rows with rounded vectors of `cols` values, in the pinned lane.
    "ggml_dot/bf16" ggml_dot_bf16 = ggml_dot::bf16::ggml_dot
        (w: &[u8], x: &[f32], cols: usize, columns: usize, order: Order, tile: &mut Tile<'_>);
    /// F32 rows with vectors of `cols` values, in the pinned lane.
    "ggml_dot/f32" ggml_dot_f32 = ggml_dot::f32::ggml_dot
        (w: &[u8], x: &[f32], cols: usize, columns: usize, order: Order, tile: &mut Tile<'_>);
    /// F16 rows with vectors of `cols` values.
    "matvec/f16" matvec_f16 = matvec::f16::matvec
        (w: &[u8], x: &[f32], cols: usize, columns: usize, tile: &mut Tile<'_>);
    /// BF16 rows with vectors of `cols` values.
    "matvec/bf16" matvec_bf16 = matvec::bf16::matvec
        (w: &[u8], x: &[f32], cols: usize, columns: usize, tile: &mut Tile<'_>);
    /// F32 rows with vectors of `cols` values.
    "matvec/f32" matvec_f32 = matvec::f32::matvec
        (w: &[u8], x: &[f32], cols: usize, columns: usize, tile: &mut Tile<'_>);
    /// Norm of a row.
    "norm/rms_norm" rms_norm = norm::rms_norm
        (x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]);
    /// Norm of each head of a row.
    "norm/head_norm" head_norm = norm::head_norm (x: &mut [f32], weight: &[f32], eps: f32);
    /// A row plus the norm of another.
    "norm/add_rms_norm" add_rms_norm = norm::add_rms_norm
        (x: &mut [f32], y: &[f32], weight: &[f32], eps: f32);
    /// Norm of a row, in the pinned lane.
    "norm/rms_norm/pinned" rms_norm_pinned = norm::rms_norm_pinned
        (x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]);
    /// Norm of each head of a row, in the pinned lane.
    "norm/head_norm/pinned" head_norm_pinned = norm::head_norm_pinned
        (x: &mut [f32], weight: &[f32], eps: f32);
    /// A row plus the norm of another, in the pinned lane.
    "norm/add_rms_norm/pinned" add_rms_norm_pinned = norm::add_rms_norm_pinned
        (x: &mut [f32], y: &[f32], weight: &[f32], eps: f32);
    /// Turns each head of a row.
    "rope" rope = rope::rope (x: &mut [f32], cos: &[f32], sin: &[f32]);
    /// Turns each head of a row, in the pinned lane.
    "rope/pinned" rope_pinned = rope::rope_pinned (x: &mut [f32], cos: &[f32], sin: &[f32]);
    /// Stores one head's K and V.
    "kv_store" kv_store = kv_store::kv_store
        (k: &[f32], v: &[f32], slot: usize, k_chunk: &mut [u16], v_row: &mut [u16]);
    /// The query heads of one KV head at one position.
    "attention" attention = attention::attention
        (desc: &Attention, p: usize, q: &[f32], kv: &HeadView<'_>, out: &mut [f32]);
    /// The same of some chunks, not merged.
    "attention/span" attention_span = attention::attention_span
        (desc: &Attention, span: &Span, q: &[f32], kv: &HeadView<'_>, out: &mut [f32]);
    /// The chunks of one query head merged.
    "attention/merge" attention_merge = attention::attention_merge
        (parts: &[f32], heads: usize, padded: usize, head: usize, out: &mut [f32]);
    /// The query heads of one KV head at one position, in the pinned lane.
    "flash/single" flash_single = flash::flash_single
        (how: Single, desc: &Attention, p: usize, q: &[f32], kv: &HeadView<'_>, out: &mut [f32]);
    /// A tile of queries of one head, in the pinned lane.
    "flash/tile" flash_tile = flash::flash_tile
        (profile: Profile, desc: &Attention, queries: &Queries<'_>, kv: &HeadView<'_>,
            out: &mut [f32]);
    /// `x *= sigmoid(gate)`.
    "elementwise/sigmoid_gate" sigmoid_gate = elementwise::sigmoid_gate
        (x: &mut [f32], gate: &[f32]);
    /// `gate = silu(gate) * up`.
    "elementwise/silu_product" silu_product = elementwise::silu_product
        (gate: &mut [f32], up: &[f32]);
    /// Scaled, soft-capped logits.
    "elementwise/soft_cap" soft_cap = elementwise::soft_cap
        (x: &mut [f32], scale: f32, cap: Option<f32>);
    /// `x *= sigmoid(gate)`, in the pinned lane.
    "elementwise/sigmoid_gate/pinned" sigmoid_gate_pinned = elementwise::sigmoid_gate_pinned
        (x: &mut [f32], gate: &[f32]);
    /// `gate = silu(gate) * up` of a row or a part of one, in the pinned lane.
    "elementwise/silu_product/pinned" silu_product_pinned = elementwise::silu_product_pinned
        (profile: Profile, whole: usize, gate: &mut [f32], up: &[f32]);
    /// Scaled, soft-capped logits, in the pinned lane.
    "elementwise/soft_cap/pinned" soft_cap_pinned = elementwise::soft_cap_pinned
        (x: &mut [f32], scale: f32, cap: Option<f32>);
    /// Multiply-adds of bytes in registers, for the peak; gives their number.
    "int8_peak" int8_peak = int8_peak::int8_peak (rounds: u32) -> u64;
    /// Bytes read and folded, for the bandwidth.
    "read" read = read::read (bytes: &[u8]) -> u64;
}

//! Lists the matrix-product kernels of one instruction-set level: every family with each
//! weight format that it multiplies.
//!
//! A family of the strict lane (muser's own arithmetic) has every format of its
//! arithmetic, from the table of formats. The formats of the pinned lane's families are
//! listed here by hand, because llama.cpp's arithmetic differs from format to format.

use super::pinned::float::Order;
use super::quantize::{Block, Groups};
use crate::ladder::Family;
use crate::rows::Tile;
use muser_levels::levels;
use muser_quant::DType;

/// A product kernel for weights in superblocks of 256. Arguments: the bytes of the rows,
/// the quantised activation columns, the blocks in a column, the number of columns, and
/// the tile of the output to write.
pub(crate) type OfSuperblocks = fn(&[u8], &[Block], usize, usize, &mut Tile<'_>);
/// A product kernel for weights in groups of 32. Arguments: the bytes of the rows, the
/// quantised activation columns, the values in a column, the number of columns, and the
/// tile of the output to write.
pub(crate) type OfGroups = fn(&[u8], &[Groups], usize, usize, &mut Tile<'_>);
/// A product kernel for float weights. Arguments: the bytes of the rows, the activation
/// columns, the values in a column, the number of columns, and the tile of the output to
/// write.
pub(crate) type OfFloats = fn(&[u8], &[f32], usize, usize, &mut Tile<'_>);
/// A product kernel for float weights in one of the orders of summation of the pinned
/// lane (llama.cpp's arithmetic). Arguments: as [`OfFloats`], with the order before the
/// tile.
pub(crate) type OfOrderedFloats = fn(&[u8], &[f32], usize, usize, Order, &mut Tile<'_>);

/// A matrix-product kernel, by the form of the activations that it reads.
#[derive(Clone, Copy)]
pub(crate) enum Kernel {
    /// A kernel that reads activations quantised in groups of 32.
    Groups(OfGroups),
    /// A kernel that reads activations quantised in blocks of 256.
    Superblocks(OfSuperblocks),
    /// A kernel that reads activations in f32.
    Floats(OfFloats),
    /// A kernel that reads activations in f32, rounded to the precision of the float
    /// weights.
    OrderedFloats(OfOrderedFloats),
}

/// An entry of the list of matrix-product kernels: a function with its family, weight
/// format and name.
pub(crate) struct Product {
    /// The family of the product kernel (matvec, slab, …): the way in which it computes.
    pub(crate) family: Family,
    /// The format of the weights that the product kernel multiplies.
    pub(crate) dtype: DType,
    /// The product kernel's name without the instruction-set level: `matvec/q4_k`.
    pub(crate) name: &'static str,
    /// The product kernel's function, for one instruction-set level.
    pub(crate) kernel: Kernel,
}

#[levels]
pub(crate) mod kernels {
    use super::{Kernel, Product};
    use crate::kernels::matvec;
    use crate::kernels::matvec::groups::FOLD;
    use crate::kernels::pinned::float::level::ggml_dot;
    use crate::kernels::pinned::narrow::driver::level::narrow;
    use crate::kernels::pinned::narrow::minima;
    use crate::kernels::slab::groups::driver::level::slab as slab_of_groups;
    use crate::kernels::slab::superblocks::driver::level::slab;
    use crate::kernels::slab::superblocks::link;
    use crate::ladder::Family;
    use muser_quant::{DType, bf16, f16, f32, formats, q4_k, q5_k, q6_k};

    /// Lists the matrix-product kernels of one instruction-set level.
    pub(crate) fn products() -> Vec<Product> {
        let mut all = Vec::new();
        let mut add = |family, dtype, name, kernel| {
            all.push(Product {
                family,
                dtype,
                name,
                kernel,
            });
        };
        macro_rules! strict {
            ($($arithmetic:ident { $(
                $variant:ident $module:ident $block:ident $name:literal $ggml:literal $file:literal;
            )* })*) => {
                $($(strict!(@$arithmetic $variant, $module, $block);)*)*
            };
            (@Groups $variant:ident, $module:ident, $block:ident) => {
                add(
                    Family::Matvec,
                    DType::$variant,
                    concat!("matvec/", stringify!($module)),
                    Kernel::Groups(matvec::groups::level::matvec::<
                        muser_quant::$module::$block,
                        { FOLD * muser_quant::$module::BYTES },
                    >),
                );
                add(
                    Family::Slab,
                    DType::$variant,
                    concat!("slab/", stringify!($module)),
                    Kernel::Groups(slab_of_groups::<
                        muser_quant::$module::$block,
                        { FOLD * muser_quant::$module::BYTES },
                    >),
                );
            };
            (@Superblocks $variant:ident, $module:ident, $block:ident) => {
                add(
                    Family::Matvec,
                    DType::$variant,
                    concat!("matvec/", stringify!($module)),
                    Kernel::Superblocks(matvec::superblocks::level::matvec::<
                        muser_quant::$module::$block,
                        { muser_quant::$module::BYTES },
                    >),
                );
                add(
                    Family::Slab,
                    DType::$variant,
                    concat!("slab/", stringify!($module)),
                    Kernel::Superblocks(slab::<
                        muser_quant::$module::$block,
                        { muser_quant::$module::BYTES },
                        { link::STRICT },
                    >),
                );
            };
            (@Floats $variant:ident, $module:ident, $block:ident) => {
                add(
                    Family::Matvec,
                    DType::$variant,
                    concat!("matvec/", stringify!($module)),
                    Kernel::Floats(matvec::floats::level::matvec::<
                        muser_quant::$module::$block,
                        { muser_quant::$module::BYTES },
                    >),
                );
            };
        }
        formats!(strict);
        add(
            Family::SlabTiled,
            DType::Q4K,
            "slab/q4_k/tiled",
            Kernel::Superblocks(slab::<q4_k::BlockQ4K, { q4_k::BYTES }, { link::TILED }>),
        );
        add(
            Family::SlabTiled,
            DType::Q5K,
            "slab/q5_k/tiled",
            Kernel::Superblocks(slab::<q5_k::BlockQ5K, { q5_k::BYTES }, { link::TILED }>),
        );
        add(
            Family::SlabTiled,
            DType::Q6K,
            "slab/q6_k/tiled",
            Kernel::Superblocks(slab::<q6_k::BlockQ6K, { q6_k::BYTES }, { link::TILED }>),
        );
        add(
            Family::SlabFours,
            DType::Q4K,
            "slab/q4_k/fours",
            Kernel::Superblocks(slab::<q4_k::BlockQ4K, { q4_k::BYTES }, { link::FOURS }>),
        );
        add(
            Family::Narrow,
            DType::Q4K,
            "lanes/q4_k",
            Kernel::Superblocks(narrow::<q4_k::BlockQ4K, { q4_k::BYTES }, { minima::FOUR_CHAINS }>),
        );
        add(
            Family::Narrow,
            DType::Q5K,
            "lanes/q5_k",
            Kernel::Superblocks(narrow::<q5_k::BlockQ5K, { q5_k::BYTES }, { minima::ONE_CHAIN }>),
        );
        add(
            Family::Narrow,
            DType::Q6K,
            "lanes/q6_k",
            Kernel::Superblocks(narrow::<q6_k::BlockQ6K, { q6_k::BYTES }, { minima::NONE }>),
        );
        add(
            Family::GgmlDot,
            DType::F16,
            "ggml_dot/f16",
            Kernel::OrderedFloats(ggml_dot::<f16::F16, { f16::BYTES }>),
        );
        add(
            Family::GgmlDot,
            DType::BF16,
            "ggml_dot/bf16",
            Kernel::OrderedFloats(ggml_dot::<bf16::BF16, { bf16::BYTES }>),
        );
        add(
            Family::GgmlDot,
            DType::F32,
            "ggml_dot/f32",
            Kernel::OrderedFloats(ggml_dot::<f32::F32, { f32::BYTES }>),
        );
        all
    }
}

//! The ladder: the table that chooses the kernel of an operation by lane (whose
//! arithmetic: strict is muser's, pinned is llama.cpp's), weight format, shape and width
//! of the batch.
//!
//! No other code makes this choice: the backend looks its kernels up here, and `muser
//! routes` prints the table.

use muser_ops::Lane;
use muser_ops::pinned::project::Route;
use muser_quant::{Arithmetic, DType};
use std::ops::Range;

/// A rung: one line of the table that chooses kernels, with the kernel family for
/// products of one lane (strict or pinned arithmetic), some weight formats, some numbers
/// of rows and a range of batch widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    /// The name of the lane (whose arithmetic is computed): `strict` or `pinned`.
    pub lane: &'static str,
    /// The weight formats (Q4_K, F16, …) whose products the rung (line of the kernel
    /// table) covers.
    pub dtypes: &'static [DType],
    /// The condition on the number of rows in the weight matrix under which the rung
    /// (line of the kernel table) applies.
    pub rows: RowRule,
    /// The smallest batch, in columns (rows of activations), that the rung (line of the
    /// kernel table) covers.
    pub from: usize,
    /// The largest batch, in columns (rows of activations), that the rung (line of the
    /// kernel table) covers; `None` for no limit.
    pub to: Option<usize>,
    /// The columns of the batch (rows of activations) that the kernel of this rung (line
    /// of the kernel table) computes.
    pub columns: Columns,
    /// The kernel family that computes the products of this rung (line of the kernel
    /// table).
    pub family: Family,
    /// The route of llama.cpp (one of its ways to compute a product) whose bits this rung
    /// (line of the kernel table) computes; `None` in the strict lane (muser's own
    /// arithmetic).
    pub route: Option<Route>,
}

/// A condition on the number of rows in a weight matrix, for choosing the kernel of a
/// product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowRule {
    /// The weight matrix may have any number of rows.
    Any,
    /// The number of rows in the weight matrix is a multiple of this number.
    Multiple(usize),
    /// The number of rows in the weight matrix is not a multiple of this number.
    NoMultiple(usize),
}

impl RowRule {
    /// Returns whether a weight matrix with `rows` rows meets the condition.
    fn holds(self, rows: usize) -> bool {
        match self {
            Self::Any => true,
            Self::Multiple(n) => rows.is_multiple_of(n),
            Self::NoMultiple(n) => !rows.is_multiple_of(n),
        }
    }
}

impl std::fmt::Display for RowRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any => f.pad("any"),
            Self::Multiple(n) => f.pad(&format!("{n} k")),
            Self::NoMultiple(n) => f.pad(&format!("not {n} k")),
        }
    }
}

/// The columns of a batch (rows of activations) that one line of the kernel table
/// computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// All columns (rows of activations) of the batch.
    All,
    /// The batch's columns (rows of activations) in whole groups of four, from the
    /// first on.
    Fours,
    /// The last one to three columns (rows of activations) of the batch, after
    /// [`Columns::Fours`].
    AfterFours,
}

impl Columns {
    /// Returns the range of a batch's columns (rows of activations) that this selection
    /// covers, in a batch of `columns` columns.
    pub fn of(self, columns: usize) -> Range<usize> {
        let fours = columns / 4 * 4;
        match self {
            Self::All => 0..columns,
            Self::Fours => 0..fours,
            Self::AfterFours => fours..columns,
        }
    }

    /// Returns the selection of the batch's columns in words, as `muser routes` prints
    /// it.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Fours => "groups of 4",
            Self::AfterFours => "after groups",
        }
    }
}

/// A family of kernels for matrix products; each member multiplies one weight format at
/// one instruction-set level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The family `matvec/…`: one column of activations with quantised weights, or any
    /// number with float weights.
    Matvec,
    /// The family `slab/…`: several columns, with the weight rows transposed in cache,
    /// so that each vector element holds one row's weights.
    Slab,
    /// The family `slab/…/tiled`: slabs (weight rows transposed, one vector element per
    /// row) with the sums of llama.cpp's tiled route.
    SlabTiled,
    /// The family `slab/…/fours`: slabs (weight rows transposed, one vector element per
    /// row) that add to an output once for every 64 codes, as llama.cpp does for four
    /// columns.
    SlabFours,
    /// The family `lanes/…`: narrow batches (one to seven columns) in the pinned lane
    /// (llama.cpp's arithmetic), eight partial sums for each output.
    Narrow,
    /// The family `ggml_dot/…`: float weights, in the orders of summation of the pinned
    /// lane (llama.cpp's arithmetic).
    GgmlDot,
}

impl Family {
    /// Returns the name of the family's kernel for a weight format, without the
    /// instruction-set level: `matvec/q4_k`.
    pub fn kernel(self, dtype: DType) -> String {
        let (before, after) = match self {
            Self::Matvec => ("matvec", ""),
            Self::Slab => ("slab", ""),
            Self::SlabTiled => ("slab", "/tiled"),
            Self::SlabFours => ("slab", "/fours"),
            Self::Narrow => ("lanes", ""),
            Self::GgmlDot => ("ggml_dot", ""),
        };
        format!("{before}/{}{after}", dtype.key())
    }
}

// The strict lane (muser's own arithmetic) covers every format of an arithmetic, the
// pinned lane (llama.cpp's) only the formats that are named.
const GROUPS: &[DType] = Arithmetic::Groups.formats();
const SUPERBLOCKS: &[DType] = Arithmetic::Superblocks.formats();
const FLOATS: &[DType] = Arithmetic::Floats.formats();
const Q4: &[DType] = &[DType::Q4K];
const Q56: &[DType] = &[DType::Q5K, DType::Q6K];
const F: &[DType] = &[DType::F16, DType::BF16, DType::F32];

const fn strict(
    dtypes: &'static [DType],
    (from, to): (usize, Option<usize>),
    columns: Columns,
    family: Family,
) -> Rung {
    Rung {
        lane: "strict",
        dtypes,
        rows: RowRule::Any,
        from,
        to,
        columns,
        family,
        route: None,
    }
}

const fn pinned(
    dtypes: &'static [DType],
    rows: RowRule,
    (from, to): (usize, Option<usize>),
    columns: Columns,
    family: Family,
    route: Route,
) -> Rung {
    Rung {
        lane: "pinned",
        dtypes,
        rows,
        from,
        to,
        columns,
        family,
        route: Some(route),
    }
}

const EIGHTS: RowRule = RowRule::Multiple(8);
const NO_EIGHTS: RowRule = RowRule::NoMultiple(8);

/// The table that chooses the kernel of every matrix product, one rung (line) after the
/// other.
pub static LADDER: &[Rung] = &[
    strict(GROUPS, (1, Some(1)), Columns::All, Family::Matvec),
    strict(GROUPS, (2, None), Columns::All, Family::Slab),
    strict(SUPERBLOCKS, (1, Some(1)), Columns::All, Family::Matvec),
    strict(SUPERBLOCKS, (2, None), Columns::All, Family::Slab),
    strict(FLOATS, (1, None), Columns::All, Family::Matvec),
    pinned(
        Q4,
        EIGHTS,
        (1, Some(1)),
        Columns::All,
        Family::Matvec,
        Route::Interleaved,
    ),
    pinned(
        Q4,
        EIGHTS,
        (4, None),
        Columns::Fours,
        Family::SlabFours,
        Route::InterleavedFour,
    ),
    pinned(
        Q4,
        EIGHTS,
        (2, None),
        Columns::AfterFours,
        Family::Slab,
        Route::Interleaved,
    ),
    pinned(
        Q4,
        NO_EIGHTS,
        (1, Some(7)),
        Columns::All,
        Family::Narrow,
        Route::Narrow,
    ),
    pinned(
        Q4,
        NO_EIGHTS,
        (8, None),
        Columns::All,
        Family::SlabTiled,
        Route::Tiled,
    ),
    pinned(
        Q56,
        RowRule::Any,
        (1, Some(7)),
        Columns::All,
        Family::Narrow,
        Route::Narrow,
    ),
    pinned(
        Q56,
        RowRule::Any,
        (8, None),
        Columns::All,
        Family::SlabTiled,
        Route::Tiled,
    ),
    pinned(
        F,
        RowRule::Any,
        (1, Some(1)),
        Columns::All,
        Family::GgmlDot,
        Route::Vectors,
    ),
    pinned(
        F,
        RowRule::NoMultiple(4),
        (2, None),
        Columns::All,
        Family::GgmlDot,
        Route::Vectors,
    ),
    pinned(
        F,
        RowRule::Multiple(4),
        (2, None),
        Columns::All,
        Family::GgmlDot,
        Route::TinyBlas,
    ),
];

/// Returns whether the lane (strict or pinned arithmetic) has kernels for products with
/// weights of this format.
pub fn covers(lane: Lane, dtype: DType) -> bool {
    let mut of_lane = LADDER.iter().filter(|r| r.lane == lane.name());
    of_lane.any(|r| r.dtypes.contains(&dtype))
}

/// Returns the rungs (lines of the kernel table) that compute one matrix product, each
/// with its columns of the batch. Together they compute every column once; rungs without
/// a column are left out.
pub fn rungs(
    lane: Lane,
    dtype: DType,
    rows: usize,
    columns: usize,
) -> impl Iterator<Item = (&'static Rung, Range<usize>)> {
    LADDER
        .iter()
        .filter(move |r| {
            r.lane == lane.name()
                && r.dtypes.contains(&dtype)
                && r.rows.holds(rows)
                && columns >= r.from
                && r.to.is_none_or(|to| columns <= to)
        })
        .map(move |r| (r, r.columns.of(columns)))
        .filter(|(_, range)| !range.is_empty())
}

/// An operation of a model other than a matrix product, with its kernel in each lane
/// (strict: muser's arithmetic; pinned: llama.cpp's).
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The operation's name in the report of `muser routes`.
    pub name: &'static str,
    /// The operation's kernel in the strict lane (muser's own arithmetic), or several,
    /// separated by commas. Attention is listed with two kernels for long contexts with
    /// fewer tasks than threads.
    pub strict: &'static str,
    /// The batch sizes, in words, for which the pinned lane (llama.cpp's arithmetic)
    /// takes the kernel named here.
    pub rows: &'static str,
    /// The operation's kernel in the pinned lane (llama.cpp's arithmetic), with a remark
    /// after a comma.
    pub pinned: &'static str,
    /// The operations of llama.cpp whose bits the kernel of the pinned lane (llama.cpp's
    /// arithmetic) computes.
    pub reference: &'static str,
}

const fn operation(
    name: &'static str,
    strict: &'static str,
    rows: &'static str,
    pinned: &'static str,
    reference: &'static str,
) -> Operation {
    Operation {
        name,
        strict,
        rows,
        pinned,
        reference,
    }
}

/// All operations of a model, other than matrix products, that have a kernel.
pub static OPERATIONS: &[Operation] = &[
    operation(
        "quantise",
        "quantize, quantize/groups",
        "any",
        "quantize",
        "quantize_row_q8_K, …_4x8",
    ),
    operation(
        "norm",
        "norm/rms_norm",
        "any",
        "norm/rms_norm/pinned",
        "RMS_NORM, MUL",
    ),
    operation(
        "head norm",
        "norm/head_norm",
        "any",
        "norm/head_norm/pinned",
        "RMS_NORM, MUL",
    ),
    operation(
        "residual + norm",
        "norm/add_rms_norm",
        "any",
        "norm/add_rms_norm/pinned",
        "RMS_NORM, MUL, ADD",
    ),
    operation("rotation", "rope", "any", "rope/pinned", "ROPE (normal)"),
    operation("KV store", "kv_store", "any", "kv_store", "SET_ROWS to f16"),
    operation(
        "attention",
        "attention",
        "1 to 63",
        "flash/single",
        "FLASH_ATTN_EXT, one chunk",
    ),
    operation(
        "attention",
        "attention/span, attention/merge",
        "1, from 512 slots on",
        "flash/single, in parts by threads",
        "FLASH_ATTN_EXT, split",
    ),
    operation(
        "attention",
        "attention",
        "64 and more",
        "flash/tile",
        "FLASH_ATTN_EXT, tiled",
    ),
    operation(
        "gate",
        "elementwise/sigmoid_gate",
        "any",
        "elementwise/sigmoid_gate/pinned",
        "SIGMOID, MUL",
    ),
    operation(
        "SiLU product",
        "elementwise/silu_product",
        "any",
        "elementwise/silu_product/pinned",
        "SWIGLU",
    ),
    operation(
        "logits",
        "elementwise/soft_cap",
        "any",
        "elementwise/soft_cap/pinned",
        "SCALE, SCALE, TANH, SCALE",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::table::KernelTable;
    use crate::level::Level;
    use muser_ops::pinned::project::route;
    use muser_ops::{Profile, pinned};

    const LANES: [Lane; 2] = [Lane::Strict, Lane::Pinned(Profile::LlamaCppAvx2)];

    #[test]
    fn every_column_takes_one_rung_and_in_the_pinned_lane_that_of_its_route() {
        for lane in LANES {
            for dtype in DType::ALL {
                for rows in 1..=17 {
                    for columns in 1..=70 {
                        let mut at = 0;
                        let mut parts: Vec<_> = rungs(lane, dtype, rows, columns).collect();
                        parts.sort_by_key(|(_, range)| range.start);
                        for (rung, range) in parts {
                            assert_eq!(range.start, at, "{lane} {dtype} {rows} x {columns}");
                            at = range.end;
                            for column in range {
                                let want = route(dtype, rows, columns, column);
                                assert!(rung.route.is_none() || rung.route == want);
                                assert_eq!(rung.route.is_some(), lane.profile().is_some());
                            }
                        }
                        let want = if covers(lane, dtype) { columns } else { 0 };
                        assert_eq!(at, want, "{lane} {dtype} {rows} x {columns}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_lane_covers_the_formats_of_its_oracle() {
        for dtype in DType::ALL {
            assert!(covers(Lane::Strict, dtype));
            assert_eq!(covers(LANES[1], dtype), pinned::project::covers(dtype));
        }
    }

    #[test]
    fn every_rung_has_its_kernel_at_every_level() {
        for level in Level::available() {
            let table = KernelTable::new(level).unwrap();
            for rung in LADDER {
                for &dtype in rung.dtypes {
                    let product = table.product(rung.family, dtype).unwrap();
                    assert_eq!(product.name, rung.family.kernel(dtype));
                }
            }
        }
    }

    #[test]
    fn every_kernel_that_is_named_exists_and_every_kernel_is_named() {
        let of_products = LADDER
            .iter()
            .flat_map(|r| r.dtypes.iter().map(|&d| r.family.kernel(d)));
        let of_others = OPERATIONS.iter().flat_map(|o| {
            let pinned = o.pinned.split(',').next().unwrap();
            let strict = o.strict.split(", ").chain([pinned]);
            strict.map(str::to_owned).collect::<Vec<_>>()
        });
        let mut named: Vec<String> = of_products.chain(of_others).collect();
        named.sort_unstable();
        named.dedup();
        // Two kernels measure the machine and compute no operation of a model.
        let of_model = |k: &&&str| !matches!(**k, "int8_peak" | "read");
        let table = KernelTable::new(Level::Scalar).unwrap();
        let inventory = table.inventory();
        let kernels = inventory.iter().filter(of_model);
        let mut kernels: Vec<String> = kernels.map(|k| (*k).to_owned()).collect();
        kernels.sort_unstable();
        assert_eq!(named, kernels);
    }
}

//! The ladder: the table that chooses the kernel of an operation by lane, format, shape
//! and width of the batch.
//!
//! No other code makes this choice: the backend looks its kernels up here, and `muser
//! routes` prints the table.

use muser_ops::Lane;
use muser_ops::pinned::project::Route;
use muser_quant::{Arithmetic, DType};
use std::ops::Range;

/// A rung of the ladder: the kernel family for products of one lane, some formats, some
/// numbers of rows and a range of batch widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    /// The lane's name.
    pub lane: &'static str,
    /// The formats of the weights.
    pub dtypes: &'static [DType],
    /// The condition on the number of rows in the matrix.
    pub rows: RowRule,
    /// The smallest width of the batch, in columns.
    pub from: usize,
    /// The largest width, in columns; `None` for no limit.
    pub to: Option<usize>,
    /// The columns of the batch that this rung computes.
    pub columns: Columns,
    /// The kernel family.
    pub family: Family,
    /// In the pinned lane, the route of llama.cpp that the rung computes.
    pub route: Option<Route>,
}

/// A condition on the number of rows in a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowRule {
    /// Any number of rows.
    Any,
    /// A multiple of this number.
    Multiple(usize),
    /// Not a multiple of this number.
    NoMultiple(usize),
}

impl RowRule {
    /// Whether `rows` meets the condition.
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

/// The columns of a batch that a rung computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// All columns.
    All,
    /// The whole groups of four columns.
    Fours,
    /// The last one to three columns, after [`Columns::Fours`].
    AfterFours,
}

impl Columns {
    /// The range of these columns in a batch of `columns` columns.
    pub fn of(self, columns: usize) -> Range<usize> {
        let fours = columns / 4 * 4;
        match self {
            Self::All => 0..columns,
            Self::Fours => 0..fours,
            Self::AfterFours => fours..columns,
        }
    }

    /// The columns in words, as `muser routes` prints them.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Fours => "groups of 4",
            Self::AfterFours => "after groups",
        }
    }
}

/// A family of kernels for products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `matvec/…`: one column, or any number of float weights.
    Matvec,
    /// `slab/…`: rows transposed, so that each vector element is one row.
    Slab,
    /// `slab/…/tiled`: slabs for the pinned lane's tiled route.
    SlabTiled,
    /// `slab/…/fours`: slabs with a link for every 64 codes.
    SlabFours,
    /// `lanes/…`: the pinned lane's narrow batches, eight partial sums for each output.
    Narrow,
    /// `ggml_dot/…`: float weights, in the orders of the pinned lane.
    GgmlDot,
}

impl Family {
    /// The name of the family's kernel for a format, without the level.
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

// The strict lane covers every format of an arithmetic, the pinned lane only the formats
// that are named.
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

/// The rungs of all products.
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

/// Whether the lane has kernels for products with this format.
pub fn covers(lane: Lane, dtype: DType) -> bool {
    let mut of_lane = LADDER.iter().filter(|r| r.lane == lane.name());
    of_lane.any(|r| r.dtypes.contains(&dtype))
}

/// The rungs of one product, each with its columns. Together they compute every column
/// once; rungs without a column are left out.
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

/// An operation other than a product, with its kernel in each lane.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The operation's name in reports.
    pub name: &'static str,
    /// Its kernel in the strict lane, or several, separated by commas. The line of
    /// attention with two kernels is for long contexts with fewer tasks than threads.
    pub strict: &'static str,
    /// The number of rows in the batches that take the pinned kernel, in words.
    pub rows: &'static str,
    /// Its kernel in the pinned lane, with a remark after a comma.
    pub pinned: &'static str,
    /// The operations of llama.cpp that the pinned kernel computes.
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

/// All operations other than products that have a kernel.
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

//! The conformance suite: compares the operations of any backend with the oracle (the
//! scalar functions that define every operation's bits), bit for bit.
//!
//! The tests of a backend instantiate the suite, once for each instruction-set level:
//!
//! ```
//! mod oracle_itself {
//!     muser_conformance::conformance_tests!(muser_ops::oracle::Oracle);
//! }
//! ```
//!
//! A test harness of its own calls [`groups`] and [`run`] instead:
//!
//! ```
//! use muser_conformance as conformance;
//! use muser_ops::oracle::Oracle;
//! let report = conformance::run(&Oracle, conformance::Group::CopyRows, 1);
//! report.assert_ok();
//! ```
//!
//! Every case fills its operands from one seed, runs on the oracle and on the subject
//! (the backend under test), and compares *all* values. Outputs are filled with a NaN
//! first, which is a failure wherever it is still found afterwards. Guard rows behind
//! the rows of the operation, and operands that are only read, must not change. A group
//! that compared nothing fails. No shape is optional: an operation that a backend
//! refuses is a failure.
//!
//! The environment variable `MUSER_SEED` (decimal, or hexadecimal after `0x`) replaces
//! the seed of all inputs.
#![forbid(unsafe_code)]

mod attention;
#[cfg(test)]
mod broken;
mod choose;
pub mod compare;
mod copy_rows;
mod elementwise;
mod embed;
mod fill;
mod matvec;
mod norm;
mod report;
mod rig;
mod rng;
mod rope;
#[cfg(test)]
mod tests;
mod together;

use muser_ops::{Backend, Weight};
use muser_quant::DType;
pub use report::Report;
use rig::Suite;
use rng::Rng;

/// A group of conformance cases: one family of a backend's operations and, where it has
/// weights, one weight format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Conformance group: products of one weight matrix with batches of many widths.
    Matvec(DType),
    /// Conformance group: projection sets, that is several weight matrices, of several
    /// formats, multiplied with the same input in one call.
    MatvecSet,
    /// Conformance group: lookup of tokens' rows in an embedding table.
    Embed(DType),
    /// Conformance group: RMS norm of rows, from one buffer to another.
    RmsNorm,
    /// Conformance group: RMS norm of each attention head's values, in place.
    HeadNorm,
    /// Conformance group: RMS norm of rows, added to the residual stream.
    AddRmsNorm,
    /// Conformance group: rotary position encoding (RoPE).
    Rope,
    /// Conformance group: stores into the KV cache, and attention without a window.
    AttentionFull,
    /// Conformance group: stores into the KV cache, and attention with a sliding
    /// window, for which the cache is a ring.
    AttentionWindow,
    /// Conformance group: stores into the KV cache, and attention, with values at the
    /// ends of the ranges of f16 and f32.
    AttentionValues,
    /// Conformance group: attention of several sequences in one batch, each of which
    /// must get the bits that it gets alone.
    AttentionTogether,
    /// Conformance group: elementwise sum `x + y`.
    Add,
    /// Conformance group: elementwise gate `x · sigmoid(g)`.
    SigmoidGate,
    /// Conformance group: elementwise product `silu(g) · u`.
    SiluProduct,
    /// Conformance group: scaling and soft-capping of logits.
    SoftCap,
    /// Conformance group: copies of rows from one buffer to another.
    CopyRows,
    /// Conformance group: gathering of a batch's kept rows (those whose logits are
    /// computed).
    Gather,
    /// Conformance group: choosing of tokens from rows of logits.
    Choose,
}

/// The conformance groups that do not belong to one weight format, with their names.
const WITHOUT_FORMAT: [(Group, &str); 16] = [
    (Group::MatvecSet, "matvec/set"),
    (Group::RmsNorm, "norm/rms_norm"),
    (Group::HeadNorm, "norm/head_norm"),
    (Group::AddRmsNorm, "norm/add_rms_norm"),
    (Group::Rope, "rope"),
    (Group::AttentionFull, "attention/full"),
    (Group::AttentionWindow, "attention/window"),
    (Group::AttentionValues, "attention/values"),
    (Group::AttentionTogether, "attention/together"),
    (Group::Add, "elementwise/add"),
    (Group::SigmoidGate, "elementwise/sigmoid_gate"),
    (Group::SiluProduct, "elementwise/silu_product"),
    (Group::SoftCap, "elementwise/soft_cap"),
    (Group::CopyRows, "copy_rows"),
    (Group::Gather, "gather"),
    (Group::Choose, "choose"),
];

/// Defines the list of conformance groups that belong to one weight format each, from
/// the table of weight formats.
macro_rules! of_formats {
    ($($arithmetic:ident { $(
        $variant:ident $module:ident $block:ident $name:literal $ggml:literal $file:literal;
    )* })*) => {
        /// The conformance groups that belong to one weight format each, with their
        /// names.
        const OF_FORMATS: &[(Group, &str)] = &[$($(
            (Group::Matvec(DType::$variant), concat!("matvec/", stringify!($module))),
            (Group::Embed(DType::$variant), concat!("embed/", stringify!($module))),
        )*)*];
    };
}
muser_quant::formats!(of_formats);

/// Iterates over every conformance group with its name.
fn named() -> impl Iterator<Item = (Group, &'static str)> {
    OF_FORMATS.iter().chain(&WITHOUT_FORMAT).copied()
}

/// Returns every group of conformance cases.
pub fn groups() -> Vec<Group> {
    named().map(|(group, _)| group).collect()
}

impl Group {
    /// Returns the name of the conformance group, a path: `matvec/q4_k`,
    /// `norm/rms_norm`, …
    pub fn name(self) -> &'static str {
        let mut found = named().filter(|(group, _)| *group == self);
        found.next().expect("a test: every group is in the list").1
    }

    /// Returns the conformance group of this name, such as `matvec/q4_k`.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut found = named().filter(|(_, n)| *n == name);
        found.next().map(|(group, _)| group)
    }

    /// Returns the format of the group's weights, if it has one format. A backend whose
    /// lane (the arithmetic it computes in) does not cover the format refuses to bind
    /// such weights, which [`refused`] checks.
    pub fn format(self) -> Option<DType> {
        match self {
            Self::Matvec(dtype) | Self::Embed(dtype) => Some(dtype),
            Self::MatvecSet
            | Self::RmsNorm
            | Self::HeadNorm
            | Self::AddRmsNorm
            | Self::Rope
            | Self::AttentionFull
            | Self::AttentionWindow
            | Self::AttentionValues
            | Self::AttentionTogether
            | Self::Add
            | Self::SigmoidGate
            | Self::SiluProduct
            | Self::SoftCap
            | Self::CopyRows
            | Self::Gather
            | Self::Choose => None,
        }
    }
}

/// Checks that a backend refuses to bind weights of this format, with an error that
/// names the tensor, as it must if its lane (the arithmetic it computes in) does not
/// cover the format.
///
/// # Panics
/// If the backend accepts them, or the error does not name the tensor.
pub fn refused<B: Backend>(backend: &B, dtype: DType) {
    let cols = dtype.block_values();
    let bytes = vec![0u8; dtype.block_bytes()];
    let weight = Weight::new("blk.0.weight", bytes, dtype, 1, cols).expect("one whole block");
    match backend.bind_set(vec![weight.into()]) {
        Ok(_) => panic!("{dtype} was bound by a lane that does not cover it"),
        Err(e) => {
            let message = e.to_string();
            assert!(
                message.contains("blk.0.weight") && message.contains(dtype.name()),
                "the refusal names neither tensor nor format: {message}"
            );
        }
    }
}

/// Runs one group of conformance cases on a backend and returns what was compared and
/// what differed. [`Report::assert_ok`] turns the report into a test.
///
/// # Panics
/// If `MUSER_SEED` is set but not a number.
pub fn run<B: Backend>(backend: &B, group: Group, seed: u64) -> Report {
    let seed = std::env::var("MUSER_SEED").map_or(seed, |s| match parse_seed(&s) {
        Some(seed) => seed,
        None => panic!("MUSER_SEED: expected a number of 64 bits, found {s:?}"),
    });
    run_with(backend, group, seed)
}

/// Runs one group of conformance cases like [`run`], but ignores `MUSER_SEED`.
fn run_with<B: Backend>(backend: &B, group: Group, seed: u64) -> Report {
    let info = backend.info();
    let mut suite = Suite {
        subject: backend,
        rng: Rng::new(seed, group.name()),
        report: Report {
            group: group.name(),
            backend: format!("{}/{} x {}", info.name, info.level, info.threads),
            seed,
            cases: 0,
            values: 0,
            failures: Vec::new(),
        },
    };
    match group {
        Group::Matvec(dtype) => matvec::one(&mut suite, dtype),
        Group::MatvecSet => matvec::set(&mut suite),
        Group::Embed(dtype) => embed::embed(&mut suite, dtype),
        Group::RmsNorm => norm::rms_norm(&mut suite),
        Group::HeadNorm => norm::head_norm(&mut suite),
        Group::AddRmsNorm => norm::add_rms_norm(&mut suite),
        Group::Rope => rope::rope(&mut suite),
        Group::AttentionFull => attention::full(&mut suite),
        Group::AttentionWindow => attention::window(&mut suite),
        Group::AttentionValues => attention::values(&mut suite),
        Group::AttentionTogether => together::together(&mut suite),
        Group::Add => elementwise::add(&mut suite),
        Group::SigmoidGate => elementwise::sigmoid_gate(&mut suite),
        Group::SiluProduct => elementwise::silu_product(&mut suite),
        Group::SoftCap => elementwise::soft_cap(&mut suite),
        Group::CopyRows => copy_rows::copy_rows(&mut suite),
        Group::Gather => copy_rows::gather(&mut suite),
        Group::Choose => choose::choose(&mut suite),
    }
    suite.report
}

fn parse_seed(s: &str) -> Option<u64> {
    match s.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => s.parse().ok(),
    }
}

/// The seed of all inputs in the tests that [`conformance_tests`] defines.
pub const SEED: u64 = 20_260_101;

/// Runs the conformance group of this name on a backend and panics unless it passes.
///
/// # Panics
/// If there is no such group, if [`Report::assert_ok`] panics, or if the group
/// has too few cases to be a proof.
pub fn check<B: Backend>(backend: &B, name: &str) {
    match Group::from_name(name) {
        Some(group) => {
            let report = run(backend, group, SEED);
            report.assert_ok();
            // A group with only a few cases could pass by chance.
            assert!(report.cases >= 40 && report.values > 20_000, "{report}");
        }
        None => panic!("no conformance group is called {name:?}"),
    }
}

/// Defines one `#[test]` for each conformance group (one for all weight formats
/// together), on the backend that the expression opens.
///
/// The expression must return a backend. If the machine lacks its instruction-set
/// level, it is up to the caller to report the tests as not run.
#[macro_export]
macro_rules! conformance_tests {
    ($backend:expr) => {
        $crate::conformance_tests! { @tests $backend;
            matvec_set "matvec/set",
            norm_rms_norm "norm/rms_norm", norm_head_norm "norm/head_norm",
            norm_add_rms_norm "norm/add_rms_norm",
            rope "rope",
            attention_full "attention/full",
            attention_window "attention/window",
            attention_values "attention/values",
            attention_together "attention/together",
            elementwise_add "elementwise/add",
            elementwise_sigmoid_gate "elementwise/sigmoid_gate",
            elementwise_silu_product "elementwise/silu_product",
            elementwise_soft_cap "elementwise/soft_cap",
            copy_rows "copy_rows",
            gather "gather",
            choose "choose",
        }
    };
    (@tests $backend:expr; $($test:ident $name:literal,)*) => {
        $(#[test]
        fn $test() {
            $crate::check(&$backend, $name);
        })*

        /// Runs the conformance groups (matrix products, embedding lookups) of every
        /// weight format, one after the other.
        #[test]
        fn every_format() {
            for group in $crate::groups().iter().filter(|g| g.format().is_some()) {
                $crate::check(&$backend, group.name());
            }
        }

        /// Checks that the macro that defines the conformance tests has a line for
        /// every group: without one the group would never run.
        #[test]
        fn every_group_is_run() {
            let mut named: Vec<&str> = vec![$($name),*];
            let mut groups: Vec<&str> = $crate::groups()
                .iter()
                .filter(|g| g.format().is_none())
                .map(|g| g.name())
                .collect();
            named.sort_unstable();
            groups.sort_unstable();
            assert_eq!(named, groups);
        }
    };
}

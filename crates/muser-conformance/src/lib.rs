//! The conformance suite: any backend against the oracle, bit for bit.
//!
//! A backend instantiates it once a level, in its tests:
//!
//! ```
//! mod oracle_itself {
//!     muser_conformance::conformance_tests!(muser_ops::oracle::Oracle);
//! }
//! ```
//!
//! or, where the harness is its own, with [`groups`] and [`run`]:
//!
//! ```
//! use muser_conformance as conformance;
//! use muser_ops::oracle::Oracle;
//! let report = conformance::run(&Oracle, conformance::Group::CopyRows, 1);
//! report.assert_ok();
//! ```
//!
//! Every case fills its operands from one seed, runs on the oracle and on the
//! subject, and compares *all* values. Outputs hold a NaN before that counts
//! as a failure wherever it is found after; every buffer has guard rows behind
//! the operation's own that must not change, and neither may an operand that is
//! only read. A group that compared nothing has failed. The suite documents no
//! geometry as optional: an operation that a backend refuses is a failure.
//!
//! `MUSER_SEED` (decimal, or hexadecimal after `0x`) replaces the seed.
#![forbid(unsafe_code)]

mod attention;
#[cfg(test)]
mod broken;
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

use muser_ops::Backend;
use muser_quant::DType;
pub use report::Report;
use rig::Suite;
use rng::Rng;

/// One family of operations, of one weight format where it has weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// One matrix, every batch width.
    Matvec(DType),
    /// Several matrices of several formats in one projection set.
    MatvecSet,
    /// Rows of an embedding table.
    Embed(DType),
    /// RMS norm of rows.
    RmsNorm,
    /// RMS norm of heads in place.
    HeadNorm,
    /// RMS norm added to the residual.
    AddRmsNorm,
    /// Rotary encoding.
    Rope,
    /// KV store and attention where every position stays visible.
    AttentionFull,
    /// The same with a window and its ring.
    AttentionWindow,
    /// The same over values at the ends of f16 and f32.
    AttentionValues,
    /// Several sequences in one batch, each as it is alone.
    AttentionTogether,
    /// `x + y`.
    Add,
    /// `x · sigmoid(g)`.
    SigmoidGate,
    /// `silu(g) · u`.
    SiluProduct,
    /// Scaled and capped logits.
    SoftCap,
    /// Rows from one buffer to another.
    CopyRows,
    /// The rows that a batch keeps.
    Gather,
}

/// Every group.
pub fn groups() -> &'static [Group] {
    use DType::{BF16, F16, F32, Q4K, Q5K, Q6K};
    use Group::*;
    &[
        Matvec(Q4K),
        Matvec(Q5K),
        Matvec(Q6K),
        Matvec(F16),
        Matvec(BF16),
        Matvec(F32),
        MatvecSet,
        Embed(Q4K),
        Embed(Q5K),
        Embed(Q6K),
        Embed(F16),
        Embed(BF16),
        Embed(F32),
        RmsNorm,
        HeadNorm,
        AddRmsNorm,
        Rope,
        AttentionFull,
        AttentionWindow,
        AttentionValues,
        AttentionTogether,
        Add,
        SigmoidGate,
        SiluProduct,
        SoftCap,
        CopyRows,
        Gather,
    ]
}

impl Group {
    /// The family's path: `matvec/q4_k`, `norm/rms_norm`, …
    pub fn name(self) -> &'static str {
        use DType::{BF16, F16, F32, Q4K, Q5K, Q6K};
        match self {
            Self::Matvec(Q4K) => "matvec/q4_k",
            Self::Matvec(Q5K) => "matvec/q5_k",
            Self::Matvec(Q6K) => "matvec/q6_k",
            Self::Matvec(F16) => "matvec/f16",
            Self::Matvec(BF16) => "matvec/bf16",
            Self::Matvec(F32) => "matvec/f32",
            Self::MatvecSet => "matvec/set",
            Self::Embed(Q4K) => "embed/q4_k",
            Self::Embed(Q5K) => "embed/q5_k",
            Self::Embed(Q6K) => "embed/q6_k",
            Self::Embed(F16) => "embed/f16",
            Self::Embed(BF16) => "embed/bf16",
            Self::Embed(F32) => "embed/f32",
            Self::RmsNorm => "norm/rms_norm",
            Self::HeadNorm => "norm/head_norm",
            Self::AddRmsNorm => "norm/add_rms_norm",
            Self::Rope => "rope",
            Self::AttentionFull => "attention/full",
            Self::AttentionWindow => "attention/window",
            Self::AttentionValues => "attention/values",
            Self::AttentionTogether => "attention/together",
            Self::Add => "elementwise/add",
            Self::SigmoidGate => "elementwise/sigmoid_gate",
            Self::SiluProduct => "elementwise/silu_product",
            Self::SoftCap => "elementwise/soft_cap",
            Self::CopyRows => "copy_rows",
            Self::Gather => "gather",
        }
    }

    /// The group of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        groups().iter().copied().find(|g| g.name() == name)
    }
}

/// Runs one group on a backend. The report says what was compared and what
/// differed; [`Report::assert_ok`] makes a test of it.
///
/// # Panics
/// If `MUSER_SEED` is set and no number.
pub fn run<B: Backend>(backend: &B, group: Group, seed: u64) -> Report {
    let seed = std::env::var("MUSER_SEED").map_or(seed, |s| match parse_seed(&s) {
        Some(seed) => seed,
        None => panic!("MUSER_SEED: expected a number of 64 bits, found {s:?}"),
    });
    run_with(backend, group, seed)
}

/// [`run`] with this seed whatever the environment says.
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
    }
    suite.report
}

fn parse_seed(s: &str) -> Option<u64> {
    match s.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => s.parse().ok(),
    }
}

/// The seed of the tests that [`conformance_tests`](crate::conformance_tests)
/// writes.
pub const SEED: u64 = 20_260_101;

/// The group of this name on this backend, as a test.
///
/// # Panics
/// If there is no such group, or if [`Report::assert_ok`] does.
pub fn check<B: Backend>(backend: &B, name: &str) {
    match Group::from_name(name) {
        Some(group) => {
            let report = run(backend, group, SEED);
            report.assert_ok();
            // A group that shrank to next to nothing passes only by chance.
            assert!(report.cases >= 40 && report.values > 20_000, "{report}");
        }
        None => panic!("no conformance group is called {name:?}"),
    }
}

/// One `#[test]` a group, for the backend that the expression opens.
///
/// A level that the machine lacks is for the caller to report as not run; the
/// expression must give a backend.
#[macro_export]
macro_rules! conformance_tests {
    ($backend:expr) => {
        $crate::conformance_tests! { @tests $backend;
            matvec_q4_k "matvec/q4_k", matvec_q5_k "matvec/q5_k",
            matvec_q6_k "matvec/q6_k", matvec_f16 "matvec/f16",
            matvec_bf16 "matvec/bf16", matvec_f32 "matvec/f32",
            matvec_set "matvec/set",
            embed_q4_k "embed/q4_k", embed_q5_k "embed/q5_k",
            embed_q6_k "embed/q6_k", embed_f16 "embed/f16",
            embed_bf16 "embed/bf16", embed_f32 "embed/f32",
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
        }
    };
    (@tests $backend:expr; $($test:ident $name:literal,)*) => {
        $(#[test]
        fn $test() {
            $crate::check(&$backend, $name);
        })*

        /// A group without a line in the macro would be a group never run.
        #[test]
        fn every_group_is_run() {
            let mut named: Vec<&str> = vec![$($name),*];
            let mut groups: Vec<&str> = $crate::groups()
                .iter()
                .map(|g| g.name())
                .collect();
            named.sort_unstable();
            groups.sort_unstable();
            assert_eq!(named, groups);
        }
    };
}

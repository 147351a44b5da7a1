//! Tests the conformance suite itself: the oracle (which defines the right bits) passes
//! it, and backends with one planted defect each fail it.

use super::broken::{Defect, broken};
use super::{Group, Report, SEED, groups, parse_seed, run_with};
use muser_quant::{Arithmetic, DType};

mod on_the_oracle {
    crate::conformance_tests!(muser_ops::oracle::Oracle);
}

/// Runs the conformance suite on the oracle with its operations measured by the
/// profiler, which must not change their bits.
mod on_the_measured_oracle {
    use muser_ops::{oracle::Oracle, profiler::Profiled};
    use std::sync::Arc;
    crate::conformance_tests!(Profiled::new(Arc::new(Oracle)));
}

/// Returns whether a conformance group finds a planted defect; checks that the
/// failure's message names the group and the seed.
fn caught(group: Group, defect: Defect) -> bool {
    let report = run_with(&broken(defect), group, SEED);
    assert!(report.cases > 0);
    if report.is_ok() {
        return false;
    }
    assert!(report.failures.len() <= Report::LIMIT);
    let message = std::panic::catch_unwind(|| report.assert_ok()).unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.contains(group.name()) && message.contains(&SEED.to_string()));
    true
}

/// Plants the defects that any operation can have, and checks that every conformance
/// group finds them.
#[test]
fn every_group_catches_what_can_be_wrong_anywhere() {
    use Defect::*;
    let defects = [
        LastRowUnwritten,
        OneUlp,
        GuardRow,
        LastGuard,
        NineRows,
        InputChanged,
        NanForNumber,
        Refuses,
    ];
    for group in groups() {
        for defect in defects {
            // Embedding and the operations on one buffer in place have no input that
            // could change.
            let no_input = matches!(
                group,
                Group::Embed(_) | Group::HeadNorm | Group::Rope | Group::SoftCap
            );
            if no_input && defect == InputChanged {
                continue;
            }
            // Choosing tokens writes no buffer, so it has no guard rows.
            let of_buffers = matches!(defect, GuardRow | LastGuard | NanForNumber);
            if group == Group::Choose && of_buffers {
                continue;
            }
            assert!(caught(group, defect), "{} misses {defect:?}", group.name());
        }
    }
}

/// Plants the defects of one operation's arithmetic, and checks that the operation's
/// conformance groups find them.
#[test]
fn faults_of_one_operation_are_caught() {
    use DType::{BF16, F16, F32, Q4K, Q5K};
    use Defect::*;
    use Group::*;
    let all = [
        (Unfused, &[Matvec(Q4K), Matvec(Q5K), MatvecSet][..]),
        (NonFiniteIsZero, &[MatvecSet]),
        (
            OtherPartials,
            &[Matvec(F16), Matvec(BF16), Matvec(F32), RmsNorm, AddRmsNorm],
        ),
        (SwappedOutputs, &[MatvecSet]),
        (LastOfSetUnwritten, &[MatvecSet]),
        (IgnoresWindow, &[AttentionWindow, AttentionValues]),
        (ShiftedWindow, &[AttentionWindow, AttentionValues]),
        (ChunksFromFirst, &[AttentionWindow]),
        (SaturatedHalf, &[AttentionValues]),
        (OneHeadGroup, &[AttentionFull, AttentionValues]),
        (ShortRing, &[AttentionWindow]),
        (StaleAfterRewind, &[AttentionWindow]),
        (
            FlushToZero,
            &[SigmoidGate, SiluProduct, SoftCap, Rope, RmsNorm, CopyRows],
        ),
        (LostNegativeZero, &[SiluProduct, SoftCap, Rope, CopyRows]),
        (CapWithoutScale, &[SoftCap]),
        (TableRowZero, &[Rope]),
        (CopiesFromZero, &[CopyRows]),
        (CopiesToZero, &[CopyRows]),
        (GathersTheFirst, &[Gather]),
        (OtherSequence, &[AttentionTogether]),
        (LastOfTies, &[Choose]),
        (IgnoresMask, &[Choose]),
        (IgnoresBias, &[Choose]),
        (IgnoresHistory, &[Choose]),
        (ChoosesPastNan, &[Choose]),
        (SumsInOrder, &[Choose]),
    ];
    // The groups of every weight format whose arithmetic can have the defect.
    let of = |arithmetic: Arithmetic| arithmetic.formats().iter().map(|&d| Matvec(d));
    let groups: Vec<Group> = of(Arithmetic::Groups).collect();
    let quantised: Vec<Group> = of(Arithmetic::Superblocks).chain(groups.clone()).collect();
    let of_formats = [
        (FlushedScale, &quantised[..]),
        (NonFiniteIsZero, &quantised),
        (FoldedInOrder, &groups),
    ];
    for (defect, groups) in all.into_iter().chain(of_formats) {
        for &group in groups {
            assert!(caught(group, defect), "{} misses {defect:?}", group.name());
        }
    }
}

#[test]
fn a_report_repeats_with_its_seed_and_differs_with_another() {
    let first = run_with(&broken(Defect::OneUlp), Group::Rope, 5);
    let again = run_with(&broken(Defect::OneUlp), Group::Rope, 5);
    let other = run_with(&broken(Defect::OneUlp), Group::Rope, 6);
    assert_eq!(first.failures, again.failures);
    assert_ne!(first.failures, other.failures);
}

#[test]
fn names_are_unique_and_found() {
    for (i, g) in groups().iter().enumerate() {
        assert_eq!(Group::from_name(g.name()), Some(*g));
        assert!(groups()[..i].iter().all(|h| h.name() != g.name()));
    }
    assert_eq!(Group::from_name("matvec"), None);
}

#[test]
fn seeds_are_decimal_or_hexadecimal() {
    assert_eq!(parse_seed("17"), Some(17));
    assert_eq!(parse_seed("0x1f"), Some(31));
    assert_eq!(parse_seed("x"), None);
    assert_eq!(parse_seed(""), None);
}

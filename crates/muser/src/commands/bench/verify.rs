//! Checks, before `muser bench` times anything, that forward calls of every width give
//! the bits of a reference.
//!
//! In the pinned lane (llama.cpp's arithmetic) each width has bits of its own, those that
//! llama.cpp gives at that width. There the reference of a width is a second backend, of
//! another instruction set; where the machine has no second one, the same calls
//! once more.

use super::rig::RowHashes;
use muser_model::Want;

/// The error that forward calls gave other logits than the reference, so that the
/// benchmark does not time them.
#[derive(Debug, thiserror::Error)]
#[error("{what}: expected SHA-256 {expected}, found {found}: a wrong answer is not timed")]
pub(super) struct WrongAnswer {
    /// The forward calls that gave wrong logits, in words: depth, width and mode.
    pub(super) what: String,
    /// The SHA-256 of the reference's logits: those that the forward calls should have
    /// given.
    pub(super) expected: String,
    /// The SHA-256 of the logits that the calls gave.
    pub(super) found: String,
}

/// The hashes of the logits that forward calls of every width must give while they are
/// timed.
#[derive(Debug)]
pub(super) struct Proof {
    /// The SHA-256 of the reference's rows of logits: those that timed forward calls must
    /// give.
    pub(super) hash: String,
    /// For each width, in order, the SHA-256 of a forward call's last row of logits: of a
    /// call that gives the logits of all tokens, and of one that gives only the last.
    pub(super) last: Vec<[String; 2]>,
}

/// Checks logits in the pinned lane (llama.cpp's arithmetic), where they depend on the
/// width: for each width and mode, the subject (the backend to time, `run`) and the
/// `witness` (a second backend) must give the same rows.
pub(super) fn verify_widths(
    widths: &[usize],
    rows: usize,
    depth: usize,
    run: &mut dyn FnMut(usize, Want) -> anyhow::Result<RowHashes>,
    witness: &mut dyn FnMut(usize, Want) -> anyhow::Result<RowHashes>,
) -> anyhow::Result<Proof> {
    let (mut last, mut hashes) = (Vec::new(), Vec::new());
    for &width in widths {
        let mut both = [String::new(), String::new()];
        for (i, want) in [Want::All, Want::Last].into_iter().enumerate() {
            let (found, expected) = (run(width, want)?, witness(width, want)?);
            if found != expected {
                return Err(WrongAnswer {
                    what: format!("depth {depth}, calls of {width} tokens, {want:?}"),
                    expected: expected.hash,
                    found: found.hash,
                }
                .into());
            }
            let row = if want == Want::All { width - 1 } else { 0 };
            let Some(row) = found.each.get(row) else {
                anyhow::bail!("calls of {width} tokens gave {} rows", found.each.len());
            };
            both[i].clone_from(row);
            if want == Want::All && width <= rows {
                hashes.push(found.hash);
            }
        }
        last.push(both);
    }
    let hash = hashes.first().cloned().unwrap_or_default();
    Ok(Proof { hash, last })
}

/// Checks that logits do not depend on the width of forward calls. Computes `rows` rows
/// in one batch, one at a time, and in calls of each width, and compares them: the rows
/// of calls that give all logits, and the last row of a call that gives only the last.
///
/// `run` computes rows of logits: [`super::rig::Rig::rows`] at some depth.
pub(super) fn verify(
    widths: &[usize],
    rows: usize,
    depth: usize,
    run: &mut dyn FnMut(usize, Want) -> anyhow::Result<RowHashes>,
) -> anyhow::Result<Proof> {
    let check = |width: usize, how: &str, expected: &str, found: &str| {
        if expected == found {
            return Ok(());
        }
        let what = format!("depth {depth}, calls of {width} tokens, {how}");
        Err(WrongAnswer {
            what,
            expected: expected.to_owned(),
            found: found.to_owned(),
        })
    };
    let reference = run(rows, Want::All)?;
    check(1, "all logits", &reference.hash, &run(1, Want::All)?.hash)?;
    let mut last = Vec::new();
    for &width in widths {
        let all = run(width, Want::All)?;
        check(width, "all logits", &reference.hash, &all.hash)?;
        // A width beyond the reference's rows is compared with its own run that gave all
        // logits, whose first rows have just been compared with the reference.
        let of = if width <= rows { &reference } else { &all };
        let Some(expected) = of.each.get(width - 1) else {
            anyhow::bail!("calls of {width} tokens gave {} rows", of.each.len());
        };
        let one = run(width, Want::Last)?;
        let found = one.each.last().map_or("none", String::as_str);
        check(width, "the last logits", expected, found)?;
        last.push([expected.clone(), expected.clone()]);
    }
    let hash = reference.hash;
    Ok(Proof { hash, last })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes up the rows of a forward call for a test: each row's hash is its index, with
    /// a mark if `wrong` picks the row.
    fn honest(
        width: usize,
        rows: usize,
        want: Want,
        wrong: &dyn Fn(usize, usize, Want) -> bool,
    ) -> anyhow::Result<RowHashes> {
        let name = |i: usize| format!("{i}{}", if wrong(width, i, want) { "!" } else { "" });
        let each: Vec<String> = match want {
            Want::All => (0..width.max(rows)).map(name).collect(),
            _ => vec![name(width - 1)],
        };
        let hash = each[..rows.min(each.len())].join(",");
        Ok(RowHashes { hash, each })
    }

    fn prove(wrong: &dyn Fn(usize, usize, Want) -> bool) -> anyhow::Result<Proof> {
        let widths = [1, 3, 4, 9];
        verify(&widths, 4, 7, &mut |width, want| {
            honest(width, 4, want, wrong)
        })
    }

    #[test]
    fn equal_answers_are_proved() {
        let proof = prove(&|_, _, _| false).unwrap();
        assert_eq!(proof.hash, "0,1,2,3");
        let last = ["0", "2", "3", "8"].map(|row| [row.to_owned(), row.to_owned()]);
        assert_eq!(proof.last, last);
    }

    #[test]
    fn widths_are_proved_each_by_its_witness() {
        let prove = |wrong: &dyn Fn(usize, usize, Want) -> bool| {
            let run = &mut |w, want| honest(w, 4, want, &|w, _, _| w == 3);
            let witness =
                &mut |w, want| honest(w, 4, want, &|w, i, want| (w == 3) != wrong(w, i, want));
            verify_widths(&[1, 3], 4, 7, run, witness)
        };
        let proof = prove(&|_, _, _| false).unwrap();
        let last = ["0", "2!"].map(|row| [row.to_owned(), row.to_owned()]);
        assert_eq!(proof.last, last, "another answer, but the witness's too");
        for want in [Want::All, Want::Last] {
            let error = prove(&|w, i, wanted| (w, i, wanted) == (3, 2, want)).unwrap_err();
            assert!(error.is::<WrongAnswer>(), "{error}");
        }
    }

    #[test]
    fn any_wrong_row_is_refused() {
        for width in [1, 3, 9] {
            for row in 0..4 {
                let error = prove(&|w, i, want| (w, i, want) == (width, row, Want::All));
                let error = error.unwrap_err();
                assert!(error.is::<WrongAnswer>(), "{error}");
                let words = format!("depth 7, calls of {width} tokens, all logits: expected");
                assert!(error.to_string().starts_with(&words), "{error}");
            }
        }
        // A wrong row in the reference itself shows against the calls of one token.
        let error = prove(&|w, i, _| (w, i) == (4, 2)).unwrap_err();
        assert!(error.to_string().contains("calls of 1 tokens"), "{error}");
    }

    #[test]
    fn a_wrong_last_row_is_refused() {
        for width in [1, 3, 4, 9] {
            let error = prove(&|w, _, want| (w, want) == (width, Want::Last)).unwrap_err();
            let words = format!("depth 7, calls of {width} tokens, the last logits");
            assert!(error.to_string().starts_with(&words), "{error}");
        }
    }
}

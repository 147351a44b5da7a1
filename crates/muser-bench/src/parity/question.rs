//! What both sides are asked, and how an answer is read.

use muser_ops::{Attention, Weight};
use std::ops::Range;
use std::path::Path;

/// Activations, `[rows, width]`.
pub(super) struct Rows {
    /// A name that no others have: a side may keep what it was sent. Empty
    /// where they are asked about once.
    pub(super) name: String,
    pub(super) width: usize,
    pub(super) values: Vec<f32>,
}

impl Rows {
    /// Rows that are asked about once.
    pub(super) fn new(width: usize, values: Vec<f32>) -> Self {
        Self {
            name: String::new(),
            width,
            values,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.values.len() / self.width.max(1)
    }
}

/// A whole model over some tokens.
pub(super) struct ModelRun<'a> {
    /// The file.
    pub(super) path: &'a Path,
    pub(super) ids: &'a [u32],
    /// Lengths of the successive calls.
    pub(super) calls: &'a [usize],
    /// Logits of the last token of each call only, instead of every one:
    /// another width at the end of the last layer.
    pub(super) last: bool,
}

/// One operation of [`muser_ops::Backend`], or a whole model. An answer is the
/// rows that it writes, in order.
pub(super) enum Question<'a> {
    /// Embedding rows of the tokens.
    Embed {
        table: &'a Weight,
        tokens: &'a [u32],
    },
    /// A projection set over one input, output after output. Names of weights
    /// are their identity.
    Project {
        set: &'a [&'a Weight],
        x: &'a Rows,
    },
    RmsNorm {
        x: &'a Rows,
        weight: Option<&'a [f32]>,
        eps: f32,
    },
    /// A head is as long as `weight`.
    HeadNorm {
        x: &'a Rows,
        weight: &'a [f32],
        eps: f32,
    },
    /// x + norm(y).
    AddRmsNorm {
        x: &'a Rows,
        y: &'a Rows,
        weight: &'a [f32],
        eps: f32,
    },
    /// Rows at the positions `first ..`, heads of `head` values.
    Rope {
        x: &'a Rows,
        head: usize,
        base: f32,
        first: usize,
    },
    /// The last rows of `k` and `v`, as many as `q` has, are the call; those
    /// before them are stored already. Storing them is part of the question.
    Attention {
        desc: Attention,
        q: &'a Rows,
        k: &'a Rows,
        v: &'a Rows,
    },
    /// x · sigmoid(gate).
    SigmoidGate {
        x: &'a Rows,
        gate: &'a Rows,
    },
    /// silu(gate) · up.
    SiluProduct {
        gate: &'a Rows,
        up: &'a Rows,
    },
    /// Scaled, then soft-capped.
    SoftCap {
        x: &'a Rows,
        scale: f32,
        cap: Option<f32>,
    },
    Model(ModelRun<'a>),
}

/// Values of an answer that one kernel computes.
pub(super) struct Part {
    pub(super) kernel: String,
    /// Which values.
    pub(super) values: Range<usize>,
    /// Values in a row, and the row of the first one.
    pub(super) width: usize,
    pub(super) first_row: usize,
}

/// A question with what the report says of it.
pub(super) struct Case<'a> {
    /// Shape and inputs, in words.
    pub(super) name: String,
    /// The threads that it is answered with.
    pub(super) threads: usize,
    /// Multiply-adds or what takes as long, for the slow subjects.
    pub(super) cost: u64,
    /// Every value of the answer is in one of them.
    pub(super) parts: Vec<Part>,
    pub(super) question: Question<'a>,
}

impl Case<'_> {
    /// One kernel for all `rows · width` values.
    pub(super) fn whole(kernel: &str, rows: usize, width: usize) -> Vec<Part> {
        vec![Part {
            kernel: kernel.to_owned(),
            values: 0..rows * width,
            width,
            first_row: 0,
        }]
    }
}

/// Somebody who answers: llama.cpp or a backend of ours.
pub(super) trait Side {
    /// The answer's values.
    ///
    /// # Errors
    /// A refusal, or that the side has ended; in words.
    fn answer(&mut self, question: &Question<'_>, threads: usize) -> Result<Vec<f32>, String>;
}

/// The last few things used, by name.
pub(super) struct Kept<T> {
    most: usize,
    /// The one used last is the last.
    things: Vec<(String, T)>,
}

impl<T> Kept<T> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            things: Vec::new(),
        }
    }

    /// The names among `names` that are missing, each once. The others are now
    /// the last used: adding the missing ones pushes none of them out, as long
    /// as all of them fit.
    pub(super) fn missing<'a>(&mut self, names: &[&'a str]) -> Vec<&'a str> {
        let mut missing = Vec::new();
        for &name in names {
            match self.things.iter().position(|(n, _)| n == name) {
                Some(at) => {
                    let thing = self.things.remove(at);
                    self.things.push(thing);
                }
                None if missing.contains(&name) => {}
                None => missing.push(name),
            }
        }
        missing
    }

    pub(super) fn get(&self, name: &str) -> Option<&T> {
        self.things.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }

    /// Adds one, and gives back the name of the one not used for longest where
    /// there are too many.
    pub(super) fn add(&mut self, name: &str, thing: T) -> Option<String> {
        self.things.push((name.to_owned(), thing));
        (self.things.len() > self.most).then(|| self.things.remove(0).0)
    }
}

#[cfg(test)]
mod tests {
    use super::Kept;

    #[test]
    fn what_is_needed_now_is_not_pushed_out() {
        let mut kept = Kept::new(3);
        for name in ["a", "b", "c"] {
            assert_eq!(kept.add(name, ()), None);
        }
        assert_eq!(kept.missing(&["d", "a", "d"]), ["d"]);
        assert_eq!(kept.add("d", ()), Some("b".to_owned()));
        assert!(kept.get("a").is_some() && kept.get("b").is_none());
    }
}

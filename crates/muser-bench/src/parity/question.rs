//! Questions that both sides answer, and how the values of an answer are
//! attributed to kernels.

use muser_ops::{Attention, Weight};
use std::ops::Range;
use std::path::Path;

/// Activations, `[rows, width]`, row after row.
pub(super) struct Activations {
    /// Unique name under which a side may keep the values for later questions;
    /// empty if there is one question only.
    pub(super) name: String,
    pub(super) width: usize,
    pub(super) values: Vec<f32>,
}

impl Activations {
    /// Creates activations for one question.
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

/// A run of a whole model.
pub(super) struct ModelRun<'a> {
    /// The GGUF file.
    pub(super) path: &'a Path,
    pub(super) ids: &'a [u32],
    /// Lengths of the successive calls.
    pub(super) calls: &'a [usize],
    /// Whether only the logits of the last token of each call are requested.
    /// The end of the last layer is then computed at width 1.
    pub(super) last: bool,
}

/// One operation of [`muser_ops::Backend`], or a run of a whole model. The
/// answer holds the rows that it writes, in order.
pub(super) enum Question<'a> {
    /// Embedding rows of the tokens.
    Embed {
        table: &'a Weight,
        tokens: &'a [u32],
    },
    /// A projection set over one input; the answer is output after output. A
    /// side may keep weights by their names.
    Project {
        set: &'a [&'a Weight],
        x: &'a Activations,
    },
    RmsNorm {
        x: &'a Activations,
        weight: Option<&'a [f32]>,
        eps: f32,
    },
    /// RMS norm of each head; `weight` is as long as a head.
    HeadNorm {
        x: &'a Activations,
        weight: &'a [f32],
        eps: f32,
    },
    /// `x + norm(y)`.
    AddRmsNorm {
        x: &'a Activations,
        y: &'a Activations,
        weight: &'a [f32],
        eps: f32,
    },
    /// Rotary encoding of rows at the positions from `first` on, in heads of
    /// `head` values.
    Rope {
        x: &'a Activations,
        head: usize,
        base: f32,
        first: usize,
    },
    /// Attention of the rows of `q`, which belong to the last rows of `k` and
    /// `v`. Storing all of `k` and `v` is part of the question.
    Attention {
        desc: Attention,
        q: &'a Activations,
        k: &'a Activations,
        v: &'a Activations,
    },
    /// `x · sigmoid(gate)`.
    SigmoidGate {
        x: &'a Activations,
        gate: &'a Activations,
    },
    /// `silu(gate) · up`.
    SiluProduct {
        gate: &'a Activations,
        up: &'a Activations,
    },
    /// Logits, scaled and then soft-capped.
    SoftCap {
        x: &'a Activations,
        scale: f32,
        cap: Option<f32>,
    },
    Model(ModelRun<'a>),
}

/// The values of an answer that one kernel computes.
pub(super) struct KernelSpan {
    pub(super) kernel: String,
    /// Which values of the answer the kernel computes.
    pub(super) values: Range<usize>,
    /// Number of values in a row.
    pub(super) width: usize,
    /// Row of the first value.
    pub(super) first_row: usize,
}

/// A question, with its description for the report.
pub(super) struct Case<'a> {
    /// Shape and kind of inputs, for messages.
    pub(super) name: String,
    /// Number of threads of both sides.
    pub(super) threads: usize,
    /// Cost in multiply-adds, or in other operations that take as long; slow
    /// subjects skip costly cases.
    pub(super) cost: u64,
    /// The kernels of the answer. Each value belongs to one of them.
    pub(super) spans: Vec<KernelSpan>,
    pub(super) question: Question<'a>,
}

impl Case<'_> {
    /// Attributes all `rows · width` values to one kernel.
    pub(super) fn whole(kernel: &str, rows: usize, width: usize) -> Vec<KernelSpan> {
        vec![KernelSpan {
            kernel: kernel.to_owned(),
            values: 0..rows * width,
            width,
            first_row: 0,
        }]
    }
}

/// A side that answers questions: llama.cpp or a backend of muser.
pub(super) trait Side {
    /// Computes the answer.
    ///
    /// # Errors
    /// The side refuses the question, or its process has ended.
    fn answer(&mut self, question: &Question<'_>, threads: usize) -> Result<Vec<f32>, String>;
}

/// A cache of the values used last, by name.
pub(super) struct Recent<T> {
    most: usize,
    /// In the order of their last use, the latest at the end.
    things: Vec<(String, T)>,
}

impl<T> Recent<T> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            things: Vec::new(),
        }
    }

    /// Returns those of `names` that are not in the cache, each once, and marks
    /// the others as used. Adding the missing ones then evicts none of `names`,
    /// provided that all of them fit.
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

    /// Adds a value. If the cache was full, evicts the one used longest ago and
    /// returns its name.
    pub(super) fn add(&mut self, name: &str, thing: T) -> Option<String> {
        self.things.push((name.to_owned(), thing));
        (self.things.len() > self.most).then(|| self.things.remove(0).0)
    }
}

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn what_is_needed_now_is_not_pushed_out() {
        let mut kept = Recent::new(3);
        for name in ["a", "b", "c"] {
            assert_eq!(kept.add(name, ()), None);
        }
        assert_eq!(kept.missing(&["d", "a", "d"]), ["d"]);
        assert_eq!(kept.add("d", ()), Some("b".to_owned()));
        assert!(kept.get("a").is_some() && kept.get("b").is_none());
    }
}

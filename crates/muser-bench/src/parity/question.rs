//! The questions of test cases (an operation with its inputs, or a model run), which
//! llama.cpp and muser's backends both answer, and which kernel computes which values
//! of an answer.

use muser_ops::{Attention, Weight};
use std::ops::Range;
use std::path::Path;

/// Activations of a test case as f32, `[rows, width]`, row after row.
pub(super) struct Activations {
    /// Unique name under which llama.cpp or a backend may keep the activations for
    /// later test cases; empty if one test case alone uses them.
    pub(super) name: String,
    pub(super) width: usize,
    pub(super) values: Vec<f32>,
}

impl Activations {
    /// Creates unnamed activations, which only one test case uses.
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

/// A test case's run of a whole model over a prompt, split into successive forward
/// calls.
pub(super) struct ModelRun<'a> {
    /// Path of the model's GGUF file.
    pub(super) path: &'a Path,
    pub(super) ids: &'a [u32],
    /// Number of tokens in each of the successive forward calls.
    pub(super) calls: &'a [usize],
    /// Whether only the logits of the last token of each call are requested; the end of
    /// the model's last layer is then computed for one row.
    pub(super) last: bool,
}

/// A test case's question, which llama.cpp and muser's backends both answer: one
/// operation of [`muser_ops::Backend`], or a run of a whole model. The answer is the
/// rows that the operation writes, in order.
pub(super) enum Question<'a> {
    /// Looks up the rows of the embedding table for these token ids.
    Embed {
        table: &'a Weight,
        tokens: &'a [u32],
    },
    /// Multiplies one input by every weight matrix of a set; the answer holds the
    /// products one after the other. llama.cpp and the backends may keep the weights by
    /// their names.
    Project {
        set: &'a [&'a Weight],
        x: &'a Activations,
    },
    RmsNorm {
        x: &'a Activations,
        weight: Option<&'a [f32]>,
        eps: f32,
    },
    /// Computes the RMS norm of each attention head of a row; `weight` is as long as a
    /// head.
    HeadNorm {
        x: &'a Activations,
        weight: &'a [f32],
        eps: f32,
    },
    /// Adds the weighted RMS norm of `y` to `x`: `x + norm(y)`.
    AddRmsNorm {
        x: &'a Activations,
        y: &'a Activations,
        weight: &'a [f32],
        eps: f32,
    },
    /// Applies the rotary position encoding (RoPE) to rows at the positions from
    /// `first` on, in heads of `head` values.
    Rope {
        x: &'a Activations,
        head: usize,
        base: f32,
        first: usize,
    },
    /// Computes attention of the query rows `q`, which belong to the last of the rows
    /// of keys `k` and values `v`. Storing all of `k` and `v` in the KV cache is part
    /// of the test.
    Attention {
        desc: Attention,
        q: &'a Activations,
        k: &'a Activations,
        v: &'a Activations,
    },
    /// Gates the activations `x`: computes `x · sigmoid(gate)`.
    SigmoidGate {
        x: &'a Activations,
        gate: &'a Activations,
    },
    /// Computes the activation of a gated feed-forward layer: `silu(gate) · up`.
    SiluProduct {
        gate: &'a Activations,
        up: &'a Activations,
    },
    /// Multiplies the logits `x` by `scale` and then, if there is a `cap`, soft-caps
    /// them by it.
    SoftCap {
        x: &'a Activations,
        scale: f32,
        cap: Option<f32>,
    },
    Model(ModelRun<'a>),
}

/// The values of a test case's answer that one kernel computes.
pub(super) struct KernelSpan {
    pub(super) kernel: String,
    /// Range of the values that one kernel computes, as indices in the whole answer of
    /// a test case.
    pub(super) values: Range<usize>,
    /// Number of values in a row of the kernel's output.
    pub(super) width: usize,
    /// Row of the answer to which the first value that this kernel computes belongs,
    /// for messages.
    pub(super) first_row: usize,
}

/// A test case: an operation or model run that llama.cpp and muser's backends all
/// compute, with its description for the report.
pub(super) struct Case<'a> {
    /// Shape and distribution of the test case's inputs, for messages.
    pub(super) name: String,
    /// Number of threads with which llama.cpp and muser compute the test case.
    pub(super) threads: usize,
    /// Cost of the test case in multiply-adds, or in other operations that take as
    /// long; backends that are slow skip costly cases.
    pub(super) cost: u64,
    /// The kernels that compute the test case's answer, each with its values. Each
    /// value belongs to one kernel.
    pub(super) spans: Vec<KernelSpan>,
    pub(super) question: Question<'a>,
}

impl Case<'_> {
    /// Attributes all `rows · width` values of an answer to one kernel.
    pub(super) fn whole(kernel: &str, rows: usize, width: usize) -> Vec<KernelSpan> {
        vec![KernelSpan {
            kernel: kernel.to_owned(),
            values: 0..rows * width,
            width,
            first_row: 0,
        }]
    }
}

/// A participant in the bit-for-bit comparison, which computes the answers of test
/// cases: llama.cpp or a backend of muser.
pub(super) trait Side {
    /// Computes the answer to a test case's question with this number of threads.
    ///
    /// # Errors
    /// The side refuses the question, or its process has ended.
    fn answer(&mut self, question: &Question<'_>, threads: usize) -> Result<Vec<f32>, String>;
}

/// A cache that holds values by name; adding a value to a full cache evicts the one
/// used longest ago.
pub(super) struct Recent<T> {
    most: usize,
    /// Names and values in the cache, in the order of their last use, the latest at the
    /// end.
    things: Vec<(String, T)>,
}

impl<T> Recent<T> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            things: Vec::new(),
        }
    }

    /// Returns those of `names` that the cache lacks, each once, and marks the others
    /// as used. Adding the missing ones then evicts none of `names`, provided that all
    /// of them fit.
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

    /// Adds a value to the cache. If the cache was full, evicts the one used longest
    /// ago and returns its name.
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

//! Test cases that run whole models on muser and on llama.cpp and compare the logits
//! bit for bit: of every position, and of the last position of each forward call only,
//! which is how a prompt is run.

use super::inputs::Rng;
use super::question::{Case, ModelRun, Question};
use super::selection::Selection;
use super::table::Judge;
use muser_model::gguf::{self, Gguf, Writer};
use muser_model::synth::{self, Geometry, Mix};
use muser_model::{Spec, convert};
use muser_quant::DType;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Where the model file of a whole-model test case comes from.
#[derive(Clone, Copy)]
enum Source {
    /// The small model that the `muser` program embeds, `glimmer-nano`, as a test case.
    Nano,
    /// The small embedded model, with its weights converted to another format.
    Converted(DType),
    /// A synthetic model: random weights, in a mix of weight formats, of a given
    /// geometry (layers, widths, heads).
    Synthetic(Mix, Shape),
    /// A synthetic model whose GGUF file lacks the metadata keys that a file may leave
    /// out.
    Bare(Mix, Shape),
}

/// GGUF metadata keys that a file may leave out, because llama.cpp has a default for
/// each.
const OPTIONAL: [&str; 4] = [
    "muse-glimmer.rope.freq_base",
    "muse-glimmer.rope.dimension_count",
    "muse-glimmer.attention.sliding_window_pattern",
    "muse-glimmer.final_logit_softcapping",
];

/// A model geometry (layers, widths, heads, vocabulary) for test cases, with odd sizes
/// that no released model has.
#[derive(Clone, Copy)]
struct Shape {
    layers: usize,
    hidden: usize,
    heads: (usize, usize),
    head_dim: usize,
    ffn: usize,
    vocab: usize,
    window: usize,
    period: usize,
    as_array: bool,
    softcap: Option<f32>,
}

impl Shape {
    fn geometry(self, name: &str) -> Geometry {
        Geometry {
            name: name.to_owned(),
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads.0,
            kv_heads: self.heads.1,
            head_dim: self.head_dim,
            ffn: self.ffn,
            vocab: self.vocab,
            window: self.window,
            context: 4096,
            period: self.period,
            arch: "muse-glimmer",
            tied: false,
            pattern_as_array: self.as_array,
            logit_scale: 0.5,
            softcap: self.softcap,
        }
    }
}

const BASE: Shape = Shape {
    layers: 4,
    hidden: 512,
    heads: (6, 3),
    head_dim: 128,
    ffn: 768,
    vocab: 250,
    window: 64,
    period: 4,
    as_array: true,
    softcap: Some(20.0),
};

/// The models that test cases run, each with the name under which it is reported.
const MODELS: [(&str, Source); 11] = [
    ("nano", Source::Nano),
    ("nano-f16", Source::Converted(DType::F16)),
    (
        "synthetic-q4_k",
        Source::Synthetic(Mix::Uniform(DType::Q4K), BASE),
    ),
    (
        "synthetic-q5_k",
        Source::Synthetic(
            Mix::Uniform(DType::Q5K),
            Shape {
                layers: 5,
                hidden: 256,
                heads: (8, 2),
                head_dim: 64,
                ffn: 512,
                vocab: 500,
                window: 100,
                as_array: false,
                ..BASE
            },
        ),
    ),
    (
        "synthetic-q6_k",
        Source::Synthetic(
            Mix::Uniform(DType::Q6K),
            Shape {
                hidden: 256,
                heads: (4, 1),
                head_dim: 64,
                ffn: 1024,
                vocab: 300,
                window: 300,
                period: 2,
                softcap: Some(7.5),
                ..BASE
            },
        ),
    ),
    (
        "synthetic-q4_k_m",
        Source::Synthetic(
            Mix::Q4KM,
            Shape {
                layers: 8,
                hidden: 768,
                ffn: 1280,
                vocab: 1001,
                window: 128,
                period: 3,
                as_array: false,
                ..BASE
            },
        ),
    ),
    (
        "synthetic-f16",
        Source::Synthetic(
            Mix::Uniform(DType::F16),
            Shape {
                hidden: 104,
                heads: (3, 1),
                head_dim: 40,
                ffn: 100,
                vocab: 77,
                window: 33,
                ..BASE
            },
        ),
    ),
    (
        "synthetic-bf16",
        Source::Synthetic(
            Mix::Uniform(DType::BF16),
            Shape {
                hidden: 208,
                heads: (4, 2),
                head_dim: 32,
                ffn: 297,
                vocab: 130,
                ..BASE
            },
        ),
    ),
    (
        "synthetic-f32",
        Source::Synthetic(
            Mix::Uniform(DType::F32),
            Shape {
                hidden: 96,
                heads: (2, 2),
                head_dim: 96,
                ffn: 258,
                vocab: 64,
                as_array: false,
                ..BASE
            },
        ),
    ),
    (
        "synthetic-bare",
        Source::Bare(
            Mix::Q4KM,
            Shape {
                hidden: 256,
                heads: (2, 1),
                ffn: 256,
                vocab: 96,
                ..BASE
            },
        ),
    ),
    (
        "synthetic-wide",
        Source::Synthetic(
            Mix::Q4KM,
            Shape {
                layers: 2,
                hidden: 1024,
                heads: (32, 2),
                ffn: 2816,
                vocab: 2048,
                window: 512,
                period: 2,
                ..BASE
            },
        ),
    ),
];

/// Returns the names of all models that are compared with llama.cpp.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|(name, _)| *name)
}

/// A way to split a test prompt into forward calls.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// The whole prompt in forward calls of this many tokens each.
    By(usize),
    /// Forward calls of many widths (numbers of tokens), which select different
    /// kernels, in a repeating sequence.
    Mixed,
    /// One forward call of this many tokens, then calls of one token for the rest of
    /// the prompt.
    ThenOnes(usize),
}

const MIXED: [usize; 16] = [1, 7, 64, 3, 8, 1, 63, 9, 2, 65, 4, 100, 5, 33, 127, 6];

impl Cut {
    /// Returns the number of tokens in each forward call for a prompt of `n` tokens.
    fn calls(self, n: usize) -> Vec<usize> {
        let mut calls = Vec::new();
        let mut left = n;
        while left > 0 {
            let call = match self {
                Self::By(width) => width,
                Self::Mixed => MIXED[calls.len() % MIXED.len()],
                Self::ThenOnes(first) if calls.is_empty() => first,
                Self::ThenOnes(_) => 1,
            };
            let call = call.clamp(1, left);
            calls.push(call);
            left -= call;
        }
        calls
    }
}

/// Returns the test runs of a model that request logits of the last position of each
/// call only: number of tokens, split into calls, threads.
fn last_runs(quick: bool) -> Vec<(usize, Cut, usize)> {
    let mut runs = vec![(330, Cut::Mixed, 1), (600, Cut::By(512), 2)];
    if !quick {
        let widths = [2, 3, 7, 8, 9, 63, 64, 100];
        runs.extend(widths.map(|width| (200, Cut::By(width), 1)));
        runs.extend([(700, Cut::By(700), 2), (700, Cut::Mixed, 2)]);
    }
    runs
}

/// Returns the test runs of a model that request the logits of every position: number
/// of tokens, split into calls, threads.
fn runs(name: &str, quick: bool) -> Vec<(usize, Cut, usize)> {
    let whole = |n: usize, threads| (n, Cut::By(n), threads);
    if quick {
        return vec![
            whole(1, 1),
            whole(65, 2),
            (32, Cut::By(1), 1),
            (90, Cut::By(7), 1),
            (330, Cut::Mixed, 1),
            (520, Cut::ThenOnes(505), 1),
            (514, Cut::ThenOnes(510), 2),
            (700, Cut::By(512), 2),
        ];
    }
    let mut runs: Vec<_> = [
        2, 3, 4, 5, 7, 8, 9, 15, 63, 64, 65, 127, 128, 129, 257, 511, 512,
    ]
    .into_iter()
    .enumerate()
    .map(|(i, n)| whole(n, 1 + i % 2))
    .collect();
    let long = if name.starts_with("nano") { 1100 } else { 700 };
    runs.extend([whole(1, 1), whole(1, 3), whole(100, 3), whole(300, 3)]);
    // Calls of few tokens use one thread: llama.cpp's threads spin at every operation,
    // which costs more than the call.
    runs.extend([1, 4, 7, 8].map(|width| (long, Cut::By(width), 1)));
    for cut in [64, 512, 513].map(Cut::By).into_iter().chain([Cut::Mixed]) {
        runs.push((long, cut, 2));
        if name == "nano" {
            runs.push((long, cut, 1));
        }
    }
    runs.extend([
        (560, Cut::ThenOnes(480), 1),
        (560, Cut::ThenOnes(480), 2),
        (516, Cut::ThenOnes(505), 3),
        (12, Cut::By(1), 3),
        (130, Cut::Mixed, 3),
        (530, Cut::By(512), 3),
    ]);
    runs
}

/// Runs the test cases of one model on muser and on llama.cpp. A model file that has to
/// be made is written to the folder `scratch`.
pub(super) fn run(
    judge: &mut Judge<'_>,
    selection: &Selection,
    root: &Path,
    scratch: &Path,
    name: &str,
) -> Result<(), String> {
    let Some(&(_, source)) = MODELS.iter().find(|(n, _)| *n == name) else {
        return Err(format!("no model {name}"));
    };
    let kernel = format!("model/{name}");
    judge.expect(&kernel);
    let nano = root.join("models/glimmer-nano-2-q4_k_m.gguf");
    let path = make(source, &nano, name, scratch)?;
    let about = |e: String| format!("{}: {e}", path.display());
    let gguf = Gguf::open(&path).map_err(|e| about(e.to_string()))?;
    let config = Spec::from_gguf(&gguf).map_err(|e| about(e.to_string()))?;
    let weights: u64 = gguf.tensors().iter().map(|t| t.n_elements).sum();
    let all = runs(name, selection.quick).into_iter().map(|r| (r, false));
    let last = last_runs(selection.quick).into_iter().map(|r| (r, true));
    // In the quick selection, the F16 conversion of the embedded model gets no long
    // prompts.
    let slow = selection.quick && name == "nano-f16";
    let runs = all.chain(last).filter(|((n, ..), _)| !slow || *n <= 400);
    for ((n, cut, threads), last) in runs {
        let of = if last { "last logits" } else { "all logits" };
        let told = format!("{n} tokens, {cut:?}, {of}");
        let calls = cut.calls(n);
        let rows = if last { calls.len() } else { n };
        let mut rng = Rng::new(selection.seed, &format!("{name}: {told}"));
        let ids: Vec<u32> = (0..n).map(|_| rng.below(config.vocab) as u32).collect();
        judge.run(&Case {
            name: told,
            threads,
            cost: weights.saturating_mul(n as u64),
            spans: Case::whole(&kernel, rows, config.vocab),
            question: Question::Model(ModelRun {
                path: &path,
                ids: &ids,
                calls: &calls,
                last,
            }),
        })?;
    }
    Ok(())
}

fn make(source: Source, nano: &Path, name: &str, scratch: &Path) -> Result<PathBuf, String> {
    if let Source::Nano = source {
        return Ok(nano.to_owned());
    }
    let path = scratch.join(format!("{name}.gguf"));
    let about = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let mut out = BufWriter::new(File::create(&path).map_err(|e| about(&e))?);
    let made = match source {
        Source::Nano => Ok(()),
        Source::Converted(to) => {
            let from = Gguf::open(nano).map_err(|e| about(&e))?;
            convert::convert(&from, to, &mut out, &mut |_, _| {})
        }
        Source::Synthetic(mix, s) => {
            synth::write(&s.geometry(name), mix, 1, &mut out, &mut |_, _| {})
        }
        Source::Bare(mix, s) => {
            let mut whole = Vec::new();
            synth::write(&s.geometry(name), mix, 1, &mut whole, &mut |_, _| {})
                .and_then(|()| Ok(strip(&Gguf::from_vec(whole)?, &mut out)?))
        }
    };
    made.map_err(|e| about(&e))?;
    out.flush().map_err(|e| about(&e))?;
    Ok(path)
}

/// Writes a copy of a GGUF file without its [`OPTIONAL`] metadata keys.
fn strip(from: &Gguf, out: &mut impl Write) -> Result<(), gguf::Error> {
    let mut writer = Writer::new();
    let entries = from.metadata().iter();
    for entry in entries.filter(|e| !OPTIONAL.contains(&&*e.key)) {
        writer.metadata(entry.key.as_str(), entry.value.clone())?;
    }
    for t in from.tensors() {
        writer.tensor(t.name.as_str(), &t.dims, t.ty)?;
    }
    let mut data = writer.start(out)?;
    for t in from.tensors() {
        data.chunk(&t.name, &from.tensor_data(t))?;
    }
    data.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_add_up() {
        for cut in [Cut::By(7), Cut::By(9000), Cut::Mixed, Cut::ThenOnes(505)] {
            for n in [1, 8, 530, 1100] {
                let calls = cut.calls(n);
                assert_eq!(calls.iter().sum::<usize>(), n);
                assert!(!calls.contains(&0));
            }
        }
        assert_eq!(Cut::ThenOnes(5).calls(7), [5, 1, 1]);
    }
}

//! Computes the answers of test cases with a backend of muser, through the [`Backend`]
//! trait only.

use super::question::{Activations, ModelRun, Question, Recent, Side};
use muser_model::Transformer;
use muser_model::Want;
use muser_model::gguf::Gguf;
use muser_ops::{Attention, Backend, KvLayout, OpError, Plan, RopeSpec, Run, Subset};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Number of sets of weight matrices that share an input that stay bound to a backend
/// at once: enough for the test matrices of two row lengths.
const KEPT: usize = 24;

/// A function that opens a backend with a number of threads.
type Open<B> = Box<dyn Fn(usize) -> Result<B, String>>;

/// The instances of one backend under test, one for each number of threads, each opened
/// when a test case first needs it.
pub(super) struct Ours<B: Backend> {
    open: Open<B>,
    opened: BTreeMap<usize, Opened<B>>,
}

struct Opened<B: Backend> {
    backend: Arc<B>,
    sets: Recent<B::Set>,
    model: Option<(PathBuf, Transformer<B>)>,
}

impl<B: Backend> Ours<B> {
    pub(super) fn new(open: impl Fn(usize) -> Result<B, String> + 'static) -> Self {
        Self {
            open: Box::new(open),
            opened: BTreeMap::new(),
        }
    }
}

impl<B: Backend> Side for Ours<B> {
    fn answer(&mut self, question: &Question<'_>, threads: usize) -> Result<Vec<f32>, String> {
        if !self.opened.contains_key(&threads) {
            let opened = Opened {
                backend: Arc::new((self.open)(threads)?),
                sets: Recent::new(KEPT),
                model: None,
            };
            self.opened.insert(threads, opened);
        }
        let Some(o) = self.opened.get_mut(&threads) else {
            return Err("no backend".to_owned());
        };
        match question {
            Question::Model(run) => o.model(run),
            other => o.operation(other).map_err(|e| e.to_string()),
        }
    }
}

fn buffer<B: Backend>(b: &B, rows: &Activations) -> Result<B::Buffer, OpError> {
    let mut buffer = b.buffer(rows.count(), rows.width)?;
    b.write(&mut buffer, &rows.values)?;
    Ok(buffer)
}

/// Returns an output buffer filled with NaN, so that a value which an operation fails
/// to write differs from llama.cpp's.
fn output<B: Backend>(b: &B, rows: usize, width: usize) -> Result<B::Buffer, OpError> {
    let mut buffer = b.buffer(rows, width)?;
    b.write(&mut buffer, &vec![f32::NAN; rows * width])?;
    Ok(buffer)
}

fn read<B: Backend>(b: &B, buffer: &B::Buffer, rows: usize) -> Result<Vec<f32>, OpError> {
    Ok(b.read(buffer, rows)?.into_owned())
}

/// Returns the plan of a forward call: one sequence's tokens at the positions from
/// `first` on, all of them kept rows (rows whose logits are computed).
fn plan(tokens: &[u32], first: usize) -> Result<Plan, OpError> {
    let rows = tokens.len();
    let run = Run {
        first,
        rows,
        keep: rows,
    };
    Plan::new(tokens.to_vec(), vec![run])
}

impl<B: Backend> Opened<B> {
    fn operation(&mut self, question: &Question<'_>) -> Result<Vec<f32>, OpError> {
        let b = &*self.backend;
        match *question {
            Question::Model(_) => Ok(Vec::new()),
            Question::Project { set, x } => self.project(set, x),
            Question::Embed { table, tokens } => {
                let (rows, width) = (tokens.len(), table.cols());
                let mut out = output(b, rows, width)?;
                let mut kv = b.kv(&[]);
                let batch = b.batch(plan(tokens, 0)?, vec![&mut kv])?;
                b.embed(&batch, &b.bind_table(table.clone())?, &mut out)?;
                read(b, &out, rows)
            }
            Question::RmsNorm { x, weight, eps } => {
                let weight = weight.map(|w| b.bind_vector(w.to_vec())).transpose()?;
                let mut out = output(b, x.count(), x.width)?;
                b.rms_norm(x.count(), &buffer(b, x)?, weight.as_ref(), eps, &mut out)?;
                read(b, &out, x.count())
            }
            Question::HeadNorm { x, weight, eps } => in_place(b, x, |x, rows| {
                b.head_norm(rows, x, &b.bind_vector(weight.to_vec())?, eps)
            }),
            Question::AddRmsNorm { x, y, weight, eps } => in_place(b, x, |x, rows| {
                let weight = b.bind_vector(weight.to_vec())?;
                b.add_rms_norm(rows, x, &buffer(b, y)?, &weight, eps)
            }),
            Question::Rope {
                x,
                head,
                base,
                first,
            } => in_place(b, x, |x, rows| {
                let head_dim = head;
                let rope = b.bind_rope(RopeSpec { base, head_dim })?;
                let mut kv = b.kv(&[]);
                let batch = b.batch(plan(&vec![0; rows], first)?, vec![&mut kv])?;
                b.rope(&batch, Subset::All, &rope, x)
            }),
            Question::Attention { desc, q, k, v } => attention(b, &desc, q, k, v),
            Question::SigmoidGate { x, gate } => {
                in_place(b, x, |x, rows| b.sigmoid_gate(rows, x, &buffer(b, gate)?))
            }
            Question::SiluProduct { gate, up } => in_place(b, gate, |gate, rows| {
                b.silu_product(rows, gate, &buffer(b, up)?)
            }),
            Question::SoftCap { x, scale, cap } => {
                in_place(b, x, |x, rows| b.soft_cap(rows, x, scale, cap))
            }
        }
    }

    fn project(
        &mut self,
        set: &[&muser_ops::Weight],
        x: &Activations,
    ) -> Result<Vec<f32>, OpError> {
        let b = &*self.backend;
        let names: Vec<&str> = set.iter().map(|w| w.name()).collect();
        let name = names.join(" ");
        if !self.sets.missing(&[&name]).is_empty() {
            let matrices = set.iter().map(|w| (*w).clone().into()).collect();
            self.sets.add(&name, b.bind_set(matrices)?);
        }
        let outs = set.iter().map(|w| output(b, x.count(), w.rows()));
        let mut outs = outs.collect::<Result<Vec<_>, _>>()?;
        let mut room: Vec<&mut B::Buffer> = outs.iter_mut().collect();
        if let Some(bound) = self.sets.get(&name) {
            b.project(x.count(), bound, 0..set.len(), &buffer(b, x)?, &mut room)?;
        }
        let mut all = Vec::new();
        for out in &outs {
            all.extend(read(b, out, x.count())?);
        }
        Ok(all)
    }

    /// Runs a whole model over a test prompt and returns the requested logits of all
    /// forward calls, one call after the other.
    fn model(&mut self, run: &ModelRun<'_>) -> Result<Vec<f32>, String> {
        if self.model.as_ref().is_none_or(|(path, _)| path != run.path) {
            let file = Gguf::open(run.path).map_err(|e| e.to_string())?;
            let model = Transformer::load(&file, Arc::clone(&self.backend));
            self.model = Some((run.path.to_owned(), model.map_err(|e| e.to_string())?));
        }
        let Some((_, model)) = &self.model else {
            return Err("no model".to_owned());
        };
        let mut cache = model.cache(run.ids.len());
        let mut logits = Vec::with_capacity(run.ids.len() * model.spec().vocab);
        let want = if run.last { Want::Last } else { Want::All };
        let mut at = 0;
        for &n in run.calls {
            let sink = &mut |_: usize, row: &[f32]| logits.extend_from_slice(row);
            model
                .forward(&mut cache, &run.ids[at..at + n], want, sink)
                .map_err(|e| e.to_string())?;
            at += n;
        }
        Ok(logits)
    }
}

/// Runs a backend's operation that overwrites its input `x`, and returns the result.
fn in_place<B: Backend>(
    b: &B,
    x: &Activations,
    run: impl FnOnce(&mut B::Buffer, usize) -> Result<(), OpError>,
) -> Result<Vec<f32>, OpError> {
    let mut at = buffer(b, x)?;
    run(&mut at, x.count())?;
    read(b, &at, x.count())
}

/// Computes attention as a forward pass does: stores the K and V of earlier positions
/// in the KV cache in micro-batches, then those of the call, and returns the attention
/// of the call's rows.
fn attention<B: Backend>(
    b: &B,
    desc: &Attention,
    q: &Activations,
    k: &Activations,
    v: &Activations,
) -> Result<Vec<f32>, OpError> {
    let most = b.sizes().micro_batch;
    let (rows, end) = (q.count(), k.count());
    let first = end - rows;
    let mut kv = b.kv(&[KvLayout {
        kv_heads: desc.kv_heads,
        head_dim: desc.head_dim,
        window: desc.window,
        context: end,
        max_batch: most,
    }]);
    let mut out = output(b, rows, q.width)?;
    let cuts: Vec<usize> = (0..first).step_by(most).chain([first, end]).collect();
    for cut in cuts.windows(2) {
        let of = |x: &Activations| {
            let values = &x.values[cut[0] * x.width..cut[1] * x.width];
            buffer(b, &Activations::new(x.width, values.to_vec()))
        };
        let run = Run {
            first: cut[0],
            rows: cut[1] - cut[0],
            keep: if cut[0] < first { 0 } else { rows },
        };
        let plan = Plan::new(vec![0; run.rows], vec![run])?;
        let mut batch = b.batch(plan, vec![&mut kv])?;
        let (k, v, kept) = (of(k)?, of(v)?, Subset::Kept);
        b.attention(&mut batch, 0, desc, kept, &buffer(b, q)?, &k, &v, &mut out)?;
    }
    read(b, &out, rows)
}

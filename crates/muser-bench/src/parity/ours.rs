//! A backend of muser as a side: answers every question through the [`Backend`]
//! trait.

use super::question::{Activations, ModelRun, Question, Recent, Side};
use muser_model::Transformer;
use muser_model::Want;
use muser_model::gguf::Gguf;
use muser_ops::{Attention, Backend, KvLayout, OpError, RopeFrequencies};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Number of weights that stay bound: enough for those of two row lengths, more
/// than any projection set has.
const KEPT: usize = 24;

/// Opens a backend with this number of threads.
type Open<B> = Box<dyn Fn(usize) -> Result<B, String>>;

/// Backends of one kind, one for each number of threads, opened when first
/// used.
pub(super) struct Ours<B: Backend> {
    open: Open<B>,
    opened: BTreeMap<usize, Opened<B>>,
}

struct Opened<B: Backend> {
    backend: Arc<B>,
    weights: Recent<B::Weight>,
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
                weights: Recent::new(KEPT),
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
    let mut buffer = b.buffer(rows.count(), rows.width);
    b.write(&mut buffer, &rows.values)?;
    Ok(buffer)
}

/// Returns an output buffer filled with NaN, so that a value that is not
/// written differs.
fn output<B: Backend>(b: &B, rows: usize, width: usize) -> Result<B::Buffer, OpError> {
    let mut buffer = b.buffer(rows, width);
    b.write(&mut buffer, &vec![f32::NAN; rows * width])?;
    Ok(buffer)
}

fn read<B: Backend>(b: &B, buffer: &B::Buffer, values: usize) -> Result<Vec<f32>, OpError> {
    let mut out = vec![f32::NAN; values];
    b.read(buffer, &mut out)?;
    Ok(out)
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
                b.embed(&b.bind(table.clone())?, tokens, &mut out)?;
                read(b, &out, rows * width)
            }
            Question::RmsNorm { x, weight, eps } => {
                let weight = weight.map(|w| b.bind_vector(w.to_vec()));
                let mut out = output(b, x.count(), x.width)?;
                b.rms_norm(x.count(), &buffer(b, x)?, weight.as_ref(), eps, &mut out)?;
                read(b, &out, x.values.len())
            }
            Question::HeadNorm { x, weight, eps } => in_place(b, x, |x, rows| {
                b.head_norm(rows, x, &b.bind_vector(weight.to_vec()), eps)
            }),
            Question::AddRmsNorm { x, y, weight, eps } => in_place(b, x, |x, rows| {
                let weight = b.bind_vector(weight.to_vec());
                b.add_rms_norm(rows, x, &buffer(b, y)?, &weight, eps)
            }),
            Question::Rope {
                x,
                head,
                base,
                first,
            } => in_place(b, x, |x, rows| {
                let table = RopeFrequencies::new(b.info().lane, base, head).table(first, rows);
                b.rope(rows, x, &table)
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
        for name in self.weights.missing(&names) {
            if let Some(w) = set.iter().find(|w| w.name() == name) {
                self.weights.add(name, b.bind((*w).clone())?);
            }
        }
        let bound: Vec<&B::Weight> = set
            .iter()
            .filter_map(|w| self.weights.get(w.name()))
            .collect();
        let outs = set.iter().map(|w| output(b, x.count(), w.rows()));
        let mut outs = outs.collect::<Result<Vec<_>, _>>()?;
        let mut room: Vec<&mut B::Buffer> = outs.iter_mut().collect();
        b.project(x.count(), &bound, &buffer(b, x)?, &mut room)?;
        let mut all = Vec::new();
        for (w, out) in set.iter().zip(&outs) {
            all.extend(read(b, out, x.count() * w.rows())?);
        }
        Ok(all)
    }

    /// Runs a whole model and returns the requested logits, call after call.
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
        let mut logits = Vec::with_capacity(run.ids.len() * model.config().vocab);
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

/// Runs an operation that overwrites `x` and returns the result.
fn in_place<B: Backend>(
    b: &B,
    x: &Activations,
    run: impl FnOnce(&mut B::Buffer, usize) -> Result<(), OpError>,
) -> Result<Vec<f32>, OpError> {
    let mut at = buffer(b, x)?;
    run(&mut at, x.count())?;
    read(b, &at, x.values.len())
}

/// Stores the earlier positions in micro-batches and then the rows of the call,
/// as a forward pass does, and returns their attention.
fn attention<B: Backend>(
    b: &B,
    desc: &Attention,
    q: &Activations,
    k: &Activations,
    v: &Activations,
) -> Result<Vec<f32>, OpError> {
    let most = b.info().lane.micro_batch();
    let (rows, end) = (q.count(), k.count());
    let first = end - rows;
    let mut kv = b.kv(KvLayout {
        kv_heads: desc.kv_heads,
        head_dim: desc.head_dim,
        window: desc.window,
        context: end,
        max_batch: most,
    });
    let cuts: Vec<usize> = (0..first).step_by(most).chain([first, end]).collect();
    for cut in cuts.windows(2) {
        let of = |x: &Activations| {
            let values = &x.values[cut[0] * x.width..cut[1] * x.width];
            buffer(b, &Activations::new(x.width, values.to_vec()))
        };
        b.kv_store(&mut kv, cut[0], cut[1] - cut[0], &of(k)?, &of(v)?)?;
    }
    let mut out = output(b, rows, q.width)?;
    b.attention(desc, first, rows, &buffer(b, q)?, &kv, &mut out)?;
    read(b, &out, rows * q.width)
}

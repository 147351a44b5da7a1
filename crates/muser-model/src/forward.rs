//! The one forward pass, for any batch width.
//!
//! ```text
//! x = embed(token) [· scale] [rms]                   no weight on this norm
//! each layer:
//!     h = rms(x) · attn_norm
//!     q, k, v [, g] = Wq h, Wk h, Wv h [, Wg h]      one set, one shared input
//!     [q, k = rms(q per head) · q_norm, rms(k per head) · k_norm]
//!     [q, k = rope(q), rope(k)]
//!     store k, v;  a = attention(q) [· sigmoid(g)]
//!     x += [post_attention_norm · rms] (Wo a)
//!     h = rms(x) · ffn_norm
//!     x += [post_ffw_norm · rms] (Wdown (silu(Wgate h) · (Wup h)))
//! logits = [soft_cap] (Whead (rms(x) · output_norm)) scale first, then cap
//! ```
//!
//! What is in brackets is done where the model's [`Spec`](crate::Spec) has it,
//! layer by layer; each norm has its own epsilon. What a spec can say and this
//! pass does not do is refused before a weight is bound.
//!
//! Rows of a batch never meet but in attention, which reads what is stored. So
//! in the strict lane a row whose output nobody reads can be left out without
//! moving a bit of the others: the last layer computes K and V for every row and
//! the rest only for the rows whose logits are wanted. And rows of several
//! sequences go through one pass together ([`Transformer::forward_many`]): the
//! weights are read once for all of them, and each operation is one call for all
//! of them. Which rows are whose, and at which positions, is in the backend's
//! `Batch`, which is made before the pass and is all that varies between two
//! passes of one shape.
//!
//! In the pinned lane the width of a batch is part of its arithmetic: rows
//! are left out where llama.cpp leaves them out, before the last layer's FFN,
//! and sequences go one by one.

use crate::cache::Buffers;
use crate::transformer::{Layer, NormWeights};
use crate::{Cache, ModelError, Transformer, Workspace};
use muser_ops::{Backend, Choice, ChoiceError, OpError, Plan, Recording, Run, Stage, Subset};
use std::sync::Arc;

/// The slices of the head over `keep` rows, of about `head_rows` each: (first
/// row, rows). A short end goes with the slice before it, so that no slice is
/// narrow where the whole is not; with that, and slices that are multiples of
/// four, a slice takes the routes of the whole in the pinned lane.
pub(crate) fn head_slices(keep: usize, head_rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let left = keep - from;
        let n = if left < head_rows + NARROW {
            left
        } else {
            head_rows
        };
        let at = from;
        from += n;
        (n > 0).then_some((at, n))
    })
}

/// Rows of a batch below which the pinned lane's routes are others.
const NARROW: usize = 8;

/// The most rows that [`head_slices`] gives at once.
fn widest_slice(keep: usize, head_rows: usize) -> usize {
    keep.min(head_rows + NARROW - 1)
}

/// Of which tokens a forward pass gives the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Of none: the tokens are only stored.
    Nothing,
    /// Of the last one.
    Last,
    /// Of each.
    All,
    /// Not logits but what the head reads, after the last norm: one value a
    /// hidden dimension, of the last token.
    State,
}

/// What one sequence gets of a pass over several.
pub struct Step<'a, B: Backend> {
    /// The sequence.
    pub cache: &'a mut Cache<B>,
    /// What is appended to it.
    pub tokens: &'a [u32],
    /// Of which of them the logits are wanted.
    pub want: Want,
    /// Chooses the token after the last of `tokens`, where the backend has the
    /// logits, and so in place of handing that row to the sink. A step that
    /// wants no logits ([`Want::Nothing`], [`Want::State`]) makes no choice.
    pub choice: Option<Choice<'a>>,
}

/// Why a pass over several sequences failed.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct BatchError {
    /// The step that is the reason; `None` if it is none in particular.
    pub step: Option<usize>,
    /// What is wrong.
    pub source: ModelError,
}

impl BatchError {
    fn of(step: usize) -> impl Fn(ModelError) -> Self {
        move |source| Self {
            step: Some(step),
            source,
        }
    }
}

impl<E: Into<ModelError>> From<E> for BatchError {
    fn from(source: E) -> Self {
        Self {
            step: None,
            source: source.into(),
        }
    }
}

/// One sequence's rows in a micro-batch.
#[derive(Clone, Copy)]
struct Part {
    /// Which step they are of.
    step: usize,
    /// How many of its tokens went before.
    done: usize,
    /// The position of the first row.
    first: usize,
    rows: usize,
    /// Rows at the end whose output is read.
    keep: usize,
    /// What becomes of the last row's output; that of the others is logits.
    last: Output,
}

/// What becomes of the output of a row that is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    /// The sink gets its logits.
    Logits,
    /// A token is chosen from its logits.
    Choice,
    /// The sink gets its state.
    State,
}

/// The parts of a micro-batch, in the order of their rows.
#[derive(Default)]
struct Parts {
    parts: Vec<Part>,
    rows: usize,
    keep: usize,
}

impl Parts {
    fn push(&mut self, part: Part) {
        self.rows += part.rows;
        self.keep += part.keep;
        self.parts.push(part);
    }

    /// The rows whose output is read, in order.
    fn kept(&self) -> Vec<Kept> {
        let of = |p: &Part| {
            let p = *p;
            (p.rows - p.keep..p.rows).map(move |r| Kept {
                step: p.step,
                index: p.done + r,
                position: p.first + r,
                output: if r + 1 == p.rows {
                    p.last
                } else {
                    Output::Logits
                },
            })
        };
        self.parts.iter().flat_map(of).collect()
    }
}

/// A row that is kept: whose it is.
struct Kept {
    step: usize,
    /// Its index among the step's tokens.
    index: usize,
    position: usize,
    output: Output,
}

impl<B: Backend> Transformer<B> {
    /// Appends `tokens` to the sequence and hands the logits wanted to `sink`,
    /// in order: the index in `tokens`, and one value a token of the
    /// vocabulary. No token is no work.
    ///
    /// # Errors
    /// Before any work: no room ([`ModelError::ContextFull`]), a token beyond
    /// the vocabulary, another model's cache, or a cache that an earlier
    /// failure left without its window ([`ModelError::CacheLost`]). During it:
    /// a logit that is not finite, or the backend's refusal; `sink` may have
    /// had the logits of earlier tokens by then.
    ///
    /// After an error the cache's length is what it was. If the failed call
    /// was so long that a ring overwrote the window before that length,
    /// `truncate(len())` says `false` and further calls are refused until the
    /// cache is cut back or cleared.
    pub fn forward(
        &self,
        cache: &mut Cache<B>,
        tokens: &[u32],
        want: Want,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        let mut step = Step {
            cache,
            tokens,
            want,
            choice: None,
        };
        self.forward_step(&mut step, sink)
    }

    /// [`Transformer::forward`] of a step, which can choose the next token.
    ///
    /// # Errors
    /// As [`Transformer::forward`]. A choice that its sampler's settings refuse
    /// is no error of the pass, but the outcome of the choice.
    pub fn forward_step(
        &self,
        step: &mut Step<'_, B>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        let work = step.cache.work.take();
        let mut work = work.unwrap_or_else(|| Box::new(self.workspace()));
        let alone = std::slice::from_mut(step);
        let done = self.forward_many(&mut work, alone, &mut |_, i, row| sink(i, row));
        step.cache.work = Some(work);
        done.map_err(|e| e.source)
    }

    /// [`Transformer::forward`] of several sequences in one pass, which reads
    /// the weights once for all of them. `sink` is told the step, the index in
    /// its tokens and the logits; the tokens of a step come in order.
    ///
    /// Each sequence gets the bits that it would get alone. In the pinned lane,
    /// where the width of a batch moves bits, sequences go one by one.
    ///
    /// # Errors
    /// As [`Transformer::forward`], with the step that is the reason. No cache
    /// has grown then: the other steps may be tried again without that one. Their
    /// choices may have outcomes, which are to be dropped.
    pub fn forward_many(
        &self,
        work: &mut Workspace<B>,
        steps: &mut [Step<'_, B>],
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), BatchError> {
        if !Arc::ptr_eq(&work.config, &self.config) {
            return Err(ModelError::ForeignWorkspace.into());
        }
        for (i, step) in steps.iter().enumerate() {
            self.admit(step.cache, step.tokens)
                .map_err(BatchError::of(i))?;
        }
        let mut done = vec![0; steps.len()];
        loop {
            let parts = self.next_batch(steps, &mut done);
            if parts.rows == 0 {
                break;
            }
            self.batch(work, steps, &parts, sink)?;
        }
        for step in steps {
            step.cache.len += step.tokens.len();
        }
        Ok(())
    }

    /// The rows of the next micro-batch: what is left of each step, as long as
    /// there is room.
    fn next_batch(&self, steps: &[Step<'_, B>], done: &mut [usize]) -> Parts {
        let most = self.sizes.micro_batch;
        let mut parts = Parts::default();
        for (i, (step, done)) in steps.iter().zip(done).enumerate() {
            let left = step.tokens.len() - *done;
            let rows = left.min(most - parts.rows);
            if rows == 0 {
                continue;
            }
            if self.lane.width_matters() && parts.rows > 0 {
                break;
            }
            let ends = rows == left;
            let keep = match step.want {
                Want::All => rows,
                Want::Last | Want::State => usize::from(ends),
                Want::Nothing => 0,
            };
            let last = match (step.want, &step.choice) {
                (Want::State, _) => Output::State,
                (Want::All | Want::Last, Some(_)) if ends => Output::Choice,
                (Want::All | Want::Last | Want::Nothing, _) => Output::Logits,
            };
            parts.push(Part {
                step: i,
                done: *done,
                first: step.cache.len + *done,
                rows,
                keep,
                last,
            });
            *done += rows;
        }
        parts
    }

    /// Everything that can be refused before a position is stored.
    fn admit(&self, cache: &Cache<B>, tokens: &[u32]) -> Result<(), ModelError> {
        if tokens.is_empty() {
            return Ok(());
        }
        if !Arc::ptr_eq(&cache.config, &self.config) {
            return Err(ModelError::ForeignCache);
        }
        let (len, context) = (cache.len, cache.context);
        if tokens.len() > context - len {
            return Err(ModelError::ContextFull {
                len,
                adding: tokens.len(),
                context,
            });
        }
        let vocab = self.config.vocab;
        if let Some(index) = tokens.iter().position(|&t| t as usize >= vocab) {
            return Err(ModelError::Token {
                index,
                token: tokens[index],
                vocab,
            });
        }
        if !cache.holds(len) {
            return Err(ModelError::CacheLost { len });
        }
        Ok(())
    }

    /// One micro-batch: its plan, the pass over it, and what is read of it.
    fn batch(
        &self,
        work: &mut Workspace<B>,
        steps: &mut [Step<'_, B>],
        parts: &Parts,
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), BatchError> {
        let (b, keep, head_rows) = (&*self.backend, parts.keep, self.sizes.head_rows);
        let s = work.reserve(b, parts.rows, widest_slice(keep, head_rows))?;
        let mut tokens = Vec::with_capacity(parts.rows);
        let (mut runs, mut kv) = (Vec::new(), Vec::new());
        // Of the steps, in order, that choose a token in this micro-batch.
        let mut choices = Vec::new();
        let mut rest = parts.parts.iter().peekable();
        for (i, step) in steps.iter_mut().enumerate() {
            let Some(p) = rest.next_if(|p| p.step == i) else {
                continue;
            };
            tokens.extend_from_slice(&step.tokens[p.done..p.done + p.rows]);
            runs.push(Run {
                first: p.first,
                rows: p.rows,
                keep: p.keep,
            });
            if p.last == Output::Choice {
                choices.extend(step.choice.as_mut());
            }
            let cache = &mut *step.cache;
            cache.high = cache.high.max(p.first + p.rows);
            kv.push(&mut cache.kv);
        }
        let mut batch = b.batch(Plan::new(tokens, runs)?, kv)?;

        let kept = parts.kept();
        let slices: Vec<_> = head_slices(keep, head_rows).collect();
        let has = |kept: &[Kept], output| kept.iter().any(|k| k.output == output);
        let logits = |kept: &[Kept]| kept.iter().any(|k| k.output != Output::State);
        let mut choices = choices.into_iter();
        // A head of one slice belongs to the pass, so that a step of decoding is
        // one recording.
        let name = Recording {
            buffers: s.id,
            rows: parts.rows,
            keep,
            logits: slices.len() == 1 && logits(&kept),
        };
        b.record(name, &mut batch, &mut |batch| {
            self.layers(s, batch)?;
            match slices[..] {
                [(_, n)] => self.head(s, 0, n, logits(&kept)),
                _ => Ok(()),
            }
        })?;
        for &(from, n) in &slices {
            let kept = &kept[from..from + n];
            if slices.len() > 1 {
                self.head(s, from, n, logits(kept))?;
            }
            if has(kept, Output::State) {
                let (rows, width) = (b.read(&s.h, n)?, self.config.hidden);
                give(kept, &rows, width, Output::State, sink)?;
            }
            if has(kept, Output::Logits) {
                let (rows, width) = (b.read(&s.logits, n)?, self.config.vocab);
                give(kept, &rows, width, Output::Logits, sink)?;
            }
            choose(b, &s.logits, kept, &mut choices)?;
        }
        Ok(())
    }

    /// From the tokens to the residual stream after the last layer, of the rows
    /// kept.
    fn layers(&self, s: &mut Buffers<B>, batch: &mut B::Batch<'_>) -> Result<(), OpError> {
        let (b, config) = (&*self.backend, &*self.config);
        let plan = b.plan(batch);
        let (rows, keep) = (plan.count(Subset::All), plan.count(Subset::Kept));
        b.mark(Stage::Embed);
        let embedded = match config.embed.norm {
            Some(_) => &mut s.h,
            None => &mut s.x,
        };
        b.embed(batch, &self.embedding, embedded)?;
        if let Some(scale) = config.embed.scale {
            // Logits without a cap are the same operation: one product, rounded.
            b.soft_cap(rows, embedded, scale, None)?;
        }
        if let Some(eps) = config.embed.norm {
            b.rms_norm(rows, &s.h, None, eps, &mut s.x)?;
        }
        let last = self.layers.len() - 1;
        for (i, layer) in self.layers.iter().enumerate() {
            let whole = i < last || keep == rows || (self.lane.width_matters() && keep > 0);
            let attended = if whole { Subset::All } else { Subset::Kept };
            b.mark(Stage::Attention(i));
            self.attend(layer, i, s, batch, attended)?;
            if i == last && whole && keep < rows {
                gather(b, batch, &mut s.x, &mut s.tail)?;
            }
            let rows = if i == last { keep } else { rows };
            if rows > 0 {
                b.mark(Stage::Ffn(i));
                self.feed(layer, s, rows)?;
            }
        }
        Ok(())
    }

    /// Attention's half of a layer: K and V of all rows are stored, and what
    /// becomes of the rows `attended` lies at the beginning of `x` afterwards.
    fn attend(
        &self,
        layer: &Layer<B>,
        index: usize,
        s: &mut Buffers<B>,
        batch: &mut B::Batch<'_>,
        attended: Subset,
    ) -> Result<(), OpError> {
        let b = &*self.backend;
        let (rows, keep) = (
            b.plan(batch).count(Subset::All),
            b.plan(batch).count(attended),
        );
        let set = &layer.attn_input;
        // Matrices of the set that are read by query rows alone.
        let queries = if layer.gate { 2 } else { 1 };

        layer.attn_norm.apply(b, rows, &s.x, &mut s.h)?;
        match attended {
            Subset::All => {
                let out = [&mut s.q, &mut s.gate, &mut s.k, &mut s.v];
                project_set(b, rows, set, layer.gate, &s.h, out)?;
            }
            Subset::Kept => {
                let out = &mut [&mut s.k, &mut s.v];
                b.project(rows, set, queries..queries + 2, &s.h, out)?;
                if keep > 0 {
                    gather(b, batch, &mut s.h, &mut s.tail)?;
                    gather(b, batch, &mut s.x, &mut s.tail)?;
                    let out = &mut [&mut s.q, &mut s.gate][..queries];
                    b.project(keep, set, 0..queries, &s.h, out)?;
                }
            }
        }
        let rope = layer.rope.and_then(|rope| self.ropes.get(rope.0));
        for (x, norm, subset) in [
            (&mut s.k, &layer.k_norm, Subset::All),
            (&mut s.q, &layer.q_norm, attended),
        ] {
            let rows = b.plan(batch).count(subset);
            if rows == 0 {
                continue;
            }
            if let Some(norm) = norm {
                b.head_norm(rows, x, &norm.weights, norm.eps)?;
            }
            if let Some(rope) = rope {
                b.rope(batch, subset, rope, x)?;
            }
        }
        let (desc, out) = (&layer.attention, &mut s.attended);
        b.attention(batch, index, desc, attended, &s.q, &s.k, &s.v, out)?;
        if keep == 0 {
            return Ok(());
        }
        if layer.gate {
            b.sigmoid_gate(keep, &mut s.attended, &s.gate)?;
        }
        b.project(keep, &layer.output, 0..1, &s.attended, &mut [&mut s.h])?;
        self.add(keep, s, layer.post_attn_norm.as_ref())
    }

    /// The FFN's half of a layer.
    fn feed(&self, layer: &Layer<B>, s: &mut Buffers<B>, rows: usize) -> Result<(), OpError> {
        let b = &*self.backend;
        layer.ffn_norm.apply(b, rows, &s.x, &mut s.h)?;
        let out = &mut [&mut s.ffn_gate, &mut s.ffn_up];
        b.project(rows, &layer.ffn_input, 0..2, &s.h, out)?;
        b.silu_product(rows, &mut s.ffn_gate, &s.ffn_up)?;
        b.project(rows, &layer.ffn_down, 0..1, &s.ffn_gate, &mut [&mut s.h])?;
        self.add(rows, s, layer.post_ffn_norm.as_ref())
    }

    /// Adds `h`, normed if the layer norms what it adds, to the residual stream.
    fn add(
        &self,
        rows: usize,
        s: &mut Buffers<B>,
        norm: Option<&NormWeights<B>>,
    ) -> Result<(), OpError> {
        let b = &*self.backend;
        match norm {
            Some(norm) => b.add_rms_norm(rows, &mut s.x, &s.h, &norm.weights, norm.eps),
            None => b.add(rows, &mut s.x, &s.h),
        }
    }

    /// The last norm of `n` kept rows from the row `from` on, into `h`, and,
    /// if they are wanted, their logits.
    fn head(&self, s: &mut Buffers<B>, from: usize, n: usize, logits: bool) -> Result<(), OpError> {
        let (b, out) = (&*self.backend, &self.config.out);
        b.mark(Stage::Head);
        if from == 0 {
            self.output_norm.apply(b, n, &s.x, &mut s.h)?;
        } else {
            b.copy_rows(n, &s.x, from, &mut s.tail, 0)?;
            self.output_norm.apply(b, n, &s.tail, &mut s.h)?;
        }
        if logits {
            b.project(n, &self.head, 0..1, &s.h, &mut [&mut s.logits])?;
            if out.scale != 1.0 || out.cap.is_some() {
                b.soft_cap(n, &mut s.logits, out.scale, out.cap)?;
            }
        }
        Ok(())
    }
}

/// Q, the gate if there is one, K and V of all rows.
fn project_set<B: Backend>(
    b: &B,
    rows: usize,
    set: &B::Set,
    gated: bool,
    x: &B::Buffer,
    out: [&mut B::Buffer; 4],
) -> Result<(), OpError> {
    let [q, gate, k, v] = out;
    match gated {
        true => b.project(rows, set, 0..4, x, &mut [q, gate, k, v]),
        false => b.project(rows, set, 0..3, x, &mut [q, k, v]),
    }
}

/// Hands the rows with this kind of output to the sink.
fn give(
    kept: &[Kept],
    rows: &[f32],
    width: usize,
    output: Output,
    sink: &mut dyn FnMut(usize, usize, &[f32]),
) -> Result<(), BatchError> {
    for (k, row) in kept.iter().zip(rows.chunks_exact(width)) {
        if k.output == output {
            check_finite(k.position, row).map_err(BatchError::of(k.step))?;
            sink(k.step, k.index, row);
        }
    }
    Ok(())
}

/// Chooses a token from each kept row whose step wants one. `choices` gives the
/// choices in the order of those rows.
fn choose<'a, 'b: 'a, B: Backend>(
    b: &B,
    logits: &B::Buffer,
    kept: &[Kept],
    choices: &mut impl Iterator<Item = &'a mut Choice<'b>>,
) -> Result<(), BatchError> {
    let chosen = kept.iter().enumerate();
    let chosen = chosen.filter(|(_, k)| k.output == Output::Choice);
    let (kept, mut rows): (Vec<_>, Vec<_>) = chosen
        .zip(choices)
        .map(|((row, k), choice)| (k, (row, choice)))
        .unzip();
    if rows.is_empty() {
        return Ok(());
    }
    b.choose(logits, &mut rows)?;
    for (k, (_, choice)) in kept.into_iter().zip(rows) {
        if let Some(&Err(ChoiceError::Logit { token, found })) = choice.outcome() {
            return Err(BatchError::of(k.step)(ModelError::NonFinite {
                position: k.position,
                token,
                found,
            }));
        }
    }
    Ok(())
}

/// Moves the rows kept to the front of `x`, by way of `room`. The two are not
/// exchanged: a recorded pass finds each buffer where it was.
fn gather<B: Backend>(
    b: &B,
    batch: &B::Batch<'_>,
    x: &mut B::Buffer,
    room: &mut B::Buffer,
) -> Result<(), OpError> {
    b.gather(batch, x, room)?;
    b.copy_rows(b.plan(batch).count(Subset::Kept), room, 0, x, 0)
}

/// The first logit that is not finite, as an error.
fn check_finite(position: usize, row: &[f32]) -> Result<(), ModelError> {
    // Without an early exit, and of operations that every x86-64 has in vectors.
    const EXPONENT: u32 = 0x7f80_0000;
    let any = |any: bool, v: &f32| any | (v.to_bits() & EXPONENT == EXPONENT);
    if !row.iter().fold(false, any) {
        return Ok(());
    }
    match row.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(token) => Err(ModelError::NonFinite {
            position,
            token,
            found: row[token],
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_the_rows_and_none_is_narrow_where_the_whole_is_not() {
        for keep in 0..600 {
            let slices: Vec<_> = head_slices(keep, 64).collect();
            let mut at = 0;
            for (i, &(from, n)) in slices.iter().enumerate() {
                assert_eq!(from, at);
                assert!(
                    n <= widest_slice(keep, 64) && n >= keep.min(NARROW),
                    "{keep}: {n}"
                );
                // Whole groups of four columns but in the last slice.
                assert!(i + 1 == slices.len() || n % 4 == 0);
                at += n;
            }
            assert_eq!(at, keep);
        }
    }
}

//! Runs the forward pass: one for every architecture, batch width, backend and lane
//! (strict, muser's own arithmetic, or pinned, llama.cpp's).
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
//! The pass does what is in brackets where the [`Spec`](crate::Spec) asks for it,
//! layer by layer. Each norm has its own epsilon. What a spec can describe and this
//! pass does not compute is refused before a weight is bound.
//!
//! Only attention reads other rows than its own, and it reads them from the cache.
//! So in the strict lane a row whose output is not read can be left out without
//! moving a bit of the others: the last layer computes K and V for every row, and
//! everything else only for the rows whose outputs are read. Rows of several
//! sequences go through one pass ([`Transformer::forward_many`]): the weights are
//! read once, and each operation is one call for all rows. The backend's `Batch`
//! says which rows belong to which sequence, and at which positions. It is made
//! before the pass and is all that varies between two passes of one shape.
//!
//! In the pinned lane the width of a batch is part of the arithmetic. There rows are
//! left out where llama.cpp leaves them out, before the FFN of the last layer, and
//! sequences go one after the other.

use crate::cache::Buffers;
use crate::micro_batch::{Kept, MicroBatch, Output, StepRows, head_slices, widest_slice};
use crate::transformer::{Layer, NormWeights};
use crate::{Cache, ModelError, Transformer, Workspace};
use muser_ops::{Backend, Choice, ChoiceError, OpError, Plan, Recording, Run, Stage, Subset};
use std::sync::Arc;

/// Which outputs of a forward pass the caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// No output of the forward pass: the tokens are only stored in the KV cache.
    Nothing,
    /// The logits after the last of the tokens given to the forward pass.
    Last,
    /// The logits after each of the tokens given to the forward pass.
    All,
    /// The hidden state after the last of the tokens given to the forward pass: the
    /// input of the output projection, after the last norm, of the width
    /// [`Spec::hidden`](crate::Spec::hidden). No logits are computed.
    State,
}

/// A step: the tokens that a forward pass appends to one sequence, and the outputs
/// wanted.
pub struct Step<'a, B: Backend> {
    /// The KV cache of the sequence.
    pub cache: &'a mut Cache<B>,
    /// The tokens to append to the sequence.
    pub tokens: &'a [u32],
    /// The outputs that the caller wants of this sequence.
    pub want: Want,
    /// If set, the backend chooses the sequence's next token from the last row of
    /// logits, as this says, and the caller's sink (the function that gets outputs)
    /// does not get that row. With [`Want::Nothing`] or [`Want::State`] nothing is
    /// chosen.
    pub choice: Option<Choice<'a>>,
}

/// Why a forward pass over several sequences failed.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct BatchError {
    /// The index of the step (one sequence's tokens) that caused the failure; `None` if
    /// no single one did.
    pub step: Option<usize>,
    /// Why the forward pass over several sequences failed.
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

impl<B: Backend> Transformer<B> {
    /// Runs the forward pass: appends `tokens` to the sequence of `cache` and calls
    /// `sink(index, row)` for each output wanted, in the order of the tokens: the index
    /// in `tokens` and the logits, one for each token of the vocabulary. Does nothing
    /// without tokens.
    ///
    /// # Errors
    /// Before any work: a full cache ([`ModelError::ContextFull`]), a token outside
    /// the vocabulary, a cache of another model, or a cache that an earlier failure
    /// left without its window ([`ModelError::CacheLost`]). During the pass: a logit
    /// that is not finite, or an error of the backend; `sink` may have been called
    /// for earlier tokens.
    ///
    /// An error leaves the length of the cache unchanged. If the failed call was so
    /// long that a ring overwrote the window before that length, `truncate(len())`
    /// returns `false` and further calls are refused until the cache is cut back
    /// further or cleared.
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

    /// Runs [`Transformer::forward`] on a step: the tokens of one sequence, with a
    /// choice of the next token if one is wanted.
    ///
    /// # Errors
    /// Those of [`Transformer::forward`]. A choice that fails for any other reason
    /// than such a logit is an outcome of the choice and no error of the pass.
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

    /// Runs [`Transformer::forward`] on several sequences in one pass, which reads the
    /// weights once. Calls `sink(step, index, row)`; the rows of a step (one sequence's
    /// tokens) come in the order of its tokens.
    ///
    /// Each sequence gets the same bits as alone. In the pinned lane (llama.cpp's
    /// arithmetic), where the width of a batch moves bits, sequences go one after the
    /// other.
    ///
    /// # Errors
    /// Those of [`Transformer::forward`], with the step that caused one. No cache has
    /// grown then, and the other steps can be run again without that one. Outcomes
    /// of their choices must be dropped.
    pub fn forward_many(
        &self,
        work: &mut Workspace<B>,
        steps: &mut [Step<'_, B>],
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), BatchError> {
        if !Arc::ptr_eq(&work.spec, &self.spec) {
            return Err(ModelError::ForeignWorkspace.into());
        }
        for (i, step) in steps.iter().enumerate() {
            self.admit(step.cache, step.tokens)
                .map_err(BatchError::of(i))?;
        }
        let mut done = vec![0; steps.len()];
        loop {
            let micro = self.next_batch(steps, &mut done);
            if micro.rows == 0 {
                break;
            }
            self.batch(work, steps, &micro, sink)?;
        }
        for step in steps {
            step.cache.len += step.tokens.len();
        }
        Ok(())
    }

    /// Returns the rows of the next micro-batch (the rows computed at once): the
    /// remaining tokens of each sequence, up to the size of a micro-batch.
    fn next_batch(&self, steps: &[Step<'_, B>], done: &mut [usize]) -> MicroBatch {
        let most = self.sizes.micro_batch;
        let mut micro = MicroBatch::default();
        for (i, (step, done)) in steps.iter().zip(done).enumerate() {
            let left = step.tokens.len() - *done;
            let rows = left.min(most - micro.rows);
            if rows == 0 {
                continue;
            }
            if self.lane.width_matters() && micro.rows > 0 {
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
            micro.push(StepRows {
                step: i,
                done: *done,
                first: step.cache.len + *done,
                rows,
                keep,
                last,
            });
            *done += rows;
        }
        micro
    }

    /// Checks before a forward pass that the KV cache was made by this model, has space
    /// for the tokens and still holds what they attend to, and that every token id is
    /// in the vocabulary.
    fn admit(&self, cache: &Cache<B>, tokens: &[u32]) -> Result<(), ModelError> {
        if tokens.is_empty() {
            return Ok(());
        }
        if !Arc::ptr_eq(&cache.spec, &self.spec) {
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
        let vocab = self.spec.vocab;
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

    /// Runs one micro-batch (the rows computed at once): makes its plan, runs the
    /// forward pass, and gives the outputs to `sink` or chooses tokens from them.
    fn batch(
        &self,
        work: &mut Workspace<B>,
        steps: &mut [Step<'_, B>],
        micro: &MicroBatch,
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), BatchError> {
        let (b, keep, head_rows) = (&*self.backend, micro.keep, self.sizes.head_rows);
        let s = work.reserve(b, micro.rows, widest_slice(keep, head_rows))?;
        let mut tokens = Vec::with_capacity(micro.rows);
        let (mut runs, mut kv, mut high) = (Vec::new(), Vec::new(), Vec::new());
        // The choices of this micro-batch, in the order of their rows.
        let mut choices = Vec::new();
        let mut rest = micro.steps.iter().peekable();
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
            high.push((&mut cache.high, p.first + p.rows));
            kv.push(&mut cache.kv);
        }
        let mut batch = b.batch(Plan::new(tokens, runs)?, kv)?;
        // Had the backend refused the batch, the caches would be as they were.
        for (high, end) in high {
            *high = end.max(*high);
        }

        let kept = micro.kept();
        let slices: Vec<_> = head_slices(keep, head_rows).collect();
        let has = |kept: &[Kept], output| kept.iter().any(|k| k.output == output);
        let logits = |kept: &[Kept]| kept.iter().any(|k| k.output != Output::State);
        let mut choices = choices.into_iter();
        // An output projection that is computed in one slice is part of the recorded
        // pass, so that decoding a token is one recording.
        let name = Recording {
            buffers: s.id,
            rows: micro.rows,
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
                let (rows, width) = (b.read(&s.h, n)?, self.spec.hidden);
                give(kept, &rows, width, Output::State, sink)?;
            }
            if has(kept, Output::Logits) {
                let (rows, width) = (b.read(&s.logits, n)?, self.spec.vocab);
                give(kept, &rows, width, Output::Logits, sink)?;
            }
            choose(b, &s.logits, kept, &mut choices)?;
        }
        Ok(())
    }

    /// Computes the residual stream after the last layer, of the kept rows (rows whose
    /// outputs are read), from the tokens of the batch.
    fn layers(&self, s: &mut Buffers<B>, batch: &mut B::Batch<'_>) -> Result<(), OpError> {
        let (b, spec) = (&*self.backend, &*self.spec);
        let plan = b.plan(batch);
        let (rows, keep) = (plan.count(Subset::All), plan.count(Subset::Kept));
        b.mark(Stage::Embed);
        let embedded = match spec.embed.norm {
            Some(_) => &mut s.h,
            None => &mut s.x,
        };
        b.embed(batch, &self.embedding, embedded)?;
        if let Some(scale) = spec.embed.scale {
            // Without a cap this operation only multiplies each value by the scale,
            // with one rounding, as an embedding row needs.
            b.soft_cap(rows, embedded, scale, None)?;
        }
        if let Some(eps) = spec.embed.norm {
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

    /// Computes the attention half of a layer: stores K and V of all rows, and leaves
    /// the residual stream of the rows `attended` in the first rows of the buffer `x`.
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
        // Number of matrices at the start of the projection set that only rows with a
        // query need: Q, and the gate if there is one.
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

    /// Computes the FFN half of a layer for the first `rows` rows of the residual
    /// stream.
    fn feed(&self, layer: &Layer<B>, s: &mut Buffers<B>, rows: usize) -> Result<(), OpError> {
        let b = &*self.backend;
        layer.ffn_norm.apply(b, rows, &s.x, &mut s.h)?;
        let out = &mut [&mut s.ffn_gate, &mut s.ffn_up];
        b.project(rows, &layer.ffn_input, 0..2, &s.h, out)?;
        b.silu_product(rows, &mut s.ffn_gate, &s.ffn_up)?;
        b.project(rows, &layer.ffn_down, 0..1, &s.ffn_gate, &mut [&mut s.h])?;
        self.add(rows, s, layer.post_ffn_norm.as_ref())
    }

    /// Adds the output of attention or FFN, in the buffer `h`, to the residual stream,
    /// after its norm if the layer has one there.
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

    /// Computes the model's last norm of `n` kept rows (rows whose outputs are read),
    /// from row `from` on, into `h`, and their logits if `logits` is set.
    fn head(&self, s: &mut Buffers<B>, from: usize, n: usize, logits: bool) -> Result<(), OpError> {
        let (b, out) = (&*self.backend, &self.spec.out);
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

/// Computes the input projections of attention for all rows: Q, the gate if there is
/// one, K and V.
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

/// Gives the rows of one kind of output (logits or state) to the caller's sink (the
/// function that gets outputs). Refuses values that are not finite.
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

/// Chooses the next token from the logits of each row whose sequence wants one.
/// `choices` gives the choices in the order of those rows.
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

/// Moves the kept rows (rows whose outputs are read) to the front of `x`, with `room`
/// as scratch space. The two buffers are not swapped, because a recorded pass refers to
/// them.
fn gather<B: Backend>(
    b: &B,
    batch: &B::Batch<'_>,
    x: &mut B::Buffer,
    room: &mut B::Buffer,
) -> Result<(), OpError> {
    b.gather(batch, x, room)?;
    b.copy_rows(b.plan(batch).count(Subset::Kept), room, 0, x, 0)
}

/// Refuses a row of outputs with a value that is not finite.
fn check_finite(position: usize, row: &[f32]) -> Result<(), ModelError> {
    // Tests every value without an early exit, with operations that every x86-64 has
    // for vectors, so that the loop vectorises.
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

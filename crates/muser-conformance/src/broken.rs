//! A backend that is the oracle (the scalar functions that define every operation's
//! bits) with one planted defect, which the conformance suite must find.

use muser_ops::hook::{Call, Hook, Hooked};
use muser_ops::oracle::{Buffer, Oracle};
use muser_ops::project::Operand;
use muser_ops::{
    Attention, Backend, BackendInfo, Choice, KvLayout, OpError, Plan, Run, Sampler, SamplingParams,
    Subset, Weight, math, norm, project, reduce,
};
use muser_quant::q4_k::BlockQ4K;
use muser_quant::q5_k::BlockQ5K;
use muser_quant::q8_k::BlockQ8K;
use muser_quant::{Arithmetic, DType, Sums, Superblock as _};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard};

/// A defect to plant into the oracle's operations (the scalar functions that define
/// their bits), which the conformance suite must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Defect {
    LastRowUnwritten,
    /// Defect: the last finite result of an operation is wrong by one ulp (its lowest
    /// bit).
    OneUlp,
    GuardRow,
    /// Defect: the operation overwrites the 64th value behind its output, as a kernel
    /// would whose last store is two tiles too wide.
    LastGuard,
    /// Defect: every result of an operation is wrong by one ulp, but only in batches of
    /// nine rows.
    NineRows,
    InputChanged,
    NanForNumber,
    Refuses,
    /// Defect: in products with Q4_K and Q5_K weights the multiply-adds over
    /// superblocks (256 quantised weights each) are not fused: the product is rounded
    /// before it is added.
    Unfused,
    /// Defect: subnormal scales of quantised activations become zero.
    FlushedScale,
    /// Defect: quantised activations whose scale is NaN are treated as zeros.
    NonFiniteIsZero,
    /// Defect: a dot product adds the products of its groups of 32 weights one after
    /// the other instead of folding them by halves.
    FoldedInOrder,
    /// Defect: dot products and norms in f32 use 128 partial sums instead of 256.
    OtherPartials,
    SwappedOutputs,
    LastOfSetUnwritten,
    IgnoresWindow,
    ShiftedWindow,
    /// Defect: the chunks of 64 positions that attention sums begin at the first
    /// visible position instead of at multiples of 64.
    ChunksFromFirst,
    /// Defect: K and V beyond the range of f16 become its largest value instead of
    /// infinity.
    SaturatedHalf,
    OneHeadGroup,
    /// Defect: a ring (the KV cache of a layer with a window) is one chunk of 64
    /// positions too short.
    ShortRing,
    /// Defect: a position of the KV cache that is stored again after a rewind keeps its
    /// first K and V.
    StaleAfterRewind,
    FlushToZero,
    LostNegativeZero,
    CapWithoutScale,
    TableRowZero,
    CopiesFromZero,
    CopiesToZero,
    /// Defect: gathering copies the first rows of a batch instead of its kept rows
    /// (those whose logits are computed).
    GathersTheFirst,
    /// Defect: in a batch of several sequences, the last sequence's first row of
    /// attention is the first sequence's.
    OtherSequence,
    /// Defect: of several equal logits the last one's token is chosen instead of the
    /// first one's.
    LastOfTies,
    /// Defect: the choice of a token ignores the mask of allowed tokens.
    IgnoresMask,
    /// Defect: the choice of a token ignores the logit biases.
    IgnoresBias,
    /// Defect: the choice of a token ignores the earlier tokens, and so the penalties.
    IgnoresHistory,
    /// Defect: the choice of a token takes a logit that is not finite as zero instead
    /// of failing.
    ChoosesPastNan,
    /// Defect: a random choice of a token sums the tokens' sampling weights one after
    /// the other instead of in the defined order.
    SumsInOrder,
}

/// The oracle (the scalar functions that define every operation's bits) with one
/// planted defect: a backend that the conformance suite must fail.
pub(super) type Broken = Hooked<Oracle, Defective>;

pub(super) fn broken(defect: Defect) -> Broken {
    let hook = Defective {
        defect,
        changed: Mutex::default(),
        past: Mutex::default(),
    };
    Hooked::over(Arc::new(Oracle), hook)
}

/// The hook around the oracle's operations that plants one defect into their results.
pub(super) struct Defective {
    defect: Defect,
    /// The values of input buffers that this backend pretends to have changed. Reading
    /// a buffer with exactly these values gives changed ones.
    changed: Mutex<Vec<Vec<f32>>>,
    /// The K and V that the hook saw stored in the KV cache that was created last.
    past: Mutex<Past>,
}

/// The layouts of a sequence's KV cache, and the K and V stored in its only layer, row
/// by row.
#[derive(Default)]
struct Past {
    layers: Vec<KvLayout>,
    k: Vec<f32>,
    v: Vec<f32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Reads all values of an oracle's buffer. Its number of rows is found by trying, since
/// the oracle reads any number that the buffer has.
fn all(x: &Buffer) -> Vec<f32> {
    let width = Oracle.width(x).max(1);
    let mut rows = 1;
    while Oracle.read(x, 2 * rows).is_ok() {
        rows *= 2;
    }
    let mut step = rows;
    while step > 0 {
        if Oracle.read(x, rows + step).is_ok() {
            rows += step;
        }
        step /= 2;
    }
    let values = Oracle.read(x, rows).unwrap().into_owned();
    debug_assert_eq!(values.len(), rows * width);
    values
}

fn set(x: &mut Buffer, values: &[f32]) {
    Oracle.write(x, values).unwrap();
}

/// Flips the lowest bit of an f32.
fn ulp(x: f32) -> f32 {
    f32::from_bits(x.to_bits() ^ 1)
}

impl Defective {
    /// Plants the defect into `x`, whose first `n` values are an operation's results
    /// and whose others are guard values.
    fn spoil(&self, n: usize, width: usize, before: &[f32], x: &mut [f32]) {
        let last_finite = x[..n].iter().rposition(|v| v.is_finite());
        let replace = |x: &mut [f32], with: fn(f32) -> f32| {
            for v in x {
                *v = with(*v);
            }
        };
        match self.defect {
            Defect::LastRowUnwritten => x[n - width..n].copy_from_slice(&before[n - width..n]),
            Defect::GuardRow => x[n] = 0.0,
            Defect::LastGuard => x[n + 63] = 0.0,
            Defect::NineRows if n == 9 * width => replace(&mut x[..n], ulp),
            Defect::NanForNumber => x[0] = f32::NAN,
            Defect::OneUlp => {
                if let Some(i) = last_finite {
                    x[i] = ulp(x[i]);
                }
            }
            Defect::FlushToZero => {
                replace(&mut x[..n], |v| if v.is_subnormal() { 0.0 } else { v });
            }
            Defect::LostNegativeZero => {
                replace(&mut x[..n], |v| if v == 0.0 { 0.0 } else { v });
            }
            _ => {}
        }
    }

    /// Computes a dot product of weights and activations with the planted defect;
    /// `None` if the defect does not affect such products.
    fn dot(&self, w: &Weight, row: &[u8], x: &[f32]) -> Option<f32> {
        let dtype = w.dtype();
        let mut y = Operand::new(dtype.arithmetic(), x);
        let unfused_with = |y: &Operand, dot: fn(&[u8], &BlockQ8K) -> Sums| match y {
            Operand::Superblocks(y) => Some(unfused(dtype, row, y, dot)),
            Operand::Groups(_) | Operand::Floats(_) => None,
        };
        match (self.defect, dtype.arithmetic()) {
            (Defect::Unfused, Arithmetic::Superblocks) if dtype == DType::Q4K => {
                unfused_with(&y, BlockQ4K::sums)
            }
            (Defect::Unfused, Arithmetic::Superblocks) if dtype == DType::Q5K => {
                unfused_with(&y, BlockQ5K::sums)
            }
            (
                Defect::FlushedScale | Defect::NonFiniteIsZero,
                Arithmetic::Superblocks | Arithmetic::Groups,
            ) => {
                let scales: Vec<&mut f32> = match &mut y {
                    Operand::Superblocks(y) => y.iter_mut().map(|b| &mut b.d).collect(),
                    Operand::Groups(y) => y.iter_mut().map(|b| &mut b.d).collect(),
                    Operand::Floats(_) => Vec::new(),
                };
                for d in scales {
                    let bad = match self.defect {
                        Defect::FlushedScale => d.is_subnormal(),
                        _ => d.is_nan(),
                    };
                    if bad {
                        *d = 0.0;
                    }
                }
                Some(project::dot(dtype, row, &y))
            }
            (Defect::FoldedInOrder, Arithmetic::Groups) => Some(folded_in_order(dtype, row, &y)),
            (Defect::OtherPartials, Arithmetic::Floats) => {
                let mut w = vec![0.0; x.len()];
                dtype.decode_row(row, &mut w).expect("whole rows");
                Some(partials_128(&w, x))
            }
            _ => None,
        }
    }
}

/// Computes a dot product one group of 32 weights at a time and adds the groups'
/// products in order: a planted defect, which changes nothing if there is one group.
fn folded_in_order(dtype: DType, row: &[u8], y: &Operand) -> f32 {
    let Operand::Groups(y) = y else {
        return f32::NAN;
    };
    let groups = row.chunks(dtype.block_bytes()).zip(y);
    groups.fold(0.0, |acc, (block, y)| {
        acc + project::dot(dtype, block, &Operand::Groups(vec![*y]))
    })
}

fn unfused(dtype: DType, row: &[u8], y: &[BlockQ8K], dot: fn(&[u8], &BlockQ8K) -> Sums) -> f32 {
    let (mut acc, mut accm) = (0.0f32, 0.0f32);
    for (b, a) in row.chunks_exact(dtype.block_bytes()).zip(y) {
        let s = dot(b, a);
        acc += s.sum as f32 * (s.d * a.d);
        accm += s.min as f32 * (s.dmin * a.d);
    }
    acc - accm
}

/// Returns the error of a defective backend that refuses operations on one row.
fn refusal(rows: usize) -> OpError {
    OpError::Unsupported {
        op: "any",
        what: "row count",
        found: rows,
        expected: "two or more",
    }
}

/// Draws a random token with the tokens' sampling weights summed one after the other, a
/// planted defect; `None` if the settings do more than set a temperature.
fn sums_in_order(p: &SamplingParams, u: f64, logits: &[f32]) -> Option<u32> {
    let plain = SamplingParams {
        seed: p.seed,
        temperature: p.temperature,
        ..SamplingParams::default()
    };
    if *p != plain || p.temperature == 0.0 {
        return None;
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let max = logits[order[0]];
    let weight = |&i: &usize| math::exp((logits[i] - max) / p.temperature);
    let total: f32 = order.iter().map(weight).sum();
    let mut sum = 0.0f32;
    let passed = order.iter().find(|i| {
        sum += weight(i);
        f64::from(sum) > u * f64::from(total)
    });
    passed.map(|&i| i as u32)
}

fn partials_128(x: &[f32], y: &[f32]) -> f32 {
    let mut p = [0.0f32; reduce::PARTIALS];
    for (i, (&x, &y)) in x.iter().zip(y).enumerate() {
        p[i % 128] = x.mul_add(y, p[i % 128]);
    }
    reduce::halve(&mut p)
}

/// An operation with its operands, as the hook gets it before the oracle runs it.
type OracleCall<'a, 'kv> = Call<'a, 'kv, Oracle>;

impl Hook<Oracle> for Defective {
    fn info(&self, inner: BackendInfo) -> BackendInfo {
        BackendInfo {
            name: "broken",
            ..inner
        }
    }

    fn kv(&self, layers: &[KvLayout]) {
        *lock(&self.past) = Past {
            layers: layers.to_vec(),
            ..Past::default()
        };
    }

    fn call(&self, b: &Oracle, mut call: OracleCall<'_, '_>) -> Result<(), OpError> {
        if matches!(call, Call::Write { .. }) {
            return call.run(b);
        }
        let rows = call.rows(b);
        if self.defect == Defect::Refuses && rows == 1 {
            return Err(refusal(rows));
        }
        let before: Vec<_> = call.outputs().iter().map(|o| all(o)).collect();
        self.run(b, &mut call)?;
        for (out, before) in call.outputs().into_iter().zip(&before) {
            let (width, mut x) = (b.width(out), all(out));
            if rows > 0 {
                self.spoil(rows * width, width, before, &mut x);
            }
            set(out, &x);
        }
        match (self.defect, &mut call.outputs()[..], &before[..]) {
            (Defect::LastOfSetUnwritten, [.., out], [.., before]) => set(out, before),
            (Defect::SwappedOutputs, [.., x, y], _) if b.width(x) == b.width(y) => {
                std::mem::swap::<Buffer>(x, y);
            }
            _ => {}
        }
        if let (Defect::InputChanged, Some(input)) = (self.defect, call.inputs().first()) {
            lock(&self.changed).push(all(input));
        }
        Ok(())
    }

    fn choose(
        &self,
        b: &Oracle,
        logits: &Buffer,
        choices: &mut [(usize, &mut Choice<'_>)],
    ) -> Result<(), OpError> {
        let n = choices.len();
        match self.defect {
            Defect::Refuses if n == 1 => return Err(refusal(n)),
            Defect::LastRowUnwritten => return b.choose(logits, &mut choices[..n - 1]),
            Defect::InputChanged => lock(&self.changed).push(all(logits)),
            _ => {}
        }
        b.choose(logits, choices)?;
        let (values, width) = (all(logits), b.width(logits));
        for (i, (row, choice)) in choices.iter_mut().enumerate() {
            let mut logits = values[*row * width..][..width].to_vec();
            let (mut params, mut history) = (choice.params().clone(), choice.history());
            let mut allowed = choice.allowed();
            match (self.defect, choice.outcome()) {
                (Defect::OneUlp, Some(&Ok(token))) if i + 1 == n => choice.set(Ok(token ^ 1)),
                (Defect::NineRows, Some(&Ok(token))) if n == 9 => choice.set(Ok(token ^ 1)),
                (Defect::LastOfTies, Some(&Ok(token))) => {
                    let tie = logits.iter().rposition(|&l| l == logits[token as usize]);
                    choice.set(Ok(tie.map_or(token, |t| t as u32)));
                }
                (Defect::SumsInOrder, Some(Ok(_))) => {
                    if let Some(token) = sums_in_order(&params, choice.uniform(), &logits) {
                        choice.set(Ok(token));
                    }
                }
                (
                    Defect::IgnoresMask
                    | Defect::IgnoresBias
                    | Defect::IgnoresHistory
                    | Defect::ChoosesPastNan,
                    _,
                ) => {
                    match self.defect {
                        Defect::IgnoresMask => allowed = None,
                        Defect::IgnoresBias => params.logit_bias.clear(),
                        Defect::IgnoresHistory => history = &[],
                        _ => logits
                            .iter_mut()
                            .filter(|l| !l.is_finite())
                            .for_each(|l| *l = 0.0),
                    }
                    let mut sampler = Sampler::new(params, width).unwrap();
                    let mut wrong = Choice::new(&mut sampler, history, allowed);
                    wrong.choose(&logits);
                    choice.set(wrong.take().unwrap());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read<'a>(
        &self,
        b: &Oracle,
        buffer: &'a Buffer,
        rows: usize,
    ) -> Result<Cow<'a, [f32]>, OpError> {
        let read = b.read(buffer, rows)?;
        let same = |x: &Vec<f32>| {
            let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            bits(x) == bits(&read)
        };
        if !lock(&self.changed).iter().any(same) {
            return Ok(read);
        }
        let mut read = read.into_owned();
        read[0] = ulp(read[0]);
        Ok(read.into())
    }
}

impl Defective {
    /// Runs an operation on the oracle, with the planted defect if it affects this
    /// operation's arithmetic.
    fn run(&self, b: &Oracle, call: &mut OracleCall<'_, '_>) -> Result<(), OpError> {
        match call {
            Call::CopyRows { from, .. } if self.defect == Defect::CopiesFromZero => *from = 0,
            Call::CopyRows { to, .. } if self.defect == Defect::CopiesToZero => *to = 0,
            Call::SoftCap { scale, .. } if self.defect == Defect::CapWithoutScale => *scale = 1.0,
            Call::Gather { batch, src, dst } if self.defect == Defect::GathersTheFirst => {
                let rows = b.plan(batch).count(Subset::Kept);
                return b.copy_rows(rows, src, 0, dst, 0);
            }
            Call::Rope {
                batch,
                subset,
                rope,
                x,
            } if self.defect == Defect::TableRowZero => {
                let plan = b.plan(batch);
                let table = rope.table(plan.position(*subset, 0), 1);
                let (n, width) = (plan.count(*subset) * b.width(x), b.width(x));
                let mut values = all(x);
                for row in values[..n].chunks_mut(width) {
                    muser_ops::rope::rope(row, &table, 0);
                }
                set(x, &values);
                return Ok(());
            }
            Call::Attention { .. } => return self.attention(b, call),
            _ => {}
        }
        call.run(b)?;
        match call {
            Call::Project {
                rows,
                set: matrices,
                which,
                x,
                out,
            } => {
                let x = all(x);
                for (w, out) in matrices[which.clone()].iter().zip(out) {
                    let mut values = all(out);
                    for (r, i) in (0..*rows).flat_map(|r| (0..w.rows()).map(move |i| (r, i))) {
                        let x = &x[r * w.cols()..][..w.cols()];
                        if let Some(v) = self.dot(w, w.row(i), x) {
                            values[r * w.rows() + i] = v;
                        }
                    }
                    set(out, &values);
                }
            }
            Call::RmsNorm {
                rows,
                x,
                weight,
                eps,
                out,
            } if self.defect == Defect::OtherPartials => {
                let (width, x, mut y) = (b.width(x), all(x), all(out));
                for i in 0..*rows * width {
                    let row = &x[i / width * width..][..width];
                    let r = norm::scale(partials_128(row, row), width, *eps);
                    y[i] = weight.map_or(x[i] * r, |w| x[i] * r * w[i % width]);
                }
                set(out, &y);
            }
            Call::AddRmsNorm {
                rows,
                x,
                y,
                weight,
                eps,
            } if self.defect == Defect::OtherPartials => {
                // The right norm is already added: adds the difference to the wrong
                // one.
                let (width, mut to, y) = (b.width(x), all(x), all(y));
                for i in 0..*rows * width {
                    let row = &y[i / width * width..][..width];
                    let right = norm::scale(reduce::sum_of_squares(row), width, *eps);
                    let wrong = norm::scale(partials_128(row, row), width, *eps);
                    if right.to_bits() != wrong.to_bits() {
                        to[i] += y[i] * (wrong - right) * weight[i % width];
                    }
                }
                set(x, &to);
            }
            _ => {}
        }
        Ok(())
    }

    /// Computes attention with the planted defect from the recorded K and V, if there
    /// is one sequence of one layer; otherwise the oracle (without defects) computes
    /// it.
    fn attention(&self, b: &Oracle, call: &mut OracleCall<'_, '_>) -> Result<(), OpError> {
        let Call::Attention {
            batch,
            desc,
            subset,
            q,
            k,
            v,
            out,
            ..
        } = call
        else {
            return call.run(b);
        };
        let plan = b.plan(batch).clone();
        let past = &mut *lock(&self.past);
        let ([run], [layout]) = (plan.runs(), &past.layers[..]) else {
            call.run(b)?;
            return self.among_others(b, call);
        };
        let (width, end) = (b.width(k), run.first + run.rows);
        for (stored, from) in [(&mut past.k, all(k)), (&mut past.v, all(v))] {
            let old = stored.len();
            stored.resize(old.max(end * width), 0.0);
            for (i, &x) in from[..run.rows * width].iter().enumerate() {
                let at = run.first * width + i;
                if self.defect == Defect::StaleAfterRewind && at < old {
                    continue;
                }
                stored[at] = match self.defect {
                    Defect::SaturatedHalf => x.clamp(-65504.0, 65504.0),
                    Defect::OneHeadGroup => from[i / width * width + i % layout.head_dim],
                    _ => x,
                };
            }
        }
        if self.defect == Defect::ShortRing && layout.window.is_some() {
            let newest = (past.k.len() / width).div_ceil(64) - 1;
            let forgotten = (newest + 2).saturating_sub(layout.chunks()) * 64 * width;
            let forgotten = forgotten.min(past.k.len());
            past.k[..forgotten].fill(0.0);
            past.v[..forgotten].fill(0.0);
        }
        let mut desc = **desc;
        match (self.defect, desc.window) {
            (Defect::IgnoresWindow, _) => desc.window = None,
            (Defect::ShiftedWindow, Some(w)) => desc.window = Some(w + 1),
            _ => {}
        }
        // Runs the oracle too, so that its cache stores the positions; its output is
        // not used.
        let mut unread = b.buffer(plan.count(*subset) + 1, b.width(q))?;
        b.attention(batch, 0, &desc, *subset, q, k, v, &mut unread)?;
        let (queries, mut values, q_width) = (all(q), all(out), b.width(q));
        for r in 0..plan.count(*subset) {
            let p = plan.position(*subset, r);
            // The chunks of attention begin at the first visible position with the
            // defect, at 0 without.
            let (from, desc) = match (self.defect, desc.window) {
                (Defect::ChunksFromFirst, Some(_)) => {
                    let window = None;
                    (desc.first_visible(p), Attention { window, ..desc })
                }
                _ => (0, desc),
            };
            let kv = |x: &[f32]| x[from * width..(p + 1) * width].to_vec();
            let q = &queries[r * q_width..][..q_width];
            let row = alone(&desc, p - from, q, &kv(&past.k), &kv(&past.v))?;
            values[r * q_width..][..q_width].copy_from_slice(&row);
        }
        set(out, &values);
        Ok(())
    }

    /// Replaces the last sequence's first row of computed attention by the first
    /// sequence's, if that is the planted defect and the batch has several sequences.
    fn among_others(&self, b: &Oracle, call: &mut OracleCall<'_, '_>) -> Result<(), OpError> {
        let Call::Attention {
            batch, subset, out, ..
        } = call
        else {
            return Ok(());
        };
        let spans: Vec<_> = b.plan(batch).spans(*subset).collect();
        let read: Vec<_> = spans.iter().filter(|s| s.rows > 0).collect();
        if let (Defect::OtherSequence, [first, .., last]) = (self.defect, &read[..]) {
            let (width, mut x) = (b.width(out), all(out));
            let row = x[first.at * width..][..width].to_vec();
            x[last.at * width..][..width].copy_from_slice(&row);
            set(out, &x);
        }
        Ok(())
    }
}

/// Computes, with the oracle, the attention of one query at position `p` of a sequence
/// that has these K and V.
fn alone(desc: &Attention, p: usize, q: &[f32], k: &[f32], v: &[f32]) -> Result<Vec<f32>, OpError> {
    let layout = KvLayout {
        kv_heads: desc.kv_heads,
        head_dim: desc.head_dim,
        window: desc.window,
        context: p + 1,
        max_batch: p + 1,
    };
    let run = Run {
        first: 0,
        rows: p + 1,
        keep: 1,
    };
    let mut kv = Oracle.kv(&[layout]);
    let mut batch = Oracle.batch(Plan::new(vec![0; p + 1], vec![run])?, vec![&mut kv])?;
    let buffer = |values: &[f32], rows: usize| {
        let mut buffer = Oracle.buffer(rows, values.len() / rows)?;
        Oracle.write(&mut buffer, values)?;
        Ok::<_, OpError>(buffer)
    };
    let (q, mut out) = (buffer(q, 1)?, Oracle.buffer(1, q.len())?);
    let (k, v) = (buffer(k, p + 1)?, buffer(v, p + 1)?);
    Oracle.attention(&mut batch, 0, desc, Subset::Kept, &q, &k, &v, &mut out)?;
    Ok(Oracle.read(&out, 1)?.into_owned())
}

//! [`Cpu`]: the operations over buffers in host memory.
//!
//! Each method checks shapes, cuts the work, and calls the kernels of the
//! table. Small work is not cut: handing a task to another thread costs more
//! than a few microseconds of it.

mod attention;
mod pinned;
mod project;
mod rope;

use self::pinned::TASK_CALLS;
pub use self::rope::Rope;
use crate::buffer::Buffer;
use crate::kernels::quantize::{Block, Groups};
use crate::kernels::table::KernelTable;
use crate::kv::{Kv, Pool};
use crate::ladder;
use crate::level::Level;
use crate::roofline::{bandwidth, int8_peak};
use crate::rows::{Output, for_chunks};
use crate::team::{MAX_THREADS, Team};
use muser_ops::pinned::check_head;
use muser_ops::{
    Attention, Backend, BackendInfo, Choice, KvLayout, Lane, Matrix, MatrixInfo, OpError, Plan,
    Profile, RopeSpec, Subset, Weight, check_set, embed,
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of weights in one task of a projection: long enough that the stream
/// of a task is worth its start, short enough that a thread which falls behind
/// holds the others up, at the end of a dispatch, for microseconds only.
const TASK_BYTES: usize = 128 << 10;
/// Values of an elementwise operation in one task.
const TASK_VALUES: usize = 8 << 10;

/// How to open the CPU backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads; `None` takes the physical cores that the machine gives this
    /// process.
    pub threads: Option<usize>,
    /// The level; `None` takes the best one.
    pub level: Option<Level>,
    /// The arithmetic.
    pub lane: Lane,
    /// The most bytes that the KV caches of all sequences take together; `None`
    /// sets no bound.
    pub kv_bytes: Option<u64>,
}

/// Why the CPU backend did not open.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The machine lacks the level.
    #[error("level {level} needs {}, which this machine lacks (it has {})",
        missing.join(", "),
        Level::available().iter().map(|l| l.name()).collect::<Vec<_>>().join(", "))]
    Level {
        /// The level asked for.
        level: Level,
        /// Features that it needs and the machine lacks.
        missing: Vec<&'static str>,
    },
    /// The pinned lane on a platform whose math library is another one.
    #[error("lane {0}: its bits need glibc on x86-64, for which this build is not made")]
    Lane(Lane),
    /// A thread count out of range.
    #[error("threads: expected 1 to {MAX_THREADS}, found {0}")]
    Threads(usize),
    /// The threads could not be started.
    #[error("could not start {threads} threads")]
    Start {
        /// Threads asked for.
        threads: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// The CPU backend.
pub struct Cpu {
    table: KernelTable,
    lane: Lane,
    threads: usize,
    /// The pages of all sequences' caches.
    pool: Arc<Pool>,
    /// One dispatch at a time: the team, and the room for quantised inputs.
    shared: Mutex<Shared>,
}

/// A plan, and the caches of its sequences with the pages that it writes.
#[derive(Debug)]
pub struct Batch<'kv> {
    plan: Plan,
    kv: Vec<&'kv mut Kv>,
}

struct Shared {
    team: Team,
    operands: Operands,
}

/// Room for what an operation makes of its input; rewritten by each.
#[derive(Default)]
struct Operands {
    /// Activations in blocks of 256.
    quantized: Vec<Block>,
    /// Activations in groups of 32.
    groups: Vec<Groups>,
    /// Activations rounded to F16, and to BF16.
    rounded: [Vec<f32>; 2],
    /// Attention's result by head and row.
    by_head: Vec<f32>,
    /// Attention's parts by row, KV head and chunk.
    parts: Vec<f32>,
}

impl Cpu {
    /// Opens the backend: picks the level, starts the threads.
    pub fn open(options: CpuOptions) -> Result<Self, CpuError> {
        let level = options.level.unwrap_or_else(Level::best);
        let table = KernelTable::new(level).ok_or_else(|| CpuError::Level {
            level,
            missing: level.missing(),
        })?;
        if options.lane.profile().is_some() && !Profile::is_supported() {
            return Err(CpuError::Lane(options.lane));
        }
        let threads = options
            .threads
            .unwrap_or_else(|| crate::threads::default().min(MAX_THREADS));
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(CpuError::Threads(threads));
        }
        let team = Team::new(threads).map_err(|source| CpuError::Start { threads, source })?;
        let shared = Mutex::new(Shared {
            team,
            operands: Operands::default(),
        });
        Ok(Self {
            table,
            lane: options.lane,
            threads,
            pool: Pool::new(options.kv_bytes),
            shared,
        })
    }

    /// The level of the kernels.
    pub fn level(&self) -> Level {
        self.table.level()
    }

    /// The names of the kernels: `matvec/q4_k/avx512`, …
    pub fn kernels(&self) -> Vec<String> {
        let names = self.table.inventory().into_iter();
        names
            .map(|name| format!("{name}/{}", self.level()))
            .collect()
    }

    /// Bytes of K and V that the caches of all sequences hold.
    pub fn kv_bytes(&self) -> u64 {
        self.pool.used()
    }

    /// Refuses a weight whose format the lane has no kernel for.
    fn check_covered(&self, weight: &Weight) -> Result<(), OpError> {
        if ladder::covers(self.lane, weight.dtype()) {
            return Ok(());
        }
        Err(OpError::Format {
            name: weight.name().to_owned(),
            dtype: weight.dtype(),
            lane: self.lane,
        })
    }

    /// The same backend, with every call of a kernel counted from here on. For
    /// tests: counting takes a lock.
    pub fn counting(mut self) -> Self {
        self.table.count_calls();
        self
    }

    /// The calls of each kernel so far, by its name without the level; `None` if
    /// they are not counted ([`counting`](Self::counting)).
    pub fn calls(&self) -> Option<BTreeMap<&'static str, u64>> {
        self.table.calls()
    }

    /// Bytes a second at which this backend's threads read a buffer of `bytes`,
    /// the best of several passes. Takes several times the last-level cache to
    /// measure memory and not the cache.
    pub fn read_bandwidth(&self, bytes: usize) -> f64 {
        bandwidth::measure(&mut self.lock().team, &self.table, bytes)
    }

    /// Int8 operations a second, two a multiply-add, that this backend's
    /// threads reach with operands in registers, the best of several passes;
    /// `None` at a level without int8 dot products.
    pub fn int8_peak(&self) -> Option<f64> {
        int8_peak::measure(&mut self.lock().team, self.threads, &self.table)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic in a task leaves team and room usable: the team ends its job
        // before it raises, and the room is rewritten by each use.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows of a matrix in one task: about [`TASK_BYTES`], whole blocks of 16
    /// rows, or of 32 where kernels compute as many side by side (with one input
    /// none does, and longer tasks cost it a fiftieth), and no more than a fair
    /// share where a matrix is small.
    fn tile_rows(&self, w: &Weight, inputs: usize) -> usize {
        let by_bytes = TASK_BYTES / w.row_bytes();
        let fair = w.rows().div_ceil(4 * self.threads);
        let block = if inputs == 1 { 16 } else { 32 };
        by_bytes.min(fair).max(1).next_multiple_of(block)
    }
}

/// The work of an elementwise operation on two buffers of one shape.
fn pairs<'a>(
    op: &'static str,
    rows: usize,
    x: &'a mut Buffer,
    y: &'a Buffer,
) -> Result<(&'a mut [f32], &'a [f32]), OpError> {
    let width = x.width();
    Ok((x.rows_mut(op, rows, width)?, y.rows(op, rows, width)?))
}

impl Backend for Cpu {
    type Buffer = Buffer;
    type Set = Vec<Weight>;
    type Table = Weight;
    type Vector = Vec<f32>;
    type Rope = Rope;
    type Kv = Kv;
    type Batch<'kv> = Batch<'kv>;

    fn info(&self) -> BackendInfo {
        let level = self.level().to_string();
        BackendInfo {
            name: "cpu",
            lane: self.lane,
            level,
            threads: self.threads,
        }
    }

    fn bind_set(&self, set: Vec<Matrix>) -> Result<Vec<Weight>, OpError> {
        let set = set.into_iter().map(Matrix::without_bias);
        let set = set.collect::<Result<Vec<_>, _>>()?;
        set.iter().try_for_each(|w| self.check_covered(w))?;
        check_set(&set)?;
        Ok(set)
    }

    fn bind_table(&self, table: Weight) -> Result<Weight, OpError> {
        self.check_covered(&table)?;
        Ok(table)
    }

    fn bind_vector(&self, values: Vec<f32>) -> Result<Vec<f32>, OpError> {
        Ok(values)
    }

    fn bind_rope(&self, rope: RopeSpec) -> Result<Rope, OpError> {
        Rope::new(self.lane, rope)
    }

    fn matrices(&self, set: &Vec<Weight>) -> Vec<MatrixInfo> {
        set.iter().map(Weight::info).collect()
    }

    fn table(&self, table: &Weight) -> MatrixInfo {
        table.info()
    }

    fn vector_len(&self, vector: &Vec<f32>) -> usize {
        vector.len()
    }

    fn width(&self, buffer: &Buffer) -> usize {
        buffer.width()
    }

    fn plan<'a>(&self, batch: &'a Batch<'_>) -> &'a Plan {
        &batch.plan
    }

    fn buffer(&self, rows: usize, width: usize) -> Result<Buffer, OpError> {
        Buffer::new(rows, width)
    }

    fn write(&self, buffer: &mut Buffer, values: &[f32]) -> Result<(), OpError> {
        let room = buffer.values_mut();
        OpError::check_room("write", "values in the buffer", values.len(), room.len())?;
        room[..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn read<'a>(&self, buffer: &'a Buffer, rows: usize) -> Result<Cow<'a, [f32]>, OpError> {
        Ok(Cow::Borrowed(buffer.rows("read", rows, buffer.width())?))
    }

    fn choose(
        &self,
        logits: &Buffer,
        choices: &mut [(usize, &mut Choice<'_>)],
    ) -> Result<(), OpError> {
        let (rows, width) = (choices.iter().map(|(row, _)| row + 1).max(), logits.width());
        let logits = logits.rows("choose", rows.unwrap_or(0), width)?;
        // With a large vocabulary a choice takes milliseconds: one is one task.
        for_chunks(&mut self.lock().team, choices, 1, |_, chosen| {
            for (row, choice) in chosen {
                choice.choose(&logits[*row * width..][..width]);
            }
        });
        Ok(())
    }

    fn kv(&self, layers: &[KvLayout]) -> Kv {
        Kv::new(layers, Arc::clone(&self.pool))
    }

    fn batch<'kv>(&self, plan: Plan, mut kv: Vec<&'kv mut Kv>) -> Result<Batch<'kv>, OpError> {
        OpError::check("batch", "caches", plan.runs().len(), kv.len())?;
        for (run, kv) in plan.runs().iter().zip(&mut kv) {
            kv.prepare(run)?;
        }
        Ok(Batch { plan, kv })
    }

    fn copy_rows(
        &self,
        rows: usize,
        src: &Buffer,
        from: usize,
        dst: &mut Buffer,
        to: usize,
    ) -> Result<(), OpError> {
        let width = src.width();
        let src = &src.rows("copy_rows", from + rows, width)?[from * width..];
        dst.rows_mut("copy_rows", to + rows, width)?[to * width..].copy_from_slice(src);
        Ok(())
    }

    fn gather(&self, batch: &Batch<'_>, src: &Buffer, dst: &mut Buffer) -> Result<(), OpError> {
        let (plan, width) = (&batch.plan, src.width());
        let src = src.rows("gather", plan.count(Subset::All), width)?;
        let dst = dst.rows_mut("gather", plan.count(Subset::Kept), width)?;
        for (to, &from) in dst.chunks_exact_mut(width).zip(plan.kept()) {
            to.copy_from_slice(&src[from * width..][..width]);
        }
        Ok(())
    }

    fn embed(&self, batch: &Batch<'_>, table: &Weight, out: &mut Buffer) -> Result<(), OpError> {
        let (tokens, vocab) = (batch.plan.tokens(), table.rows());
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(OpError::Token { token, vocab });
        }
        let out = out.rows_mut("embed", tokens.len(), table.cols())?;
        // One row a token, decoded by the format's own code: 0.1 % of a token's
        // time at decode, and shared by the team in a batch.
        for_chunks(&mut self.lock().team, out, table.cols(), |r, out| {
            embed::embed(table, tokens[r], out).expect("token and width are checked above");
        });
        Ok(())
    }

    fn project(
        &self,
        rows: usize,
        set: &Vec<Weight>,
        which: Range<usize>,
        x: &Buffer,
        out: &mut [&mut Buffer],
    ) -> Result<(), OpError> {
        OpError::check_room("project", "matrices in the set", which.end, set.len())?;
        let set = set.get(which).unwrap_or_default();
        OpError::check("project", "outputs in the set", set.len(), out.len())?;
        let (Some(first), true) = (set.first(), rows > 0) else {
            return Ok(());
        };
        let x = x.rows("project", rows, first.cols())?;
        let mut outputs = Vec::with_capacity(set.len());
        for (w, out) in set.iter().zip(out) {
            let values = out.rows_mut("project", rows, w.rows())?;
            outputs.push(Output {
                values,
                width: w.rows(),
                tile: self.tile_rows(w, rows),
            });
        }
        self.project_set(rows, set, x, &mut outputs);
        Ok(())
    }

    fn rms_norm(
        &self,
        rows: usize,
        x: &Buffer,
        weight: Option<&Vec<f32>>,
        eps: f32,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let width = weight.map_or(x.width(), Vec::len);
        let x = x.rows("rms_norm", rows, width)?;
        let out = out.rows_mut("rms_norm", rows, width)?;
        for_chunks(&mut self.lock().team, out, width, |r, out| {
            let (x, weight) = (&x[r * width..][..width], weight.map(Vec::as_slice));
            match self.lane {
                Lane::Pinned(_) => self.table.rms_norm_pinned(x, weight, eps, out),
                Lane::Strict => self.table.rms_norm(x, weight, eps, out),
            }
        });
        Ok(())
    }

    fn head_norm(
        &self,
        rows: usize,
        x: &mut Buffer,
        weight: &Vec<f32>,
        eps: f32,
    ) -> Result<(), OpError> {
        let width = x.width();
        OpError::check(
            "head_norm",
            "values past whole heads",
            0,
            width % weight.len().max(1),
        )?;
        let x = x.rows_mut("head_norm", rows, width)?;
        for_chunks(&mut self.lock().team, x, width, |_, x| match self.lane {
            Lane::Pinned(_) => self.table.head_norm_pinned(x, weight, eps),
            Lane::Strict => self.table.head_norm(x, weight, eps),
        });
        Ok(())
    }

    fn add_rms_norm(
        &self,
        rows: usize,
        x: &mut Buffer,
        y: &Buffer,
        weight: &Vec<f32>,
        eps: f32,
    ) -> Result<(), OpError> {
        let width = weight.len();
        let x = x.rows_mut("add_rms_norm", rows, width)?;
        let y = y.rows("add_rms_norm", rows, width)?;
        for_chunks(&mut self.lock().team, x, width, |r, x| {
            let y = &y[r * width..][..width];
            match self.lane {
                Lane::Pinned(_) => self.table.add_rms_norm_pinned(x, y, weight, eps),
                Lane::Strict => self.table.add_rms_norm(x, y, weight, eps),
            }
        });
        Ok(())
    }

    fn add(&self, rows: usize, x: &mut Buffer, y: &Buffer) -> Result<(), OpError> {
        let (x, y) = pairs("add", rows, x, y)?;
        for_chunks(&mut self.lock().team, x, TASK_VALUES, |i, x| {
            muser_ops::elementwise::add(x, &y[i * TASK_VALUES..]);
        });
        Ok(())
    }

    fn rope(
        &self,
        batch: &Batch<'_>,
        subset: Subset,
        rope: &Rope,
        x: &mut Buffer,
    ) -> Result<(), OpError> {
        self.rotate(&batch.plan, subset, rope, x)
    }

    fn attention(
        &self,
        batch: &mut Batch<'_>,
        layer: usize,
        desc: &Attention,
        subset: Subset,
        q: &Buffer,
        k: &Buffer,
        v: &Buffer,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let (heads, d) = (desc.heads, desc.head_dim);
        let group = heads / desc.kv_heads.max(1);
        OpError::check("attention", "heads", group * desc.kv_heads, heads)?;
        for kv in &batch.kv {
            let layout = kv.layer(layer)?.layout();
            OpError::check("attention", "KV heads", layout.kv_heads, desc.kv_heads)?;
            OpError::check("attention", "head size", layout.head_dim, d)?;
        }
        let (all, rows) = (batch.plan.count(Subset::All), batch.plan.count(subset));
        let k = k.rows("attention", all, desc.kv_heads * d)?;
        let v = v.rows("attention", all, desc.kv_heads * d)?;
        let q = q.rows("attention", rows, heads * d)?;
        let out = out.rows_mut("attention", rows, heads * d)?;
        match self.lane {
            Lane::Strict => {
                self.store(batch, layer, desc, k, v)?;
                self.attention_strict(batch, layer, desc, subset, q, out)
            }
            Lane::Pinned(profile) => {
                check_head("attention", d)?;
                self.store(batch, layer, desc, k, v)?;
                for span in batch.plan.spans(subset).filter(|span| span.rows > 0) {
                    let pages = batch.kv[span.sequence].layer(layer)?;
                    let at = span.at * heads * d..(span.at + span.rows) * heads * d;
                    let (q, out) = (&q[at.clone()], &mut out[at]);
                    self.attention_pinned(profile, desc, span.first, q, pages, out);
                }
                Ok(())
            }
        }
    }

    fn sigmoid_gate(&self, rows: usize, x: &mut Buffer, gate: &Buffer) -> Result<(), OpError> {
        let (x, gate) = pairs("sigmoid_gate", rows, x, gate)?;
        if self.lane.profile().is_some() {
            for_chunks(&mut self.lock().team, x, TASK_CALLS, |i, x| {
                self.table.sigmoid_gate_pinned(x, &gate[i * TASK_CALLS..]);
            });
            return Ok(());
        }
        for_chunks(&mut self.lock().team, x, TASK_VALUES, |i, x| {
            self.table
                .sigmoid_gate(x, &gate[i * TASK_VALUES..][..x.len()]);
        });
        Ok(())
    }

    fn silu_product(&self, rows: usize, gate: &mut Buffer, up: &Buffer) -> Result<(), OpError> {
        let width = gate.width();
        let (gate, up) = pairs("silu_product", rows, gate, up)?;
        if let Some(profile) = self.lane.profile() {
            self.silu_product_pinned(profile, width, gate, up);
            return Ok(());
        }
        for_chunks(&mut self.lock().team, gate, TASK_VALUES, |i, gate| {
            self.table
                .silu_product(gate, &up[i * TASK_VALUES..][..gate.len()]);
        });
        Ok(())
    }

    fn soft_cap(
        &self,
        rows: usize,
        x: &mut Buffer,
        scale: f32,
        cap: Option<f32>,
    ) -> Result<(), OpError> {
        let width = x.width();
        let x = x.rows_mut("soft_cap", rows, width)?;
        if self.lane.profile().is_some() {
            for_chunks(&mut self.lock().team, x, TASK_CALLS, |_, x| {
                self.table.soft_cap_pinned(x, scale, cap)
            });
            return Ok(());
        }
        for_chunks(&mut self.lock().team, x, TASK_VALUES, |_, x| {
            self.table.soft_cap(x, scale, cap)
        });
        Ok(())
    }
}

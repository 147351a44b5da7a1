//! The CPU backend, [`Cpu`]: computes the operations of a model's forward pass on the
//! CPU.
//!
//! Each method checks shapes, cuts the work into tasks, and calls kernels of the kernel
//! table. Work of a few microseconds is not cut, because giving it to another thread
//! would cost more.

mod attention;
mod pinned;
mod project;
mod rope;

use self::pinned::TASK_CALLS;
pub use self::rope::Rope;
use crate::buffer::Buffer;
use crate::kernels::quantize::{Block, Groups};
use crate::kernels::table::KernelTable;
use crate::kv::{self, Kv, Pool};
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

/// The number of bytes of weights in one task of a projection (matrix product). Large
/// enough that starting a task's memory stream costs little; small enough that at the
/// end of a dispatch the other threads wait only microseconds for one that has fallen
/// behind.
const TASK_BYTES: usize = 128 << 10;
/// The number of f32 values in one task of an elementwise operation.
const TASK_VALUES: usize = 8 << 10;

/// The options with which [`Cpu::open`] opens the CPU backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// The number of threads that compute; `None` takes the physical cores that this
    /// process may use.
    pub threads: Option<usize>,
    /// The instruction-set level of the kernels (scalar, avx2, avx512); `None` takes the
    /// best one that the machine has.
    pub level: Option<Level>,
    /// The lane: the arithmetic to compute, strict (muser's own) or pinned (llama.cpp's).
    pub lane: Lane,
    /// The largest number of bytes that the KV caches of all sequences may take
    /// together; `None` sets no limit.
    pub kv_bytes: Option<u64>,
}

/// Why the CPU backend could not be opened by [`Cpu::open`].
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The machine lacks a CPU feature of the instruction-set level that was asked for.
    #[error("level {level} needs {}, which this machine lacks (it has {})",
        missing.join(", "),
        Level::available().iter().map(|l| l.name()).collect::<Vec<_>>().join(", "))]
    Level {
        /// The instruction-set level that was asked for.
        level: Level,
        /// The CPU features of the instruction-set level that the machine lacks.
        missing: Vec<&'static str>,
    },
    /// The pinned lane (llama.cpp's arithmetic) was asked for on a platform without glibc
    /// on x86-64.
    #[error("lane {0}: its bits need glibc on x86-64, for which this build is not made")]
    Lane(Lane),
    /// The number of threads that was asked for is out of range.
    #[error("threads: expected 1 to {MAX_THREADS}, found {0}")]
    Threads(usize),
    /// The system could not start the backend's threads.
    #[error("could not start {threads} threads")]
    Start {
        /// The number of threads that could not be started.
        threads: usize,
        /// The system's error from starting a thread.
        source: std::io::Error,
    },
}

/// The CPU backend: kernels of one instruction-set level for one lane (strict or pinned
/// arithmetic), and a team of threads.
pub struct Cpu {
    table: KernelTable,
    lane: Lane,
    threads: usize,
    /// The pool of all sequences' KV cache pages: counts their bytes, and limits them.
    pool: Arc<Pool>,
    /// The thread team and the memory for intermediate values. The lock lets one
    /// operation at a time use the threads.
    shared: Mutex<Shared>,
}

/// A batch: the tokens of one forward pass with their positions and sequences, and the
/// KV caches of these sequences, in which the pages to be written are already
/// allocated.
#[derive(Debug)]
pub struct Batch<'kv> {
    plan: Plan,
    kv: Vec<&'kv mut Kv>,
}

struct Shared {
    team: Team,
    operands: Operands,
}

/// Memory for the intermediate values of an operation, overwritten by the next one.
#[derive(Default)]
struct Operands {
    /// The activations (input) of the current matrix product, quantised in blocks of
    /// 256.
    quantized: Vec<Block>,
    /// The activations (input) of the current matrix product, quantised in groups of
    /// 32.
    groups: Vec<Groups>,
    /// The activations (input) of the current matrix product with float weights: one
    /// copy rounded to F16, and one to BF16.
    rounded: [Vec<f32>; 2],
    /// The results of attention in tiles of queries in the pinned lane (llama.cpp's
    /// arithmetic), ordered by head, then by row.
    by_head: Vec<f32>,
    /// The partial results of attention cut by chunks (64 cached positions) in the
    /// strict lane (muser's own arithmetic), ordered by row, KV head and chunk.
    parts: Vec<f32>,
}

impl Cpu {
    /// Opens the CPU backend: picks the instruction-set level and starts the threads.
    ///
    /// # Errors
    /// The machine lacks the level or the lane's math library, the number of threads is
    /// out of range, or a thread could not be started.
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

    /// Returns the instruction-set level of the backend's kernels: scalar, avx2 or
    /// avx512.
    pub fn level(&self) -> Level {
        self.table.level()
    }

    /// Returns the names of all kernels of the CPU backend, with their instruction-set
    /// level: `matvec/q4_k/avx512`, …
    pub fn kernels(&self) -> Vec<String> {
        let names = self.table.inventory().into_iter();
        names
            .map(|name| format!("{name}/{}", self.level()))
            .collect()
    }

    /// Returns the number of bytes in the KV cache pages of all sequences.
    pub fn kv_bytes(&self) -> u64 {
        self.pool.used()
    }

    /// Returns an error if the backend's lane (strict or pinned arithmetic) has no
    /// kernel for the weight's format.
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

    /// Makes the CPU backend count the calls of its kernels, and returns it. For tests:
    /// each count takes a lock.
    pub fn counting(mut self) -> Self {
        self.table.count_calls();
        self
    }

    /// Returns the number of calls of each kernel so far, by its name without the
    /// instruction-set level; `None` unless the backend is [`counting`](Self::counting)
    /// them.
    pub fn calls(&self) -> Option<BTreeMap<&'static str, u64>> {
        self.table.calls()
    }

    /// Measures the bandwidth, in bytes a second, at which the CPU backend's threads read
    /// a buffer of `bytes` bytes: the best of several passes. To measure the memory and
    /// not a cache, the buffer must be several times the last-level cache
    /// ([`beyond_caches`](crate::beyond_caches)).
    pub fn read_bandwidth(&self, bytes: usize) -> f64 {
        bandwidth::measure(&mut self.lock().team, &self.table, bytes)
    }

    /// Measures the int8 operations a second that the CPU backend's threads reach with
    /// operands in registers: the best of several passes. A multiply-add is two
    /// operations. Returns `None` at an instruction-set level without int8 dot products.
    pub fn int8_peak(&self) -> Option<f64> {
        int8_peak::measure(&mut self.lock().team, self.threads, &self.table)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic in a task leaves the team and the intermediate values usable: the team
        // ends its job before it raises the panic, and each operation overwrites the
        // intermediate values.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of rows of a weight matrix that one task multiplies: about
    /// [`TASK_BYTES`] of weights, but at most a quarter of a thread's fair share,
    /// rounded up to whole blocks. A block is 32 rows, the most that a kernel computes
    /// side by side. For a single input vector, a block is 16 rows: no kernel uses 32
    /// there, and longer tasks are 2 % slower.
    fn tile_rows(&self, w: &Weight, inputs: usize) -> usize {
        let by_bytes = TASK_BYTES / w.row_bytes();
        let fair = w.rows().div_ceil(4 * self.threads);
        let block = if inputs == 1 { 16 } else { 32 };
        by_bytes.min(fair).max(1).next_multiple_of(block)
    }
}

/// Returns the first `rows` rows of both operands of an elementwise operation, after a
/// check that their widths are equal.
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
        // Choosing a token from a large vocabulary takes milliseconds, so each choice is
        // a task.
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
        kv::prepare(plan.runs(), &mut kv)?;
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
        // Rows are decoded by the scalar code of the format: 0.1 % of a token's time at
        // decode; in a batch the team shares them.
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

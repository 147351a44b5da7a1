//! [`Cpu`]: the operations over buffers in host memory.
//!
//! Each method checks shapes, cuts the work, and calls the kernels of the
//! table. Small work is not cut: handing a task to another thread costs more
//! than a few microseconds of it.

mod attention;
mod pinned;
mod project;

use self::pinned::TASK_CALLS;
use crate::buffer::Buffer;
use crate::kernels::quantize::{Block, Groups};
use crate::kernels::table::KernelTable;
use crate::kv::Kv;
use crate::ladder;
use crate::level::Level;
use crate::roofline::{bandwidth, int8_peak};
use crate::rows::{Output, for_chunks};
use crate::team::{MAX_THREADS, Team};
use muser_ops::pinned::check_head;
use muser_ops::{
    Attention, Backend, BackendInfo, KvLayout, Lane, OpError, Profile, RopeTable, Weight, embed,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    /// One dispatch at a time: the team, and the room for quantised inputs.
    shared: Mutex<Shared>,
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
    type Weight = Weight;
    type Vector = Vec<f32>;
    type Kv = Kv;

    fn info(&self) -> BackendInfo {
        let level = self.level().to_string();
        BackendInfo {
            name: "cpu",
            lane: self.lane,
            level,
            threads: self.threads,
        }
    }

    fn bind(&self, weight: Weight) -> Result<Weight, OpError> {
        if ladder::covers(self.lane, weight.dtype()) {
            return Ok(weight);
        }
        Err(OpError::Format {
            name: weight.name().to_owned(),
            dtype: weight.dtype(),
            lane: self.lane,
        })
    }

    fn bind_vector(&self, values: Vec<f32>) -> Vec<f32> {
        values
    }

    fn buffer(&self, rows: usize, width: usize) -> Buffer {
        Buffer::new(rows, width)
    }

    fn write(&self, buffer: &mut Buffer, values: &[f32]) -> Result<(), OpError> {
        let room = buffer.values_mut();
        OpError::check_room("write", "values in the buffer", values.len(), room.len())?;
        room[..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn read(&self, buffer: &Buffer, out: &mut [f32]) -> Result<(), OpError> {
        let values = buffer.values();
        OpError::check_room("read", "values in the buffer", out.len(), values.len())?;
        out.copy_from_slice(&values[..out.len()]);
        Ok(())
    }

    fn view<'a>(&self, buffer: &'a Buffer) -> Option<&'a [f32]> {
        Some(buffer.values())
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

    fn kv(&self, layout: KvLayout) -> Kv {
        Kv::new(layout)
    }

    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut Buffer) -> Result<(), OpError> {
        let vocab = table.rows();
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
        set: &[&Weight],
        x: &Buffer,
        out: &mut [&mut Buffer],
    ) -> Result<(), OpError> {
        OpError::check("project", "outputs in the set", set.len(), out.len())?;
        let (Some(first), true) = (set.first(), rows > 0) else {
            return Ok(());
        };
        let cols = first.cols();
        let x = x.rows("project", rows, cols)?;
        let mut outputs = Vec::with_capacity(set.len());
        for (w, out) in set.iter().zip(out) {
            OpError::check("project", "columns in the set", cols, w.cols())?;
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

    fn rope(&self, rows: usize, x: &mut Buffer, table: &RopeTable) -> Result<(), OpError> {
        let width = x.width();
        if self.lane.profile().is_some() {
            Self::check_rope_pinned(table)?;
        }
        let head = (2 * table.pairs()).max(1);
        OpError::check("rope", "values past whole heads", 0, width % head)?;
        OpError::check_room("rope", "positions in the table", rows, table.rows())?;
        let x = x.rows_mut("rope", rows, width)?;
        for_chunks(&mut self.lock().team, x, width, |r, x| {
            let (cos, sin) = table.row(r);
            match self.lane {
                Lane::Pinned(_) => self.table.rope_pinned(x, cos, sin),
                Lane::Strict => self.table.rope(x, cos, sin),
            }
        });
        Ok(())
    }

    fn kv_store(
        &self,
        kv: &mut Kv,
        first: usize,
        rows: usize,
        k: &Buffer,
        v: &Buffer,
    ) -> Result<(), OpError> {
        let (heads, d) = (kv.layout().kv_heads, kv.layout().head_dim);
        let k = k.rows("kv_store", rows, heads * d)?;
        let v = v.rows("kv_store", rows, heads * d)?;
        for r in 0..rows {
            for head in 0..heads {
                let at = r * heads * d + head * d;
                let position = first + r;
                let (k_chunk, v_row) = kv.slot_mut(position, head)?;
                let slot = position % muser_ops::attention::CHUNK;
                self.table
                    .kv_store(&k[at..][..d], &v[at..][..d], slot, k_chunk, v_row);
            }
        }
        Ok(())
    }

    fn attention(
        &self,
        desc: &Attention,
        first: usize,
        rows: usize,
        q: &Buffer,
        kv: &Kv,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let (heads, d) = (desc.heads, desc.head_dim);
        OpError::check("attention", "KV heads", kv.layout().kv_heads, desc.kv_heads)?;
        OpError::check("attention", "head size", kv.layout().head_dim, d)?;
        let group = heads / desc.kv_heads.max(1);
        OpError::check("attention", "heads", group * desc.kv_heads, heads)?;
        if rows == 0 {
            return Ok(());
        }
        if first + rows > kv.end() {
            return Err(OpError::Position {
                position: first + rows - 1,
                context: kv.end(),
            });
        }
        let q = q.rows("attention", rows, heads * d)?;
        let out = out.rows_mut("attention", rows, heads * d)?;
        if let Some(profile) = self.lane.profile() {
            check_head("attention", d)?;
            self.attention_pinned(profile, desc, first, q, kv, out);
            return Ok(());
        }
        self.attention_strict(desc, first, q, kv, out);
        Ok(())
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

//! The comparator's `bench` server (llama.cpp as a process): times calls of
//! `llama_decode` as muser times its own forward calls.
//!
//! It holds one model and one llama.cpp context, set up as llama.cpp's tools do: a
//! thread pool of its own, a ring buffer as the KV cache of sliding-window layers
//! unless `--swa-full`. The pool is paused between requests, so that the cores are free
//! for other measurements.

use std::ffi::{CString, c_char, c_void};
use std::io;
use std::ptr::NonNull;
use std::time::Instant;

use llama_cpp_sys_2 as sys;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ggml::text;
use crate::wire;

const USAGE: &str =
    "usage: muser-reference bench --model FILE [--context N] [--ubatch N] [--swa-full]";

/// Command-line options of the comparator's `bench` server, which times llama.cpp's
/// calls.
struct Options {
    model: String,
    context: u32,
    ubatch: u32,
    swa_full: bool,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let mut o = Self {
            model: String::new(),
            context: 512,
            ubatch: 512,
            swa_full: false,
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            if word == "--swa-full" {
                o.swa_full = true;
                continue;
            }
            let value = *words.next().ok_or_else(|| format!("{word}: {USAGE}"))?;
            let number = || match value.parse() {
                Ok(n) if n > 0 => Ok(n),
                _ => Err(format!("{word} {value}: expected a number from 1")),
            };
            match word {
                "--model" => value.clone_into(&mut o.model),
                "--context" => o.context = number()?,
                "--ubatch" => o.ubatch = number()?,
                _ => return Err(format!("{word}: {USAGE}")),
            }
        }
        match o.model.is_empty() {
            true => Err(USAGE.to_owned()),
            false => Ok(o),
        }
    }
}

/// A request to the comparator's `bench` server (llama.cpp as a process): either sets
/// the tokens or runs timed calls.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Request {
    Tokens(Tokens),
    Calls(Calls),
}

/// A request that sets the tokens that later calls process, and clears the KV cache.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tokens {
    tokens: Vec<i32>,
}

/// A request to time calls of `llama_decode`, the first one at a depth (a number of
/// positions stored before it).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Calls {
    /// Number of tokens in each call of `llama_decode`.
    width: usize,
    /// Number of positions in the KV cache before the first timed call.
    depth: usize,
    /// Number of successive `llama_decode` calls, each of which is timed.
    calls: usize,
    threads: i32,
    /// Whether an untimed warm-up call runs first, after which the KV cache is cut
    /// back.
    #[serde(default)]
    warm: bool,
}

unsafe extern "C" fn no_log(level: sys::ggml_log_level, line: *const c_char, _: *mut c_void) {
    if level == sys::GGML_LOG_LEVEL_ERROR {
        eprint!("{}", text(line));
    }
}

/// Loads the model into llama.cpp, then answers requests for timed calls, which come on
/// standard input, until its end.
///
/// # Errors
/// Bad options, a model or context that does not open, a stream that breaks; a
/// bad request is answered with its error.
pub(crate) fn serve(words: &[&str]) -> Result<(), String> {
    let options = Options::parse(words)?;
    // SAFETY: called once, before any other llama function of this process.
    unsafe {
        sys::llama_log_set(Some(no_log), std::ptr::null_mut());
        sys::llama_backend_init();
    }
    let mut output = io::stdout().lock();
    let (mut bench, ready) = Bench::open(&options)?;
    wire::reply(&mut output, &ready, &[])?;
    let mut input = io::stdin().lock();
    while let Some(line) = wire::line(&mut input)? {
        let result = serde_json::from_str(&line)
            .map_err(|e| format!("request: {e}"))
            .and_then(|r| bench.answer(r));
        let head = result.unwrap_or_else(|e| json!({ "ok": false, "error": e }));
        wire::reply(&mut output, &head, &[])?;
    }
    Ok(())
}

struct Model(NonNull<sys::llama_model>);

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: owned, freed once, after its context.
        unsafe { sys::llama_model_free(self.0.as_ptr()) }
    }
}

struct Session(NonNull<sys::llama_context>);

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { sys::llama_free(self.0.as_ptr()) }
    }
}

/// A ggml thread pool with the settings of llama.cpp's tools.
struct Pool {
    raw: NonNull<sys::ggml_threadpool>,
    threads: i32,
}

impl Pool {
    fn new(threads: i32) -> Result<Self, String> {
        // SAFETY: the parameters are llama.cpp's own and live through the call.
        let raw = unsafe {
            let mut params = sys::ggml_threadpool_params_default(threads);
            params.paused = true;
            sys::ggml_threadpool_new(&mut params)
        };
        NonNull::new(raw)
            .map(|raw| Self { raw, threads })
            .ok_or_else(|| format!("no pool of {threads} threads"))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: owned, freed once, after the context that it was attached to.
        unsafe { sys::ggml_threadpool_free(self.raw.as_ptr()) }
    }
}

/// The state of the comparator's `bench` server: a llama.cpp model, its context, and
/// thread pools. Fields are dropped in this order, as the context uses the pools and
/// the model.
struct Bench {
    session: Session,
    pools: Vec<Pool>,
    model: Model,
    context: usize,
    batch: usize,
    tokens: Vec<i32>,
    /// Number of positions stored in the KV cache.
    len: usize,
}

impl Bench {
    fn open(o: &Options) -> Result<(Self, Value), String> {
        let start = Instant::now();
        let path = CString::new(o.model.as_str()).map_err(|_| "the path holds a NUL")?;
        // SAFETY: the path is NUL-terminated and the parameters llama.cpp's own.
        let raw = unsafe {
            sys::llama_model_load_from_file(path.as_ptr(), sys::llama_model_default_params())
        };
        let model = NonNull::new(raw)
            .map(Model)
            .ok_or_else(|| format!("{}: llama.cpp could not load it", o.model))?;
        let load = start.elapsed().as_secs_f64();
        // SAFETY: takes nothing.
        let mut p = unsafe { sys::llama_context_default_params() };
        p.n_ctx = o.context;
        p.n_ubatch = o.ubatch;
        p.swa_full = o.swa_full;
        // SAFETY: the model is live and outlives the context.
        let raw = unsafe { sys::llama_init_from_model(model.0.as_ptr(), p) };
        let session = NonNull::new(raw)
            .map(Session)
            .ok_or_else(|| format!("no context of {} positions", o.context))?;
        // SAFETY: the context is live.
        let (context, batch, ubatch) = unsafe {
            (
                sys::llama_n_ctx(raw),
                sys::llama_n_batch(raw),
                sys::llama_n_ubatch(raw),
            )
        };
        let bench = Self {
            session,
            pools: Vec::new(),
            model,
            context: context as usize,
            batch: batch as usize,
            tokens: Vec::new(),
            len: 0,
        };
        let ready = json!({
            "ok": true,
            "load_s": load,
            "open_s": start.elapsed().as_secs_f64(),
            "params": {
                "n_ctx": context, "n_batch": batch, "n_ubatch": ubatch,
                "swa_full": o.swa_full, "flash_attn": "auto", "repack": true, "poll": 50,
            },
            "memory": memory(),
        });
        Ok((bench, ready))
    }

    fn answer(&mut self, request: Request) -> Result<Value, String> {
        match request {
            Request::Tokens(Tokens { tokens }) => {
                let vocab = self.vocab();
                let wrong = |&&t: &&i32| usize::try_from(t).map_or(true, |t| t >= vocab);
                if let Some(bad) = tokens.iter().find(wrong) {
                    return Err(format!("token {bad}: the vocabulary has {vocab}"));
                }
                self.tokens = tokens;
                self.clear();
                Ok(json!({ "ok": true }))
            }
            Request::Calls(c) => self.calls(&c),
        }
    }

    fn calls(&mut self, c: &Calls) -> Result<Value, String> {
        let end = c.width.checked_mul(c.calls);
        let end = end.and_then(|n| n.checked_add(c.depth));
        let room = self.tokens.len().min(self.context);
        if c.width == 0 || c.calls == 0 || end.is_none_or(|end| end > room) {
            return Err(format!("{c:?}: there is room for {room} positions"));
        }
        if c.width > self.batch {
            return Err(format!("width {}: n_batch is {}", c.width, self.batch));
        }
        let pool = self.attach(c.threads)?;
        let start = Instant::now();
        self.go_to(c.depth)?;
        let filled = start.elapsed().as_secs_f64();
        if c.warm {
            self.decode(c.width, true)?;
            self.go_to(c.depth)?;
        }
        let mut seconds = Vec::with_capacity(c.calls);
        for _ in 0..c.calls {
            seconds.push(self.decode(c.width, true)?);
        }
        // SAFETY: the pool lives as long as `self`.
        unsafe { sys::ggml_threadpool_pause(pool.as_ptr()) };
        Ok(json!({
            "ok": true,
            "seconds": seconds,
            "last": self.last_row()?,
            "fill_s": filled,
            "memory": memory(),
        }))
    }

    fn vocab(&self) -> usize {
        // SAFETY: the model is live.
        let n = unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(self.raw_model())) };
        usize::try_from(n).unwrap_or(0)
    }

    fn raw_model(&self) -> *const sys::llama_model {
        self.model.0.as_ptr()
    }

    /// Attaches a ggml pool of this many threads to the llama.cpp context, for the next
    /// calls.
    fn attach(&mut self, threads: i32) -> Result<NonNull<sys::ggml_threadpool>, String> {
        if !(1..=512).contains(&threads) {
            return Err(format!("threads {threads}: 1 to 512"));
        }
        let pool = match self.pools.iter().find(|p| p.threads == threads) {
            Some(pool) => pool.raw,
            None => {
                let pool = Pool::new(threads)?;
                let raw = pool.raw;
                self.pools.push(pool);
                raw
            }
        };
        let context = self.session.0.as_ptr();
        // SAFETY: context and pool are live; the pool is freed after the context.
        unsafe {
            sys::llama_attach_threadpool(context, pool.as_ptr(), pool.as_ptr());
            sys::llama_set_n_threads(context, threads, threads);
        }
        Ok(pool)
    }

    fn clear(&mut self) {
        // SAFETY: the context is live.
        unsafe {
            sys::llama_memory_clear(sys::llama_get_memory(self.session.0.as_ptr()), false);
        }
        self.len = 0;
    }

    /// Brings llama.cpp's KV cache to the first `depth` tokens: truncates it or stores
    /// more. Starts again from the first token if the ring buffer of a sliding-window
    /// layer no longer holds what position `depth` sees.
    fn go_to(&mut self, depth: usize) -> Result<(), String> {
        if self.len > depth {
            let at = i32::try_from(depth).map_err(|e| e.to_string())?;
            // SAFETY: context and model are live; sequence 0 is the only one.
            let (cut, oldest, window) = unsafe {
                let memory = sys::llama_get_memory(self.session.0.as_ptr());
                let cut = sys::llama_memory_seq_rm(memory, 0, at, -1);
                let oldest = sys::llama_memory_seq_pos_min(memory, 0);
                (cut, oldest, sys::llama_model_n_swa(self.raw_model()))
            };
            let needed = at.saturating_add(1).saturating_sub(window).max(0);
            match cut && (0..=needed).contains(&oldest) {
                true => self.len = depth,
                false => self.clear(),
            }
        }
        while self.len < depth {
            let n = self.batch.min(depth - self.len);
            self.decode(n, false)?;
        }
        Ok(())
    }

    /// Runs one `llama_decode` of the next `n` tokens, with the logits of the last one
    /// if `logits`. Returns the seconds that it took.
    fn decode(&mut self, n: usize, logits: bool) -> Result<f64, String> {
        let (from, end) = (self.len, self.len + n);
        let count = i32::try_from(n).map_err(|e| e.to_string())?;
        let mut tokens = self.tokens[from..end].to_vec();
        let mut pos = Vec::with_capacity(n);
        for p in from..end {
            pos.push(i32::try_from(p).map_err(|e| e.to_string())?);
        }
        let mut counts = vec![1i32; n];
        let mut seq = [0i32];
        let mut seqs = vec![seq.as_mut_ptr(); n];
        let mut wanted = vec![0i8; n];
        if let Some(last) = wanted.last_mut() {
            *last = i8::from(logits);
        }
        let batch = sys::llama_batch {
            n_tokens: count,
            token: tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: pos.as_mut_ptr(),
            n_seq_id: counts.as_mut_ptr(),
            seq_id: seqs.as_mut_ptr(),
            logits: wanted.as_mut_ptr(),
        };
        let start = Instant::now();
        // SAFETY: every array of the batch has n entries and lives through the
        // call; the context is live.
        let status = unsafe {
            let status = sys::llama_decode(self.session.0.as_ptr(), batch);
            sys::llama_synchronize(self.session.0.as_ptr());
            status
        };
        let seconds = start.elapsed().as_secs_f64();
        if status != 0 {
            return Err(format!("llama_decode of {n} at {from}: {status}"));
        }
        self.len = end;
        Ok(seconds)
    }

    /// Returns the FNV-1a hash of the logits that the last `llama_decode` call gave.
    fn last_row(&self) -> Result<String, String> {
        // SAFETY: the context is live and has decoded a batch.
        let row = unsafe { sys::llama_get_logits_ith(self.session.0.as_ptr(), -1) };
        if row.is_null() {
            return Err("llama.cpp gave no logits".to_owned());
        }
        // SAFETY: logits of one position, a float a token of the vocabulary.
        let row = unsafe { std::slice::from_raw_parts(row, self.vocab()) };
        let bytes = row.iter().flat_map(|x| x.to_le_bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        Ok(format!("{hash:016x}"))
    }
}

/// Reads the memory use of this process in bytes: resident memory and its peak, and how
/// much of it is `anonymous` and how much mapped from a `file`.
fn memory() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib << 10)
    };
    json!({
        "resident": field("VmRSS:"),
        "peak": field("VmHWM:"),
        "anonymous": field("RssAnon:"),
        "file": field("RssFile:"),
    })
}

//! The comparator's `model` server (llama.cpp as a process): computes the logits of
//! whole models, run as llama.cpp runs them.

use std::ffi::{CString, c_char, c_void};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ptr::NonNull;
use std::sync::Mutex;

use llama_cpp_sys_2 as sys;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ggml::{text, type_name};
use crate::wire;

/// A request to run a model over tokens with llama.cpp. Fields that are absent take the
/// default of llama.cpp's API.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    /// Path of the model's GGUF file.
    model: String,
    /// Ids of the tokens that the model runs over.
    ids: Vec<i32>,
    /// Number of tokens in each of the successive `llama_decode` calls; they add up to
    /// the number of token ids. Without it, one call runs all tokens.
    chunks: Option<Vec<usize>>,
    /// Path of the file to write the logits to: for each requested position, an f32 for
    /// each token of the vocabulary.
    out: String,
    /// Whether to request the logits of each call's last position only. llama.cpp then
    /// computes the end of the last layer for one row.
    #[serde(default)]
    last: bool,
    /// Number of threads that llama.cpp uses, for calls of one token and of more.
    threads: i32,
    n_ctx: Option<u32>,
    n_batch: Option<u32>,
    n_ubatch: Option<u32>,
    /// Whether llama.cpp uses flash attention: `auto`, `on` or `off`.
    flash_attn: Option<String>,
    /// Whether llama.cpp may repack weights (interleave their rows) when it loads the
    /// model.
    repack: Option<bool>,
    /// Whether sliding-window layers keep every position in the KV cache instead of a
    /// ring buffer.
    swa_full: Option<bool>,
    /// Which intermediate results of the model run to copy to files.
    trace: Option<Trace>,
}

/// Which intermediate results of a model run to copy to files. Copying one cuts ggml's
/// graph there, so that its operation is not fused with the next one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trace {
    /// Folder in which each intermediate result of a model run gets a file.
    dir: String,
    /// Names of the tensors to copy to files, as llama.cpp names them; empty for all.
    #[serde(default)]
    names: Vec<String>,
}

/// Lines of llama.cpp's log since the current request began.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" fn keep_log(_: sys::ggml_log_level, line: *const c_char, _: *mut c_void) {
    let line = text(line).trim_end().to_owned();
    if let Ok(mut log) = LOG.lock()
        && !line.is_empty()
    {
        log.push(line);
    }
}

/// Returns the last lines of llama.cpp's log, for an error message.
fn log_tail() -> String {
    let log = LOG.lock().map(|l| l.clone()).unwrap_or_default();
    log[log.len().saturating_sub(6)..].join(" | ")
}

/// Answers requests to run models with llama.cpp, which come on standard input, until
/// its end. The last model stays loaded for the next request.
///
/// # Errors
/// When the stream itself breaks; a bad request is answered with its error.
pub(crate) fn serve() -> Result<(), String> {
    // SAFETY: called once, before any other llama function of this process.
    unsafe {
        sys::llama_log_set(Some(keep_log), std::ptr::null_mut());
        sys::llama_backend_init();
    }
    let mut input = io::stdin().lock();
    let mut output = io::stdout().lock();
    let mut cache = None;
    while let Some(line) = wire::line(&mut input)? {
        let result = serde_json::from_str(&line)
            .map_err(|e| format!("request: {e}"))
            .and_then(|r| run(&r, &mut cache));
        let head = result.unwrap_or_else(|e| json!({ "ok": false, "error": e }));
        wire::reply(&mut output, &head, &[])?;
    }
    Ok(())
}

struct Model {
    raw: NonNull<sys::llama_model>,
    path: String,
    repack: bool,
    /// Lines about weight buffers that llama.cpp logged when it loaded the model.
    buffers: Vec<String>,
}

impl Model {
    fn load(path: &str, repack: bool) -> Result<Self, String> {
        let c = CString::new(path).map_err(|_| "the path holds a NUL".to_owned())?;
        clear_log();
        // SAFETY: the path is NUL-terminated and the parameters llama.cpp's own.
        let raw = unsafe {
            let mut params = sys::llama_model_default_params();
            params.use_extra_bufts = repack;
            sys::llama_model_load_from_file(c.as_ptr(), params)
        };
        let raw = NonNull::new(raw).ok_or_else(|| format!("{path}: {}", log_tail()))?;
        Ok(Self {
            raw,
            path: path.to_owned(),
            repack,
            buffers: log_with("buffer size"),
        })
    }

    fn vocab(&self) -> usize {
        // SAFETY: the model is live.
        let n = unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(self.raw.as_ptr())) };
        usize::try_from(n).unwrap_or(0)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: owned, freed once, after its contexts.
        unsafe { sys::llama_model_free(self.raw.as_ptr()) }
    }
}

struct Session(NonNull<sys::llama_context>);

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { sys::llama_free(self.0.as_ptr()) }
    }
}

fn clear_log() {
    if let Ok(mut log) = LOG.lock() {
        log.clear();
    }
}

/// Returns the lines of llama.cpp's log that contain a phrase.
fn log_with(phrase: &str) -> Vec<String> {
    LOG.lock()
        .map(|l| l.iter().filter(|s| s.contains(phrase)).cloned().collect())
        .unwrap_or_default()
}

fn run(request: &Request, cache: &mut Option<Model>) -> Result<Value, String> {
    let chunks = request
        .chunks
        .clone()
        .unwrap_or_else(|| vec![request.ids.len()]);
    if request.ids.is_empty()
        || chunks.contains(&0)
        || chunks.iter().sum::<usize>() != request.ids.len()
    {
        return Err(format!("chunks {chunks:?} of {} ids", request.ids.len()));
    }
    let repack = request.repack.unwrap_or(true);
    if !matches!(cache, Some(m) if m.path == request.model && m.repack == repack) {
        *cache = None;
        *cache = Some(Model::load(&request.model, repack)?);
    }
    let model = cache.as_ref().ok_or("no model")?;
    let vocab = model.vocab();
    if let Some(bad) = request
        .ids
        .iter()
        .find(|&&t| usize::try_from(t).is_ok_and(|t| t >= vocab) || t < 0)
    {
        return Err(format!("token {bad}: the vocabulary has {vocab}"));
    }
    let mut tracer = request.trace.as_ref().map(Tracer::new).transpose()?;
    clear_log();
    let (session, params) = open(model, request, tracer.as_mut())?;
    let mut out =
        BufWriter::new(File::create(&request.out).map_err(|e| format!("{}: {e}", request.out))?);
    let mut at = 0;
    for n in chunks {
        let logits = decode(&session, &request.ids[at..at + n], at, vocab, request.last)?;
        for v in logits {
            out.write_all(&v.to_le_bytes())
                .map_err(|e| format!("{}: {e}", request.out))?;
        }
        at += n;
    }
    out.flush().map_err(|e| format!("{}: {e}", request.out))?;
    let log: Vec<String> = ["Flash Attention", "buffer size", "cells"]
        .iter()
        .flat_map(|p| log_with(p))
        .collect();
    Ok(json!({
        "ok": true,
        "positions": at,
        "vocab": vocab,
        "params": params,
        "weights": model.buffers,
        "log": log,
        "trace": tracer.map(|t| t.done),
    }))
}

/// Opens a llama.cpp context with the parameters that the request gives, and
/// llama.cpp's defaults for the others. Returns it with the parameters in force.
fn open(
    model: &Model,
    request: &Request,
    tracer: Option<&mut Tracer>,
) -> Result<(Session, Value), String> {
    // SAFETY: takes nothing.
    let mut p = unsafe { sys::llama_context_default_params() };
    p.n_threads = request.threads;
    p.n_threads_batch = request.threads;
    p.n_ctx = request.n_ctx.unwrap_or(p.n_ctx);
    p.n_batch = request.n_batch.unwrap_or(p.n_batch);
    p.n_ubatch = request.n_ubatch.unwrap_or(p.n_ubatch);
    p.swa_full = request.swa_full.unwrap_or(p.swa_full);
    p.flash_attn_type = match request.flash_attn.as_deref() {
        None => p.flash_attn_type,
        Some("auto") => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
        Some("on") => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        Some("off") => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        Some(other) => return Err(format!("flash_attn {other}: auto, on or off")),
    };
    if let Some(t) = tracer {
        p.cb_eval = Some(trace);
        p.cb_eval_user_data = std::ptr::from_mut(t).cast();
    }
    // SAFETY: the model is live and outlives the session; the tracer outlives
    // it too, being the caller's.
    let raw = unsafe { sys::llama_init_from_model(model.raw.as_ptr(), p) };
    let session = NonNull::new(raw)
        .map(Session)
        .ok_or_else(|| format!("context: {}", log_tail()))?;
    // SAFETY: the session is live.
    let (n_ctx, n_ubatch) = unsafe { (sys::llama_n_ctx(raw), sys::llama_n_ubatch(raw)) };
    let flash = match p.flash_attn_type {
        sys::LLAMA_FLASH_ATTN_TYPE_AUTO => "auto",
        sys::LLAMA_FLASH_ATTN_TYPE_ENABLED => "on",
        _ => "off",
    };
    let facts = json!({
        "n_ctx": n_ctx,
        "n_batch": p.n_batch,
        "n_ubatch": n_ubatch,
        "threads": p.n_threads,
        "flash_attn": flash,
        "repack": model.repack,
        "swa_full": p.swa_full,
        "kv_unified": p.kv_unified,
        "type_k": type_name(p.type_k),
        "type_v": type_name(p.type_v),
    });
    Ok((session, facts))
}

/// Runs one `llama_decode` call over the tokens `ids`, the first at position `from`,
/// and returns the logits of every position, or of the last one.
fn decode(
    session: &Session,
    ids: &[i32],
    from: usize,
    vocab: usize,
    last: bool,
) -> Result<Vec<f32>, String> {
    let n = i32::try_from(ids.len()).map_err(|e| e.to_string())?;
    let mut tokens = ids.to_vec();
    let mut pos = Vec::with_capacity(ids.len());
    for i in from..from + ids.len() {
        pos.push(i32::try_from(i).map_err(|e| e.to_string())?);
    }
    let mut count = vec![1i32; ids.len()];
    let mut seq = [0i32];
    let mut seqs = vec![seq.as_mut_ptr(); ids.len()];
    let mut wanted = vec![i8::from(!last); ids.len()];
    if let Some(w) = wanted.last_mut() {
        *w = 1;
    }
    let outputs = if last { 1 } else { ids.len() };
    let batch = sys::llama_batch {
        n_tokens: n,
        token: tokens.as_mut_ptr(),
        embd: std::ptr::null_mut(),
        pos: pos.as_mut_ptr(),
        n_seq_id: count.as_mut_ptr(),
        seq_id: seqs.as_mut_ptr(),
        logits: wanted.as_mut_ptr(),
    };
    // SAFETY: every array of the batch has n entries and lives through the call.
    let status = unsafe { sys::llama_decode(session.0.as_ptr(), batch) };
    if status != 0 {
        return Err(format!(
            "llama_decode of {n} at {from}: {status}: {}",
            log_tail()
        ));
    }
    // SAFETY: the session is live and has decoded a batch.
    let p = unsafe { sys::llama_get_logits(session.0.as_ptr()) };
    if p.is_null() {
        return Err("llama.cpp gave no logits".to_owned());
    }
    // SAFETY: logits of `outputs` positions were asked for, `vocab` floats each.
    Ok(unsafe { std::slice::from_raw_parts(p, outputs * vocab) }.to_vec())
}

/// Writes intermediate results of a model run to files as they are computed.
struct Tracer {
    dir: String,
    names: Vec<String>,
    done: Vec<Value>,
}

impl Tracer {
    fn new(t: &Trace) -> Result<Self, String> {
        std::fs::create_dir_all(&t.dir).map_err(|e| format!("{}: {e}", t.dir))?;
        Ok(Self {
            dir: t.dir.clone(),
            names: t.names.clone(),
            done: Vec::new(),
        })
    }

    /// Writes the bytes of a computed tensor, from the first to the last one in memory,
    /// to a file.
    fn keep(&mut self, t: *mut sys::ggml_tensor) -> Result<(), String> {
        // SAFETY: the scheduler hands over a live, computed tensor.
        let (name, op, kind, ne, nb, data) = unsafe {
            let mut data = vec![0u8; sys::ggml_nbytes(t)];
            sys::ggml_backend_tensor_get(t, data.as_mut_ptr().cast(), 0, data.len());
            let op = text(sys::ggml_op_desc(t));
            (
                text((*t).name.as_ptr()),
                op,
                type_name((*t).type_),
                (*t).ne,
                (*t).nb,
                data,
            )
        };
        let file = format!("{}/{:06}.bin", self.dir, self.done.len());
        std::fs::write(&file, data).map_err(|e| format!("{file}: {e}"))?;
        self.done.push(json!({
            "file": file, "name": name, "op": op, "type": kind, "ne": ne, "nb": nb,
        }));
        Ok(())
    }
}

unsafe extern "C" fn trace(t: *mut sys::ggml_tensor, ask: bool, user: *mut c_void) -> bool {
    // SAFETY: `user` is the request's tracer, used by no one else during a call.
    let tracer = unsafe { &mut *user.cast::<Tracer>() };
    if ask {
        // SAFETY: the scheduler hands over a live tensor.
        let name = text(unsafe { (*t).name.as_ptr() });
        return tracer.names.is_empty() || tracer.names.contains(&name);
    }
    match tracer.keep(t) {
        Ok(()) => true,
        Err(e) => {
            eprintln!("muser-reference: trace: {e}");
            false
        }
    }
}

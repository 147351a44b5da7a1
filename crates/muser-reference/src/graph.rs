//! The `op` server: small graphs through ggml's public CPU API.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_char, c_void};
use std::io;

use llama_cpp_sys_2 as sys;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ggml::{Backend, Buffer, Context, Raw, row_bytes, text, type_name, type_of};
use crate::nodes::{self, Node};
use crate::{call, wire};

/// A request: either nodes and outputs, or a direct call.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    /// Threads of the graph.
    #[serde(default = "one")]
    threads: i32,
    /// Whether weights go where llama.cpp puts them by default, or stay plain.
    #[serde(default = "yes")]
    repack: bool,
    /// ggml's reference forms instead of its usual ones.
    #[serde(default)]
    use_ref: bool,
    /// Inputs.
    tensors: Vec<wire::Tensor>,
    /// Operations, each after its operands.
    #[serde(default)]
    nodes: Vec<Node>,
    /// Names of the results to send back.
    #[serde(default)]
    outputs: Vec<String>,
    /// A function called directly instead of a graph.
    call: Option<String>,
    /// Parameters of the call.
    #[serde(default)]
    params: Value,
}

fn one() -> i32 {
    1
}

fn yes() -> bool {
    true
}

/// What a request gives: the head of the reply and the bytes after it.
pub(crate) type Reply = (Value, Vec<Vec<u8>>);

/// Drops ggml's messages: one a repacked weight.
unsafe extern "C" fn no_log(_: sys::ggml_log_level, _: *const c_char, _: *mut c_void) {}

/// Answers requests from standard input until its end.
///
/// # Errors
/// When the stream itself breaks; a bad request is answered with its error.
pub(crate) fn serve() -> Result<(), String> {
    // SAFETY: the callback takes what ggml passes and keeps nothing.
    unsafe { sys::ggml_log_set(Some(no_log), std::ptr::null_mut()) };
    let backend = Backend::cpu()?;
    let mut input = io::stdin().lock();
    let mut output = io::stdout().lock();
    while let Some(line) = wire::line(&mut input)? {
        let request: Request = match serde_json::from_str(&line) {
            Ok(r) => r,
            // Without the sizes the payload cannot be skipped.
            Err(e) => {
                let head = json!({ "ok": false, "error": format!("request: {e}") });
                wire::reply(&mut output, &head, &[])?;
                return Err(format!("request: {e}"));
            }
        };
        let data = wire::payload(&mut input, &request.tensors)?;
        let result = match &request.call {
            Some(name) => call::run(name, &request.params, &request.tensors, &data),
            None => run(&backend, &request, &data),
        };
        match result {
            Ok((head, data)) => wire::reply(&mut output, &head, &data)?,
            Err(e) => wire::reply(&mut output, &json!({ "ok": false, "error": e }), &[])?,
        }
    }
    Ok(())
}

/// Builds the graph, computes it and copies its outputs.
fn run(backend: &Backend, request: &Request, data: &[Vec<u8>]) -> Result<Reply, String> {
    let room = request.tensors.len() + 2 * request.nodes.len() + 8;
    let ctx = Context::new(room)?;
    let mut known = HashMap::new();
    // Each repacked weight has a context and a buffer of its own.
    let mut packed: Vec<(Context, Buffer)> = Vec::new();
    let mut placed = BTreeMap::new();
    for t in &request.tensors {
        check_size(t)?;
        let kind = type_of(&t.kind)?;
        if t.weight
            && request.repack
            && let Some((own, buffer, raw, name)) = repacked(backend, t, kind)?
        {
            placed.insert(t.name.clone(), name);
            known.insert(t.name.clone(), raw);
            packed.push((own, buffer));
            continue;
        }
        known.insert(t.name.clone(), ctx.tensor(&t.name, kind, &t.ne)?);
    }
    for node in &request.nodes {
        let raw = nodes::build(&ctx, node, &known)?;
        known.insert(node.name.clone(), raw);
    }
    let outputs = request
        .outputs
        .iter()
        .map(|n| {
            known
                .get(n)
                .copied()
                .ok_or_else(|| format!("output {n}: no such tensor"))
        })
        .collect::<Result<Vec<Raw>, String>>()?;
    let graph = expand(&ctx, room, &outputs);
    // SAFETY: context and backend are live; every tensor of the context that is
    // not a view gets memory of its own.
    let _buffer =
        Buffer::own(unsafe { sys::ggml_backend_alloc_ctx_tensors(ctx.raw(), backend.raw()) })?;
    for (t, d) in request.tensors.iter().zip(data) {
        // SAFETY: the tensor has memory, and `check_size` compared its size.
        unsafe { sys::ggml_backend_tensor_set(known[&t.name], d.as_ptr().cast(), 0, d.len()) };
    }
    compute(backend, request, graph)?;
    let (heads, bytes) = read(&request.outputs, &outputs)?;
    Ok((
        json!({ "ok": true, "tensors": heads, "placed": placed }),
        bytes,
    ))
}

/// The length that a tensor announces is the length that its type and shape need.
fn check_size(t: &wire::Tensor) -> Result<(), String> {
    let row = row_bytes(type_of(&t.kind)?, t.ne.first().copied().unwrap_or(0))?;
    let want = t.ne[1..].iter().try_fold(row, |acc, &n| {
        usize::try_from(n)
            .ok()
            .filter(|&n| n > 0)
            .and_then(|n| acc.checked_mul(n))
    });
    if want != Some(t.bytes) {
        return Err(format!(
            "tensor {}: {} bytes, needs {want:?}",
            t.name, t.bytes
        ));
    }
    Ok(())
}

/// A weight in an extra buffer type, if one takes its products, as the model
/// loader of llama.cpp decides it; with that buffer type's name.
fn repacked(
    backend: &Backend,
    t: &wire::Tensor,
    kind: sys::ggml_type,
) -> Result<Option<(Context, Buffer, Raw, String)>, String> {
    for buft in backend.extra_buffer_types() {
        let probe = Context::new(4)?;
        let w = probe.tensor(&t.name, kind, &t.ne)?;
        // SAFETY: the empty buffer marks the weight's place for the question
        // and is taken away and freed before the weight's context goes.
        let takes = unsafe {
            let ne = (*w).ne;
            let x = probe.tensor("x", sys::GGML_TYPE_F32, &[ne[0], 512, ne[2], ne[3]])?;
            let op = sys::ggml_mul_mat(probe.raw(), w, x);
            let empty = Buffer::own(sys::ggml_backend_buft_alloc_buffer(buft, 0))?;
            (*w).buffer = empty.raw();
            let dev = sys::ggml_backend_get_device(backend.raw());
            let takes = sys::ggml_backend_dev_supports_op(dev, op);
            (*w).buffer = std::ptr::null_mut();
            takes
        };
        if takes {
            let own = Context::new(1)?;
            let raw = own.tensor(&t.name, kind, &t.ne)?;
            // SAFETY: context and buffer type are live.
            let buffer = Buffer::own(unsafe {
                sys::ggml_backend_alloc_ctx_tensors_from_buft(own.raw(), buft)
            })?;
            // SAFETY: the buffer type is live and its name static.
            let name = text(unsafe { sys::ggml_backend_buft_name(buft) });
            return Ok(Some((own, buffer, raw, name)));
        }
    }
    Ok(None)
}

/// The graph of the outputs, each marked so that no fusion swallows it.
fn expand(ctx: &Context, room: usize, outputs: &[Raw]) -> *mut sys::ggml_cgraph {
    // SAFETY: the context has room for a graph of that size.
    unsafe {
        let graph = sys::ggml_new_graph_custom(ctx.raw(), room, false);
        for &t in outputs {
            sys::ggml_set_output(t);
            sys::ggml_build_forward_expand(graph, t);
        }
        graph
    }
}

fn compute(
    backend: &Backend,
    request: &Request,
    graph: *mut sys::ggml_cgraph,
) -> Result<(), String> {
    if !(1..=64).contains(&request.threads) {
        return Err(format!("{} threads: 1 to 64", request.threads));
    }
    // SAFETY: the backend is the CPU's, the graph's tensors have memory.
    let status = unsafe {
        sys::ggml_backend_cpu_set_n_threads(backend.raw(), request.threads);
        sys::ggml_backend_cpu_set_use_ref(backend.raw(), request.use_ref);
        sys::ggml_backend_graph_compute(backend.raw(), graph)
    };
    if status == sys::GGML_STATUS_SUCCESS {
        Ok(())
    } else {
        Err(format!("ggml's status {status}"))
    }
}

/// Copies tensors out: their heads and their bytes.
fn read(names: &[String], raws: &[Raw]) -> Result<(Vec<wire::Tensor>, Vec<Vec<u8>>), String> {
    let mut heads = Vec::with_capacity(raws.len());
    let mut all = Vec::with_capacity(raws.len());
    for (name, &t) in names.iter().zip(raws) {
        // SAFETY: `t` is live and has memory of `ggml_nbytes` bytes.
        let (head, data) = unsafe {
            if !sys::ggml_is_contiguous(t) {
                return Err(format!("output {name} is not contiguous: add a cont"));
            }
            let mut data = vec![0u8; sys::ggml_nbytes(t)];
            sys::ggml_backend_tensor_get(t, data.as_mut_ptr().cast(), 0, data.len());
            let head = wire::Tensor {
                name: name.clone(),
                kind: type_name((*t).type_),
                ne: (*t).ne.to_vec(),
                bytes: data.len(),
                weight: false,
            };
            (head, data)
        };
        heads.push(head);
        all.push(data);
    }
    Ok((heads, all))
}

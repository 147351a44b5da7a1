//! The comparator's `op` server (llama.cpp as a process): computes single operations
//! and small graphs with ggml's public CPU API.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_char, c_void};
use std::io;

use llama_cpp_sys_2 as sys;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ggml::{Backend, Buffer, Context, Raw, row_bytes, text, type_name, type_of};
use crate::nodes::{self, Node};
use crate::{call, wire};

/// A request to the comparator's `op` server: either a ggml graph, as nodes and
/// outputs, or a direct call of one ggml function.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    /// Number of threads with which ggml computes the requested graph.
    #[serde(default = "one")]
    threads: i32,
    /// Whether weights are placed in the ggml buffer type that llama.cpp chooses by
    /// default, which may repack them, instead of the plain one.
    #[serde(default = "yes")]
    repack: bool,
    /// Whether ggml uses the plain reference versions of its kernels.
    #[serde(default)]
    use_ref: bool,
    /// Tensors of a request to ggml; their raw data follows the request's JSON line.
    tensors: Vec<wire::Tensor>,
    /// Names of tensors, kept from earlier requests, that the comparator's server shall
    /// now drop.
    #[serde(default)]
    drop: Vec<String>,
    /// Operations of the ggml graph, each after the operations whose results it uses.
    #[serde(default)]
    nodes: Vec<Node>,
    /// Names of the ggml graph's results to send back.
    #[serde(default)]
    outputs: Vec<String>,
    /// Name of a ggml function to call directly, instead of computing a graph.
    call: Option<String>,
    /// Parameters of the directly called ggml function.
    #[serde(default)]
    params: Value,
}

fn one() -> i32 {
    1
}

fn yes() -> bool {
    true
}

/// A ggml tensor with memory of its own: a repacked weight, or a tensor kept for later
/// requests.
struct Owned {
    raw: Raw,
    /// Name of the ggml buffer type that holds the tensor; `None` for the plain one.
    placed: Option<String>,
    _buffer: Buffer,
    _context: Context,
}

/// ggml tensors that the server keeps between requests, by the names under which later
/// requests may use them.
type Kept = HashMap<String, Owned>;

/// A reply to a request: its JSON line, and the raw tensor bytes that follow it.
pub(crate) type Reply = (Value, Vec<Vec<u8>>);

/// Discards lines of ggml's log, which has one for each repacked weight.
unsafe extern "C" fn no_log(_: sys::ggml_log_level, _: *const c_char, _: *mut c_void) {}

/// Answers requests to compute ggml graphs, which come on standard input, until its
/// end.
///
/// # Errors
/// The stream breaks. A bad request is answered with its error.
pub(crate) fn serve() -> Result<(), String> {
    // SAFETY: the callback takes what ggml passes and keeps nothing.
    unsafe { sys::ggml_log_set(Some(no_log), std::ptr::null_mut()) };
    let backend = Backend::cpu()?;
    let mut kept = Kept::new();
    let mut input = io::stdin().lock();
    let mut output = io::stdout().lock();
    while let Some(line) = wire::line(&mut input)? {
        let request: Request = match serde_json::from_str(&line) {
            Ok(r) => r,
            // The payload of a request that does not parse has no known size
            // and cannot be skipped.
            Err(e) => {
                let head = json!({ "ok": false, "error": format!("request: {e}") });
                wire::reply(&mut output, &head, &[])?;
                return Err(format!("request: {e}"));
            }
        };
        let data = wire::payload(&mut input, &request.tensors)?;
        let result = match &request.call {
            Some(name) => call::run(name, &request.params, &request.tensors, &data),
            None => run(&backend, &request, &data, &mut kept),
        };
        match result {
            Ok((head, data)) => wire::reply(&mut output, &head, &data)?,
            Err(e) => wire::reply(&mut output, &json!({ "ok": false, "error": e }), &[])?,
        }
    }
    Ok(())
}

/// Builds the ggml graph of a request, computes it and returns copies of its outputs.
fn run(
    backend: &Backend,
    request: &Request,
    data: &[Vec<u8>],
    kept: &mut Kept,
) -> Result<Reply, String> {
    for name in &request.drop {
        kept.remove(name);
    }
    let room = request.tensors.len() + kept.len() + 2 * request.nodes.len() + 8;
    let ctx = Context::new(room)?;
    let mut inputs = Inputs::default();
    for (t, data) in request.tensors.iter().zip(data) {
        inputs.add(backend, &ctx, request.repack, (t, data), kept)?;
    }
    let (mut known, placed) = inputs.names(kept);
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
    for &(raw, d) in &inputs.plain {
        // SAFETY: the tensor has memory, and `check_size` compared its size.
        unsafe { sys::ggml_backend_tensor_set(raw, d.as_ptr().cast(), 0, d.len()) };
    }
    compute(backend, request, graph)?;
    let (heads, bytes) = read(&request.outputs, &outputs)?;
    Ok((
        json!({ "ok": true, "tensors": heads, "placed": placed }),
        bytes,
    ))
}

/// The ggml tensors made from the tensors of one request.
#[derive(Default)]
struct Inputs<'a> {
    sent: HashMap<String, Raw>,
    /// Tensors in the graph's ggml context that have no memory yet, each with the data
    /// to copy to it.
    plain: Vec<(Raw, &'a [u8])>,
    /// ggml tensors with memory of their own that are dropped when the request is
    /// answered, by name.
    own: Vec<(String, Owned)>,
}

impl<'a> Inputs<'a> {
    /// Creates the ggml tensor for one tensor of a request: in the graph's ggml
    /// context, with memory of its own, or among those kept for later requests.
    fn add(
        &mut self,
        backend: &Backend,
        ctx: &Context,
        repack: bool,
        (t, data): (&wire::Tensor, &'a [u8]),
        kept: &mut Kept,
    ) -> Result<(), String> {
        check_size(t)?;
        let kind = type_of(&t.kind)?;
        let mut made = match t.weight && repack {
            true => repacked(backend, t, kind)?,
            false => None,
        };
        if made.is_none() && t.keep {
            made = Some(unpacked(backend, t, kind)?);
        }
        let Some(made) = made else {
            let raw = ctx.tensor(&t.name, kind, &t.ne)?;
            self.plain.push((raw, data));
            self.sent.insert(t.name.clone(), raw);
            return Ok(());
        };
        // SAFETY: the tensor has memory, and `check_size` compared its size.
        unsafe { sys::ggml_backend_tensor_set(made.raw, data.as_ptr().cast(), 0, data.len()) };
        if t.keep {
            kept.insert(t.name.clone(), made);
        } else {
            self.sent.insert(t.name.clone(), made.raw);
            self.own.push((t.name.clone(), made));
        }
        Ok(())
    }

    /// Returns the tensors that operations of the graph may name, and the names of the
    /// ggml buffer types of those outside the plain one. A tensor of this request hides
    /// a kept one of the same name.
    fn names(&self, kept: &Kept) -> (HashMap<String, Raw>, BTreeMap<String, String>) {
        let mut known: HashMap<String, Raw> =
            kept.iter().map(|(n, o)| (n.clone(), o.raw)).collect();
        known.extend(self.sent.iter().map(|(n, &raw)| (n.clone(), raw)));
        let own = self.own.iter().map(|(n, o)| (n, o));
        let placed = kept
            .iter()
            .chain(own)
            .filter_map(|(n, o)| Some((n.clone(), o.placed.clone()?)));
        (known, placed.collect())
    }
}

/// Checks that the announced length of a request's tensor is what its type and shape
/// need.
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

/// Places a weight in a ggml buffer type that repacks it if one supports its products,
/// by the rule of llama.cpp's model loader; returns `None` if none does.
fn repacked(
    backend: &Backend,
    t: &wire::Tensor,
    kind: sys::ggml_type,
) -> Result<Option<Owned>, String> {
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
            let context = Context::new(1)?;
            let raw = context.tensor(&t.name, kind, &t.ne)?;
            // SAFETY: context and buffer type are live.
            let buffer = Buffer::own(unsafe {
                sys::ggml_backend_alloc_ctx_tensors_from_buft(context.raw(), buft)
            })?;
            // SAFETY: the buffer type is live and its name static.
            let name = text(unsafe { sys::ggml_backend_buft_name(buft) });
            return Ok(Some(Owned {
                raw,
                placed: Some(name),
                _buffer: buffer,
                _context: context,
            }));
        }
    }
    Ok(None)
}

/// Creates a tensor with memory of its own in ggml's plain buffer type.
fn unpacked(backend: &Backend, t: &wire::Tensor, kind: sys::ggml_type) -> Result<Owned, String> {
    let context = Context::new(1)?;
    let raw = context.tensor(&t.name, kind, &t.ne)?;
    // SAFETY: context and backend are live.
    let buffer =
        Buffer::own(unsafe { sys::ggml_backend_alloc_ctx_tensors(context.raw(), backend.raw()) })?;
    Ok(Owned {
        raw,
        placed: None,
        _buffer: buffer,
        _context: context,
    })
}

/// Builds the ggml graph that computes these output tensors. Marks each as an output,
/// so that ggml does not fuse it with a later operation.
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

/// Copies computed tensors for a reply: their descriptions and their bytes.
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
                keep: false,
            };
            (head, data)
        };
        heads.push(head);
        all.push(data);
    }
    Ok((heads, all))
}

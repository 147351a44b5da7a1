//! Translates a test case's operation into a request to llama.cpp: the ggml graph that
//! llama.cpp's own model code builds for that operation.
//!
//! Requests mark the weights of products, so that these lie where llama.cpp's loader
//! puts them (Q4_K is repacked); the embedding table stays plain, as in llama.cpp. The
//! KV cache has room for the next multiple of 256 positions: f16 zeros, filled by
//! SET_ROWS in the same graph and read through the views that llama.cpp's models use.
//! Only what a test case asks for is an output, so that ggml fuses the operations that
//! it fuses in a model.

use super::question::{Activations, Question};
use crate::reference::Data;
use muser_ops::{Attention, Weight};
use serde_json::{Value, json};

/// A tensor that a request sends to the comparator (llama.cpp as a process): type,
/// shape and data.
pub(super) struct Tensor<'a> {
    kind: String,
    ne: Vec<usize>,
    data: Data<'a>,
    /// Whether the comparator (llama.cpp as a process) places the tensor where
    /// llama.cpp places the weight matrices of products.
    weight: bool,
}

impl<'a> Tensor<'a> {
    pub(super) fn weight(w: &'a Weight, of_products: bool) -> Self {
        Self {
            // The format's name in ggml: in lower case but for the K of K-quants.
            kind: w.dtype().key().replace("_k", "_K"),
            ne: vec![w.cols(), w.rows()],
            data: Data::Bytes(w.bytes()),
            weight: of_products,
        }
    }

    pub(super) fn rows(x: &'a Activations) -> Self {
        Self::floats(&x.values, vec![x.width, x.count()])
    }

    /// Describes activations as a tensor whose rows are split into attention heads of
    /// `head` values.
    fn heads(x: &'a Activations, head: usize) -> Self {
        Self::floats(&x.values, vec![head, x.width / head.max(1), x.count()])
    }

    fn floats(x: &'a [f32], ne: Vec<usize>) -> Self {
        Self::new("f32", ne, Data::Floats(x))
    }

    fn new(kind: &str, ne: Vec<usize>, data: Data<'a>) -> Self {
        Self {
            kind: kind.to_owned(),
            ne,
            data,
            weight: false,
        }
    }
}

/// A request to the comparator's `op` server (llama.cpp as a process): tensors,
/// operations on them, and the results to return.
#[derive(Default)]
pub(super) struct Graph<'a> {
    tensors: Vec<Value>,
    pub(super) data: Vec<Data<'a>>,
    nodes: Vec<Value>,
    outputs: Vec<String>,
    /// Names of tensors kept from earlier requests that the comparator's server may now
    /// drop.
    pub(super) drop: Vec<String>,
}

impl<'a> Graph<'a> {
    pub(super) fn head(&self, threads: usize) -> Value {
        json!({
            "threads": threads, "tensors": self.tensors, "nodes": self.nodes,
            "outputs": self.outputs, "drop": self.drop,
        })
    }

    pub(super) fn send(&mut self, name: &str, t: Tensor<'a>, keep: bool) {
        self.tensors.push(json!({
            "name": name, "type": t.kind, "ne": t.ne, "bytes": t.data.len(),
            "weight": t.weight, "keep": keep,
        }));
        self.data.push(t.data);
    }

    fn node(&mut self, name: &str, op: &str, src: &[&str], params: Value) {
        let node = json!({"name": name, "op": op, "src": src, "params": params});
        self.nodes.push(node);
    }

    pub(super) fn output(&mut self, name: &str, op: &str, src: &[&str], params: Value) {
        self.node(name, op, src, params);
        self.outputs.push(name.to_owned());
    }

    /// Adds the RMS norm of the tensor `x` to a ggml graph, multiplied by its weight if
    /// there is one; the result is called `name`.
    fn norm(&mut self, name: &str, x: &str, weight: Option<&'a [f32]>, eps: f32) {
        let params = json!({"eps": f64::from(eps)});
        let Some(weight) = weight else {
            return self.node(name, "rms_norm", &[x], params);
        };
        self.send("w", Tensor::floats(weight, vec![weight.len()]), false);
        self.node("normed", "rms_norm", &[x], params);
        self.node(name, "mul", &["normed", "w"], json!({}));
    }
}

/// Builds the ggml graph by which llama.cpp computes a test case's operation. Returns
/// an empty graph for products and whole models, whose requests are built elsewhere.
pub(super) fn graph<'a>(question: &Question<'a>) -> Graph<'a> {
    let mut g = Graph::default();
    let none = || json!({});
    match *question {
        Question::Model(_) | Question::Project { .. } => return g,
        Question::Embed { table, tokens } => {
            let ids = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
            g.send("w", Tensor::weight(table, false), false);
            let ids = Tensor::new("i32", vec![tokens.len()], Data::Own(ids));
            g.send("i", ids, false);
            g.node("y", "get_rows", &["w", "i"], none());
        }
        Question::RmsNorm { x, weight, eps } => {
            g.send("x", Tensor::rows(x), false);
            g.norm("y", "x", weight, eps);
        }
        Question::HeadNorm { x, weight, eps } => {
            g.send("x", Tensor::heads(x, weight.len()), false);
            g.norm("y", "x", Some(weight), eps);
        }
        Question::AddRmsNorm { x, y, weight, eps } => {
            g.send("x", Tensor::rows(x), false);
            g.send("b", Tensor::rows(y), false);
            g.norm("post", "b", Some(weight), eps);
            g.node("y", "add", &["post", "x"], none());
        }
        Question::Rope {
            x,
            head,
            base,
            first,
        } => {
            let positions = first as i32..(first + x.count()) as i32;
            let positions = positions.flat_map(i32::to_le_bytes).collect();
            let positions = Tensor::new("i32", vec![x.count()], Data::Own(positions));
            g.send("x", Tensor::heads(x, head), false);
            g.send("p", positions, false);
            let params = json!({
                "n_dims": head, "mode": 0, "n_ctx_orig": 2048, "freq_base": f64::from(base),
                "freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0,
                "beta_fast": 32.0, "beta_slow": 1.0,
            });
            g.node("y", "rope", &["x", "p"], params);
        }
        Question::Attention { desc, q, k, v } => attention(&mut g, &desc, q, k, v),
        Question::SigmoidGate { x, gate } => {
            g.send("x", Tensor::rows(x), false);
            g.send("g", Tensor::rows(gate), false);
            g.node("s", "sigmoid", &["g"], none());
            g.node("y", "mul", &["x", "s"], none());
        }
        Question::SiluProduct { gate, up } => {
            g.send("g", Tensor::rows(gate), false);
            g.send("u", Tensor::rows(up), false);
            g.node("y", "swiglu_split", &["g", "u"], none());
        }
        Question::SoftCap { x, scale, cap } => {
            let by = |s: f32| json!({"s": f64::from(s)});
            g.send("x", Tensor::rows(x), false);
            let Some(cap) = cap else {
                g.output("y", "scale", &["x"], by(scale));
                return g;
            };
            g.node("scaled", "scale", &["x"], by(scale));
            g.node("inner", "scale", &["scaled"], by(1.0 / cap));
            g.node("tanh", "tanh", &["inner"], none());
            g.node("y", "scale", &["tanh"], by(cap));
        }
    }
    g.outputs.push("y".to_owned());
    g
}

fn attention<'a>(
    g: &mut Graph<'a>,
    desc: &Attention,
    q: &'a Activations,
    k: &'a Activations,
    v: &'a Activations,
) {
    let (rows, end, width) = (q.count(), k.count(), k.width);
    let slots = end.next_multiple_of(256).max(256);
    let at = (0..end as i64).flat_map(i64::to_le_bytes).collect();
    g.send("at", Tensor::new("i64", vec![end], Data::Own(at)), false);
    for (name, stored) in [("k", k), ("v", v)] {
        let [cache, set, heads] = ["cache", "set", "heads"].map(|s| format!("{name}-{s}"));
        let zeros = Data::Own(vec![0; 2 * width * slots]);
        g.send(&cache, Tensor::new("f16", vec![width, slots], zeros), false);
        let rows = format!("{name}-rows");
        g.send(&rows, Tensor::rows(stored), false);
        g.node(&set, "set_rows", &[&cache, &rows, "at"], json!({}));
        let ne = json!({"ne": [desc.head_dim, desc.kv_heads, slots, 1]});
        g.node(&heads, "reshape", &[&set], ne);
        g.node(name, "permute", &[&heads], json!({"axes": [0, 2, 1, 3]}));
    }
    g.send("q-rows", Tensor::heads(q, desc.head_dim), false);
    g.node("q", "permute", &["q-rows"], json!({"axes": [0, 2, 1, 3]}));
    let mask = Data::Own(mask(desc, end - rows, rows, slots));
    g.send("mask", Tensor::new("f16", vec![slots, rows], mask), false);
    let params = json!({"scale": f64::from(desc.scale)});
    g.node("y", "flash_attn", &["q", "k", "v", "mask"], params);
}

/// Builds the causal attention mask as f16, `[rows, slots]`: zero where a row sees a
/// slot (position) of the KV cache, minus infinity elsewhere.
fn mask(desc: &Attention, first: usize, rows: usize, slots: usize) -> Vec<u8> {
    let mut mask = Vec::with_capacity(2 * rows * slots);
    for p in first..first + rows {
        for slot in 0..slots {
            let visible = slot <= p && desc.window.is_none_or(|w| p - slot < w);
            let bits: u16 = if visible { 0 } else { 0xfc00 };
            mask.extend_from_slice(&bits.to_le_bytes());
        }
    }
    mask
}

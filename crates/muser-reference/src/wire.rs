//! Reads the requests to the comparator (llama.cpp as a process) from standard input
//! and writes its replies: each is a JSON line, then the raw bytes that it announces.

use std::io::{BufRead, Read, Write};

use serde::{Deserialize, Serialize};

/// Maximum length of a request's JSON line in bytes.
const MAX_LINE: u64 = 16 << 20;
/// Maximum length of the data of one tensor of a request, in bytes.
const MAX_TENSOR: usize = 4 << 30;

/// A tensor of a request or of a reply, as the JSON line describes it; the bytes of all
/// tensors follow the line in the same order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tensor {
    /// Name by which the operations of a request refer to the tensor.
    pub(crate) name: String,
    /// ggml's name of the tensor's type: f32, f16, bf16, q4_K, q5_K, q6_K, q8_K, i32 or
    /// i64.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Dimensions of the tensor, 1 to 4 of them, innermost first: ggml's `ne`.
    pub(crate) ne: Vec<i64>,
    /// Length of the tensor's raw data in bytes; values are little-endian.
    pub(crate) bytes: usize,
    /// Whether the tensor is the weight matrix of products, which llama.cpp may place
    /// in another buffer type, repacked.
    #[serde(default)]
    pub(crate) weight: bool,
    /// Whether the comparator keeps the tensor, so that later requests may name it
    /// without sending it again.
    #[serde(default, skip_serializing)]
    pub(crate) keep: bool,
}

/// Reads the JSON line of a request; `None` at the end of the input.
pub(crate) fn line(input: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut buf = Vec::new();
    let mut limited = input.take(MAX_LINE);
    limited
        .read_until(b'\n', &mut buf)
        .map_err(|e| format!("reading a request: {e}"))?;
    if buf.is_empty() {
        return Ok(None);
    }
    if buf.last() != Some(&b'\n') {
        return Err(format!(
            "a request line without an end, or longer than {MAX_LINE} bytes"
        ));
    }
    String::from_utf8(buf)
        .map(Some)
        .map_err(|_| "a request line is not UTF-8".to_owned())
}

/// Reads the raw bytes of every tensor of a request, which follow its JSON line.
pub(crate) fn payload(input: &mut impl Read, tensors: &[Tensor]) -> Result<Vec<Vec<u8>>, String> {
    let mut all = Vec::with_capacity(tensors.len());
    for t in tensors {
        if t.bytes > MAX_TENSOR {
            return Err(format!("tensor {}: {} bytes are too many", t.name, t.bytes));
        }
        let mut data = vec![0; t.bytes];
        input
            .read_exact(&mut data)
            .map_err(|e| format!("data of tensor {}: {e}", t.name))?;
        all.push(data);
    }
    Ok(all)
}

/// Writes the JSON line of a reply and the raw bytes after it.
pub(crate) fn reply(
    out: &mut impl Write,
    head: &serde_json::Value,
    data: &[Vec<u8>],
) -> Result<(), String> {
    let mut send = || -> std::io::Result<()> {
        writeln!(out, "{head}")?;
        for d in data {
            out.write_all(d)?;
        }
        out.flush()
    };
    send().map_err(|e| format!("writing a reply: {e}"))
}

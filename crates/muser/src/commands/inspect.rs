//! `muser inspect`: shows what is in a GGUF file.

use crate::cli::Common;
use crate::load;
use crate::output::{self, plain};
use clap::Args;
use muser_gguf::{Gguf, TensorInfo, Value};
use muser_model::{Spec, TensorSpec};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Shows what is in a GGUF file: metadata, geometry, and the tensors by class
/// with their formats, counts and bytes. No weight is read.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  muser inspect
  muser inspect model.gguf --tensors
  muser inspect model.gguf --json | jq .geometry")]
pub(crate) struct InspectArgs {
    /// The GGUF file; without it, the model of --model
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// List every tensor, too, with its shape and place in the file
    #[arg(long)]
    tensors: bool,
    /// Print the result as one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Runs `muser inspect` with these arguments.
pub(crate) fn run(common: &Common, args: &InspectArgs) -> anyhow::Result<()> {
    let path = args.file.as_deref().or(common.model.as_deref());
    let (name, gguf) = load::file(path)?;
    // A file that muser cannot run, as one of an unknown architecture, can be inspected, too.
    let model = Model::of(&gguf);
    if args.json {
        return output::json(&as_json(&name, &gguf, &model, args.tensors));
    }
    let text = as_text(&name, &gguf, &model, args.tensors);
    Ok(output::line(format_args!("{}", text.trim_end()))?)
}

/// The model that a GGUF file describes, as far as muser knows its architecture.
struct Model {
    /// The model's sizes and layers; `None` if its architecture is not known.
    spec: Option<Spec>,
    /// The reason why muser does not run the model; `None` if it does.
    refusal: Option<String>,
    /// How the model's architecture uses each of the GGUF file's tensors, by the tensor's
    /// name.
    uses: HashMap<String, &'static str>,
}

impl Model {
    fn of(gguf: &Gguf) -> Self {
        let spec = match Spec::from_gguf(gguf) {
            Ok(spec) => spec,
            Err(e) => {
                return Self {
                    spec: None,
                    refusal: Some(e.to_string()),
                    uses: HashMap::new(),
                };
            }
        };
        // Bounded by the file's number of tensors, since its metadata can claim any number of
        // layers.
        let listed = spec.tensors().take(gguf.tensors().len());
        let of_tensor = |t: TensorSpec| (t.name, t.role.usage().name());
        let uses = listed.map(of_tensor).collect();
        let refusal = spec.check_computed().err().map(|e| e.to_string());
        Self {
            spec: Some(spec),
            refusal,
            uses,
        }
    }

    /// Returns how the architecture uses a tensor; `-` for one that it does not know.
    fn usage(&self, tensor: &str) -> &'static str {
        self.uses.get(tensor).copied().unwrap_or("-")
    }
}

/// The count and the sizes of all tensors of one class (`blk.N.attn_q.weight`) and one
/// weight format.
#[derive(Default)]
struct Group {
    usage: &'static str,
    count: usize,
    elements: u64,
    bytes: u64,
}

/// Returns a tensor's class: its name with the layer's number replaced by `N`.
fn class(name: &str) -> String {
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts = name
        .split('.')
        .map(|part| if is_number(&part) { "N" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

/// Groups tensors by class (the name without the layer's number) and weight format, in the
/// order of first appearance.
fn groups(tensors: &[TensorInfo], model: &Model) -> Vec<((String, String), Group)> {
    let mut index = BTreeMap::new();
    let mut groups: Vec<((String, String), Group)> = Vec::new();
    for tensor in tensors {
        let key = (class(&tensor.name), tensor.ty.to_string());
        let at = *index.entry(key.clone()).or_insert_with(|| {
            let group = Group {
                usage: model.usage(&tensor.name),
                ..Group::default()
            };
            groups.push((key, group));
            groups.len() - 1
        });
        let group = &mut groups[at].1;
        group.count += 1;
        group.elements = group.elements.saturating_add(tensor.n_elements);
        group.bytes = group.bytes.saturating_add(tensor.byte_len);
    }
    groups
}

/// Returns the model's sizes as names and values to print. The first layer stands for all,
/// since a model whose layers differ in size is refused.
fn geometry(spec: &Spec) -> Vec<(&'static str, String)> {
    let number = |x: Option<f32>| x.map_or("none".to_owned(), |x| x.to_string());
    let sliding = spec.layers.iter().filter(|l| l.attn.window.is_some());
    let sliding = match (sliding.count(), spec.window()) {
        (n, Some(window)) => format!("{n} of window {window}"),
        (_, None) => "none".to_owned(),
    };
    let full = spec.layers.iter().filter(|l| l.attn.window.is_none());
    let mut rows = vec![
        ("layers", spec.layers.len().to_string()),
        ("sliding layers", sliding),
        ("full layers", full.count().to_string()),
        ("hidden", spec.hidden.to_string()),
    ];
    if let Some(layer) = spec.layers.first() {
        rows.extend([
            ("query heads", layer.attn.heads.to_string()),
            ("KV heads", layer.attn.kv_heads.to_string()),
            ("head dim", layer.attn.head_dim.to_string()),
            ("FFN width", layer.ffn.width().to_string()),
        ]);
    }
    rows.extend([
        ("vocabulary", spec.vocab.to_string()),
        ("context", spec.context.to_string()),
        ("RoPE base", number(spec.ropes.first().map(|r| r.base))),
        ("norm epsilon", spec.out.norm.eps.to_string()),
        ("logit scale", spec.out.scale.to_string()),
        ("logit cap", number(spec.out.cap)),
    ]);
    if spec.out.tied {
        rows.push(("head", "the embedding".to_owned()));
    }
    rows
}

/// Formats a metadata value of a GGUF file for people: on one line, cut after 100
/// characters.
fn short(value: &Value) -> String {
    const MOST: usize = 100;
    let text = match value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    };
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}… ({} characters)", &text[..at], text.chars().count()),
        None => text,
    }
}

fn as_text(name: &str, gguf: &Gguf, model: &Model, all: bool) -> String {
    let mut text = String::new();
    let parameters: u64 = gguf.tensors().iter().map(|t| t.n_elements).sum();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{name}: GGUF v{}, {}, {} tensors, {parameters} parameters\n\nMetadata",
        gguf.version(),
        output::bytes(gguf.file_len()),
        gguf.tensors().len(),
    );
    for entry in gguf.metadata().iter() {
        let _ = writeln!(text, "  {:<44} {}", plain(&entry.key), short(&entry.value));
    }
    let _ = writeln!(text, "\nGeometry");
    for (name, value) in model.spec.iter().flat_map(geometry) {
        let _ = writeln!(text, "  {name:<16} {value}");
    }
    if let Some(why) = &model.refusal {
        let _ = writeln!(text, "  not a model that muser runs: {}", plain(why));
    }
    let _ = writeln!(
        text,
        "\nTensors\n  {:<36} {:<6} {:>6} {:>16} {:>16}  use",
        "class", "format", "count", "elements", "bytes"
    );
    for ((class, ty), group) in groups(gguf.tensors(), model) {
        let Group {
            usage,
            count,
            elements,
            bytes,
        } = group;
        let class = plain(&class);
        let _ = writeln!(
            text,
            "  {class:<36} {ty:<6} {count:>6} {elements:>16} {bytes:>16}  {usage}"
        );
    }
    if all {
        let _ = writeln!(text, "\nEvery tensor");
        for t in gguf.tensors() {
            let _ = writeln!(
                text,
                "  {:<36} {:<6} {:<18} {:>14} bytes at {}",
                plain(&t.name),
                t.ty.to_string(),
                format!("{:?}", t.dims),
                t.byte_len,
                t.offset
            );
        }
    }
    text
}

fn as_json(name: &str, gguf: &Gguf, model: &Model, all: bool) -> serde_json::Value {
    let metadata: serde_json::Map<String, serde_json::Value> = gguf
        .metadata()
        .iter()
        .map(|entry| (entry.key.clone(), value_json(&entry.value)))
        .collect();
    let classes: Vec<_> = groups(gguf.tensors(), model)
        .into_iter()
        .map(|((class, ty), group)| {
            json!({ "class": class, "format": ty, "use": group.usage, "count": group.count,
                    "elements": group.elements, "bytes": group.bytes })
        })
        .collect();
    let mut report = json!({
        "file": name,
        "version": gguf.version(),
        "bytes": gguf.file_len(),
        "metadata": metadata,
        "classes": classes,
    });
    if let Some(spec) = &model.spec {
        report["geometry"] = geometry_json(spec);
    }
    if let Some(why) = &model.refusal {
        report["unsupported"] = json!(why);
    }
    if all {
        let tensor = |t: &TensorInfo| {
            json!({ "name": t.name, "format": t.ty.to_string(), "dims": t.dims,
                    "offset": t.offset, "bytes": t.byte_len })
        };
        report["tensors"] = gguf.tensors().iter().map(tensor).collect();
    }
    report
}

fn geometry_json(spec: &Spec) -> serde_json::Value {
    let layer = spec.layers.first();
    let attn = layer.map(|l| l.attn);
    let sliding = spec.layers.iter().map(|l| l.attn.window.is_some());
    json!({
        "architecture": spec.arch,
        "layers": spec.layers.len(), "sliding": sliding.collect::<Vec<_>>(),
        "window": spec.window(), "hidden": spec.hidden,
        "heads": attn.map(|a| a.heads), "kv_heads": attn.map(|a| a.kv_heads),
        "head_dim": attn.map(|a| a.head_dim), "ffn": layer.map(|l| l.ffn.width()),
        "vocab": spec.vocab, "context": spec.context,
        "rope_base": spec.ropes.first().map(|r| shortest(r.base)),
        "rms_eps": shortest(spec.out.norm.eps), "logit_scale": shortest(spec.out.scale),
        "softcap": spec.out.cap.map(shortest), "tied": spec.out.tied,
    })
}

/// Converts an f32 to the f64 of its shortest decimal text, for JSON: 0.1, not
/// 0.10000000149011612. Returns `None`, which becomes null, for an infinity or a NaN.
fn shortest(x: f32) -> Option<f64> {
    x.to_string().parse().ok().filter(|x: &f64| x.is_finite())
}

/// Converts a metadata value of a GGUF file to JSON. Of an array longer than 16 only the
/// type, the length and the first elements are kept.
fn value_json(value: &Value) -> serde_json::Value {
    const MOST: usize = 16;
    match value {
        Value::String(text) => json!(text),
        Value::Bool(b) => json!(b),
        Value::F32(x) => json!(shortest(*x)),
        Value::F64(x) => json!(x),
        Value::Array(array) => {
            let first: Vec<_> = array.iter().take(MOST).map(|v| value_json(&v)).collect();
            if array.len() <= MOST {
                return json!(first);
            }
            json!({ "type": array.elem().to_string(), "length": array.len(), "first": first })
        }
        integer => match integer.as_integer() {
            Some(i) => i64::try_from(i).map_or_else(|_| json!(i as u64), |i| json!(i)),
            None => serde_json::Value::Null,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_no_layer_number() {
        assert_eq!(class("blk.12.attn_q.weight"), "blk.N.attn_q.weight");
        assert_eq!(class("output.weight"), "output.weight");
    }
}

//! `muser budget`: shows what computing a token costs, in bytes read and operations, from a
//! GGUF file's header alone.

use crate::cli::Common;
use crate::exit::BadModel;
use crate::table::{Table, grouped, share};
use crate::{backend, load, measure, output};
use clap::Args;
use muser_model::budget::{Class, Pass, Traffic};
use muser_model::{Budget, Want};
use muser_quant::DType;
use serde_json::json;
use std::path::PathBuf;

/// Shows what computing a token costs: the bytes that it reads, by class of tensors, by
/// weight format and by layer; KV and operations by depth; and the tokens a second
/// that a bandwidth allows. Reads the file's header only.
#[derive(Debug, Args)]
#[command(after_help = "\
A depth counts the positions that a token sees, its own included. Operations
are a multiplication and an addition a weight, and those of attention. The
roofline is what reading alone allows, one token at a time.

Examples:
  muser budget model.gguf
  muser budget model.gguf --bandwidth 33.4 --depths 1,2048,131072
  muser budget model.gguf --layers
  muser budget model.gguf --json --bandwidth 100 | jq .depths")]
pub(crate) struct BudgetArgs {
    /// The GGUF file; without it, the model of --model
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Memory read bandwidth in GB/s; without it, measured on this machine
    #[arg(long, value_name = "GB/S", value_parser = bandwidth)]
    bandwidth: Option<f64>,
    /// Depths to compute for: positions that a token sees, its own included; without it,
    /// some up to the model's context
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    depths: Vec<u32>,
    /// List every layer, not groups of equal ones
    #[arg(long)]
    layers: bool,
    /// Print the result as one JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn bandwidth(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x.is_finite() && x > 0.0 => Ok(x),
        _ => Err("expected a number above 0".to_owned()),
    }
}

/// Runs `muser budget` with these arguments.
pub(crate) fn run(common: &Common, args: &BudgetArgs) -> anyhow::Result<()> {
    let path = args.file.as_deref().or(common.model.as_deref());
    let (name, gguf) = load::file(path)?;
    let budget = Budget::of(&gguf).map_err(|e| BadModel {
        path: name.clone(),
        source: e.into(),
    })?;
    let bandwidth = match args.bandwidth {
        Some(x) => x * 1e9,
        None => backend::open(common)?.read_bandwidth(measure::buffer(None)),
    };
    let report = Report {
        name,
        file_bytes: gguf.file_len(),
        depths: depths(args, &budget),
        bandwidth,
        measured: args.bandwidth.is_none(),
        budget,
    };
    if args.json {
        return output::json(&report.json());
    }
    let text = report.text(args.layers);
    Ok(output::line(format_args!("{}", text.trim_end()))?)
}

/// Returns the depths (positions that a token sees) to print: those of `--depths`, or 1,
/// then 512, 2048, … below the model's context, and the context.
fn depths(args: &BudgetArgs, budget: &Budget) -> Vec<usize> {
    if !args.depths.is_empty() {
        return args.depths.iter().map(|&d| d as usize).collect();
    }
    let context = budget.spec().context;
    let mut depths = vec![1];
    depths.extend([512, 2048, 8192, 32_768].iter().filter(|&&d| d < context));
    depths.push(context);
    depths.dedup();
    depths
}

struct Report {
    name: String,
    file_bytes: u64,
    budget: Budget,
    depths: Vec<usize>,
    /// The memory read bandwidth that speeds are computed for, in bytes per second.
    bandwidth: f64,
    measured: bool,
}

/// The properties by which layers are grouped: whether the layer has sliding attention, and
/// the weight formats of each class of its tensors.
type Kind = (bool, Vec<Vec<DType>>);

/// Returns the name of a class of tensors for people; that of the attention set (Q, K, V and
/// gate) lists the matrices in `set`.
fn title(class: Class, set: &[(&str, u64)]) -> String {
    let name = match class {
        Class::EmbeddingRow => "embedding, one row",
        Class::AttentionSet => {
            let names: Vec<&str> = set.iter().map(|(name, _)| *name).collect();
            return format!("attention set {}", names.join(" "));
        }
        Class::AttentionOutput => "attention output",
        Class::FfnGate => "FFN gate",
        Class::FfnUp => "FFN up",
        Class::FfnDown => "FFN down",
        Class::Head => "head",
        Class::Norms => "norms",
    };
    name.to_owned()
}

fn names(dtypes: &[DType]) -> String {
    let names: Vec<&str> = dtypes.iter().map(|d| d.name()).collect();
    names.join(" ")
}

impl Report {
    fn text(&self, every_layer: bool) -> String {
        let b = &self.budget;
        format!(
            "{}: {}, {} parameters, {} of them in the projections of a token\n\n\
             A token reads\n{}\nBy format\n{}\n{}\nBy layer\n{}\nBy depth, at {:.1} GB/s{}\n{}",
            self.name,
            output::bytes(self.file_bytes),
            grouped(b.parameters()),
            grouped(b.matmul_weights()),
            self.classes(),
            self.dtypes(),
            self.one_layer(),
            self.layers(every_layer),
            self.bandwidth / 1e9,
            if self.measured { ", measured" } else { "" },
            self.by_depth(),
        )
    }

    fn classes(&self) -> String {
        let all = self.budget.token();
        let mut table = Table::new(["", "weights", "bytes", "share", "formats"]);
        let set = self.attention_set();
        let mut row = |name: &str, traffic: Traffic, formats: String| {
            let share = share(traffic.bytes as f64, all.bytes as f64);
            let figures = [traffic.weights, traffic.bytes].map(grouped);
            let [weights, bytes] = figures;
            table.row([name.to_owned(), weights, bytes, share, formats]);
        };
        for class in Class::ALL {
            let formats = names(&self.budget.dtypes(class, None));
            row(&title(class, &set), self.budget.class(class, None), formats);
        }
        row("all", all, String::new());
        table.text()
    }

    fn dtypes(&self) -> String {
        let all = self.budget.token().bytes;
        let mut table = Table::new(["", "weights", "bytes", "share"]);
        for (dtype, part) in self.budget.by_dtype() {
            let share = share(part.bytes as f64, all as f64);
            let [weights, bytes] = [part.weights, part.bytes].map(grouped);
            table.row([dtype.name().to_owned(), weights, bytes, share]);
        }
        table.text()
    }

    /// Formats the numbers of weights in a layer's projections, the same in all layers, and
    /// the bytes that the attention set (Q, K, V and gate) takes in each K-quant format.
    fn one_layer(&self) -> String {
        let b = &self.budget;
        let of = |class| b.class(class, Some(0)).weights;
        let [set, output, gate, up, down] = [
            Class::AttentionSet,
            Class::AttentionOutput,
            Class::FfnGate,
            Class::FfnUp,
            Class::FfnDown,
        ]
        .map(of);
        let all = set + output + gate + up + down;
        let parts = self.attention_set().into_iter();
        let parts: Vec<String> = parts
            .map(|(name, n)| format!("{name} {}", grouped(n)))
            .collect();
        let mut text = format!(
            "Projections of a layer: {} weights\n  attention set  {} = {} ({})\n",
            grouped(all),
            parts.join(" + "),
            grouped(set),
            share(set as f64, all as f64),
        );
        let as_dtype = |dtype: &DType| {
            let bytes = b.class_as(Class::AttentionSet, 0, *dtype)?;
            Some(format!("{} at {dtype}", output::bytes(bytes)))
        };
        let quants = [DType::Q4K, DType::Q5K, DType::Q6K];
        let bytes: Vec<String> = quants.iter().filter_map(as_dtype).collect();
        if !bytes.is_empty() {
            text += &format!("                 {}\n", bytes.join(", "));
        }
        text + &format!(
            "  output         {} ({})\n  FFN            gate {} + up {} + down {} ({})\n",
            grouped(output),
            share(output as f64, all as f64),
            grouped(gate),
            grouped(up),
            grouped(down),
            share((gate + up + down) as f64, all as f64),
        )
    }

    /// Returns the matrices of the first layer's attention set (Q, K, V and gate), each with
    /// its name and number of weights.
    fn attention_set(&self) -> Vec<(&'static str, u64)> {
        let first = self.budget.tensors().iter().filter(|t| t.layer == Some(0));
        let set = first.filter(|t| Class::of(t.role) == Class::AttentionSet);
        let name = |class: &'static str| class.strip_prefix("attn_").unwrap_or(class);
        set.map(|t| (name(t.role.class()), t.rows as u64 * t.cols as u64))
            .collect()
    }

    fn kind(&self, layer: usize) -> Kind {
        let dtypes = |class| self.budget.dtypes(class, Some(layer));
        let sliding = self.budget.spec().layer_window(layer).is_some();
        (sliding, Class::ALL.map(dtypes).to_vec())
    }

    fn layers(&self, every: bool) -> String {
        let mut groups: Vec<(Kind, Vec<usize>)> = Vec::new();
        for layer in 0..self.budget.spec().layers.len() {
            let kind = self.kind(layer);
            match groups.iter_mut().find(|g| g.0 == kind && !every) {
                Some(group) => group.1.push(layer),
                None => groups.push((kind, vec![layer])),
            }
        }
        let mut table = Table::new([
            "layers", "kind", "each", "set", "output", "gate", "up", "down", "norms",
        ]);
        let mut notes = String::new();
        for (n, ((sliding, _), layers)) in groups.iter().enumerate() {
            let class = |class| {
                let bytes = output::bytes(self.budget.class(class, Some(layers[0])).bytes);
                match class {
                    Class::Norms => bytes,
                    _ => format!(
                        "{bytes} {}",
                        names(&self.budget.dtypes(class, Some(layers[0])))
                    ),
                }
            };
            let name = if every {
                layers[0].to_string()
            } else {
                notes += &format!("  ({}) {}\n", n + 1, ranges(layers));
                format!("{} ({})", layers.len(), n + 1)
            };
            table.row([
                name,
                if *sliding { "sliding" } else { "full" }.to_owned(),
                output::bytes(self.budget.layer(layers[0]).bytes),
                class(Class::AttentionSet),
                class(Class::AttentionOutput),
                class(Class::FfnGate),
                class(Class::FfnUp),
                class(Class::FfnDown),
                class(Class::Norms),
            ]);
        }
        table.text() + &notes
    }

    fn pass(&self, depth: usize) -> Pass {
        self.budget.forward(depth - 1, 1, Want::Last)
    }

    fn by_depth(&self) -> String {
        let mut table = Table::new([
            "positions",
            "KV",
            "KV held",
            "read",
            "GFLOP",
            "FLOP/byte",
            "tok/s",
        ]);
        for &depth in &self.depths {
            let pass = self.pass(depth);
            table.row([
                grouped(depth as u64),
                grouped(self.budget.kv_slot(depth)),
                grouped(self.budget.kv_held(depth)),
                output::bytes(pass.bytes()),
                format!("{:.3}", pass.flops as f64 / 1e9),
                format!("{:.2}", pass.intensity()),
                format!("{:.2}", pass.roofline(self.bandwidth)),
            ]);
        }
        table.text()
    }

    fn json(&self) -> serde_json::Value {
        let b = &self.budget;
        let part = |p: Traffic| json!({ "weights": p.weights, "bytes": p.bytes });
        let formats = |class, layer| {
            let dtypes = b.dtypes(class, layer);
            dtypes.iter().map(|d| d.name()).collect::<Vec<_>>()
        };
        let classes = |layer: Option<usize>| -> serde_json::Map<String, serde_json::Value> {
            let of = |class: Class| {
                let mut value = part(b.class(class, layer));
                value["formats"] = json!(formats(class, layer));
                (class.name().to_owned(), value)
            };
            let own =
                |c: &Class| layer.is_none() || !matches!(c, Class::EmbeddingRow | Class::Head);
            Class::ALL.into_iter().filter(own).map(of).collect()
        };
        let layer = |i: usize| {
            json!({ "layer": i, "sliding": b.spec().layer_window(i).is_some(),
                    "bytes": b.layer(i).bytes, "classes": classes(Some(i)) })
        };
        let depth = |&depth: &usize| {
            let pass = self.pass(depth);
            json!({ "positions": depth, "kv_bytes": b.kv_slot(depth),
                    "kv_held_bytes": b.kv_held(depth), "bytes": pass.bytes(),
                    "flops": pass.flops, "flops_per_byte": pass.intensity(),
                    "roofline_tok_s": pass.roofline(self.bandwidth) })
        };
        let dtypes = b.by_dtype().into_iter();
        json!({
            "file": self.name,
            "file_bytes": self.file_bytes,
            "parameters": b.parameters(),
            "matmul_weights": b.matmul_weights(),
            "token": part(b.token()),
            "classes": classes(None),
            "formats": dtypes.map(|(d, p)| (d.name().to_owned(), part(p)))
                .collect::<serde_json::Map<_, _>>(),
            "layers": (0..b.spec().layers.len()).map(layer).collect::<Vec<_>>(),
            "bandwidth": self.bandwidth,
            "bandwidth_measured": self.measured,
            "depths": self.depths.iter().map(depth).collect::<Vec<_>>(),
        })
    }
}

/// Formats ascending numbers as ranges: `0-2, 4-6, 8`.
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let run = |&(a, b): &(usize, usize)| match a == b {
        true => a.to_string(),
        false => format!("{a}-{b}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_numbers() {
        assert_eq!(ranges(&[0, 1, 2, 4, 6, 7]), "0-2, 4, 6-7");
        assert_eq!(ranges(&[]), "");
    }
}

//! `muser routes`: shows the ladder, the table of which kernel computes which operation.

use crate::cli::Common;
use crate::exit::BadModel;
use crate::{load, output};
use clap::Args;
use muser_cpu::ladder::{LADDER, OPERATIONS, RowRule, Rung, rungs};
use muser_model::{Budget, Role};
use muser_ops::{Lane, Profile};
use muser_quant::DType;
use std::collections::BTreeMap;

/// Shows the ladder: the table of which kernel computes a matrix product, by lane (the
/// arithmetic), weight format, rows of the matrix and width of the batch, and which
/// function of llama.cpp that is.
///
/// In the strict lane the choice of the kernel changes no bit. In the pinned lane
/// (llama.cpp's arithmetic) another kernel is another arithmetic, at the same widths as
/// in llama.cpp.
#[derive(Debug, Args)]
#[command(after_help = "\
With a model (--model, or --embedded for the one inside), each rung lists the
matrices that take it.

Examples:
  muser routes
  muser routes --model FILE.gguf
  muser routes --embedded --only pinned
  muser routes --json | jq '.products[] | select(.lane == \"pinned\")'")]
pub(crate) struct RoutesArgs {
    /// List the embedded model's matrices with the kernels that they take
    #[arg(long)]
    embedded: bool,
    /// Show only the kernels of this lane (the arithmetic): strict or pinned
    #[arg(long, value_name = "LANE", value_parser = ["strict", "pinned"])]
    only: Option<String>,
    /// Print the tables as Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Print the result as one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// A rung (one line of the kernel table) for one weight format, as `muser routes` prints
/// it.
#[derive(serde::Serialize)]
struct Product {
    lane: &'static str,
    format: String,
    /// The kernel's condition on the matrix's number of rows, in words: `any`, `multiple
    /// of 8`, …
    rows: String,
    /// The batch widths for which the kernel is used, in words: `2 to 7`, `8 and more`, …
    columns: String,
    /// Which columns (tokens) of a batch the kernel computes: `all`, `groups of 4` or
    /// `after groups`.
    part: &'static str,
    kernel: String,
    /// The function of llama.cpp whose bits the kernel gives; `None` in the strict lane
    /// (muser's own arithmetic).
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<&'static str>,
    /// The number of the model's matrices that take this kernel, for each class of
    /// tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<BTreeMap<String, usize>>,
}

#[derive(serde::Serialize)]
struct Other {
    operation: &'static str,
    rows: &'static str,
    strict: &'static str,
    pinned: &'static str,
    reference: &'static str,
}

#[derive(serde::Serialize)]
struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    products: Vec<Product>,
    operations: Vec<Other>,
}

/// Runs `muser routes` with these arguments.
pub(crate) fn run(common: &Common, args: &RoutesArgs) -> anyhow::Result<()> {
    let model = match (&common.model, args.embedded) {
        (None, false) => None,
        (path, _) => {
            let (name, gguf) = load::file(path.as_deref())?;
            let budget = Budget::of(&gguf).map_err(|e| BadModel {
                path: name.clone(),
                source: e.into(),
            })?;
            Some((name, budget))
        }
    };
    let budget = model.as_ref().map(|(_, budget)| budget);
    let wanted = |rung: &&Rung| args.only.as_ref().is_none_or(|lane| lane == rung.lane);
    let products = LADDER.iter().filter(wanted).flat_map(|rung| {
        let of = |&dtype: &DType| product(rung, dtype, budget);
        rung.dtypes.iter().filter_map(of)
    });
    let others = OPERATIONS.iter().map(|o| Other {
        operation: o.name,
        rows: o.rows,
        strict: o.strict,
        pinned: o.pinned,
        reference: o.reference,
    });
    let report = Report {
        products: products.collect(),
        operations: others.collect(),
        model: model.map(|(name, _)| name),
    };
    if args.json {
        return output::json(&report);
    }
    let text = tables(&report, args.markdown);
    Ok(output::line(format_args!("{}", text.trim_end()))?)
}

/// Returns the printed line of a rung (one line of the kernel table) for a weight format;
/// with a model, `None` if none of its matrices takes it.
fn product(rung: &Rung, dtype: DType, budget: Option<&Budget>) -> Option<Product> {
    let tensors = budget.map(|budget| tensors(rung, dtype, budget));
    if tensors.as_ref().is_some_and(BTreeMap::is_empty) {
        return None;
    }
    let columns = match rung.to {
        Some(to) if to == rung.from => to.to_string(),
        Some(to) => format!("{} to {to}", rung.from),
        None => format!("{} and more", rung.from),
    };
    let rows = match rung.rows {
        RowRule::Any => "any".to_owned(),
        RowRule::Multiple(n) => format!("multiple of {n}"),
        RowRule::NoMultiple(n) => format!("no multiple of {n}"),
    };
    Some(Product {
        lane: rung.lane,
        format: dtype.to_string(),
        rows,
        columns,
        part: rung.columns.name(),
        kernel: rung.family.kernel(dtype),
        reference: rung.route.map(|r| r.reference()),
        tensors,
    })
}

/// Counts the model's matrices that take a rung (one line of the kernel table) at some width
/// of the batch, by tensor class.
fn tensors(rung: &Rung, dtype: DType, budget: &Budget) -> BTreeMap<String, usize> {
    let lane = match rung.lane {
        "strict" => Lane::Strict,
        // Both profiles (builds of llama.cpp) have the same rungs, so that one stands for
        // both.
        _ => Lane::Pinned(Profile::LlamaCppAvx2),
    };
    let mut classes = BTreeMap::new();
    let matrices = budget.tensors().iter().filter(|t| {
        // Rows of the embedding are decoded, not multiplied: no product takes a kernel.
        t.dtype == dtype && !t.role.is_vector() && t.role != Role::Embedding
    });
    for tensor in matrices {
        let takes = |width| {
            let mut all = rungs(lane, dtype, tensor.rows, width);
            all.any(|(r, _)| r == rung)
        };
        if (1..=64).any(takes) {
            *classes.entry(tensor.role.class().to_owned()).or_default() += 1;
        }
    }
    classes
}

fn tables(report: &Report, markdown: bool) -> String {
    let mut head = vec![
        "lane",
        "format",
        "rows",
        "columns",
        "part",
        "kernel",
        "in llama.cpp",
    ];
    if report.model.is_some() {
        head.push("matrices");
    }
    let rows = report.products.iter().map(|p| {
        let mut row = vec![
            p.lane.to_owned(),
            p.format.clone(),
            p.rows.clone(),
            p.columns.clone(),
            p.part.to_owned(),
            p.kernel.clone(),
            p.reference.unwrap_or("-").to_owned(),
        ];
        if let Some(tensors) = &p.tensors {
            let list = tensors.iter().map(|(class, n)| format!("{class} x {n}"));
            row.push(list.collect::<Vec<_>>().join(", "));
        }
        row
    });
    let mut text = String::new();
    if let Some(model) = &report.model {
        text += &format!("{}\n\n", output::plain(model));
    }
    text += &table(&head, &rows.collect::<Vec<_>>(), markdown);
    text.push('\n');
    let head = ["operation", "rows", "strict", "pinned", "in llama.cpp"];
    let rows = report.operations.iter().map(|o| {
        [o.operation, o.rows, o.strict, o.pinned, o.reference]
            .map(str::to_owned)
            .to_vec()
    });
    text += &table(&head, &rows.collect::<Vec<_>>(), markdown);
    text
}

/// Formats a table of left-aligned columns, as plain text or as Markdown.
fn table(head: &[&str], rows: &[Vec<String>], markdown: bool) -> String {
    let head: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
    let mut text = String::new();
    if markdown {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        text += &line(&head);
        text += &format!("|{}\n", " --- |".repeat(head.len()));
        rows.iter().for_each(|row| text += &line(row));
        return text;
    }
    let width = |c: usize| {
        let cells = rows.iter().chain([&head]).filter_map(|row| row.get(c));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for row in std::iter::once(&head).chain(rows) {
        let cells = row.iter().zip(&widths).map(|(c, &w)| format!("{c:<w$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text += line.trim_end();
        text.push('\n');
    }
    text
}

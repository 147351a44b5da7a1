//! llama.cpp as the reference that muser's backends are compared with bit for bit:
//! talks to the `op` and `model` servers of the comparator, `muser-reference`.

use super::graph::{Graph, Tensor, graph};
use super::question::{Activations, ModelRun, Question, Recent, Side};
use crate::reference::{Process, build, check};
use muser_ops::Weight;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Number of tensors that the comparator's `op` server (llama.cpp as a process) keeps
/// between requests: enough for the weight matrices of two row lengths and their
/// inputs, more than any set of products needs.
const KEPT: usize = 24;

/// Starts one of the comparator's servers (llama.cpp as a process, `op` or `model`) and
/// reads its greeting, which says what its build of llama.cpp is. llama.cpp's log, on
/// standard error, is dropped.
fn server(program: &Path, name: &str) -> Result<(Process, Value), String> {
    let mut process = Process::start(program, &[name.to_owned()], Stdio::null())?;
    let info = process.line()?;
    Ok((process, info))
}

/// The running comparator: processes of llama.cpp, built as one reference profile says.
/// Its `model` server, which runs whole models, starts when it is first needed.
pub(super) struct Comparator {
    program: PathBuf,
    ops: Process,
    /// What the comparator reports of its build of llama.cpp: version, compiler, CPU
    /// features.
    info: Value,
    kept: Recent<()>,
    models: Option<Process>,
    /// Folder of the file in which the comparator's `model` server, llama.cpp as a
    /// process, returns logits.
    scratch: PathBuf,
}

impl Comparator {
    /// Builds the comparator (llama.cpp as a program, built as a reference profile
    /// says) and starts it.
    ///
    /// # Errors
    /// The comparator does not build or start, is of another profile, or runs
    /// with environment variables that change llama.cpp's kernels.
    pub(super) fn start(root: &Path, profile: &str, scratch: &Path) -> Result<Self, String> {
        let program = build(root, profile)?;
        let (ops, info) = server(&program, "op")?;
        check(&info, profile)?;
        Ok(Self {
            program,
            ops,
            info,
            kept: Recent::new(KEPT),
            models: None,
            scratch: scratch.to_owned(),
        })
    }

    /// Returns what the comparator reports of its build of llama.cpp, as JSON.
    pub(super) fn facts(&self) -> &Value {
        &self.info
    }

    /// Describes the comparator's build of llama.cpp in one line: version, compiler,
    /// CPU features.
    pub(super) fn describe(&self) -> String {
        let info = &self.info;
        let features = info["features"].as_object().into_iter().flatten();
        let on: Vec<&str> = features
            .filter(|(_, on)| **on == json!(true))
            .map(|(name, _)| name.as_str())
            .collect();
        let text = |v: &Value| v.as_str().unwrap_or("?").to_owned();
        format!(
            "{} {}, ggml {}, {}, {}",
            text(&info["crate"]["name"]),
            text(&info["crate"]["version"]),
            text(&info["ggml"]["version"]),
            text(&info["build"]["compiler"]["cxx"]),
            on.join(" ")
        )
    }

    fn model(&mut self, run: &ModelRun<'_>, threads: usize) -> Result<Vec<f32>, String> {
        if self.models.is_none() {
            self.models = Some(server(&self.program, "model")?.0);
        }
        let Some(models) = &mut self.models else {
            return Err("no process".to_owned());
        };
        let out = self.scratch.join("logits.f32");
        // llama.cpp attends over whole pages of 256 positions; a smaller context would
        // cut the last page short.
        let context = run.ids.len().next_multiple_of(256).max(512);
        let request = json!({
            "model": run.path, "ids": run.ids, "chunks": run.calls, "threads": threads,
            "n_ctx": context, "n_batch": context, "out": out,
            "last": run.last,
        });
        models.ask(&request, &[])?;
        let bytes = std::fs::read(&out).map_err(|e| format!("{}: {e}", out.display()))?;
        Ok(muser_quant::f32::read(&bytes))
    }

    fn run(&mut self, graph: &Graph<'_>, threads: usize) -> Result<Vec<f32>, String> {
        let reply = self.ops.ask(&graph.head(threads), &graph.data)?;
        let outputs = reply["tensors"].as_array().into_iter().flatten();
        let bytes: u64 = outputs.filter_map(|t| t["bytes"].as_u64()).sum();
        self.ops.floats(bytes as usize / 4)
    }

    fn project(
        &mut self,
        set: &[&Weight],
        x: &Activations,
        threads: usize,
    ) -> Result<Vec<f32>, String> {
        let mut graph = Graph::default();
        let mut names: Vec<&str> = set.iter().map(|w| w.name()).collect();
        let input = if x.name.is_empty() { "x" } else { &x.name };
        if x.name.is_empty() {
            graph.send(input, Tensor::rows(x), false);
        } else {
            names.push(input);
        }
        for name in self.kept.missing(&names) {
            let w = set.iter().find(|w| w.name() == name);
            let tensor = w.map_or_else(|| Tensor::rows(x), |w| Tensor::weight(w, true));
            graph.send(name, tensor, true);
            graph.drop.extend(self.kept.add(name, ()));
        }
        for (i, w) in set.iter().enumerate() {
            graph.output(&format!("y{i}"), "mul_mat", &[w.name(), input], json!({}));
        }
        self.run(&graph, threads)
    }
}

impl Side for Comparator {
    fn answer(&mut self, question: &Question<'_>, threads: usize) -> Result<Vec<f32>, String> {
        match question {
            Question::Model(run) => self.model(run, threads),
            Question::Project { set, x } => self.project(set, x, threads),
            other => self.run(&graph(other), threads),
        }
    }
}

//! llama.cpp as one side of the comparison of speed: talks to the `bench` server of the
//! comparator (llama.cpp as a separate process), which times forward calls of a model.

use super::side::{Answer, Chain, Side};
use crate::reference::{Process, check};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;

/// llama.cpp as one side of the comparison of speed: a running `bench` server of the
/// comparator (llama.cpp as a separate process).
pub(super) struct Reference {
    pub(super) process: Process,
    /// What the comparator's `bench` server reports of its build of llama.cpp: version,
    /// compiler, CPU features.
    pub(super) info: Value,
    /// The message of the comparator's `bench` server that its model is loaded: loading
    /// time, parameters of the context, memory.
    pub(super) ready: Value,
}

/// Returns the arguments that start the comparator's `bench` server (llama.cpp as a
/// process). The context has at least 512 positions: a smaller one would cut
/// llama.cpp's micro-batch.
pub(super) fn arguments(model: &Path, context: usize, swa_full: bool) -> Vec<String> {
    let mut args = vec![
        "bench".to_owned(),
        "--model".to_owned(),
        model.display().to_string(),
        "--context".to_owned(),
        context.next_multiple_of(256).max(512).to_string(),
    ];
    args.extend(swa_full.then(|| "--swa-full".to_owned()));
    args
}

impl Reference {
    /// Starts the comparator's `bench` server, llama.cpp as a process, on a model and
    /// sends it the tokens that the calls will process.
    ///
    /// # Errors
    /// The server does not start, is of another profile, or runs with
    /// environment variables that change llama.cpp's kernels.
    pub(super) fn start(
        program: &Path,
        profile: &str,
        args: &[String],
        tokens: &[u32],
    ) -> Result<Self, String> {
        let mut process = Process::start(program, args, Stdio::inherit())?;
        let info = process.line()?;
        check(&info, profile)?;
        let ready = process.reply()?;
        process.ask(&json!({ "tokens": tokens }), &[])?;
        Ok(Self {
            process,
            info,
            ready,
        })
    }

    /// Describes the comparator's build of llama.cpp in one line: version and compiler.
    pub(super) fn describe(&self) -> String {
        let text = |v: &Value| v.as_str().unwrap_or("?").to_owned();
        format!(
            "{} {}, ggml {}, {}",
            text(&self.info["crate"]["name"]),
            text(&self.info["crate"]["version"]),
            text(&self.info["ggml"]["version"]),
            text(&self.info["build"]["compiler"]["cxx"]),
        )
    }
}

impl Side for Reference {
    fn run(&mut self, chain: &Chain) -> Result<Answer, String> {
        let reply = self.process.ask(&chain.json(), &[])?;
        Answer::parse(&reply)
    }
}

//! Programs that are asked by lines of JSON: llama.cpp's side, and ours where
//! a process is opened only to see what opening costs.

use super::side::{Answer, Chain, Side};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running program.
pub(super) struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    pub(super) fn start(program: &Path, args: &[String]) -> Result<Self, String> {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (to, from) = pipes.ok_or("no pipes")?;
        Ok(Self {
            child,
            to,
            from: BufReader::new(from),
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request. Several may be on their way: nothing is written back
    /// that would fill a pipe.
    pub(super) fn send(&mut self, request: &Value) -> Result<(), String> {
        let line = format!("{request}\n");
        let sent = self.to.write_all(line.as_bytes());
        sent.and_then(|()| self.to.flush())
            .map_err(|e| format!("sending a request: {e}"))
    }

    /// Reads one line as it is.
    pub(super) fn line(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(0) => Err("the process ended".to_owned()),
            Ok(_) => serde_json::from_str(&line).map_err(|e| format!("{e}: {line}")),
            Err(e) => Err(format!("reading a reply: {e}")),
        }
    }

    /// Reads a reply that must say that all went well.
    pub(super) fn reply(&mut self) -> Result<Value, String> {
        match self.line()? {
            reply if reply["ok"] == json!(true) => Ok(reply),
            reply => Err(format!("{}", reply["error"])),
        }
    }

    pub(super) fn ask(&mut self, request: &Value) -> Result<Value, String> {
        // A reply explains a pipe that broke: read it before giving up.
        let sent = self.send(request);
        let reply = self.reply()?;
        sent.map(|()| reply)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process is of no use without this end of its pipes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// llama.cpp as a side.
pub(super) struct Reference {
    pub(super) process: Process,
    /// What it says that it is: version, compiler, features.
    pub(super) info: Value,
    /// What it says when it is ready: times, parameters, memory.
    pub(super) ready: Value,
}

/// The options of its server. A context below 512 would cut its micro-batch.
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
    /// Starts it on a model and tells it the tokens.
    ///
    /// # Errors
    /// It does not start or is not what was asked for: the environment can
    /// change llama.cpp's routes at run time.
    pub(super) fn start(
        program: &Path,
        profile: &str,
        args: &[String],
        tokens: &[u32],
    ) -> Result<Self, String> {
        let mut process = Process::start(program, args)?;
        let info = process.line()?;
        if info["profile"] != json!(profile) {
            return Err(format!("the comparator is not {profile}: {info}"));
        }
        let set = &info["overrides"];
        if set.as_object().is_some_and(|o| !o.is_empty()) {
            return Err(format!(
                "the environment changes llama.cpp's routes: unset {set}"
            ));
        }
        let ready = process.reply()?;
        process.ask(&json!({ "tokens": tokens }))?;
        Ok(Self {
            process,
            info,
            ready,
        })
    }

    /// What it is, in a line.
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
        let reply = self.process.ask(&chain.json());
        let reply = reply.map_err(|e| format!("llama.cpp: {e}"))?;
        Answer::parse(&reply)
    }
}

//! Measures what opening a model file costs llama.cpp and muser: in each round a fresh
//! process of each side, from its start to the logits of the first token, with its
//! memory then and after the widest call.

use super::ours::Ours;
use super::side::{Chain, Side};
use super::stats::Spread;
use crate::reference::Process;
use muser_cpu::Level;
use muser_model::gguf::Gguf;
use muser_ops::{Lane, Profile};
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

/// Program and arguments of a process of llama.cpp or of muser that is started to time
/// how long opening a model file takes.
pub(super) struct Start {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
}

/// What opening a model file cost llama.cpp, or muser in one lane (strict or pinned
/// arithmetic): times and memory, one value per benchmark round.
#[derive(Clone, Debug, Default)]
pub(super) struct Opened {
    /// Seconds from the start of the process to the logits of the first token, one
    /// value per benchmark round.
    pub(super) seconds: Vec<f64>,
    /// Resident memory of the process after the first token, in bytes, one value per
    /// benchmark round.
    pub(super) resident: Vec<f64>,
    /// Resident memory of the process that is not mapped from a file, in bytes, one
    /// value per benchmark round.
    pub(super) anonymous: Vec<f64>,
    /// Peak of the process's resident memory up to the end of the widest forward call,
    /// in bytes, one value per benchmark round.
    pub(super) peak: Vec<f64>,
}

impl Opened {
    pub(super) fn json(&self) -> Value {
        json!({
            "first_token_s": self.seconds, "resident_bytes": self.resident,
            "anonymous_bytes": self.anonymous, "peak_bytes": self.peak,
        })
    }
}

/// Opens the model file in fresh processes of llama.cpp and of muser in turn, for
/// `rounds` rounds. One round before them brings the file into the page cache and is
/// not counted.
pub(super) fn measure(
    starts: &[Start],
    tokens: &[u32],
    (threads, width, rounds): (usize, usize, usize),
) -> Result<Vec<Opened>, String> {
    let mut all = vec![Opened::default(); starts.len()];
    for round in 0..=rounds {
        for (start, opened) in starts.iter().zip(&mut all) {
            let (seconds, first, end) = once(start, tokens, threads, width)?;
            if round == 0 {
                continue;
            }
            let bytes = |reply: &Value, name: &str| {
                let bytes = reply["memory"][name].as_f64();
                bytes.ok_or_else(|| format!("no memory.{name} in {reply}"))
            };
            opened.seconds.push(seconds);
            opened.resident.push(bytes(&first, "resident")?);
            opened.anonymous.push(bytes(&first, "anonymous")?);
            opened.peak.push(bytes(&end, "peak")?);
        }
    }
    Ok(all)
}

/// Runs one fresh process that opens the model file and computes. Returns the seconds
/// to the first token's logits, the reply to that call, and the reply to the widest
/// call.
fn once(
    start: &Start,
    tokens: &[u32],
    threads: usize,
    width: usize,
) -> Result<(f64, Value, Value), String> {
    let call = |width| Chain {
        threads,
        depth: 0,
        width,
        calls: 1,
        warm: false,
    };
    let clock = Instant::now();
    let mut process = Process::start(&start.program, &start.args, Stdio::inherit())?;
    // Both requests are sent before the process is ready, so that it never waits for
    // one.
    process.send(&json!({ "tokens": tokens }), &[])?;
    process.send(&call(1).json(), &[])?;
    process.line()?;
    process.reply()?;
    process.reply()?;
    let first = process.reply()?;
    let seconds = clock.elapsed().as_secs_f64();
    let end = process.ask(&call(width).json(), &[])?;
    Ok((seconds, first, end))
}

/// Name of the hidden command of `muser-bench` that `compare` starts to time how long
/// muser takes to open a model.
pub const SERVE: &str = "serve-compare";

/// Arguments of the hidden command that opens a model as muser's side of a comparison
/// of speed with llama.cpp.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Serve {
    /// Model file, GGUF
    model: PathBuf,
    /// Instruction-set level of the kernels: scalar, avx2 or avx512
    level: Level,
    /// Profile (build of llama.cpp) whose arithmetic to use, in the pinned lane;
    /// without it, the strict lane
    profile: Option<Profile>,
}

/// Returns the command-line arguments of a process that runs [`serve`]: muser's side of
/// a comparison of speed with llama.cpp.
pub(super) fn arguments(model: &str, level: Level, lane: Lane) -> Vec<String> {
    let mut words = vec![SERVE, model, level.name()];
    words.extend(lane.profile().map(Profile::name));
    words.into_iter().map(str::to_owned).collect()
}

/// Answers requests for timed calls, which come on standard input, as muser's side of a
/// comparison in a process of its own. The protocol is that of llama.cpp's side, the
/// comparator's `bench` server.
///
/// # Errors
/// The file cannot be opened, or a pipe breaks. A bad request is answered with
/// its error.
pub fn serve(options: &Serve) -> Result<(), String> {
    let Serve {
        model,
        level,
        profile,
    } = options;
    let level = *level;
    let lane = profile.map_or(Lane::Strict, Lane::Pinned);
    let gguf = Gguf::open(model).map_err(|e| e.to_string())?;
    let mut output = std::io::stdout().lock();
    let mut say = |reply: Value| {
        let said = writeln!(output, "{reply}").and_then(|()| output.flush());
        said.map_err(|e| format!("writing a reply: {e}"))
    };
    say(json!({ "program": "muser" }))?;
    say(json!({ "ok": true }))?;
    let mut ours = Ours::new(&gguf, level, lane, &[]);
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| format!("reading a request: {e}"))?;
        let reply = answer(&gguf, level, lane, &mut ours, &line);
        say(reply.unwrap_or_else(|e| json!({ "ok": false, "error": e })))?;
    }
    Ok(())
}

fn answer(
    gguf: &Gguf,
    level: Level,
    lane: Lane,
    ours: &mut Ours,
    line: &str,
) -> Result<Value, String> {
    let request: Value = serde_json::from_str(line).map_err(|e| format!("request: {e}"))?;
    if let Some(tokens) = request["tokens"].as_array() {
        let tokens = tokens.iter().filter_map(Value::as_u64);
        let tokens: Vec<u32> = tokens.filter_map(|t| u32::try_from(t).ok()).collect();
        *ours = Ours::new(gguf, level, lane, &tokens);
        return Ok(json!({ "ok": true }));
    }
    let mut reply = ours.run(&Chain::parse(&request)?)?.json();
    reply["memory"] = memory(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
    Ok(reply)
}

/// Parses the memory use of a process from the text of its `/proc` `status` file:
/// resident, anonymous (not mapped from a file) and peak memory in bytes.
fn memory(status: &str) -> Value {
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        kib.checked_mul(1024)
    };
    json!({
        "resident": field("VmRSS:"),
        "anonymous": field("RssAnon:"),
        "peak": field("VmHWM:"),
    })
}

/// Formats the table of what opening a model file of `file` bytes cost: a line for
/// llama.cpp and for each of muser's lanes (strict and pinned arithmetic), with ratios
/// to the first line.
pub(super) fn table(sides: &[&str], opened: &[Opened], file: u64) -> String {
    let mut text = format!(
        "  {:<10} {:>26} {:>12} {:>12} {:>12} {:>12} {:>14}\n",
        "",
        "s to first token",
        "of llama.cpp",
        "resident MB",
        "own MB",
        "peak MB",
        "peak - file MB"
    );
    let base = opened.first().map(|o| Spread::of(&o.seconds).median);
    for (side, o) in sides.iter().zip(opened) {
        let seconds = Spread::of(&o.seconds);
        let mega = |bytes: &[f64]| Spread::of(bytes).median / 1e6;
        let beyond = mega(&o.peak) - file as f64 / 1e6;
        let Spread { median, min, max } = seconds;
        text += &format!(
            "  {side:<10} {:>26} {:>12.3} {:>12.0} {:>12.0} {:>12.0} {beyond:>14.0}\n",
            format!("{median:.3} ({min:.3}-{max:.3})"),
            median / base.unwrap_or(median),
            mega(&o.resident),
            mega(&o.anonymous),
            mega(&o.peak),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::path::Path;

    #[test]
    fn memory_is_read_from_the_status() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\nRssAnon:\t 512 kB\n";
        let memory = memory(status);
        assert_eq!(memory["peak"], json!(2 << 20));
        assert_eq!(memory["anonymous"], json!(512 << 10));
        assert_eq!(super::memory("")["resident"], Value::Null);
    }

    #[test]
    fn the_table_is_relative_to_its_first_line() {
        let side = |s: f64, mb: f64| Opened {
            seconds: vec![s, s],
            resident: vec![mb * 1e6],
            anonymous: vec![1e6],
            peak: vec![mb * 1e6],
        };
        let text = table(
            &["a", "b"],
            &[side(2.0, 900.0), side(0.5, 430.0)],
            400_000_000,
        );
        let line: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(
            line,
            [
                "b",
                "0.500",
                "(0.500-0.500)",
                "0.250",
                "430",
                "1",
                "430",
                "30"
            ]
        );
    }

    #[test]
    fn a_server_is_started_with_what_it_takes() {
        #[derive(Debug, Parser)]
        struct Line {
            #[command(flatten)]
            serve: Serve,
        }
        for lane in [Lane::Strict, Lane::Pinned(Profile::LlamaCppAvx2)] {
            let words = arguments("m.gguf", Level::Avx2, lane);
            assert_eq!(words[0], SERVE);
            let serve = Line::try_parse_from(words).unwrap().serve;
            assert_eq!(
                (serve.model.as_path(), serve.level),
                (Path::new("m.gguf"), Level::Avx2)
            );
            assert_eq!(serve.profile, lane.profile());
        }
        for (words, about) in [
            (&["", "m.gguf"][..], "<LEVEL>"),
            (&["", "m.gguf", "sse"], "sse"),
            (&["", "m.gguf", "avx2", "other"], "other"),
        ] {
            let error = Line::try_parse_from(words).unwrap_err().to_string();
            assert!(error.contains(about), "{error}");
        }
    }
}

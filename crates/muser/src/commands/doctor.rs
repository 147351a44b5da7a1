//! `muser doctor`: shows what this machine gives: instruction-set levels, kernels, threads
//! and read bandwidth.

use crate::cli::Common;
use crate::{backend, embedded, measure, output};
use clap::Args;
use muser_cpu::Level;
use muser_ops::Backend as _;

/// Shows what this machine gives: instruction-set levels, the kernels chosen, threads,
/// and the read bandwidth that decoding is measured against.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  muser doctor
  muser doctor --level avx2 --threads 1
  muser doctor --json | jq .read_bandwidth")]
pub(crate) struct DoctorArgs {
    /// Size in MiB of the buffer that the read bandwidth is measured over; without it,
    /// four times the largest cache, 256 MiB at least
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=65536))]
    buffer: Option<u32>,
    /// Print the result as one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// The JSON object that `muser doctor --json` prints: what the machine and this build give.
#[derive(serde::Serialize)]
struct Report {
    version: &'static str,
    target: String,
    lane: String,
    lane_version: u32,
    level: String,
    levels: Vec<LevelReport>,
    threads: usize,
    threads_available: usize,
    /// The measured memory read bandwidth in bytes per second.
    read_bandwidth: f64,
    kernels: Vec<String>,
    embedded_model: Option<usize>,
}

#[derive(serde::Serialize)]
struct LevelReport {
    level: &'static str,
    available: bool,
    missing: Vec<&'static str>,
}

/// Runs `muser doctor` with these arguments.
pub(crate) fn run(common: &Common, args: &DoctorArgs) -> anyhow::Result<()> {
    let device = backend::open(common)?;
    let info = device.info();
    let level = |level: &Level| LevelReport {
        level: level.name(),
        available: level.is_available(),
        missing: level.missing(),
    };
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        lane: info.lane.to_string(),
        lane_version: info.lane.version(),
        level: info.level.clone(),
        levels: Level::ALL.iter().map(level).collect(),
        threads: info.threads,
        threads_available: std::thread::available_parallelism().map_or(1, usize::from),
        read_bandwidth: device.read_bandwidth(measure::buffer(args.buffer)),
        kernels: device.kernels(),
        embedded_model: embedded::file().map(<[u8]>::len),
    };
    if args.json {
        return output::json(&report);
    }
    Ok(output::line(format_args!("{}", report.text(args)))?)
}

impl Report {
    fn text(&self, args: &DoctorArgs) -> String {
        let levels: Vec<String> = self.levels.iter().map(LevelReport::text).collect();
        let embedded = match self.embedded_model {
            Some(bytes) => output::bytes(bytes as u64),
            None => "none".to_owned(),
        };
        let rows = [
            ("muser", format!("{} on {}", self.version, self.target)),
            ("lane", format!("{} v{}", self.lane, self.lane_version)),
            ("level", format!("{} of {}", self.level, levels.join(", "))),
            (
                "threads",
                format!("{} of {}", self.threads, self.threads_available),
            ),
            (
                "read bandwidth",
                format!(
                    "{:.1} GB/s over {} MiB",
                    self.read_bandwidth / 1e9,
                    measure::buffer(args.buffer) >> 20
                ),
            ),
            ("embedded model", embedded),
            ("kernels", self.kernels.len().to_string()),
        ];
        let mut text = String::new();
        for (name, value) in rows {
            text += &format!("{name:<16}{value}\n");
        }
        for kernel in &self.kernels {
            text += &format!("  {kernel}\n");
        }
        text.truncate(text.trim_end().len());
        text
    }
}

impl LevelReport {
    fn text(&self) -> String {
        if self.available {
            return self.level.to_owned();
        }
        format!("{} (not here: {})", self.level, self.missing.join(" "))
    }
}

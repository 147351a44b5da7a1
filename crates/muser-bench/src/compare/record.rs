//! Writes the record of a comparison of speed: every sample as CSV, facts and medians
//! as JSON.

use super::open::Opened;
use super::rounds::{Limit, Row, SIDES};
use super::stats::Spread;
use muser_ops::Profile;
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The measurements of a comparison of speed against one reference profile (a build of
/// llama.cpp).
pub(super) struct ProfileRun {
    pub(super) profile: Profile,
    pub(super) level: String,
    pub(super) comparator: Value,
    pub(super) limits: Vec<Limit>,
    pub(super) rows: Vec<Row>,
    pub(super) opened: Vec<Opened>,
    /// How quiet the machine was during the comparison: the shares of the CPUs that
    /// other processes took, and that llama.cpp and muser took while they should have
    /// been idle.
    pub(super) load: Value,
}

const HEAD: &str = "profile,level,threads,depth,width,calls,round,side,call_seconds,mean_seconds,tokens_per_second";

/// Formats all timed samples of llama.cpp and of muser's lanes (strict and pinned
/// arithmetic) as CSV, one line per sample.
pub(super) fn csv(runs: &[ProfileRun]) -> String {
    let mut text = format!("{HEAD}\n");
    for run in runs {
        for row in &run.rows {
            for (round, samples) in row.samples.iter().enumerate() {
                for (side, sample) in SIDES.iter().zip(samples) {
                    text += &format!(
                        "{},{},{},{},{},{},{},{side},{:.9},{:.9},{:.3}\n",
                        run.profile.name(),
                        run.level,
                        row.chain.threads,
                        row.chain.depth,
                        row.chain.width,
                        sample.calls,
                        round + 1,
                        sample.call,
                        sample.mean,
                        row.chain.width as f64 / sample.call,
                    );
                }
            }
        }
    }
    text
}

/// Returns the results of a comparison of speed against one reference profile (a build
/// of llama.cpp) as JSON: machine limits, speeds with their spread, costs of opening.
pub(super) fn summary(run: &ProfileRun) -> Value {
    let row = |row: &Row| {
        let side = |i: usize| row.rate(i).json();
        let share = |i: usize| row.rate(i).median / row.limit;
        json!({
            "threads": row.chain.threads, "depth": row.chain.depth, "width": row.chain.width,
            "calls_in_chain": row.chain.calls, "chains_in_sample": row.chains,
            "tok_s": { "llama.cpp": side(0), "strict": side(1), "pinned": side(2) },
            "speedup": {
                "strict": row.speedup(0, 1).json(), "pinned": row.speedup(0, 2).json(),
                "pinned_to_strict": row.speedup(1, 2).json(),
            },
            "limit_tok_s": row.limit, "limit_by": row.bound,
            "limit_share": { "llama.cpp": share(0), "strict": share(1), "pinned": share(2) },
            "proof": {
                "strict": row.proof.strict, "pinned": row.proof.pinned,
                "pinned_is_llama.cpp": row.proof.equal,
            },
        })
    };
    let limit = |l: &Limit| {
        json!({
            "threads": l.threads, "read_bytes_per_second": l.bandwidth,
            "int8_ops_per_second": l.int8_peak,
        })
    };
    let open = SIDES.iter().zip(&run.opened);
    let open = open.map(|(side, o)| ((*side).to_owned(), o.json()));
    json!({
        "profile": run.profile.name(),
        "level": run.level,
        "comparator": run.comparator,
        "limits": run.limits.iter().map(limit).collect::<Vec<_>>(),
        "results": run.rows.iter().map(row).collect::<Vec<_>>(),
        "open": open.collect::<serde_json::Map<_, _>>(),
        "load": run.load,
    })
}

/// Paths of the two files that record a comparison of speed: samples as CSV, facts and
/// medians as JSON.
pub(super) struct RecordFiles {
    csv: PathBuf,
    json: PathBuf,
}

impl RecordFiles {
    /// Returns the paths of the two files that record a comparison of speed, for a date
    /// and a name.
    ///
    /// # Errors
    /// A record of this date and name exists; records are not overwritten.
    pub(super) fn new(root: &Path, date: &str, name: &str) -> Result<Self, String> {
        let folder = root.join("benches/records");
        let file = |ending: &str| folder.join(format!("{date}-{name}.{ending}"));
        let place = Self {
            csv: file("csv"),
            json: file("json"),
        };
        for path in [&place.csv, &place.json] {
            if path.exists() {
                return Err(format!(
                    "{}: there is such a record already",
                    path.display()
                ));
            }
        }
        Ok(place)
    }

    /// Writes the CSV and the JSON file that record a comparison of speed.
    pub(super) fn write(&self, csv: &str, json: &Value) -> Result<(), String> {
        if let Some(folder) = self.csv.parent() {
            fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        for (path, text) in [(&self.csv, csv), (&self.json, &format!("{json:#}\n"))] {
            let file = OpenOptions::new().write(true).create_new(true).open(path);
            file.and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(|e| format!("{}: {e}", path.display()))?;
            println!("{}", path.display());
        }
        Ok(())
    }
}

/// Returns the heading of the table of speeds of llama.cpp and muser.
pub(super) fn heading() -> String {
    format!(
        "  {:>7} {:>6} {:>5} {:>9} {:>8} {:>18} {:>8} {:>18} {:>18} {:>7} {:>4} {:>6} {:>6}  {}",
        "threads",
        "depth",
        "width",
        "llama.cpp",
        "strict",
        "to llama.cpp",
        "pinned",
        "to llama.cpp",
        "to strict",
        "limit",
        "by",
        "strict",
        "pinned",
        "llama.cpp's bits"
    )
}

/// Formats the speeds of one configuration (threads, depth, width) as a line of the
/// table: tokens a second, ratios with their spread, shares of the machine's limit.
pub(super) fn line(row: &Row) -> String {
    use super::stats::digits;
    let rate = |i: usize| digits(row.rate(i).median);
    let share = |i: usize| format!("{:.0} %", 100.0 * row.rate(i).median / row.limit);
    let ratio = |spread: Spread| spread.to_string();
    format!(
        "  {:>7} {:>6} {:>5} {:>9} {:>8} {:>18} {:>8} {:>18} {:>18} {:>7} {:>4} {:>6} {:>6}  {}",
        row.chain.threads,
        row.chain.depth,
        row.chain.width,
        rate(0),
        rate(1),
        ratio(row.speedup(0, 1)),
        rate(2),
        ratio(row.speedup(0, 2)),
        ratio(row.speedup(1, 2)),
        digits(row.limit),
        row.bound,
        share(1),
        share(2),
        match row.proof.equal {
            Some(true) => "equal",
            Some(false) => "different",
            None => "not compared",
        }
    )
}

#[cfg(test)]
mod tests {
    use super::super::rounds::tests::row;
    use super::*;

    fn run() -> ProfileRun {
        ProfileRun {
            profile: Profile::LlamaCppAvx2,
            level: "avx2".to_owned(),
            comparator: json!({}),
            limits: vec![Limit {
                threads: 2,
                bandwidth: 1e9,
                int8_peak: None,
            }],
            rows: vec![row()],
            opened: Vec::new(),
            load: Value::Null,
        }
    }

    #[test]
    fn every_sample_is_a_line_of_as_many_fields() {
        let text = csv(&[run(), run()]);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').collect()).collect();
        assert_eq!(lines.len(), 1 + 2 * 3 * 3);
        assert!(lines.iter().all(|l| l.len() == lines[0].len()));
        let second = "llamacpp-avx2,avx2,2,0,4,2,1,strict,0.200000000,0.200000000,20.000";
        assert_eq!(lines[2].join(","), second);
    }

    #[test]
    fn the_summary_has_medians_and_proofs() {
        let json = summary(&run());
        let row = &json["results"][0];
        assert_eq!(row["tok_s"]["llama.cpp"]["median"], json!(10.0));
        assert_eq!(row["speedup"]["strict"]["median"], json!(4.0));
        assert_eq!(row["limit_share"]["strict"], json!(0.25));
        assert_eq!(row["proof"]["pinned_is_llama.cpp"], json!(true));
        assert_eq!(json["limits"][0]["int8_ops_per_second"], Value::Null);
    }

    #[test]
    fn lines_stand_under_their_headings() {
        let (head, line) = (heading(), line(&row()));
        assert_eq!(
            head.find("width").map(|i| i + 5),
            line.find("    4 ").map(|i| i + 5)
        );
        assert!(
            line.contains("4.00 (2.00-4.00)") && line.ends_with("equal"),
            "{line}"
        );
        assert!(line.contains("25 %"), "{line}");
    }

    #[test]
    fn a_record_is_not_rewritten() {
        let root = tempfile::tempdir().unwrap();
        let place = RecordFiles::new(root.path(), "2026-01-01", "x").unwrap();
        place.write("a,b\n", &json!({ "c": 1 })).unwrap();
        let path = root.path().join("benches/records/2026-01-01-x.csv");
        assert_eq!(fs::read_to_string(path).unwrap(), "a,b\n");
        assert!(RecordFiles::new(root.path(), "2026-01-01", "x").is_err());
        assert!(place.write("", &json!({})).is_err());
    }
}

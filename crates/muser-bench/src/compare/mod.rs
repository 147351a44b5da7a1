//! `cargo xtask compare`: times llama.cpp and muser on the same model file, in turn.
//!
//! For each reference profile (a build of llama.cpp) that the machine can run, or
//! `--profile`: builds the comparator (llama.cpp as a program), loads the model into
//! its process and into this one at the profile's own instruction-set level
//! (`llamacpp-avx2` against `avx2`, …), and goes through thread counts, depths
//! (positions stored before a call) and widths (tokens in a call). A round is a sample
//! of llama.cpp, one of the strict lane (muser's own arithmetic) and one of the pinned
//! lane (llama.cpp's arithmetic); a ratio is the median over rounds of ratios within a
//! round, so that a slow phase of the machine does not change it. Ends with the cost of
//! opening the file, a fresh process each time.
//!
//! *What is compared.* A call takes `width` tokens of one sequence and gives the logits
//! of the last one: `Want::Last` in muser, a batch with one logits flag in llama.cpp,
//! the same work. The calls of a sample follow each other from the depth on; the
//! positions before it are stored once, untimed, and the cache is cut back to them. No
//! token is sampled on either side. llama.cpp runs as its tools do: weights repacked,
//! flash attention where it chooses, a thread pool that lives on between calls, a ring
//! buffer as the KV cache of the sliding-window layers unless `--swa-full`.
//!
//! *What is refused.* No answer is timed before it is proved: the strict lane's logits
//! must not depend on the width, the pinned lane's must be llama.cpp's (where
//! llama.cpp's ring has wrapped, its sums have another order: the table then says `not
//! compared`), and each sample must end in the proved logits. A run in which both sides
//! computed at once is refused too: the idle side's CPU time is counted.
//!
//! The limit that the table shows is what the machine's read bandwidth and peak of int8
//! operations allow, both measured in the same run on as many threads, for the bytes
//! and operations of the strict lane.

mod clock;
mod llamacpp;
mod machine;
mod open;
mod options;
mod ours;
mod record;
mod rounds;
mod side;
mod stats;

use clock::Ticks;
use llamacpp::Reference;
use muser_cpu::{Level, beyond_caches};
use muser_model::Budget;
use muser_model::gguf::Gguf;
use muser_ops::{Lane, Profile};
use open::Start;
pub use open::{SERVE, Serve, serve};
pub use options::Options;
use ours::Ours;
use record::{ProfileRun, RecordFiles};
use rounds::{Limit, Rounds, SIDES};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

/// Number of times that the machine's read bandwidth is measured; the highest result
/// counts.
const TRIES: usize = 5;
/// CPU time that llama.cpp may use while muser computes, or the other way round, as a
/// share of one CPU; a comparison of speed with more is refused.
const MOST_OVERLAP: f64 = 0.02;
/// Share of all CPUs that other processes may take while the machine still counts as
/// quiet.
const QUIET: f64 = 0.05;

/// Times llama.cpp and muser as the options ask, prints the table and writes the record
/// if one is asked for; `root` is the repository.
///
/// # Errors
/// This is not a release build; a side does not start, gives wrong logits or
/// computed while it should have been idle; the record exists.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    if cfg!(debug_assertions) {
        return Err(
            "compare times a release build only: use `cargo xtask compare` or --release".to_owned(),
        );
    }
    let profiles = options.profiles()?;
    let model = options.model(root);
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let place = options.record.as_ref();
    let place = place
        .map(|name| RecordFiles::new(root, &date, name))
        .transpose()?;
    let gguf = Gguf::open(&model).map_err(|e| e.to_string())?;
    let budget = Budget::of(&gguf).map_err(|e| e.to_string())?;
    let subject = Comparison {
        root,
        options,
        model: &model,
        gguf: &gguf,
        positions: options.positions(budget.spec().context)?,
        budget: &budget,
    };
    let (machine, build) = (machine::facts(), machine::build(root));
    println!("{}, {}", text(&machine["cpu"]), text(&build["rustc"]));
    let mut runs = Vec::new();
    for profile in profiles {
        runs.push(subject.run(profile)?);
    }
    let Some(place) = place else {
        return Ok(());
    };
    let facts = json!({
        "date": date,
        "machine": machine,
        "muser": build,
        "model": subject.facts(),
        "rounds": options.rounds,
        "sample_seconds": options.sample(),
        "llama.cpp_swa_full": options.swa_full,
        "runs": runs.iter().map(record::summary).collect::<Vec<_>>(),
    });
    place.write(&record::csv(&runs), &facts)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

/// The model file and the options of one comparison of speed between llama.cpp and
/// muser.
struct Comparison<'a> {
    root: &'a Path,
    options: &'a Options,
    model: &'a Path,
    gguf: &'a Gguf,
    budget: &'a Budget,
    /// Number of positions in the KV cache that the timed calls need.
    positions: usize,
}

impl Comparison<'_> {
    /// Returns the facts of the model for the record of a comparison of speed: name,
    /// size, layers, widths.
    fn facts(&self) -> Value {
        let spec = self.budget.spec();
        let file = self.model.file_name();
        json!({
            "file": file.map(|f| f.to_string_lossy()),
            "name": spec.name,
            "file_bytes": self.gguf.file_len(),
            "bytes_per_token": self.budget.token().bytes,
            "parameters": self.budget.parameters(),
            "layers": spec.layers.len(),
            "hidden": spec.hidden,
            "ffn": spec.ffn_width(),
            "vocabulary": spec.vocab,
            "window": spec.window(),
        })
    }

    fn run(&self, profile: Profile) -> Result<ProfileRun, String> {
        let o = self.options;
        let level = crate::level(profile);
        let program = crate::reference::build(self.root, profile.name())?;
        let tokens = side::tokens(self.positions, self.budget.spec().vocab);
        let limits = self.limits(level)?;
        let lane = Lane::Pinned(profile);
        let mut strict = Ours::new(self.gguf, level, Lane::Strict, &tokens);
        let mut pinned = Ours::new(self.gguf, level, lane, &tokens);
        let args = llamacpp::arguments(self.model, self.positions, o.swa_full);
        let mut reference = Reference::start(&program, profile.name(), &args, &tokens)?;
        self.print_head(profile, level, &reference, &limits);
        let comparator = machine::comparator(&reference.info, &reference.ready["params"]);
        let before = (Ticks::now(), spent(&reference), Instant::now());
        let mut rounds = Rounds {
            process: reference.process.id(),
            reference: &mut reference,
            strict: &mut strict,
            pinned: &mut pinned,
            budget: self.budget,
            rounds: o.rounds,
            sample: o.sample(),
            room: self.positions,
            swa_full: o.swa_full,
            overlap: Default::default(),
        };
        let mut rows = Vec::new();
        let mut depth = 0;
        for point in o.points() {
            if point.depth != depth {
                depth = point.depth;
                eprintln!("storing {depth} positions on each side, once");
            }
            let limit = limits.iter().find(|l| l.threads == point.threads);
            let row = rounds.run(point, limit.ok_or("no limit")?)?;
            println!("{}", record::line(&row));
            rows.push(row);
        }
        let overlap = rounds.overlap.map(|o| o.share());
        let load = load(before, spent(&reference), overlap)?;
        drop((reference, strict, pinned));
        let opened = match o.open_rounds {
            0 => Vec::new(),
            rounds => self.open(profile, &program, &tokens, rounds)?,
        };
        Ok(ProfileRun {
            profile,
            level: level.to_string(),
            comparator,
            limits,
            rows,
            opened,
            load,
        })
    }

    /// Measures the machine's limits for each number of threads: memory read bandwidth
    /// and peak of int8 operations.
    fn limits(&self, level: Level) -> Result<Vec<Limit>, String> {
        let mut threads: Vec<usize> = self.options.points().iter().map(|p| p.threads).collect();
        threads.sort_unstable();
        threads.dedup();
        let limit = |&threads: &usize| {
            let cpu = ours::cpu(level, Lane::Strict, threads)?;
            // The best of several measurements is nearest to what the machine can do.
            let tries = (0..TRIES).map(|_| cpu.read_bandwidth(beyond_caches()));
            Ok(Limit {
                threads,
                bandwidth: tries.fold(0.0, f64::max),
                int8_peak: cpu.int8_peak(),
            })
        };
        threads.iter().map(limit).collect()
    }

    fn print_head(&self, profile: Profile, level: Level, reference: &Reference, l: &[Limit]) {
        println!("\n{profile}: {}; ours at {level}", reference.describe());
        for limit in l {
            let peak = limit.int8_peak.map_or("no int8 peak".to_owned(), |peak| {
                format!("int8 peak {:.0} GOP/s", peak / 1e9)
            });
            let (threads, read) = (limit.threads, limit.bandwidth / 1e9);
            println!("threads {threads}: read bandwidth {read:.1} GB/s, {peak}");
        }
        println!("tokens a second, ratios by round, shares of the limit");
        println!("{}", record::heading());
    }

    /// Measures what opening the model file costs llama.cpp and muser, in time and
    /// memory, and prints the table.
    fn open(
        &self,
        profile: Profile,
        program: &Path,
        tokens: &[u32],
        rounds: usize,
    ) -> Result<Vec<open::Opened>, String> {
        let widest = self.options.widths().last().copied().unwrap_or(1);
        let tokens = &tokens[..widest.max(1).min(tokens.len())];
        let model = self.model.display().to_string();
        let level = crate::level(profile);
        let me = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
        let ours = |lane| Start {
            program: me.clone(),
            args: open::arguments(&model, level, lane),
        };
        let args = llamacpp::arguments(self.model, tokens.len(), self.options.swa_full);
        let reference = Start {
            program: program.to_owned(),
            args,
        };
        let starts = [reference, ours(Lane::Strict), ours(Lane::Pinned(profile))];
        let threads = self.options.threads();
        let opened = open::measure(&starts, tokens, (threads, widest, rounds))?;
        println!("\nopening, {rounds} fresh processes a side; peak after a call of {widest}");
        print!("{}", open::table(&SIDES, &opened, self.gguf.file_len()));
        Ok(opened)
    }
}

/// Returns the CPU time that llama.cpp's process and this one have used so far, in
/// seconds.
fn spent(reference: &Reference) -> Option<f64> {
    let theirs = clock::process(reference.process.id())?;
    Some(theirs + clock::process(std::process::id())?)
}

/// Prints and returns how quiet the machine was during a comparison: the share of all
/// CPUs that other processes took, and the CPU time that llama.cpp and muser used while
/// they should have been idle.
///
/// # Errors
/// A side computed while it should have been idle.
fn load(
    (ticks, spent, start): (Option<Ticks>, Option<f64>, Instant),
    spent_now: Option<f64>,
    [reference, ours]: [Option<f64>; 2],
) -> Result<Value, String> {
    for (who, share) in [("llama.cpp", reference), ("muser", ours)] {
        if let Some(share) = share.filter(|&s| s > MOST_OVERLAP) {
            return Err(format!(
                "{who} used {:.1} % of a CPU while it should have been idle: the run does not count",
                100.0 * share
            ));
        }
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let all = start.elapsed().as_secs_f64() * cpus;
    let shares = ticks.zip(Ticks::now()).map(|(then, now)| now.since(then));
    let own = spent.zip(spent_now).map(|(then, now)| (now - then) / all);
    let others = shares
        .zip(own)
        .map(|((busy, _), own)| (busy - own).max(0.0));
    let steal = shares.map(|(_, steal)| steal);
    if others.is_some_and(|share| share > QUIET) {
        println!("the machine was not quiet: these figures say little");
    }
    let percent = |x: Option<f64>| x.map_or("?".to_owned(), |x| format!("{:.1} %", 100.0 * x));
    println!(
        "others took {} of the CPUs, the host {}; the idle side used {} (llama.cpp), {} (muser) of one",
        percent(others),
        percent(steal),
        percent(reference),
        percent(ours),
    );
    Ok(json!({
        "others_share": others, "steal_share": steal,
        "idle_llama.cpp_share": reference, "idle_muser_share": ours,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_that_overlap_do_not_count() {
        let before = || (None, None, Instant::now());
        let fine = load(before(), None, [Some(0.01), None]).unwrap();
        assert_eq!(fine["idle_muser_share"], Value::Null);
        let error = load(before(), None, [Some(0.0), Some(0.5)]).unwrap_err();
        assert!(error.starts_with("muser used 50.0 %"), "{error}");
        assert!(load(before(), None, [Some(0.021), None]).is_err());
    }
}

//! `cargo xtask parity`: compares muser's pinned lane (llama.cpp's arithmetic) with
//! llama.cpp itself, bit for bit.
//!
//! For each reference profile (a build of llama.cpp) it builds the comparator, asks it
//! and muser's backends the same questions, and compares every value: products of every
//! weight format and rung of the ladder (the table that chooses a kernel by shape),
//! every other operation of a forward pass, whole models. Prints a table by kernel and
//! level: cases, values compared, values that differ, and cases left out because a
//! subject (a backend under test) is too slow for them or the selection is the quick
//! one. For a failing case, prints the first difference. Fails if a value differs or a
//! kernel was not compared at all.
//!
//! Without `--subject`, the CPU backend is compared at every instruction-set level that
//! the machine has and, in small cases, the scalar oracle (the backend that defines the
//! bits) as well.
//!
//! A profile (a build of llama.cpp) whose comparator the machine cannot run is reported
//! as NOT RUN; if no profile could be run, the command fails.
//!
//! Backends under test are used through the [`muser_ops::Backend`] trait only: the K/V
//! cache is tested through attention, quantised activations through products.

mod attention;
mod comparator;
mod graph;
mod inputs;
mod models;
mod operations;
mod options;
mod ours;
mod products;
mod question;
pub mod receipts;
mod selection;
mod table;
#[cfg(test)]
mod tests;

use comparator::Comparator;
use muser_cpu::{Cpu, CpuOptions, Level};
use muser_ops::pinned::project::covers;
use muser_ops::{Lane, Profile, pinned};
use muser_quant::DType;
pub use options::Options;
use ours::Ours;
use selection::Selection;
use std::path::Path;
use std::time::Instant;
use table::{Judge, Subject};

/// Largest test case that the CPU backend runs at the scalar instruction-set level, in
/// multiply-adds: for the quick selection of test cases and for the full one.
const SCALAR: [u64; 2] = [1 << 20, 1 << 22];
const ORACLE: [u64; 2] = [1 << 18, 1 << 20];
/// Largest run of a whole model on the CPU backend at the scalar instruction-set level,
/// in multiply-adds: for the quick selection of test cases and for the full one.
const SCALAR_MODEL: [u64; 2] = [600 << 20, 1 << 32];
const ORACLE_MODEL: [u64; 2] = [1 << 26, 1 << 29];

/// Compares muser's backends with llama.cpp bit for bit, as the options ask, and prints
/// the tables of values that differ; `root` is the repository.
///
/// # Errors
/// Values differ, a kernel was not compared at all, no profile could be run, or
/// the options fit no group.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    if !groups().iter().any(|g| options.takes(g)) {
        return Err(format!(
            "--only: no group holds it: {}",
            groups().join(", ")
        ));
    }
    // Refuses a bad `--level` now, before minutes of building llama.cpp.
    options.levels()?;
    let (mut faults, mut ran) = (Vec::new(), 0);
    for profile in options.profiles() {
        if let Some(why) = cannot_run(profile) {
            println!("{profile}: NOT RUN: its comparator needs {why}, which this machine lacks");
            continue;
        }
        ran += 1;
        for fault in run_profile(root, options, profile)? {
            faults.push(format!("{profile}: {fault}"));
        }
    }
    if ran == 0 {
        return Err("no profile was compared".to_owned());
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(faults.join("\n")),
    }
}

/// Returns the CPU features that a reference profile (a build of llama.cpp) needs and
/// this machine lacks. muser itself needs none: it computes every profile at every
/// instruction-set level.
fn cannot_run(profile: Profile) -> Option<String> {
    let level = crate::level(profile);
    (!level.is_available()).then(|| level.missing().join(", "))
}

/// Compares muser with the llama.cpp build of one reference profile; returns a line for
/// each kernel that failed.
fn run_profile(root: &Path, options: &Options, profile: Profile) -> Result<Vec<String>, String> {
    let start = Instant::now();
    let scratch = tempfile::tempdir().map_err(|e| format!("a temporary folder: {e}"))?;
    let mut reference = Comparator::start(root, profile.name(), scratch.path())?;
    let seed = options.seed;
    println!("{profile}, seed {seed}: {}", reference.describe());
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let selection = Selection {
        profile,
        seed,
        quick: options.quick,
        most_threads: available.clamp(2, 8),
    };
    let mut faults = Vec::new();
    let mut total = table::Counts::default();
    for of_models in [false, true] {
        let groups = groups().into_iter().filter(|g| options.takes(g));
        let groups: Vec<String> = groups
            .filter(|g| g.starts_with("model/") == of_models)
            .collect();
        if groups.is_empty() {
            continue;
        }
        let subjects = subjects(options, profile, of_models)?;
        let mut judge = Judge::new(&mut reference, subjects);
        for group in groups {
            run_group(&mut judge, &selection, root, scratch.path(), &group)?;
            eprintln!("  {group}: {} s", start.elapsed().as_secs());
        }
        print!("{}", judge.table());
        faults.extend(judge.verdict());
        let t = judge.total();
        total.cases += t.cases;
        total.values += t.values;
        total.different += t.different;
        total.left_out += t.left_out;
    }
    println!(
        "{profile}, seed {seed}: {} cases, {} values compared, {} different, {} cases left out\n",
        total.cases, total.values, total.different, total.left_out
    );
    Ok(faults)
}

/// Returns the names of all groups of test cases, of which the option `--only` selects
/// some: `project/q4_k`, `attention`, `model/nano`, …
fn groups() -> Vec<String> {
    let covered = DType::ALL.into_iter().filter(|&d| covers(d));
    let products = covered.map(|d| format!("project/{}", d.key()));
    let operations = operations::GROUPS.map(|(name, _)| name.to_owned());
    let attention = ["kv_store", "attention"].map(str::to_owned);
    let models = models::names().map(|name| format!("model/{name}"));
    let all = products.chain(operations).chain(attention);
    all.chain(models).collect()
}

fn run_group(
    judge: &mut Judge<'_>,
    selection: &Selection,
    root: &Path,
    scratch: &Path,
    group: &str,
) -> Result<(), String> {
    if let Some(name) = group.strip_prefix("model/") {
        return models::run(judge, selection, root, scratch, name);
    }
    if let Some(dtype) = group.strip_prefix("project/").and_then(DType::from_name) {
        return products::run(judge, selection, dtype);
    }
    match operations::GROUPS.iter().find(|(name, _)| *name == group) {
        Some((_, run)) => run(judge, selection),
        None if group == "kv_store" => attention::kv_store(judge, selection),
        None => attention::run(judge, selection),
    }
}

/// Opens the backends of muser to compare with llama.cpp, each with the cost of the
/// largest test case that it runs; `models` asks for the limits of whole model runs.
fn subjects(options: &Options, profile: Profile, models: bool) -> Result<Vec<Subject>, String> {
    let mut subjects = Vec::new();
    let full = usize::from(!options.quick);
    let scalar = if models { SCALAR_MODEL } else { SCALAR };
    for level in options.levels()? {
        subjects.push(Subject {
            level: level.name().to_owned(),
            side: Box::new(Ours::new(move |threads| cpu(level, profile, threads))),
            limit: match level {
                Level::Scalar => scalar[full],
                Level::Avx2 | Level::Avx512 => u64::MAX,
            },
        });
    }
    if options.oracle() {
        let limit = if models { ORACLE_MODEL } else { ORACLE };
        subjects.push(Subject {
            level: "oracle".to_owned(),
            side: Box::new(Ours::new(move |threads| {
                Ok(pinned::Oracle { profile, threads })
            })),
            limit: limit[full],
        });
    }
    Ok(subjects)
}

fn cpu(level: Level, profile: Profile, threads: usize) -> Result<Cpu, String> {
    Cpu::open(CpuOptions {
        threads: Some(threads),
        level: Some(level),
        lane: Lane::Pinned(profile),
        ..CpuOptions::default()
    })
    .map_err(|e| e.to_string())
}

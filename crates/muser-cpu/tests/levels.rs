//! Runs the conformance suite on every level and lane, one at a time. Levels that the
//! machine lacks are reported as ignored, and so is the pinned lane where the build does
//! not support it.
//!
//! The calls of kernels are counted. After all groups have run, a kernel of the
//! inventory that none of them called fails the run.

use libtest_mimic::{Arguments, Trial};
use muser_conformance as conformance;
use muser_cpu::{Cpu, CpuError, CpuOptions, Level, ladder};
use muser_ops::pinned::{glibc, math};
use muser_ops::{Backend as _, Lane, OpError, Profile};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

fn main() {
    let mut trials = Vec::new();
    let pinned = Profile::ALL.map(Lane::Pinned);
    for level in Level::ALL {
        for lane in [&[Lane::Strict], &pinned[..]].concat() {
            for group in conformance::groups() {
                let name = group.name();
                let run = move || {
                    let cpu = open(level, lane)?.counting();
                    conformance::check(&cpu, name);
                    add_calls(&cpu);
                    Ok(())
                };
                let missing = lane.profile().is_some() && !Profile::is_supported();
                if let Some(dtype) = group.format().filter(|&d| !ladder::covers(lane, d)) {
                    let trial = Trial::test(format!("{lane}/{name}/{level}/refused"), move || {
                        conformance::refused(&open(level, lane)?, dtype);
                        Ok(())
                    });
                    trials.push(trial.with_ignored_flag(missing || !level.is_available()));
                    continue;
                }
                let trial = Trial::test(format!("{lane}/{name}/{level}"), run);
                trials.push(trial.with_ignored_flag(missing || !level.is_available()));
            }
        }
        let run = move || the_peak_exists_with_vectors(level);
        let trial = Trial::test(format!("int8_peak/{level}"), run);
        trials.push(trial.with_ignored_flag(!level.is_available()));
        let run = move || vector_tanhf_and_expf_equal_the_scalar_ones(level);
        let missing = !Profile::is_supported() || !level.is_available();
        let trial = Trial::test(format!("pinned/functions/{level}"), run);
        trials.push(trial.with_ignored_flag(missing));
    }
    let arguments = Arguments::from_args();
    let conclusion = libtest_mimic::run(&arguments, trials);
    conclusion.exit_if_failed();
    // With a filter, the tests that were left out may call the kernels that are missing.
    if conclusion.num_filtered_out > 0 || arguments.list {
        return;
    }
    let missing = kernels_without_calls();
    for level in Level::available() {
        let all = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let of_level = all.iter().filter(|((l, _), _)| *l == level);
        let (kernels, calls) = of_level.fold((0, 0), |(k, c), (_, calls)| (k + 1, c + calls));
        println!("inventory/{level}: {kernels} kernels, {calls} calls");
    }
    if !missing.is_empty() {
        eprintln!("kernels that no group has called: {}", missing.join(", "));
        std::process::exit(101);
    }
}

/// Opens a backend of three threads on any machine, also on one with fewer cores, so that
/// the threads take tiles in unusual orders.
fn open(level: Level, lane: Lane) -> Result<Cpu, CpuError> {
    Cpu::open(CpuOptions {
        threads: Some(3),
        level: Some(level),
        lane,
        ..CpuOptions::default()
    })
}

/// The number of calls of each kernel, by level, in all groups and lanes that ran.
static CALLS: Mutex<BTreeMap<(Level, &'static str), u64>> = Mutex::new(BTreeMap::new());

/// Adds the calls of a backend's kernels to [`CALLS`].
fn add_calls(cpu: &Cpu) {
    let mut all = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    for (kernel, calls) in cpu.calls().into_iter().flatten() {
        *all.entry((cpu.level(), kernel)).or_default() += calls;
    }
}

/// Returns the kernels that no group has called, which nothing has tested.
fn kernels_without_calls() -> Vec<String> {
    let all = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let none = all.iter().filter(|((_, kernel), calls)| {
        // Not counted: kernels that measure the machine and, in a build without the
        // pinned lane, the kernels of that lane.
        let measure = matches!(*kernel, "int8_peak" | "read");
        let pinned = kernel.ends_with("/pinned")
            || ["lanes/", "ggml_dot/", "flash/"]
                .iter()
                .any(|f| kernel.starts_with(f))
            || ["/tiled", "/fours"]
                .iter()
                .any(|link| kernel.ends_with(link));
        **calls == 0 && !measure && (Profile::is_supported() || !pinned)
    });
    none.map(|((level, kernel), _)| format!("{kernel}/{level}"))
        .collect()
}

/// Compares the pinned lane's vector tanhf and expf with the scalar functions, over a
/// sample of all bit patterns. `cargo xtask math expf tanhf` compares the scalar
/// functions with the platform's.
fn vector_tanhf_and_expf_equal_the_scalar_ones(level: Level) -> Result<(), libtest_mimic::Failed> {
    let cpu = Cpu::open(CpuOptions {
        threads: Some(2),
        level: Some(level),
        lane: Lane::Pinned(Profile::LlamaCppAvx2),
        ..CpuOptions::default()
    })?;
    let x: Vec<f32> = (0..u32::MAX).step_by(4_093).map(f32::from_bits).collect();
    let run = |op: &dyn Fn(&mut muser_cpu::Buffer) -> Result<(), OpError>, from: &[f32]| {
        let mut buffer = cpu.buffer(1, x.len())?;
        cpu.write(&mut buffer, from)?;
        op(&mut buffer)?;
        Ok::<_, OpError>(cpu.read(&buffer, 1)?.into_owned())
    };
    let tanh = run(&|b| cpu.soft_cap(1, b, 1.0, Some(1.0)), &x)?;
    let mut gate = cpu.buffer(1, x.len())?;
    cpu.write(&mut gate, &x)?;
    let sigmoid = run(&|b| cpu.sigmoid_gate(1, b, &gate), &vec![1.0; x.len()])?;
    for (i, &x) in x.iter().enumerate() {
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(same(tanh[i], glibc::tanhf(x)), "tanhf({x:e})");
        assert!(same(sigmoid[i], math::sigmoid(x)), "sigmoid({x:e})");
    }
    Ok(())
}

/// Tests that the scalar level reports no int8 peak and that the others report one.
fn the_peak_exists_with_vectors(level: Level) -> Result<(), libtest_mimic::Failed> {
    let cpu = Cpu::open(CpuOptions {
        threads: Some(1),
        level: Some(level),
        ..CpuOptions::default()
    })?;
    match (level, cpu.int8_peak()) {
        (Level::Scalar, None) => Ok(()),
        (Level::Avx2 | Level::Avx512, Some(peak)) if peak.is_finite() && peak > 0.0 => Ok(()),
        (Level::Scalar | Level::Avx2 | Level::Avx512, peak) => {
            Err(format!("peak of {level}: {peak:?}").into())
        }
    }
}

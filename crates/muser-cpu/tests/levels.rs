//! The conformance suite on every level and lane, forced one at a time. A level
//! that the machine lacks is reported as ignored, and so is the pinned lane
//! where the build does not support it.

use libtest_mimic::{Arguments, Trial};
use muser_conformance as conformance;
use muser_cpu::{Cpu, CpuOptions, Level};
use muser_ops::pinned::{glibc, math};
use muser_ops::{Backend as _, Lane, OpError, Profile};

fn main() {
    let mut trials = Vec::new();
    let pinned = Profile::ALL.map(Lane::Pinned);
    for level in Level::ALL {
        for lane in [&[Lane::Strict], &pinned[..]].concat() {
            for group in conformance::groups() {
                let name = group.name();
                // Three threads on any machine: more than this one may have, so
                // that tiles end up in unusual hands.
                let run = move || {
                    let cpu = Cpu::open(CpuOptions {
                        threads: Some(3),
                        level: Some(level),
                        lane,
                        ..CpuOptions::default()
                    })?;
                    conformance::check(&cpu, name);
                    Ok(())
                };
                let missing = lane.profile().is_some() && !Profile::is_supported();
                let trial = Trial::test(format!("{lane}/{name}/{level}"), run);
                trials.push(trial.with_ignored_flag(missing || !level.is_available()));
            }
        }
        let run = move || the_peak_exists_with_vectors(level);
        let trial = Trial::test(format!("int8_peak/{level}"), run);
        trials.push(trial.with_ignored_flag(!level.is_available()));
        let run = move || the_librarys_functions_are_exact(level);
        let missing = !Profile::is_supported() || !level.is_available();
        let trial = Trial::test(format!("pinned/functions/{level}"), run);
        trials.push(trial.with_ignored_flag(missing));
        let run = move || every_kernel_is_reached(level);
        let trial = Trial::test(format!("inventory/{level}"), run);
        trials.push(trial.with_ignored_flag(!level.is_available()));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// A kernel of the inventory whose family no group tests does not exist as far
/// as the proof goes.
fn every_kernel_is_reached(level: Level) -> Result<(), libtest_mimic::Failed> {
    let cpu = Cpu::open(CpuOptions {
        threads: Some(1),
        level: Some(level),
        ..CpuOptions::default()
    })?;
    let groups: Vec<&str> = conformance::groups().iter().map(|g| g.name()).collect();
    for kernel in cpu.kernels() {
        let family = kernel
            .strip_suffix(&format!("/{level}"))
            .ok_or("the level ends the name")?;
        // Measures of the machine, which compute nothing of a model.
        if matches!(family, "int8_peak" | "read") {
            continue;
        }
        let of_dtype;
        // Kernels that are part of another operation's group.
        let group = match family {
            "quantize" => "matvec/q4_k",
            "kv_store" => "attention/full",
            "attention" => "attention/window",
            "attention/span" | "attention/merge" => "attention/full",
            // The pinned lane's kernels of the same operations.
            "flash/single" => "attention/full",
            "flash/tile" => "attention/window",
            "rope/pinned" => "rope",
            other => match *other.split('/').collect::<Vec<_>>() {
                ["matvec" | "slab" | "lanes" | "ggml_dot", dtype, ..] => {
                    of_dtype = format!("matvec/{dtype}");
                    &of_dtype
                }
                [family, operation, "pinned"] => {
                    of_dtype = format!("{family}/{operation}");
                    &of_dtype
                }
                _ => other,
            },
        };
        if !groups.contains(&group) {
            return Err(format!("{kernel} has no conformance group").into());
        }
    }
    Ok(())
}

/// tanhf and expf of the pinned lane in vectors, over bit patterns from all of
/// the range. That the scalar text is the platform's function for every input
/// is `cargo xtask math expf tanhf`.
fn the_librarys_functions_are_exact(level: Level) -> Result<(), libtest_mimic::Failed> {
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

/// The scalar level has no int8 dot product and says so; the others have one.
fn the_peak_exists_with_vectors(level: Level) -> Result<(), libtest_mimic::Failed> {
    let cpu = Cpu::open(CpuOptions {
        threads: Some(1),
        level: Some(level),
        ..CpuOptions::default()
    })?;
    match (level, cpu.int8_peak()) {
        (Level::Scalar, None) => Ok(()),
        (Level::Avx2 | Level::Avx512, Some(peak)) if peak.is_finite() && peak > 0.0 => Ok(()),
        (_, peak) => Err(format!("peak of {level}: {peak:?}").into()),
    }
}

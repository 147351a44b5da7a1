//! Opens the backend that the commands compute on: the CPU, with the threads,
//! instruction-set level and lane (the arithmetic) of the command line.

use crate::cli::{Common, LaneArg};
use crate::exit::Usage;
use muser_cpu::{Cpu, CpuError, CpuOptions};
use muser_ops::{Lane, Profile};
use std::sync::Arc;

/// The backend that every command computes on: the CPU.
pub(crate) type Device = Cpu;

/// Returns the lane (the arithmetic: strict or pinned) that `--lane` and `--profile` ask
/// for.
pub(crate) fn lane(common: &Common) -> anyhow::Result<Lane> {
    let usage = |text: &str| Err(Usage(text.to_owned()).into());
    match (common.lane, common.profile) {
        (LaneArg::Strict, None) => Ok(Lane::Strict),
        (LaneArg::Strict, Some(_)) => usage("--profile belongs to --lane pinned"),
        (LaneArg::Pinned, Some(profile)) => Ok(Lane::Pinned(profile)),
        (LaneArg::Pinned, None) => {
            let names = Profile::ALL.map(Profile::name).join(" or ");
            usage(&format!(
                "--lane pinned needs --profile {names}: whose bits it is to give"
            ))
        }
    }
}

/// Opens the CPU backend with the threads, instruction-set level and lane (the arithmetic)
/// that the command line asks for.
pub(crate) fn open(common: &Common) -> anyhow::Result<Arc<Device>> {
    let options = CpuOptions {
        threads: common.threads,
        level: common.level,
        lane: lane(common)?,
        kv_bytes: common.kv_mib.map(|mib| mib.saturating_mul(1 << 20)),
    };
    match Cpu::open(options) {
        Ok(cpu) => Ok(Arc::new(cpu)),
        Err(e @ CpuError::Threads(_)) => Err(Usage(format!("--{e}")).into()),
        Err(e) => Err(e.into()),
    }
}

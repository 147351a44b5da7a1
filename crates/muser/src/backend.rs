//! Which backend the commands run on.

use crate::cli::Common;
use crate::exit::Usage;
use muser_cpu::{Cpu, CpuError, CpuOptions};
use std::sync::Arc;

/// The backend of every command.
pub(crate) type Device = Cpu;

/// Opens the backend that the command line asks for.
pub(crate) fn open(common: &Common) -> anyhow::Result<Arc<Device>> {
    // One lane exists; the option names it, so that a script stays right when
    // there are more.
    let crate::cli::LaneArg::Strict = common.lane;
    let options = CpuOptions {
        threads: common.threads,
        level: common.level,
    };
    match Cpu::open(options) {
        Ok(cpu) => Ok(Arc::new(cpu)),
        Err(e @ CpuError::Threads(_)) => Err(Usage(format!("--{e}")).into()),
        Err(e) => Err(e.into()),
    }
}

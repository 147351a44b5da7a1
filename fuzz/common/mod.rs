//! The embedded model's file, and a server over it that nobody connects to.
#![allow(dead_code, reason = "each target uses its part")]

use muser_cpu::{Cpu, CpuOptions};
use muser_engine::Model;
use muser_engine::gguf::Gguf;
use muser_server::{Options, Server};
use std::sync::{Arc, LazyLock};

/// The file.
pub(crate) static NANO: &[u8] = include_bytes!("../../models/glimmer-nano-2-q4_k_m.gguf");

/// The server, made once.
pub(crate) static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let options = CpuOptions {
        threads: Some(1),
        ..CpuOptions::default()
    };
    let gguf = Gguf::from_static(NANO).expect("the file is the project's own");
    let cpu = Arc::new(Cpu::open(options).expect("one thread"));
    let model = Arc::new(Model::load(&gguf, cpu).expect("the file is a model"));
    let mut options = Options::new(([127, 0, 0, 1], 0).into(), "nano");
    options.limits.context = 512;
    Server::start(model, options).expect("a free port")
});

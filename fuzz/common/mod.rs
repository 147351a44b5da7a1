//! The embedded model's file, and a server over it that nobody connects to.
#![allow(dead_code, reason = "each target uses its part")]

use muser_cpu::{Cpu, CpuOptions};
use muser_engine::Model;
use muser_engine::gguf::Gguf;
use muser_server::{Limits, Options, Server, UnknownFields};
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
    let options = Options {
        address: ([127, 0, 0, 1], 0).into(),
        limits: Limits {
            context: 512,
            ..Limits::default()
        },
        api_keys: Vec::new(),
        tls: None,
        allowed_hosts: Vec::new(),
        allowed_origins: Vec::new(),
        log_dropped: None,
        model_name: "nano".to_owned(),
        unknown_fields: UnknownFields::Refuse,
        grammar_worker: None,
    };
    Server::start(model, options).expect("a free port")
});

//! The pinned lane: there the width of a call is part of the arithmetic, so a
//! prompt is one call and nothing is shared; an answer is still its request's.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{NANO, complete, limits};
use muser_cpu::{Cpu, CpuOptions};
use muser_engine::gguf::Gguf;
use muser_engine::{
    Event, GenerateOptions, Lane, Model, Profile, Sampler, SamplingParams, Session, generate,
};
use muser_server::{Limits, Options, Server, UnknownFields};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn model() -> Arc<Model<Cpu>> {
    let options = CpuOptions {
        threads: Some(1),
        lane: Lane::Pinned(Profile::LlamaCppAvx2),
        ..CpuOptions::default()
    };
    let cpu = Arc::new(Cpu::open(options).unwrap());
    Arc::new(Model::load(&Gguf::open(Path::new(NANO)).unwrap(), cpu).unwrap())
}

/// The engine's own loop, alone.
fn alone(model: &Arc<Model<Cpu>>, prompt: &str) -> String {
    let mut session = Session::new(model.clone(), Some(512)).unwrap();
    let tokens = model.raw_prompt(prompt).unwrap();
    let params = SamplingParams {
        seed: 3,
        ..SamplingParams::default()
    };
    let mut sampler = Sampler::new(params, model.spec().vocab).unwrap();
    let options = GenerateOptions {
        max_tokens: Some(20),
        ..GenerateOptions::default()
    };
    let cancel = AtomicBool::new(false);
    let each = &mut |_: Event<'_>| {};
    let done = generate(&mut session, &tokens, &mut sampler, &options, &cancel, each);
    done.unwrap().text
}

#[test]
fn answers_beside_each_other_are_the_engines_own() {
    let model = model();
    let options = Options {
        address: "127.0.0.1:0".parse().unwrap(),
        limits: Limits {
            slots: 3,
            ..limits()
        },
        api_keys: Vec::new(),
        tls: None,
        allowed_hosts: Vec::new(),
        allowed_origins: Vec::new(),
        log_dropped: None,
        model_name: "nano".into(),
        grammar_worker: None,
        unknown_fields: UnknownFields::Refuse,
    };
    let server = Server::start(model.clone(), options).unwrap();
    let address = server.address();
    let opening = "Once upon a time there was a small fox. ".repeat(12);
    let prompts: Vec<String> = (0..9)
        .map(|i| format!("{}{i}", &opening[..opening.len() * (i % 3 + 1) / 3]))
        .collect();
    let expected: Vec<String> = prompts.iter().map(|p| alone(&model, p)).collect();
    let long = expected.iter().filter(|text| text.len() > 20);
    assert!(long.count() > 4, "{expected:?}");
    std::thread::scope(|scope| {
        for (prompt, expected) in prompts.iter().zip(&expected) {
            scope.spawn(move || {
                let body = json!({"prompt": prompt, "max_tokens": 20, "seed": 3});
                let whole = complete(address, body).ok();
                assert_eq!(whole["choices"][0]["text"], *expected, "{prompt}");
            });
        }
    });
    server.shutdown();
}

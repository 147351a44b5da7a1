//! Tests the document `/openapi.json` against the parsers of requests: what these ask of
//! a request, field by field with its type and its bounds, is what the document
//! describes, and nothing else.
//!
//! The fields asked for are recorded while requests are parsed that have, all together,
//! every object which a request may have.

use super::extra::{to_detokenize, to_render, to_tokenize};
use super::{App, chat, completions, embeddings};
use crate::fields::{Asked, Fields};
use crate::limits::work::Work;
use crate::options::{Options, UnknownFields};
use crate::{ApiError, Server};
use muser_cpu::{Cpu, CpuOptions};
use muser_engine::Model;
use muser_engine::gguf::Gguf;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

type Questions = BTreeMap<String, BTreeSet<Asked>>;

fn server() -> Server {
    let nano = "../../models/glimmer-nano-2-q4_k_m.gguf";
    let gguf = Gguf::open(Path::new(env!("CARGO_MANIFEST_DIR")).join(nano)).unwrap();
    let cpu = CpuOptions {
        threads: Some(1),
        ..CpuOptions::default()
    };
    let model = Model::load(&gguf, Arc::new(Cpu::open(cpu).unwrap())).unwrap();
    let mut options = Options::new(([127, 0, 0, 1], 0).into(), "nano");
    options.limits.context = 512;
    Server::start(Arc::new(model), options).unwrap()
}

/// Returns which fields, of which types, the parser `parse` asks for in these requests.
fn asked(requests: &[Value], parse: &dyn Fn(Fields) -> Result<(), ApiError>) -> Questions {
    let mut all = Questions::new();
    for request in requests {
        let text = request.to_string();
        let f = Fields::body(text.as_bytes(), UnknownFields::Refuse).unwrap();
        let questions = f.questions();
        parse(f).unwrap_or_else(|e| panic!("{text}: {e}"));
        for (path, kinds) in questions.lock().unwrap().iter() {
            all.entry(path.clone()).or_default().extend(kinds.clone());
        }
    }
    all
}

/// Adds to `out` the fields that a JSON schema lists, below `path`, with all schemas of
/// each.
fn list<'d>(schema: &'d Value, path: &str, out: &mut BTreeMap<String, Vec<&'d Value>>) {
    for word in ["oneOf", "anyOf"] {
        for one in schema[word].as_array().into_iter().flatten() {
            list(one, path, out);
        }
    }
    if schema["items"].is_object() {
        list(&schema["items"], &format!("{path}[]"), out);
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let path = match path {
            "" => name.clone(),
            _ => format!("{path}.{name}"),
        };
        out.entry(path.clone()).or_default().push(inner);
        list(inner, &path, out);
    }
}

/// Adds to `out` the JSON types that a JSON schema accepts, except null, which every
/// field may be.
fn types<'d>(schema: &'d Value, out: &mut BTreeSet<&'d str>) {
    for word in ["oneOf", "anyOf"] {
        for one in schema[word].as_array().into_iter().flatten() {
            types(one, out);
        }
    }
    match &schema["type"] {
        Value::String(one) => _ = out.insert(one),
        Value::Array(all) => out.extend(all.iter().filter_map(Value::as_str)),
        _ => {}
    }
    let values = schema["enum"].as_array().into_iter().flatten();
    for value in values.chain(schema.get("const")) {
        if value.is_string() {
            out.insert("string");
        }
    }
    out.remove("null");
}

/// Whether a field's schemas in `/openapi.json` describe the type and bounds that the
/// parser asks for.
fn fits(path: &str, schemas: &[&Value], kinds: &BTreeSet<Asked>) -> bool {
    let mut found = BTreeSet::new();
    schemas.iter().for_each(|s| types(s, &mut found));
    let only = |kind: &str| found == BTreeSet::from([kind]);
    kinds.iter().all(|kind| match kind {
        // The parser looks at the value itself, so no type is known.
        Asked::Any => true,
        Asked::Text => only("string"),
        Asked::Flag => only("boolean"),
        Asked::Number => only("number"),
        Asked::Array => only("array"),
        Asked::Object => only("object"),
        Asked::Integer { low, high } => {
            let bound = |word: &str| schemas.iter().find_map(|s| s[word].as_i64());
            // How wide the model is, the document cannot say.
            let high = Some(*high).filter(|_| path != "dimensions");
            only("integer") && bound("minimum") == Some(*low) && bound("maximum") == high
        }
    })
}

/// Lists where the document's schema of a request and the request's parser differ.
fn differences(described: &Value, schema: &str, asked: &Questions) -> Vec<String> {
    let mut listed = BTreeMap::new();
    list(&described["components"]["schemas"][schema], "", &mut listed);
    let mut found = Vec::new();
    for (path, kinds) in asked {
        match listed.get(path) {
            None => found.push(format!("{schema} does not describe {path}")),
            Some(schemas) if !fits(path, schemas, kinds) => {
                found.push(format!(
                    "{schema}: {path} is {kinds:?}, described as {schemas:?}"
                ));
            }
            Some(_) => {}
        }
    }
    let unread = listed.keys().filter(|path| !asked.contains_key(*path));
    found.extend(unread.map(|path| format!("{schema}: nobody reads {path}")));
    found
}

/// Returns requests for a completion that have, all together, every object that chat and
/// text completions share.
fn shared() -> Vec<Value> {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    [
        json!({"stream": true, "stream_options": {"include_usage": true}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
        json!({"response_format": {"type": "json_schema", "schema": schema}}),
        json!({"response_format": {"type": "json_object", "schema": schema}}),
        json!({"structured_outputs": {"json": schema}}),
    ]
    .into()
}

fn with(base: &Value, more: &Value) -> Value {
    let mut all = base.clone();
    for (name, value) in more.as_object().unwrap() {
        all[name] = value.clone();
    }
    all
}

/// Returns chat requests that have, all together, every object that a message or a tool
/// may have.
fn conversations() -> Vec<Value> {
    let function = json!({"name": "f", "arguments": "{}"});
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "b"}],
            "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "assistant", "function_call": function},
        {"role": "user", "content": "c"},
    ]);
    let function = json!({"name": "f", "parameters": {"type": "object", "properties": {}}});
    let tools = json!([{"type": "function", "function": function}]);
    let all = [
        json!({}),
        json!({"tools": tools}),
        json!({"tools": tools,
            "tool_choice": {"type": "function", "function": {"name": "f"}}}),
        json!({"tools": tools, "tool_choice": {"type": "allowed_tools", "allowed_tools":
            {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}}}),
        json!({"functions": [function], "function_call": {"name": "f"}}),
    ];
    let each = all
        .iter()
        .map(|more| with(&json!({"messages": messages}), more));
    each.collect()
}

#[test]
fn the_document_is_what_the_parsers_ask() {
    let server = server();
    let app: &App = &server.app;
    let described = serde_json::from_str(include_str!("../openapi.json")).unwrap();
    let mut all = Vec::new();
    let mut compare = |schema: &str, requests: &[Value], parse: &dyn Fn(Fields) -> _| {
        all.extend(differences(&described, schema, &asked(requests, parse)));
    };

    let base = json!({"messages": [{"role": "user", "content": "x"}]});
    let mut chats = conversations();
    chats.extend(shared().iter().map(|more| with(&base, more)));
    compare("ChatRequest", &chats, &|f| {
        chat::parse(app, &Work::unbounded(), f).map(drop)
    });
    let texts: Vec<_> = shared()
        .iter()
        .map(|more| with(&json!({"prompt": "x"}), more))
        .collect();
    compare("CompletionRequest", &texts, &|f| {
        completions::parse(app, &Work::unbounded(), f).map(drop)
    });
    compare("EmbeddingRequest", &[json!({"input": "x"})], &|f| {
        embeddings::parse(app, &Work::unbounded(), f).map(drop)
    });
    compare("TokenizeRequest", &[json!({"content": "x"})], &|f| {
        to_tokenize(f).map(drop)
    });
    compare("DetokenizeRequest", &[json!({"tokens": []})], &|f| {
        to_detokenize(f).map(drop)
    });
    compare("TemplateRequest", &conversations(), &|f| {
        to_render(app, f).map(drop)
    });
    server.shutdown();
    assert!(all.is_empty(), "{all:#?}");
}

//! Schemas and tools over HTTP: what is accepted is obeyed, what costs too much
//! is refused, and neither stops anybody else.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{chat, complete, limits, refused, start, start_with, user};
use muser_server::{GrammarLimits, Limits};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

fn formatted(schema: &Value) -> Value {
    json!({"messages": user("hi"), "max_tokens": 200, "seed": 3, "reasoning_effort": "none",
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
}

fn forced(parameters: &Value) -> Value {
    json!({"messages": user("hi"), "max_tokens": 300, "seed": 5, "reasoning_effort": "none",
        "tool_choice": "required", "parallel_tool_calls": false,
        "tools": [{"type": "function", "function": {"name": "book", "parameters": parameters}}]})
}

/// The arguments of a forced call.
fn arguments(address: SocketAddr, parameters: &Value) -> Value {
    let whole = chat(address, forced(parameters)).ok();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    assert!(choice["message"]["content"].is_null(), "{choice}");
    let text = choice["message"]["tool_calls"][0]["function"]["arguments"]
        .as_str()
        .unwrap();
    let found = serde_json::from_str(text).unwrap();
    let judge = jsonschema::validator_for(parameters).unwrap();
    assert!(judge.is_valid(&found), "{found} under {parameters}");
    found
}

fn chain(links: usize, link: impl Fn(String) -> Value) -> Value {
    let each = (0..links).map(|i| (i.to_string(), link(format!("#/$defs/{}", i + 1))));
    let mut defs: serde_json::Map<String, Value> = each.collect();
    defs.insert(links.to_string(), json!({}));
    json!({"$defs": defs, "$ref": "#/$defs/0"})
}

#[test]
fn bombs_are_refused_and_the_server_goes_on() {
    let s = start();
    let names = |n: usize| {
        (0..n)
            .map(|i| (format!("p{i}"), json!(true)))
            .collect::<serde_json::Map<_, _>>()
    };
    let patterns = |n: usize| {
        let each = (0..n).map(|i| (format!("^a{i}x*$"), json!({})));
        json!({"type": "object", "patternProperties": each.collect::<serde_json::Map<_, _>>()})
    };
    let strings: Vec<String> = (0..2000).map(|i| format!("value {i}")).collect();
    for schema in [
        json!({"type": "integer", "minimum": -1e19, "maximum": -1e19}),
        json!({"type": "integer", "minimum": -1e20, "maximum": -1e19}),
        chain(800, |to| json!({"$ref": to})),
        chain(300, |to| json!({"anyOf": [{"$ref": to}]})),
        chain(300, |to| json!({"allOf": [{"$ref": to}]})),
        json!({"type": "object", "properties": names(7000)}),
        json!({"const": names(10_000)}),
        json!({"required": strings.iter().cycle().take(50_000).collect::<Vec<_>>()}),
        json!({"type": "integer", "multipleOf": 2_000_003}),
        json!({"allOf": [{"multipleOf": 0.001}, {"multipleOf": 4_294_967}]}),
        json!({"$ref": "#"}),
        json!({"type": "array", "items": {"type": "null"}, "minItems": 2_000_000}),
        json!({"type": "string", "pattern": "^(a?){1000}a{1000}$"}),
        json!({"type": "string", "pattern": "^((a{100}){100}){100}$"}),
        patterns(400),
        json!({"enum": strings}),
        json!({"const": "x".repeat(1_000_000)}),
    ] {
        let param = refused(&chat(s.address, formatted(&schema)), 400);
        assert!(
            param.starts_with("response_format.json_schema.schema"),
            "{param}"
        );
        if schema == json!({"$ref": "#"}) {
            // In a parameter that may be left out this is ordinary recursion.
            continue;
        }
        let body = forced(&json!({"type": "object", "properties": {"c": schema}}));
        let param = refused(&chat(s.address, body), 400);
        assert!(param.starts_with("tools"), "{param}");
    }
    let many: Vec<Value> = (0..1000)
        .map(|i| json!({"type": "function", "function": {"name": format!("t{i}")}}))
        .collect();
    let body = json!({"messages": user("hi"), "tools": many});
    assert_eq!(refused(&chat(s.address, body), 400), "tools");
    complete(s.address, json!({"prompt": "x", "max_tokens": 1})).ok();
}

#[test]
fn schemas_that_recurse_through_values_are_decoded() {
    let s = start();
    // A chain of forty arrays is no chain of references.
    let items = chain(40, |to| json!({"type": "array", "items": {"$ref": to}}));
    let whole = chat(s.address, formatted(&items)).ok();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.starts_with('['), "{text}");
}

#[test]
fn tools_as_pydantic_writes_them_are_called() {
    let s = start();
    let order = json!({
        "$defs": {
            "Size": {"enum": ["small", "large"], "title": "Size", "type": "string"},
            "Item": {"properties": {
                "name": {"maxLength": 6, "title": "Name", "type": "string"},
                "size": {"$ref": "#/$defs/Size"}
            }, "required": ["name", "size"], "title": "Item", "type": "object"}
        },
        "properties": {
            "size": {"$ref": "#/$defs/Size"},
            "items": {"items": {"$ref": "#/$defs/Item"}, "title": "Items", "type": "array", "maxItems": 2},
            "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}], "default": null},
            "when": {"type": "string", "format": "date"}
        },
        "required": ["size", "items", "note", "when"], "title": "Order", "type": "object"
    });
    let found = arguments(s.address, &order);
    assert!(
        found["size"] == "small" || found["size"] == "large",
        "{found}"
    );
    let c =
        |schema: Value| json!({"type": "object", "properties": {"c": schema}, "required": ["c"]});
    for (schema, expected) in [
        (json!({"const": "abc"}), json!("abc")),
        (
            json!({"enum": ["a"], "type": ["string", "null"]}),
            json!("a"),
        ),
    ] {
        assert_eq!(arguments(s.address, &c(schema))["c"], expected);
    }
    let root = json!({"$defs": {"A": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 9}}, "required": ["x"]}}, "$ref": "#/$defs/A"});
    assert!(arguments(s.address, &root)["x"].is_i64());
}

#[test]
fn a_call_wins_over_a_format_and_what_is_cut_stays_open() {
    let s = start();
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"]});
    let mut body = forced(&parameters);
    body["response_format"] = json!({"type": "json_object"});
    let whole = chat(s.address, body).ok();
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    for most in [1, 4, 12, 24, 32, 40] {
        let mut body = forced(&parameters);
        body["max_tokens"] = most.into();
        let whole = chat(s.address, body).ok();
        let choice = &whole["choices"][0];
        if choice["finish_reason"] == "tool_calls" {
            continue;
        }
        assert_eq!(choice["finish_reason"], "length");
        let content = &choice["message"]["content"];
        assert!(content.is_null() || content == "", "{choice}");
        if let Some(call) = choice["message"]["tool_calls"].get(0) {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            assert!(
                serde_json::from_str::<Value>(arguments).is_err(),
                "open: {arguments}"
            );
        }
    }
}

#[test]
fn reasoning_before_a_call_is_bounded() {
    let limits = Limits {
        grammar: GrammarLimits {
            reasoning: 12,
            ..GrammarLimits::default()
        },
        ..limits()
    };
    let s = start_with(1, limits, &[]);
    for seed in 0..6 {
        let mut body = forced(
            &json!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"]}),
        );
        body["seed"] = seed.into();
        body.as_object_mut().unwrap().remove("reasoning_effort");
        let whole = chat(s.address, body).ok();
        assert_eq!(
            whole["choices"][0]["finish_reason"], "tool_calls",
            "{whole}"
        );
        let reasoned = &whole["usage"]["completion_tokens_details"]["reasoning_tokens"];
        assert!(reasoned.as_u64().unwrap() <= 14, "{whole}");
    }
}

#[test]
fn a_worker_that_dies_is_a_refusal_and_another_takes_its_place() {
    // So little time or memory that nothing can be compiled.
    for grammar in [
        GrammarLimits {
            time: Duration::from_micros(1),
            ..GrammarLimits::default()
        },
        GrammarLimits {
            stack: 16 << 10,
            ..GrammarLimits::default()
        },
    ] {
        let s = start_with(
            1,
            Limits {
                grammar,
                ..limits()
            },
            &[],
        );
        let schema = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(ab|c)*d$"}}});
        for _ in 0..3 {
            let param = refused(&chat(s.address, formatted(&schema)), 400);
            assert_eq!(param, "response_format.json_schema.schema");
        }
        complete(s.address, json!({"prompt": "x", "max_tokens": 1})).ok();
    }
}

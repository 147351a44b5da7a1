//! The fields of the ecosystem: hints that are taken, other names of what is
//! done, and what is refused by name.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{
    Reply, Running, chat, complete, get, limits, model, post, raw, refused, start, start_as, user,
};
use muser_server::{Limits, UnknownFields};
use serde_json::{Value, json};

/// A request with more fields.
fn with(mut base: Value, more: &Value) -> Value {
    let more = more.as_object().unwrap().clone();
    base.as_object_mut().unwrap().extend(more);
    base
}

fn text(more: Value) -> Value {
    let base = json!({"prompt": "Once upon a time", "max_tokens": 12, "seed": 3});
    with(base, &more)
}

fn said(more: Value) -> Value {
    let base = json!({"messages": user("Tell me a story."), "max_tokens": 14, "seed": 3});
    with(base, &more)
}

/// The first choice's text.
fn shown(reply: &Reply) -> String {
    let choice = &reply.ok()["choices"][0];
    let text = choice["text"]
        .as_str()
        .or(choice["message"]["content"].as_str());
    text.unwrap().to_owned()
}

#[test]
fn hints_and_neutral_values_change_nothing() {
    let s = start();
    let (completed, answered) = (
        shown(&complete(s.address, text(json!({})))),
        shown(&chat(s.address, said(json!({})))),
    );
    for more in [
        json!({"verbosity": "low", "prompt_cache_retention": "24h", "store": true, "user": "u"}),
        json!({"prediction": {"type": "content", "content": "x"}, "service_tier": "auto"}),
        json!({"audio": null, "function_call": null, "no such field": null, "tools": null}),
        json!({"stream_options": {"include_usage": true}, "stop": "", "metadata": {"a": "b"}}),
        json!({"top_k": -1, "typical_p": 1.0, "mirostat": 0, "dry_multiplier": 0.0, "tfs_z": 1}),
        json!({"seed": 3.0, "n": 1.0, "use_beam_search": false, "length_penalty": 1}),
        json!({"no_stop_trim": false, "return_hidden_states": false, "stream_reasoning": true}),
        json!({"separate_reasoning": true, "skip_special_tokens": true, "prompt_logprobs": null}),
        json!({"min_tokens": 0, "stop_token_ids": [], "repetition_penalty": 1.0, "grammar": ""}),
        json!({"structured_outputs": null, "guided_json": null, "guided_choice": null}),
        json!({"response_format": {"type": "text"}, "ignore_eos": false, "cache_salt": "x"}),
        json!({"spaces_between_special_tokens": true, "include_stop_str_in_output": false}),
    ] {
        assert_eq!(
            shown(&complete(s.address, text(more.clone()))),
            completed,
            "{more}"
        );
        assert_eq!(
            shown(&chat(s.address, said(more.clone()))),
            answered,
            "{more}"
        );
    }
    for more in [
        json!({"suffix": "", "max_tokens": 12.0, "best_of": 1}),
        json!({"max_tokens": null, "max_completion_tokens": 12}),
        json!({"max_tokens": null, "n_predict": 12}),
        json!({"add_special_tokens": true}),
    ] {
        assert_eq!(
            shown(&complete(s.address, text(more.clone()))),
            completed,
            "{more}"
        );
    }
    for more in [
        json!({"modalities": ["text"], "tool_choice": "auto", "parallel_tool_calls": true}),
        json!({"tool_choice": "none", "function_call": "auto", "functions": []}),
        json!({"logprobs": false, "top_logprobs": 0, "max_tokens": 14.0}),
        json!({"add_generation_prompt": true, "continue_final_message": false, "echo": false}),
        json!({"include_reasoning": true, "think": true, "enable_thinking": true}),
    ] {
        assert_eq!(
            shown(&chat(s.address, said(more.clone()))),
            answered,
            "{more}"
        );
    }
}

#[test]
fn what_is_not_done_is_refused_by_name() {
    let s = start();
    for (more, param) in [
        (json!({"use_beam_search": true}), "use_beam_search"),
        (json!({"typical_p": 0.5}), "typical_p"),
        (json!({"mirostat": 2}), "mirostat"),
        (json!({"grammar": "root ::= \"a\""}), "grammar"),
        (json!({"guided_grammar": "x"}), "guided_grammar"),
        (json!({"prompt_logprobs": 1}), "prompt_logprobs"),
        (
            json!({"return_hidden_states": true}),
            "return_hidden_states",
        ),
        (json!({"no_stop_trim": true}), "no_stop_trim"),
        (json!({"separate_reasoning": false}), "separate_reasoning"),
        (json!({"stop_token_ids": [4096]}), "stop_token_ids[0]"),
        (json!({"stop_token_ids": 5}), "stop_token_ids"),
        (json!({"min_tokens": -1}), "min_tokens"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (
            json!({"repetition_penalty": 1.2, "repeat_penalty": 1.1}),
            "repetition_penalty",
        ),
        (json!({"regex": "a", "guided_json": {}}), "regex"),
        (json!({"regex": "(a"}), "regex"),
        (json!({"logit_bias": {"+5": 1}}), "logit_bias"),
        (json!({"logit_bias": {"005": 1}}), "logit_bias"),
        (json!({"temperature": 3.5e38}), "temperature"),
        (
            json!({"prompt_cache_retention": 24}),
            "prompt_cache_retention",
        ),
    ] {
        assert_eq!(
            refused(&complete(s.address, text(more.clone())), 400),
            param
        );
        assert_eq!(refused(&chat(s.address, said(more.clone())), 400), param);
    }
    for (more, param) in [
        (
            json!({"continue_final_message": true}),
            "continue_final_message",
        ),
        (
            json!({"add_generation_prompt": false}),
            "add_generation_prompt",
        ),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"audio": {"voice": "x"}}), "audio"),
        (json!({"skip_special_tokens": false}), "skip_special_tokens"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"think": 5}), "think"),
        (json!({"think": "low", "reasoning_effort": "high"}), "think"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (
            json!({"logprobs": false, "top_logprobs": 2}),
            "top_logprobs",
        ),
    ] {
        assert_eq!(refused(&chat(s.address, said(more)), 400), param);
    }
    let huge = complete(s.address, text(json!({"temperature": 3.5e38})));
    let message = huge.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(
        message,
        "temperature: expected a number of at most 3.4e38, found 3.5e+38"
    );
}

/// What `/openapi.json` lists is known: of another type at most.
#[test]
fn what_is_described_is_known() {
    let s = start();
    let described = get(s.address, "/openapi.json").ok();
    for (schema, path, base) in [
        (
            "ChatRequest",
            "/v1/chat/completions",
            said(json!({"max_tokens": 1})),
        ),
        (
            "CompletionRequest",
            "/v1/completions",
            text(json!({"max_tokens": 1})),
        ),
        ("EmbeddingRequest", "/v1/embeddings", json!({"input": "x"})),
        (
            "TemplateRequest",
            "/apply-template",
            json!({"messages": user("x")}),
        ),
        ("TokenizeRequest", "/tokenize", json!({"content": "x"})),
        ("DetokenizeRequest", "/detokenize", json!({"tokens": [5]})),
    ] {
        let fields = &described["components"]["schemas"][schema]["properties"];
        for name in fields.as_object().unwrap().keys() {
            let reply = post(
                s.address,
                path,
                &with(base.clone(), &json!({name: {"odd": 1}})),
            );
            if reply.status != 200 {
                let error = reply.json()["error"].clone();
                let unknown = error["code"] == "unknown_field" && error["param"] == **name;
                assert!(!unknown, "{schema}: {name}");
            }
        }
    }
}

#[test]
fn what_a_message_repeats_of_a_request_is_short() {
    let s = start();
    let long = "y".repeat(100_000);
    for reply in [
        complete(s.address, text(json!({long.clone(): 1}))),
        complete(s.address, text(json!({"metadata": {long.clone(): 1}}))),
        complete(s.address, text(json!({"logit_bias": {long.clone(): 1}}))),
        chat(
            s.address,
            json!({"messages": [{"role": long, "content": "x"}]}),
        ),
        post(
            s.address,
            "/v1/embeddings",
            &json!({"input": "x", "encoding_format": long}),
        ),
        complete(s.address, text(json!({"model": long}))),
    ] {
        assert!((400..500).contains(&reply.status), "{}", reply.status);
        assert!(reply.body.len() < 1000, "{} bytes", reply.body.len());
    }
}

#[test]
fn a_key_twice_is_refused() {
    let s = start();
    let body = r#"{"prompt": "x", "max_tokens": 1, "max_tokens": 2}"#;
    let reply = raw(s.address, "/v1/completions", body);
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("max_tokens"), "{}", reply.body);
}

#[test]
fn unknown_fields_are_ignored_where_the_server_is_told_so() {
    let s = start_as(limits(), UnknownFields::Ignore, "nano");
    let odd = text(json!({"colour": "red", "stream_options": {"x": 1}}));
    assert_eq!(
        shown(&complete(s.address, odd)),
        shown(&complete(s.address, text(json!({}))))
    );
    let messages = json!([{"role": "user", "content": "Tell me a story.", "mood": 1}]);
    chat(s.address, said(json!({"messages": messages}))).ok();
    // What is known and not done is refused all the same.
    assert_eq!(
        refused(&complete(s.address, text(json!({"mirostat": 1}))), 400),
        "mirostat"
    );
    assert_eq!(
        refused(&complete(s.address, text(json!({"n": "one"}))), 400),
        "n"
    );
}

#[test]
fn other_names_do_the_same() {
    let s = start();
    let of = |more: Value| shown(&complete(s.address, text(more)));
    let ids = |content: &str| {
        let reply = post(s.address, "/tokenize", &json!({"content": content})).ok();
        serde_json::from_value::<Vec<u32>>(reply["tokens"].clone()).unwrap()
    };
    // No limit but the context, which the ends of stories are before.
    let whole = complete(s.address, text(json!({"max_tokens": -1}))).ok();
    assert!(whole["usage"]["completion_tokens"].as_u64().unwrap() > 40);
    assert_eq!(of(json!({"top_p": 0})), of(json!({"temperature": 0})));
    let all = json!({"repeat_penalty": 1.3, "repeat_last_n": -1, "max_tokens": 40});
    let newer = json!({"repetition_penalty": 1.3, "max_tokens": 40});
    assert_eq!(of(newer), of(all));
    // A token that ends the answer is no part of it.
    let greedy = of(json!({"temperature": 0}));
    let token = ids(&greedy)[5];
    let ended = complete(
        s.address,
        text(json!({"temperature": 0, "stop_token_ids": [token]})),
    )
    .ok();
    let choice = &ended["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    let short = choice["text"].as_str().unwrap();
    assert!(greedy.starts_with(short) && short.len() < greedy.len());
    let count = ended["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(count <= 5, "{count}");
    // Nor does it end one before its least length.
    let least = json!({"temperature": 0, "stop_token_ids": [token], "min_tokens": 12});
    let least = complete(s.address, text(least)).ok();
    assert_eq!(least["usage"]["completion_tokens"], 12);
    let ends = model(1)
        .tokenizer()
        .unwrap()
        .eog()
        .iter()
        .collect::<Vec<_>>();
    let bias = json!({ends[0].to_string(): 100});
    let eager = complete(
        s.address,
        text(json!({"logit_bias": bias, "min_tokens": 4})),
    )
    .ok();
    assert_eq!(eager["usage"]["completion_tokens"], 4);
    assert_eq!(eager["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_form_has_many_names_and_is_kept_to() {
    let s = start();
    let schema = json!({"type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}});
    for more in [
        json!({"guided_json": schema}),
        json!({"guided_json": schema.to_string()}),
        json!({"json_schema": schema}),
        json!({"structured_outputs": {"json": schema}}),
        json!({"response_format": {"type": "json_object", "schema": schema}}),
        json!({"response_format": {"type": "json_schema", "schema": schema}}),
    ] {
        let more = with(more, &json!({"max_tokens": 30, "reasoning_effort": "none"}));
        let found: Value =
            serde_json::from_str(&shown(&chat(s.address, said(more.clone())))).unwrap();
        assert!(
            (0..100).contains(&found["a"].as_i64().unwrap()),
            "{more}: {found}"
        );
        let mut more = more;
        more.as_object_mut().unwrap().remove("reasoning_effort");
        let found: Value = serde_json::from_str(&shown(&complete(s.address, text(more)))).unwrap();
        assert!((0..100).contains(&found["a"].as_i64().unwrap()), "{found}");
    }
    for more in [
        json!({"regex": "(yes|no/never), [0-9]{3}"}),
        json!({"guided_regex": "(yes|no/never), [0-9]{3}"}),
        json!({"structured_outputs": {"regex": "(yes|no/never), [0-9]{3}"}}),
    ] {
        for answer in [
            shown(&complete(s.address, text(more.clone()))),
            shown(&chat(
                s.address,
                said(with(more.clone(), &json!({"max_tokens": 30}))),
            )),
        ] {
            let (word, digits) = answer
                .split_once(", ")
                .unwrap_or_else(|| panic!("{answer:?}"));
            assert!(word == "yes" || word == "no/never", "{answer}");
            assert!(
                digits.len() == 3 && digits.chars().all(|c| c.is_ascii_digit()),
                "{answer}"
            );
        }
    }
    let choices = ["red \"one\"", "blue\ntwo"];
    for more in [
        json!({"guided_choice": choices}),
        json!({"structured_outputs": {"choice": choices}}),
    ] {
        for answer in [
            shown(&complete(s.address, text(more.clone()))),
            shown(&chat(
                s.address,
                said(with(more.clone(), &json!({"max_tokens": 30}))),
            )),
        ] {
            assert!(choices.contains(&answer.as_str()), "{answer:?}");
        }
    }
}

#[test]
fn what_clients_keep_beside_their_messages_is_ignored() {
    let s = start();
    let aside =
        json!({"cache_control": {"type": "ephemeral"}, "provider_specific_fields": {"a": 1}});
    let part = with(json!({"type": "text", "text": "Hi"}), &aside);
    let call = with(
        json!({"id": "c", "type": "function", "index": 0,
            "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}}}),
        &aside,
    );
    let messages = json!([
        with(json!({"role": "user", "content": [part]}), &aside),
        with(json!({"role": "assistant", "content": null, "tool_calls": [call],
            "reasoning": "hm", "thinking_blocks": [{"type": "thinking"}], "annotations": [{}],
            "audio": null, "function_call": null, "refusal": null, "parsed": null}), &aside),
        with(json!({"role": "tool", "tool_call_id": "c", "content": "1"}), &aside),
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": null, "refusal": "No."},
        {"role": "assistant", "content": null,
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "user", "content": "Go on"},
    ]);
    let tool = with(
        json!({"type": "function", "function": {"name": "f"}}),
        &aside,
    );
    let body = json!({"messages": messages, "tools": [tool], "max_tokens": 2});
    chat(s.address, body).ok();
    let prompt = |messages: Value| {
        let reply = post(s.address, "/apply-template", &json!({"messages": messages})).ok();
        reply["prompt"].as_str().unwrap().to_owned()
    };
    let refusal = prompt(json!([{"role": "assistant", "content": null, "refusal": "No."}]));
    assert_eq!(
        refusal,
        prompt(json!([{"role": "assistant", "content": "No."}]))
    );
    let sound = json!([{"role": "assistant", "content": "x", "audio": {"id": "a"}}]);
    assert_eq!(
        refused(&chat(s.address, json!({"messages": sound})), 400),
        "messages[0].audio"
    );
}

fn weather() -> Value {
    json!({"name": "weather", "parameters": {"type": "object", "required": ["city"],
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}}})
}

#[test]
fn the_older_fields_of_functions_are_those_of_tools() {
    let s = start();
    let ask = |more: Value| {
        let base = json!({"functions": [weather()], "max_tokens": 150, "seed": 5,
            "reasoning_effort": "none"});
        chat(s.address, said(with(base, &more)))
    };
    let forced = json!({"function_call": {"name": "weather"}});
    let whole = ask(forced.clone()).ok();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call", "{choice}");
    let call = &choice["message"]["function_call"];
    assert_eq!(call["name"], "weather");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["city"] == "Oslo" || arguments["city"] == "Rome");
    assert!(choice["message"].get("tool_calls").is_none());
    let events = ask(with(forced, &json!({"stream": true}))).events();
    let parts = events
        .iter()
        .map(|e| &e["choices"][0]["delta"]["function_call"]);
    let parts: String = parts.filter_map(|p| p["arguments"].as_str()).collect();
    assert_eq!(parts, call["arguments"].as_str().unwrap());
    assert_eq!(
        refused(&ask(json!({"function_call": {"name": "f"}})), 400),
        "function_call.name"
    );
    let both = json!({"tools": [{"type": "function", "function": weather()}]});
    assert_eq!(refused(&ask(both), 400), "functions");
    let messages = json!([
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": null,
            "function_call": {"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}},
        {"role": "function", "name": "weather", "content": "rain"},
    ]);
    ask(json!({"messages": messages})).ok();
}

#[test]
fn some_of_the_tools_may_be_allowed() {
    let s = start();
    let tools = json!([{"type": "function", "function": weather()},
        {"type": "function", "function": {"name": "time", "parameters": {
            "type": "object", "properties": {}}}}]);
    let ask = |mode: &str, name: &str, seed: u64| {
        let allowed =
            json!({"mode": mode, "tools": [{"type": "function", "function": {"name": name}}]});
        let more = json!({"tools": tools, "max_tokens": 150, "seed": seed, "reasoning_effort": "none",
            "parallel_tool_calls": false,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}});
        chat(s.address, said(more))
    };
    for (seed, name) in [(1, "time"), (2, "time"), (3, "weather"), (4, "weather")] {
        let whole = ask("required", name, seed).ok();
        let call = &whole["choices"][0]["message"]["tool_calls"][0];
        assert_eq!(call["function"]["name"], name);
    }
    ask("auto", "time", 1).ok();
    let odd = "tool_choice.allowed_tools.tools[0].function.name";
    assert_eq!(refused(&ask("auto", "other", 1), 400), odd);
    assert_eq!(
        refused(&ask("any", "time", 1), 400),
        "tool_choice.allowed_tools.mode"
    );
}

#[test]
fn the_call_wins_over_the_form_of_an_answer() {
    let s = start();
    let more = json!({"tools": [{"type": "function", "function": weather()}], "max_tokens": 150,
        "tool_choice": "required", "reasoning_effort": "none",
        "response_format": {"type": "json_object"}});
    let whole = chat(s.address, said(more)).ok();
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
}

/// However short: no markup and no header in the content, and arguments that end
/// where the tokens did.
#[test]
fn a_call_that_is_cut_off_stays_open() {
    let s = start();
    let ask = |more: Value| {
        let base = json!({"tools": [{"type": "function", "function": weather()}], "seed": 5,
            "tool_choice": "required", "reasoning_effort": "none", "parallel_tool_calls": false});
        chat(s.address, said(with(base, &more)))
    };
    let whole = ask(json!({"max_tokens": 200})).ok();
    let full = &whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"];
    let full = full.as_str().unwrap();
    let all = whole["usage"]["completion_tokens"].as_u64().unwrap();
    let mut open = 0;
    for most in 1..all {
        // A stream is the same in pieces: some of them will do.
        for stream in [false, true]
            .into_iter()
            .take(1 + usize::from(most % 5 == 0))
        {
            let reply = ask(json!({"max_tokens": most, "stream": stream}));
            let (content, arguments, finish) = match stream {
                false => {
                    let choice = reply.ok()["choices"][0].clone();
                    let call = &choice["message"]["tool_calls"][0]["function"]["arguments"];
                    let content = choice["message"]["content"].clone();
                    (
                        content,
                        call.as_str().unwrap_or_default().to_owned(),
                        choice["finish_reason"].clone(),
                    )
                }
                true => {
                    let events = reply.events();
                    let deltas = events.iter().map(|e| &e["choices"][0]["delta"]);
                    let calls = deltas
                        .clone()
                        .map(|d| &d["tool_calls"][0]["function"]["arguments"]);
                    let calls: String = calls.filter_map(Value::as_str).collect();
                    let text: String = deltas.filter_map(|d| d["content"].as_str()).collect();
                    assert_eq!(text, "");
                    (
                        Value::Null,
                        calls,
                        events.last().unwrap()["choices"][0]["finish_reason"].clone(),
                    )
                }
            };
            assert_eq!((content, finish), (Value::Null, "length".into()), "{most}");
            assert!(
                full.starts_with(&arguments),
                "{most}: {arguments:?} of {full:?}"
            );
            open += usize::from(!arguments.is_empty() && arguments != full);
        }
    }
    assert!(open > 0, "some end within the arguments");
}

#[test]
fn a_header_is_never_content() {
    let s = start();
    for most in 1..4 {
        let whole = chat(s.address, said(json!({"max_tokens": most}))).ok();
        assert_eq!(whole["choices"][0]["message"]["content"], "", "{most}");
        assert_eq!(whole["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn a_template_keeps_the_conversation() {
    let s = start();
    for name in [
        "messages",
        "tools",
        "bos_token",
        "eos_token",
        "add_generation_prompt",
    ] {
        let more = said(json!({"chat_template_kwargs": {name: []}}));
        let param = format!("chat_template_kwargs.{name}");
        assert_eq!(refused(&chat(s.address, more.clone()), 400), param);
    }
    chat(
        s.address,
        said(json!({"chat_template_kwargs": {"mood": "calm"}})),
    )
    .ok();
}

#[test]
fn a_models_name_may_have_slashes() {
    let s = start_as(limits(), UnknownFields::Refuse, "org/model:v1");
    assert_eq!(
        get(s.address, "/v1/models/org/model:v1").ok()["id"],
        "org/model:v1"
    );
    assert_eq!(
        get(s.address, "/v1/models/org%2Fmodel%3Av1").ok()["id"],
        "org/model:v1"
    );
    for other in ["/v1/models/org/model", "/v1/models/%ff"] {
        let reply = get(s.address, other);
        refused(&reply, 404);
        assert_eq!(reply.json()["error"]["code"], "model_not_found", "{other}");
    }
    chat(s.address, said(json!({"model": "org/model:v1"}))).ok();
}

#[test]
fn a_stream_may_count_as_it_goes() {
    let s = start();
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = complete(
        s.address,
        text(json!({"stream": true, "stream_options": options})),
    )
    .events();
    let counts = events
        .iter()
        .map(|e| e["usage"]["completion_tokens"].as_u64().unwrap());
    let counts: Vec<u64> = counts.collect();
    assert!(counts.windows(2).all(|w| w[0] <= w[1]), "{counts:?}");
    assert_eq!((counts[0], *counts.last().unwrap()), (1, 12));
}

#[test]
fn reasoning_can_be_left_out() {
    let s = start();
    let bias = json!({});
    let shown = chat(
        s.address,
        said(json!({"include_reasoning": false, "logit_bias": bias})),
    )
    .ok();
    assert!(
        shown["choices"][0]["message"]
            .get("reasoning_content")
            .is_none()
    );
}

fn vectors(s: &Running, body: &Value) -> Vec<Vec<f64>> {
    let whole = post(s.address, "/v1/embeddings", body).ok();
    let data = whole["data"].as_array().unwrap().clone();
    let each = data.iter().enumerate().map(|(i, d)| {
        assert_eq!(d["index"], i);
        serde_json::from_value(d["embedding"].clone()).unwrap()
    });
    each.collect()
}

#[test]
fn embeddings_are_many_and_as_short_as_asked() {
    let few = Limits {
        slots: 3,
        queue: 2,
        ..limits()
    };
    let s = start_as(few, UnknownFields::Refuse, "nano");
    let inputs: Vec<[usize; 1]> = (0..2048).map(|i| [1 + i % 11]).collect();
    let all = vectors(&s, &json!({"input": inputs}));
    assert_eq!(all.len(), 2048);
    for (i, vector) in all.iter().enumerate() {
        assert_eq!(vector, &all[i % 11], "{i}");
    }
    let one = vectors(&s, &json!({"input": [5]}));
    assert_eq!(one[0], all[4]);
    let more: Vec<&str> = vec!["x"; 2049];
    assert_eq!(
        refused(
            &post(s.address, "/v1/embeddings", &json!({"input": more})),
            400
        ),
        "input"
    );
    let short = &vectors(&s, &json!({"input": [5], "dimensions": 8}))[0];
    assert_eq!(short.len(), 8);
    let length = one[0][..8].iter().map(|v| v * v).sum::<f64>().sqrt();
    for (a, b) in short.iter().zip(&one[0]) {
        assert!((a - b / length).abs() < 1e-6);
    }
    // As long as the context is taken, one more is not.
    let long = |n: usize| post(s.address, "/v1/embeddings", &json!({"input": vec![5; n]}));
    long(512).ok();
    let reply = long(513);
    let message = reply.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        message,
        "input: expected at most 512 tokens in this server's context of 512, found 513"
    );
}

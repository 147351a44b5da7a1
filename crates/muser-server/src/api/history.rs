//! Reads the conversation in a chat request: messages of the client, and earlier answers
//! that it sends back.

use super::tools::{Choice, Tools};
use crate::error::{ApiError, shown};
use crate::fields::{Fields, wrong};
use muser_text::{Message, RenderOptions};
use serde_json::{Map, Value, json};

/// Variables of the chat template that only the server sets, so that a request may not.
const RESERVED: [&str; 6] = [
    "messages",
    "tools",
    "bos_token",
    "eos_token",
    "add_generation_prompt",
    "continue_final_message",
];

/// Fields that other software adds to a message, a part of one, a tool or a call:
/// ignored.
pub(super) const ASIDE: [&str; 3] = ["cache_control", "provider_specific_fields", "extra_content"];

/// Reads a chat request's messages, and the other variables of the chat template.
pub(super) fn conversation(
    f: &mut Fields,
    tools: &Tools,
) -> Result<(Vec<Message>, RenderOptions), ApiError> {
    let Value::Array(items) = f.require("messages")? else {
        return Err(ApiError::field("messages", "expected an array of messages"));
    };
    if items.is_empty() {
        return Err(ApiError::field(
            "messages",
            "expected at least one, found none",
        ));
    }
    let each = items.into_iter().enumerate();
    let messages = each
        .map(|(i, item)| message(f.inner(format!("messages[{i}]"), item)?))
        .collect::<Result<_, _>>()?;
    let mut extra = Map::new();
    if let Some(effort) = effort(f)? {
        extra.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(thinking) = f.flag("enable_thinking")? {
        extra.insert("enable_thinking".into(), thinking.into());
        if !thinking {
            extra.entry("reasoning_effort").or_insert("none".into());
        }
    }
    if let Some(more) = f.object("chat_template_kwargs")? {
        let more = more.rest();
        if let Some(name) = RESERVED.into_iter().find(|name| more.contains_key(*name)) {
            let reason = "the server sets it: expected no such variable";
            return Err(ApiError::field(
                format!("chat_template_kwargs.{name}"),
                reason,
            ));
        }
        extra.extend(more);
    }
    let wanted = !tools.shown().is_empty() && tools.choice != Choice::None;
    let described = tools
        .shown()
        .into_iter()
        .map(|t| json!({"type": "function", "function": t.description}));
    let options = RenderOptions {
        add_generation_prompt: true,
        tools: wanted.then(|| described.collect()),
        extra,
    };
    Ok((messages, options))
}

/// Reads how much the model is to reason, from `reasoning_effort` or its other name,
/// `think`.
fn effort(f: &mut Fields) -> Result<Option<String>, ApiError> {
    let own = f.string("reasoning_effort")?;
    // Ollama's name: a switch or an effort.
    let think = match f.take("think") {
        None | Some(Value::Bool(true)) => None,
        Some(Value::Bool(false)) => Some("none".to_owned()),
        Some(Value::String(effort)) => Some(effort),
        Some(other) => return Err(wrong("think", "true, false or an effort", &other)),
    };
    match (own, think) {
        (Some(own), Some(think)) if own != think => {
            let reason = "expected the value of reasoning_effort, another name of it";
            Err(ApiError::field("think", reason))
        }
        (own, think) => Ok(own.or(think)),
    }
}

const ROLES: [&str; 6] = [
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
];

fn message(mut f: Fields) -> Result<Message, ApiError> {
    let role = match f.require("role")? {
        Value::String(role) if ROLES.contains(&role.as_str()) => role,
        other => {
            let found = shown(&other.to_string());
            let reason = format!("expected one of {}, found {found}", ROLES.join(", "));
            return Err(ApiError::field(f.name("role"), reason));
        }
    };
    let place = f.name("content");
    let content = match f.take("content") {
        Some(content) => Some(text(&f, &place, content)?),
        None => None,
    };
    // An earlier answer that was a refusal has that as its text.
    let content = match (content, f.string("refusal")?) {
        (None, refusal) => refusal,
        (content, _) => content,
    };
    let calls = calls(&mut f)?;
    if content.is_none() && !(role == "assistant" && calls.is_some()) {
        return Err(ApiError::field(place, "expected a text, found none"));
    }
    let message = Message {
        role: match role.as_str() {
            // The first is a newer name of `system`, the second an older one of `tool`.
            "developer" => "system".to_owned(),
            "function" => "tool".to_owned(),
            _ => role,
        },
        content: content.unwrap_or_default(),
        reasoning_content: f.string("reasoning_content")?,
        tool_calls: calls,
        tool_call_id: f.string("tool_call_id")?,
        name: f.string("name")?,
    };
    if f.take("audio").is_some() {
        let reason = "this server keeps no audio";
        return Err(ApiError::field(f.name("audio"), reason));
    }
    // Fields of an answer that clients send back or add.
    f.drop_all(&["annotations", "parsed", "reasoning", "reasoning_details"]);
    f.drop_all(&["thinking_blocks"]);
    f.drop_all(&ASIDE);
    f.finish()?;
    Ok(message)
}

/// Reads a message's content: a text, or parts that are all text, which are joined.
fn text(f: &Fields, name: &str, value: Value) -> Result<String, ApiError> {
    let parts = match value {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong(name, "a string or an array of parts", &other)),
    };
    let mut all = String::new();
    for (i, part) in parts.into_iter().enumerate() {
        let mut part = f.inner(format!("{name}[{i}]"), part)?;
        let key = match part.string("type")?.as_deref() {
            Some("text") => "text",
            Some("refusal") => "refusal",
            _ => {
                let reason = "this model reads text only: expected \"text\"";
                return Err(ApiError::field(part.name("type"), reason));
            }
        };
        let missing = ApiError::field(part.name(key), "expected a string, found none");
        all += &part.string(key)?.ok_or(missing)?;
        part.drop_all(&["annotations"]);
        part.drop_all(&ASIDE);
        part.finish()?;
    }
    Ok(all)
}

/// Reads the tool calls of an earlier answer that the client sends back.
fn calls(f: &mut Fields) -> Result<Option<Value>, ApiError> {
    let base = f.name("tool_calls");
    let mut all = Vec::new();
    for (i, item) in f.array("tool_calls")?.into_iter().flatten().enumerate() {
        let mut call = f.inner(format!("{base}[{i}]"), item)?;
        let id = call.string("id")?;
        call.string("type")?;
        call.integer("index", 0, i64::MAX)?;
        let missing = ApiError::field(call.name("function"), "expected an object, found none");
        let function = call.object("function")?.ok_or(missing)?;
        let function = called(function)?;
        call.drop_all(&ASIDE);
        call.finish()?;
        all.push(json!({"id": id, "type": "function", "function": function}));
    }
    // OpenAI's older field for a single call.
    if let Some(function) = f.object("function_call")? {
        let function = called(function)?;
        all.push(json!({"id": null, "type": "function", "function": function}));
    }
    Ok((!all.is_empty()).then(|| all.into()))
}

/// Reads the name and the arguments of a tool call. Arguments that are an object, or the
/// text of one as OpenAI writes it, become an object, which chat templates expect.
fn called(mut function: Fields) -> Result<Value, ApiError> {
    let missing = ApiError::field(function.name("name"), "expected a string, found none");
    let name = function.string("name")?.ok_or(missing)?;
    let place = function.name("arguments");
    let arguments = match function.take("arguments") {
        None => Value::from(""),
        Some(object @ Value::Object(_)) => object,
        Some(Value::String(text)) => match serde_json::from_str::<Value>(&text) {
            Ok(object @ Value::Object(_)) => object,
            _ => text.into(),
        },
        Some(other) => return Err(wrong(&place, "a string or an object", &other)),
    };
    function.drop_all(&["parsed_arguments"]);
    function.drop_all(&ASIDE);
    function.finish()?;
    Ok(json!({"name": name, "arguments": arguments}))
}

//! `/v1/chat/completions`: a conversation goes on.

use super::App;
use super::body::fields;
use super::params::{MOST_TOP, check_lengths, common};
use super::render::{Kind, Render};
use super::stream;
use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use crate::grammar::{Constraint, Tool, parameter_types};
use crate::scheduler::{Format, Generate, Request, Task};
use axum::extract::State;
use axum::response::Response;
use muser_text::{Message, RenderOptions};
use serde_json::{Map, Value, json};
use std::sync::Arc;

struct Parsed {
    request: Request,
    /// What the answer has to fit.
    constraint: Option<Constraint>,
    stream: bool,
    include_usage: bool,
    logprobs: bool,
}

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    request: axum::extract::Request,
) -> Result<Response, ApiError> {
    let client = 0;
    let body = fields(&app, request).await?;
    let shared = app.clone();
    let mut parsed = body.read(move |f| parse(&shared, f)).await?;
    if let (Some(constraint), Task::Generate(generate)) =
        (parsed.constraint, &mut parsed.request.task)
    {
        let grammars = app.grammars()?.clone();
        generate.grammar = Some(grammars.admit(client, constraint).await?);
    }
    let choices = parsed.request.units();
    let events = app.handle.submit(parsed.request)?;
    let render = Render::new(app, Kind::Chat, choices, parsed.logprobs);
    if parsed.stream {
        return Ok(stream::response(render, events, parsed.include_usage));
    }
    render.whole(events).await
}

fn parse(app: &App, mut f: Fields) -> Result<Parsed, ApiError> {
    let common = common(app, &mut f)?;
    let old = f.count("max_tokens", 1, i64::from(u32::MAX))?;
    let max_tokens = f
        .count("max_completion_tokens", 1, i64::from(u32::MAX))?
        .or(old);
    let logprobs = f.flag("logprobs")?.unwrap_or(false);
    let top = f.count("top_logprobs", 0, MOST_TOP)?;
    if top.is_some() && !logprobs {
        let reason = "expected only together with logprobs: true";
        return Err(ApiError::field("top_logprobs", reason));
    }
    let tools = tools(&mut f)?;
    let schemas = tools.iter().map(|t| &t.parameters);
    app.limits.schema.check_tools(schemas)?;
    let choice = tool_choice(&mut f, &tools)?;
    let parallel = f.flag("parallel_tool_calls")?.unwrap_or(true);
    let format = response_format(&mut f)?;
    let (messages, options) = conversation(&mut f, &tools, &choice)?;
    f.finish()?;

    let effort = options.extra.get("reasoning_effort");
    let wanted = Wanted {
        parallel,
        reason: effort.is_none_or(|e| e != "none"),
        format,
    };
    let constraint = constraint(app, &tools, &choice, &wanted)?;
    let (_, prompt) = app.guard.chat(&app.codec, messages, options)?;
    let prompts = vec![prompt];
    check_lengths(app, "messages", &prompts, true)?;
    let calls = !tools.is_empty() && choice != Choice::None;
    let generate = Generate {
        sampling: common.sampling,
        max_tokens,
        stop: common.stop,
        logprobs: logprobs.then(|| top.unwrap_or(0)),
        format: match app.codec.header_end() {
            Some(_) => Format::Messages { tools: calls },
            None => Format::Plain,
        },
        // Compiled once the request is read.
        grammar: None,
        parameters: parameter_types(&tools, &app.limits.schema),
        ignore_end: common.ignore_end,
        n: common.n,
    };
    Ok(Parsed {
        constraint,
        request: Request {
            prompts,
            task: Task::Generate(Box::new(generate)),
            cache: common.cache,
            deadline: common.deadline,
        },
        stream: common.stream,
        include_usage: common.include_usage,
        logprobs,
    })
}

/// What an answer may and must be.
struct Wanted {
    /// Several calls at once.
    parallel: bool,
    /// Reasoning before a constrained answer.
    reason: bool,
    /// The schema, and the field that has it.
    format: Option<(&'static str, Value)>,
}

/// What the answer has to fit. Where a tool has to be called, the call is all
/// that is decoded, whatever the answer after it is to be.
fn constraint(
    app: &App,
    tools: &[Tool],
    choice: &Choice,
    wanted: &Wanted,
) -> Result<Option<Constraint>, ApiError> {
    let called = |tool: &Tool| match choice {
        Choice::None | Choice::Auto => false,
        Choice::Required => true,
        Choice::Named(name) => tool.name == *name,
    };
    let must_call: Vec<(usize, &Tool)> = tools
        .iter()
        .enumerate()
        .filter(|(_, t)| called(t))
        .collect();
    let (parallel, reason) = (wanted.parallel, wanted.reason);
    match &wanted.format {
        _ if !must_call.is_empty() => {
            let grammars = app.grammars()?;
            grammars.calls(&must_call, parallel, reason).map(Some)
        }
        None => Ok(None),
        Some((param, schema)) => app.grammars()?.json(param, schema, reason).map(Some),
    }
}

/// The messages, and what else the template is told.
pub(super) fn conversation(
    f: &mut Fields,
    tools: &[Tool],
    choice: &Choice,
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
        .map(|(i, item)| message(Fields::of(format!("messages[{i}]"), item)?))
        .collect::<Result<_, _>>()?;
    let mut extra = Map::new();
    if let Some(effort) = f.string("reasoning_effort")? {
        extra.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(more) = f.object("chat_template_kwargs")? {
        extra.extend(more.rest());
    }
    let described = tools
        .iter()
        .map(|t| json!({"type": "function", "function": t.description}));
    let wanted = !tools.is_empty() && *choice != Choice::None;
    let options = RenderOptions {
        add_generation_prompt: true,
        tools: wanted.then(|| described.collect()),
        extra,
    };
    Ok((messages, options))
}

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

fn message(mut f: Fields) -> Result<Message, ApiError> {
    let role = match f.require("role")? {
        Value::String(role) if ROLES.contains(&role.as_str()) => role,
        other => {
            let reason = format!("expected one of {}, found {other}", ROLES.join(", "));
            return Err(ApiError::field(f.name("role"), reason));
        }
    };
    let name = f.name("content");
    let content = f.take("content").map(|c| text(&name, c)).transpose()?;
    let calls = calls(&mut f)?;
    if content.is_none() && !(role == "assistant" && calls.is_some()) {
        return Err(ApiError::field(name, "expected a text, found none"));
    }
    let message = Message {
        role: match role.as_str() {
            // The newer name of the same thing.
            "developer" => "system".to_owned(),
            _ => role,
        },
        content: content.unwrap_or_default(),
        reasoning_content: f.string("reasoning_content")?,
        tool_calls: calls,
        tool_call_id: f.string("tool_call_id")?,
        name: f.string("name")?,
    };
    // What clients send back of an answer of ours.
    for empty in ["refusal", "audio", "annotations", "function_call"] {
        match f.take(empty) {
            None => {}
            Some(Value::Array(items)) if items.is_empty() => {}
            Some(_) => {
                return Err(ApiError::field(
                    f.name(empty),
                    "this server takes no such value",
                ));
            }
        }
    }
    f.finish()?;
    Ok(message)
}

/// A text, or parts that are all text.
fn text(name: &str, value: Value) -> Result<String, ApiError> {
    let parts = match value {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong(name, "a string or an array of parts", &other)),
    };
    let mut all = String::new();
    for (i, part) in parts.into_iter().enumerate() {
        let mut part = Fields::of(format!("{name}[{i}]"), part)?;
        let kind = part.string("type")?;
        if kind.as_deref() != Some("text") {
            let reason = "this model reads text only: expected \"text\"";
            return Err(ApiError::field(part.name("type"), reason));
        }
        let missing = ApiError::field(part.name("text"), "expected a string, found none");
        all += &part.string("text")?.ok_or(missing)?;
        part.finish()?;
    }
    Ok(all)
}

/// The calls of an earlier answer, with arguments as the objects that templates
/// expect where they are such.
fn calls(f: &mut Fields) -> Result<Option<Value>, ApiError> {
    let base = f.name("tool_calls");
    let Some(items) = f.array("tool_calls")? else {
        return Ok(None);
    };
    let mut all = Vec::new();
    for (i, item) in items.into_iter().enumerate() {
        let mut call = Fields::of(format!("{base}[{i}]"), item)?;
        let id = call.string("id")?;
        call.string("type")?;
        call.integer("index", 0, i64::MAX)?;
        let missing = ApiError::field(call.name("function"), "expected an object, found none");
        let mut function = call.object("function")?.ok_or(missing)?;
        let missing = ApiError::field(function.name("name"), "expected a string, found none");
        let name = function.string("name")?.ok_or(missing)?;
        let arguments = function.string("arguments")?.unwrap_or_default();
        let arguments = match serde_json::from_str::<Value>(&arguments) {
            Ok(value @ Value::Object(_)) => value,
            _ => arguments.into(),
        };
        function.finish()?;
        call.finish()?;
        all.push(json!({
            "id": id, "type": "function", "function": {"name": name, "arguments": arguments}
        }));
    }
    Ok((!all.is_empty()).then(|| all.into()))
}

/// Tools that may be called.
pub(super) fn tools(f: &mut Fields) -> Result<Vec<Tool>, ApiError> {
    let mut tools: Vec<Tool> = Vec::new();
    for (i, item) in f.array("tools")?.into_iter().flatten().enumerate() {
        let mut tool = Fields::of(format!("tools[{i}]"), item)?;
        if tool.string("type")?.as_deref() != Some("function") {
            return Err(ApiError::field(tool.name("type"), "expected \"function\""));
        }
        let missing = ApiError::field(tool.name("function"), "expected an object, found none");
        let mut function = tool.object("function")?.ok_or(missing)?;
        tool.finish()?;
        let place = function.name("name");
        let name = function.string("name")?.unwrap_or_default();
        let letters = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(letters) {
            let reason = "expected 1 to 64 letters, digits, _, - or .";
            return Err(ApiError::field(place, reason));
        }
        if matches!(name.as_str(), "user" | "self") || tools.iter().any(|t| t.name == name) {
            return Err(ApiError::field(
                place,
                "expected a name that nothing else has",
            ));
        }
        let description = function.string("description")?;
        function.flag("strict")?;
        let schema = function.name("parameters");
        let parameters = function.take("parameters");
        let parameters = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
        if !parameters.is_object() {
            return Err(wrong(&schema, "a JSON schema", &parameters));
        }
        function.finish()?;
        tools.push(Tool {
            description: json!({
                "name": name, "description": description, "parameters": parameters
            }),
            name,
            parameters,
        });
    }
    Ok(tools)
}

/// Which tools are to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    None,
    Auto,
    Required,
    Named(String),
}

fn tool_choice(f: &mut Fields, tools: &[Tool]) -> Result<Choice, ApiError> {
    let choice = match f.take("tool_choice") {
        None => return Ok(Choice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => return Ok(Choice::None),
            "auto" => Choice::Auto,
            "required" => Choice::Required,
            _ => {
                let reason = "expected none, auto, required, or an object that names a function";
                return Err(ApiError::field("tool_choice", reason));
            }
        },
        Some(object) => {
            let mut choice = Fields::of("tool_choice".into(), object)?;
            if choice.string("type")?.as_deref() != Some("function") {
                return Err(ApiError::field("tool_choice.type", "expected \"function\""));
            }
            let function = choice.object("function")?;
            choice.finish()?;
            let name = match function {
                None => None,
                Some(mut function) => {
                    let name = function.string("name")?;
                    function.finish()?;
                    name
                }
            };
            let known = name.filter(|n| tools.iter().any(|t| t.name == *n));
            let reason = "expected the name of one of the tools";
            Choice::Named(
                known.ok_or_else(|| ApiError::field("tool_choice.function.name", reason))?,
            )
        }
    };
    if tools.is_empty() {
        return Err(ApiError::field(
            "tool_choice",
            "expected tools with it, found none",
        ));
    }
    Ok(choice)
}

/// The schema that the answer has to fit, if one is asked for.
fn response_format(f: &mut Fields) -> Result<Option<(&'static str, Value)>, ApiError> {
    let Some(mut format) = f.object("response_format")? else {
        return Ok(None);
    };
    let schema = match format.string("type")?.as_deref() {
        Some("text") => None,
        Some("json_object") => Some(("response_format", json!({"type": "object"}))),
        Some("json_schema") => {
            let name = format.name("json_schema");
            let missing = ApiError::field(name, "expected an object, found none");
            let mut inner = format.object("json_schema")?.ok_or(missing)?;
            inner.string("name")?;
            inner.string("description")?;
            // Always strict: the decoding can do nothing else.
            inner.flag("strict")?;
            let schema = inner.require("schema")?;
            inner.finish()?;
            Some(("response_format.json_schema.schema", schema))
        }
        _ => {
            let reason = "expected text, json_object or json_schema";
            return Err(ApiError::field("response_format.type", reason));
        }
    };
    format.finish()?;
    Ok(schema)
}

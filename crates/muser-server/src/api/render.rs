//! Answers as OpenAI's clients read them, whole and in chunks.

use super::App;
use crate::error::{ApiError, json_text};
use crate::scheduler::{CallDelta, Counts, Delta, Event, Events, Finish, TokenLogProb};
use axum::http::StatusCode;
use axum::response::Response;
use muser_engine::Token;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Which of the two kinds of completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Text,
}

/// What all of an answer's JSON needs to know.
pub(super) struct Render {
    pub(super) app: Arc<App>,
    pub(super) kind: Kind,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) logprobs: bool,
    /// The prompts' texts, where the answer begins with them.
    pub(super) echo: Vec<String>,
    pub(super) choices: usize,
}

impl Render {
    pub(super) fn new(app: Arc<App>, kind: Kind, choices: usize, logprobs: bool) -> Self {
        let prefix = match kind {
            Kind::Chat => "chatcmpl",
            Kind::Text => "cmpl",
        };
        Self {
            id: format!("{prefix}-{}", app.ids.next()),
            created: super::now(),
            kind,
            logprobs,
            echo: Vec::new(),
            choices,
            app,
        }
    }

    /// What an answer's choice begins with.
    pub(super) fn echoed(&self, choice: usize) -> &str {
        let prompts = self.echo.len().max(1);
        let each = (self.choices / prompts).max(1);
        self.echo.get(choice / each).map_or("", String::as_str)
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".into(), self.id.as_str().into());
        map.insert("object".into(), object.into());
        map.insert("created".into(), self.created.into());
        map.insert("model".into(), self.app.model.as_str().into());
        let fingerprint = self.app.fingerprint.as_str();
        map.insert("system_fingerprint".into(), fingerprint.into());
        map.insert("choices".into(), choices.into());
        map
    }

    /// The bytes of a token, and as text.
    fn token(&self, token: Token) -> (String, Vec<u8>) {
        let Ok(tokenizer) = self.app.codec.tokenizer() else {
            return (format!("token_id:{token}"), Vec::new());
        };
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        (String::from_utf8_lossy(bytes).into_owned(), bytes.to_vec())
    }

    fn chat_logprobs(&self, all: &[TokenLogProb]) -> Value {
        let entry = |token: Token, logprob: f64| {
            let (text, bytes) = self.token(token);
            json!({"token": text, "logprob": finite(logprob), "bytes": bytes})
        };
        let each = all.iter().map(|t| {
            let top = t.top.iter().map(|&(token, p)| entry(token, p));
            let mut one = entry(t.token, t.logprob);
            one["top_logprobs"] = top.collect();
            one
        });
        json!({"content": each.collect::<Vec<_>>(), "refusal": null})
    }

    /// The older form; `offset` is where the first token's text begins.
    fn text_logprobs(&self, all: &[TokenLogProb], offset: &mut usize) -> Value {
        let (mut tokens, mut probs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
        for t in all {
            let (text, _) = self.token(t.token);
            offsets.push(*offset);
            *offset += text.chars().count();
            let top = t.top.iter();
            let top: Map<String, Value> = top
                .map(|&(t, p)| (self.token(t).0, finite(p).into()))
                .collect();
            tokens.push(text);
            probs.push(finite(t.logprob));
            tops.push(top);
        }
        json!({
            "tokens": tokens, "token_logprobs": probs, "top_logprobs": tops, "text_offset": offsets
        })
    }

    fn call(&self, choice: usize, call: &CallDelta) -> Value {
        let function = match &call.name {
            Some(name) => json!({"name": name, "arguments": call.arguments}),
            None => json!({"arguments": call.arguments}),
        };
        let mut value = json!({"index": call.index, "function": function});
        if call.name.is_some() {
            value["id"] = self.call_id(choice, call.index).into();
            value["type"] = "function".into();
        }
        value
    }

    fn call_id(&self, choice: usize, index: usize) -> String {
        let id = self.id.rsplit('-').next().unwrap_or_default();
        format!("call_{id}_{choice}_{index}")
    }

    /// The chunk that opens a choice, if this kind has one.
    pub(super) fn opening(&self, choice: usize) -> Option<Map<String, Value>> {
        match self.kind {
            Kind::Chat => {
                let delta = json!({"role": "assistant", "content": ""});
                Some(self.chunk(choice, delta, Value::Null, Value::Null))
            }
            Kind::Text => {
                let text = self.echoed(choice);
                (!text.is_empty())
                    .then(|| self.chunk(choice, text.into(), Value::Null, Value::Null))
            }
        }
    }

    /// The chunk of a delta.
    pub(super) fn delta(
        &self,
        choice: usize,
        delta: &Delta,
        offset: &mut usize,
    ) -> Map<String, Value> {
        let logprobs = match (self.logprobs, self.kind) {
            (false, _) => Value::Null,
            (true, Kind::Chat) => self.chat_logprobs(&delta.logprobs),
            (true, Kind::Text) => self.text_logprobs(&delta.logprobs, offset),
        };
        let content = match self.kind {
            Kind::Text => delta.content.as_str().into(),
            Kind::Chat => {
                let mut map = Map::new();
                if !delta.reasoning.is_empty() {
                    map.insert("reasoning_content".into(), delta.reasoning.as_str().into());
                }
                if !delta.content.is_empty() {
                    map.insert("content".into(), delta.content.as_str().into());
                }
                if !delta.calls.is_empty() {
                    let calls = delta.calls.iter().map(|c| self.call(choice, c));
                    map.insert("tool_calls".into(), calls.collect());
                }
                map.into()
            }
        };
        self.chunk(choice, content, logprobs, Value::Null)
    }

    /// The chunk that closes a choice.
    pub(super) fn closing(&self, choice: usize, finish: Finish) -> Map<String, Value> {
        let content = match self.kind {
            Kind::Chat => json!({}),
            Kind::Text => "".into(),
        };
        self.chunk(choice, content, Value::Null, finish.name().into())
    }

    fn chunk(
        &self,
        choice: usize,
        content: Value,
        logprobs: Value,
        finish: Value,
    ) -> Map<String, Value> {
        let (object, field) = match self.kind {
            Kind::Chat => ("chat.completion.chunk", "delta"),
            Kind::Text => ("text_completion", "text"),
        };
        let choice = json!({
            "index": choice, field: content, "logprobs": logprobs, "finish_reason": finish
        });
        self.envelope(object, vec![choice])
    }

    /// The chunk of the usage.
    pub(super) fn usage(&self, counts: Counts) -> Map<String, Value> {
        let object = match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Text => "text_completion",
        };
        let mut chunk = self.envelope(object, Vec::new());
        chunk.insert("usage".into(), usage(counts));
        chunk
    }

    /// The whole answer, once it is there.
    pub(super) async fn whole(&self, mut events: Events) -> Result<Response, ApiError> {
        let mut parts = vec![Whole::default(); self.choices];
        let mut counts = Counts::default();
        let mut open = self.choices;
        while open > 0 {
            match events.next().await? {
                Event::Delta { choice, delta } => {
                    if let Some(part) = parts.get_mut(choice) {
                        part.add(delta);
                    }
                }
                Event::Done {
                    choice,
                    finish,
                    counts: more,
                } => {
                    counts += more;
                    open -= 1;
                    if let Some(part) = parts.get_mut(choice) {
                        part.finish = Some(finish);
                    }
                }
                Event::State { .. } => {}
            }
        }
        // A long answer takes a processor for a while, which others need not wait
        // for.
        let text = tokio::task::block_in_place(|| self.text(&parts, counts))?;
        Ok(json_text(StatusCode::OK, text))
    }

    /// The whole answer's JSON, written choice by choice and token by token: as
    /// one value its log-probabilities would take ten times the memory.
    fn text(&self, parts: &[Whole], counts: Counts) -> Result<String, ApiError> {
        let object = match self.kind {
            Kind::Chat => "chat.completion",
            Kind::Text => "text_completion",
        };
        let answer = Answer {
            render: self,
            head: self.envelope(object, Vec::new()),
            parts,
            usage: usage(counts),
        };
        let text = serde_json::to_string(&answer);
        text.map_err(|e| ApiError::internal(format!("the answer could not be written: {e}")))
    }

    fn choice(&self, index: usize, part: &Whole) -> Value {
        let finish = part.finish.map(Finish::name);
        if self.kind == Kind::Text {
            let text = self.echoed(index);
            return json!({
                "index": index, "text": format!("{text}{}", part.all.content),
                "logprobs": null, "finish_reason": finish
            });
        }
        let mut message =
            json!({"role": "assistant", "content": part.all.content, "refusal": null});
        if !part.all.reasoning.is_empty() {
            message["reasoning_content"] = part.all.reasoning.as_str().into();
        }
        if !part.all.calls.is_empty() {
            let calls = part.all.calls.iter().map(|c| {
                json!({
                    "id": self.call_id(index, c.index), "type": "function",
                    "function": {"name": c.name, "arguments": c.arguments}
                })
            });
            message["tool_calls"] = calls.collect();
            if part.all.content.is_empty() {
                message["content"] = Value::Null;
            }
        }
        json!({
            "index": index, "message": message, "logprobs": null, "finish_reason": finish
        })
    }
}

/// A whole answer, of which no more than a token's JSON is a value at once.
struct Answer<'r> {
    render: &'r Render,
    /// Everything but its choices and its usage.
    head: Map<String, Value>,
    parts: &'r [Whole],
    usage: Value,
}

impl Serialize for Answer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.head.len() + 1))?;
        for (name, value) in &self.head {
            match name.as_str() {
                "choices" => map.serialize_entry(name, &Choices(self.render, self.parts))?,
                _ => map.serialize_entry(name, value)?,
            }
        }
        map.serialize_entry("usage", &self.usage)?;
        map.end()
    }
}

struct Choices<'r>(&'r Render, &'r [Whole]);

impl Serialize for Choices<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let each = self.1.iter().enumerate();
        serializer.collect_seq(each.map(|(index, part)| Choice {
            render: self.0,
            index,
            part,
        }))
    }
}

struct Choice<'r> {
    render: &'r Render,
    index: usize,
    part: &'r Whole,
}

impl Serialize for Choice<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = self.render.choice(self.index, self.part);
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in value.as_object().into_iter().flatten() {
            match name.as_str() {
                "logprobs" if self.render.logprobs => map.serialize_entry(name, &Probs(self))?,
                _ => map.serialize_entry(name, value)?,
            }
        }
        map.end()
    }
}

/// The log-probabilities of a choice.
struct Probs<'r>(&'r Choice<'r>);

impl Serialize for Probs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Its fields, from the form that the tokens of a stream have: lists of
        // one a token, and what is no list.
        let form = match self.0.render.kind {
            Kind::Chat => self.0.render.chat_logprobs(&[]),
            Kind::Text => self.0.render.text_logprobs(&[], &mut 0),
        };
        let mut map = serializer.serialize_map(None)?;
        for (field, value) in form.as_object().into_iter().flatten() {
            match value {
                Value::Array(_) => map.serialize_entry(field, &Column { of: self.0, field })?,
                other => map.serialize_entry(field, other)?,
            }
        }
        map.end()
    }
}

/// One field of the log-probabilities, over the tokens of a choice.
struct Column<'r> {
    of: &'r Choice<'r>,
    field: &'r str,
}

impl Serialize for Column<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Choice {
            render,
            index,
            part,
        } = *self.of;
        let mut offset = render.echoed(index).chars().count();
        let each = part.all.logprobs.iter().map(|token| {
            let token = std::slice::from_ref(token);
            let mut one = match render.kind {
                Kind::Chat => render.chat_logprobs(token),
                Kind::Text => render.text_logprobs(token, &mut offset),
            };
            one[self.field][0].take()
        });
        serializer.collect_seq(each)
    }
}

/// A choice put together again.
#[derive(Clone, Debug, Default)]
struct Whole {
    all: Delta,
    finish: Option<Finish>,
}

impl Whole {
    fn add(&mut self, delta: Delta) {
        self.all.content += &delta.content;
        self.all.reasoning += &delta.reasoning;
        self.all.logprobs.extend(delta.logprobs);
        for call in delta.calls {
            match self.all.calls.last_mut() {
                Some(last) if call.name.is_none() => last.arguments += &call.arguments,
                _ => self.all.calls.push(call),
            }
        }
    }
}

/// JSON has no infinity; a token that was ruled out has none either.
fn finite(logprob: f64) -> f64 {
    logprob.max(-9999.0)
}

/// OpenAI's `usage`.
pub(super) fn usage(counts: Counts) -> Value {
    json!({
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
    })
}

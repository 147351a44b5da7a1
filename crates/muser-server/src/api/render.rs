//! Renders answers as the JSON that OpenAI's clients read, in one piece and in chunks of
//! a stream.

use super::App;
use super::text::{self, Offsets};
use super::whole;
use crate::error::{ApiError, json_text};
use crate::scheduler::{Counts, Delta, Event, Events, Finish, Scored, TokenLogProb};
use axum::http::StatusCode;
use axum::response::Response;
use muser_engine::Token;
use muser_text::chat::CallDelta;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The two kinds of completion that an answer can be: of a chat, or of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Text,
}

/// Which parts of an answer the response shows, and how.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape {
    /// Whether the response shows the tokens' log-probabilities.
    pub(super) logprobs: bool,
    /// Whether control tokens count as shown text, in their written form.
    pub(super) show_special: bool,
    /// The prompts' texts, if the answers begin with them (`echo`); otherwise empty.
    pub(super) echo: Vec<String>,
    /// Whether the response leaves the model's reasoning out.
    pub(super) hide_reasoning: bool,
    /// Whether the answer had to call a tool. Then its content is null rather than an
    /// empty text, even if no call is complete.
    pub(super) must_call: bool,
    /// Whether the response shows only the first tool call, in OpenAI's older field
    /// `function_call`.
    pub(super) old_call: bool,
}

/// Renders the answers to one request as JSON; holds the ids, names and settings that
/// this takes.
pub(super) struct Render {
    pub(super) app: Arc<App>,
    pub(super) kind: Kind,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) shape: Shape,
    pub(super) choices: usize,
}

impl Render {
    pub(super) fn new(app: Arc<App>, kind: Kind, choices: usize, shape: Shape) -> Self {
        let prefix = match kind {
            Kind::Chat => "chatcmpl",
            Kind::Text => "cmpl",
        };
        Self {
            id: format!("{prefix}-{}", app.ids.next()),
            created: super::now(),
            kind,
            shape,
            choices,
            app,
        }
    }

    /// Returns the text of the prompt that one of a request's completions (a choice)
    /// begins with (`echo`), or an empty text.
    pub(super) fn echoed(&self, choice: usize) -> &str {
        let prompts = self.shape.echo.len().max(1);
        let each = (self.choices / prompts).max(1);
        self.shape
            .echo
            .get(choice / each)
            .map_or("", String::as_str)
    }

    /// Returns the JSON object around the completions in every response and stream chunk:
    /// id, kind of object, time, model, fingerprint and `choices`.
    pub(super) fn envelope(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
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

    /// Renders a token as text, and returns its bytes too.
    fn token(&self, token: Token) -> (String, &[u8]) {
        let Ok(tokenizer) = self.app.codec.tokenizer() else {
            return (format!("token_id:{token}"), &[]);
        };
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        (text::of_token(tokenizer, token), bytes)
    }

    pub(super) fn chat_logprobs(&self, all: &[TokenLogProb]) -> Value {
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

    /// Renders log-probabilities in the form of text completions: those of the prompt's
    /// tokens, if asked for, and those of the answer's. `offsets` counts the characters
    /// of the text so far.
    pub(super) fn text_logprobs(
        &self,
        prompt: Option<&Scored>,
        all: &[TokenLogProb],
        offsets: &mut Offsets,
    ) -> Value {
        let mut lists = TextLogProbs::default();
        if let Some(scored) = prompt {
            let (text, offset) = self.place(scored.first, offsets);
            // Nothing precedes the first token, so it has no probability.
            lists.push(text, offset, Value::Null, Value::Null);
        }
        for t in prompt.iter().flat_map(|p| &p.rest).chain(all) {
            let (text, offset) = self.place(t.token, offsets);
            let mut top = Map::new();
            for &(token, p) in &t.top {
                top.insert(self.token(token).0, finite(p).into());
            }
            // The token itself is always listed, likely or not.
            top.insert(text.clone(), finite(t.logprob).into());
            lists.push(text, offset, finite(t.logprob).into(), top.into());
        }
        lists.json()
    }

    /// Returns a token's text and the character of the shown text at which it begins;
    /// `offsets` moves past the token if it is shown.
    fn place(&self, token: Token, offsets: &mut Offsets) -> (String, usize) {
        let (text, bytes) = self.token(token);
        let tokenizer = self.app.codec.tokenizer();
        let hidden = tokenizer.is_ok_and(|t| t.is_control(token)) && !self.shape.show_special;
        let offset = offsets.push(if hidden { &[] } else { bytes });
        (text, offset)
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

    /// Renders the stream's chunk that opens one of a request's completions (a choice):
    /// in a chat the role, in a text completion the echoed prompt, if any.
    pub(super) fn opening(&self, choice: usize) -> Option<Map<String, Value>> {
        match self.kind {
            Kind::Chat => {
                let delta = json!({"role": "assistant", "content": ""});
                Some(self.chunk(choice, delta, Value::Null, Value::Null))
            }
            Kind::Text => {
                let text = self.echoed(choice);
                // With log-probabilities, the prompt comes with those of its tokens.
                (!text.is_empty() && !self.shape.logprobs)
                    .then(|| self.chunk(choice, text.into(), Value::Null, Value::Null))
            }
        }
    }

    /// Renders the stream's chunk for new text of one of a request's completions (a
    /// choice).
    pub(super) fn delta(
        &self,
        choice: usize,
        delta: &Delta,
        offsets: &mut Offsets,
    ) -> Map<String, Value> {
        let scored = delta.prompt.as_deref();
        let logprobs = match (self.shape.logprobs, self.kind) {
            (false, _) => Value::Null,
            (true, Kind::Chat) => self.chat_logprobs(&delta.logprobs),
            (true, Kind::Text) => self.text_logprobs(scored, &delta.logprobs, offsets),
        };
        let content = match self.kind {
            Kind::Text if scored.is_some() => {
                format!("{}{}", self.echoed(choice), delta.text.content).into()
            }
            Kind::Text => delta.text.content.as_str().into(),
            Kind::Chat => {
                let mut map = Map::new();
                if !delta.text.reasoning.is_empty() && !self.shape.hide_reasoning {
                    map.insert(
                        "reasoning_content".into(),
                        delta.text.reasoning.as_str().into(),
                    );
                }
                if !delta.text.content.is_empty() {
                    map.insert("content".into(), delta.text.content.as_str().into());
                }
                if self.shape.old_call {
                    if let Some(call) = old_call(&delta.text.calls) {
                        map.insert("function_call".into(), call);
                    }
                } else if !delta.text.calls.is_empty() {
                    let calls = delta.text.calls.iter().map(|c| self.call(choice, c));
                    map.insert("tool_calls".into(), calls.collect());
                }
                map.into()
            }
        };
        self.chunk(choice, content, logprobs, Value::Null)
    }

    /// Renders the stream's chunk that closes one of a request's completions (a choice)
    /// and tells why it ended.
    pub(super) fn closing(&self, choice: usize, finish: Finish) -> Map<String, Value> {
        let content = match self.kind {
            Kind::Chat => json!({}),
            Kind::Text => "".into(),
        };
        self.chunk(choice, content, Value::Null, self.finish(finish).into())
    }

    fn finish(&self, finish: Finish) -> &'static str {
        match finish {
            Finish::ToolCalls if self.shape.old_call => "function_call",
            Finish::Stop | Finish::Length | Finish::ToolCalls => finish.name(),
        }
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

    /// Renders the stream's last chunk, which reports the token counts.
    pub(super) fn usage(&self, counts: Counts) -> Map<String, Value> {
        let object = match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Text => "text_completion",
        };
        let mut chunk = self.envelope(object, Vec::new());
        chunk.insert("usage".into(), usage(counts));
        chunk
    }

    /// Waits for the complete answers to a request and renders them as one response.
    pub(super) async fn whole(&self, mut events: Events) -> Result<Response, ApiError> {
        let mut parts = vec![Whole::default(); self.choices];
        let mut counts = Counts::default();
        let mut open = self.choices;
        while open > 0 {
            match events.next().await? {
                Event::Delta { choice, delta, .. } => {
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
        // Writing a long answer takes a while; other tasks of this thread move on.
        let text = tokio::task::block_in_place(|| whole::text(self, &parts, counts))?;
        Ok(json_text(StatusCode::OK, text))
    }

    /// Renders one of a request's completions (a choice), now complete, as JSON, without
    /// its log-probabilities.
    pub(super) fn choice(&self, index: usize, part: &Whole) -> Value {
        let finish = part.finish.map(|finish| self.finish(finish));
        let all = &part.all;
        if self.kind == Kind::Text {
            let text = self.echoed(index);
            return json!({
                "index": index, "text": format!("{text}{}", all.text.content),
                "logprobs": null, "finish_reason": finish
            });
        }
        let mut message =
            json!({"role": "assistant", "content": all.text.content, "refusal": null});
        if !all.text.reasoning.is_empty() && !self.shape.hide_reasoning {
            message["reasoning_content"] = all.text.reasoning.as_str().into();
        }
        if self.shape.old_call {
            if let Some(call) = old_call(&all.text.calls) {
                message["function_call"] = call;
            }
        } else if !all.text.calls.is_empty() {
            let calls = all.text.calls.iter().map(|c| {
                json!({
                    "id": self.call_id(index, c.index), "type": "function",
                    "function": {"name": c.name, "arguments": c.arguments}
                })
            });
            message["tool_calls"] = calls.collect();
        }
        if all.text.content.is_empty() && (self.shape.must_call || !all.text.calls.is_empty()) {
            message["content"] = Value::Null;
        }
        json!({
            "index": index, "message": message, "logprobs": null, "finish_reason": finish
        })
    }
}

/// A complete answer (one of a request's completions), put together from the parts that
/// the scheduler sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Whole {
    pub(super) all: Delta,
    finish: Option<Finish>,
}

impl Whole {
    fn add(&mut self, delta: Delta) {
        self.all.text.content += &delta.text.content;
        self.all.text.reasoning += &delta.text.reasoning;
        self.all.logprobs.extend(delta.logprobs);
        self.all.prompt = self.all.prompt.take().or(delta.prompt);
        for call in delta.text.calls {
            match self.all.text.calls.last_mut() {
                Some(last) if call.name.is_none() => last.arguments += &call.arguments,
                _ => self.all.text.calls.push(call),
            }
        }
    }
}

/// The log-probabilities of a text completion: four lists with an entry for each token.
#[derive(Default)]
struct TextLogProbs {
    tokens: Vec<String>,
    offsets: Vec<usize>,
    probs: Vec<Value>,
    tops: Vec<Value>,
}

impl TextLogProbs {
    fn push(&mut self, token: String, offset: usize, prob: Value, top: Value) {
        self.tokens.push(token);
        self.offsets.push(offset);
        self.probs.push(prob);
        self.tops.push(top);
    }

    fn json(self) -> Value {
        json!({
            "tokens": self.tokens, "token_logprobs": self.probs,
            "top_logprobs": self.tops, "text_offset": self.offsets
        })
    }
}

/// Renders the parts of an answer's first tool call as OpenAI's older `function_call`,
/// which can hold one call only.
fn old_call(calls: &[CallDelta]) -> Option<Value> {
    let mut first = calls.iter().filter(|c| c.index == 0).peekable();
    first.peek()?;
    let mut value = json!({"arguments": ""});
    let mut arguments = String::new();
    for part in first {
        if let Some(name) = &part.name {
            value["name"] = name.as_str().into();
        }
        arguments += &part.arguments;
    }
    value["arguments"] = arguments.into();
    Some(value)
}

/// Replaces a log-probability of minus infinity (a token that was ruled out), which JSON
/// lacks, by -9999.
fn finite(logprob: f64) -> f64 {
    logprob.max(-9999.0)
}

/// Renders the token counts of an answer as OpenAI's `usage` object.
pub(super) fn usage(counts: Counts) -> Value {
    json!({
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
    })
}

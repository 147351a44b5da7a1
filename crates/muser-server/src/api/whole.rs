//! Writes the JSON of a complete answer (one that is not streamed), completion by
//! completion and token by token.
//!
//! Built as one JSON value, the log-probabilities would take ten times the memory of
//! their text.

use super::render::{Kind, Render, Whole, usage};
use super::text::Offsets;
use crate::error::ApiError;
use crate::scheduler::{Counts, Scored};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::{Map, Value};

/// Writes the JSON text of a complete answer with all completions (choices) of its
/// request.
pub(super) fn text(render: &Render, parts: &[Whole], counts: Counts) -> Result<String, ApiError> {
    let object = match render.kind {
        Kind::Chat => "chat.completion",
        Kind::Text => "text_completion",
    };
    let answer = Answer {
        render,
        head: render.envelope(object, Vec::new()),
        parts,
        usage: usage(counts),
    };
    let text = serde_json::to_string(&answer);
    text.map_err(|e| ApiError::internal(format!("the answer could not be written: {e}")))
}

/// Serialises a complete answer so that, at any time, no more of it exists as a JSON
/// value than one token's log-probabilities.
struct Answer<'r> {
    render: &'r Render,
    /// The answer's JSON fields with their values, except `usage`; `choices` is empty
    /// here and only marks where the completions go.
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
                "logprobs" if self.render.shape.logprobs => {
                    map.serialize_entry(name, &Probs(self))?
                }
                _ => map.serialize_entry(name, value)?,
            }
        }
        map.end()
    }
}

/// Serialises the log-probabilities of one of a request's completions (a choice).
struct Probs<'r>(&'r Choice<'r>);

impl Serialize for Probs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The fields are those of a stream's log-probabilities: lists with one
        // entry per token, and fields that are no lists.
        let form = match self.0.render.kind {
            Kind::Chat => self.0.render.chat_logprobs(&[]),
            Kind::Text => self
                .0
                .render
                .text_logprobs(None, &[], &mut Offsets::default()),
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

/// Serialises one field of a completion's log-probabilities, such as `text_offset`: a
/// list with an entry for each token.
struct Column<'r> {
    of: &'r Choice<'r>,
    field: &'r str,
}

impl Serialize for Column<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Choice { render, part, .. } = *self.of;
        let mut offsets = Offsets::default();
        let scored = part.all.prompt.as_deref();
        // The first token of a prompt is rendered differently.
        let first = scored.map(|scored| Scored {
            first: scored.first,
            rest: Vec::new(),
        });
        let first = first.filter(|_| render.kind == Kind::Text);
        let first = first.map(|first| render.text_logprobs(Some(&first), &[], &mut offsets));
        let rest = scored.iter().flat_map(|scored| &scored.rest);
        let rest = rest.chain(&part.all.logprobs).map(|token| {
            let token = std::slice::from_ref(token);
            match render.kind {
                Kind::Chat => render.chat_logprobs(token),
                Kind::Text => render.text_logprobs(None, token, &mut offsets),
            }
        });
        let each = first.into_iter().chain(rest);
        serializer.collect_seq(each.map(|mut one| one[self.field][0].take()))
    }
}

//! Accepts fields of other servers and clients that change nothing here: hints, and
//! switches with the value that this server always has.
//!
//! A field is obeyed or refused by its name: the server never answers a request that
//! it understood in part. A field is listed here only with values that ask for what
//! happens anyway.

use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use serde_json::Value;

/// Names of text fields in a request that are only hints to a provider (who asks, how to
/// bill, where to compute): read and ignored.
const TEXT_HINTS: [&str; 8] = [
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "verbosity",
    "request_id",
    "guided_decoding_backend",
];

/// Names of request fields of any type that are ignored: hints, and the settings of
/// features whose switches are off.
const HINTS: [&str; 16] = [
    "prediction",
    "spaces_between_special_tokens",
    "priority",
    "id_slot",
    "n_keep",
    "n_discard",
    "mirostat_tau",
    "mirostat_eta",
    "dynatemp_exponent",
    "xtc_threshold",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "smoothing_curve",
    "store",
];

/// The only value of a request's switch (a field such as `echo`) that is accepted,
/// because it asks for what happens anyway.
#[derive(Clone, Copy, Debug)]
enum Neutral {
    /// The switch, a field of a request, is accepted with `false` only.
    False,
    /// The switch, a field of a request, is accepted with `true` only.
    True,
    /// The switch, a field of a request, is accepted with this number only.
    Number(f64),
    /// The switch, a field of a request, is accepted with an empty string, array or
    /// object only.
    Empty,
    /// The field of a request is known, and refused with every value.
    Never,
}

impl Neutral {
    fn fits(self, value: &Value) -> bool {
        match self {
            Self::False => value == &Value::Bool(false),
            Self::True => value == &Value::Bool(true),
            Self::Number(n) => value.as_f64() == Some(n),
            Self::Empty => match value {
                Value::String(s) => s.is_empty(),
                Value::Array(items) => items.is_empty(),
                Value::Object(map) => map.is_empty(),
                Value::Null | Value::Bool(_) | Value::Number(_) => false,
            },
            Self::Never => false,
        }
    }

    fn expected(self) -> String {
        match self {
            Self::False => "expected false, or no such field".to_owned(),
            Self::True => "expected true, or no such field".to_owned(),
            Self::Number(n) => format!("expected {n}, or no such field"),
            Self::Empty => "expected an empty one, or no such field".to_owned(),
            Self::Never => "expected no such field".to_owned(),
        }
    }
}

/// Switches (request fields that this server supports with one value) of chat and text
/// completions, each with that value.
const SWITCHES: [(&str, Neutral); 41] = [
    // Fields of vLLM's server.
    ("use_beam_search", Neutral::False),
    ("length_penalty", Neutral::Number(1.0)),
    ("early_stopping", Neutral::False),
    ("include_stop_str_in_output", Neutral::False),
    ("bad_words", Neutral::Empty),
    ("allowed_token_ids", Neutral::Never),
    ("logits_processors", Neutral::Empty),
    ("return_tokens_as_token_ids", Neutral::False),
    ("return_token_ids", Neutral::False),
    ("truncate_prompt_tokens", Neutral::Never),
    ("prompt_logprobs", Neutral::False),
    ("documents", Neutral::Empty),
    ("chat_template", Neutral::Never),
    ("guided_whitespace_pattern", Neutral::Never),
    // Fields for grammars in languages that this server does not read.
    ("grammar", Neutral::Empty),
    ("guided_grammar", Neutral::Empty),
    ("ebnf", Neutral::Empty),
    ("structural_tag", Neutral::Empty),
    // Fields of SGLang's server.
    ("no_stop_trim", Neutral::False),
    ("return_hidden_states", Neutral::False),
    ("separate_reasoning", Neutral::True),
    ("stream_reasoning", Neutral::True),
    ("stop_regex", Neutral::Empty),
    ("lora_path", Neutral::Empty),
    ("session_params", Neutral::Empty),
    // Fields of llama.cpp's server, and of samplers that this server lacks.
    ("typical_p", Neutral::Number(1.0)),
    ("typical", Neutral::Number(1.0)),
    ("tfs_z", Neutral::Number(1.0)),
    ("top_a", Neutral::Number(0.0)),
    ("top_n_sigma", Neutral::Number(-1.0)),
    ("mirostat", Neutral::Number(0.0)),
    ("dynatemp_range", Neutral::Number(0.0)),
    ("smoothing_factor", Neutral::Number(0.0)),
    ("xtc_probability", Neutral::Number(0.0)),
    ("dry_multiplier", Neutral::Number(0.0)),
    ("n_probs", Neutral::Number(0.0)),
    ("n_indent", Neutral::Number(0.0)),
    ("samplers", Neutral::Never),
    ("penalize_nl", Neutral::False),
    ("timings_per_token", Neutral::False),
    ("return_progress", Neutral::False),
];

/// Switches (request fields that this server supports with one value) of chat
/// completions, each with that value.
const CHAT_SWITCHES: [(&str, Neutral); 7] = [
    ("add_generation_prompt", Neutral::True),
    ("continue_final_message", Neutral::False),
    ("add_special_tokens", Neutral::False),
    ("skip_special_tokens", Neutral::True),
    ("echo", Neutral::False),
    ("audio", Neutral::Never),
    ("web_search_options", Neutral::Never),
];

/// Switches (request fields that this server supports with one value) of text
/// completions, each with that value.
const TEXT_SWITCHES: [(&str, Neutral); 1] = [("add_special_tokens", Neutral::True)];

/// Reads the request fields of chat and text completions that change nothing here:
/// ignores hints, and refuses switches with a value that is not supported.
pub(super) fn common(f: &mut Fields) -> Result<(), ApiError> {
    for name in TEXT_HINTS {
        f.string(name)?;
    }
    f.flag("store")?;
    f.drop_all(&HINTS);
    if let Some(metadata) = f.object("metadata")? {
        for (key, value) in metadata.rest() {
            if !value.is_string() {
                let key = crate::error::shown(&key);
                return Err(wrong(&format!("metadata.{key}"), "a string", &value));
            }
        }
    }
    switches(f, &SWITCHES)
}

/// Reads the switches of a chat completion, request fields that change nothing here;
/// refuses values that are not supported.
pub(super) fn chat(f: &mut Fields) -> Result<(), ApiError> {
    match f.take("modalities") {
        None => {}
        Some(Value::Array(kinds)) if kinds.iter().all(|kind| kind == "text") => {}
        Some(_) => {
            let reason = "this model writes text only: expected [\"text\"]";
            return Err(ApiError::field("modalities", reason));
        }
    }
    switches(f, &CHAT_SWITCHES)
}

/// Reads the switches of a text completion, request fields that change nothing here;
/// refuses values that are not supported.
pub(super) fn text(f: &mut Fields) -> Result<(), ApiError> {
    switches(f, &TEXT_SWITCHES)
}

fn switches(f: &mut Fields, all: &[(&str, Neutral)]) -> Result<(), ApiError> {
    for (name, neutral) in all {
        let value = f.take(name).filter(|value| !neutral.fits(value));
        if value.is_some() {
            let reason = format!("this server does not do that: {}", neutral.expected());
            return Err(ApiError::field(f.name(name), reason).code("unsupported_field"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::UnknownFields;

    #[test]
    fn each_is_described() {
        let described: Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
        let of = |schema: &str, name: &str| {
            let fields = &described["components"]["schemas"][schema]["properties"];
            assert!(fields.get(name).is_some(), "{name} in {schema}");
        };
        let switches = SWITCHES.iter().map(|(name, _)| *name);
        for name in TEXT_HINTS.into_iter().chain(HINTS).chain(switches) {
            of("ChatRequest", name);
            of("CompletionRequest", name);
        }
        CHAT_SWITCHES.iter().for_each(|s| of("ChatRequest", s.0));
        TEXT_SWITCHES
            .iter()
            .for_each(|s| of("CompletionRequest", s.0));
    }

    #[test]
    fn a_switch_has_one_position_and_another_is_refused_by_name() {
        let of = |text: String| Fields::body(text.as_bytes(), UnknownFields::Ignore).unwrap();
        let all = SWITCHES.iter().chain(&CHAT_SWITCHES).chain(&TEXT_SWITCHES);
        for (name, neutral) in all {
            let (fits, differs) = match neutral {
                Neutral::False => ("false".to_owned(), "true"),
                Neutral::True => ("true".to_owned(), "false"),
                Neutral::Number(n) => (n.to_string(), "0.25"),
                Neutral::Empty => ("\"\"".to_owned(), "\"x\""),
                Neutral::Never => ("null".to_owned(), "[]"),
            };
            let row = [(*name, *neutral)];
            switches(&mut of(format!("{{\"{name}\": {fits}}}")), &row).unwrap();
            let error = switches(&mut of(format!("{{\"{name}\": {differs}}}")), &row).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(*name));
        }
    }
}

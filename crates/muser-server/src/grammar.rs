//! Constrained decoding: which tokens may come next.

use crate::atem::StringParameters;
use crate::error::ApiError;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use muser_engine::{Codec, Token};
use muser_text::{EncodeOptions, Special, Tokenizer};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Makes grammars over one model's vocabulary.
pub(crate) struct Grammars {
    factory: ParserFactory,
    /// Whether the vocabulary can write a message before the answer.
    can_reason: bool,
    /// Whether the model writes the header of its answer.
    header: bool,
}

/// The vocabulary as the grammar library wants it.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Tokenizer,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<Token> {
        let options = EncodeOptions {
            special: Special::Plain,
            add_bos: false,
        };
        let text = std::str::from_utf8(bytes).ok();
        let tokens = text.and_then(|text| self.tokenizer.encode(text, options).ok());
        tokens.unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }
}

impl Grammars {
    /// Over the model's tokens. Costs a walk over the vocabulary.
    pub(crate) fn new(codec: &Codec) -> Result<Self, ApiError> {
        let tokenizer = codec.tokenizer()?;
        let size = u32::try_from(tokenizer.vocab_size())
            .map_err(|_| ApiError::internal("the vocabulary is too large"))?;
        let ends: Vec<Token> = tokenizer.eog().iter().collect();
        let Some(&end) = ends.first() else {
            let reason = "constrained decoding needs a model that says where an answer ends";
            return Err(ApiError::invalid(reason));
        };
        let word = |id: Token| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            match tokenizer.is_control(id) {
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
                false => bytes.to_vec(),
            }
        };
        let words: Vec<Vec<u8>> = (0..size).map(word).collect();
        // It panics on a token of 64 KiB and the like, which a file may have.
        let factory = llguidance::panic_utils::catch_unwind(AssertUnwindSafe(|| {
            let trie = TokTrie::from(&TokRxInfo::new(size, end), &words).with_eos_tokens(&ends);
            let env: TokEnv = Arc::new(Vocabulary {
                trie,
                tokenizer: tokenizer.clone(),
            });
            ParserFactory::new_simple(&env)
        }));
        let mut factory = factory.map_err(failed)?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        let has = |text: &str| {
            let id = tokenizer.id_of(text);
            id.is_some_and(|id| tokenizer.is_control(id))
        };
        Ok(Self {
            factory,
            can_reason: has("<|eom|>")
                && has("<|start|>")
                && !ends.iter().any(|&e| tokenizer.id_of("<|eom|>") == Some(e)),
            header: codec.header_end().is_some() && has("<|message|>"),
        })
    }

    /// Whether the model writes the header of its answer.
    pub(crate) fn has_header(&self) -> bool {
        self.header
    }

    /// An answer that is JSON of this schema.
    pub(crate) fn json(&self, schema: &Value, reason: bool) -> Result<Grammar, ApiError> {
        let param = "response_format";
        let schema = compact(param, schema)?;
        if !self.header {
            return self.compile(param, TopLevelGrammar::from_json_schema(schema));
        }
        let mut lark = self.beginning("\" to=user\" <|message|> answer", reason);
        let _ = writeln!(lark, "answer: %json {schema}");
        self.compile(param, TopLevelGrammar::from_lark(lark))
    }

    /// An answer that calls one of these tools, or several.
    pub(crate) fn calls(
        &self,
        tools: &[Tool],
        parallel: bool,
        reason: bool,
    ) -> Result<Grammar, ApiError> {
        if !self.header {
            let reason = "this model's template has no format of tool calls";
            return Err(ApiError::field("tool_choice", reason));
        }
        let calls = match parallel && self.can_reason {
            true => "call (<|eom|> <|start|> \"assistant\" call)*",
            false => "call",
        };
        let mut lark = self.beginning(calls, reason);
        let names = (0..tools.len()).map(|i| format!("call_{i}"));
        let _ = writeln!(lark, "call: {}", names.collect::<Vec<_>>().join(" | "));
        for (i, tool) in tools.iter().enumerate() {
            tool.rules(i, &mut lark)?;
        }
        self.compile("tools", TopLevelGrammar::from_lark(lark))
    }

    /// The start rule and, if it may, those that let the model reason first.
    pub(crate) fn beginning(&self, answer: &str, reason: bool) -> String {
        if !(self.can_reason && reason) {
            return format!("start: {answer}\n");
        }
        format!(
            "start: reasoning? {answer}\n\
             reasoning: \" to=self\" <|message|> TEXT <|eom|> <|start|> \"assistant\"\n\
             TEXT: /(?s:.*)/\n"
        )
    }

    /// The grammar, if the library can use it; errors name the field.
    pub(crate) fn compile(
        &self,
        param: &str,
        grammar: TopLevelGrammar,
    ) -> Result<Grammar, ApiError> {
        let matcher = Matcher::new(self.factory.create_parser(grammar));
        match matcher.get_error() {
            None => Ok(Grammar(matcher)),
            Some(e) => {
                let first = e.lines().next().unwrap_or_default();
                Err(ApiError::field(param, format!("cannot be used: {first}")))
            }
        }
    }
}

/// The schema with the library's option to write no white space between its
/// parts: a small model could go on with it for ever.
pub(crate) fn compact(param: &str, schema: &Value) -> Result<Value, ApiError> {
    let Value::Object(map) = schema else {
        return Err(crate::fields::wrong(param, "an object", schema));
    };
    let mut map = map.clone();
    map.insert("x-guidance".into(), json!({"whitespace_flexible": false}));
    Ok(Value::Object(map))
}

/// A tool that the model may call.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// JSON schema of its arguments.
    pub(crate) parameters: Value,
    /// What the template is told of it.
    pub(crate) description: Value,
}

impl Tool {
    fn properties(&self) -> impl Iterator<Item = (&String, &Value)> {
        let properties = self.parameters.get("properties").and_then(Value::as_object);
        properties.into_iter().flatten()
    }

    /// The rules of a call, in the format of [`crate::atem`].
    fn rules(&self, index: usize, lark: &mut String) -> Result<(), ApiError> {
        let required = self.parameters.get("required").and_then(Value::as_array);
        let required = |key: &str| required.is_some_and(|r| r.iter().any(|v| v == key));
        let mut parts = String::new();
        let mut rules = String::new();
        for (j, (key, schema)) in self.properties().enumerate() {
            let rule = format!("arg_{index}_{j}");
            let optional = if required(key) { "" } else { "?" };
            let _ = write!(parts, " {rule}{optional}");
            let open = literal(&format!("<atem:parameter name=\"{key}\">"));
            let value = match is_string(schema) {
                true => text(schema),
                false => format!("%json {}", compact("tools", schema)?),
            };
            let _ = writeln!(
                rules,
                "{rule}: {open} val_{index}_{j} \"</atem:parameter>\\n\"\nval_{index}_{j}: {value}"
            );
        }
        let to = literal(&format!(" to={}", self.name));
        let open = literal(&format!(
            "<atem:function_calls>\n<atem:invoke name=\"{}\">\n",
            self.name
        ));
        let _ = writeln!(
            lark,
            "call_{index}: {to} <|message|> {open}{parts} \
             \"</atem:invoke>\\n</atem:function_calls>\"\n{rules}"
        );
        Ok(())
    }
}

/// Which parameters are strings.
pub(crate) fn string_parameters(tools: &[Tool]) -> StringParameters {
    let of = |tool: &Tool| -> HashMap<String, bool> {
        let each = tool.properties();
        each.map(|(key, schema)| (key.clone(), is_string(schema)))
            .collect()
    };
    tools.iter().map(|t| (t.name.clone(), of(t))).collect()
}

fn is_string(schema: &Value) -> bool {
    let strings = |v: &Value| v.as_array().is_some_and(|a| a.iter().all(Value::is_string));
    schema.get("type").is_some_and(|t| t == "string")
        || (schema.get("type").is_none() && schema.get("enum").is_some_and(strings))
}

/// The rule of a string that is no JSON: the alternatives of an `enum`, else
/// any text up to the markup's end, at most `maxLength` characters of it.
/// Other bounds (`pattern`, `format`) are not enforced here.
fn text(schema: &Value) -> String {
    let of = |v: &Value| v.as_array().cloned();
    let values = schema.get("enum").and_then(of);
    let values = values.or_else(|| schema.get("const").map(|v| vec![v.clone()]));
    if let Some(values) = values {
        let texts = values.iter().filter_map(Value::as_str).map(literal);
        return texts.collect::<Vec<_>>().join(" | ");
    }
    match schema.get("maxLength").and_then(Value::as_u64) {
        Some(most) => format!("/(?s:[^<]{{0,{most}}})/"),
        // `<` where no `/` follows.
        None => "/(?s:([^<]|<+[^<\\/])*)/".to_owned(),
    }
}

/// A string of the grammar language, which writes them as JSON does.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// A grammar and how far an answer has come in it.
pub(crate) struct Grammar(Matcher);

impl Clone for Grammar {
    /// One that goes its own way, on another thread if need be.
    fn clone(&self) -> Self {
        Self(self.0.deep_clone())
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl Grammar {
    /// The tokens that may come next, the model's ends among them where the
    /// answer may end.
    pub(crate) fn allowed(&mut self) -> Result<SimpleVob, ApiError> {
        self.0.compute_mask_or_eos().map_err(failed)
    }

    /// Goes on by a token.
    pub(crate) fn push(&mut self, token: Token) -> Result<(), ApiError> {
        self.0.consume_token(token).map_err(failed)
    }

    /// Whether nothing may follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.0.is_stopped()
    }
}

fn failed(error: impl std::fmt::Display) -> ApiError {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    ApiError::internal(format!("constrained decoding failed: {first}"))
}

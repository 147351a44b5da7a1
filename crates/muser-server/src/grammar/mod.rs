//! Constrained decoding: makes a grammar of a JSON schema, a regular expression or the
//! request's tools, and from it the mask of tokens that an answer may go on with.
//!
//! ```text
//! schema ─ limits ─► value, tool: rules ─► text ─► quarantine: may it? ─► compiled
//!                                                                          │
//!                         an answer's own thread: mask, token, mask … ◄────┘
//! ```
//!
//! The schema is read here and not by the grammar library: what cannot be decoded is
//! refused with the keyword and its place in the schema. The library (llguidance) gets
//! flat rules, and a worker process, if the options name one, compiles them first: a
//! grammar that exceeds the worker's time, memory or stack is never compiled in the
//! server.

mod digits;
mod masks;
mod merge;
mod number;
mod object;
mod pattern;
mod quarantine;
mod rules;
mod schema;
mod string;
#[cfg(test)]
mod tests;
mod tool;
mod value;
mod vocabulary;
mod worker;

pub(crate) use masks::Masks;
pub(crate) use tool::{Tool, parameter_types};
pub use worker::grammar_worker;

use crate::error::ApiError;
use crate::limits::work::Client;
use crate::limits::{GrammarLimits, SchemaLimits};
use llguidance::{Matcher, ParserFactory};
use muser_engine::Codec;
use muser_text::chat::{Markup, Piece};
use quarantine::{Quarantine, Verdict};
use rules::{Rules, Sym};
use schema::Refusal;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};
use value::Compiler;
use vocabulary::Vocabulary;

/// The most bytes of grammar text in the cache of compiled and refused grammars.
const KEPT_BYTES: usize = 4 << 20;
/// The most tool calls that a grammar allows in one answer.
const MOST_CALLS: usize = 128;

/// What a request may demand of an answer's content: JSON of a schema, a pattern, or
/// one of several texts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    /// The answer has to be JSON that fits this schema.
    Json(Value),
    /// The answer has to be a text that this regular expression matches from the first
    /// to the last character.
    Pattern(String),
    /// The answer has to be exactly one of these texts.
    Choice(Vec<String>),
}

/// The grammar that an answer has to fit, as text in the library's Lark syntax, not yet
/// compiled.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    /// The field of the request that asks for the grammar; errors name it.
    param: String,
    lark: Arc<str>,
}

/// The SHA-256 of a grammar's text, by which compiled grammars are cached.
type Key = [u8; 32];

/// An entry of the cache of grammars: the hash of the grammar's text, its length in
/// bytes, and the compiled grammar or the reason for which it was refused.
type Kept = (Key, usize, Result<Grammar, String>);

/// Makes and compiles the grammars of requests, over one model's vocabulary.
pub(crate) struct Grammars {
    factory: ParserFactory,
    /// The markup that the model's chat format writes around content, reasoning and
    /// tool calls.
    markup: Markup,
    limits: GrammarLimits,
    schema: SchemaLimits,
    /// The worker processes that try each grammar first; `None` if the options have no
    /// command line for them.
    quarantine: Option<Quarantine>,
    /// The cache of compiled and refused grammars, least recently used first.
    kept: Mutex<VecDeque<Kept>>,
}

impl Grammars {
    /// Creates the maker of grammars for a model's tokenizer; walks over the whole
    /// vocabulary once, and starts the threads that run workers.
    pub(crate) fn new(
        codec: &Codec,
        worker: Option<&[OsString]>,
        limits: GrammarLimits,
        schema: SchemaLimits,
    ) -> Result<Self, ApiError> {
        let tokenizer = codec.tokenizer()?;
        let Some(vocabulary) = Vocabulary::of(tokenizer) else {
            let reason = "constrained decoding needs a model that says where an answer ends";
            return Err(ApiError::invalid(reason));
        };
        let factory = vocabulary.factory().map_err(failed)?;
        let goes_on = |token: &str| {
            let id = tokenizer.id_of(token);
            id.is_some_and(|id| tokenizer.is_control(id) && !codec.is_end(id))
        };
        let quarantine = worker.map(|w| Quarantine::new(w.to_vec(), &limits, &vocabulary));
        Ok(Self {
            factory,
            markup: within(*codec.format().markup(), goes_on),
            limits,
            schema,
            quarantine: quarantine.transpose().map_err(failed)?,
            kept: Mutex::default(),
        })
    }

    /// Writes the grammar of an answer whose content has the form that the request's
    /// field `param` asks for. With `chat` it begins with the chat format's header;
    /// with `reason` reasoning may come before it.
    pub(crate) fn answer(
        &self,
        param: &str,
        form: &Form,
        chat: bool,
        reason: bool,
    ) -> Result<Draft, ApiError> {
        let mut rules = Rules::default();
        let value = match form {
            Form::Json(schema) => {
                self.schema.check(param, schema)?;
                let refused = |refusal| refuse(param, refusal);
                let mut compiler = Compiler::new(rules, schema, &self.schema);
                let value = compiler.value(schema, "");
                compiler.finish().map_err(refused)?;
                rules = compiler.rules;
                value
            }
            Form::Pattern(pattern) => {
                let text = pattern::whole(pattern, self.schema.pattern_steps);
                let text = text.map_err(|reason| ApiError::field(param, reason))?;
                let text = Sym::Term(rules.terminal(&format!("/{text}/")));
                rules.rule(vec![vec![text]])
            }
            Form::Choice(texts) => {
                let each = texts.iter().map(|text| vec![rules.text(text)]);
                let each = each.collect();
                rules.rule(each)
            }
        };
        let mut answer = match chat {
            false => Vec::new(),
            true => rules.markup(self.markup.content, ""),
        };
        answer.push(Sym::Rule(value));
        self.draft(param, rules, answer, chat && reason)
    }

    /// Writes the grammar of an answer that calls one of these tools, or several if
    /// `parallel` is set. Each tool comes with the request's field that holds its
    /// schema.
    pub(crate) fn calls(
        &self,
        tools: &[(String, &Tool)],
        parallel: bool,
        reason: bool,
    ) -> Result<Draft, ApiError> {
        let Some(markup) = &self.markup.calls else {
            let reason = "this model's template has no format of tool calls";
            return Err(ApiError::field("tool_choice", reason));
        };
        let mut rules = Rules::default();
        let mut calls = Vec::new();
        for (param, tool) in tools {
            let refused = |refusal| refuse(param, refusal);
            let mut compiler = Compiler::new(rules, &tool.parameters, &self.schema);
            let call = compiler.call(markup, tool).map_err(refused)?;
            compiler.finish().map_err(refused)?;
            rules = compiler.rules;
            if !rules.is_productive(call) {
                let none = Refusal::new("", "expected a schema that some arguments fit");
                return Err(refused(none));
            }
            calls.push(vec![Sym::Rule(call)]);
        }
        let call = rules.rule(calls);
        let mut answer = vec![Sym::Rule(call)];
        if let Some(between) = markup.between.filter(|_| parallel) {
            let mut again = rules.markup(between, "");
            again.push(Sym::Rule(call));
            answer.push(Sym::Times {
                rule: rules.rule(vec![again]),
                min: 0,
                most: MOST_CALLS - 1,
            });
        }
        self.draft("tools", rules, answer, reason)
    }

    /// Turns the rules and the sequence of an answer into a grammar's text; with
    /// `reason` reasoning may come before the answer, where the chat format has markup
    /// for it.
    fn draft(
        &self,
        param: &str,
        mut rules: Rules,
        answer: Vec<Sym>,
        reason: bool,
    ) -> Result<Draft, ApiError> {
        let mut all = vec![answer.clone()];
        if let Some(markup) = self.markup.reasoning.filter(|_| reason) {
            let text = rules.terminal("/(?s:.*)/");
            let mut reasoned = rules.markup(markup.before, "");
            reasoned.extend([Sym::Term(text), Sym::Token(markup.end)]);
            reasoned.extend(rules.markup(markup.after, ""));
            reasoned.extend(answer);
            all.push(reasoned);
        }
        let start = rules.rule(all);
        let none = || Refusal::new("", "expected a schema that some value fits");
        let lark = rules.lark(start).ok_or_else(|| refuse(param, none()))?;
        Ok(Draft {
            param: param.to_owned(),
            lark: lark.into(),
        })
    }

    /// Compiles a grammar's text once a worker process has compiled it on trial.
    /// Dropping the returned future ends the trial.
    ///
    /// # Errors
    /// It cannot be decoded within the limits: 400, before anything is.
    pub(crate) async fn admit(
        self: Arc<Self>,
        client: Client,
        draft: Draft,
    ) -> Result<Grammar, ApiError> {
        let param = draft.param;
        let key: Key = Sha256::digest(draft.lark.as_bytes()).into();
        if let Some(known) = self.known(&key) {
            return known.map_err(|reason| ApiError::field(param, reason));
        }
        let verdict = match &self.quarantine {
            None => Verdict::Fits,
            Some(workers) => {
                let verdict = workers.verdict(client, draft.lark.clone());
                verdict.await.unwrap_or(Verdict::Left)
            }
        };
        // A refusal for time is not cached: on a busy machine the grammar may compile
        // later.
        let lasts = !matches!(verdict, Verdict::TooLong);
        let seconds = self.limits.time.as_secs_f64();
        let refused = match verdict {
            Verdict::Fits => None,
            Verdict::Refused(reason) => Some(format!("cannot be decoded: {reason}")),
            Verdict::TooLong => Some(format!(
                "expected what compiles within {seconds} seconds, found more"
            )),
            Verdict::TooMuch => Some(format!(
                "expected what compiles within {} MiB of memory and {} MiB of stack, found more",
                self.limits.memory >> 20,
                self.limits.stack >> 20
            )),
            Verdict::NoWorker(_) | Verdict::Left => {
                return Err(ApiError::internal("no process could compile the grammar"));
            }
        };
        let bytes = draft.lark.len();
        if let Some(reason) = refused {
            if lasts {
                self.keep(key, bytes, Err(reason.clone()));
            }
            return Err(ApiError::field(param, reason));
        }
        let this = self.clone();
        let made = tokio::task::spawn_blocking(move || this.compile(&draft.lark)).await;
        let made = made.unwrap_or_else(|_| Err("the compilation panicked".to_owned()));
        let made = made.map_err(|reason| format!("cannot be decoded: {reason}"));
        self.keep(key, bytes, made.clone());
        made.map_err(|reason| ApiError::field(param, reason))
    }

    fn compile(&self, lark: &str) -> Result<Grammar, String> {
        let stack = self.limits.stack.saturating_mul(2);
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(stack);
            let work = || match self.quarantine {
                Some(_) => vocabulary::compile(&self.factory, lark),
                None => vocabulary::probe(&self.factory, lark)
                    .and_then(|()| vocabulary::compile(&self.factory, lark)),
            };
            let thread = thread
                .spawn_scoped(scope, work)
                .map_err(|e| e.to_string())?;
            let done = thread.join();
            done.unwrap_or_else(|_| Err("the compilation panicked".to_owned()))
        });
        compiled.map(|matcher| Grammar {
            matcher: Arc::new(Mutex::new(matcher)),
            stack,
            mask_time: self.limits.mask_time,
            reasoning: self.limits.reasoning,
        })
    }

    fn known(&self, key: &Key) -> Option<Result<Grammar, String>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(k, ..)| k == key)?;
        let entry = kept.remove(at)?;
        let found = entry.2.clone();
        kept.push_back(entry);
        Some(found)
    }

    fn keep(&self, key: Key, bytes: usize, made: Result<Grammar, String>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(k, ..)| *k != key);
        kept.push_back((key, bytes, made));
        let total = |kept: &VecDeque<(Key, usize, _)>| kept.iter().map(|e| e.1).sum::<usize>();
        while kept.len() > self.limits.kept || total(&kept) > KEPT_BYTES {
            kept.pop_front();
        }
    }
}

/// A compiled grammar in its initial state, of which every answer gets a copy.
#[derive(Clone)]
pub(crate) struct Grammar {
    matcher: Arc<Mutex<Matcher>>,
    stack: usize,
    mask_time: std::time::Duration,
    reasoning: usize,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl Grammar {
    /// Returns a copy of the compiled grammar for one answer, with a state of its own.
    fn matcher(&self) -> Matcher {
        let matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner);
        matcher.deep_clone()
    }

    /// Returns the most tokens of reasoning that may come before a constrained answer.
    pub(crate) fn reasoning(&self) -> usize {
        self.reasoning
    }
}

/// Returns the chat format's markup without reasoning, or without a second call, if one
/// of their control tokens is missing from the vocabulary or ends an answer.
fn within(mut markup: Markup, goes_on: impl Fn(&str) -> bool) -> Markup {
    let all_go_on = |pieces: &[Piece]| {
        pieces.iter().all(|piece| match piece {
            Piece::Token(token) => goes_on(token),
            Piece::Text(_) | Piece::Name => true,
        })
    };
    markup.reasoning = markup.reasoning.filter(|reasoning| {
        all_go_on(reasoning.before) && goes_on(reasoning.end) && all_go_on(reasoning.after)
    });
    if let Some(calls) = &mut markup.calls {
        calls.between = calls.between.filter(|between| all_go_on(between));
    }
    markup
}

fn refuse(param: &str, refusal: Refusal) -> ApiError {
    let at: String = refusal.at.chars().take(200).collect();
    ApiError::field(format!("{param}{at}"), refusal.reason)
}

fn failed(error: impl std::fmt::Display) -> ApiError {
    ApiError::internal(format!("constrained decoding failed: {error}"))
}

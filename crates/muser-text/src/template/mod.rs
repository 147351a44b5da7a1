//! Chat templates, which render the messages of a conversation to one prompt.
//!
//! A chat template is a Jinja program from a model file. It is rendered as Hugging
//! Face's `apply_chat_template` does (blocks trimmed, Python's methods and JSON
//! spacing, `raise_exception`, `strftime_now`, loop controls, namespaces), within
//! bounds that hold for a hostile template too: [`guard`] says which and why.

mod guard;
mod python;

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, ErrorKind, machinery};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};
use guard::{Cost, ValueLimit};

/// The most bytes that a chat template's source may have; the longest in use have some
/// 50 thousand.
const MAX_SOURCE: usize = 256 << 10;
/// The most steps that rendering a chat template may take (one instruction or 64 bytes
/// of data each) for any input, and how many more for each byte of input. A long
/// template takes a few hundred steps per message.
const BASE_FUEL: u64 = 200_000;
const FUEL_PER_BYTE: u64 = 4;
/// The most bytes that a chat template may write for any input, and how many more for
/// each byte of input.
const BASE_OUTPUT: u64 = 1 << 20;
const OUTPUT_PER_BYTE: u64 = 16;
/// The deepest nesting of macros and recursive loops while a chat template is rendered.
const MAX_RECURSION: usize = 200;
/// Size in bytes of the stack on which a chat template is compiled and rendered. The
/// compiler recurses over chains of operators and the interpreter over macros, and the
/// caller's stack may be small. Only the part that is used takes memory.
const STACK: usize = 64 << 20;
const NAME: &str = "chat_template";

/// One message of a conversation, as a chat template gets it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who wrote the message: `system`, `user`, `assistant`, `tool`, or another role
    /// that the chat template knows.
    pub role: String,
    /// The text of the message.
    #[serde(default)]
    pub content: String,
    /// The reasoning that the model wrote before an assistant's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The tool calls in an assistant's message, in the form that the chat template
    /// expects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<serde_json::Value>,
    /// The id of the tool call that a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The name of the tool or of the speaker who wrote the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What a chat template gets besides the messages: tools, further variables, and
/// whether to begin an answer.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions {
    /// Whether the prompt ends with the start of an assistant's message, for the model
    /// to continue.
    pub add_generation_prompt: bool,
    /// Descriptions of the tools that the model may call; if missing, `tools` is `none`
    /// in the chat template.
    pub tools: Option<serde_json::Value>,
    /// Further variables of the chat template, by name; they replace the standard ones
    /// of the same name.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// A chat template that compiles: renders a conversation's messages to a prompt.
///
/// Control tokens in the messages' texts appear in the prompt as they are. So make
/// prompts with a [`Guard`](crate::chat::Guard); encode what [`render`](Self::render)
/// returns with [`Special::Parse`](crate::Special::Parse) only if the author of the
/// messages may command the model.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    bos_text: String,
    eos_text: String,
    now: Option<i64>,
}

impl ChatTemplate {
    /// Compiles a chat template. `bos_text` and `eos_text` are the values of its
    /// variables `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// A syntax error with its line, or a template over the bounds.
    pub fn new(source: &str, bos_text: &str, eos_text: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(over("bytes of source", MAX_SOURCE as u64));
        }
        on_own_stack(|| compile(source).map(drop))?;
        Ok(Self {
            source: source.to_owned(),
            bos_text: bos_text.to_owned(),
            eos_text: eos_text.to_owned(),
            now: None,
        })
    }

    /// Sets the time that the template's function `strftime_now` reads, in seconds
    /// since 1970, UTC. Without it a prompt may differ from day to day.
    pub fn at(mut self, unix_seconds: i64) -> Self {
        self.now = Some(unix_seconds);
        self
    }

    /// Renders the messages of a conversation to the text of a prompt.
    ///
    /// # Errors
    /// [`Error::TemplateRaised`] if the template itself refuses the messages,
    /// [`Error::TemplateLimit`] if it exceeds a bound, [`Error::Template`] for
    /// anything else, each with the line.
    pub fn render(&self, messages: &[Message], opts: RenderOptions) -> Result<String> {
        let mut variables = BTreeMap::from([
            ("messages".to_owned(), Value::from(Serde(messages))),
            ("tools".to_owned(), Value::from(Serde(&opts.tools))),
            ("documents".to_owned(), Value::from(())),
            ("bos_token".to_owned(), Value::from(self.bos_text.as_str())),
            ("eos_token".to_owned(), Value::from(self.eos_text.as_str())),
            (
                "add_generation_prompt".to_owned(),
                Value::from(opts.add_generation_prompt),
            ),
        ]);
        for (name, value) in opts.extra {
            variables.insert(name, Value::from(Serde(value)));
        }
        let variables = Value::from(variables);
        let bounds = Bounds::for_input(&variables)?;
        on_own_stack(|| self.render_within(variables, bounds))
    }

    fn render_within(&self, variables: Value, bounds: Bounds) -> Result<String> {
        let instructions = compile(&self.source)?;
        let environment = environment(&bounds, self.now);
        let blocks = BTreeMap::new();
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        let done = machinery::eval(
            &environment,
            &instructions,
            variables,
            &blocks,
            &mut output,
            AutoEscape::None,
        );
        done.map(drop).map_err(|error| explain(&error, &bounds))?;
        if text.len() as u64 > bounds.output {
            return Err(over("bytes of output", bounds.output));
        }
        Ok(text)
    }
}

/// The bounds of one render of a chat template, which grow with the size of its input.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    fuel: u64,
    output: u64,
    value: ValueLimit,
}

impl Bounds {
    fn for_input(variables: &Value) -> Result<Self> {
        let input = Cost::of(variables, ValueLimit::for_input(u64::MAX))
            .map_err(|excess| over(excess.what(), excess.limit()))?
            .bytes();
        let with = |base: u64, factor: u64| base.saturating_add(input.saturating_mul(factor));
        Ok(Self {
            fuel: with(BASE_FUEL, FUEL_PER_BYTE),
            output: with(BASE_OUTPUT, OUTPUT_PER_BYTE),
            value: ValueLimit::for_input(input),
        })
    }
}

fn environment(bounds: &Bounds, now: Option<i64>) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(bounds.fuel));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    // `debug` prints the interpreter's state, which is no part of a prompt.
    environment.remove_global("debug");
    python::install(&mut environment, now, bounds.value);
    guard::install(&mut environment, bounds.value);
    environment
}

/// Parses and compiles a chat template and adds the checks that bound its values.
/// Repeated for each render, since the result borrows the source: a few milliseconds
/// per turn of a conversation.
fn compile(source: &str) -> Result<machinery::Instructions<'_>> {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    let guarded = syntax.and_then(|syntax| {
        guard::check_tags(source, syntax.clone())?;
        let tree = machinery::parse(source, NAME, syntax)?;
        let mut generator = machinery::CodeGenerator::new(NAME, source);
        generator.compile_stmt(&tree);
        let (instructions, _) = generator.finish();
        guard::guarded(&instructions)
    });
    guarded.map_err(|error| {
        let compiling = Bounds {
            fuel: 0,
            output: 0,
            value: ValueLimit::for_input(0),
        };
        explain(&error, &compiling)
    })
}

/// Runs `work` (to compile or render a chat template) on a thread with a stack of
/// [`STACK`] bytes.
fn on_own_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let failed = |reason: String| Error::Template { line: None, reason };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat-template".into())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(|error| Error::NoThread {
                reason: error.to_string(),
            })?;
        thread
            .join()
            .unwrap_or_else(|_| Err(failed("the template engine failed".into())))
    })
}

fn over(what: &'static str, limit: u64) -> Error {
    Error::TemplateLimit {
        line: None,
        what,
        limit,
    }
}

fn explain(error: &minijinja::Error, bounds: &Bounds) -> Error {
    let line = error.line();
    if error.kind() == ErrorKind::OutOfFuel {
        return Error::TemplateLimit {
            line,
            what: "steps",
            limit: bounds.fuel,
        };
    }
    let mut reason = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(python::Raised(message)) = inner.downcast_ref() {
            return Error::TemplateRaised {
                line,
                message: message.clone(),
            };
        }
        if let Some(excess) = inner.downcast_ref::<guard::Excess>() {
            return Error::TemplateLimit {
                line,
                what: excess.what(),
                limit: excess.limit(),
            };
        }
        reason.push_str(": ");
        reason.push_str(&inner.to_string());
        source = inner.source();
    }
    Error::Template { line, reason }
}

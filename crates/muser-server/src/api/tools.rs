//! Reads the tools (functions) that a request lets the model call, and which of them it
//! has to call.

use super::history::ASIDE;
use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use crate::grammar::Tool;
use crate::limits::SchemaLimits;
use serde_json::{Value, json};
use std::collections::HashSet;

/// Whether the answer may or must call tools: none, any, at least one, or one by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    None,
    Auto,
    Required,
    Named(String),
}

/// The tools that a request lets the model call, and which of them it has to call.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    pub(super) all: Vec<Tool>,
    pub(super) choice: Choice,
    /// The names of the tools that may be called; `None` if all may.
    allowed: Option<Vec<String>>,
    /// Whether the request has OpenAI's older field `functions`, so that its answer has
    /// `function_call`.
    pub(super) old: bool,
}

impl Tools {
    /// Reads all fields of a request that are about tools.
    pub(super) fn read(f: &mut Fields) -> Result<Self, ApiError> {
        let mut tools = Self {
            all: tools(f)?,
            choice: Choice::Auto,
            allowed: None,
            old: false,
        };
        let functions = functions(f)?;
        if !functions.is_empty() {
            if !tools.all.is_empty() {
                let reason = "expected tools or functions, found both";
                return Err(ApiError::field("functions", reason));
            }
            tools.all = functions;
            tools.old = true;
        }
        tools.choose(f)?;
        tools.choose_function(f)?;
        Ok(tools)
    }

    /// Returns the tools that the model may call.
    pub(super) fn shown(&self) -> Vec<&Tool> {
        let allowed = |t: &&Tool| {
            let allowed = self.allowed.as_ref();
            allowed.is_none_or(|names| names.contains(&t.name))
        };
        self.all.iter().filter(allowed).collect()
    }

    /// Returns the tools of which the answer has to call one; `None` if no call is
    /// required.
    pub(super) fn forced(&self) -> Option<Vec<Tool>> {
        match &self.choice {
            Choice::None | Choice::Auto => None,
            Choice::Required => Some(self.shown().into_iter().cloned().collect()),
            Choice::Named(name) => {
                let named = self.all.iter().filter(|t| t.name == *name);
                Some(named.cloned().collect())
            }
        }
    }

    /// Refuses tools whose parameter schemas are larger than a request may have.
    pub(super) fn check(&self, limits: &SchemaLimits) -> Result<(), ApiError> {
        let field = if self.old { "functions" } else { "tools" };
        let schemas = self.all.iter().map(|t| (self.place(t), &t.parameters));
        limits.check_tools(field, schemas)
    }

    /// Returns the path of the request's field that has a tool's parameter schema, for
    /// error messages.
    pub(super) fn place(&self, tool: &Tool) -> String {
        let at = self.all.iter().position(|t| t.name == tool.name);
        match self.old {
            true => format!("functions[{}].parameters", at.unwrap_or(0)),
            false => format!("tools[{}].function.parameters", at.unwrap_or(0)),
        }
    }

    /// Returns the setting of `tool_choice` that requires a call of the tool with this
    /// name; if no tool has it, an error about the field `param`.
    fn named(&self, param: &str, name: Option<String>) -> Result<Choice, ApiError> {
        let known = name.filter(|n| self.all.iter().any(|t| t.name == *n));
        let reason = "expected the name of one of the tools";
        let known = known.ok_or_else(|| ApiError::field(param, reason))?;
        Ok(Choice::Named(known))
    }

    fn choose(&mut self, f: &mut Fields) -> Result<(), ApiError> {
        const PARAM: &str = "tool_choice";
        self.choice = match f.take(PARAM) {
            None => return Ok(()),
            Some(Value::String(word)) => match word.as_str() {
                // "none" and "auto" are allowed without tools, where they change nothing.
                "none" => Choice::None,
                "auto" => Choice::Auto,
                "required" => Choice::Required,
                _ => {
                    let reason =
                        "expected none, auto, required, or an object that names a function";
                    return Err(ApiError::field(PARAM, reason));
                }
            },
            Some(object) => self.chosen(f.inner(PARAM.into(), object)?)?,
        };
        let must = matches!(self.choice, Choice::Required | Choice::Named(_));
        if must && self.shown().is_empty() {
            return Err(ApiError::field(PARAM, "expected tools with it, found none"));
        }
        Ok(())
    }

    /// Reads a `tool_choice` that is an object: one function to call, or a list of
    /// allowed tools.
    fn chosen(&mut self, mut choice: Fields) -> Result<Choice, ApiError> {
        let kind = choice.string("type")?;
        let place = choice.name("type");
        match kind.as_deref() {
            Some("function") => {
                let function = choice.object("function")?;
                choice.finish()?;
                let name = function.map(name_of).transpose()?.flatten();
                self.named("tool_choice.function.name", name)
            }
            Some("allowed_tools") => {
                let inner = choice.object("allowed_tools")?;
                choice.finish()?;
                let missing = ApiError::field(
                    "tool_choice.allowed_tools",
                    "expected an object, found none",
                );
                self.allow(inner.ok_or(missing)?)
            }
            _ => {
                let reason = "expected \"function\" or \"allowed_tools\"";
                Err(ApiError::field(place, reason))
            }
        }
    }

    /// Reads a `tool_choice` that allows only some of the tools, such as
    ///
    /// `{"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}`
    fn allow(&mut self, mut inner: Fields) -> Result<Choice, ApiError> {
        let mode = match inner.string("mode")?.as_deref() {
            Some("auto") => Choice::Auto,
            Some("required") => Choice::Required,
            _ => {
                let reason = "expected auto or required";
                return Err(ApiError::field(inner.name("mode"), reason));
            }
        };
        let base = inner.name("tools");
        let mut names = Vec::new();
        for (i, item) in inner.array("tools")?.into_iter().flatten().enumerate() {
            let mut tool = inner.inner(format!("{base}[{i}]"), item)?;
            tool.string("type")?;
            let function = tool.object("function")?;
            // OpenAI's Responses API has the name without an object around it.
            let flat = tool.string("name")?;
            tool.finish()?;
            let name = function.map(name_of).transpose()?.flatten().or(flat);
            match self.named(&format!("{base}[{i}].function.name"), name)? {
                Choice::Named(name) => names.push(name),
                Choice::None | Choice::Auto | Choice::Required => {}
            }
        }
        inner.finish()?;
        if names.is_empty() {
            return Err(ApiError::field(
                base,
                "expected at least one tool, found none",
            ));
        }
        self.allowed = Some(names);
        Ok(mode)
    }

    /// Reads `function_call`, OpenAI's older field for the function to call.
    fn choose_function(&mut self, f: &mut Fields) -> Result<(), ApiError> {
        const PARAM: &str = "function_call";
        let choice = match f.take(PARAM) {
            None => return Ok(()),
            Some(Value::String(word)) => match word.as_str() {
                "none" => Choice::None,
                "auto" => Choice::Auto,
                _ => {
                    let reason = "expected none, auto, or an object that names a function";
                    return Err(ApiError::field(PARAM, reason));
                }
            },
            Some(object) => {
                let name = name_of(f.inner(PARAM.into(), object)?)?;
                self.named("function_call.name", name)?
            }
        };
        if self.old {
            self.choice = choice;
        }
        Ok(())
    }
}

/// Reads a function's name from an object that has nothing else.
fn name_of(mut function: Fields) -> Result<Option<String>, ApiError> {
    let name = function.string("name")?;
    function.finish()?;
    Ok(name)
}

/// Reads `tools`: the functions that the model may call.
fn tools(f: &mut Fields) -> Result<Vec<Tool>, ApiError> {
    let mut names = HashSet::new();
    let mut tools = Vec::new();
    for (i, item) in f.array("tools")?.into_iter().flatten().enumerate() {
        let mut tool = f.inner(format!("tools[{i}]"), item)?;
        if tool.string("type")?.as_deref() != Some("function") {
            return Err(ApiError::field(tool.name("type"), "expected \"function\""));
        }
        let missing = ApiError::field(tool.name("function"), "expected an object, found none");
        let function = tool.object("function")?.ok_or(missing)?;
        tool.drop_all(&ASIDE);
        tool.finish()?;
        tools.push(function_of(function, &mut names)?);
    }
    Ok(tools)
}

/// Reads `functions`, OpenAI's older form of `tools`, without an object around each
/// function.
fn functions(f: &mut Fields) -> Result<Vec<Tool>, ApiError> {
    let mut names = HashSet::new();
    let items = f.array("functions")?.into_iter().flatten().enumerate();
    let each = items.map(|(i, item)| {
        let function = f.inner(format!("functions[{i}]"), item)?;
        function_of(function, &mut names)
    });
    each.collect()
}

fn function_of(mut function: Fields, names: &mut HashSet<String>) -> Result<Tool, ApiError> {
    let place = function.name("name");
    let name = function.string("name")?.unwrap_or_default();
    let letters = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(letters) {
        let reason = "expected 1 to 64 letters, digits, _, - or .";
        return Err(ApiError::field(place, reason));
    }
    if matches!(name.as_str(), "user" | "self") || !names.insert(name.clone()) {
        let reason = "expected a name that nothing else has";
        return Err(ApiError::field(place, reason));
    }
    let description = function.string("description")?;
    function.flag("strict")?;
    let schema = function.name("parameters");
    let parameters = function.take("parameters");
    let parameters = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    if !parameters.is_object() {
        return Err(wrong(&schema, "a JSON schema", &parameters));
    }
    function.drop_all(&ASIDE);
    function.finish()?;
    Ok(Tool {
        description: json!({
            "name": name, "description": description, "parameters": parameters
        }),
        name,
        parameters,
    })
}

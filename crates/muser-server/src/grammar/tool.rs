//! Makes the grammar rules of tool calls in the markup of the model's chat format
//! ([`muser_text::chat::Calls`]).
//!
//! The arguments of a call are written one by one between marks of the markup. Where
//! the format says so, the value of a parameter that takes only strings is unescaped
//! text up to the mark that ends it; every other value is JSON, with quotes around
//! strings.

use super::object::{Members, Names, Sequence};
use super::pattern::Writing;
use super::rules::{RuleId, Sym, literal};
use super::schema::{Plain, Reader, Refusal};
use super::string;
use super::value::{Compiler, refuse_undecodable};
use crate::limits::SchemaLimits;
use muser_text::chat::{Argument, Arguments, Calls, Parameters, Strings, Types};
use serde_json::Value;
use std::collections::HashMap;

/// A tool of a chat request, which the model may call.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// The JSON schema of the tool's arguments.
    pub(crate) parameters: Value,
    /// The tool's description as the chat template gets it.
    pub(crate) description: Value,
}

/// Returns the JSON types that each tool's parameters take. A schema that cannot be
/// read is no error here and yields no types: it may not be used for decoding at all.
pub(crate) fn parameter_types(tools: &[Tool], limits: &SchemaLimits) -> Parameters {
    // The bound on copied values that holds for one schema is shared by all tools.
    let mut left = None;
    let mut of = |tool: &Tool| {
        let mut reader = Reader::new(&tool.parameters, limits.rules);
        reader.limit(left);
        let mut types = HashMap::new();
        let plains = reader.plain(&tool.parameters, "").unwrap_or_default();
        for plain in plains {
            let Ok(members) = Members::of(&plain, limits) else {
                continue;
            };
            for member in &members.declared {
                let found = types_of(&mut reader, &member.schema, "").unwrap_or(Types::ALL);
                let known = types.entry(member.name.clone()).or_insert(Types::NONE);
                *known = known.or(found);
            }
        }
        left = Some(reader.left());
        types
    };
    tools.iter().map(|t| (t.name.clone(), of(t))).collect()
}

/// Returns the types of the values that fit a JSON schema.
fn types_of(reader: &mut Reader<'_>, schema: &Value, at: &str) -> Result<Types, Refusal> {
    let plains = reader.plain(schema, at)?;
    let types = plains.iter().map(Plain::kinds);
    Ok(types.fold(Types::NONE, Types::or))
}

impl Compiler<'_> {
    /// Makes the grammar rule of a call of this tool, with the chat format's markup
    /// around it.
    pub(super) fn call(&mut self, markup: &Calls, tool: &Tool) -> Result<RuleId, Refusal> {
        let arguments = match &markup.arguments {
            Arguments::Each(markup) => self.arguments(markup, tool)?,
        };
        let mut all = self.rules.markup(markup.before, &tool.name);
        all.push(Sym::Rule(arguments));
        all.extend(self.rules.markup(markup.after, &tool.name));
        Ok(self.rules.rule(vec![all]))
    }

    /// Makes the grammar rule of a tool call's arguments, each in markup of its own.
    fn arguments(&mut self, markup: &Argument, tool: &Tool) -> Result<RuleId, Refusal> {
        let mut objects = Vec::new();
        let mut types: HashMap<String, Types> = HashMap::new();
        for plain in self.reader.plain(&tool.parameters, "")? {
            if plain.values.is_some() {
                let reason = "enum and const of all arguments together cannot be decoded";
                return Err(Refusal::new(plain.at, reason));
            }
            if !plain.types.has(Types::OBJECT) {
                continue;
            }
            refuse_undecodable(&plain, Types::OBJECT)?;
            let mut members = Members::of(&plain, self.limits)?;
            // Undeclared arguments need a schema that asks for them; a tool without
            // parameters takes none.
            let asked = plain.words.contains_key("additionalProperties");
            if !asked && !plain.words.contains_key("patternProperties") {
                members.free = members.free.filter(|free| free.least > 0);
            }
            for member in &members.declared {
                let at = format!("{}.properties.{}", plain.at, member.name);
                if member.name.contains(markup.not_in_names) {
                    let reason = "expected a name without quotation marks and angle brackets";
                    return Err(Refusal::new(at, reason));
                }
                let found = types_of(&mut self.reader, &member.schema, &at)?;
                let known = types.entry(member.name.clone()).or_insert(Types::NONE);
                *known = known.or(found);
            }
            objects.push((plain.at.clone(), members));
        }
        let mut bodies = Vec::new();
        for (at, members) in &objects {
            self.members(markup, members, &types, at, &mut bodies)?;
        }
        Ok(self.rules.rule(bodies))
    }

    /// Adds the sequences of arguments that one alternative of a tool's schema allows.
    fn members(
        &mut self,
        markup: &Argument,
        members: &Members,
        types: &HashMap<String, Types>,
        at: &str,
        out: &mut Vec<Vec<Sym>>,
    ) -> Result<(), Refusal> {
        let mut each = Vec::new();
        for member in &members.declared {
            let place = format!("{at}.properties.{}", member.name);
            let open = format!("{}{}{}", markup.before, member.name, markup.named);
            let mut all = vec![self.rules.text(&open)];
            let strings = match types.get(&member.name) == Some(&Types::STRING) {
                true => markup.strings,
                false => Strings::Json,
            };
            match strings {
                Strings::Verbatim => {
                    let value = self.text(markup, &member.schema, &place)?;
                    all.push(Sym::Rule(value));
                }
                Strings::Json => {
                    let value = self.value(&member.schema, &place);
                    all.push(Sym::Rule(value));
                    all.push(self.rules.text(markup.end));
                }
            }
            all.push(self.rules.text(markup.after));
            each.push(self.rules.rule(vec![all]));
        }
        let required: Vec<bool> = members.declared.iter().map(|m| m.required).collect();
        let free = match &members.free {
            None => None,
            Some(free) => {
                let schema = free.schema.clone().unwrap_or(Value::Bool(true));
                let value = self.value(&schema, &format!("{at}.additionalProperties"));
                let name = self.parameter_name(markup, &free.names, members, at)?;
                let all = vec![
                    self.rules.text(markup.before),
                    name,
                    self.rules.text(markup.named),
                    Sym::Rule(value),
                    self.rules.text(markup.end),
                    self.rules.text(markup.after),
                ];
                let rule = self.rules.rule(vec![all]);
                Some((rule, rule, free.least, free.most))
            }
        };
        let sequence = Sequence {
            first: &each,
            later: &each,
            required: &required,
            free,
            choose: members.choose,
        };
        out.extend(sequence.alternatives(&mut self.rules));
        Ok(())
    }

    /// Makes the terminal of the names that a call's undeclared arguments may have;
    /// declared names are excluded.
    fn parameter_name(
        &mut self,
        markup: &Argument,
        names: &Names,
        members: &Members,
        at: &str,
    ) -> Result<Sym, Refusal> {
        let not = regex_syntax::escape(&String::from_iter(markup.not_in_names));
        let mut terms = vec![format!("/[^{not}\\x00-\\x1F]{{1,64}}/")];
        let steps = self.limits.pattern_steps;
        let words = match names {
            Names::Any => None,
            Names::Pattern(pattern) => {
                let words = [("pattern".to_owned(), Value::from(pattern.as_str()))];
                Some(serde_json::Map::from_iter(words))
            }
            Names::Words(words) => Some(words.clone()),
            Names::Listed(all) => {
                let each = all.iter().filter(|n| !n.contains(markup.not_in_names));
                return Ok(self.one_of(each.map(|n| literal(n)).collect()));
            }
        };
        if let Some(words) = words {
            let all = string::conditions(&words, Writing::Plain, steps, at)?;
            terms.extend(all.iter().map(|c| format!("/{c}/")));
        }
        let name = self.rules.terminal(&terms.join(" & "));
        if members.declared.is_empty() {
            return Ok(Sym::Term(name));
        }
        let taken = members.declared.iter().map(|m| literal(&m.name));
        let Sym::Term(taken) = self.one_of(taken.collect()) else {
            return Err(Refusal::new(at, "expected names"));
        };
        Ok(Sym::Term(
            self.rules.terminal(&format!("T{name} & ~T{taken}")),
        ))
    }

    /// Makes the grammar rule of an argument that is unescaped text, with the mark that
    /// ends it.
    fn text(&mut self, markup: &Argument, schema: &Value, at: &str) -> Result<RuleId, Refusal> {
        let mut alternatives = Vec::new();
        let mut listed = Vec::new();
        for plain in self.reader.plain(schema, at)? {
            if let Some(values) = &plain.values {
                for text in values.iter().filter_map(Value::as_str) {
                    if markup.not_in_strings.iter().any(|mark| text.contains(mark)) {
                        let reason = "expected strings without the markup of calls";
                        return Err(Refusal::new(&plain.at, reason));
                    }
                    listed.push(text.to_owned());
                }
                continue;
            }
            let steps = self.limits.pattern_steps;
            let all = string::conditions(&plain.words, Writing::Plain, steps, &plain.at)?;
            let terminal = match all.is_empty() {
                true => self.rules.terminal("/(?s:.*)/"),
                false => {
                    // The value ends at the first mark, even where the text up to a
                    // later one would fit.
                    let end = regex_syntax::escape(markup.end).replace('/', "\\/");
                    let marked = self.rules.terminal(&format!("/(?s:.*){end}(?s:.*)/"));
                    let each = all.iter().map(|c| self.rules.terminal(&format!("/{c}/")));
                    let each: Vec<String> = each.map(|t| format!("T{t}")).collect();
                    let fitting = format!("{} & ~T{marked}", each.join(" & "));
                    self.rules.terminal(&fitting)
                }
            };
            alternatives.push(vec![Sym::Rule(self.rules.until(terminal, markup.end))]);
        }
        if !listed.is_empty() {
            let end = self.rules.text(markup.end);
            let each = listed.iter().filter(|t| !t.is_empty());
            let texts: Vec<String> = each.map(|t| literal(t)).collect();
            if texts.len() < listed.len() {
                alternatives.push(vec![end.clone()]);
            }
            if !texts.is_empty() {
                alternatives.push(vec![self.one_of(texts), end]);
            }
        }
        Ok(self.rules.rule(alternatives))
    }
}

//! Compiles a JSON schema into the grammar rules of the JSON values that fit it.
//!
//! Every schema inside a schema becomes one rule, however often it is used, and rules
//! refer to each other: recursion in a schema becomes recursion in the grammar, and the
//! code here does not recurse.

use super::number::{self, Asked, Written};
use super::object::{Members, Names};
use super::pattern::Writing;
use super::rules::{RuleId, Rules, Sym, literal};
use super::schema::{Plain, Reader, Refusal, WORDS};
use super::string;
use crate::limits::SchemaLimits;
use muser_text::chat::Types;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, VecDeque};

/// The deepest nesting of a JSON value for which the schema allows anything.
const FREE_DEPTH: usize = 4;
/// The most items of an array, and members of an object, in a JSON value for which the
/// schema allows anything.
const FREE_ITEMS: usize = 32;

/// Makes the grammar rules of one JSON schema.
pub(super) struct Compiler<'s> {
    pub(super) rules: Rules,
    pub(super) reader: Reader<'s>,
    pub(super) limits: &'s SchemaLimits,
    known: HashMap<String, RuleId>,
    pending: VecDeque<(RuleId, Value, String)>,
    free: Vec<RuleId>,
}

impl<'s> Compiler<'s> {
    /// Creates a compiler of a JSON schema that adds grammar rules to `rules`; the
    /// schema's `$ref` references point into `root`.
    pub(super) fn new(rules: Rules, root: &'s Value, limits: &'s SchemaLimits) -> Self {
        Self {
            rules,
            reader: Reader::new(root, limits.rules),
            limits,
            known: HashMap::new(),
            pending: VecDeque::new(),
            free: Vec::new(),
        }
    }

    /// Returns the number of the grammar rule for the values that fit a schema;
    /// [`Compiler::finish`] fills the rule in.
    pub(super) fn value(&mut self, schema: &Value, at: &str) -> RuleId {
        let key = schema.to_string();
        if let Some(&rule) = self.known.get(&key) {
            return rule;
        }
        let rule = self.rules.reserve();
        self.known.insert(key, rule);
        self.pending
            .push_back((rule, schema.clone(), at.to_owned()));
        rule
    }

    /// Fills in the grammar rules that were reserved for schemas, and the rules that
    /// those need in turn.
    ///
    /// # Errors
    /// What cannot be decoded, or is too large once references are followed.
    pub(super) fn finish(&mut self) -> Result<(), Refusal> {
        while let Some((rule, schema, at)) = self.pending.pop_front() {
            let plains = self.reader.plain(&schema, &at)?;
            let mut alternatives = Vec::new();
            let mut scalars = Vec::new();
            for plain in &plains {
                // Each of an object's members is copied as a schema of its own.
                self.reader.copy(plain.size(), &plain.at)?;
                self.plain(plain, &mut alternatives, &mut scalars)?;
            }
            if !scalars.is_empty() {
                alternatives.push(vec![self.one_of(scalars)]);
            }
            self.rules.set(rule, alternatives);
            if self.rules.size() > self.limits.rules {
                let reason = format!(
                    "expected a schema that comes to at most {} rules with its references \
                     followed, found more",
                    self.limits.rules
                );
                return Err(Refusal::new(at, reason));
            }
        }
        Ok(())
    }

    /// Makes the grammar's terminal that matches what any one of these terminal
    /// expressions matches.
    pub(super) fn one_of(&mut self, mut expressions: Vec<String>) -> Sym {
        expressions.dedup();
        if let [one] = &expressions[..] {
            return Sym::Term(self.rules.terminal(one));
        }
        let each = expressions.iter().map(|e| self.rules.terminal(e));
        let names: Vec<String> = each.map(|t| format!("T{t}")).collect();
        Sym::Term(self.rules.terminal(&names.join(" | ")))
    }

    /// Adds the values of one schema without references and combinations: scalars as
    /// terminal expressions, arrays and objects as sequences.
    fn plain(
        &mut self,
        plain: &Plain,
        alternatives: &mut Vec<Vec<Sym>>,
        scalars: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        if let Some(values) = &plain.values {
            scalars.extend(values.iter().map(|v| literal(&v.to_string())));
            return Ok(());
        }
        if plain.types == Types::ALL && plain.words.is_empty() {
            alternatives.push(vec![Sym::Rule(self.free(FREE_DEPTH))]);
            return Ok(());
        }
        let kinds = plain.kinds();
        refuse_undecodable(plain, kinds)?;
        if kinds.has(Types::NULL) {
            scalars.push(literal("null"));
        }
        if kinds.has(Types::BOOLEAN) {
            scalars.push("/true|false/".to_owned());
        }
        if kinds.has(Types::NUMBER) {
            match number(&plain.words, kinds, &plain.at)? {
                Written::Nothing => {}
                Written::Terminal(expression) => scalars.push(expression),
                Written::Json(schema) => {
                    let rule = self.rules.json(schema);
                    alternatives.push(vec![Sym::Rule(rule)]);
                }
            }
        }
        if kinds.has(Types::STRING) {
            let steps = self.limits.pattern_steps;
            let all = string::conditions(&plain.words, Writing::Json, steps, &plain.at)?;
            scalars.push(string::quoted(&all));
        }
        if kinds.has(Types::ARRAY) {
            self.array(plain, alternatives)?;
        }
        if kinds.has(Types::OBJECT) {
            let members = Members::of(plain, self.limits)?;
            self.object(&members, &plain.at, alternatives)?;
        }
        Ok(())
    }

    fn array(&mut self, plain: &Plain, out: &mut Vec<Vec<Sym>>) -> Result<(), Refusal> {
        let (words, at) = (&plain.words, &plain.at);
        let free = words.get("items").is_none() && words.get("prefixItems").is_none();
        let count = |word| string::length(words, word, at);
        let least = count("minItems")?.unwrap_or(0);
        let limit = self.limits.items as u64;
        if least > limit {
            let reason = format!("expected at most {limit}, found {least}");
            return Err(Refusal::new(format!("{at}.minItems"), reason));
        }
        let open = if free { FREE_ITEMS as u64 } else { limit };
        let most = count("maxItems")?.unwrap_or(u64::MAX).min(open.max(least));
        // Both counts are within the limit on items, so they fit a `usize`.
        let (least, mut most) = (least as usize, most as usize);
        if least > most {
            return Ok(());
        }
        let prefix = match words.get("prefixItems") {
            None => &[][..],
            Some(Value::Array(all)) => all,
            Some(_) => {
                let reason = "expected an array of schemas";
                return Err(Refusal::new(format!("{at}.prefixItems"), reason));
            }
        };
        let item = |i: usize, this: &mut Self| match prefix.get(i) {
            Some(schema) => this.value(schema, &format!("{at}.prefixItems[{i}]")),
            None => match words.get("items") {
                Some(schema) => this.value(schema, &format!("{at}.items")),
                None => this.free(FREE_DEPTH - 1),
            },
        };
        // After the items of `prefixItems` nothing follows unless `items` or `minItems`
        // asks for it.
        if !prefix.is_empty() && words.get("items").is_none() && least <= prefix.len() {
            most = most.min(prefix.len());
        }
        let comma = self.rules.text(",");
        // Built from the last item to the first: what may follow before the closing
        // bracket.
        let tuple = prefix.len().min(most);
        let mut tail = match most > tuple {
            true => {
                let rule = item(tuple, self);
                let next = self.rules.rule(vec![vec![comma.clone(), Sym::Rule(rule)]]);
                let first = usize::from(tuple == 0);
                let times = Sym::Times {
                    rule: next,
                    min: least.saturating_sub(tuple.max(1)),
                    most: most - tuple.max(1),
                };
                match first {
                    1 => vec![Sym::Rule(rule), times],
                    _ => vec![times],
                }
            }
            false => Vec::new(),
        };
        for i in (0..tuple).rev() {
            let rule = item(i, self);
            let mut all = vec![Sym::Rule(rule)];
            all.append(&mut tail);
            if i > 0 {
                all.insert(0, comma.clone());
                if i >= least {
                    let maybe = self.rules.rule(vec![all, Vec::new()]);
                    all = vec![Sym::Rule(maybe)];
                }
            }
            tail = all;
        }
        let (open, close) = (self.rules.text("["), self.rules.text("]"));
        if least == 0 {
            let empty = self.rules.text("[]");
            out.push(vec![empty]);
        }
        if most > 0 {
            let mut all = vec![open];
            all.append(&mut tail);
            all.push(close);
            out.push(all);
        }
        Ok(())
    }

    fn object(
        &mut self,
        members: &Members,
        at: &str,
        out: &mut Vec<Vec<Sym>>,
    ) -> Result<(), Refusal> {
        let mut first = Vec::new();
        let mut later = Vec::new();
        for member in &members.declared {
            let rule = self.value(&member.schema, &format!("{at}.properties.{}", member.name));
            let name = literal(&member.name);
            let plain = self.rules.text(&format!("{name}:"));
            let after = self.rules.text(&format!(",{name}:"));
            first.push(self.rules.rule(vec![vec![plain, Sym::Rule(rule)]]));
            later.push(self.rules.rule(vec![vec![after, Sym::Rule(rule)]]));
        }
        let required: Vec<bool> = members.declared.iter().map(|m| m.required).collect();
        let free = match &members.free {
            None => None,
            Some(free) => {
                let rule = match &free.schema {
                    Some(schema) => self.value(schema, &format!("{at}.additionalProperties")),
                    None => self.free(FREE_DEPTH - 1),
                };
                let name = self.names(&free.names, members, at)?;
                let colon = self.rules.text(":");
                let pair = self.rules.rule(vec![vec![name, colon, Sym::Rule(rule)]]);
                let comma = self.rules.text(",");
                let next = self.rules.rule(vec![vec![comma, Sym::Rule(pair)]]);
                Some((pair, next, free.least, free.most))
            }
        };
        let sequence = super::object::Sequence {
            first: &first,
            later: &later,
            required: &required,
            free,
            choose: members.choose,
        };
        for inner in sequence.alternatives(&mut self.rules) {
            match inner.is_empty() {
                true => out.push(vec![self.rules.text("{}")]),
                false => {
                    let mut all = vec![self.rules.text("{")];
                    all.extend(inner);
                    all.push(self.rules.text("}"));
                    out.push(all);
                }
            }
        }
        Ok(())
    }

    /// Makes the grammar's terminal of the names, with their quotes, that an object's
    /// undeclared members may have; declared names are excluded.
    fn names(&mut self, names: &Names, members: &Members, at: &str) -> Result<Sym, Refusal> {
        let steps = self.limits.pattern_steps;
        let mut conditions = match names {
            Names::Any => vec!["[^\"\\\\\\x00-\\x1F]{1,64}".to_owned()],
            Names::Pattern(pattern) => {
                let words = Map::from_iter([("pattern".to_owned(), json!(pattern))]);
                let place = format!("{at}.patternProperties");
                string::conditions(&words, Writing::Json, steps, &place)?
            }
            Names::Words(words) => {
                let place = format!("{at}.propertyNames");
                string::conditions(words, Writing::Json, steps, &place)?
            }
            Names::Listed(all) => {
                let each = all.iter().map(|n| literal(&literal(n)));
                return Ok(self.one_of(each.collect()));
            }
        };
        if !members.declared.is_empty() {
            let taken = members.declared.iter().map(|m| literal(&literal(&m.name)));
            let Sym::Term(taken) = self.one_of(taken.collect()) else {
                return Err(Refusal::new(at, "expected names"));
            };
            let name = self.rules.terminal(&string::quoted(&conditions));
            let both = format!("T{name} & ~T{taken}");
            return Ok(Sym::Term(self.rules.terminal(&both)));
        }
        // Bounds the length: a model might write one endless name.
        conditions.push("[^\"\\\\\\x00-\\x1F]{0,64}".to_owned());
        Ok(Sym::Term(self.rules.terminal(&string::quoted(&conditions))))
    }

    /// Returns the grammar rule that any JSON value with at most `depth` levels of
    /// nesting fits.
    fn free(&mut self, depth: usize) -> RuleId {
        while self.free.len() <= depth {
            let inner = self.free.last().copied();
            let rule = self.free_over(inner);
            self.free.push(rule);
        }
        self.free[depth]
    }

    fn free_over(&mut self, inner: Option<RuleId>) -> RuleId {
        let number = "/-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?/";
        let scalars = ["/null|true|false/", number, &string::free()];
        let scalars = self.one_of(scalars.map(str::to_owned).to_vec());
        let mut all = vec![vec![scalars]];
        if let Some(inner) = inner {
            let comma = self.rules.text(",");
            let name = self.rules.terminal("/\"[^\"\\\\\\x00-\\x1F]{1,64}\"/");
            let colon = self.rules.text(":");
            let pair = vec![Sym::Term(name), colon, Sym::Rule(inner)];
            let pair = self.rules.rule(vec![pair]);
            for (open, close, one) in [("[", "]", inner), ("{", "}", pair)] {
                let next = self.rules.rule(vec![vec![comma.clone(), Sym::Rule(one)]]);
                let times = Sym::Times {
                    rule: next,
                    min: 0,
                    most: FREE_ITEMS - 1,
                };
                let (open_sym, close_sym) = (self.rules.text(open), self.rules.text(close));
                all.push(vec![open_sym, Sym::Rule(one), times, close_sym]);
                all.push(vec![self.rules.text(&format!("{open}{close}"))]);
            }
        }
        self.rules.rule(all)
    }
}

/// Refuses a schema with a keyword (`uniqueItems`, …) that constrained decoding cannot
/// enforce, for a type that its values may have.
pub(super) fn refuse_undecodable(plain: &Plain, kinds: Types) -> Result<(), Refusal> {
    for (types, _, cannot) in WORDS {
        let found = cannot.iter().find(|word| plain.words.contains_key(**word));
        if let Some(word) = found.filter(|_| kinds.has(types)) {
            let at = format!("{}.{word}", plain.at);
            return Err(Refusal::new(at, "cannot be decoded"));
        }
    }
    Ok(())
}

fn number(words: &Map<String, Value>, kinds: Types, at: &str) -> Result<Written, Refusal> {
    let asked = Asked {
        minimum: words.get("minimum"),
        exclusive_minimum: words.get("exclusiveMinimum"),
        maximum: words.get("maximum"),
        exclusive_maximum: words.get("exclusiveMaximum"),
        multiple: words.get("multipleOf"),
    };
    let written = match kinds.has(Types::FRACTION) {
        true => number::any(&asked),
        false => number::whole(&asked),
    };
    written.map_err(|(word, reason)| Refusal::new(format!("{at}.{word}"), reason))
}

//! Decides which members a JSON object may have under its schema: the declared
//! properties in their order, then additional ones.
//!
//! An object whose schema has `properties` gets these only, unless
//! `additionalProperties` is there and allows more: a model that may invent further
//! names would not come to an end.

use super::rules::{RuleId, Rules, Sym};
use super::schema::{Plain, Refusal};
use super::string::length;
use crate::limits::SchemaLimits;
use serde_json::{Map, Value};

/// The most members of one JSON object that its schema does not declare.
const FREE_MEMBERS: usize = 32;

/// A member of a JSON object that its schema declares, or requires by name.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) schema: Value,
    pub(super) required: bool,
}

/// The names that an object's undeclared members may have.
#[derive(Clone, Debug)]
pub(super) enum Names {
    Any,
    /// The undeclared members of an object have names that this pattern of its schema's
    /// `patternProperties` matches.
    Pattern(String),
    /// The undeclared members of an object have names that fit these keywords of its
    /// schema's `propertyNames`.
    Words(Map<String, Value>),
    /// The names that the schema's `propertyNames` lists by `enum` or `const`.
    Listed(Vec<String>),
}

/// The members that a JSON object may have beyond those that its schema declares.
#[derive(Clone, Debug)]
pub(super) struct Free {
    pub(super) names: Names,
    /// The schema that the values of undeclared members have to fit; `None` allows any
    /// value.
    pub(super) schema: Option<Value>,
    pub(super) least: usize,
    pub(super) most: usize,
}

/// How many of the declared members of a JSON object may be present at once, as
/// `minProperties` and `maxProperties` ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choose {
    Any,
    /// At least one of the object's declared members has to be present.
    Some,
    /// At most one of the object's declared members may be present.
    AtMostOne,
    /// Exactly one of the object's declared members has to be present.
    One,
}

/// The members of a JSON object as its schema allows them: declared ones, undeclared
/// ones, and how many of the declared ones.
#[derive(Clone, Debug)]
pub(super) struct Members {
    pub(super) declared: Vec<Member>,
    pub(super) free: Option<Free>,
    pub(super) choose: Choose,
}

impl Members {
    /// Reads the members that an object may have from its schema's keywords.
    ///
    /// # Errors
    /// Words that cannot be kept together.
    pub(super) fn of(plain: &Plain, limits: &SchemaLimits) -> Result<Self, Refusal> {
        let (words, at) = (&plain.words, &plain.at);
        let refused = |word: &str, reason: &str| Refusal::new(format!("{at}.{word}"), reason);
        let none = Map::new();
        let properties = match words.get("properties") {
            None => &none,
            Some(Value::Object(map)) => map,
            Some(_) => return Err(refused("properties", "expected an object of schemas")),
        };
        let required = required(words, at)?;
        let additional = words.get("additionalProperties");
        let closed = additional == Some(&Value::Bool(false));
        let mut names = names(words, at)?;
        let mut declared: Vec<Member> = properties
            .iter()
            .map(|(name, schema)| Member {
                name: name.clone(),
                schema: schema.clone(),
                required: required.contains(&name.as_str()),
            })
            .collect();
        let constrained = !matches!(names, Names::Any);
        if constrained && !(declared.is_empty() && required.is_empty()) {
            let mut all = required
                .iter()
                .copied()
                .chain(properties.keys().map(String::as_str));
            let listed = match &mut names {
                Names::Listed(names) => all.all(|n| names.iter().any(|name| name == n)),
                Names::Any | Names::Pattern(_) | Names::Words(_) => false,
            };
            if !listed {
                let word = match words.contains_key("propertyNames") {
                    true => "propertyNames",
                    false => "patternProperties",
                };
                let reason = "cannot be decoded together with properties or required";
                return Err(refused(word, reason));
            }
        }
        for name in required {
            if properties.contains_key(name) {
                continue;
            }
            declared.push(Member {
                name: name.to_owned(),
                schema: additional.cloned().unwrap_or(Value::Bool(true)),
                required: true,
            });
        }
        if declared.len() > limits.properties {
            let reason = format!(
                "expected at most {}, found {}",
                limits.properties,
                declared.len()
            );
            return Err(refused("properties", &reason));
        }
        let asked = additional.filter(|_| !closed).is_some();
        if let Names::Listed(all) = &mut names {
            all.retain(|name| !declared.iter().any(|m| m.name == *name));
        }
        let open = match &names {
            Names::Listed(all) if all.is_empty() => false,
            Names::Pattern(_) => true,
            Names::Any | Names::Words(_) | Names::Listed(_) => {
                !closed && (asked || !words.contains_key("properties") && declared.is_empty())
            }
        };
        let schema = match &names {
            Names::Pattern(pattern) => {
                let all = words.get("patternProperties");
                all.and_then(|all| all.get(pattern)).cloned()
            }
            Names::Any | Names::Words(_) | Names::Listed(_) => additional.cloned(),
        };
        let schema = schema.filter(|s| *s != Value::Bool(true));
        let mut members = Self {
            declared,
            free: open.then_some(Free {
                names,
                schema,
                least: 0,
                most: FREE_MEMBERS,
            }),
            choose: Choose::Any,
        };
        members.count(words, at)?;
        Ok(members)
    }

    /// Applies `minProperties` and `maxProperties` to an object's members, or refuses
    /// bounds that a grammar cannot count.
    fn count(&mut self, words: &Map<String, Value>, at: &str) -> Result<(), Refusal> {
        let least = length(words, "minProperties", at)?.unwrap_or(0) as usize;
        let most = length(words, "maxProperties", at)?.map_or(usize::MAX, |n| n as usize);
        let needed = self.declared.iter().filter(|m| m.required).count();
        let optional = self.declared.len() - needed;
        let refused =
            |word: &str, reason: String| Err(Refusal::new(format!("{at}.{word}"), reason));
        if most < needed || most < least {
            let reason = format!("expected at least {}, found {most}", needed.max(least));
            return refused("maxProperties", reason);
        }
        if most < self.declared.len() {
            if most - needed > 1 || needed > 0 && most > needed || least > needed + 1 {
                let reason = "can be decoded only as 1, or as a number that all declared \
                              properties keep to";
                return refused("maxProperties", reason.to_owned());
            }
            self.free = None;
            self.choose = match (most - needed, least > needed) {
                (0, _) => {
                    self.declared.retain(|m| m.required);
                    Choose::Any
                }
                (_, true) => Choose::One,
                (_, false) => Choose::AtMostOne,
            };
            return Ok(());
        }
        if let Some(free) = &mut self.free {
            free.most = free.most.min(most - self.declared.len());
        }
        if least <= needed {
            return Ok(());
        }
        match (least - needed, optional, &mut self.free) {
            (1, 0, Some(free)) if free.most > 0 => free.least = 1,
            (1, 1.., _) if needed == 0 => {
                // One of the declared members; undeclared ones may come in addition.
                self.choose = Choose::Some;
            }
            _ => {
                let reason = "can be decoded only as 1, or as a number of required properties: \
                              a name that is written twice counts once";
                return refused("minProperties", reason.to_owned());
            }
        }
        Ok(())
    }
}

fn required<'w>(words: &'w Map<String, Value>, at: &str) -> Result<Vec<&'w str>, Refusal> {
    let refused = || Refusal::new(format!("{at}.required"), "expected an array of names");
    let names = match words.get("required") {
        None => return Ok(Vec::new()),
        Some(Value::Array(names)) => names,
        Some(_) => return Err(refused()),
    };
    let mut all = Vec::with_capacity(names.len());
    let mut seen = std::collections::HashSet::new();
    for name in names {
        let name = name.as_str().ok_or_else(refused)?;
        if seen.insert(name) {
            all.push(name);
        }
    }
    Ok(all)
}

/// Reads from `patternProperties` and `propertyNames` which names undeclared members
/// may have.
fn names(words: &Map<String, Value>, at: &str) -> Result<Names, Refusal> {
    let refused = |word: &str, reason: &str| Err(Refusal::new(format!("{at}.{word}"), reason));
    let named = words.get("propertyNames");
    if let Some(patterns) = words.get("patternProperties") {
        let Value::Object(patterns) = patterns else {
            return refused("patternProperties", "expected an object of schemas");
        };
        if named.is_some() {
            return refused(
                "propertyNames",
                "cannot be decoded together with patternProperties",
            );
        }
        return match patterns.iter().next() {
            Some((pattern, _)) if patterns.len() == 1 => Ok(Names::Pattern(pattern.clone())),
            _ => refused(
                "patternProperties",
                "more than one pattern cannot be decoded",
            ),
        };
    }
    let Some(named) = named else {
        return Ok(Names::Any);
    };
    let Value::Object(map) = named else {
        return refused("propertyNames", "expected a schema of strings");
    };
    let listed = match (map.get("enum"), map.get("const")) {
        (Some(Value::Array(all)), None) => Some(all.clone()),
        (None, Some(one)) => Some(vec![one.clone()]),
        _ => None,
    };
    if let Some(all) = listed {
        let names = all.iter().filter_map(Value::as_str).map(str::to_owned);
        let only = map
            .keys()
            .all(|k| ["enum", "const", "type", "title", "description"].contains(&k.as_str()));
        return match only {
            true => Ok(Names::Listed(names.collect())),
            false => refused("propertyNames", "cannot be decoded with these words"),
        };
    }
    let known = [
        "type",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "title",
        "description",
    ];
    match map.keys().all(|k| known.contains(&k.as_str())) {
        true => Ok(Names::Words(map.clone())),
        false => refused("propertyNames", "cannot be decoded with these words"),
    }
}

/// The grammar rules of an object's members in their order, from which the sequences of
/// members with commas are made.
pub(super) struct Sequence<'m> {
    /// The grammar rule of each declared member where it comes first in the object,
    /// without a comma.
    pub(super) first: &'m [RuleId],
    /// The grammar rule of each declared member where it follows another, with the
    /// comma before it.
    pub(super) later: &'m [RuleId],
    pub(super) required: &'m [bool],
    /// The undeclared members, which come last: the rule of one that comes first in the
    /// object, the rule of one that follows another, and their least and greatest
    /// number.
    pub(super) free: Option<(RuleId, RuleId, usize, usize)>,
    pub(super) choose: Choose,
}

impl Sequence<'_> {
    /// Returns the alternative sequences of an object's members in the grammar; an
    /// empty sequence stands for an object without members.
    pub(super) fn alternatives(&self, rules: &mut Rules) -> Vec<Vec<Sym>> {
        let count = self.first.len();
        match self.choose {
            Choose::Any | Choose::Some => {}
            Choose::AtMostOne | Choose::One => {
                let mut all: Vec<Vec<Sym>> =
                    self.first.iter().map(|&r| vec![Sym::Rule(r)]).collect();
                if self.choose == Choose::AtMostOne {
                    all.push(Vec::new());
                }
                return all;
            }
        }
        let tail = self.free.map(|(_, next, least, most)| Sym::Times {
            rule: next,
            min: least,
            most,
        });
        let mut all = Vec::new();
        if count > 0 {
            let mut one = vec![Sym::Rule(self.some(0, count, rules))];
            one.extend(tail);
            all.push(one);
        }
        if self.required.contains(&true) || self.choose == Choose::Some {
            return all;
        }
        if let Some((pair, next, least, most)) = self.free
            && most > 0
        {
            let times = Sym::Times {
                rule: next,
                min: least.saturating_sub(1),
                most: most - 1,
            };
            all.push(vec![Sym::Rule(pair), times]);
            if least > 0 {
                return all;
            }
        }
        all.push(Vec::new());
        all
    }

    /// Makes the grammar rule of an object's declared members `from..to` (indices) of
    /// which at least one is present; the first that is has no comma before it. Halving
    /// the range keeps the rules' nesting low.
    fn some(&self, from: usize, to: usize, rules: &mut Rules) -> RuleId {
        if to - from == 1 {
            return self.first[from];
        }
        let middle = from.midpoint(to);
        let left = self.some(from, middle, rules);
        let rest = self.rest(middle, to, rules);
        let mut all = vec![vec![Sym::Rule(left), rest]];
        if !self.required[from..middle].contains(&true) {
            all.push(vec![Sym::Rule(self.some(middle, to, rules))]);
        }
        rules.rule(all)
    }

    /// Makes the grammar symbol of an object's declared members `from..to` (indices),
    /// each with a comma before it; those that are not required may be missing.
    fn rest(&self, from: usize, to: usize, rules: &mut Rules) -> Sym {
        if to - from == 1 {
            let rule = self.later[from];
            return match self.required[from] {
                true => Sym::Rule(rule),
                false => Sym::Times {
                    rule,
                    min: 0,
                    most: 1,
                },
            };
        }
        let middle = from.midpoint(to);
        let left = self.rest(from, middle, rules);
        let right = self.rest(middle, to, rules);
        Sym::Rule(rules.rule(vec![vec![left, right]]))
    }
}

//! Resolves a JSON schema: follows its references and multiplies out its combinations
//! (`allOf`, `anyOf`, `oneOf`).
//!
//! A schema becomes alternatives of [`Plain`] ones: types, listed values and keywords
//! that bound a value, without `$ref`, `allOf`, `anyOf` or `oneOf`. The schemas of an
//! object's members and an array's items are resolved later, one by one, so a schema
//! may refer to itself there. A schema that refers to itself without an object or array
//! in between has no end and is refused.

use super::merge;
use super::number::{inexact, is_exact};
use muser_text::chat::Types;
use serde_json::{Map, Value};

/// Why a JSON schema is refused: the place in it, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The path from the schema's root to what is refused, such as
    /// `.properties.a.pattern`.
    pub(super) at: String,
    pub(super) reason: String,
}

impl Refusal {
    pub(super) fn new(at: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            at: at.into(),
            reason: reason.into(),
        }
    }
}

/// A JSON schema with its references and combinations resolved: types, listed values
/// and keywords.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    /// The path from the root of a JSON schema to where this resolved part of it is
    /// written, for refusals.
    pub(super) at: String,
    pub(super) types: Types,
    /// The values that the JSON schema lists by `enum` or `const`; `None` if it has
    /// neither.
    pub(super) values: Option<Vec<Value>>,
    /// The keywords of a JSON schema that bound a value (`minimum`, `items`, …), each
    /// for values of its type.
    pub(super) words: Map<String, Value>,
}

impl Plain {
    /// Counts the JSON values in the schema's keywords, nested ones included.
    pub(super) fn size(&self) -> usize {
        size(&self.words)
    }

    /// Returns the types that a value of this schema is written in. Without a `type`
    /// these are the types that its keywords bound: by the standard any value of
    /// another type would fit too.
    pub(super) fn kinds(&self) -> Types {
        if self.types != Types::ALL || self.words.is_empty() {
            return self.types;
        }
        let spoken = WORDS.iter().filter(|(_, can, cannot)| {
            let mut words = can.iter().chain(cannot.iter());
            words.any(|word| self.words.contains_key(*word))
        });
        spoken.fold(Types::NONE, |all, (types, ..)| all.or(*types))
    }
}

/// Schema keywords that do not restrict which values fit.
const ANNOTATIONS: [&str; 15] = [
    "title",
    "description",
    "default",
    "example",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
    "$id",
    "$defs",
    "definitions",
    "discriminator",
    "nullable",
];

/// Keywords of JSON schemas that constrained decoding cannot enforce, whatever the
/// value's type.
const NEVER: [&str; 6] = [
    "not",
    "if",
    "$dynamicRef",
    "$recursiveRef",
    "extends",
    "disallow",
];

/// The keywords of JSON schemas that bound each type: those that constrained decoding
/// can enforce, then those that it cannot.
pub(super) const WORDS: [(Types, &[&str], &[&str]); 4] = [
    (
        Types::NUMBER,
        &[
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
        ],
        &[],
    ),
    (
        Types::STRING,
        &["minLength", "maxLength", "pattern", "format"],
        &[],
    ),
    (
        Types::ARRAY,
        &[
            "items",
            "prefixItems",
            "additionalItems",
            "minItems",
            "maxItems",
        ],
        &[
            "uniqueItems",
            "contains",
            "minContains",
            "maxContains",
            "unevaluatedItems",
        ],
    ),
    (
        Types::OBJECT,
        &[
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "propertyNames",
            "minProperties",
            "maxProperties",
        ],
        &[
            "dependentRequired",
            "dependentSchemas",
            "dependencies",
            "unevaluatedProperties",
        ],
    ),
];

/// The most references and combinations in a row that lead into no object or array.
const MOST_STEPS: usize = 64;
/// The most JSON values that are copied while the references and combinations of a
/// schema are resolved.
const MOST_COPIES: usize = 1_000_000;
/// The most alternatives that a schema may come to once its combinations are multiplied
/// out.
const MOST_ALTERNATIVES: usize = 256;

/// Resolves the references and combinations of one JSON schema, within bounds.
pub(super) struct Reader<'s> {
    root: &'s Value,
    /// How many pairs of schemas have been joined so far, each of which counts against
    /// `most`.
    made: usize,
    most: usize,
    /// How many JSON values may still be copied while references and combinations are
    /// resolved.
    copies: usize,
}

impl<'s> Reader<'s> {
    /// Creates a reader of JSON schemas whose `$ref` references point into `root`; it
    /// joins at most `most` pairs of schemas.
    pub(super) fn new(root: &'s Value, most: usize) -> Self {
        Self {
            root,
            made: 0,
            most,
            copies: MOST_COPIES,
        }
    }

    /// Returns how many JSON values may still be copied while a schema's references and
    /// combinations are resolved.
    pub(super) fn left(&self) -> usize {
        self.copies
    }

    /// Lowers the number of JSON values that may still be copied while a schema is
    /// resolved; `None` leaves it.
    pub(super) fn limit(&mut self, copies: Option<usize>) {
        self.copies = copies.unwrap_or(self.copies).min(self.copies);
    }

    /// Counts `values` JSON values that are copied to resolve a schema against the
    /// bound on such copies.
    ///
    /// # Errors
    /// There is not enough left.
    pub(super) fn copy(&mut self, values: usize, at: &str) -> Result<(), Refusal> {
        self.copies = self.copies.checked_sub(values).ok_or_else(|| {
            let reason = format!(
                "expected a schema of at most {MOST_COPIES} values with its references and \
                 combinations followed, found more"
            );
            Refusal::new(at, reason)
        })?;
        Ok(())
    }

    /// Returns a schema as alternatives without references and combinations; an empty
    /// list if no value fits it.
    ///
    /// # Errors
    /// What cannot be decoded, with its place.
    pub(super) fn plain(&mut self, schema: &Value, at: &str) -> Result<Vec<Plain>, Refusal> {
        self.read(schema, at, &mut Vec::new())
    }

    fn read(
        &mut self,
        schema: &Value,
        at: &str,
        open: &mut Vec<String>,
    ) -> Result<Vec<Plain>, Refusal> {
        let map = match schema {
            Value::Bool(false) => return Ok(Vec::new()),
            Value::Bool(true) => &Map::new(),
            Value::Object(map) => map,
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                let reason = "expected a schema: an object, true or false";
                return Err(Refusal::new(at, reason));
            }
        };
        if open.len() > MOST_STEPS {
            let reason =
                format!("expected at most {MOST_STEPS} references and combinations in a row");
            return Err(Refusal::new(at, reason));
        }
        self.copy(size(map), at)?;
        if let Some(name) = discriminator(map) {
            return self.discriminated(map, name, at, open);
        }
        let mut all = match own(map, at)? {
            Some(own) => vec![own],
            None => Vec::new(),
        };
        if let Some(reference) = map.get("$ref") {
            let (pointer, target) = self.target(reference, at)?;
            if open.contains(&pointer) {
                let reason =
                    "expected a reference that takes a value on its way, found one to itself";
                return Err(Refusal::new(format!("{at}.$ref"), reason));
            }
            open.push(pointer.clone());
            let place = pointer.replace('/', ".");
            let of = self.read(target, place.trim_start_matches('#'), open)?;
            open.pop();
            all = self.both(all, &of, at)?;
        }
        open.push(String::new());
        for (i, part) in parts(map, "allOf", at)?.enumerate() {
            let of = self.read(part, &format!("{at}.allOf[{i}]"), open)?;
            all = self.both(all, &of, at)?;
        }
        for word in ["anyOf", "oneOf"] {
            if !map.contains_key(word) {
                continue;
            }
            let mut branches = Vec::new();
            for (i, part) in parts(map, word, at)?.enumerate() {
                let of = self.read(part, &format!("{at}.{word}[{i}]"), open)?;
                branches.push(self.both(all.clone(), &of, at)?);
            }
            if word == "oneOf" {
                merge::disjoint(&branches, &format!("{at}.oneOf"))?;
            }
            all = branches.into_iter().flatten().collect();
        }
        open.pop();
        Ok(all)
    }

    /// Resolves a `oneOf` with a `discriminator`: the property that tells its branches
    /// apart is made required, so that every value shows its branch.
    fn discriminated(
        &mut self,
        map: &Map<String, Value>,
        name: &str,
        at: &str,
        open: &mut Vec<String>,
    ) -> Result<Vec<Plain>, Refusal> {
        let mut told = map.clone();
        told.remove("discriminator");
        let required = told
            .entry("required")
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(names) = required
            && !names.iter().any(|n| n == name)
        {
            names.push(name.into());
        }
        self.read(&Value::Object(told), at, open)
    }

    /// Joins every alternative of one schema with every alternative of the other, as
    /// `allOf` does.
    fn both(&mut self, a: Vec<Plain>, b: &[Plain], at: &str) -> Result<Vec<Plain>, Refusal> {
        let mut all = Vec::new();
        for (a, b) in a.iter().flat_map(|a| b.iter().map(move |b| (a, b))) {
            self.made += 1;
            self.copy(size(&a.words) + size(&b.words), at)?;
            if self.made > self.most || all.len() >= MOST_ALTERNATIVES {
                let most = self.most.min(MOST_ALTERNATIVES);
                let reason = format!(
                    "expected combinations that come to at most {most} alternatives, found more"
                );
                return Err(Refusal::new(at, reason));
            }
            all.extend(merge::both(a, b)?);
        }
        Ok(all)
    }

    /// Finds the schema that a `$ref` points to; returns its JSON pointer as well.
    fn target(&self, reference: &Value, at: &str) -> Result<(String, &'s Value), Refusal> {
        let refused = |reason: String| Refusal::new(format!("{at}.$ref"), reason);
        let Value::String(text) = reference else {
            return Err(refused("expected a string".to_owned()));
        };
        let inside = text.strip_prefix('#').map(percent_decoded);
        let pointer = inside.filter(|p| p.is_empty() || p.starts_with('/'));
        let Some(pointer) = pointer else {
            return Err(refused(format!(
                "expected a place in this schema, such as #/$defs/name, found {text:?}"
            )));
        };
        let target = self.root.pointer(&pointer);
        let missing = || refused(format!("there is nothing at {text:?}"));
        Ok((format!("#{pointer}"), target.ok_or_else(missing)?))
    }
}

/// Returns the property that the `discriminator` of a `oneOf` names; `None` if either
/// keyword is missing.
fn discriminator(map: &Map<String, Value>) -> Option<&str> {
    map.get("oneOf")?;
    map.get("discriminator")?.get("propertyName")?.as_str()
}

/// Counts the JSON values in a schema's keywords, nested ones included, and the schema
/// itself.
fn size(words: &Map<String, Value>) -> usize {
    let mut work: Vec<&Value> = words.values().collect();
    let mut count = 1;
    while let Some(value) = work.pop() {
        count += 1;
        match value {
            Value::Array(all) => work.extend(all),
            Value::Object(all) => work.extend(all.values()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    count
}

/// Decodes the percent escapes (`%41` is A) of a `$ref`, which is part of a URI.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = (first == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|c| u8::from_str_radix(std::str::from_utf8(c).ok()?, 16).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// Iterates over the schemas that `allOf`, `anyOf` or `oneOf` combines.
fn parts<'m>(
    map: &'m Map<String, Value>,
    word: &str,
    at: &str,
) -> Result<std::slice::Iter<'m, Value>, Refusal> {
    match map.get(word) {
        None => Ok([].iter()),
        Some(Value::Array(all)) if !all.is_empty() => Ok(all.iter()),
        Some(_) => {
            let reason = "expected an array of at least one schema";
            Err(Refusal::new(format!("{at}.{word}"), reason))
        }
    }
}

/// Returns what a schema's own keywords ask for, without its references and
/// combinations; `None` if no value fits.
fn own(map: &Map<String, Value>, at: &str) -> Result<Option<Plain>, Refusal> {
    let mut plain = Plain {
        at: at.to_owned(),
        types: Types::ALL,
        values: None,
        words: Map::new(),
    };
    for (word, value) in map {
        let place = || format!("{at}.{word}");
        match word.as_str() {
            "$ref" | "allOf" | "anyOf" | "oneOf" | "then" | "else" => {}
            "type" => plain.types = types(value, &place())?,
            "enum" => {
                let Value::Array(values) = value else {
                    return Err(Refusal::new(place(), "expected an array"));
                };
                let known = plain.values.take();
                let known = known.as_ref();
                let kept = values
                    .iter()
                    .filter(|v| known.is_none_or(|k| k.contains(v)));
                plain.values = Some(kept.cloned().collect());
            }
            "const" => {
                let fits = plain.values.as_ref().is_none_or(|v| v.contains(value));
                plain.values = Some(if fits {
                    vec![value.clone()]
                } else {
                    Vec::new()
                });
            }
            _ if ANNOTATIONS.contains(&word.as_str()) => {}
            _ if is_always_true(word, value, map) => {}
            _ if NEVER.contains(&word.as_str()) => {
                return Err(Refusal::new(place(), "cannot be decoded"));
            }
            _ => {
                let mut known = WORDS.iter().flat_map(|(_, can, no)| can.iter().chain(*no));
                // A keyword that JSON schema does not define restricts nothing.
                if known.any(|known| known == word) {
                    plain.words.insert(word.clone(), value.clone());
                }
            }
        }
    }
    for value in plain.values.iter().flatten() {
        exact(value, at)?;
    }
    tuples(&mut plain.words);
    merge::keep_fitting(&mut plain)?;
    Ok((plain.types != Types::NONE).then_some(plain))
}

/// Rewrites the older form of tuples: an array under `items` becomes `prefixItems`, and
/// `additionalItems` becomes `items`.
fn tuples(words: &mut Map<String, Value>) {
    if !words.get("items").is_some_and(Value::is_array) {
        return;
    }
    let rest = words.remove("additionalItems");
    if let Some(first) = words.remove("items") {
        words.insert("prefixItems".to_owned(), first);
    }
    if let Some(rest) = rest {
        words.insert("items".to_owned(), rest);
    }
}

fn types(value: &Value, at: &str) -> Result<Types, Refusal> {
    let one = |value: &Value| {
        let found = value.as_str().and_then(Types::named);
        found.ok_or_else(|| {
            let reason = format!(
                "expected null, boolean, integer, number, string, array or object, found {value}"
            );
            Refusal::new(at, reason)
        })
    };
    match value {
        Value::Array(all) => {
            let mut types = Types::NONE;
            for name in all {
                types = types.or(one(name)?);
            }
            Ok(types)
        }
        name => one(name),
    }
}

/// Refuses an `enum` or `const` with a number that the JSON parser may have rounded: it
/// could not be written as it was sent.
fn exact(value: &Value, at: &str) -> Result<(), Refusal> {
    let mut work = vec![value];
    while let Some(value) = work.pop() {
        match value {
            Value::Number(number) if !is_exact(number) => {
                return Err(Refusal::new(at, inexact(number)));
            }
            Value::Array(all) => work.extend(all),
            Value::Object(all) => work.extend(all.values()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    Ok(())
}

/// Returns whether a schema keyword has a value that restricts nothing, such as
/// `"uniqueItems": false`; generators of schemas write these.
fn is_always_true(word: &str, value: &Value, map: &Map<String, Value>) -> bool {
    let empty = |v: &Value| v.as_object().is_some_and(Map::is_empty);
    let anything = |v: &Value| *v == Value::Bool(true) || empty(v);
    match word {
        "uniqueItems" => *value == Value::Bool(false),
        "not" => *value == Value::Bool(false),
        "if" => !map.contains_key("then") && !map.contains_key("else"),
        "minContains" | "maxContains" => !map.contains_key("contains"),
        "dependentRequired" | "dependentSchemas" | "dependencies" | "patternProperties" => {
            empty(value)
        }
        "unevaluatedProperties" | "unevaluatedItems" => anything(value),
        "propertyNames" => {
            let only = value.as_object().is_some_and(|m| m.len() == 1);
            anything(value) || only && value.get("type").is_some_and(|t| t == "string")
        }
        _ => false,
    }
}

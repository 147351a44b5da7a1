//! Joins JSON schemas that a value has to fit at once (`allOf`) into one, and finds out
//! whether a value could fit two branches of a `oneOf`.

use super::schema::{Plain, Refusal};
use super::string::length;
use muser_text::chat::Types;
use serde_json::{Map, Value, json};

/// Returns the schema of the values that fit both schemas; `None` if no value does.
///
/// # Errors
/// Words that cannot be joined.
pub(super) fn both(a: &Plain, b: &Plain) -> Result<Option<Plain>, Refusal> {
    let types = a.types.and(b.types);
    if types == Types::NONE {
        return Ok(None);
    }
    let values = match (&a.values, &b.values) {
        (None, None) => None,
        (Some(values), None) | (None, Some(values)) => Some(values.clone()),
        (Some(a), Some(b)) => Some(a.iter().filter(|v| b.contains(v)).cloned().collect()),
    };
    let mut all = Plain {
        at: if a.words.is_empty() && a.values.is_none() {
            b.at.clone()
        } else {
            a.at.clone()
        },
        types,
        values,
        words: words(&a.words, &b.words, &a.at)?,
    };
    keep_fitting(&mut all)?;
    Ok((all.types != Types::NONE).then_some(all))
}

/// Returns the schema of an object's `additionalProperties`; `None` if it allows
/// anything.
fn additional(words: &Map<String, Value>) -> Option<&Value> {
    let found = words.get("additionalProperties");
    found.filter(|v| **v != Value::Bool(true) && !v.as_object().is_some_and(Map::is_empty))
}

fn words(
    a: &Map<String, Value>,
    b: &Map<String, Value>,
    at: &str,
) -> Result<Map<String, Value>, Refusal> {
    if a.is_empty() || b.is_empty() {
        return Ok(if a.is_empty() { b.clone() } else { a.clone() });
    }
    let refused = |word: &str| {
        let reason = "cannot be joined with what the same value has to fit besides";
        Refusal::new(format!("{at}.{word}"), reason)
    };
    let mut all = a.clone();
    let patterns = "patternProperties";
    for (one, other) in [(a, b), (b, a)] {
        let names = ["properties", patterns]
            .iter()
            .any(|w| other.contains_key(*w));
        let same = one.get(patterns) == other.get(patterns);
        if one.contains_key(patterns) && !same && (names || additional(other).is_some()) {
            return Err(refused(patterns));
        }
        let tuple = "prefixItems";
        let same = one.get(tuple) == other.get(tuple);
        if one.contains_key(tuple)
            && !same
            && (other.contains_key("items") || other.contains_key(tuple))
        {
            return Err(refused(tuple));
        }
    }
    if let Some(properties) = properties(a, b) {
        all.insert("properties".to_owned(), properties);
    }
    for (word, theirs) in b {
        if word == "properties" {
            continue;
        }
        let joined = match a.get(word) {
            None => theirs.clone(),
            Some(ours) if ours == theirs => theirs.clone(),
            Some(ours) => match word.as_str() {
                "required" => union(ours, theirs),
                "items" | "additionalItems" | "additionalProperties" | "propertyNames" => {
                    json!({"allOf": [ours, theirs]})
                }
                "minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties" => {
                    tighter(ours, theirs, true)
                }
                "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties" => {
                    tighter(ours, theirs, false)
                }
                _ => return Err(refused(word)),
            },
        };
        all.insert(word.clone(), joined);
    }
    Ok(all)
}

/// Joins the `properties` of two object schemas: a name that only one of them declares
/// also has to fit the other's `additionalProperties`.
fn properties(a: &Map<String, Value>, b: &Map<String, Value>) -> Option<Value> {
    let of = |words: &Map<String, Value>| {
        let found = words.get("properties").and_then(Value::as_object);
        found.cloned()
    };
    let (ours, theirs) = (of(a), of(b));
    if ours.is_none() && theirs.is_none() {
        return None;
    }
    let (ours, theirs) = (ours.unwrap_or_default(), theirs.unwrap_or_default());
    let join = |schema: &Value, other: Option<&Value>| match other {
        None => schema.clone(),
        Some(other) if other == schema => schema.clone(),
        Some(other) => json!({"allOf": [schema, other]}),
    };
    let mut all = Map::new();
    for (name, schema) in &ours {
        let other = theirs.get(name).or_else(|| additional(b));
        all.insert(name.clone(), join(schema, other));
    }
    for (name, schema) in &theirs {
        if !ours.contains_key(name) {
            all.insert(name.clone(), join(schema, additional(a)));
        }
    }
    Some(Value::Object(all))
}

fn union(a: &Value, b: &Value) -> Value {
    let (Value::Array(ours), Value::Array(theirs)) = (a, b) else {
        // One of the two is no array: keeps the first, which is refused when it is
        // read.
        return a.clone();
    };
    let mut all = ours.clone();
    all.extend(theirs.iter().filter(|v| !ours.contains(v)).cloned());
    Value::Array(all)
}

/// Returns the larger of two JSON numbers, or the smaller if `larger` is not set.
fn tighter(a: &Value, b: &Value, larger: bool) -> Value {
    let whole = |v: &Value| v.as_i64().map(i128::from).or(v.as_u64().map(i128::from));
    let above = match (whole(a), whole(b)) {
        (Some(a), Some(b)) => a > b,
        _ => a.as_f64() > b.as_f64(),
    };
    if above == larger {
        a.clone()
    } else {
        b.clone()
    }
}

/// Removes from a schema's `enum` or `const` values those that do not fit its types and
/// other keywords.
///
/// # Errors
/// A word beside a list that says nothing about it in advance.
pub(super) fn keep_fitting(plain: &mut Plain) -> Result<(), Refusal> {
    let Some(values) = plain.values.take() else {
        return Ok(());
    };
    let mut kept = Vec::new();
    for value in values {
        if plain.types.has(Types::of(&value)) && fits(&value, plain)? {
            kept.push(value);
        }
    }
    let types = kept.iter().map(Types::of);
    plain.types = types.fold(Types::NONE, Types::or);
    plain.words.clear();
    plain.values = Some(kept);
    Ok(())
}

fn fits(value: &Value, plain: &Plain) -> Result<bool, Refusal> {
    let at = &plain.at;
    let refused = |word: &str| {
        let reason = "cannot be joined with the enum or const of the same value";
        Err(Refusal::new(format!("{at}.{word}"), reason))
    };
    for (word, bound) in &plain.words {
        let number = |holds: fn(f64, f64) -> bool| match (value.as_f64(), bound.as_f64()) {
            (Some(value), Some(bound)) => holds(value, bound),
            _ => true,
        };
        let size = match value {
            Value::String(text) => text.chars().count() as u64,
            Value::Array(all) => all.len() as u64,
            Value::Object(all) => all.len() as u64,
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        };
        let fits = match (word.as_str(), value) {
            ("minimum", _) => number(|v, b| v >= b),
            ("maximum", _) => number(|v, b| v <= b),
            ("exclusiveMinimum", _) => number(|v, b| v > b),
            ("exclusiveMaximum", _) => number(|v, b| v < b),
            ("minLength", Value::String(_))
            | ("minItems", Value::Array(_))
            | ("minProperties", Value::Object(_)) => {
                length(&plain.words, word, at)?.is_none_or(|least| size >= least)
            }
            ("maxLength", Value::String(_))
            | ("maxItems", Value::Array(_))
            | ("maxProperties", Value::Object(_)) => {
                length(&plain.words, word, at)?.is_none_or(|most| size <= most)
            }
            ("required", Value::Object(map)) => {
                let names = bound.as_array().map(Vec::as_slice).unwrap_or_default();
                names
                    .iter()
                    .all(|n| n.as_str().is_some_and(|n| map.contains_key(n)))
            }
            ("multipleOf", Value::Number(_)) | ("pattern", Value::String(_)) => {
                return refused(word);
            }
            ("multipleOf" | "pattern" | "format", _) => true,
            (_, Value::Array(_) | Value::Object(_)) if speaks_of(word, value) => {
                return refused(word);
            }
            _ => true,
        };
        if !fits {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether a schema keyword (`minItems`, …) bounds values of this value's type.
fn speaks_of(word: &str, value: &Value) -> bool {
    let types = Types::of(value);
    let mut all = super::schema::WORDS.iter();
    all.any(|(of, can, cannot)| types.has(*of) && (can.contains(&word) || cannot.contains(&word)))
}

/// Refuses the branches of a `oneOf` unless they are plainly disjoint: a value that
/// fits two branches does not fit the `oneOf`, and a grammar cannot rule that out.
pub(super) fn disjoint(branches: &[Vec<Plain>], at: &str) -> Result<(), Refusal> {
    for (j, later) in branches.iter().enumerate() {
        for (i, earlier) in branches.iter().enumerate().take(j) {
            let mut pairs = earlier
                .iter()
                .flat_map(|a| later.iter().map(move |b| (a, b)));
            if pairs.any(|(a, b)| !apart(a, b)) {
                let reason = format!(
                    "expected branches of which a value can fit one only, found {i} and {j} that \
                     may overlap: tell them apart by type or by a required property with const, \
                     or use anyOf"
                );
                return Err(Refusal::new(at, reason));
            }
        }
    }
    Ok(())
}

/// Returns whether it is plain that no value fits both schemas: by type, by listed
/// values, or by a required property.
fn apart(a: &Plain, b: &Plain) -> bool {
    let common = a.kinds().and(b.kinds());
    if common == Types::NONE {
        return true;
    }
    if let (Some(a), Some(b)) = (&a.values, &b.values) {
        return a.iter().all(|v| !b.iter().any(|w| same(v, w)));
    }
    if common != Types::OBJECT || a.values.is_some() || b.values.is_some() {
        return false;
    }
    let required = |p: &Plain| -> Vec<String> {
        let names = p.words.get("required").and_then(Value::as_array);
        let names = names.into_iter().flatten().filter_map(Value::as_str);
        names.map(str::to_owned).collect()
    };
    let property = |p: &Plain, name: &str| p.words.get("properties")?.get(name).cloned();
    let forbids = |p: &Plain, name: &str| {
        let closed = p.words.get("additionalProperties") == Some(&Value::Bool(false));
        let open = p.words.contains_key("patternProperties");
        (closed && !open && property(p, name).is_none())
            || property(p, name) == Some(Value::Bool(false))
    };
    let (ours, theirs) = (required(a), required(b));
    let told = ours
        .iter()
        .filter(|name| theirs.contains(name))
        .any(|name| {
            let listed = |p| property(p, name).and_then(|s| listed(&s));
            match (listed(a), listed(b)) {
                (Some(a), Some(b)) => a.iter().all(|v| !b.iter().any(|w| same(v, w))),
                _ => false,
            }
        });
    told || ours.iter().any(|name| forbids(b, name)) || theirs.iter().any(|name| forbids(a, name))
}

/// Returns the values that a schema lists by `const` or `enum`, or by a `const` inside
/// its `allOf`.
fn listed(schema: &Value) -> Option<Vec<Value>> {
    if let Some(value) = schema.get("const") {
        return Some(vec![value.clone()]);
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return Some(values.clone());
    }
    let parts = schema.get("allOf").and_then(Value::as_array)?;
    let mut each = parts.iter();
    each.find_map(|part| Some(vec![part.get("const")?.clone()]))
}

/// Returns whether JSON schema may take two values as equal: 1.0 equals 1, and two
/// arrays, or two objects, are always taken as equal.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        // Numbers inside arrays and objects may differ in form only (1 and 1.0), so two
        // of them always count as equal.
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => a == b,
    }
}

//! Reads the JSON object of a request field by field, and refuses unknown fields and
//! wrong types.
//!
//! Derived deserialisation would need less code, but its messages do not name the
//! field of a nested value, and unknown fields cost users of a compatible server most
//! of their time.

use crate::error::{ApiError, shown};
use crate::json;
use crate::options::UnknownFields;
use serde_json::{Map, Value};
#[cfg(test)]
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

/// The type that a parser asked a request's field to have, recorded for the test that
/// compares `openapi.json` with the parsers.
#[cfg(test)]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asked {
    /// The parser asked for a request's field with a value of any type, or of one of
    /// several types.
    Any,
    Text,
    Flag,
    Number,
    Integer {
        low: i64,
        high: i64,
    },
    Array,
    Object,
}

/// The types that parsers asked a request's fields to have, by the field's path; `[]` in
/// a path stands for every place in an array.
#[cfg(test)]
pub(crate) type Questions = Arc<Mutex<BTreeMap<String, BTreeSet<Asked>>>>;

/// The fields of a JSON object in a request that the parser has not taken out yet.
pub(crate) struct Fields {
    /// The path of the JSON object in the request, such as `messages[0]`; empty for the
    /// request itself.
    path: String,
    map: Map<String, Value>,
    unknown: UnknownFields,
    #[cfg(test)]
    questions: Questions,
}

impl Fields {
    /// Parses a request's body and returns its fields.
    pub(crate) fn body(bytes: &[u8], unknown: UnknownFields) -> Result<Self, ApiError> {
        match json::parse(bytes)? {
            Value::Object(map) => Ok(Self {
                path: String::new(),
                map,
                unknown,
                #[cfg(test)]
                questions: Questions::default(),
            }),
            other => Err(ApiError::invalid(format!(
                "the body: expected an object, found {}",
                kind(&other)
            ))),
        }
    }

    /// Returns the fields of a JSON object that is nested in this one, at `path`; unknown
    /// fields are treated as in the outer object.
    pub(crate) fn inner(&self, path: String, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self {
                path,
                map,
                unknown: self.unknown,
                #[cfg(test)]
                questions: self.questions.clone(),
            }),
            other => Err(wrong(&path, "an object", &other)),
        }
    }

    /// Returns the shared record of the types that parsers ask the request's fields to
    /// have; further parsing adds to it.
    #[cfg(test)]
    pub(crate) fn questions(&self) -> Questions {
        self.questions.clone()
    }

    #[cfg(test)]
    fn ask(&self, key: &str, asked: Asked) {
        let name = self.name(key);
        let mut path = String::new();
        for part in name.split_inclusive('[') {
            let index = part.trim_start_matches(|c: char| c.is_ascii_digit());
            path += if index.starts_with(']') { index } else { part };
        }
        let questions = self.questions.lock();
        let mut questions = questions.unwrap_or_else(PoisonError::into_inner);
        questions.entry(path).or_default().insert(asked);
    }

    /// Returns the full name of the request's field `key`: the path of its object, and
    /// the key.
    pub(crate) fn name(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    /// Takes a field out of a request's JSON object, and returns its value; `null` counts
    /// as missing.
    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        #[cfg(test)]
        self.ask(key, Asked::Any);
        self.map.remove(key).filter(|v| !v.is_null())
    }

    /// Takes a field that the request has to have, and returns its value.
    pub(crate) fn require(&mut self, key: &str) -> Result<Value, ApiError> {
        let name = self.name(key);
        let missing = || ApiError::field(name, "expected a value, found none");
        self.take(key).ok_or_else(missing)
    }

    /// Takes a request's field that has to be a string; `None` if it is missing.
    pub(crate) fn string(&mut self, key: &str) -> Result<Option<String>, ApiError> {
        #[cfg(test)]
        self.ask(key, Asked::Text);
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(wrong(&self.name(key), "a string", &other)),
        }
    }

    /// Takes a request's field that has to be `true` or `false`; `None` if it is missing.
    pub(crate) fn flag(&mut self, key: &str) -> Result<Option<bool>, ApiError> {
        #[cfg(test)]
        self.ask(key, Asked::Flag);
        match self.take(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(b)),
            Some(other) => Err(wrong(&self.name(key), "true or false", &other)),
        }
    }

    /// Takes a request's field that has to be a finite number; `None` if it is missing.
    pub(crate) fn number(&mut self, key: &str) -> Result<Option<f32>, ApiError> {
        #[cfg(test)]
        self.ask(key, Asked::Number);
        match self.take(key) {
            None => Ok(None),
            Some(value) => number(&self.name(key), &value).map(Some),
        }
    }

    /// Takes a request's field that has to be a whole number from `low` to `high`; `None`
    /// if it is missing.
    pub(crate) fn integer(
        &mut self,
        key: &str,
        low: i64,
        high: i64,
    ) -> Result<Option<i64>, ApiError> {
        #[cfg(test)]
        self.ask(key, Asked::Integer { low, high });
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let found = whole(&value).filter(|n| (low..=high).contains(n));
        let range = format!("a whole number from {low} to {high}");
        let error = || match value.is_number() {
            true => out_of_range(&self.name(key), &range, &value),
            false => wrong(&self.name(key), &range, &value),
        };
        found.map(Some).ok_or_else(error)
    }

    /// Takes a request's field that has to be a whole number from `low` to `high`, never
    /// negative; `None` if it is missing.
    pub(crate) fn count(
        &mut self,
        key: &str,
        low: i64,
        high: i64,
    ) -> Result<Option<usize>, ApiError> {
        let found = self.integer(key, low.max(0), high)?;
        // Within the bounds, so not negative.
        Ok(found.and_then(|n| usize::try_from(n).ok()))
    }

    /// Takes a request's field that has to be an array; `None` if it is missing.
    pub(crate) fn array(&mut self, key: &str) -> Result<Option<Vec<Value>>, ApiError> {
        #[cfg(test)]
        self.ask(key, Asked::Array);
        match self.take(key) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong(&self.name(key), "an array", &other)),
        }
    }

    /// Takes a request's field that has to be an object, and returns its fields; `None`
    /// if it is missing.
    pub(crate) fn object(&mut self, key: &str) -> Result<Option<Self>, ApiError> {
        #[cfg(test)]
        self.ask(key, Asked::Object);
        let name = self.name(key);
        let value = self.take(key);
        value.map(|v| self.inner(name, v)).transpose()
    }

    /// Drops from a request's JSON object these fields, which are accepted with any value
    /// and ignored.
    pub(crate) fn drop_all(&mut self, keys: &[&str]) {
        for key in keys {
            #[cfg(test)]
            self.ask(key, Asked::Any);
            self.map.remove(*key);
        }
    }

    /// Returns all fields of a request's JSON object that the parser has not taken.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.map
    }

    /// Refuses the fields of a request's JSON object that the parser has not taken,
    /// unless the server ignores unknown ones. A null counts as missing under any name.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        if self.unknown == UnknownFields::Ignore {
            return Ok(());
        }
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((key, _)) => {
                let name = self.name(&shown(key));
                Err(ApiError::field(name, "this server knows no such field").code("unknown_field"))
            }
        }
    }
}

/// Reads a JSON number that f32 can hold; an error names the field `name`.
pub(crate) fn number(name: &str, value: &Value) -> Result<f32, ApiError> {
    let found = value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
    let expected = "a number of at most 3.4e38";
    found.ok_or_else(|| match value.is_number() {
        true => out_of_range(name, expected, value),
        false => wrong(name, expected, value),
    })
}

/// Reads a whole number from JSON, also if it is written with a fraction: `8.0` is 8.
/// Beyond 2^53 a double stands for several whole numbers, so it is refused.
fn whole(value: &Value) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let written = |x: &f64| x.fract() == 0.0 && x.abs() <= EXACT;
    // A cast of a whole double within 2^53 is exact.
    let float = || value.as_f64().filter(written).map(|x| x as i64);
    value.as_i64().or_else(float)
}

/// Makes the error for a field's number that is out of its range. The message shows the
/// number, which tells nothing of the request's content.
fn out_of_range(name: &str, expected: &str, found: &Value) -> ApiError {
    let found = shown(&found.to_string());
    ApiError::field(name, format!("expected {expected}, found {found}"))
}

/// Makes the error for a field's value of another type than expected, without showing its
/// content.
pub(crate) fn wrong(name: &str, expected: &str, found: &Value) -> ApiError {
    ApiError::field(name, format!("expected {expected}, found {}", kind(found)))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::body(text.as_bytes(), UnknownFields::Refuse).unwrap()
    }

    #[test]
    fn a_refusal_names_the_field_and_what_was_found() {
        let mut f = fields(r#"{"a": "x", "b": -1, "c": 1.5, "d": {"e": 1}, "g": 1e300, "h": 1}"#);
        assert_eq!(
            f.flag("a").unwrap_err().message,
            "a: expected true or false, found a string"
        );
        assert_eq!(
            f.count("b", 0, 9).unwrap_err().message,
            "b: expected a whole number from 0 to 9, found -1"
        );
        assert_eq!(
            f.count("c", 0, 9).unwrap_err().message,
            "c: expected a whole number from 0 to 9, found 1.5"
        );
        let inner = f.object("d").unwrap().unwrap();
        let error = inner.finish().unwrap_err();
        assert_eq!(error.param.as_deref(), Some("d.e"));
        assert_eq!(
            f.number("g").unwrap_err().message,
            "g: expected a number of at most 3.4e38, found 1e+300"
        );
        assert_eq!(f.finish().unwrap_err().param.as_deref(), Some("h"));
    }

    #[test]
    fn null_is_missing_and_what_is_no_object_is_refused() {
        let mut f = fields(r#"{"a": null}"#);
        assert_eq!(f.string("a").unwrap(), None);
        f.finish().unwrap();
        for body in ["[1]", "", "{", "nul", "\"x\""] {
            assert!(Fields::body(body.as_bytes(), UnknownFields::Refuse).is_err());
        }
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        assert!(Fields::body(deep.as_bytes(), UnknownFields::Refuse).is_err());
    }

    #[test]
    fn null_is_absent_under_any_name_and_the_rest_may_be_ignored() {
        fields(r#"{"no such field": null}"#).finish().unwrap();
        assert!(fields(r#"{"no such field": 0}"#).finish().is_err());
        let text = br#"{"no such field": 0, "a": {"nor this": 1}}"#;
        let mut f = Fields::body(text, UnknownFields::Ignore).unwrap();
        f.object("a").unwrap().unwrap().finish().unwrap();
        f.finish().unwrap();
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_fraction() {
        let mut f = fields(r#"{"a": 8.0, "b": 1e3, "c": 9007199254740992.0, "d": 8.5}"#);
        assert_eq!(f.integer("a", 0, 9).unwrap(), Some(8));
        assert_eq!(f.integer("b", 0, 1000).unwrap(), Some(1000));
        assert_eq!(f.integer("c", 0, i64::MAX).unwrap(), Some(1 << 53));
        assert!(f.integer("d", 0, 9).is_err());
    }

    #[test]
    fn what_is_echoed_is_cut_and_cannot_play_on_a_terminal() {
        let long = format!("{{\"\\u001b[2J{}\": 1}}", "x".repeat(100_000));
        let error = fields(&long).finish().unwrap_err();
        assert!(error.message.len() < 200, "{}", error.message.len());
        assert!(
            error.message.starts_with("\\u{1b}[2Jxxx"),
            "{}",
            error.message
        );
    }
}

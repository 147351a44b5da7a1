//! A JSON object read field by field: nothing unknown, nothing of another type.
//!
//! Derived deserialisation would do with less code here, but its messages do
//! not name the field of a nested value, and "unknown field" is where users of
//! a compatible server lose their time.

use crate::error::ApiError;
use serde_json::{Map, Value};

/// The fields of an object that were not taken yet.
pub(crate) struct Fields {
    /// Where the object is: empty, or a path such as `messages[0]`.
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The request itself.
    pub(crate) fn body(bytes: &[u8]) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|e| ApiError::invalid(format!("the body is not JSON: {e}")))?;
        match value {
            Value::Object(map) => Ok(Self {
                path: String::new(),
                map,
            }),
            other => Err(ApiError::invalid(format!(
                "the body: expected an object, found {}",
                kind(&other)
            ))),
        }
    }

    /// An object inside it.
    pub(crate) fn of(path: String, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { path, map }),
            other => Err(wrong(&path, "an object", &other)),
        }
    }

    /// The field's full name.
    pub(crate) fn name(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    /// Takes a field; `null` counts as missing.
    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key).filter(|v| !v.is_null())
    }

    /// A field that has to be there.
    pub(crate) fn require(&mut self, key: &str) -> Result<Value, ApiError> {
        let name = self.name(key);
        let missing = || ApiError::field(name, "expected a value, found none");
        self.take(key).ok_or_else(missing)
    }

    /// A string.
    pub(crate) fn string(&mut self, key: &str) -> Result<Option<String>, ApiError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(wrong(&self.name(key), "a string", &other)),
        }
    }

    /// `true` or `false`.
    pub(crate) fn flag(&mut self, key: &str) -> Result<Option<bool>, ApiError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(b)),
            Some(other) => Err(wrong(&self.name(key), "true or false", &other)),
        }
    }

    /// A finite number.
    pub(crate) fn number(&mut self, key: &str) -> Result<Option<f32>, ApiError> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => number(&self.name(key), &value).map(Some),
        }
    }

    /// A whole number within these bounds.
    pub(crate) fn integer(
        &mut self,
        key: &str,
        low: i64,
        high: i64,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let found = value.as_i64().filter(|n| (low..=high).contains(n));
        let range = format!("a whole number from {low} to {high}");
        let error = || match value.is_number() {
            true => ApiError::field(self.name(key), format!("expected {range}, found {value}")),
            false => wrong(&self.name(key), &range, &value),
        };
        found.map(Some).ok_or_else(error)
    }

    /// [`Fields::integer`] of something that is counted.
    pub(crate) fn count(
        &mut self,
        key: &str,
        low: i64,
        high: i64,
    ) -> Result<Option<usize>, ApiError> {
        let found = self.integer(key, low.max(0), high)?;
        // Within the bounds, hence not negative.
        Ok(found.and_then(|n| usize::try_from(n).ok()))
    }

    /// An array.
    pub(crate) fn array(&mut self, key: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong(&self.name(key), "an array", &other)),
        }
    }

    /// An object.
    pub(crate) fn object(&mut self, key: &str) -> Result<Option<Self>, ApiError> {
        let name = self.name(key);
        self.take(key).map(|v| Self::of(name, v)).transpose()
    }

    /// What is left, whatever it is.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.map
    }

    /// Refuses whatever nobody took.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(key) => {
                let name = self.name(key);
                Err(ApiError::field(name, "this server knows no such field").code("unknown_field"))
            }
        }
    }
}

/// A number that f32 can hold.
pub(crate) fn number(name: &str, value: &Value) -> Result<f32, ApiError> {
    let found = value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
    found.ok_or_else(|| wrong(name, "a finite number", value))
}

/// A value of another type than expected. Its content stays out of the message.
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
        Fields::body(text.as_bytes()).unwrap()
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
            "g: expected a finite number, found a number"
        );
        assert_eq!(f.finish().unwrap_err().param.as_deref(), Some("h"));
    }

    #[test]
    fn null_is_missing_and_what_is_no_object_is_refused() {
        let mut f = fields(r#"{"a": null}"#);
        assert_eq!(f.string("a").unwrap(), None);
        f.finish().unwrap();
        for body in ["[1]", "", "{", "nul", "\"x\""] {
            assert!(Fields::body(body.as_bytes()).is_err(), "{body}");
        }
        let deep = "[".repeat(100_000);
        assert!(Fields::body(format!("{{\"a\":{deep}").as_bytes()).is_err());
    }
}

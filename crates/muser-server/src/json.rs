//! Parses the JSON of requests, and refuses objects that have a key twice.
//!
//! Readers differ in which value of a repeated key they take: a proxy before this
//! server may have checked the other one. So it is refused, like everything that can
//! be read in two ways.

use crate::error::{ApiError, shown};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::collections::HashSet;
use std::fmt;

/// Parses the JSON text of a request's body.
///
/// # Errors
/// 400 for what is no JSON, is nested deeper than the reader goes, or has a key
/// twice.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    let refused = |e: serde_json::Error| ApiError::invalid(format!("the body is not JSON: {e}"));
    let value: Value = serde_json::from_slice(bytes).map_err(refused)?;
    // The text is JSON, so the only reason left is a key that occurs twice.
    let twice = |e: serde_json::Error| ApiError::invalid(format!("the body: {e}"));
    serde_json::from_slice::<Unique>(bytes).map_err(twice)?;
    Ok(value)
}

/// Checks, while a JSON value is read, that no object in it has a key twice; keeps
/// nothing of the value.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Self)
    }
}

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = Self;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element_seed(Self)?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = items.next_key::<String>()? {
            items.next_value_seed(Self)?;
            if let Some(key) = seen.replace(key) {
                let key = shown(&key);
                return Err(A::Error::custom(format!(
                    "expected each key once, found {key:?} twice"
                )));
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_twice_is_refused_wherever_it_is() {
        for text in [
            r#"{"a": 1, "a": 1}"#,
            r#"{"a": [{"b": 1, "c": {}, "b": null}]}"#,
            r#"{"a": 1, "\u0061": 2}"#,
        ] {
            let error = parse(text.as_bytes()).unwrap_err().message;
            assert!(error.contains("expected each key once, found"), "{error}");
        }
        let same = r#"{"a": {"a": [1.5, -2, true, null, "a", {"a": 18446744073709551615}]}}"#;
        parse(same.as_bytes()).unwrap();
    }
}

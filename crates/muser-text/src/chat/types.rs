//! Sets of JSON types, for the types that a tool's parameter takes.

use serde_json::Value;

/// A set of JSON types: null, boolean, integer, fraction, string, array, object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    /// The set with the one JSON type `null`.
    pub const NULL: Self = Self(1);
    /// The set with the one JSON type boolean: `true` and `false`.
    pub const BOOLEAN: Self = Self(2);
    /// The set with the one JSON type of integers: numbers without a fraction.
    pub const INTEGER: Self = Self(4);
    /// The set with the one JSON type of fractions: numbers that are not whole.
    pub const FRACTION: Self = Self(8);
    /// The set with the one JSON type string.
    pub const STRING: Self = Self(16);
    /// The set with the one JSON type array.
    pub const ARRAY: Self = Self(32);
    /// The set with the one JSON type object.
    pub const OBJECT: Self = Self(64);
    /// The empty set of JSON types.
    pub const NONE: Self = Self(0);
    /// The set of all JSON types.
    pub const ALL: Self = Self(127);
    /// The set of the JSON types of numbers: integers and fractions.
    pub const NUMBER: Self = Self(12);

    /// Returns the JSON types that are in both sets.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the JSON types that are in at least one of the two sets.
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether the two sets of JSON types have a type in common.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the JSON type of a value, as a set of one type. A number whose fraction
    /// is zero is an integer, as in JSON Schema.
    pub fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(n) => match n.as_f64().is_some_and(|f| f.fract() == 0.0) {
                true => Self::INTEGER,
                false => Self::FRACTION,
            },
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// Returns the set of types that JSON Schema calls by this name, such as `number`;
    /// `None` for a name that it does not define.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => return None,
        })
    }
}

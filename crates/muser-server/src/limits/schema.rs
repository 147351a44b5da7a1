//! Checks the size of JSON schemas in requests before grammars are made of them.

use crate::error::ApiError;
use serde_json::Value;

/// Limits of the JSON schemas in a request: those of `response_format` and of tools'
/// parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaLimits {
    /// The most bytes of a request's JSON schema.
    pub bytes: usize,
    /// The deepest nesting of objects and arrays in a JSON schema.
    pub depth: usize,
    /// The most values in a JSON schema, of all kinds: objects, arrays, numbers,
    /// strings.
    pub nodes: usize,
    /// The most names in one object of a JSON schema (properties, definitions), and in
    /// one `required`.
    pub properties: usize,
    /// The most bytes of all member names of a JSON schema together.
    pub name_bytes: usize,
    /// The most values of one `enum` of a JSON schema.
    pub values: usize,
    /// The most bytes of the strings in one `enum` or `const` of a JSON schema.
    pub value_bytes: usize,
    /// The largest `minItems` of a JSON schema; also the most items of an array that
    /// has no smaller `maxItems`.
    pub items: usize,
    /// The largest `minLength` of a JSON schema, in characters.
    pub length: usize,
    /// The most bytes of one `pattern` of a JSON schema.
    pub pattern_bytes: usize,
    /// The most steps of one `pattern` of a JSON schema with its repetitions written
    /// out.
    pub pattern_steps: u64,
    /// The most rules and symbols of the grammar that a JSON schema is compiled into.
    pub rules: usize,
    /// The most bytes of the JSON schemas of all tools of one request together.
    pub tools_bytes: usize,
}

impl Default for SchemaLimits {
    fn default() -> Self {
        Self {
            bytes: 256 << 10,
            depth: 64,
            nodes: 20_000,
            properties: 512,
            name_bytes: 64 << 10,
            values: 1000,
            value_bytes: 64 << 10,
            items: 1024,
            length: 65_536,
            pattern_bytes: 1024,
            pattern_steps: 4096,
            rules: 20_000,
            tools_bytes: 1 << 20,
        }
    }
}

/// A value that the walk over a JSON schema visits, and how it was reached.
struct Step<'v> {
    value: &'v Value,
    depth: usize,
    /// The index of the walk's step that visits the enclosing value; `None` for the
    /// schema's root.
    from: Option<usize>,
    key: Key<'v>,
}

#[derive(Clone, Copy)]
enum Key<'v> {
    Root,
    Name(&'v str),
    Place(usize),
}

impl SchemaLimits {
    /// Refuses a JSON schema that exceeds one of the limits. The walk does not recurse,
    /// so it can come before code that does.
    ///
    /// # Errors
    /// The place, what is allowed there and what was found.
    pub(crate) fn check(&self, param: &str, schema: &Value) -> Result<(), ApiError> {
        self.measure(param, schema).map(|_| ())
    }

    /// Checks a JSON schema like [`SchemaLimits::check`], and returns roughly how many
    /// bytes of JSON it takes.
    fn measure(&self, param: &str, schema: &Value) -> Result<usize, ApiError> {
        let mut steps = vec![Step {
            value: schema,
            depth: 0,
            from: None,
            key: Key::Root,
        }];
        let (mut bytes, mut names) = (0, 0);
        let mut next = 0;
        while let Some(&Step {
            value, depth, key, ..
        }) = steps.get(next)
        {
            let refused = |what: &str, most: usize, found: usize| {
                let at = path(param, &steps, next);
                too_much(at, what, most, found)
            };
            if depth > self.depth {
                return Err(refused("levels inside each other", self.depth, depth));
            }
            bytes += match value {
                Value::String(text) => text.len() + 2,
                Value::Null | Value::Bool(_) | Value::Number(_) => 8,
                Value::Array(all) => all.len() + 2,
                Value::Object(all) => {
                    names += all.keys().map(String::len).sum::<usize>();
                    all.keys().map(|k| k.len() + 4).sum()
                }
            };
            if bytes > self.bytes {
                return Err(too_much(param.to_owned(), "bytes", self.bytes, bytes));
            }
            if names > self.name_bytes {
                let what = "bytes of names";
                return Err(too_much(param.to_owned(), what, self.name_bytes, names));
            }
            if let Some(Err((what, most, found))) = name(key).map(|n| self.word(n, value)) {
                return Err(refused(what, most, found));
            }
            let more = match value {
                Value::Array(all) => all.len(),
                Value::Object(all) if all.len() > self.properties => {
                    return Err(refused("names", self.properties, all.len()));
                }
                Value::Object(all) => all.len(),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
            };
            if steps.len() + more > self.nodes {
                let found = steps.len() + more;
                return Err(too_much(
                    param.to_owned(),
                    "values in all",
                    self.nodes,
                    found,
                ));
            }
            let step = |key, value| Step {
                value,
                depth: depth + 1,
                from: Some(next),
                key,
            };
            match value {
                Value::Array(all) => {
                    let each = all.iter().enumerate();
                    steps.extend(each.map(|(i, v)| step(Key::Place(i), v)));
                }
                Value::Object(all) => {
                    steps.extend(all.iter().map(|(k, v)| step(Key::Name(k), v)));
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
            next += 1;
        }
        Ok(bytes)
    }

    /// Checks the limit of one schema keyword, if its value has the keyword's type: a
    /// property of the same name may hold anything.
    fn word(&self, word: &str, value: &Value) -> Result<(), (&'static str, usize, usize)> {
        let within = |what, most, found| match found > most {
            true => Err((what, most, found)),
            false => Ok(()),
        };
        let number = || value.as_f64().map_or(0, |f| f as usize);
        match (word, value) {
            ("enum", Value::Array(all)) => {
                within("values", self.values, all.len())?;
                let texts = all.iter().filter_map(Value::as_str);
                let bytes = texts.map(str::len).sum();
                within("bytes of values", self.value_bytes, bytes)
            }
            ("const", Value::String(text)) => within("bytes", self.value_bytes, text.len()),
            ("required", Value::Array(all)) => within("names", self.properties, all.len()),
            ("pattern", Value::String(text)) => within("bytes", self.pattern_bytes, text.len()),
            ("minItems", Value::Number(_)) => within("items", self.items, number()),
            ("minLength", Value::Number(_)) => within("characters", self.length, number()),
            _ => Ok(()),
        }
    }

    /// Refuses a request's tools if the schema of one, or those of all together, are
    /// too large.
    pub(crate) fn check_tools<'v>(
        &self,
        field: &str,
        schemas: impl Iterator<Item = (String, &'v Value)>,
    ) -> Result<(), ApiError> {
        let mut all = 0;
        for (place, schema) in schemas {
            all += self.measure(&place, schema)?;
            if all > self.tools_bytes {
                return Err(too_much(field.to_owned(), "bytes", self.tools_bytes, all));
            }
        }
        Ok(())
    }
}

fn name(key: Key<'_>) -> Option<&str> {
    match key {
        Key::Name(name) => Some(name),
        Key::Root | Key::Place(_) => None,
    }
}

fn too_much(at: String, what: &str, most: usize, found: usize) -> ApiError {
    let at = at.chars().take(200).collect::<String>();
    ApiError::field(at, format!("expected at most {most} {what}, found {found}"))
}

/// Returns the path of a visited value in the JSON schema, such as
/// `schema.properties.a.items[0]`.
fn path(param: &str, steps: &[Step<'_>], at: usize) -> String {
    let mut keys = Vec::new();
    let mut at = Some(at);
    while let Some(i) = at {
        keys.push(steps[i].key);
        at = steps[i].from;
    }
    let mut path = param.to_owned();
    for key in keys.into_iter().rev() {
        match key {
            Key::Root => {}
            Key::Name(name) => {
                path.push('.');
                path.extend(name.chars().take(64));
            }
            Key::Place(i) => path.push_str(&format!("[{i}]")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(schema: &Value) -> (String, String) {
        let error = SchemaLimits::default().check("s", schema).unwrap_err();
        (error.param.unwrap_or_default(), error.message)
    }

    #[test]
    fn each_bound_is_named_with_its_place() {
        let names = |n: usize| -> Value {
            let each = (0..n).map(|i| (format!("p{i}"), json!(true)));
            Value::Object(each.collect())
        };
        let mut deep = json!({});
        for _ in 0..70 {
            deep = json!({"items": deep});
        }
        assert!(refused(&deep).1.contains("at most 64 levels"));
        let (at, why) = refused(&json!({"properties": names(7000)}));
        assert_eq!(at, "s.properties");
        assert!(
            why.ends_with("expected at most 512 names, found 7000"),
            "{why}"
        );
        for (schema, at) in [
            (json!({"const": names(10_000)}), "s.const"),
            (json!({"required": vec!["a"; 50_000]}), "s.required"),
            (json!({"enum": vec!["a"; 2000]}), "s.enum"),
            (json!({"const": "x".repeat(70_000)}), "s.const"),
            (json!({"enum": ["x".repeat(70_000)]}), "s.enum"),
            (
                json!({"items": [{"pattern": "a".repeat(2000)}]}),
                "s.items[0].pattern",
            ),
            (json!({"minItems": 2_000_000}), "s.minItems"),
            (json!({"default": vec![0; 30_000]}), "s"),
            (json!({"description": "x".repeat(300_000)}), "s"),
        ] {
            assert_eq!(refused(&schema).0, at);
        }
    }

    #[test]
    fn ordinary_schemas_pass_and_properties_may_have_the_names_of_words() {
        let schema = json!({"type": "object", "properties": {
            "enum": {"type": "string"}, "pattern": {"type": "string", "pattern": "^a$"},
            "required": {"type": "array", "items": {"type": "string"}}
        }});
        SchemaLimits::default().check("s", &schema).unwrap();
    }

    #[test]
    fn all_tools_together_are_bounded() {
        let large = json!({"description": "x".repeat(200_000)});
        let all = std::iter::repeat_n(("t".to_owned(), &large), 6);
        let error = SchemaLimits::default().check_tools("tools", all);
        assert_eq!(error.unwrap_err().param.as_deref(), Some("tools"));
    }
}

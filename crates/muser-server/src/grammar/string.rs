//! Writes the strings that a JSON schema allows as terminals: by length, pattern and
//! format.

use super::pattern::{Writing, expression};
use super::schema::Refusal;
use serde_json::{Map, Value};

/// The most characters of a string in a value for which the JSON schema allows
/// anything.
const FREE: u64 = 512;

/// The most characters of a string whose `maxLength` in the JSON schema is larger
/// still.
const LONGEST: u64 = 65_536;

/// Regular expressions of the values of `format` that are enforced; any other `format`
/// is ignored. They contain no character that JSON has to escape.
const FORMATS: [(&str, &str); 9] = [
    (
        "date-time",
        "DATE[T](([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])(\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    ),
    ("date", "DATE"),
    (
        "time",
        "(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])(\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    ),
    (
        "duration",
        "P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}[HMS])?|[0-9]{1,4}Y([0-9]{1,4}M)?|T[0-9]{1,4}H([0-9]{1,4}M)?|T[0-9]{1,4}[MS])",
    ),
    (
        "email",
        "[a-zA-Z0-9_+-]{1,20}(\\.[a-zA-Z0-9_+-]{1,20}){0,2}@([a-zA-Z0-9]([a-zA-Z0-9-]{0,20}[a-zA-Z0-9])?\\.){1,3}[a-zA-Z]{2,12}",
    ),
    (
        "uuid",
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    ),
    ("ipv4", "(BYTE\\.){3}BYTE"),
    (
        "ipv6",
        "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|::(([0-9a-f]{1,4}:){0,5}[0-9a-f]{1,4})?",
    ),
    (
        "hostname",
        "([a-zA-Z0-9]([a-zA-Z0-9-]{0,20}[a-zA-Z0-9])?\\.){0,4}[a-zA-Z]([a-zA-Z0-9-]{0,20}[a-zA-Z0-9])?",
    ),
];

/// The regular expression of a date that exists in every year: never the 29th of
/// February.
const DATE: &str = "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
const BYTE: &str = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";

/// Returns the regular expression of an enforced `format`; `None` if the format is
/// ignored.
fn format(name: &str) -> Option<String> {
    let found = FORMATS.iter().find(|(known, _)| *known == name);
    // Of all URIs only addresses of http and https are written.
    let uri = "https?://([a-zA-Z0-9]([a-zA-Z0-9-]{0,20}[a-zA-Z0-9])?\\.){1,4}[a-zA-Z]{2,12}(:[1-9][0-9]{1,3})?(/[a-zA-Z0-9._~=+-]{0,40}){0,8}([?][a-zA-Z0-9._~=&+-]{0,80})?";
    let text = match (name, found) {
        ("uri" | "url", _) => uri,
        (_, Some((_, text))) => text,
        (_, None) => return None,
    };
    let text = text.replace("DATE", DATE).replace("BYTE", BYTE);
    Some(text.replace('/', "\\/"))
}

/// Returns the regular expressions of a string schema, without quotes: the string has
/// to fit all of them. Empty if any text fits.
pub(super) fn conditions(
    words: &Map<String, Value>,
    writing: Writing,
    most_steps: u64,
    at: &str,
) -> Result<Vec<String>, Refusal> {
    let mut all = Vec::new();
    if let Some(pattern) = words.get("pattern") {
        let refused = |reason| Refusal::new(format!("{at}.pattern"), reason);
        let Value::String(pattern) = pattern else {
            return Err(refused("expected a string".to_owned()));
        };
        all.push(expression(pattern, writing, most_steps).map_err(refused)?);
    }
    let name = words.get("format").and_then(Value::as_str);
    if let Some(text) = name.and_then(format) {
        all.push(format!("({text})"));
    }
    let least = length(words, "minLength", at)?;
    let most = length(words, "maxLength", at)?.map(|most| most.min(LONGEST));
    let any = writing.any();
    match (least.unwrap_or(0), most) {
        (0, None) => {}
        (least, None) => all.push(format!("{any}{{{least},}}")),
        (least, Some(most)) if least <= most => all.push(format!("{any}{{{least},{most}}}")),
        (least, Some(most)) => {
            let reason = format!("expected at least minLength, {least}, found {most}");
            return Err(Refusal::new(format!("{at}.maxLength"), reason));
        }
    }
    Ok(all)
}

/// Reads a keyword that is a length or a count (`minLength`, `maxItems`, …); `None` if
/// it is absent.
///
/// # Errors
/// No whole number from zero on.
pub(super) fn length(
    words: &Map<String, Value>,
    word: &str,
    at: &str,
) -> Result<Option<u64>, Refusal> {
    let Some(value) = words.get(word) else {
        return Ok(None);
    };
    // For JSON schema 3.0 is a whole number as well.
    let float = value
        .as_f64()
        .filter(|f| f.fract() == 0.0 && *f >= 0.0 && *f < 1e15);
    let found = value.as_u64().or(float.map(|f| f as u64));
    found.map(Some).ok_or_else(|| {
        let reason = format!("expected a whole number from 0 on, found {value}");
        Refusal::new(format!("{at}.{word}"), reason)
    })
}

/// Returns the terminal expression of a JSON string, with its quotes, that fits all
/// these conditions.
pub(super) fn quoted(conditions: &[String]) -> String {
    if conditions.is_empty() {
        return format!("/\"{}*\"/", Writing::Json.any());
    }
    let each = conditions.iter().map(|c| format!("/\"{c}\"/"));
    each.collect::<Vec<_>>().join(" & ")
}

/// Returns the terminal expression of any JSON string of limited length, with its
/// quotes.
pub(super) fn free() -> String {
    format!("/\"{}{{0,{FREE}}}\"/", Writing::Json.any())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn words(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn lengths_are_whole_and_in_order() {
        let of = |value| conditions(&words(value), Writing::Plain, 99, "s");
        let ok = of(json!({"minLength": 1.0, "maxLength": 3})).unwrap();
        assert_eq!(ok, ["(?s:.){1,3}"]);
        for bad in [json!({"minLength": -1}), json!({"maxLength": "3"})] {
            assert!(of(bad).is_err());
        }
        let order = of(json!({"minLength": 5, "maxLength": 3})).unwrap_err();
        assert_eq!(order.at, "s.maxLength");
    }

    #[test]
    fn an_unknown_format_is_an_annotation() {
        let of = |value| conditions(&words(value), Writing::Plain, 99, "s").unwrap();
        assert!(of(json!({"format": "ipvanyaddress"})).is_empty());
        assert_eq!(of(json!({"format": "date"})).len(), 1);
    }
}

//! Reads the form that an answer has to have, under all names of the field: a JSON
//! schema, a regular expression, or a choice of texts.

use super::App;
use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use crate::grammar::{Draft, Form};
use crate::limits::work::Work;
use crate::scheduler::{Request, Task};
use serde_json::{Map, Value, json};

/// The most bytes of a request's regular expression.
const MOST_PATTERN: usize = 4096;
/// The most texts that a request may list as the possible answers, for `guided_choice`.
const MOST_CHOICES: usize = 1024;
/// The most bytes of all texts together that a request lists as the possible answers.
const MOST_CHOICE_BYTES: usize = 64 << 10;

/// The form that an answer has to have, and the request's field that asks for it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Constraint {
    pub(super) param: String,
    pub(super) form: Form,
}

/// Reads every field of a request that can ask for a form of the answer; at most one form
/// may be asked for.
pub(super) fn read(f: &mut Fields) -> Result<Option<Constraint>, ApiError> {
    let mut all = vec![response_format(f)?];
    for name in ["json_schema", "guided_json"] {
        all.push(json_form(f, name)?);
    }
    for name in ["regex", "guided_regex"] {
        all.push(pattern(f, name)?);
    }
    all.push(choice(f, "guided_choice")?);
    all.extend(structured_outputs(f)?);
    let mut found = all.into_iter().flatten();
    let (first, second) = (found.next(), found.next());
    match (&first, second) {
        (Some(first), Some(second)) if first.form != second.form => {
            let reason = format!("expected one form of the answer, found {} too", first.param);
            Err(ApiError::field(second.param, reason))
        }
        _ => Ok(first),
    }
}

/// Reads `response_format`, OpenAI's field for the form of an answer; as in llama.cpp,
/// its type `json_object` may have a schema.
fn response_format(f: &mut Fields) -> Result<Option<Constraint>, ApiError> {
    let Some(mut format) = f.object("response_format")? else {
        return Ok(None);
    };
    let schema = match format.string("type")?.as_deref() {
        Some("text") => None,
        Some("json_object") => {
            let schema = format.take("schema").map(|schema| (".schema", schema));
            Some(schema.unwrap_or_else(|| ("", json!({"type": "object"}))))
        }
        Some("json_schema") => Some(match format.object("json_schema")? {
            Some(mut inner) => {
                inner.string("name")?;
                inner.string("description")?;
                // Decoding always follows the schema strictly.
                inner.flag("strict")?;
                let schema = inner.require("schema")?;
                inner.finish()?;
                (".json_schema.schema", schema)
            }
            // Some clients put `schema` here instead of into `json_schema`.
            None => {
                format.string("name")?;
                format.flag("strict")?;
                let missing = format.name("json_schema");
                let missing = ApiError::field(missing, "expected an object, found none");
                (".schema", format.take("schema").ok_or(missing)?)
            }
        }),
        _ => {
            let reason = "expected text, json_object or json_schema";
            return Err(ApiError::field("response_format.type", reason));
        }
    };
    format.finish()?;
    Ok(schema.map(|(place, schema)| Constraint {
        param: format!("response_format{place}"),
        form: Form::Json(schema),
    }))
}

/// Reads a JSON schema that is given as an object, or as the text of one.
fn json_form(f: &mut Fields, name: &str) -> Result<Option<Constraint>, ApiError> {
    let param = f.name(name);
    let schema = match f.take(name) {
        None => return Ok(None),
        Some(schema @ Value::Object(_)) => schema,
        Some(Value::String(text)) => {
            let schema = serde_json::from_str::<Map<String, Value>>(&text);
            let reason = |e| ApiError::field(&param, format!("expected a JSON schema: {e}"));
            schema.map_err(reason)?.into()
        }
        Some(other) => return Err(wrong(&param, "a JSON schema", &other)),
    };
    let form = Form::Json(schema);
    Ok(Some(Constraint { param, form }))
}

fn pattern(f: &mut Fields, name: &str) -> Result<Option<Constraint>, ApiError> {
    let param = f.name(name);
    let Some(pattern) = f.string(name)? else {
        return Ok(None);
    };
    if pattern.is_empty() || pattern.len() > MOST_PATTERN {
        let found = pattern.len();
        let reason = format!("expected 1 to {MOST_PATTERN} bytes, found {found}");
        return Err(ApiError::field(param, reason));
    }
    let form = Form::Pattern(pattern);
    Ok(Some(Constraint { param, form }))
}

fn choice(f: &mut Fields, name: &str) -> Result<Option<Constraint>, ApiError> {
    let param = f.name(name);
    let Some(items) = f.array(name)? else {
        return Ok(None);
    };
    if items.is_empty() || items.len() > MOST_CHOICES {
        let reason = format!("expected 1 to {MOST_CHOICES} texts, found {}", items.len());
        return Err(ApiError::field(param, reason));
    }
    let texts = super::params::strings(&param, items)?;
    let bytes: usize = texts.iter().map(String::len).sum();
    if bytes > MOST_CHOICE_BYTES {
        let reason = format!("expected at most {MOST_CHOICE_BYTES} bytes in all, found {bytes}");
        return Err(ApiError::field(param, reason));
    }
    if let Some(i) = texts.iter().position(String::is_empty) {
        let reason = "expected a text, found an empty one";
        return Err(ApiError::field(format!("{param}[{i}]"), reason));
    }
    let form = Form::Choice(texts);
    Ok(Some(Constraint { param, form }))
}

/// Reads `structured_outputs`, vLLM's object, in which the form of the answer has a short
/// name.
fn structured_outputs(f: &mut Fields) -> Result<Vec<Option<Constraint>>, ApiError> {
    let Some(mut inner) = f.object("structured_outputs")? else {
        return Ok(Vec::new());
    };
    let mut all = vec![
        json_form(&mut inner, "json")?,
        pattern(&mut inner, "regex")?,
        choice(&mut inner, "choice")?,
    ];
    if inner.flag("json_object")? == Some(true) {
        all.push(Some(Constraint {
            param: inner.name("json_object"),
            form: Form::Json(json!({"type": "object"})),
        }));
    }
    for other in ["grammar", "structural_tag", "whitespace_pattern"] {
        if inner.take(other).is_some() {
            let reason = "this server does not do that: expected json, regex or choice";
            let error = ApiError::field(inner.name(other), reason);
            return Err(error.code("unsupported_field"));
        }
    }
    // These fields choose how to decode, and do not change the result.
    inner.drop_all(&[
        "_backend",
        "_backend_was_auto",
        "backend",
        "disable_fallback",
        "disable_any_whitespace",
        "disable_additional_properties",
    ]);
    inner.finish()?;
    Ok(all)
}

impl Constraint {
    /// Makes the grammar, not yet compiled, of an answer of this form: in a chat with the
    /// markup of the chat format, and after reasoning if it may `reason` first.
    pub(super) fn draft(&self, app: &App, chat: bool, reason: bool) -> Result<Draft, ApiError> {
        let grammars = app.grammars()?;
        grammars.answer(&self.param, &self.form, chat, reason)
    }
}

/// Compiles the grammar that a request's answers have to match; gives up at the request's
/// deadline.
pub(super) async fn admit(
    app: &App,
    work: &Work,
    draft: Option<Draft>,
    request: &mut Request,
) -> Result<(), ApiError> {
    let (Some(draft), Task::Generate(generate)) = (draft, &mut request.task) else {
        return Ok(());
    };
    let admitted = app.grammars()?.clone().admit(work.client, draft);
    generate.grammar = Some(tokio::select! {
        grammar = admitted => grammar?,
        () = work.expired() => return Err(ApiError::deadline()),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::UnknownFields;

    fn form(text: &str) -> Result<Option<Form>, ApiError> {
        let mut f = Fields::body(text.as_bytes(), UnknownFields::Refuse).unwrap();
        let found = read(&mut f)?;
        f.finish()?;
        Ok(found.map(|c| c.form))
    }

    #[test]
    fn a_schema_goes_by_many_names() {
        for text in [
            r#"{"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}}"#,
            r#"{"response_format": {"type": "json_schema", "schema": {"a": 1}}}"#,
            r#"{"response_format": {"type": "json_object", "schema": {"a": 1}}}"#,
            r#"{"json_schema": {"a": 1}}"#,
            r#"{"json_schema": "{\"a\": 1}"}"#,
            r#"{"guided_json": {"a": 1}}"#,
            r#"{"structured_outputs": {"json": {"a": 1}}}"#,
            r#"{"structured_outputs": {"json": {"a": 1}}, "guided_json": {"a": 1}}"#,
        ] {
            assert_eq!(
                form(text).unwrap(),
                Some(Form::Json(json!({"a": 1}))),
                "{text}"
            );
        }
        for text in [
            r#"{"regex": "a+"}"#,
            r#"{"structured_outputs": {"regex": "a+"}}"#,
        ] {
            assert_eq!(form(text).unwrap(), Some(Form::Pattern("a+".to_owned())));
        }
        assert_eq!(
            form(r#"{"response_format": {"type": "text"}}"#).unwrap(),
            None
        );
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        for (text, param) in [
            (r#"{"regex": "a", "guided_choice": ["a"]}"#, "guided_choice"),
            (r#"{"regex": ""}"#, "regex"),
            (r#"{"guided_choice": []}"#, "guided_choice"),
            (r#"{"guided_choice": ["a", ""]}"#, "guided_choice[1]"),
            (r#"{"guided_choice": ["a", 2]}"#, "guided_choice[1]"),
            (r#"{"guided_json": 4}"#, "guided_json"),
            (r#"{"guided_json": "{"}"#, "guided_json"),
            (
                r#"{"structured_outputs": {"grammar": "x"}}"#,
                "structured_outputs.grammar",
            ),
            (
                r#"{"structured_outputs": {"x": 1}}"#,
                "structured_outputs.x",
            ),
        ] {
            let error = form(text).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{text}");
        }
    }
}

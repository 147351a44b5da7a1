//! Python's functions and filters that chat templates expect from their engine, beyond
//! the methods of Python's types.

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, State};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::guard::{Excess, ValueLimit};

/// The most spaces by which a chat template's filter `tojson` may indent JSON. Without
/// a bound, a template could ask for a terabyte of spaces.
const MAX_INDENT: usize = 64;
/// The most bytes that the date format given to a template's `strftime_now` may have.
const MAX_DATE_FORMAT: usize = 256;

/// The error of a chat template that calls `raise_exception`: the message that it
/// gives.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Raised(pub(crate) String);

/// Adds Python's functions and filters to a template's environment. `now` is the time
/// in seconds since 1970 that `strftime_now` reads; `None` reads the clock.
pub(crate) fn install(environment: &mut Environment<'_>, now: Option<i64>, limit: ValueLimit) {
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
        },
    );
    environment.add_function("strftime_now", move |format: &str| date(format, now));
    environment.add_filter(
        "tojson",
        move |state: &State<'_, '_>, value: Value, indent: Option<Value>, options: Kwargs| {
            let text = json(&value, indent, &options, limit)?;
            state.consume_fuel(text.len() as u64 / 16)?;
            Ok::<_, Error>(text)
        },
    );
}

/// Formats the current date for a chat template, in UTC: a prompt must not depend on
/// the machine's time zone.
fn date(format: &str, now: Option<i64>) -> Result<String, Error> {
    let invalid = |reason: String| Error::new(ErrorKind::InvalidOperation, reason);
    if format.len() > MAX_DATE_FORMAT {
        let reason = format!("a date format has at most {MAX_DATE_FORMAT} bytes");
        return Err(invalid(reason));
    }
    let now = match now {
        None => jiff::Timestamp::now(),
        Some(seconds) => {
            jiff::Timestamp::from_second(seconds).map_err(|error| invalid(error.to_string()))?
        }
    };
    let now = now.to_zoned_datetime(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now).map_err(|error| invalid(error.to_string()))
}

/// Writes JSON as `json.dumps(value, ensure_ascii=False)` does, which is Hugging
/// Face's `tojson`: `, ` and `: ` between items, no escapes for HTML (the engine's
/// own filter has them), keys in the order of insertion.
fn json(
    value: &Value,
    indent: Option<Value>,
    options: &Kwargs,
    limit: ValueLimit,
) -> Result<String, Error> {
    let failed = |reason: String| Error::new(ErrorKind::InvalidOperation, reason);
    if value.is_undefined() {
        return Err(Error::new(
            ErrorKind::UndefinedError,
            "tojson of an undefined value",
        ));
    }
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    let ensure_ascii = options
        .get::<Option<bool>>("ensure_ascii")?
        .unwrap_or(false);
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    options.assert_all_used()?;

    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(usize::try_from(indent)?),
    };
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        return Err(failed(format!("tojson indents by at most {MAX_INDENT}")));
    }
    let layout = Layout::new(indent, separators)?;
    let out = Bounded {
        text: Vec::new(),
        limit: limit.bytes(),
    };
    let mut serializer = Serializer::with_formatter(out, layout);
    let written = if sort_keys {
        let mut value = serde_json::to_value(value).map_err(|error| failed(error.to_string()))?;
        value.sort_all_objects();
        value.serialize(&mut serializer)
    } else {
        value.serialize(&mut serializer)
    };
    written.map_err(|error| {
        if error.is_io() {
            Error::from(Excess::Bytes(limit.bytes()))
        } else {
            failed(error.to_string())
        }
    })?;
    let text = String::from_utf8(serializer.into_inner().text)
        .map_err(|error| failed(error.to_string()))?;
    Ok(if ensure_ascii { escaped(&text) } else { text })
}

/// Escapes all characters beyond ASCII in a JSON text, where they occur in strings
/// only.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    }
    out
}

/// A buffer of bounded size for the JSON that a template writes: indentation and
/// escapes can make the text longer than the bound of the value itself allows for.
struct Bounded {
    text: Vec<u8>,
    limit: u64,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.text.len() as u64 + bytes.len() as u64 > self.limit {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Python's layout of JSON: its indentation and separators.
struct Layout {
    /// Number of spaces by which each level of the JSON is indented; `None` keeps
    /// everything on one line.
    indent: Option<usize>,
    depth: usize,
    has_value: bool,
    item: String,
    key: String,
}

impl Layout {
    fn new(indent: Option<usize>, separators: Option<Vec<String>>) -> Result<Self, Error> {
        let usual = if indent.is_some() { "," } else { ", " };
        let [item, key] = match separators {
            None => [usual.to_owned(), ": ".to_owned()],
            Some(given) => <[String; 2]>::try_from(given).map_err(|given| {
                let reason = format!("tojson takes 2 separators, not {}", given.len());
                Error::new(ErrorKind::InvalidOperation, reason)
            })?,
        };
        Ok(Self {
            indent,
            depth: 0,
            has_value: false,
            item,
            key,
        })
    }

    fn new_line<W: ?Sized + std::io::Write>(&self, out: &mut W) -> std::io::Result<()> {
        let Some(indent) = self.indent else {
            return Ok(());
        };
        out.write_all(b"\n")?;
        for _ in 0..self.depth {
            out.write_all(&[b' '; MAX_INDENT][..indent])?;
        }
        Ok(())
    }

    fn open<W: ?Sized + std::io::Write>(&mut self, out: &mut W, open: u8) -> std::io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        out.write_all(&[open])
    }

    fn close<W: ?Sized + std::io::Write>(&mut self, out: &mut W, close: u8) -> std::io::Result<()> {
        self.depth -= 1;
        if self.has_value {
            self.new_line(out)?;
        }
        self.has_value = true;
        out.write_all(&[close])
    }

    fn next<W: ?Sized + std::io::Write>(&self, out: &mut W, first: bool) -> std::io::Result<()> {
        if !first {
            out.write_all(self.item.as_bytes())?;
        }
        self.new_line(out)
    }
}

impl Formatter for Layout {
    fn begin_array<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        self.open(out, b'[')
    }

    fn end_array<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        self.close(out, b']')
    }

    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.next(out, first)
    }

    fn end_array_value<W: ?Sized + std::io::Write>(&mut self, _: &mut W) -> std::io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        self.open(out, b'{')
    }

    fn end_object<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        self.close(out, b'}')
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.next(out, first)
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
    ) -> std::io::Result<()> {
        out.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + std::io::Write>(&mut self, _: &mut W) -> std::io::Result<()> {
        self.has_value = true;
        Ok(())
    }
}

//! Writes the numbers that a JSON schema allows as regular expressions, exact to the
//! digit.
//!
//! Bounds of whole numbers are computed in 128-bit integers, others on their decimal
//! digits; none passes through a float. Without bounds an integer has at most 18
//! digits, so that it fits 64 bits, and any other number at most 15 before and 15 after
//! the point, so that an answer ends.

use super::digits::{range, unsigned};
use serde_json::{Number, Value};
use std::fmt::Write as _;

/// The largest magnitude of an integer for which the schema sets no bound.
const WHOLE: i128 = 999_999_999_999_999_999;
/// 2^53: below it a double holds every whole number exactly.
const EXACT: u64 = 1 << 53;
/// The most digits after the point of a number for which the schema sets no bounds.
const PLACES: usize = 15;
/// The largest `multipleOf` for the integers of a JSON schema that constrained decoding
/// can enforce.
const MOST_MULTIPLE: u64 = 1024;
/// The most different endings after the point (`.25`, `.5`, `.75`) that the multiples
/// of a fractional `multipleOf` may have.
const MOST_ENDINGS: u64 = 1000;

/// The bounds and `multipleOf` that a JSON schema sets for a number.
#[derive(Debug, Default)]
pub(super) struct Asked<'a> {
    pub(super) minimum: Option<&'a Value>,
    pub(super) exclusive_minimum: Option<&'a Value>,
    pub(super) maximum: Option<&'a Value>,
    pub(super) exclusive_maximum: Option<&'a Value>,
    pub(super) multiple: Option<&'a Value>,
}

/// How the grammar writes the numbers that fit a schema.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Written {
    /// Nothing is written: no number fits the schema.
    Nothing,
    /// The numbers are a terminal of the grammar, with this regular expression.
    Terminal(String),
    /// The grammar library itself makes the rules of the numbers, from this JSON
    /// schema.
    Json(Value),
}

/// Why constrained decoding cannot enforce the bounds of a number: the schema's
/// keyword, and the reason.
pub(super) type Unfit = (&'static str, String);

/// A decimal number as its sign, the digits before the point (no leading zeros) and
/// those after it (no trailing zeros).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    whole: String,
    part: String,
}

/// Reads the number of a schema's keyword into decimal digits without losing one.
///
/// # Errors
/// Not a number, or one that JSON's reader has rounded already.
fn decimal(word: &'static str, value: &Value) -> Result<Decimal, Unfit> {
    let Value::Number(number) = value else {
        return Err((word, format!("expected a number, found {value}")));
    };
    if !is_exact(number) {
        return Err((word, inexact(number)));
    }
    let text = number.to_string().to_ascii_lowercase();
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (negative, digits) = match digits.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, digits),
    };
    if exponent.unsigned_abs() > 40 {
        return Err((word, format!("expected at most 40 digits, found {number}")));
    }
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let (mut whole, mut part) = (whole.to_owned(), part.to_owned());
    for _ in 0..exponent.max(0) {
        whole.push(if part.is_empty() { '0' } else { part.remove(0) });
    }
    for _ in exponent.min(0)..0 {
        part.insert(0, whole.pop().unwrap_or('0'));
    }
    let whole = whole.trim_start_matches('0');
    let part = part.trim_end_matches('0');
    Ok(Decimal {
        negative: negative && !(whole.is_empty() && part.is_empty()),
        whole: if whole.is_empty() { "0" } else { whole }.to_owned(),
        part: part.to_owned(),
    })
}

/// Returns whether a parsed JSON number is surely what was sent: one too large for 64
/// bits, or a float of 2^53 or more, may have been rounded by the parser.
pub(super) fn is_exact(number: &Number) -> bool {
    if number.is_i64() || number.is_u64() {
        return true;
    }
    let float = number.as_f64().unwrap_or(f64::INFINITY);
    float.abs() < EXACT as f64
}

/// Returns the reason for refusing a JSON number that the parser may have rounded.
pub(super) fn inexact(number: &Number) -> String {
    format!("expected a number that 64 bits hold exactly, found about {number}")
}

impl Decimal {
    /// Returns the nearest whole number at or below this decimal number, or at or above
    /// it if `up` is set.
    fn round(&self, up: bool) -> Option<i128> {
        let whole: i128 = self.whole.parse().ok()?;
        let away = !self.part.is_empty() && self.negative != up;
        let size = whole + i128::from(away);
        Some(if self.negative { -size } else { size })
    }

    fn is_whole(&self) -> bool {
        self.part.is_empty()
    }
}

/// Returns how a grammar writes the integers that fit a schema's bounds and
/// `multipleOf`.
///
/// # Errors
/// A bound or divisor that cannot be kept exactly.
pub(super) fn whole(asked: &Asked<'_>) -> Result<Written, Unfit> {
    let mut low: Option<i128> = None;
    let mut high: Option<i128> = None;
    let wide = |word| move || (word, "expected at most 38 digits".to_owned());
    for (word, value, strict) in [
        ("minimum", asked.minimum, 0),
        ("exclusiveMinimum", asked.exclusive_minimum, 1),
    ] {
        let Some(value) = value else { continue };
        let bound = decimal(word, value)?;
        let at = bound.round(true).ok_or_else(wide(word))?;
        let at = at + i128::from(bound.is_whole()) * strict;
        low = Some(low.map_or(at, |low| low.max(at)));
    }
    for (word, value, strict) in [
        ("maximum", asked.maximum, 0),
        ("exclusiveMaximum", asked.exclusive_maximum, 1),
    ] {
        let Some(value) = value else { continue };
        let bound = decimal(word, value)?;
        let at = bound.round(false).ok_or_else(wide(word))?;
        let at = at - i128::from(bound.is_whole()) * strict;
        high = Some(high.map_or(at, |high| high.min(at)));
    }
    // A side without a bound ends at 18 digits, or at ten times the other side's bound
    // if that is farther out.
    let low = low.unwrap_or_else(|| high.map_or(-WHOLE, |h| (-WHOLE).min(h.saturating_mul(10))));
    let high = high.unwrap_or_else(|| WHOLE.max(low.saturating_mul(10)));
    if low > high {
        return Ok(Written::Nothing);
    }
    let Some(multiple) = asked.multiple else {
        return Ok(Written::Terminal(format!("/{}/", range(low, high))));
    };
    multiples(multiple, low, high)
}

/// Returns how a grammar writes the integers from `low` to `high` that are multiples of
/// a schema's `multipleOf`.
fn multiples(multiple: &Value, low: i128, high: i128) -> Result<Written, Unfit> {
    let word = "multipleOf";
    let by = decimal(word, multiple)?;
    // Every integer is a multiple of a fraction such as 0.25, of which four make one.
    if !by.is_whole() && fractions(multiple, &by).is_ok() {
        return Ok(Written::Terminal(format!("/{}/", range(low, high))));
    }
    let by: Option<u64> = by
        .whole
        .parse()
        .ok()
        .filter(|_| by.is_whole() && !by.negative);
    let Some(by) = by.filter(|by| (1..=MOST_MULTIPLE).contains(by)) else {
        let reason = format!(
            "expected a whole number from 1 to {MOST_MULTIPLE}, or a tenth, hundredth, …, of one, \
             found {multiple}"
        );
        return Err((word, reason));
    };
    let (least, most) = (low.max(-999_999_999_999_999), high.min(999_999_999_999_999));
    let step = i128::from(by);
    if least.div_euclid(step) == most.div_euclid(step) && least.rem_euclid(step) != 0
        || least > most
    {
        return Ok(Written::Nothing);
    }
    Ok(Written::Json(serde_json::json!({
        "type": "integer", "multipleOf": by, "minimum": least as i64, "maximum": most as i64
    })))
}

/// Returns whether a decimal number is 0.1, 0.01, 0.001, …, whatever its sign.
fn is_power(by: &Decimal) -> bool {
    by.whole == "0" && by.part.trim_matches('0') == "1"
}

/// Returns how a grammar writes the numbers, with fractions and without, that fit a
/// schema's bounds and `multipleOf`.
///
/// # Errors
/// A bound or divisor that cannot be kept exactly.
pub(super) fn any(asked: &Asked<'_>) -> Result<Written, Unfit> {
    let mut endings = None;
    if let Some(multiple) = asked.multiple {
        let by = decimal("multipleOf", multiple)?;
        if by.is_whole() {
            return whole(asked);
        }
        endings = Some(fractions(multiple, &by)?);
    }
    let read = |word, value: Option<&Value>| value.map(|v| decimal(word, v)).transpose();
    let low = tighter(
        read("minimum", asked.minimum)?,
        read("exclusiveMinimum", asked.exclusive_minimum)?,
        false,
    );
    let high = tighter(
        read("maximum", asked.maximum)?,
        read("exclusiveMaximum", asked.exclusive_maximum)?,
        true,
    );
    if low.is_none() && high.is_none() && endings.is_none() {
        let free = "-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?";
        return Ok(Written::Terminal(format!("/{free}/")));
    }
    let digits = |b: &Option<(Decimal, bool)>| b.as_ref().map_or(0, |(d, _)| d.whole.len());
    let parts = |b: &Option<(Decimal, bool)>| b.as_ref().map_or(0, |(d, _)| d.part.len());
    let before = digits(&low).max(digits(&high));
    // No more digits in all than a double tells apart, but at least one more after the
    // point than a bound has.
    let places = PLACES.saturating_sub(before).max(1);
    let places = places.max(parts(&low).max(parts(&high)) + 1);
    let shape = Shape {
        before: (before + 1).max(15),
        places,
    };
    let fraction = endings.unwrap_or_else(|| format!("(\\.[0-9]{{1,{places}}})?"));
    let mut sides = Vec::new();
    for negative in [false, true] {
        // For negative numbers the upper bound is the lower bound of the magnitude.
        let (least, most) = match negative {
            false => (&low, &high),
            true => (&high, &low),
        };
        if let Some(side) = shape.side(least, most, negative, &fraction) {
            sides.push(side);
        }
    }
    Ok(match sides.is_empty() {
        true => Written::Nothing,
        false => Written::Terminal(sides.join(" | ")),
    })
}

/// Returns the tighter of a number's inclusive and exclusive bound, with whether it is
/// inclusive.
fn tighter(
    with: Option<Decimal>,
    without: Option<Decimal>,
    upper: bool,
) -> Option<(Decimal, bool)> {
    match (with, without) {
        (None, None) => None,
        (Some(with), None) => Some((with, true)),
        (None, Some(without)) => Some((without, false)),
        (Some(with), Some(without)) => {
            let above = compare(&with, &without);
            let strict = match upper {
                true => above.is_ge(),
                false => above.is_le(),
            };
            Some(match strict {
                true => (without, false),
                false => (with, true),
            })
        }
    }
}

fn compare(a: &Decimal, b: &Decimal) -> std::cmp::Ordering {
    let size = |d: &Decimal| (d.whole.len(), d.whole.clone(), d.part.clone());
    match (a.negative, b.negative) {
        (false, true) => std::cmp::Ordering::Greater,
        (true, false) => std::cmp::Ordering::Less,
        (false, false) => size(a).cmp(&size(b)),
        (true, true) => size(b).cmp(&size(a)),
    }
}

/// Returns the regular expression of the digits after the point that multiples of the
/// fraction `by` have.
fn fractions(multiple: &Value, by: &Decimal) -> Result<String, Unfit> {
    let word = "multipleOf";
    let refused = || {
        let reason = format!(
            "expected a whole number, or a fraction of which a whole number consists, with few \
             steps (0.01, 0.25, 0.5), found {multiple}"
        );
        (word, reason)
    };
    let places = by.part.len();
    let scale = 10u64.checked_pow(places as u32).ok_or_else(refused)?;
    if is_power(by) && !by.negative {
        return Ok(format!("(\\.[0-9]{{1,{places}}})?"));
    }
    let step: u64 = format!("{}{}", by.whole, by.part)
        .parse()
        .map_err(|_| refused())?;
    if by.negative || step == 0 || scale % step != 0 || scale / step > MOST_ENDINGS {
        return Err(refused());
    }
    let ending = |i: u64| {
        let digits = format!("{:0places$}", i * step);
        digits.trim_end_matches('0').to_owned()
    };
    let endings: Vec<String> = (1..scale / step).map(ending).collect();
    Ok(format!("(\\.({}))?", endings.join("|")))
}

/// The most digits that a JSON number may have before and after its point.
struct Shape {
    before: usize,
    places: usize,
}

impl Shape {
    /// Returns the regular expression of the numbers of one sign whose magnitude is
    /// between two bounds; each bound comes with whether it is inclusive. `None` if
    /// there are no such numbers.
    fn side(
        &self,
        least: &Option<(Decimal, bool)>,
        most: &Option<(Decimal, bool)>,
        negative: bool,
        fraction: &str,
    ) -> Option<String> {
        let sign = if negative { "-" } else { "" };
        // A bound on the other side of zero either bounds nothing or excludes every
        // number.
        if most
            .as_ref()
            .is_some_and(|(d, _)| d.negative != negative && !is_zero(d))
        {
            return None;
        }
        let least = least
            .as_ref()
            .filter(|(d, _)| d.negative == negative || is_zero(d));
        let most = most.as_ref();
        let all = format!("(0|[1-9][0-9]{{0,{}}}){fraction}", self.before - 1);
        let mut terms = vec![format!("/{sign}{all}/")];
        if negative {
            // Zero is not written with a sign.
            terms.push("/-[0-9.]*[1-9][0-9.]*/".to_owned());
        }
        if let Some((bound, with)) = least.filter(|(d, with)| !(is_zero(d) && *with)) {
            terms.push(format!("/{sign}{}/", self.at_least(bound, *with)?));
        }
        if let Some((bound, with)) = most {
            terms.push(format!("/{sign}{}/", self.at_most(bound, *with)?));
        }
        Some(terms.join(" & "))
    }

    fn at_least(&self, bound: &Decimal, with: bool) -> Option<String> {
        let digits = "[0-9]";
        let any = format!("(\\.[0-9]{{1,{}}})?", self.places);
        let whole: u128 = bound.whole.parse().ok()?;
        let top = 10u128.checked_pow(u32::try_from(self.before).ok()?)? - 1;
        let mut out = format!("(({}){any}", unsigned(whole + 1, top));
        let part = bound.part.as_bytes();
        // Above the bound: the fraction has a larger digit somewhere, or continues
        // after the bound's last digit.
        for (i, digit) in part.iter().enumerate() {
            if *digit < b'9' {
                let same = &bound.part[..i];
                let rest = self.places - i - 1;
                let above = char::from(digit + 1);
                let _ = write!(out, "|{whole}\\.{same}[{above}-9]{digits}{{0,{rest}}}");
            }
        }
        let rest = self.places - part.len();
        let same = &bound.part;
        match (with, part.is_empty()) {
            (true, true) => {
                let _ = write!(out, "|{whole}{any}");
            }
            (true, false) => {
                let _ = write!(out, "|{whole}\\.{same}{digits}{{0,{rest}}}");
            }
            (false, _) => {
                let _ = write!(out, "|{whole}\\.{same}0*[1-9]{digits}*");
            }
        }
        out.push(')');
        Some(out)
    }

    fn at_most(&self, bound: &Decimal, with: bool) -> Option<String> {
        let any = format!("(\\.[0-9]{{1,{}}})?", self.places);
        let whole: u128 = bound.whole.parse().ok()?;
        let mut options = Vec::new();
        if whole > 0 {
            options.push(format!("({}){any}", unsigned(0, whole - 1)));
        }
        let part = bound.part.as_bytes();
        for (i, digit) in part.iter().enumerate() {
            let same = &bound.part[..i];
            let rest = self.places - i - 1;
            if *digit > b'0' {
                let below = char::from(digit - 1);
                options.push(format!("{whole}\\.{same}[0-{below}][0-9]{{0,{rest}}}"));
            }
            // Below the bound: a fraction that ends before this digit.
            options.push(match i {
                0 => whole.to_string(),
                _ => format!("{whole}\\.{same}"),
            });
        }
        match (with, part.is_empty()) {
            (true, true) => options.push(format!("{whole}(\\.0{{1,{}}})?", self.places)),
            (true, false) => options.push(format!("{whole}\\.{}0*", bound.part)),
            (false, _) => {}
        }
        (!options.is_empty()).then(|| format!("({})", options.join("|")))
    }
}

fn is_zero(d: &Decimal) -> bool {
    d.whole == "0" && d.part.is_empty()
}

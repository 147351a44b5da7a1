//! Writes ranges of whole numbers as regular expressions over their decimal digits.

use std::fmt::Write as _;

/// Returns the regular expression of the whole numbers from `low` to `high`, both
/// included; `low` must not be larger.
pub(super) fn range(low: i128, high: i128) -> String {
    let mut options = Vec::new();
    if low < 0 {
        let least = if high < 0 { high.unsigned_abs() } else { 1 };
        options.push(format!("-({})", unsigned(least, low.unsigned_abs())));
    }
    if high >= 0 {
        let least = low.max(0).unsigned_abs();
        options.push(unsigned(least, high.unsigned_abs()));
    }
    format!("({})", options.join("|"))
}

/// Returns the regular expression of the unsigned whole numbers from `low` to `high`,
/// both included; one that matches no text if `low` is larger.
pub(super) fn unsigned(low: u128, high: u128) -> String {
    if low > high {
        // An expression that matches no text.
        return "[^\\x00-\\x{10FFFF}]".to_owned();
    }
    let length = |n: u128| n.to_string().len();
    let mut options = Vec::new();
    let (short, long) = (length(low), length(high));
    for digits in short..=long {
        let least = match digits == short {
            true => low.to_string(),
            false => format!("1{}", "0".repeat(digits - 1)),
        };
        let most = match digits == long {
            true => high.to_string(),
            false => "9".repeat(digits),
        };
        let mut text = String::new();
        between(&least, &most, &mut text);
        options.push(text);
    }
    format!("({})", options.join("|"))
}

/// Writes the regular expression of the strings of digits from `low` to `high`, which
/// have the same length.
fn between(low: &str, high: &str, out: &mut String) {
    let (Some(a), Some(b)) = (low.bytes().next(), high.bytes().next()) else {
        return;
    };
    let rest = low.len() - 1;
    if a == b {
        out.push(char::from(a));
        between(&low[1..], &high[1..], out);
        return;
    }
    let full_low = low[1..].bytes().all(|d| d == b'0');
    let full_high = high[1..].bytes().all(|d| d == b'9');
    let (mut first, mut last) = (a, b);
    let mut options = Vec::new();
    if !full_low {
        let mut text = char::from(a).to_string();
        between(&low[1..], &"9".repeat(rest), &mut text);
        options.push(text);
        first += 1;
    }
    if !full_high {
        let mut text = char::from(b).to_string();
        between(&"0".repeat(rest), &high[1..], &mut text);
        options.push(text);
        last -= 1;
    }
    if first <= last {
        let tail = match rest {
            0 => String::new(),
            _ => format!("[0-9]{{{rest}}}"),
        };
        let (first, last) = (char::from(first), char::from(last));
        options.push(format!("[{first}-{last}]{tail}"));
    }
    let _ = write!(out, "({})", options.join("|"));
}

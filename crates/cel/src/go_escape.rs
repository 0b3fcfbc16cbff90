//! Escapes of single characters in Go's patterns, and the errors of such patterns in Go's words.
//! Upstream counterpart: regexp/syntax.

use thiserror::Error;

/// A pattern that Go refuses. `Display` is Go's text, which clients read.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("error parsing regexp: {why}: `{at}`")]
pub(crate) struct Refused {
    why: &'static str,
    /// The part of the pattern that is wrong.
    at: String,
}

pub(crate) const CLASS_RANGE: &str = "invalid character class range";
pub(crate) const MISSING_BRACKET: &str = "missing closing ]";
pub(crate) const ESCAPE: &str = "invalid escape sequence";

pub(crate) fn refused<T>(why: &'static str, at: &str) -> Result<T, Refused> {
    Err(Refused { why, at: at.to_owned() })
}

/// The part of `text` that stands before its tail `rest`.
pub(crate) fn before<'t>(text: &'t str, rest: &str) -> &'t str {
    &text[..text.len() - rest.len()]
}

/// The code point of the escape at the beginning of the text, which may be a surrogate, and the text behind it.
pub(crate) fn escape(text: &str) -> Result<(u32, &str), Refused> {
    let mut chars = text[1..].chars();
    let Some(letter) = chars.next() else { return refused("trailing backslash at end of expression", "") };
    let rest = chars.as_str();
    let found = match letter {
        // A single digit would be a reference to a group, which Go's patterns do not have.
        '1'..='7' if !rest.starts_with(|c: char| c.is_digit(8)) => None,
        '0'..='7' => return Ok(octal(&text[1..])),
        'x' => return hexadecimal(text, rest),
        'a' => Some(0x07),
        'f' => Some(0x0c),
        'n' => Some(0x0a),
        'r' => Some(0x0d),
        't' => Some(0x09),
        'v' => Some(0x0b),
        mark if mark.is_ascii() && !mark.is_ascii_alphanumeric() => Some(u32::from(mark)),
        _ => None,
    };
    match found {
        Some(code) => Ok((code, rest)),
        None => refused(ESCAPE, before(text, rest)),
    }
}

/// One to three digits.
fn octal(digits: &str) -> (u32, &str) {
    let count = digits.bytes().take(3).take_while(|b| matches!(b, b'0'..=b'7')).count();
    let (digits, rest) = digits.split_at(count);
    (digits.bytes().fold(0, |code, digit| code * 8 + u32::from(digit - b'0')), rest)
}

/// `x41`, or any number of digits in braces.
fn hexadecimal<'t>(text: &'t str, digits: &'t str) -> Result<(u32, &'t str), Refused> {
    let braced = digits.starts_with('{');
    let mut chars = digits.chars();
    if braced {
        chars.next();
    }
    let (mut code, mut count) = (0, 0);
    while braced || count < 2 {
        let digit = chars.next();
        if braced && digit == Some('}') && count > 0 {
            break;
        }
        match digit.and_then(|c| c.to_digit(16)) {
            Some(digit) => code = code * 16 + digit,
            // Go reads both of two digits before it looks at them.
            None => {
                if !braced && count == 0 && digit.is_some() {
                    chars.next();
                }
                return refused(ESCAPE, before(text, chars.as_str()));
            }
        }
        count += 1;
        if code > u32::from(char::MAX) {
            return refused(ESCAPE, before(text, chars.as_str()));
        }
    }
    Ok((code, chars.as_str()))
}

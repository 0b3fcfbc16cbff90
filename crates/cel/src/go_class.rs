//! Character classes of Go's patterns, written for Rust's engine: `\d`, `\w` and `\s` are those of ASCII, and no mark but
//! `]`, `\`, `-` between two characters and a leading `^` means more than itself.
//! Upstream counterpart: regexp/syntax.

use std::fmt::Write;

use crate::go_escape::{CLASS_RANGE, MISSING_BRACKET, Refused, before, escape, refused};
use crate::go_property::property;

/// The names that `[:…:]` takes; they mean the same to both engines.
const NAMED: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// The class that a text begins with, if it begins with one of several characters by a name: `\d`, `\pL`, `\p{^Greek}`.
/// Its form is valid inside and outside of brackets.
pub(crate) fn shorthand(text: &str) -> Result<Option<(String, &str)>, Refused> {
    let mut chars = text.chars();
    if chars.next() != Some('\\') {
        return Ok(None);
    }
    let class = match chars.next() {
        Some('d') => "[0-9]",
        Some('D') => "[^0-9]",
        Some('s') => "[\\t\\n\\x0C\\r ]",
        Some('S') => "[^\\t\\n\\x0C\\r ]",
        Some('w') => "[0-9A-Za-z_]",
        Some('W') => "[^0-9A-Za-z_]",
        Some(sign @ ('p' | 'P')) => return unicode(text, sign == 'P').map(Some),
        _ => return Ok(None),
    };
    Ok(Some((class.to_owned(), chars.as_str())))
}

fn unicode(text: &str, negated: bool) -> Result<(String, &str), Refused> {
    let named = &text[2..];
    let (name, rest) = match named.strip_prefix('{') {
        Some(inside) => match inside.split_once('}') {
            Some(split) => split,
            None => return refused(CLASS_RANGE, text),
        },
        None => named.split_at(named.chars().next().map_or(0, char::len_utf8)),
    };
    let (name, negated) = match name.strip_prefix('^') {
        Some(name) => (name, !negated),
        None => (name, negated),
    };
    match property(name, negated) {
        Some(class) => Ok((class, rest)),
        None => refused(CLASS_RANGE, before(text, rest)),
    }
}

/// Translates the class that the text begins with, and returns the text behind it. `names` is the length of the text from
/// the last `:]` on, 0 if there is none: nothing is searched in vain, which would take time again and again.
pub(crate) fn class<'t>(text: &'t str, names: usize, out: &mut String) -> Result<&'t str, Refused> {
    let mut rest = &text[1..];
    out.push('[');
    if let Some(after) = rest.strip_prefix('^') {
        out.push('^');
        rest = after;
    }
    let (mut first, empty) = (true, out.len());
    while first || !rest.starts_with(']') {
        first = false;
        if let Some((name, after)) = named(rest, names)? {
            out.push_str(name);
            rest = after;
        } else if let Some((class, after)) = shorthand(rest)? {
            out.push_str(&class);
            rest = after;
        } else {
            rest = range(text, rest, out)?;
        }
    }
    if out.len() == empty {
        // Only surrogates were named, which no text has.
        out.push_str("[^\\x00-\\x{10FFFF}]");
    }
    out.push(']');
    Ok(&rest[1..])
}

/// `[:alpha:]`, `[:^alpha:]`.
fn named(text: &str, names: usize) -> Result<Option<(&str, &str)>, Refused> {
    let inside = text.strip_prefix("[:").filter(|inside| names > 0 && inside.len() >= names);
    let Some(end) = inside.and_then(|inside| inside.find(":]")) else { return Ok(None) };
    let (whole, rest) = text.split_at(end + 4);
    let name = &whole[2..whole.len() - 2];
    if NAMED.contains(&name.strip_prefix('^').unwrap_or(name)) {
        Ok(Some((whole, rest)))
    } else {
        refused(CLASS_RANGE, whole)
    }
}

/// One character, or two with `-` between them.
fn range<'t>(class: &str, text: &'t str, out: &mut String) -> Result<&'t str, Refused> {
    let (low, mut rest) = character(class, text)?;
    let mut high = low;
    if let Some(after) = rest.strip_prefix('-').filter(|after| !after.is_empty() && !after.starts_with(']')) {
        (high, rest) = character(class, after)?;
        if high < low {
            return refused(CLASS_RANGE, before(text, rest));
        }
    }
    // Rust's engine knows no surrogates.
    let low = if char::from_u32(low).is_none() { 0xE000 } else { low };
    let high = if char::from_u32(high).is_none() { 0xD7FF } else { high };
    if low < high {
        let _ = write!(out, "\\x{{{low:X}}}-\\x{{{high:X}}}");
    } else if low == high {
        let _ = write!(out, "\\x{{{low:X}}}");
    }
    Ok(rest)
}

fn character<'t>(class: &str, text: &'t str) -> Result<(u32, &'t str), Refused> {
    match text.chars().next() {
        None => refused(MISSING_BRACKET, class),
        Some('\\') => escape(text),
        Some(c) => Ok((u32::from(c), &text[c.len_utf8()..])),
    }
}

//! JSON text, read piece by piece: the next value is looked at, entered, or passed over. The [`Reader`](crate::Reader) asks
//! for one piece after the other; [`Trees`](crate::tree::Trees) take all of them.

mod plain;

use std::borrow::Cow;

use serde::de::Error as _;

use crate::{Error, Number, escapes::ordinary_end};

/// Values within values that are read: the stack is not the text's to fill. `serde_json` has the same bound.
const DEPTH_MAX: u8 = 128;

/// The sort of the next value, of which nothing is read yet.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Sort {
    Null,
    Bool(bool),
    Number,
    String,
    Array,
    Object,
}

pub(crate) struct Text<'de> {
    text: &'de str,
    at: usize,
    depth: u8,
}

impl<'de> Text<'de> {
    pub(crate) fn new(text: &'de str) -> Self {
        Text { text, at: 0, depth: 0 }
    }

    /// An error at this place of the text.
    pub(crate) fn error(&self, what: impl std::fmt::Display) -> Error {
        let before = &self.text.as_bytes()[..self.at.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count();
        Error::custom(format_args!("{what} at line {line} column {column}"))
    }

    /// The error with this place, unless it tells one.
    pub(crate) fn placed(&self, error: Error) -> Error {
        if error.line() == 0 { self.error(error) } else { error }
    }

    /// The next byte that is no space, unread.
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        match self.text.as_bytes().get(self.at) {
            Some(byte) if *byte > b' ' => Some(*byte),
            _ => self.behind_spaces(),
        }
    }

    /// Text that programs write has no spaces.
    #[cold]
    fn behind_spaces(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        let spaces = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r')).count();
        self.at += spaces;
        rest.get(spaces).copied()
    }

    /// The sort of the value that comes next.
    #[inline]
    pub(crate) fn sort(&mut self) -> Result<Sort, Error> {
        match self.peek() {
            Some(b'n') => Ok(Sort::Null),
            Some(b't') => Ok(Sort::Bool(true)),
            Some(b'f') => Ok(Sort::Bool(false)),
            Some(b'-' | b'0'..=b'9') => Ok(Sort::Number),
            Some(b'"') => Ok(Sort::String),
            Some(b'[') => Ok(Sort::Array),
            Some(b'{') => Ok(Sort::Object),
            Some(_) => Err(self.error("expected value")),
            None => Err(self.error("EOF while parsing a value")),
        }
    }

    /// Reads the word that `sort` announced.
    #[inline]
    pub(crate) fn word(&mut self, word: &str) -> Result<(), Error> {
        match self.text[self.at..].starts_with(word) {
            true => self.at += word.len(),
            false => return Err(self.error("expected ident")),
        }
        Ok(())
    }

    /// Reads the bracket that opens a list or an object.
    #[inline]
    pub(crate) fn enter(&mut self) -> Result<(), Error> {
        self.depth += 1;
        if self.depth == DEPTH_MAX {
            return Err(self.error("recursion limit exceeded"));
        }
        self.at += 1;
        Ok(())
    }

    /// Goes to the next item of a list, or the next name of an object; false behind the last, whose bracket is read.
    #[inline]
    pub(crate) fn next(&mut self, close: u8, first: bool) -> Result<bool, Error> {
        match self.peek() {
            Some(byte) if byte == close => {
                self.at += 1;
                self.depth -= 1;
                return Ok(false);
            }
            Some(b',') if !first => self.at += 1,
            Some(_) if first => return Ok(true),
            Some(_) => return Err(self.error(format_args!("expected `,` or `{}`", close as char))),
            None => return Err(self.error("EOF while parsing a list or an object")),
        }
        match self.peek() {
            Some(byte) if byte == close => Err(self.error("trailing comma")),
            _ => Ok(true),
        }
    }

    /// The name of a field and the colon behind it.
    #[inline]
    pub(crate) fn name(&mut self) -> Result<Cow<'de, str>, Error> {
        self.begin_name()?;
        let name = self.string()?;
        self.colon()?;
        Ok(name)
    }

    #[inline]
    fn begin_name(&mut self) -> Result<(), Error> {
        match self.peek() {
            Some(b'"') => Ok(()),
            _ => Err(self.error("key must be a string")),
        }
    }

    #[inline]
    fn colon(&mut self) -> Result<(), Error> {
        match self.peek() {
            Some(b':') => self.at += 1,
            _ => return Err(self.error("expected `:`")),
        }
        Ok(())
    }

    /// Reads a string, from its first quote to its last.
    #[inline]
    pub(crate) fn string(&mut self) -> Result<Cow<'de, str>, Error> {
        let start = self.at;
        if !self.pass_string()? {
            return Ok(Cow::Borrowed(&self.text[start + 1..self.at - 1]));
        }
        // Escapes are rare, and have their pitfalls (halves of characters): the library reads them.
        let quoted = &self.text[start..self.at];
        serde_json::from_str(quoted).map(Cow::Owned).map_err(|error| self.error(error))
    }

    /// Passes over a string; true when there is an escape in it, which nobody has looked at.
    #[inline(always)]
    fn pass_string(&mut self) -> Result<bool, Error> {
        let bytes = self.text.as_bytes();
        let (mut at, mut escaped) = (self.at + 1, false);
        loop {
            at = ordinary_end(bytes, at);
            match bytes.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    at += 2;
                }
                Some(0..0x20) => {
                    self.at = at;
                    return Err(self.error("control character (\\u0000-\\u001F) found while parsing a string"));
                }
                _ => {
                    self.at = bytes.len();
                    return Err(self.error("EOF while parsing a string"));
                }
            }
        }
        self.at = at + 1;
        Ok(escaped)
    }

    pub(crate) fn number(&mut self) -> Result<Number, Error> {
        let rest = &self.text[self.at..];
        let len = rest.bytes().take_while(|b| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')).count();
        let number = serde_json::from_str(&rest[..len]).map_err(|_| self.error("invalid number"))?;
        self.at += len;
        Ok(number)
    }

    /// Reads a whole number of up to 18 digits; anything else is left to `number`.
    #[inline]
    pub(crate) fn small(&mut self) -> Option<i64> {
        let rest = &self.text.as_bytes()[self.at..];
        let negative = rest.first() == Some(&b'-');
        let digits = &rest[usize::from(negative)..];
        let len = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let zero = digits.first() == Some(&b'0');
        if len == 0 || len > 18 || (zero && (len > 1 || negative)) {
            return None;
        }
        if matches!(digits.get(len), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        let value = digits[..len].iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
        self.at += len + usize::from(negative);
        Some(if negative { -value } else { value })
    }

    /// Passes over a value.
    pub(crate) fn skip(&mut self) -> Result<(), Error> {
        self.peek();
        match plain::end(self.text.as_bytes(), self.at, DEPTH_MAX - 1 - self.depth) {
            Some(end) => self.at = end,
            None => self.skip_piecewise()?,
        }
        Ok(())
    }

    /// Passes over a value piece by piece, whatever there is between them.
    fn skip_piecewise(&mut self) -> Result<(), Error> {
        match self.sort()? {
            Sort::Null => self.word("null"),
            Sort::Bool(value) => self.word(if value { "true" } else { "false" }),
            Sort::Number => self.number().map(drop),
            Sort::String => self.pass_string().map(drop),
            Sort::Array => {
                self.enter()?;
                let mut first = true;
                while self.next(b']', std::mem::take(&mut first))? {
                    self.skip_piecewise()?;
                }
                Ok(())
            }
            Sort::Object => {
                self.enter()?;
                let mut first = true;
                while self.next(b'}', std::mem::take(&mut first))? {
                    self.begin_name()?;
                    self.pass_string()?;
                    self.colon()?;
                    self.skip_piecewise()?;
                }
                Ok(())
            }
        }
    }

    /// Nothing follows on the value.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.error("trailing characters")),
        }
    }
}

/// How long the value is that text begins with, spaces before it included.
pub fn length_of_value(text: &str) -> Option<usize> {
    let mut text = Text::new(text);
    text.skip().ok().map(|()| text.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_value_is_found_whatever_it_holds() {
        let given =
            [(r#"{"a":"\"}"}}"#, Some(11)), (" [1.5, 2] ,", Some(9)), (r#"{"a":1}}"#, Some(7)), (r#"{"a""#, None)];
        for (text, length) in given {
            assert_eq!(length_of_value(text), length, "{text}");
        }
    }

    /// No values, whoever reads them.
    pub(super) const BROKEN: [&str; 24] = [
        "",
        "{",
        "[",
        "[1",
        "[1,",
        "[1,]",
        "{,}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":1,2}"#,
        "{1:2}",
        "[1:2]",
        "[}",
        "{]",
        "[1}",
        r#"{"a":1]"#,
        "[01]",
        "[1.]",
        "\"\n\"",
        "\"",
        "\"\\",
        "tru",
        "[nul]",
    ];

    #[test]
    fn broken_values_have_no_length() {
        for text in BROKEN {
            assert_eq!(length_of_value(text), None, "{text}");
        }
    }
}

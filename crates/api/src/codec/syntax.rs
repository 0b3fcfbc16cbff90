//! Broken JSON, complained of in the words of Go's scanner, which clients and their tests read.

use serde::de::IgnoredAny;

/// The complaint about a body that could not be read. `why` is our reader's own, for what the scanner has nothing against.
pub(crate) fn in_gos_words(bytes: &[u8], why: String) -> String {
    let mut scanner = Scanner { bytes, at: 0 };
    match scanner.document() {
        Ok(()) => why,
        Err(fault) => fault.unwrap_or_else(|| "unexpected end of JSON input".to_owned()),
    }
}

/// The sort of value that a document other than an object or null begins with, as Go's decoder calls it.
pub(crate) fn no_object(bytes: &[u8]) -> Option<&'static str> {
    match bytes.trim_ascii_start().first()? {
        b'[' => Some("array"),
        b'"' => Some("string"),
        b't' | b'f' => Some("bool"),
        b'-' | b'0'..=b'9' => Some("number"),
        _ => None,
    }
}

/// Why a text is no object.
pub(crate) fn check_object(bytes: &[u8]) -> Result<(), String> {
    match serde_json::from_slice::<IgnoredAny>(bytes) {
        Err(why) => Err(in_gos_words(bytes, why.to_string())),
        Ok(_) => no_object(bytes).map_or(Ok(()), |found| {
            Err(format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"))
        }),
    }
}

/// Nothing is the end of the text.
type Fault = Option<String>;

struct Scanner<'b> {
    bytes: &'b [u8],
    at: usize,
}

/// One step of what is open: an object or a list.
#[derive(Clone, Copy, PartialEq)]
enum Open {
    Object,
    List,
}

impl Scanner<'_> {
    /// The open objects and lists are kept on the heap, so that depth costs no stack.
    fn document(&mut self) -> Result<(), Fault> {
        let mut open = Vec::new();
        loop {
            // A value is due, unless an object or a list just ended.
            let mut ended = false;
            match self.word()? {
                b'{' => {
                    self.at += 1;
                    open.push(Open::Object);
                    if self.word()? == b'}' {
                        self.at += 1;
                        open.pop();
                        ended = true;
                    } else {
                        self.key()?;
                    }
                }
                b'[' => {
                    self.at += 1;
                    open.push(Open::List);
                    if self.word()? == b']' {
                        self.at += 1;
                        open.pop();
                        ended = true;
                    }
                }
                _ => {
                    self.scalar()?;
                    ended = true;
                }
            }
            if ended && !self.after_value(&mut open)? {
                return Ok(());
            }
        }
    }

    /// Whether another value is due. Without one the document is over.
    fn after_value(&mut self, open: &mut Vec<Open>) -> Result<bool, Fault> {
        loop {
            let Some(inside) = open.last().copied() else {
                return match self.word() {
                    Err(None) => Ok(false),
                    Err(fault) => Err(fault),
                    Ok(_) => Err(self.invalid("after top-level value")),
                };
            };
            match (self.word()?, inside) {
                (b',', Open::Object) => {
                    self.at += 1;
                    self.word()?;
                    self.key()?;
                    return Ok(true);
                }
                (b',', Open::List) => {
                    self.at += 1;
                    return Ok(true);
                }
                (b'}', Open::Object) | (b']', Open::List) => {
                    self.at += 1;
                    open.pop();
                }
                (_, Open::Object) => return Err(self.invalid("after object key:value pair")),
                (_, Open::List) => return Err(self.invalid("after array element")),
            }
        }
    }

    /// A key and its colon.
    fn key(&mut self) -> Result<(), Fault> {
        if self.word()? != b'"' {
            return Err(self.invalid("looking for beginning of object key string"));
        }
        self.string()?;
        if self.word()? != b':' {
            return Err(self.invalid("after object key"));
        }
        self.at += 1;
        Ok(())
    }

    fn scalar(&mut self) -> Result<(), Fault> {
        match self.word()? {
            b'"' => self.string(),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err(self.invalid("looking for beginning of value")),
        }
    }

    fn string(&mut self) -> Result<(), Fault> {
        self.at += 1;
        loop {
            match self.byte()? {
                b'"' => break,
                b'\\' => {
                    self.at += 1;
                    match self.byte()? {
                        b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => self.at += 1,
                        b'u' => {
                            self.at += 1;
                            for _ in 0..4 {
                                if !self.byte()?.is_ascii_hexdigit() {
                                    return Err(self.invalid("in \\u hexadecimal character escape"));
                                }
                                self.at += 1;
                            }
                        }
                        _ => return Err(self.invalid("in string escape code")),
                    }
                }
                0..0x20 => return Err(self.invalid("in string literal")),
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Result<(), Fault> {
        for expected in word.bytes() {
            if self.byte()? != expected {
                return Err(self.invalid(&format!("in literal {word} (expecting {})", quoted(expected))));
            }
            self.at += 1;
        }
        Ok(())
    }

    /// A number that ends before another character does not belong to it has its end noticed there.
    fn number(&mut self) -> Result<(), Fault> {
        if self.bytes[self.at] == b'-' {
            self.at += 1;
        }
        match self.byte()? {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.digits(),
            _ => return Err(self.invalid("in numeric literal")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if !self.byte()?.is_ascii_digit() {
                return Err(self.invalid("after decimal point in numeric literal"));
            }
            self.digits();
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.byte()?, b'+' | b'-') {
                self.at += 1;
            }
            if !self.byte()?.is_ascii_digit() {
                return Err(self.invalid("in exponent of numeric literal"));
            }
            self.digits();
        }
        Ok(())
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }

    /// The next byte that is no space.
    fn word(&mut self) -> Result<u8, Fault> {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
        self.byte()
    }

    fn byte(&self) -> Result<u8, Fault> {
        self.peek().ok_or(None)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn invalid(&self, place: &str) -> Fault {
        Some(format!("invalid character {} {place}", quoted(self.bytes[self.at])))
    }
}

/// A byte as Go shows it; one beyond ASCII stands for the character of its number.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        7 => r"'\a'".to_owned(),
        8 => r"'\b'".to_owned(),
        9 => r"'\t'".to_owned(),
        10 => r"'\n'".to_owned(),
        11 => r"'\v'".to_owned(),
        12 => r"'\f'".to_owned(),
        13 => r"'\r'".to_owned(),
        0..0x20 | 0x7f => format!("'\\x{byte:02x}'"),
        0x80..0xa0 | 0xad => format!("'\\u{byte:04x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(in_gos_words(text.as_bytes(), "nothing".to_owned()), expected, "{text:?}");
    }

    #[test]
    fn what_is_broken_is_told_as_go_does() {
        check("", "unexpected end of JSON input");
        check("  ", "unexpected end of JSON input");
        check("{", "unexpected end of JSON input");
        check(r#"{"a":"b"#, "unexpected end of JSON input");
        check("[1,", "unexpected end of JSON input");
        check("kind: Pod", "invalid character 'k' looking for beginning of value");
        check("[1,]", "invalid character ']' looking for beginning of value");
        check("{bad", "invalid character 'b' looking for beginning of object key string");
        check(r#"{"a":1,}"#, "invalid character '}' looking for beginning of object key string");
        check(r#"{"a" 1}"#, "invalid character '1' after object key");
        check(r#"{"a":1 "b"}"#, "invalid character '\"' after object key:value pair");
        check(r#"{"a":1]"#, "invalid character ']' after object key:value pair");
        check("[1 2]", "invalid character '2' after array element");
        check("{} x", "invalid character 'x' after top-level value");
        check("[tru]", "invalid character ']' in literal true (expecting 'e')");
        check("nul", "unexpected end of JSON input");
        check("\"a\nb\"", r"invalid character '\n' in string literal");
        check(r#""\x""#, "invalid character 'x' in string escape code");
        check(r#""\u00g0""#, r"invalid character 'g' in \u hexadecimal character escape");
        check("-x", "invalid character 'x' in numeric literal");
        check("1.x", "invalid character 'x' after decimal point in numeric literal");
        check("1e+x", "invalid character 'x' in exponent of numeric literal");
        check("01", "invalid character '1' after top-level value");
        check("'a'", r"invalid character '\'' looking for beginning of value");
        check("ä", "invalid character 'Ã' looking for beginning of value");
    }

    #[test]
    fn what_go_takes_keeps_the_words_of_the_reader() {
        for text in [r#"{"a":[{},[],"\u00e4",-0.5e+3,true,null],"b":{"c":false}} "#, "[]", "{}", "1e999", "\"ä\""] {
            check(text, "nothing");
        }
        check(&"[".repeat(1 << 20), "unexpected end of JSON input");
    }
}

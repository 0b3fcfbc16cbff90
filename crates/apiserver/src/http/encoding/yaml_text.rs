//! Scalars of YAML, in the styles in which upstream's library writes them: plain where that reads as the same text, a literal
//! block for several lines, quotes otherwise; long ones are folded.
//! Upstream counterpart: go.yaml.in/yaml/v2, encode.go and emitterc.go.

use std::sync::LazyLock;

use regex::Regex;

/// A line is folded at the first space behind this column.
const WIDTH: usize = 80;
/// A longer key stands on lines of its own.
const SIMPLE_KEY_MAX: usize = 128;

/// The sort of collection that a value belongs to.
#[derive(Clone, Copy, PartialEq)]
pub enum Place {
    Document,
    Mapping,
    Sequence,
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

/// Text in lines.
#[derive(Default)]
pub struct Writer {
    out: Vec<u8>,
    /// Letters on the last line.
    column: usize,
    /// A key or a dash stands before what comes next.
    pending: bool,
}

impl Writer {
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    fn put(&mut self, letter: char) {
        self.out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        self.column += 1;
    }

    /// Ends the line, and begins the next so far in. The first has nothing to end.
    pub fn line(&mut self, indent: usize) {
        if self.column > 0 {
            self.out.push(b'\n');
        }
        self.pad(indent);
        self.pending = false;
    }

    fn pad(&mut self, indent: usize) {
        self.out.resize(self.out.len() + indent, b' ');
        self.column = indent;
    }

    /// Ends the document.
    pub fn end(&mut self) {
        self.line(0);
    }

    pub fn dash(&mut self, indent: usize) {
        self.line(indent);
        self.dash_here();
    }

    /// The dash before an item, behind another one too.
    pub fn dash_here(&mut self) {
        self.space();
        self.put('-');
        self.pending = true;
    }

    pub fn key(&mut self, name: &str, indent: usize) {
        self.line(indent);
        self.key_here(name, indent);
    }

    /// The key of a value that follows.
    pub fn key_here(&mut self, name: &str, indent: usize) {
        self.space();
        if name.len() > SIMPLE_KEY_MAX || name.contains(is_break) {
            self.put('?');
            self.pending = true;
            self.text(name, indent + 2);
            self.line(indent);
        } else {
            self.scalar(name, 0, true);
        }
        self.put(':');
        self.pending = true;
    }

    /// The space behind a key or a dash.
    fn space(&mut self) {
        if std::mem::take(&mut self.pending) {
            self.put(' ');
        }
    }

    /// Writes a word as it is.
    pub fn word(&mut self, word: &str) {
        self.space();
        word.chars().for_each(|letter| self.put(letter));
    }

    /// A string; the lines behind its first stand so far in.
    pub fn text(&mut self, text: &str, indent: usize) {
        self.space();
        self.scalar(text, indent, false);
    }

    fn scalar(&mut self, text: &str, indent: usize, key: bool) {
        match style(text, key) {
            Style::Plain => self.flowing(text, indent, key, false),
            Style::Single => {
                self.put('\'');
                self.flowing(text, indent, key, true);
                self.put('\'');
            }
            Style::Double => self.double(text, indent, key),
            Style::Literal => self.literal(text, indent),
        }
    }

    /// The letters of one line, folded where it is long.
    fn flowing(&mut self, text: &str, indent: usize, key: bool, quoted: bool) {
        let mut letters = text.char_indices().peekable();
        let mut after_space = false;
        while let Some((at, letter)) = letters.next() {
            let next = letters.peek().map(|(_, next)| *next);
            let inside = !quoted || at > 0 && at + 1 < text.len();
            if letter == ' ' && !key && !after_space && self.column > WIDTH && inside && next != Some(' ') {
                self.line(indent);
            } else {
                if quoted && letter == '\'' {
                    self.put('\'');
                }
                self.put(letter);
            }
            after_space = letter == ' ';
        }
    }

    fn double(&mut self, text: &str, indent: usize, key: bool) {
        self.put('"');
        let mut letters = text.char_indices().peekable();
        let mut after_space = false;
        while let Some((at, letter)) = letters.next() {
            if !is_printable(letter) || is_break(letter) || matches!(letter, '"' | '\\') {
                escape(letter).chars().for_each(|letter| self.put(letter));
                after_space = false;
                continue;
            }
            let inside = at > 0 && at + 1 < text.len();
            if letter == ' ' && !key && !after_space && self.column > WIDTH && inside {
                self.line(indent);
                if letters.peek().is_some_and(|(_, next)| *next == ' ') {
                    self.put('\\');
                }
            } else {
                self.put(letter);
            }
            after_space = letter == ' ';
        }
        self.put('"');
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.put('|');
        if text.starts_with([' ', '\n', '\u{2028}', '\u{2029}']) {
            self.put('2');
        }
        let mut last = text.chars().rev();
        match (last.next().is_some_and(is_break), last.next().is_none_or(is_break)) {
            (false, _) => self.put('-'),
            (true, true) => self.put('+'),
            (true, false) => {}
        }
        self.out.push(b'\n');
        self.column = 0;
        for letter in text.chars() {
            if !is_break(letter) && self.column == 0 {
                self.pad(indent);
            }
            self.put(letter);
            if is_break(letter) {
                self.column = 0;
            }
        }
    }
}

fn is_break(letter: char) -> bool {
    matches!(letter, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Whether the library writes a letter as it is, at least between quotes.
fn is_printable(letter: char) -> bool {
    matches!(letter, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
}

fn escape(letter: char) -> String {
    let short = match letter {
        '\0' => '0',
        '\u{7}' => 'a',
        '\u{8}' => 'b',
        '\t' => 't',
        '\n' => 'n',
        '\u{b}' => 'v',
        '\u{c}' => 'f',
        '\r' => 'r',
        '\u{1b}' => 'e',
        '\u{85}' => 'N',
        '\u{2028}' => 'L',
        '\u{2029}' => 'P',
        '"' | '\\' => letter,
        _ => {
            return match u32::from(letter) {
                code @ ..=0xff => format!("\\x{code:02X}"),
                code @ ..=0xffff => format!("\\u{code:04X}"),
                code => format!("\\U{code:08X}"),
            };
        }
    };
    format!("\\{short}")
}

/// The style of a string.
fn style(text: &str, key: bool) -> Style {
    let shape = Shape::of(text);
    if text.contains('\n') {
        return if shape.block && !key { Style::Literal } else { Style::Double };
    }
    if means_other(text) {
        return Style::Double;
    }
    match (shape.plain, shape.single) {
        (true, _) => Style::Plain,
        (false, true) => Style::Single,
        (false, false) => Style::Double,
    }
}

/// The styles that a string can be written in.
struct Shape {
    plain: bool,
    single: bool,
    block: bool,
}

impl Shape {
    fn of(text: &str) -> Shape {
        let starts = text.starts_with([' ', '\n']) || text.starts_with(is_break);
        let ends = text.ends_with(' ') || text.ends_with(is_break);
        let pairs = || text.chars().zip(text.chars().skip(1));
        let break_space = pairs().any(|(a, b)| is_break(a) && b == ' ');
        let space_break = pairs().any(|(a, b)| a == ' ' && is_break(b));
        let special = space_break || !text.chars().all(is_printable);
        let breaks = text.contains(is_break);
        Shape {
            plain: !(starts || ends || breaks || special || has_indicator(text)),
            single: !(break_space || special),
            block: !(special || text.ends_with(' ')),
        }
    }
}

/// Whether something in the text would be read as structure.
fn has_indicator(text: &str) -> bool {
    let bytes = text.as_bytes();
    let blank_behind = |at: usize| bytes.get(at + 1).is_none_or(|next| matches!(next, b' ' | b'\t' | b'\n' | b'\r'));
    let first = match bytes.first() {
        Some(
            b'#' | b',' | b'[' | b']' | b'{' | b'}' | b'&' | b'*' | b'!' | b'|' | b'>' | b'\'' | b'"' | b'%' | b'@'
            | b'`',
        ) => true,
        Some(b'?' | b':' | b'-') => blank_behind(0),
        _ => text.starts_with("..."),
    };
    let later = |(at, byte): (usize, &u8)| match byte {
        b':' => blank_behind(at),
        b'#' => matches!(bytes[at - 1], b' ' | b'\t' | b'\n' | b'\r'),
        _ => false,
    };
    first || text.starts_with("---") || bytes.iter().enumerate().skip(1).any(later)
}

/// Words that are read as something else than text.
const WORDS: &[&str] = &[
    "", "~", "null", "Null", "NULL", "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", "n", "N",
    "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF", ".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF",
    "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF",
];

/// Whether text without quotes would be read as a word of another type, a number or a time.
fn means_other(text: &str) -> bool {
    static FLOAT: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$").ok());
    static SIXTIES: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"^[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?$").ok());
    let is = |pattern: &LazyLock<Option<Regex>>, text: &str| pattern.as_ref().is_some_and(|regex| regex.is_match(text));
    if WORDS.contains(&text) {
        return true;
    }
    match text.as_bytes().first() {
        Some(b'.') => is(&FLOAT, text),
        Some(b'+' | b'-' | b'0'..=b'9') => {
            let plain = text.replace('_', "");
            is_integer(&plain) || is(&FLOAT, &plain) || is(&SIXTIES, text) || is_time(text)
        }
        _ => false,
    }
}

/// A whole number in any of Go's notations.
fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', b'b' | b'B', ..] => (&digits[2..], 2),
        [b'0', b'o' | b'O', ..] => (&digits[2..], 8),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    !digits.starts_with(['+', '-']) && u64::from_str_radix(digits, radix).is_ok()
}

/// A day, or a time of one.
fn is_time(text: &str) -> bool {
    static TIME: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let day = r"^([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})";
        let time = r"([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:\.[0-9]+)?";
        Regex::new(&format!("{day}(?:(?:[Tt]{time}(?:Z|[-+][0-9]{{2}}:[0-9]{{2}})| {time}))?$")).ok()
    });
    let Some(found) = TIME.as_ref().and_then(|regex| regex.captures(text)) else { return false };
    let number = |at: usize| found.get(at).and_then(|part| part.as_str().parse::<i16>().ok());
    let within = |at: usize, most: i16| number(at).is_none_or(|value| value < most);
    let clock = |first: usize| within(first, 24) && within(first + 1, 60) && within(first + 2, 60);
    is_day(number(1), number(2), number(3)) && clock(4) && clock(7)
}

/// Whether the calendar has the day.
fn is_day(year: Option<i16>, month: Option<i16>, day: Option<i16>) -> bool {
    let (Some(year), Some(month), Some(day)) = (year, month, day) else { return false };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The string as the value of a field.
    fn check(text: &str, expected: &str) {
        let mut writer = Writer::default();
        writer.key("a", 0);
        writer.text(text, 2);
        writer.end();
        assert_eq!(String::from_utf8(writer.take()).unwrap(), format!("a: {expected}\n"), "{text:?}");
    }

    #[test]
    fn text_stays_text() {
        for plain in [
            "Always",
            "two words",
            "/var/lib",
            "f:metadata",
            "k:{\"uid\":\"x\"}",
            "-x",
            "a,b",
            "<a&b>",
            "1.2.3",
            "v1",
            "é",
            "=",
            "100m",
            "0.5Gi",
            "12:3a",
            "x#y",
        ] {
            check(plain, plain);
        }
        for quoted in [
            "",
            "yes",
            "Null",
            "1",
            "0x1f",
            "-1.5e3",
            "1_000",
            ".5",
            "017",
            "12:30",
            "2001-01-01",
            "2001-01-01T00:00:00Z",
            "2001-01-01 10:00:00",
            "~",
        ] {
            check(quoted, &format!("\"{quoted}\""));
        }
        for single in ["- a", "key: value", "a #comment", "end:", "end ", "*a", "%", "{}", "[1]", "---", "\"q\"", ": x"]
        {
            check(single, &format!("'{single}'"));
        }
        check("it's: so", "'it''s: so'");
        check("2001-13-01", "2001-13-01");
        check("a\tb", "\"a\\tb\"");
        check("\u{7f}\u{85}ü😀", "\"\\x7F\\Nü\\U0001F600\"");
        check("a\u{2028}b", "'a\u{2028}b'");
    }

    #[test]
    fn lines_are_a_block() {
        check("one\ntwo\n", "|\n  one\n  two");
        check("one\n\ntwo", "|-\n  one\n\n  two");
        check(" lead\nx", "|2-\n   lead\n  x");
        check("x\n\n", "|+\n  x\n");
        check("x \ny", "\"x \\ny\"");
        check("x\r\ny", "\"x\\r\\ny\"");
    }

    #[test]
    fn long_lines_are_folded() {
        let words = |n: usize| vec!["word"; n].join(" ");
        check(&words(20), &format!("{}\n  {}", words(16), words(4)));
        check(&format!("{}: x", words(20)), &format!("'{}\n  {}: x'", words(16), words(4)));
        check(&format!("{}\t", words(20)), &format!("\"{}\n  {}\\t\"", words(16), words(4)));
        let unbroken = "x".repeat(200);
        check(&unbroken, &unbroken);
    }

    #[test]
    fn keys_are_scalars_too() {
        let check = |name: &str, expected: &str| {
            let mut writer = Writer::default();
            writer.key(name, 0);
            writer.word("1");
            writer.end();
            assert_eq!(String::from_utf8(writer.take()).unwrap(), expected);
        };
        check(".", ".: 1\n");
        check("true", "\"true\": 1\n");
        check("a: b", "'a: b': 1\n");
        check("", "\"\": 1\n");
        check("a\nb", "? |-\n  a\n  b\n: 1\n");
        let long = "k".repeat(129);
        check(&long, &format!("? {long}\n: 1\n"));
    }
}

//! Regular expressions of users. They are in Go's dialect and run on Rust's engine, whose dialect gives other meanings to
//! `\w`, `\b`, `&&` in classes and more: each pattern is read by Go's rules and written anew. Nothing is handed on unread.
//! Matching takes time in proportion to the text, and reading a pattern in proportion to the pattern.
//! Upstream counterpart: regexp/syntax.

use regex::{Regex, RegexBuilder};

use crate::go_class::{class, shorthand};
use crate::go_escape::{ESCAPE, Refused, before, escape, refused};

/// The memory that one compiled pattern may take.
const SIZE_MAX: usize = 1 << 20;
/// The levels of nesting that a pattern may have; Go allows 1000, the engine's stack does not.
const DEPTH_MAX: u32 = 250;
/// The most that a count, and the product of nested counts, may be.
const REPEAT_MAX: u32 = 1000;

/// Compiles a pattern of Go's dialect. The error is Go's text.
pub fn compile_pattern(text: &str) -> Result<Regex, String> {
    let translated = Reader::read(text).map_err(|error| error.to_string())?;
    let mut builder = RegexBuilder::new(&translated);
    builder.size_limit(SIZE_MAX).dfa_size_limit(SIZE_MAX).nest_limit(DEPTH_MAX);
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => format!("error parsing regexp: expression too large: `{text}`"),
        // The translated text has no other fault than its depth.
        _ => format!("error parsing regexp: {NESTS}: `{text}`"),
    })
}

const COUNT: &str = "invalid repeat count";
const NESTS: &str = "expression nests too deeply";

#[derive(Clone, Copy, Default)]
struct Flags {
    fold: bool,
    lines: bool,
    dot_all: bool,
    /// Repeats take as little as they can; `?` behind one turns that around.
    lazy: bool,
}

/// The last thing read, which a repeat would repeat: its place in the output.
struct Operand {
    start: usize,
    end: usize,
    /// The largest product of nested counts in it.
    copies: u32,
    /// Repeats around it.
    repeats: u32,
}

/// A repeat operator: the text that begins with it, and the text behind it.
struct Repeat<'t> {
    text: &'t str,
    rest: &'t str,
    /// The text of the repeat directly before it.
    last: Option<&'t str>,
    /// How many copies of the operand it makes at the most, if it counts.
    count: Option<u32>,
}

/// An open parenthesis: the state outside of it.
struct Group {
    start: usize,
    flags: Flags,
    copies: u32,
}

#[derive(Default)]
struct Reader<'t> {
    whole: &'t str,
    /// The length of the text from the last `:]` on, which ends a class by name.
    names: usize,
    out: String,
    groups: Vec<Group>,
    flags: Flags,
    /// The largest product of counts in the open group, its last operand aside.
    copies: u32,
    operand: Option<Operand>,
    /// The text from the repeat on that was read last, if that was the last thing read.
    repeat: Option<&'t str>,
}

impl<'t> Reader<'t> {
    fn read(whole: &'t str) -> Result<String, Refused> {
        let names = whole.rfind(":]").map_or(0, |at| whole.len() - at);
        let mut reader = Reader { whole, names, copies: 1, ..Reader::default() };
        let mut rest = whole;
        while let Some(c) = rest.chars().next() {
            let last = reader.repeat.take();
            rest = reader.step(c, rest, last)?;
        }
        if reader.groups.is_empty() { Ok(reader.out) } else { refused("missing closing )", whole) }
    }

    /// Reads one thing and returns the text behind it. `last` is the text of a repeat that has just been read.
    fn step(&mut self, c: char, text: &'t str, last: Option<&'t str>) -> Result<&'t str, Refused> {
        let rest = &text[c.len_utf8()..];
        match c {
            '(' if rest.starts_with('?') => return self.extended_group(text),
            '(' => self.open(self.flags, "(?:"),
            ')' => self.close()?,
            '|' => {
                self.settle();
                self.out.push('|');
            }
            '^' | '$' | '.' => self.push(c.encode_utf8(&mut [0; 4])),
            '[' => {
                let mut class_text = String::new();
                let rest = class(text, self.names, &mut class_text)?;
                self.push(&class_text);
                return Ok(rest);
            }
            '*' | '+' | '?' => return self.repeat(Repeat { text, rest, last, count: None }),
            '{' => match counts(text) {
                Some((counts, rest)) => {
                    let Some(count) = counts.copies() else { return refused(COUNT, before(text, rest)) };
                    return self.repeat(Repeat { text, rest, last, count: Some(count) });
                }
                None => self.literal('{'),
            },
            '\\' => return self.backslash(text),
            c => self.literal(c),
        }
        Ok(rest)
    }

    fn backslash(&mut self, text: &'t str) -> Result<&'t str, Refused> {
        match text.as_bytes().get(1) {
            Some(b'A') => self.push("\\A"),
            Some(b'z') => self.push("\\z"),
            Some(b'b') => self.push("(?-u:\\b)"),
            Some(b'B') => self.push("(?-u:\\B)"),
            Some(b'C') => return refused(ESCAPE, &text[..2]),
            Some(b'Q') => {
                let (literals, rest) = text[2..].split_once("\\E").unwrap_or((&text[2..], ""));
                literals.chars().for_each(|c| self.literal(c));
                return Ok(rest);
            }
            _ => {
                if let Some((class, rest)) = shorthand(text)? {
                    self.push(&class);
                    return Ok(rest);
                }
                let (code, rest) = escape(text)?;
                match char::from_u32(code) {
                    Some(c) => self.literal(c),
                    // No text has surrogates.
                    None => self.push("[^\\x00-\\x{10FFFF}]"),
                }
                return Ok(rest);
            }
        }
        Ok(&text[2..])
    }

    fn literal(&mut self, c: char) {
        self.push(&regex::escape(c.encode_utf8(&mut [0; 4])));
    }

    /// Appends something that can be repeated.
    fn push(&mut self, translated: &str) {
        self.settle();
        let start = self.out.len();
        self.out.push_str(translated);
        self.operand = Some(Operand { start, end: self.out.len(), copies: 1, repeats: 0 });
    }

    /// No repeat can follow any more for what has been read.
    fn settle(&mut self) {
        if let Some(operand) = self.operand.take() {
            self.copies = self.copies.max(operand.copies);
        }
    }

    /// Groups capture nothing here, since nobody asks for what they captured.
    fn open(&mut self, flags: Flags, translated: &str) {
        self.settle();
        self.groups.push(Group { start: self.out.len(), flags: self.flags, copies: self.copies });
        self.out.push_str(translated);
        (self.flags, self.copies) = (flags, 1);
    }

    fn close(&mut self) -> Result<(), Refused> {
        self.settle();
        let Some(group) = self.groups.pop() else { return refused("unexpected )", self.whole) };
        self.out.push(')');
        let inside = std::mem::replace(&mut self.copies, group.copies);
        self.flags = group.flags;
        self.operand = Some(Operand { start: group.start, end: self.out.len(), copies: inside, repeats: 0 });
        Ok(())
    }

    /// `(?P<name>`, `(?<name>`, `(?i)` and `(?i:`.
    fn extended_group(&mut self, text: &'t str) -> Result<&'t str, Refused> {
        let named = text.strip_prefix("(?P<").or_else(|| text.strip_prefix("(?<")).filter(|name| !name.is_empty());
        if let Some(name) = named {
            let Some((name, rest)) = name.split_once('>') else { return refused("invalid named capture", text) };
            if name.is_empty() || !name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric()) {
                return refused("invalid named capture", before(text, rest));
            }
            self.open(self.flags, "(?:");
            return Ok(rest);
        }
        let (flags, group, rest) = set_flags(self.flags, text)?;
        let translated = flags.translated(group);
        if group {
            self.open(flags, &translated);
        } else {
            // The operand before the flags can still be repeated.
            self.out.push_str(&translated);
            self.flags = flags;
        }
        Ok(rest)
    }

    /// Repeats the last operand, and returns the text behind the repeat.
    fn repeat(&mut self, repeat: Repeat<'t>) -> Result<&'t str, Refused> {
        let Repeat { text, rest, last, count } = repeat;
        // The operators mean the same to both engines.
        let operator = before(text, rest);
        let (turned, rest) = rest.strip_prefix('?').map_or((false, rest), |rest| (true, rest));
        if let Some(last) = last {
            return refused("invalid nested repetition operator", before(last, rest));
        }
        let Some(operand) = &mut self.operand else {
            return refused("missing argument to repetition operator", before(text, rest));
        };
        operand.copies = match count {
            Some(0) => 1,
            count => operand.copies.saturating_mul(count.unwrap_or(1)),
        };
        if operand.copies > REPEAT_MAX {
            return refused(COUNT, before(text, rest));
        }
        if operand.repeats > 0 {
            // `a*(?i)?` repeats `a*`, and is not its lazy form.
            self.out.insert_str(operand.start, "(?:");
            self.out.insert(operand.end + 3, ')');
            operand.end += 4;
        }
        operand.repeats += 1;
        if operand.repeats > DEPTH_MAX {
            return refused(NESTS, self.whole);
        }
        let lazy = if turned == self.flags.lazy { "" } else { "?" };
        self.out.insert_str(operand.end, operator);
        self.out.insert_str(operand.end + operator.len(), lazy);
        operand.end += operator.len() + lazy.len();
        self.repeat = Some(text);
        Ok(rest)
    }
}

impl Flags {
    fn translated(self, group: bool) -> String {
        let (mut on, mut off) = (String::new(), String::new());
        for (flag, set) in [('i', self.fold), ('m', self.lines), ('s', self.dot_all)] {
            if set { &mut on } else { &mut off }.push(flag);
        }
        let minus = if off.is_empty() { "" } else { "-" };
        format!("(?{on}{minus}{off}{}", if group { ':' } else { ')' })
    }
}

/// The flags behind `(?`, whether a group follows, and the text behind `:` or `)`.
fn set_flags(mut flags: Flags, text: &str) -> Result<(Flags, bool, &str), Refused> {
    let mut chars = text[2..].chars();
    // Whether flags are switched on, and whether one was named since `-`.
    let (mut on, mut named) = (true, false);
    loop {
        match chars.next() {
            Some('i') => flags.fold = on,
            Some('m') => flags.lines = on,
            Some('s') => flags.dot_all = on,
            Some('U') => flags.lazy = on,
            Some('-') if on => {
                (on, named) = (false, false);
                continue;
            }
            Some(end @ (':' | ')')) if on || named => return Ok((flags, end == ':', chars.as_str())),
            _ => return refused("invalid or unsupported Perl syntax", before(text, chars.as_str())),
        }
        named = true;
    }
}

struct Counts {
    least: u32,
    most: Option<u32>,
}

impl Counts {
    /// How many copies they make at the most, 0 if the operand vanishes. Some are too large, or the wrong way round.
    fn copies(&self) -> Option<u32> {
        let copies = self.most.unwrap_or(self.least.max(1));
        (copies <= REPEAT_MAX && self.least <= self.most.unwrap_or(REPEAT_MAX)).then_some(copies)
    }
}

/// `{2}`, `{2,}` or `{2,3}`, and the text behind it. Anything else is no repeat.
fn counts(text: &str) -> Option<(Counts, &str)> {
    let (least, rest) = number(&text[1..])?;
    let (most, rest) = match rest.strip_prefix(',') {
        None => (Some(least), rest),
        Some(rest) if rest.starts_with('}') => (None, rest),
        Some(rest) => number(rest).map(|(most, rest)| (Some(most), rest))?,
    };
    Some((Counts { least, most }, rest.strip_prefix('}')?))
}

/// A decimal number without leading zeros; one that is far too large is the largest.
fn number(text: &str) -> Option<(u32, &str)> {
    let count = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(count);
    if digits.is_empty() || (digits.len() > 1 && digits.starts_with('0')) {
        return None;
    }
    Some((digits.parse().unwrap_or(u32::MAX), rest))
}

//! Numbers, strings and bytes as they are written.

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    /// A magnitude: the sign is a token of its own.
    Int(u64),
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
}

type Read = Result<(Literal, usize), (String, usize)>;

pub(super) fn number(chars: &[char]) -> Read {
    let digits = |from: usize| chars[from..].iter().take_while(|c| c.is_ascii_digit()).count();
    let unsigned = |end: usize| matches!(chars.get(end), Some('u' | 'U'));
    if chars[0] == '0' && matches!(chars.get(1), Some('x' | 'X')) {
        let count = chars[2..].iter().take_while(|c| c.is_ascii_hexdigit()).count();
        if count > 0 {
            let text: String = chars[2..2 + count].iter().collect();
            return integer(u64::from_str_radix(&text, 16).ok(), 2 + count, unsigned(2 + count));
        }
    }
    let mut end = digits(0);
    let mut whole = true;
    if chars.get(end) == Some(&'.') && digits(end + 1) > 0 {
        end += 1 + digits(end + 1);
        whole = false;
    }
    if matches!(chars.get(end), Some('e' | 'E')) {
        let sign = usize::from(matches!(chars.get(end + 1), Some('+' | '-')));
        let start = (end + 1 + sign).min(chars.len());
        let exponent = digits(start);
        if exponent > 0 {
            end = start + exponent;
            whole = false;
        }
    }
    let text: String = chars[..end].iter().collect();
    if whole {
        return integer(text.parse().ok(), end, unsigned(end));
    }
    let double = text.parse::<f64>().ok().filter(|d| d.is_finite());
    double.map(|d| (Literal::Double(d), end)).ok_or(("invalid double literal".to_owned(), end))
}

fn integer(value: Option<u64>, end: usize, unsigned: bool) -> Read {
    match (value, unsigned) {
        (Some(value), true) => Ok((Literal::Uint(value), end + 1)),
        (None, true) => Err(("invalid uint literal".to_owned(), end + 1)),
        (Some(value), false) if value <= 1 << 63 => Ok((Literal::Int(value), end)),
        (_, false) => Err(("invalid int literal".to_owned(), end)),
    }
}

/// A string or bytes literal, if one begins here.
pub(super) fn string(chars: &[char]) -> Option<Read> {
    let prefix = chars.iter().take(2).take_while(|c| "rRbB".contains(**c)).count();
    let (mut raw, mut bytes) = (false, false);
    for letter in &chars[..prefix] {
        let flag = if letter.eq_ignore_ascii_case(&'r') { &mut raw } else { &mut bytes };
        if *flag {
            return None;
        }
        *flag = true;
    }
    let quote = *chars.get(prefix).filter(|c| matches!(c, '"' | '\''))?;
    let triple = chars[prefix..].len() >= 3 && chars[prefix..prefix + 3].iter().all(|c| *c == quote);
    let marks = if triple { 3 } else { 1 };
    let start = prefix + marks;
    let mut end = start;
    loop {
        let unterminated = || {
            let text: String = chars[..end.min(chars.len())].iter().take(40).collect();
            Some(Err((format!("Syntax error: token recognition error at: '{text}'"), end)))
        };
        match chars.get(end) {
            None => return unterminated(),
            Some('\n' | '\r') if !triple => return unterminated(),
            Some('\\') if !raw => end += 2,
            Some(c)
                if *c == quote
                    && chars[end..].len() >= marks
                    && chars[end..end + marks].iter().all(|c| *c == quote) =>
            {
                break;
            }
            Some(_) => end += 1,
        }
    }
    let length = end + marks;
    let content = &chars[start..end];
    let read = if raw { Ok(plain(content)) } else { unescape(content, bytes) };
    Some(match read {
        Ok(units) if bytes => Ok((Literal::Bytes(units.into_iter().flat_map(Unit::bytes).collect()), length)),
        Ok(units) => {
            let text: Option<String> = units.into_iter().map(Unit::char).collect();
            text.map(|t| (Literal::String(t), length)).ok_or(("invalid string literal".to_owned(), length))
        }
        Err(message) => Err((message, length)),
    })
}

enum Unit {
    Char(char),
    Byte(u8),
}

impl Unit {
    fn bytes(self) -> Vec<u8> {
        match self {
            Unit::Char(c) => c.to_string().into_bytes(),
            Unit::Byte(b) => vec![b],
        }
    }

    fn char(self) -> Option<char> {
        match self {
            Unit::Char(c) => Some(c),
            Unit::Byte(_) => None,
        }
    }
}

fn plain(content: &[char]) -> Vec<Unit> {
    content.iter().map(|c| Unit::Char(*c)).collect()
}

fn unescape(content: &[char], bytes: bool) -> Result<Vec<Unit>, String> {
    let mut units = Vec::new();
    let mut at = 0;
    while at < content.len() {
        if content[at] != '\\' {
            units.push(Unit::Char(content[at]));
            at += 1;
            continue;
        }
        let letter = *content.get(at + 1).ok_or("unable to unescape string, found '\\' as last character")?;
        let simple = match letter {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '\\' | '?' | '"' | '\'' | '`' => letter,
            _ => {
                let (unit, length) = numbered(&content[at + 1..], bytes)?;
                units.push(unit);
                at += 1 + length;
                continue;
            }
        };
        units.push(Unit::Char(simple));
        at += 2;
    }
    Ok(units)
}

/// `x41`, `u0041`, `U00000041`, `101`: a code point or, in bytes, a byte.
fn numbered(rest: &[char], bytes: bool) -> Result<(Unit, usize), String> {
    let (skip, count, radix) = match rest[0] {
        'x' | 'X' => (1, 2, 16),
        'u' if !bytes => (1, 4, 16),
        'U' if !bytes => (1, 8, 16),
        '0'..='3' => (0, 3, 8),
        _ => return Err("unable to unescape string".to_owned()),
    };
    let digits: String = rest.get(skip..skip + count).ok_or("unable to unescape string")?.iter().collect();
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return Err("unable to unescape string".to_owned());
    }
    let value = u32::from_str_radix(&digits, radix).map_err(|_| "unable to unescape string")?;
    let unit = match u8::try_from(value) {
        Ok(byte) if bytes => Unit::Byte(byte),
        _ => Unit::Char(char::from_u32(value).ok_or("invalid unicode code point")?),
    };
    Ok((unit, skip + count))
}

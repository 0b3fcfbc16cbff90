//! `'%s has %d'.format([name, count])`.

use super::conversion::double_text;
use super::cost;
use super::time::duration_text;
use crate::cost_rule::rules as estimate;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::value::{Value, quoted};

pub(super) const LIBRARY: Library = Library {
    functions: &[function("string::format(list<dyn>): string", format).costs(cost::first).estimated(estimate::first)],
    types: &[],
};

/// Decimals of `%f` and `%e` where none are asked for, and the most that may be.
const PRECISION: usize = 6;
const MOST_DECIMALS: usize = 1000;

type Text = Result<String, EvaluationError>;

fn failed(what: &str, why: &str) -> EvaluationError {
    EvaluationError::new(format!("{what}: {why}"))
}

fn format<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Result<Value<'a>, EvaluationError> {
    let [Value::String(pattern), Value::List(arguments)] = given else {
        return Err(EvaluationError::no_such_overload());
    };
    let (mut made, mut rest, mut next) = (String::new(), &**pattern, 0);
    while let Some(at) = rest.find('%') {
        made.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            made.push('%');
            rest = after;
            continue;
        }
        let Some(argument) = arguments.get(next) else {
            return Err(EvaluationError::new(format!("index {next} out of range")));
        };
        next += 1;
        let (precision, after) = precision(rest)?;
        let letter = after.chars().next().ok_or_else(|| EvaluationError::new("unexpected end of string"))?;
        let text = clause(call, letter, precision, &argument)?;
        call.making(made.len() + text.len())?;
        made.push_str(&text);
        rest = &after[letter.len_utf8()..];
    }
    made.push_str(rest);
    call.making(made.len())?;
    Ok(Value::string(made))
}

/// `.3` in front of a clause's letter.
fn precision(text: &str) -> Result<(usize, &str), EvaluationError> {
    let Some(digits) = text.strip_prefix('.') else { return Ok((PRECISION, text)) };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let number = digits[..end].parse().ok().filter(|n| *n <= MOST_DECIMALS);
    let wrong = || failed("could not parse formatting clause", "error while parsing precision");
    Ok((number.ok_or_else(wrong)?, &digits[end..]))
}

fn clause(call: &mut Call<'_>, letter: char, precision: usize, value: &Value<'_>) -> Text {
    let wrong = |only: &str| {
        let kind = value.type_of();
        failed("error during formatting", &format!("{only}, was given {}", name(&kind.to_string())))
    };
    match (letter, value) {
        ('s', value) => plain(call, value, 0).map_err(|_| {
            wrong(
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, \
                 and timestamps",
            )
        }),
        ('d', Value::Int(i)) => Ok(i.to_string()),
        ('d', Value::Uint(u)) => Ok(u.to_string()),
        ('d', _) => Err(wrong("decimal clause can only be used on integers")),
        ('f', value) => match double(value) {
            Some(d) if d.is_finite() => Ok(grouped(&format!("{d:.precision$}"))),
            Some(d) => Ok(special(d)),
            None => Err(wrong("fixed-point clause can only be used on doubles")),
        },
        ('e', value) => match double(value) {
            Some(d) if d.is_finite() => Ok(scientific(d, precision)),
            Some(d) => Ok(special(d)),
            None => Err(wrong("scientific clause can only be used on doubles")),
        },
        ('b', Value::Int(i)) => Ok(signed(*i, |u| format!("{u:b}"))),
        ('b', Value::Uint(u)) => Ok(format!("{u:b}")),
        ('b', Value::Bool(b)) => Ok(u8::from(*b).to_string()),
        ('b', _) => Err(wrong("only integers and bools can be formatted as binary")),
        ('x', Value::Int(i)) => Ok(signed(*i, |u| format!("{u:x}"))),
        ('X', Value::Int(i)) => Ok(signed(*i, |u| format!("{u:X}"))),
        ('x', Value::Uint(u)) => Ok(format!("{u:x}")),
        ('X', Value::Uint(u)) => Ok(format!("{u:X}")),
        ('x' | 'X', Value::String(text)) => hex(call, text.as_bytes(), letter),
        ('x' | 'X', Value::Bytes(bytes)) => hex(call, bytes, letter),
        ('x' | 'X', _) => Err(wrong("only integers, byte buffers, and strings can be formatted as hex")),
        ('o', Value::Int(i)) => Ok(signed(*i, |u| format!("{u:o}"))),
        ('o', Value::Uint(u)) => Ok(format!("{u:o}")),
        ('o', _) => Err(wrong("octal clause can only be used on integers")),
        (other, _) => {
            let why = format!("unrecognized formatting clause \"{other}\"");
            Err(failed("could not parse formatting clause", &why))
        }
    }
}

/// The name of a type without what is inside of it.
fn name(shown: &str) -> &str {
    shown.split('(').next().unwrap_or(shown)
}

fn double(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Double(d) => Some(*d),
        Value::String(text) => match &**text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn special(d: f64) -> String {
    if d.is_nan() {
        "NaN"
    } else if d > 0.0 {
        "∞"
    } else {
        "-∞"
    }
    .to_owned()
}

/// Thousands apart, as printers of English write them.
fn grouped(text: &str) -> String {
    let start = text.find(|c: char| c.is_ascii_digit()).unwrap_or(0);
    let end = text.find('.').unwrap_or(text.len());
    let mut made = text[..start].to_owned();
    for (at, digit) in text[start..end].char_indices() {
        if at > 0 && (end - start - at).is_multiple_of(3) {
            made.push(',');
        }
        made.push(digit);
    }
    made + &text[end..]
}

/// The exponent as printers of languages write it.
fn scientific(d: f64, precision: usize) -> String {
    let text = format!("{d:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}\u{202f}×\u{202f}10{}", superscript(sign, exponent.abs()))
}

fn superscript(sign: char, exponent: i32) -> String {
    let digit = |c: char| match c {
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        '0' => '⁰',
        other => char::from_u32(0x2070 + other.to_digit(10).unwrap_or(0)).unwrap_or(other),
    };
    let digits: String = format!("{exponent:02}").chars().map(digit).collect();
    if sign == '-' { format!("⁻{digits}") } else { digits }
}

fn signed(value: i64, write: fn(u64) -> String) -> String {
    let digits = write(value.unsigned_abs());
    if value < 0 { format!("-{digits}") } else { digits }
}

fn hex(call: &mut Call<'_>, bytes: &[u8], letter: char) -> Text {
    call.making(bytes.len() * 2)?;
    let byte = |b: &u8| if letter == 'x' { format!("{b:02x}") } else { format!("{b:02X}") };
    Ok(bytes.iter().map(byte).collect())
}

/// A value as `%s` shows it.
fn plain(call: &mut Call<'_>, value: &Value<'_>, depth: usize) -> Text {
    call.budget.work(1)?;
    Ok(match value {
        Value::Double(d) => double_text(*d),
        Value::Duration(nanos) => duration_text(*nanos),
        Value::List(_) | Value::Map(_) if depth > 300 => return Err(EvaluationError::new("nested too deeply")),
        Value::List(list) => {
            let mut parts = Vec::new();
            for item in list.iter() {
                parts.push(inner(call, &item, depth + 1)?);
            }
            format!("[{}]", parts.join(", "))
        }
        Value::Map(map) => {
            let mut parts = Vec::new();
            for key in map.keys() {
                let value = map.get(&key)?.unwrap_or(Value::Null);
                parts.push(format!("{}:{}", inner(call, &key, depth + 1)?, inner(call, &value, depth + 1)?));
            }
            parts.sort();
            format!("{{{}}}", parts.join(", "))
        }
        Value::Optional(_) | Value::Opaque(_) | Value::Object(_) => return Err(EvaluationError::no_such_overload()),
        Value::String(text) => {
            call.making(text.len())?;
            text.to_string()
        }
        other => other.to_string(),
    })
}

/// A value inside of another one, as the language writes it.
fn inner(call: &mut Call<'_>, value: &Value<'_>, depth: usize) -> Text {
    Ok(match value {
        Value::String(text) => {
            call.making(text.len() * 2)?;
            quoted(text)
        }
        Value::Bytes(bytes) => format!("b{}", quoted(&String::from_utf8_lossy(bytes))),
        Value::Timestamp(at) => format!("timestamp(\"{at}\")"),
        Value::Duration(nanos) => format!("duration(\"{}\")", duration_text(*nanos)),
        Value::Double(d) if d.is_finite() => format!("{d:.PRECISION$}"),
        other => plain(call, other, depth)?,
    })
}

//! Texts with a form of their own: times, quantities, base64.

use ::base64::DecodeError;
use jiff::{Timestamp, fmt::temporal::DateTimeParser};

use crate::codec::base64;
use crate::rules::quantity;

/// A time in whole seconds UTC, `2006-01-02T15:04:05Z`; the text itself where it has that form already.
pub fn time(text: &str) -> Result<String, String> {
    if is_plain_time(text) {
        return Ok(text.to_owned());
    }
    Ok(parse_time(text)?.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// A time with six digits of a second, `2006-01-02T15:04:05.000000Z`.
pub fn micro_time(text: &str) -> Result<String, String> {
    Ok(parse_time(text)?.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string())
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    const RFC3339: DateTimeParser = DateTimeParser::new();
    let shaped = text.as_bytes().get(10).is_some_and(|b| b.eq_ignore_ascii_case(&b'T'));
    let parsed = RFC3339.parse_timestamp(text).ok().filter(|_| shaped);
    parsed.ok_or_else(|| {
        format!("parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\"")
    })
}

/// Whether the text is a valid time in canonical form; the cheap checks that cover nearly all input.
fn is_plain_time(text: &str) -> bool {
    let b = text.as_bytes();
    let digits = |at: &[usize]| at.iter().all(|&i| b[i].is_ascii_digit());
    let two = |i: usize| (b[i] - b'0') * 10 + (b[i + 1] - b'0');
    b.len() == 20
        && b[4] == b'-'
        && b[7] == b'-'
        && b[10] == b'T'
        && b[13] == b':'
        && b[16] == b':'
        && b[19] == b'Z'
        && digits(&[0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18])
        && (1..=12).contains(&two(5))
        && (1..=28).contains(&two(8))
        && two(11) < 24
        && two(14) < 60
        && two(17) < 60
}

/// The canonical form of a quantity.
pub fn quantity(text: &str) -> Result<String, String> {
    text.parse::<quantity::Quantity>().map(|amount| amount.to_string()).map_err(|why| why.to_string())
}

/// The canonical form of standard base64.
pub fn base64(text: &str) -> Result<String, String> {
    base64::decode(text).map(|_| base64::plain(text).into_owned()).map_err(|e| {
        let at = match e {
            DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => at,
            _ => text.len(),
        };
        format!("illegal base64 data at input byte {at}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_canonical() {
        let check = |input, expected: Result<&str, ()>| {
            assert_eq!(time(input).map_err(drop).as_deref(), expected.as_ref().copied().map_err(|()| &()), "{input}")
        };
        check("2024-02-03T04:05:06Z", Ok("2024-02-03T04:05:06Z"));
        check("2024-02-03T04:05:06.789Z", Ok("2024-02-03T04:05:06Z"));
        check("2024-02-03T04:05:06+02:00", Ok("2024-02-03T02:05:06Z"));
        check("2024-02-30T04:05:06Z", Err(()));
        check("2024-02-03", Err(()));
        check("soon", Err(()));
        assert_eq!(super::base64("QUJD\r\nREVG\n").as_deref(), Ok("QUJDREVG"));
        assert_eq!(micro_time("2024-02-03T04:05:06Z").as_deref(), Ok("2024-02-03T04:05:06.000000Z"));
    }
}

//! The formats that texts of custom objects are checked against. Others are allowed in schemas and mean nothing.
//! Upstream counterpart: kube-openapi/pkg/validation/strfmt, with the names of apiextensions-apiserver.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;

use base64::Engine;
use regex::Regex;

use crate::rules::ip;

type Check = fn(&str) -> bool;

/// By name without dashes.
const FORMATS: &[(&str, Check)] = &[
    ("bsonobjectid", |s| s.len() == 24 && hex(s)),
    ("byte", |s| !s.is_empty() && base64::engine::general_purpose::STANDARD.decode(s).is_ok()),
    ("cidr", is_cidr),
    ("creditcard", is_credit_card),
    ("date", is_date),
    ("datetime", is_date_time),
    ("duration", is_duration),
    ("email", is_email),
    ("hexcolor", |s| {
        matches!(s.trim_start_matches('#').len(), 3 | 6) && s.len() < 8 && hex(s.strip_prefix('#').unwrap_or(s))
    }),
    ("hostname", is_hostname),
    ("ipv4", |s| s.contains('.') && ip::parse_v4(s).is_some()),
    ("ipv6", |s| s.contains(':') && s.parse::<Ipv6Addr>().is_ok()),
    ("isbn", |s| is_isbn10(s) || is_isbn13(s)),
    ("isbn10", is_isbn10),
    ("isbn13", is_isbn13),
    ("k8slongname", |s| s.len() <= 253 && s.split('.').all(is_name)),
    ("k8sshortname", |s| s.len() <= 63 && is_name(s)),
    ("mac", is_mac),
    ("password", |_| true),
    ("rgbcolor", |s| RGB.is_match(s)),
    ("ssn", |s| SSN.is_match(s)),
    ("uri", |s| cel::check_uri(s).is_ok()),
    ("uuid", |s| is_uuid(s, None)),
    ("uuid3", |s| is_uuid(s, Some('3'))),
    ("uuid4", |s| is_uuid(s, Some('4'))),
    ("uuid5", |s| is_uuid(s, Some('5'))),
];

static RGB: LazyLock<Regex> = LazyLock::new(|| {
    let part = "\\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\\s*";
    Regex::new(&format!("^rgb\\({part},{part},{part}\\)$")).expect("a valid pattern")
});
static SSN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$").expect("a valid pattern"));
static SCALA: LazyLock<Regex> = LazyLock::new(|| Regex::new("([0-9]+)\\s*([A-Za-zµ]+)").expect("a valid pattern"));
static HOSTNAME: LazyLock<Regex> = LazyLock::new(|| {
    let sign = "a-zA-Z0-9\\p{S}\\p{L}";
    let pattern = format!(
        "^([{sign}]((-?[{sign}]{{0,62}})?)|([{sign}](([{sign}-]{{0,61}}[{sign}])?)(\\.)){{1,}}([a-zA-Z\\p{{L}}]){{2,63}})$"
    );
    Regex::new(&pattern).expect("a valid pattern")
});
static DATE_TIME: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new("^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$").expect("a valid pattern")
});

fn find(name: &str) -> Option<Check> {
    let plain = name.replace('-', "");
    FORMATS.binary_search_by(|(known, _)| (*known).cmp(&plain)).ok().map(|at| FORMATS[at].1)
}

/// Whether a format is checked at all.
pub fn is_known(name: &str) -> bool {
    find(name).is_some()
}

/// Whether a text has the format. One that is not known holds for every text.
pub fn fits(name: &str, text: &str) -> bool {
    find(name).is_none_or(|check| check(text))
}

fn hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().copied().is_some_and(inner)
        && bytes.last().copied().is_some_and(inner)
        && bytes.iter().all(|b| inner(*b) || *b == b'-')
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let most = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) if ip::parse_v4(address).is_some() => 32,
        Err(_) => return false,
    };
    bits.len() <= 3 && bits.bytes().all(|b| b.is_ascii_digit()) && bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

fn is_mac(text: &str) -> bool {
    for separator in [':', '-'] {
        let parts: Vec<&str> = text.split(separator).collect();
        if matches!(parts.len(), 6 | 8 | 20) {
            return parts.iter().all(|p| p.len() == 2 && hex(p));
        }
    }
    let parts: Vec<&str> = text.split('.').collect();
    matches!(parts.len(), 3 | 4 | 10) && parts.iter().all(|p| p.len() == 4 && hex(p))
}

/// 32 hexadecimal digits with any of the four usual dashes; the digit of the version stands at a fixed place.
fn is_uuid(text: &str, version: Option<char>) -> bool {
    let mut digits = String::with_capacity(32);
    for c in text.chars() {
        match c {
            '-' if matches!(digits.len(), 8 | 12 | 16 | 20) && !digits.ends_with('-') => digits.push('-'),
            c if c.is_ascii_hexdigit() => {
                if digits.ends_with('-') {
                    digits.pop();
                }
                digits.push(c.to_ascii_lowercase());
            }
            _ => return false,
        }
    }
    let variant = || matches!(digits.as_bytes()[16], b'8' | b'9' | b'a' | b'b');
    digits.len() == 32
        && !digits.ends_with('-')
        && version.is_none_or(|v| digits[12..].starts_with(v) && (v == '3' || variant()))
}

fn is_hostname(text: &str) -> bool {
    HOSTNAME.is_match(text) && text.len() <= 255 && text.split('.').all(|part| part.len() <= 63)
}

/// `local@domain`, also behind a name: `A <a@b>`.
fn is_email(text: &str) -> bool {
    let address = match text.split_once('<') {
        Some((_, rest)) => match rest.trim_end().strip_suffix('>') {
            Some(address) => address,
            None => return false,
        },
        None => text.trim(),
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let atom = |c: char| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    let dotted = |s: &str| s.split('.').all(|part| !part.is_empty() && part.chars().all(atom));
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    (dotted(local) || quoted) && dotted(domain)
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(day), Some(time)) = (parts.next(), parts.next()) else { return false };
    let Some(found) = DATE_TIME.captures(time) else { return false };
    is_date(day) && &found[1] <= "23" && &found[2] <= "59" && &found[3] <= "59"
}

fn is_duration(text: &str) -> bool {
    // Units behind the last of each line may go on: `seconds`, `hours`.
    const WHOLE: [&str; 12] = ["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk", "min"];
    const BEGIN: [&str; 8] = ["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];
    if go_duration(text).is_some() {
        return true;
    }
    SCALA.captures_iter(text).any(|found| {
        let unit = found[2].to_lowercase();
        found[1].parse::<i64>().is_ok() && (WHOLE.contains(&&*unit) || BEGIN.iter().any(|b| unit.starts_with(b)))
    })
}

/// The nanoseconds of a duration as Go writes it: `1h30m`, `-1.5s`.
pub fn go_duration(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos = 0.0f64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|end| *end > 0)?;
        let number: f64 = rest[..end].parse().ok()?;
        let unit_end = rest[end..].find(|c: char| c.is_ascii_digit() || c == '.').map_or(rest.len(), |at| end + at);
        let unit = match &rest[end..unit_end] {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        nanos += number * unit;
        rest = &rest[unit_end..];
    }
    #[expect(clippy::cast_possible_truncation)]
    (nanos < 9.2e18).then_some((sign * nanos) as i64)
}

/// Digits and the marks that people put between them.
fn digits(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, ' ' | '-')).collect()
}

fn is_isbn10(text: &str) -> bool {
    let digits = digits(text);
    let bytes = digits.as_bytes();
    let [first @ .., last] = bytes else { return false };
    if first.len() != 9 || !first.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let last = match last {
        b'X' => 10,
        digit if digit.is_ascii_digit() => u32::from(digit - b'0'),
        _ => return false,
    };
    let sum: u32 = first.iter().zip(1u32..).map(|(digit, place)| place * u32::from(digit - b'0')).sum();
    (sum + 10 * last).is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let digits = digits(text);
    let weighted =
        digits.bytes().zip([1u32, 3].into_iter().cycle()).map(|(b, weight)| weight * u32::from(b.wrapping_sub(b'0')));
    digits.len() == 13 && digits.bytes().all(|b| b.is_ascii_digit()) && weighted.sum::<u32>() % 10 == 0
}

/// The number of a card by its length, its issuer's first digits and Luhn's sum.
fn is_credit_card(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let begins = |from: &[u32]| digits.starts_with(from);
    let issued = match digits.len() {
        13 => begins(&[4]),
        14 => begins(&[3, 0]) || begins(&[3, 6]) || begins(&[3, 8]),
        15 => begins(&[3, 4]) || begins(&[3, 7]) || begins(&[2, 1, 3, 1]) || begins(&[1, 8, 0, 0]),
        16 => begins(&[4]) || begins(&[5]) || begins(&[6]) || begins(&[3, 5]),
        _ => false,
    };
    let doubled = |digit: u32| if digit > 4 { 2 * digit - 9 } else { 2 * digit };
    let sum: u32 =
        digits.iter().rev().enumerate().map(|(at, digit)| if at % 2 == 1 { doubled(*digit) } else { *digit }).sum();
    issued && sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(FORMATS.is_sorted_by_key(|(name, _)| *name));
    }

    #[test]
    fn texts_have_their_formats() {
        let check = |format: &str, right: &[&str], wrong: &[&str]| {
            assert!(is_known(format), "{format}");
            right.iter().for_each(|text| assert!(fits(format, text), "{format}: {text}"));
            wrong.iter().for_each(|text| assert!(!fits(format, text), "{format}: {text}"));
        };
        check("bson-object-id", &["507f1f77bcf86cd799439011"], &["507f1f77bcf86cd79943901"]);
        check("byte", &["aGVsbG8="], &["", "a"]);
        check("cidr", &["192.0.2.0/24", "2001:db8::/32"], &["192.0.2.0", "192.0.2.0/33", "a/1"]);
        check("creditcard", &["4111-1111-1111-1111", "378282246310005"], &["4111-1111-1111-1112", "1"]);
        check("date", &["2006-01-02"], &["2006-13-02", "2006-1-2"]);
        check(
            "date-time",
            &["2014-12-15T19:30:20.000Z", "2014-12-15T19:30:20+01:00"],
            &["2014-12-15", "2014-12-15T25:30:20Z"],
        );
        check("duration", &["22 ns", "1h30m", "3 days", "1.5s"], &["", "1", "a"]);
        check("email", &["a@b.c", "A <a.b@c>"], &["a", "@b", "a b@c"]);
        check("hexcolor", &["#fff", "FFFFFF"], &["#ff", "#ggg"]);
        check("hostname", &["a", "example.com", "1.example.com"], &["a_b", "-a", "a.b-", ""]);
        check("ipv4", &["1.2.3.4"], &["1.2.3", "::1"]);
        check("ipv6", &["::1", "2001:db8::1"], &["1.2.3.4", ":::"]);
        check("isbn", &["0321751043", "978-0321751041"], &["0321751044", "978-0321751042"]);
        check("k8s-short-name", &["a-1"], &["A", "a.b", "-a", ""]);
        check("k8s-long-name", &["a.b-1"], &["a..b", "A.b"]);
        check("mac", &["01:02:03:04:05:06", "0102.0304.0506"], &["01:02:03:04:05", "0g:02:03:04:05:06"]);
        check("rgbcolor", &["rgb(255,255,0)"], &["rgb(256,0,0)", "0,0,0"]);
        check("ssn", &["111-11-1111", "111111111"], &["111-11-111"]);
        check(
            "uri",
            &["http://a/b", "/a", "urn:a:b", "*", "/a b", "//h/p"],
            &["a", "", "http://a b", "http://#%blah$#@", "/p#%zz", "http://a%41/", "http://a:80#x"],
        );
        check("uuid", &["123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000"], &["123e4567"]);
        check("uuid4", &["123e4567-e89b-42d3-a456-426614174000"], &["123e4567-e89b-12d3-a456-426614174000"]);
        assert!(fits("int32", "anything") && !is_known("int32"));
    }
}

//! Writing DER (X.690): as much of it as certificates and requests for them need.

use std::net::IpAddr;

/// Tags of X.680.
const INTEGER: u8 = 2;
const BIT_STRING: u8 = 3;
const OCTET_STRING: u8 = 4;
const OID: u8 = 6;
const UTF8_STRING: u8 = 12;
const PRINTABLE_STRING: u8 = 19;
const UTC_TIME: u8 = 23;
const GENERALIZED_TIME: u8 = 24;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

pub const TRUE: &[u8] = &[1, 1, 0xff];
pub const NULL: &[u8] = &[5, 0];

/// Tag, length and content.
pub fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let short = length.iter().position(|b| *b != 0).map_or(&[][..], |at| &length[at..]);
    let mut out = vec![tag];
    match content.len() {
        0..128 => out.push(content.len().to_le_bytes()[0]),
        _ => {
            out.push(0x80 | short.len().to_le_bytes()[0]);
            out.extend_from_slice(short);
        }
    }
    out.extend_from_slice(content);
    out
}

pub fn sequence<P: AsRef<[u8]>>(parts: &[P]) -> Vec<u8> {
    value(SEQUENCE, &joined(parts))
}

pub fn set<P: AsRef<[u8]>>(parts: &[P]) -> Vec<u8> {
    value(SET, &joined(parts))
}

/// `[number]` around something else.
pub fn explicit(number: u8, content: &[u8]) -> Vec<u8> {
    value(0xa0 | number, content)
}

fn joined<P: AsRef<[u8]>>(parts: &[P]) -> Vec<u8> {
    parts.iter().flat_map(|p| p.as_ref().iter().copied()).collect()
}

/// A number that is not negative, big endian.
pub fn integer(bytes: &[u8]) -> Vec<u8> {
    let digits = bytes.iter().position(|b| *b != 0).map_or(&[0][..], |at| &bytes[at..]);
    let sign: &[u8] = if digits[0] & 0x80 == 0 { &[] } else { &[0] };
    value(INTEGER, &[sign, digits].concat())
}

/// Whole bytes, with this many bits of the last one unused.
pub fn bit_string(unused: u8, bytes: &[u8]) -> Vec<u8> {
    value(BIT_STRING, &[&[unused], bytes].concat())
}

pub fn octet_string(bytes: &[u8]) -> Vec<u8> {
    value(OCTET_STRING, bytes)
}

/// An object identifier; the first two of its numbers are there at least.
pub fn oid(numbers: &[u32]) -> Vec<u8> {
    let [first, second, rest @ ..] = numbers else { return value(OID, &[]) };
    let mut content = Vec::new();
    for number in std::iter::once(first * 40 + second).chain(rest.iter().copied()) {
        let digits = (0..5).rev().map(|i| (number >> (7 * i)).to_le_bytes()[0] & 0x7f).skip_while(|d| *d == 0);
        let mut digits: Vec<u8> = digits.map(|d| d | 0x80).collect();
        let last = digits.pop().unwrap_or(0) & 0x7f;
        content.extend(digits);
        content.push(last);
    }
    value(OID, &content)
}

/// Text in the plainest type that holds it.
pub fn text(text: &str) -> Vec<u8> {
    let printable = |b: u8| b.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&b);
    let tag = if text.bytes().all(printable) { PRINTABLE_STRING } else { UTF8_STRING };
    value(tag, text.as_bytes())
}

/// A second, in the form that RFC 5280 wants for its year.
pub fn time(second: i64) -> Vec<u8> {
    let at = jiff::Timestamp::from_second(second).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let at = at.to_zoned(jiff::tz::TimeZone::UTC);
    if at.year() < 2050 {
        value(UTC_TIME, at.strftime("%y%m%d%H%M%SZ").to_string().as_bytes())
    } else {
        value(GENERALIZED_TIME, at.strftime("%Y%m%d%H%M%SZ").to_string().as_bytes())
    }
}

/// A distinguished name: attributes by their number below 2.5.4, each in a set of its own.
pub fn name<T: AsRef<str>>(attributes: &[(u8, T)]) -> Vec<u8> {
    let one =
        |(number, value): &(u8, T)| set(&[sequence(&[oid(&[2, 5, 4, u32::from(*number)]), text(value.as_ref())])]);
    sequence(&attributes.iter().map(one).collect::<Vec<_>>())
}

/// One extension of a certificate or of what a request asks for.
pub fn extension(id: &[u32], critical: bool, content: &[u8]) -> Vec<u8> {
    let critical = if critical { TRUE } else { &[] };
    sequence(&[oid(id).as_slice(), critical, &octet_string(content)])
}

/// The kinds of name that a subjectAltName holds here, with their tags.
pub fn mail_name(name: &str) -> Vec<u8> {
    value(0x81, name.as_bytes())
}

pub fn dns_name(name: &str) -> Vec<u8> {
    value(0x82, name.as_bytes())
}

pub fn uri_name(name: &str) -> Vec<u8> {
    value(0x86, name.as_bytes())
}

pub fn address_name(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => value(0x87, &ip.octets()),
        IpAddr::V6(ip) => value(0x87, &ip.octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_numbers() {
        assert_eq!(value(4, &[7; 3]), [4, 3, 7, 7, 7]);
        assert_eq!(value(4, &[7; 128])[..3], [4, 0x81, 128]);
        assert_eq!(value(4, &[7; 300])[..4], [4, 0x82, 1, 44]);
        assert_eq!(integer(&[0]), [2, 1, 0]);
        assert_eq!(integer(&[0, 0, 0x80]), [2, 2, 0, 0x80]);
        assert_eq!(oid(&[1, 2, 840, 10045, 4, 3, 2]), [6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]);
        assert_eq!(oid(&[2, 5, 29, 17]), [6, 3, 0x55, 29, 17]);
        assert_eq!(text("a b")[0], PRINTABLE_STRING);
        assert_eq!(text("jané")[0], UTF8_STRING);
        assert_eq!(time(0), b"\x17\x0d700101000000Z");
        assert_eq!(time(2_600_000_000), b"\x18\x0f20520522141320Z");
    }
}

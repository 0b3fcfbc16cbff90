//! The fault of the text of an address or a prefix, in the words of Go's `net/netip`: users read them.

/// Why a text is no address; none where it is one, perhaps with a zone behind it.
pub(super) fn fault(text: &str) -> Option<String> {
    let found = text.find(['.', ':', '%']).map(|at| text.as_bytes()[at]);
    let wrong = match found {
        Some(b'.') => four(text),
        Some(b':') => six(text),
        Some(_) => Some(Fault::whole("missing IPv6 address")),
        None => Some(Fault::whole("unable to parse IP")),
    };
    wrong.map(|Fault { what, at }| match at {
        "" => format!("ParseAddr({text:?}): {what}"),
        at => format!("ParseAddr({text:?}): {what} (at {at:?})"),
    })
}

/// Why a text is no prefix of addresses.
pub(super) fn prefix_fault(text: &str) -> String {
    let why = match text.rsplit_once('/') {
        None => "no '/'".to_owned(),
        Some((address, bits)) => match fault(address) {
            Some(why) => why,
            None if address.contains('%') => "IPv6 zones cannot be present in a prefix".to_owned(),
            None if is_plain_number(bits) => "prefix length out of range".to_owned(),
            None => format!("bad bits after slash: {bits:?}"),
        },
    };
    format!("netip.ParsePrefix({text:?}): {why}")
}

/// Without a sign, and without zeros in front.
fn is_plain_number(text: &str) -> bool {
    text == "0" || (text.parse::<i64>().is_ok() && text.starts_with(|c: char| ('1'..='9').contains(&c)))
}

struct Fault<'t> {
    what: &'static str,
    /// Where it is; empty when it is about the whole text.
    at: &'t str,
}

impl<'t> Fault<'t> {
    fn whole(what: &'static str) -> Self {
        Fault { what, at: "" }
    }

    fn at(what: &'static str, at: &'t str) -> Option<Self> {
        Some(Fault { what, at })
    }
}

fn four(text: &str) -> Option<Fault<'_>> {
    let (mut dots, mut digits, mut value) = (0, 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '0'..='9' if digits == 1 && value == 0 => {
                return Some(Fault::whole("IPv4 field has octet with leading zero"));
            }
            '0'..='9' => {
                digits += 1;
                value = value * 10 + c.to_digit(10).unwrap_or_default();
                if value > 255 {
                    return Some(Fault::whole("IPv4 field has value >255"));
                }
            }
            '.' if digits == 0 || at + 1 == text.len() => {
                return Fault::at("IPv4 field must have at least one digit", &text[at..]);
            }
            '.' if dots == 3 => return Some(Fault::whole("IPv4 address too long")),
            '.' => (dots, digits, value) = (dots + 1, 0, 0),
            _ => return Fault::at("unexpected character", &text[at..]),
        }
    }
    (dots < 3).then(|| Fault::whole("IPv4 address too short"))
}

fn six(text: &str) -> Option<Fault<'_>> {
    let (mut rest, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
    if zone == Some("") {
        return Some(Fault::whole("zone must be a non-empty string"));
    }
    let mut shortened = false;
    if let Some(behind) = rest.strip_prefix("::") {
        (rest, shortened) = (behind, true);
    }
    let mut bytes = 0;
    while bytes < 16 && !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        match rest.as_bytes().get(digits) {
            _ if digits > 4 => return Fault::at("each group must have 4 or fewer digits", rest),
            _ if digits == 0 => return Fault::at("each colon-separated field must have at least one digit", rest),
            Some(b'.') if !shortened && bytes != 12 => {
                let what = "embedded IPv4 address must replace the final 2 fields of the address";
                return Fault::at(what, rest);
            }
            Some(b'.') if bytes > 12 => {
                let what = "too many hex fields to fit an embedded IPv4 at the end of the address";
                return Fault::at(what, rest);
            }
            Some(b'.') => {
                if let Some(fault) = four(rest) {
                    return Some(fault);
                }
                (rest, bytes) = ("", bytes + 4);
                break;
            }
            _ => {}
        }
        bytes += 2;
        rest = &rest[digits..];
        rest = match rest.strip_prefix(':') {
            None if rest.is_empty() => break,
            None => return Fault::at("unexpected character, want colon", rest),
            Some("") => return Fault::at("colon must be followed by more characters", rest),
            Some(next) if next.starts_with(':') && shortened => return Fault::at("multiple :: in address", next),
            Some(next) => next.strip_prefix(':').map_or(next, |behind| {
                shortened = true;
                behind
            }),
        };
    }
    match (rest, bytes) {
        ("", 16) if shortened => Some(Fault::whole("the :: must expand to at least one field of zeros")),
        ("", 16) => None,
        ("", _) => (!shortened).then(|| Fault::whole("address string too short")),
        (rest, _) => Fault::at("trailing garbage after address", rest),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn faults_of_addresses_have_their_place() {
        let check = |text: &str, expected: &str| {
            let expected = (!expected.is_empty()).then(|| format!("ParseAddr({text:?}): {expected}"));
            assert_eq!(fault(text), expected, "{text}");
            assert_eq!(text.parse::<IpAddr>().is_ok(), expected.is_none() && !text.contains('%'), "{text}");
        };
        for right in ["192.168.0.1", "::", "::1", "2001:db8::68", "1:2:3:4:5:6:7:8", "::1.2.3.4", "fe80::1%eth0", "1::"]
        {
            check(right, "");
        }
        check("", "unable to parse IP");
        check("web", "unable to parse IP");
        check("%eth0", "missing IPv6 address");
        check("192.168.0.1.0", "IPv4 address too long");
        check("192.168.0", "IPv4 address too short");
        check("192.168.0.01", "IPv4 field has octet with leading zero");
        check("192.168.0.256", "IPv4 field has value >255");
        check("192..0.1", "IPv4 field must have at least one digit (at \".0.1\")");
        check("192.168.0.", "IPv4 field must have at least one digit (at \".\")");
        check("192.168.a.1", "unexpected character (at \"a.1\")");
        check("2001:db8:::68", "each colon-separated field must have at least one digit (at \":68\")");
        check("12345::", "each group must have 4 or fewer digits (at \"12345::\")");
        check("1::2::3", "multiple :: in address (at \":3\")");
        check("1:2:", "colon must be followed by more characters (at \":\")");
        check("1:2g", "unexpected character, want colon (at \"g\")");
        check("1:2", "address string too short");
        check("1:2:3:4:5:6:7:8:9", "trailing garbage after address (at \"9\")");
        check("1:2:3:4:5:6:7::8", "the :: must expand to at least one field of zeros");
        check("1:1.2.3.4", "embedded IPv4 address must replace the final 2 fields of the address (at \"1.2.3.4\")");
        check("::1.2.3", "IPv4 address too short");
        check("fe80::1%", "zone must be a non-empty string");
    }

    #[test]
    fn faults_of_prefixes_name_them() {
        let check = |text: &str, expected: &str| {
            assert_eq!(prefix_fault(text), format!("netip.ParsePrefix({text:?}): {expected}"));
        };
        check("192.168.0.0", "no '/'");
        check("192.168.0.0/", "bad bits after slash: \"\"");
        check("192.168.0.0/+1", "bad bits after slash: \"+1\"");
        check("192.168.0.0/01", "bad bits after slash: \"01\"");
        check("192.168.0.0/33", "prefix length out of range");
        check("192.168/8", "ParseAddr(\"192.168\"): IPv4 address too short");
        check("fe80::1%eth0/8", "IPv6 zones cannot be present in a prefix");
    }
}

//! The escapes and query strings of URLs.

use std::collections::HashSet;

/// Decodes `%41`; leaves what is no valid escape as it is.
pub fn percent_decode(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|h| std::str::from_utf8(h).ok());
        match (bytes[at], hex.and_then(|h| u8::from_str_radix(h, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The pairs of a query string, decoded, in order.
pub fn query_pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent_decode(&key.replace('+', " ")), percent_decode(&value.replace('+', " ")))
    })
}

/// The first value of each name in a query string: the one that counts where an option has one value, for all that read it.
pub fn query_firsts(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    let mut read = HashSet::new();
    query_pairs(query).filter(move |(key, _)| read.insert(key.clone()))
}

/// How query parameters of options say yes: with anything but a plain no.
pub fn is_true(value: &str) -> bool {
    value != "0" && !value.eq_ignore_ascii_case("false")
}

/// The query string of a URL.
pub fn query(url: &str) -> &str {
    url.split_once('?').map_or("", |(_, query)| query)
}

/// The first value of this name that is not empty, decoded.
pub fn query_value(query: &str, name: &str) -> Option<String> {
    query_pairs(query).find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let pairs: Vec<(String, String)> = query_pairs("command=sh&command=echo+a%20%26b&tty&&x=%zz").collect();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(pairs, [("command", "sh"), ("command", "echo a &b"), ("tty", ""), ("x", "%zz")]);
        assert_eq!(query_value("a=&b=1&a=x%20y&a=z", "a").as_deref(), Some("x y"));
        assert_eq!(query_value("a=&b=1", "a"), None);
        let firsts: Vec<(String, String)> = query_firsts("a=&b=1&a=2&%62=3&c").collect();
        let firsts: Vec<(&str, &str)> = firsts.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(firsts, [("a", ""), ("b", "1"), ("c", "")]);
    }
}

//! Names of domains as peers: the names that a pattern of a policy means. Pure.
//!
//! Upstream counterpart: `DomainName` of kubernetes-sigs/network-policy-api, and its NPEP-133.

use std::fmt;

/// The longest name and the longest label of DNS.
const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;

/// A name, or all names below one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Domain {
    /// In lower case, without a dot at its end.
    name: String,
    /// It means the names below it, and not the name itself.
    is_wild: bool,
}

impl Domain {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (rest, is_wild) = text.strip_prefix("*.").map_or((text, false), |rest| (rest, true));
        let name = rest.strip_suffix('.').unwrap_or(rest);
        let is_name = name.len() <= NAME_MAX && name.contains('.') && name.split('.').all(is_label);
        if is_name {
            Ok(Domain { name: name.to_ascii_lowercase(), is_wild })
        } else {
            Err(format!("{text:?} is not a name of a domain"))
        }
    }

    /// Whether it means a name, which is in lower case and has no dot at its end.
    pub fn has(&self, name: &str) -> bool {
        match name.strip_suffix(&*self.name) {
            Some("") => !self.is_wild,
            // A dot that a label holds is written with a stroke in front.
            Some(below) => self.is_wild && below.len() > 1 && below.ends_with('.') && !below.ends_with("\\."),
            None => false,
        }
    }
}

fn is_label(label: &str) -> bool {
    let is_inside = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
    let is_end = |c: Option<&u8>| c.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = label.as_bytes();
    bytes.len() <= LABEL_MAX && is_end(bytes.first()) && is_end(bytes.last()) && bytes.iter().all(|c| is_inside(*c))
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_wild { "*." } else { "" }, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_whole_labels() {
        let check = |pattern: &str, names: &[&str], others: &[&str]| {
            let domain = Domain::parse(pattern).unwrap();
            for (name, expected) in names.iter().map(|n| (n, true)).chain(others.iter().map(|n| (n, false))) {
                assert_eq!(domain.has(name), expected, "{pattern} {name}");
            }
        };
        let others = ["www.kubernetes.io", "blog.kubernetes.io", "my-kubernetes.io", "wikipedia.org", "", "io"];
        check("kubernetes.io", &["kubernetes.io"], &others);
        check("Kubernetes.IO.", &["kubernetes.io"], &others);
        check(
            "*.kubernetes.io",
            &["www.kubernetes.io", "latest.blog.kubernetes.io"],
            &["kubernetes.io", ".kubernetes.io", "my-kubernetes.io", "a\\.kubernetes.io", "wikipedia.org"],
        );
    }

    #[test]
    fn what_is_no_name_is_none() {
        let long = format!("{}.io", "a".repeat(64));
        let longer = format!("{}io", "abcdefg.".repeat(32));
        for text in [
            "", "io", "*", "*.", "*.io", "a.*.io", "**.a.io", "a..io", ".a.io", "-a.io", "a-.io", "a b.io", &long,
            &longer,
        ] {
            assert!(Domain::parse(text).is_err(), "{text}");
        }
        for text in ["a.io", "*.a.io", "a_b.c-d.io", "1.2"] {
            assert_eq!(Domain::parse(text).unwrap().to_string(), text);
        }
    }
}

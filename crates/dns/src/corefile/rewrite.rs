//! `rewrite`: questions that become others, and what becomes of their answers. Pure.

use hickory_proto::{op::ResponseCode, rr::RecordType};
use regex::Regex;

use super::{Directive, Error, values};

#[derive(Debug, Clone)]
pub struct Rewrite {
    /// Whether the rules behind it are looked at too once it matched.
    pub goes_on: bool,
    pub rule: Rule,
}

#[derive(Debug, Clone)]
pub enum Rule {
    Name {
        from: Matcher,
        to: String,
        auto: bool,
        answers: Vec<Replace>,
    },
    Type {
        from: RecordType,
        to: RecordType,
    },
    /// The times of the answer, brought within bounds.
    Ttl {
        from: Matcher,
        least: u32,
        most: u32,
    },
    Code {
        name: Matcher,
        from: Option<ResponseCode>,
        to: ResponseCode,
    },
}

/// Which names a rule is about; names are in lower case and end with a dot.
#[derive(Debug, Clone)]
pub enum Matcher {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Substring(String),
    Regex(Regex),
}

/// Something in the answer's records that a pattern finds.
#[derive(Debug, Clone)]
pub struct Replace {
    /// Whether it is looked for in the data, or in the names of the records.
    pub in_data: bool,
    pub from: Regex,
    pub to: String,
}

impl Rewrite {
    pub fn read(directive: &Directive) -> Result<Self, Error> {
        let mut words: Vec<&str> = directive.args.iter().map(String::as_str).collect();
        words.extend(directive.body.iter().flat_map(|l| &l.words).map(String::as_str));
        let (goes_on, words) = match words.split_first() {
            Some((&"continue", rest)) => (true, rest),
            Some((&"stop", rest)) => (false, rest),
            _ => (false, words.as_slice()),
        };
        let rule = rule(words).map_err(|what| directive.error(what))?;
        Ok(Rewrite { goes_on, rule })
    }
}

fn rule(words: &[&str]) -> Result<Rule, String> {
    match words {
        ["name", rest @ ..] => name(rest),
        ["type", from, to] => Ok(Rule::Type { from: values::record_type(from)?, to: values::record_type(to)? }),
        ["ttl", rest @ ..] => {
            let (from, rest) = matcher(rest)?;
            let [ttl] = rest else { return Err("a ttl rule is a name and a time".to_owned()) };
            let (least, most) = times(ttl).ok_or_else(|| format!("invalid TTL '{ttl}' for a ttl rule"))?;
            Ok(Rule::Ttl { from, least, most })
        }
        ["rcode", rest @ ..] => {
            let (name, rest) = matcher(rest)?;
            let (from, to) = match rest {
                [to] => (None, *to),
                [from, to] => (Some(values::response_code(from)?), *to),
                _ => return Err("an rcode rule is a name, a code and another".to_owned()),
            };
            Ok(Rule::Code { name, from, to: values::response_code(to)? })
        }
        ["answer", ..] => Err("response rewrites must begin with a name rule".to_owned()),
        [sort @ ("class" | "edns0" | "cname"), ..] => Err(format!("rules about {sort} are not supported")),
        [other, ..] => Err(format!("invalid rule type {other:?}")),
        [] => Err("no rule type specified for rewrite".to_owned()),
    }
}

/// A time or a range of them, open at one side if need be.
fn times(word: &str) -> Option<(u32, u32)> {
    let Some((least, most)) = word.split_once('-') else { return word.parse().ok().map(|t| (t, t)) };
    let least = if least.is_empty() { None } else { Some(least.parse().ok()?) };
    let most = if most.is_empty() { None } else { Some(most.parse().ok()?) };
    let range = (least.unwrap_or(0), most.unwrap_or(i32::MAX.unsigned_abs()));
    (range.0 <= range.1 && (least.is_some() || most.is_some())).then_some(range)
}

/// A name in lower case with its last dot, as rules compare them.
fn full(word: &str) -> String {
    let word = word.to_ascii_lowercase();
    if word.ends_with('.') { word } else { word + "." }
}

/// The sort of a rule and what it looks for, with the words behind; the sort is `exact` where none is named.
fn matcher<'a, 'b>(words: &'b [&'a str]) -> Result<(Matcher, &'b [&'a str]), String> {
    match words {
        ["exact", name, rest @ ..] => Ok((Matcher::Exact(full(name)), rest)),
        ["prefix", name, rest @ ..] => Ok((Matcher::Prefix(full(name)), rest)),
        ["suffix", name, rest @ ..] => Ok((Matcher::Suffix(full(name)), rest)),
        ["substring", name, rest @ ..] => Ok((Matcher::Substring(full(name)), rest)),
        ["regex", pattern, rest @ ..] => Ok((Matcher::Regex(values::pattern(pattern)?), rest)),
        [name, rest @ ..] => Ok((Matcher::Exact(full(name)), rest)),
        [] => Err("a rule needs a name".to_owned()),
    }
}

fn name(words: &[&str]) -> Result<Rule, String> {
    let (from, rest) = matcher(words)?;
    let Some((to, answers)) = rest.split_first() else { return Err("too few arguments for a name rule".to_owned()) };
    let to = full(to);
    if let Matcher::Regex(pattern) = &from {
        groups_exist(pattern, &to)?;
    }
    // An exact rule's answers go back without being asked for.
    let mut rule = (matches!(from, Matcher::Exact(_)), Vec::new());
    let mut words = answers;
    while !words.is_empty() {
        words = match words {
            ["answer", rest @ ..] => rest,
            _ if words.len() == answers.len() => {
                return Err("what stands behind a name rule begins with answer".to_owned());
            }
            other => other,
        };
        words = match words {
            ["auto", rest @ ..] => {
                rule.0 = true;
                rest
            }
            [place @ ("name" | "value"), pattern, to, rest @ ..] => {
                let (from, to) = (values::pattern(pattern)?, full(to));
                groups_exist(&from, &to)?;
                rule.1.push(Replace { in_data: *place == "value", from, to });
                rest
            }
            _ => return Err("an answer rule is auto, or name or value with a pattern and a name".to_owned()),
        };
    }
    Ok(Rule::Name { from, to, auto: rule.0, answers: rule.1 })
}

/// Whether a replacement uses only groups that its pattern has.
fn groups_exist(pattern: &Regex, to: &str) -> Result<(), String> {
    let has = |n: usize| to.contains(&format!("{{{n}}}"));
    match (pattern.captures_len()..=100).find(|n| has(*n)) {
        Some(n) => Err(format!("the replacement uses group {n}, which the pattern does not have")),
        None => Ok(()),
    }
}

/// A replacement with the groups that the pattern caught in a name; `None` where it caught nothing.
pub fn replaced(pattern: &Regex, to: &str, name: &str) -> Option<String> {
    let caught = pattern.captures(name)?;
    let mut result = to.to_owned();
    for (n, group) in caught.iter().enumerate() {
        result = result.replace(&format!("{{{n}}}"), group.map_or("", |g| g.as_str()));
    }
    Some(result)
}

impl Matcher {
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Matcher::Exact(full) => name == full,
            Matcher::Prefix(start) => name.starts_with(start.as_str()),
            Matcher::Suffix(end) => name.ends_with(end.as_str()),
            Matcher::Substring(part) => name.contains(part.as_str()),
            Matcher::Regex(pattern) => pattern.is_match(name),
        }
    }

    /// The name after the rule; `None` where the rule is not about it.
    pub fn rename(&self, name: &str, to: &str) -> Option<String> {
        match self {
            Matcher::Exact(full) => (name == full).then(|| to.to_owned()),
            Matcher::Prefix(start) => name.strip_prefix(start.as_str()).map(|rest| format!("{to}{rest}")),
            Matcher::Suffix(end) => name.strip_suffix(end.as_str()).map(|rest| format!("{rest}{to}")),
            Matcher::Substring(part) => name.contains(part.as_str()).then(|| name.replace(part.as_str(), to)),
            Matcher::Regex(pattern) => replaced(pattern, to, name),
        }
    }
}

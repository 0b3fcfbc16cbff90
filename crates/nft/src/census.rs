//! The content of a table, counted: the rules of each chain and the elements of each map and set. The rules that are to be
//! there are counted in the text that made them, those that are there in the kernel's own listing; where the kernel has
//! fewer, somebody took some away.

use std::collections::BTreeMap;
use std::process::Stdio;

use serde::{Deserialize, de::IgnoredAny};
use tokio::process::Command;

use crate::ApplyError;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// Rules by chain.
    chains: BTreeMap<String, usize>,
    /// Elements by map or set.
    elements: BTreeMap<String, usize>,
}

impl Census {
    /// Of a script that begins with an empty table: `table … { … }` and the commands `add chain`, `add rule`, `add map`,
    /// `add set` and `add element`, one a line.
    pub fn of_script(script: &str) -> Self {
        let mut census = Census::default();
        let mut rest = script;
        while let Some(line) = rest.lines().next() {
            let words: Vec<&str> = line.split_whitespace().take(5).collect();
            match words.as_slice() {
                ["add", "chain", _, _, name] => census.has_chain(name, 0),
                ["add", "rule", _, _, name] => census.has_chain(name, 1),
                ["add", "map" | "set", _, _, name] => census.has_elements(name, 0),
                ["add", "element", _, _, name] => census.has_elements(name, line.split(", ").count()),
                ["chain", name, "{", ..] => {
                    let (body, after) = block(rest);
                    census.has_chain(name, statements(body));
                    rest = after;
                    continue;
                }
                ["map" | "set", name, "{", ..] => census.has_elements(name, 0),
                _ => {}
            }
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
        }
        census
    }

    fn has_chain(&mut self, name: &str, rules: usize) {
        *self.chains.entry(name.to_owned()).or_default() += rules;
    }

    fn has_elements(&mut self, name: &str, count: usize) {
        *self.elements.entry(name.to_owned()).or_default() += count;
    }

    /// Of a table in the kernel; `None` when there is no such table.
    pub async fn of_kernel(table: &str) -> Result<Option<Self>, ApplyError> {
        let listed = Command::new("nft")
            .args(["-j", "list", "table"])
            .args(table.split(' '))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(ApplyError::Missing)?;
        if !listed.status.success() {
            let why = String::from_utf8_lossy(&listed.stderr);
            let is_gone = why.contains("No such file or directory");
            return if is_gone { Ok(None) } else { Err(ApplyError::refused(&why)) };
        }
        let listing = serde_json::from_slice::<Listing>(&listed.stdout);
        let listing = listing.map_err(|why| ApplyError::refused(&format!("its listing cannot be read: {why}")))?;
        Ok(Some(Census::of_listing(listing)))
    }

    fn of_listing(listing: Listing) -> Self {
        let mut census = Census::default();
        for object in listing.nftables {
            match object {
                Object { chain: Some(chain), .. } => census.has_chain(&chain.name, 0),
                Object { rule: Some(rule), .. } => census.has_chain(&rule.chain, 1),
                Object { map: Some(set), .. } | Object { set: Some(set), .. } => {
                    census.has_elements(&set.name, set.elem.len());
                }
                _ => {}
            }
        }
        census
    }

    /// The first thing of which there is less than there is to be.
    pub fn lacks(&self, wanted: &Census) -> Option<String> {
        let less = |sort: &str, there: &BTreeMap<String, usize>, wanted: &BTreeMap<String, usize>| {
            let found = wanted.iter().find(|(name, count)| there.get(*name).is_none_or(|there| there < *count))?;
            let there = there.get(found.0).map_or_else(|| "nothing".to_owned(), ToString::to_string);
            Some(format!("{sort} {} holds {there} instead of {}", found.0, found.1))
        };
        less("chain", &self.chains, &wanted.chains).or_else(|| less("set", &self.elements, &wanted.elements))
    }
}

/// The text between the first brace and its partner, and the text behind that.
fn block(text: &str) -> (&str, &str) {
    let Some(begin) = text.find('{').map(|at| at + 1) else { return ("", "") };
    let mut depth = 1;
    for (at, c) in text[begin..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (&text[begin..begin + at], &text[begin + at + 1..]);
        }
    }
    (&text[begin..], "")
}

/// The rules in a chain's body; where it hooks in is none.
fn statements(body: &str) -> usize {
    let parts = body.split([';', '\n']).map(str::trim);
    parts.filter(|part| !part.is_empty() && !part.starts_with("type ")).count()
}

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    chain: Option<Chain>,
    rule: Option<Rule>,
    map: Option<Set>,
    set: Option<Set>,
}

#[derive(Deserialize)]
struct Chain {
    name: String,
}

#[derive(Deserialize)]
struct Rule {
    chain: String,
}

#[derive(Deserialize)]
struct Set {
    name: String,
    #[serde(default)]
    elem: Vec<IgnoredAny>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "add table ip t\ndelete table ip t\ntable ip t {\n  comment \"a; b\"\n  map m { type ipv4_addr : verdict; }\n  \
        chain one { type nat hook output priority 0; ip daddr 1.1.1.1 accept; meta l4proto { tcp, udp } drop; }\n  \
        chain two {\n    accept;\n  }\n}\nadd set ip t s { type ipv4_addr; }\nadd chain ip t three\nadd rule ip t three drop\n\
        add rule ip t three goto two\nadd element ip t m { 1.1.1.1 : goto three, 2.2.2.2 : goto two }\nadd element ip t m { 3.3.3.3 : drop }\n";

    #[test]
    fn a_script_is_counted() {
        let census = Census::of_script(SCRIPT);
        let chains: Vec<_> = census.chains.iter().map(|(name, count)| format!("{name} {count}")).collect();
        assert_eq!(chains, ["one 2", "three 2", "two 1"]);
        let elements: Vec<_> = census.elements.iter().map(|(name, count)| format!("{name} {count}")).collect();
        assert_eq!(elements, ["m 3", "s 0"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let wanted = Census::of_script(SCRIPT);
        let without = |line: &str| Census::of_script(&SCRIPT.replacen(line, "", 1)).lacks(&wanted);
        assert_eq!(without(""), None);
        assert_eq!(without("add rule ip t three drop\n").unwrap(), "chain three holds 1 instead of 2");
        assert_eq!(without("accept;\n").unwrap(), "chain two holds 0 instead of 1");
        assert_eq!(without("add element ip t m { 3.3.3.3 : drop }\n").unwrap(), "set m holds 2 instead of 3");
        assert_eq!(Census::default().lacks(&wanted).unwrap(), "chain one holds nothing instead of 2");
        assert_eq!(wanted.lacks(&Census::default()), None);
    }
}

//! Whether the rules that a user holds cover the rules that the user wants to grant: nobody can give away more rights than
//! their own.

use std::collections::{BTreeMap, HashSet};

use super::PolicyRule;
use crate::auth::User;

/// The pieces of all rules of one request, and the names of held rules that they are compared with. Rules beyond that
/// count as not covered: a few kilobytes of names multiply to billions of pieces.
const PIECES_MAX: usize = 100_000;
const STEPS_MAX: usize = 100_000_000;

/// The parts of `wanted` that no single rule of `held` covers, merged for reading; empty when all is covered.
pub fn uncovered(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    let names: usize = held.iter().map(|rule| lists(rule).map(|list| list.len() + 1).sum::<usize>()).sum();
    let mut left = PIECES_MAX.min(STEPS_MAX / names.max(1));
    let (mut missing, mut too_many) = (Vec::new(), Vec::new());
    for rule in wanted {
        match left.checked_sub(count(rule)) {
            Some(rest) => {
                left = rest;
                missing.extend(pieces(rule).into_iter().filter(|piece| !held.iter().any(|rule| covers(rule, piece))));
            }
            None => too_many.push(rule.clone()),
        }
    }
    let mut missing = compact(missing);
    missing.append(&mut too_many);
    missing
}

fn lists(rule: &PolicyRule) -> impl Iterator<Item = &Vec<String>> {
    [&rule.verbs, &rule.api_groups, &rule.resources, &rule.resource_names, &rule.non_resource_urls].into_iter()
}

/// How many pieces a rule has.
fn count(rule: &PolicyRule) -> usize {
    let resources = rule.api_groups.len().saturating_mul(rule.resources.len());
    let named = resources.saturating_mul(rule.resource_names.len().max(1));
    named.saturating_add(rule.non_resource_urls.len()).saturating_mul(rule.verbs.len())
}

/// Splits a rule into rules that each have one verb and one resource of one group (and at most one name), or one URL.
fn pieces(rule: &PolicyRule) -> Vec<PolicyRule> {
    let mut all = Vec::new();
    let one = |s: &String| vec![s.clone()];
    for verb in &rule.verbs {
        for group in &rule.api_groups {
            for resource in &rule.resources {
                let piece = PolicyRule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    ..PolicyRule::default()
                };
                if rule.resource_names.is_empty() {
                    all.push(piece);
                } else {
                    let named = |name| PolicyRule { resource_names: one(name), ..piece.clone() };
                    all.extend(rule.resource_names.iter().map(named));
                }
            }
        }
        for url in &rule.non_resource_urls {
            all.push(PolicyRule { verbs: one(verb), non_resource_urls: one(url), ..PolicyRule::default() });
        }
    }
    all
}

fn has(list: &[String], wanted: &[String]) -> bool {
    list.iter().any(|s| s == "*") || wanted.iter().all(|w| list.contains(w))
}

/// Whether a rule covers one piece.
fn covers(rule: &PolicyRule, piece: &PolicyRule) -> bool {
    let names = if rule.resource_names.is_empty() {
        true
    } else {
        !piece.resource_names.is_empty() && piece.resource_names.iter().all(|n| rule.resource_names.contains(n))
    };
    let resource = |wanted: &String| {
        let any = |r: &String| {
            r == "*" || r == wanted || {
                let subresource = wanted.split_once('/').map(|(_, sub)| sub);
                r.strip_prefix("*/").is_some_and(|sub| Some(sub) == subresource)
            }
        };
        rule.resources.iter().any(any)
    };
    let url = |wanted: &String| {
        let any = |u: &String| u == "*" || u == wanted || u.strip_suffix('*').is_some_and(|p| wanted.starts_with(p));
        rule.non_resource_urls.iter().any(any)
    };
    has(&rule.verbs, &piece.verbs)
        && has(&rule.api_groups, &piece.api_groups)
        && piece.resources.iter().all(resource)
        && names
        && piece.non_resource_urls.iter().all(url)
}

/// Joins the verbs of pieces that are for the same resource.
fn compact(pieces: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let mut merged: BTreeMap<PolicyRule, (Vec<String>, HashSet<String>)> = BTreeMap::new();
    for mut piece in pieces {
        let verbs = std::mem::take(&mut piece.verbs);
        let (listed, known) = merged.entry(piece).or_default();
        listed.extend(verbs.into_iter().filter(|verb| known.insert(verb.clone())));
    }
    merged.into_iter().map(|(rule, (verbs, _))| PolicyRule { verbs, ..rule }).collect()
}

/// `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`
pub fn show(rule: &PolicyRule) -> String {
    let parts = [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("ResourceNames", &rule.resource_names),
        ("Verbs", &rule.verbs),
    ];
    let parts =
        parts.iter().filter(|(_, list)| !list.is_empty()).map(|(name, list)| format!("{name}:{}", quoted(list)));
    format!("{{{}}}", parts.collect::<Vec<_>>().join(", "))
}

fn quoted(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(api::validation::field::show).collect();
    format!("[{}]", quoted.join(" "))
}

/// The message for a user who wanted to grant more rights than their own.
pub fn refusal(user: &User, uncovered: &[PolicyRule]) -> String {
    let mut shown: Vec<String> = uncovered.iter().map(show).collect();
    shown.sort();
    format!(
        "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        api::validation::field::show(&user.name),
        quoted(&user.groups),
        shown.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(held: &[PolicyRule], wanted: &[PolicyRule], expected: &str) {
        let left: Vec<String> = uncovered(held, wanted).iter().map(show).collect();
        assert_eq!(left.join(";"), expected);
    }

    #[test]
    fn only_what_is_held_can_be_given() {
        let r = PolicyRule::resources;
        let read = r(&["get", "list"], &[""], &["pods", "services"]);
        check(std::slice::from_ref(&read), &[r(&["get"], &[""], &["pods"])], "");
        let more = r(&["get", "delete", "create"], &[""], &["pods"]);
        check(
            std::slice::from_ref(&read),
            &[more],
            r#"{APIGroups:[""], Resources:["pods"], Verbs:["delete" "create"]}"#,
        );
        check(&[r(&["*"], &["*"], &["*"])], &[read.clone(), r(&["*"], &["*"], &["*"])], "");
        check(&[r(&["get"], &["*"], &["*/scale"])], &[r(&["get"], &["apps"], &["deployments/scale"])], "");
        // Holding one name is not holding all; holding all is holding one.
        let named = r(&["get"], &[""], &["pods"]).named(&["a"]);
        check(
            std::slice::from_ref(&named),
            &[r(&["get"], &[""], &["pods"])],
            r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#,
        );
        check(&[r(&["get"], &[""], &["pods"])], &[named], "");
        let paths = PolicyRule::paths(&["get"], &["/apis/*"]);
        check(std::slice::from_ref(&paths), &[PolicyRule::paths(&["get"], &["/apis/apps"])], "");
        check(&[paths], &[PolicyRule::paths(&["get"], &["*"])], r#"{NonResourceURLs:["*"], Verbs:["get"]}"#);
    }

    /// A hundred thousand verbs for a hundred thousand resources.
    #[test]
    fn rules_that_multiply_are_refused_as_they_stand() {
        let names: Vec<String> = (0..100_000).map(|i| i.to_string()).collect();
        let wanted = PolicyRule {
            verbs: names.clone(),
            api_groups: vec![String::new()],
            resources: names.clone(),
            ..PolicyRule::default()
        };
        assert_eq!(uncovered(&[], std::slice::from_ref(&wanted)), [wanted]);
        let one = PolicyRule { verbs: names, ..PolicyRule::resources(&[], &[""], &["pods"]) };
        let everything = [PolicyRule::resources(&["*"], &["*"], &["*"])];
        assert_eq!(uncovered(&everything, std::slice::from_ref(&one)), []);
        assert_eq!(uncovered(&[], std::slice::from_ref(&one)), [one], "its verbs are joined again");
    }

    #[test]
    fn the_refusal_names_the_user_and_what_is_missing() {
        let user = User::new("jane", ["a", "b"]);
        let text = refusal(&user, &[PolicyRule::resources(&["get"], &[""], &["pods"])]);
        let expected = "user \"jane\" (groups=[\"a\" \"b\"]) is attempting to grant RBAC permissions not currently \
                        held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\"]}";
        assert_eq!(text, expected);
    }
}

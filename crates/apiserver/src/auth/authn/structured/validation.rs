//! The mistakes in an AuthenticationConfiguration, in upstream's words.
//!
//! Upstream counterpart: apiserver/pkg/apis/apiserver/validation.

use api::{
    rules::cel::{
        identity::{Purpose, compile, selects},
        refused,
    },
    validation::{
        field::{FieldError, Path},
        names::domain_prefixed_path,
        url::Url,
    },
};
use http::Uri;

use super::{
    Anonymous,
    written::{Written, WrittenRule, WrittenSource},
};
use crate::outbound::fetch::Fetcher;

/// There are no more issuers than this.
const ISSUERS: usize = 64;

type Errors = Vec<FieldError>;

pub(super) fn check(issuers: &[Written], anonymous: Option<&Anonymous>, disallowed: &[String]) -> Vec<String> {
    let (mut errors, list) = (Errors::new(), Path::new("jwt"));
    if issuers.len() > ISSUERS {
        return vec![FieldError::too_many(&list, issuers.len(), ISSUERS).to_string()];
    }
    for (at, one) in issuers.iter().enumerate() {
        let (path, before) = (list.index(at), &issuers[..at]);
        let place = path.child("issuer");
        issuer(one, &place, disallowed, &mut errors);
        let mut seen = Seen::default();
        claim_rules(&one.claim_rules, &path.child("claimValidationRules"), &mut seen, &mut errors);
        mappings(one, &path.child("claimMappings"), seen, &mut errors);
        user_rules(&one.user_rules, &path.child("userValidationRules"), &mut errors);
        if before.iter().any(|other| other.url == one.url) {
            errors.push(FieldError::duplicate(&place.child("url"), &one.url));
        }
        if !one.discovery.is_empty() && before.iter().any(|other| other.discovery == one.discovery) {
            errors.push(FieldError::duplicate(&place.child("discoveryURL"), &one.discovery));
        }
    }
    if let Some(anonymous) = anonymous.filter(|anonymous| !anonymous.enabled && !anonymous.paths.is_empty()) {
        let detail = "enabled should be set to true when conditions are defined";
        errors.push(FieldError::invalid(&Path::new("anonymous").child("conditions"), &anonymous.paths, detail));
    }
    errors.iter().map(ToString::to_string).collect()
}

fn issuer(one: &Written, path: &Path, disallowed: &[String], errors: &mut Errors) {
    let place = path.child("url");
    if one.url.is_empty() {
        errors.push(FieldError::required(&place, ""));
    } else {
        url(&one.url, disallowed, &place, errors);
    }
    if !one.discovery.is_empty() {
        let place = path.child("discoveryURL");
        if !one.url.is_empty() && one.url.trim_end_matches('/') == one.discovery.trim_end_matches('/') {
            errors.push(FieldError::invalid(&place, &one.discovery, "discoveryURL must be different from URL"));
        }
        url(&one.discovery, &[], &place, errors);
    }
    audiences(one, path, errors);
    if !one.authorities.is_empty() && Fetcher::new(Some(&one.authorities)).is_err() {
        let detail = "data does not contain any valid RSA or ECDSA certificates";
        errors.push(FieldError::invalid(&path.child("certificateAuthority"), "<omitted>", detail));
    }
    let detail = match &*one.egress {
        "" => return,
        "controlplane" | "cluster" => {
            "there is no --egress-selector-config-file, so that no egress selector is configured"
        }
        _ => "egress selector must be either controlplane or cluster",
    };
    errors.push(FieldError::invalid(&path.child("egressSelectorType"), &one.egress, detail));
}

fn url(url: &str, disallowed: &[String], path: &Path, errors: &mut Errors) {
    let mut wrong = |detail: &str| errors.push(FieldError::invalid(path, url, detail));
    if disallowed.iter().any(|one| one == url) {
        wrong(&format!("URL must not overlap with disallowed issuers: [{}]", disallowed.join(" ")));
    }
    let parts = match Url::parse(url) {
        Ok(parts) => parts,
        Err(why) => return wrong(&why),
    };
    if parts.scheme != "https" {
        wrong("URL scheme must be https");
    } else if let Err(error) = url.split('#').next().unwrap_or_default().parse::<Uri>() {
        // The fetcher could not ask there.
        wrong(&error.to_string());
    }
    if parts.user.is_some() {
        wrong("URL must not contain a username or password");
    }
    if !parts.query.is_empty() {
        wrong("URL must not contain a query");
    }
    if !parts.fragment.is_empty() {
        wrong("URL must not contain a fragment");
    }
}

fn audiences(one: &Written, path: &Path, errors: &mut Errors) {
    let (list, policy) = (path.child("audiences"), path.child("audienceMatchPolicy"));
    if one.audiences.is_empty() {
        return errors.push(FieldError::required(&list, &format!("at least one {list} is required")));
    }
    for (at, audience) in one.audiences.iter().enumerate() {
        if audience.is_empty() {
            errors.push(FieldError::required(&list.index(at), ""));
        }
        if one.audiences[..at].contains(audience) {
            errors.push(FieldError::duplicate(&list.index(at), audience));
        }
    }
    let detail = match (one.audiences.len(), &*one.match_policy) {
        (_, "MatchAny") | (1, "") => return,
        (1, _) => "audienceMatchPolicy must be empty or MatchAny for single audience",
        _ => "audienceMatchPolicy must be MatchAny for multiple audiences",
    };
    errors.push(FieldError::invalid(&policy, &one.match_policy, detail));
}

/// Whether expressions in which nothing is wrong look at the address of a user, and at whether it was verified.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    email: bool,
    verified: bool,
}

impl Seen {
    fn note_verified(&mut self, text: &str) {
        self.verified |= selects(text, "email_verified");
    }
}

/// Says where an expression is none. The result is whether it is one.
fn expression(purpose: Purpose, text: &str, path: &Path, errors: &mut Errors) -> bool {
    let wrong = compile(purpose, text).err().map(|why| refused(path, text, &why));
    let right = wrong.is_none();
    errors.extend(wrong);
    right
}

fn claim_rules(rules: &[WrittenRule], path: &Path, seen: &mut Seen, errors: &mut Errors) {
    for (at, rule) in rules.iter().enumerate() {
        // A rule with both is wrong in itself, and stands in the way of no other one.
        let (path, before) = (path.index(at), &rules[..at]);
        match (&*rule.claim, &*rule.expression) {
            ("", "") => errors.push(FieldError::required(&path, "claim or expression is required")),
            ("", text) => {
                if !rule.value.is_empty() {
                    let detail = "may not be specified when expression is set";
                    errors.push(FieldError::invalid(&path.child("requiredValue"), &rule.value, detail));
                }
                if before.iter().any(|other| other.claim.is_empty() && other.expression == text) {
                    errors.push(FieldError::duplicate(&path.child("expression"), text));
                } else if expression(Purpose::ClaimsCheck, text, &path.child("expression"), errors) {
                    seen.note_verified(text);
                }
            }
            (claim, "") => {
                if !rule.message.is_empty() {
                    let detail = "may not be specified when claim is set";
                    errors.push(FieldError::invalid(&path.child("message"), &rule.message, detail));
                }
                if before.iter().any(|other| other.expression.is_empty() && other.claim == claim) {
                    errors.push(FieldError::duplicate(&path.child("claim"), claim));
                }
            }
            (claim, _) => errors.push(FieldError::invalid(&path, claim, "claim and expression can't both be set")),
        }
    }
}

fn prefixed(source: &WrittenSource, required: bool, path: &Path, errors: &mut Errors) {
    match (&*source.claim, &*source.expression) {
        ("", "") if required => errors.push(FieldError::required(path, "claim or expression is required")),
        ("", "") => {}
        ("", text) => {
            if let Some(prefix) = &source.prefix {
                let detail = "may not be specified when expression is set";
                errors.push(FieldError::invalid(&path.child("prefix"), prefix, detail));
            }
            expression(Purpose::Claims, text, &path.child("expression"), errors);
        }
        (_, "") if source.prefix.is_none() => {
            let detail = "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
            errors.push(FieldError::required(&path.child("prefix"), detail));
        }
        (_, "") => {}
        _ => errors.push(FieldError::invalid(path, "", "claim and expression can't both be set")),
    }
}

fn mappings(one: &Written, path: &Path, mut seen: Seen, errors: &mut Errors) {
    let before = errors.len();
    prefixed(&one.username, true, &path.child("username"), errors);
    let username = &one.username.expression;
    if errors.len() == before {
        seen.email = selects(username, "email");
        seen.note_verified(username);
    }
    prefixed(&one.groups, false, &path.child("groups"), errors);
    match (&*one.uid.claim, &*one.uid.expression) {
        (_, "") => {}
        ("", text) => {
            expression(Purpose::Claims, text, &path.child("uid").child("expression"), errors);
        }
        _ => errors.push(FieldError::invalid(&path.child("uid"), "", "claim and expression can't both be set")),
    }
    for (at, (key, text)) in one.extra.iter().enumerate() {
        let path = path.child("extra").index(at);
        let place = path.child("key");
        extra_key(key, &place, errors);
        if one.extra[..at].iter().any(|(other, _)| other == key) {
            errors.push(FieldError::duplicate(&place, key));
        } else if text.is_empty() {
            errors.push(FieldError::required(&path.child("valueExpression"), ""));
        } else if expression(Purpose::Claims, text, &path.child("valueExpression"), errors) {
            seen.note_verified(text);
        }
    }
    if seen.email && !seen.verified {
        let detail = "claims.email_verified must be used in claimMappings.username.expression or \
            claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in \
            claimMappings.username.expression";
        errors.push(FieldError::invalid(&path.child("username").child("expression"), username, detail));
    }
}

/// A key stands below the domain of whoever uses it, in small letters.
fn extra_key(key: &str, path: &Path, errors: &mut Errors) {
    errors.extend(domain_prefixed_path(key, path));
    let mut wrong = |detail: &str| errors.push(FieldError::invalid(path, key, detail));
    if key.chars().any(char::is_uppercase) {
        wrong("must be lowercase");
    }
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let reserved = |name: &str| domain == name || domain.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
    if reserved("kubernetes.io") || reserved("k8s.io") {
        wrong("k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use");
    }
}

fn user_rules(rules: &[(String, String)], path: &Path, errors: &mut Errors) {
    for (at, (text, _)) in rules.iter().enumerate() {
        let path = path.index(at).child("expression");
        if text.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if rules[..at].iter().any(|(other, _)| other == text) {
            errors.push(FieldError::duplicate(&path, text));
        } else {
            expression(Purpose::UserCheck, text, &path, errors);
        }
    }
}

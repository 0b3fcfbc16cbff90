//! The mistakes in an AuthenticationConfiguration, in upstream's words.
//!
//! Upstream counterpart: apiserver/pkg/apis/apiserver/validation.

use api::{
    rules::cel::identity::{Purpose, compile, selects},
    validation::{
        field::{FieldError, Path},
        names,
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
        claim_rules(&one.claim_rules, &path.child("claimValidationRules"), &mut errors);
        mappings(one, &path.child("claimMappings"), &mut errors);
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
        if one.url.trim_end_matches('/') == one.discovery.trim_end_matches('/') {
            errors.push(FieldError::invalid(&place, &one.discovery, "discoveryURL must be different from URL"));
        }
        url(&one.discovery, &[], &place, errors);
    }
    audiences(one, path, errors);
    if !one.authorities.is_empty()
        && let Err(why) = Fetcher::new(Some(&one.authorities))
    {
        errors.push(FieldError::invalid(&path.child("certificateAuthority"), "<omitted>", &why));
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
    let (plain, fragment) = url.split_once('#').unwrap_or((url, ""));
    let uri: Uri = match plain.parse() {
        Ok(uri) => uri,
        Err(error) => return wrong(&format!("parse {url:?}: {error}")),
    };
    if uri.scheme_str() != Some("https") {
        wrong("URL scheme must be https");
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        wrong("URL must not contain a username or password");
    }
    if uri.query().is_some_and(|query| !query.is_empty()) {
        wrong("URL must not contain a query");
    }
    if !fragment.is_empty() {
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

/// Says where an expression is none.
fn expression(purpose: Purpose, text: &str, path: &Path, errors: &mut Errors) {
    if let Err(why) = compile(purpose, text) {
        errors.push(FieldError::invalid(path, text, &why));
    }
}

fn claim_rules(rules: &[WrittenRule], path: &Path, errors: &mut Errors) {
    for (at, rule) in rules.iter().enumerate() {
        let (path, before) = (path.index(at), &rules[..at]);
        match (&*rule.claim, &*rule.expression) {
            ("", "") => errors.push(FieldError::required(&path, "claim or expression is required")),
            ("", text) => {
                if !rule.value.is_empty() {
                    let detail = "may not be specified when expression is set";
                    errors.push(FieldError::invalid(&path.child("requiredValue"), &rule.value, detail));
                }
                if before.iter().any(|other| other.expression == text) {
                    errors.push(FieldError::duplicate(&path.child("expression"), text));
                } else {
                    expression(Purpose::ClaimsCheck, text, &path.child("expression"), errors);
                }
            }
            (claim, "") => {
                if !rule.message.is_empty() {
                    let detail = "may not be specified when claim is set";
                    errors.push(FieldError::invalid(&path.child("message"), &rule.message, detail));
                }
                if before.iter().any(|other| other.claim == claim) {
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

fn mappings(one: &Written, path: &Path, errors: &mut Errors) {
    prefixed(&one.username, true, &path.child("username"), errors);
    prefixed(&one.groups, false, &path.child("groups"), errors);
    match (&*one.uid.claim, &*one.uid.expression) {
        (_, "") => {}
        ("", text) => expression(Purpose::Claims, text, &path.child("uid").child("expression"), errors),
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
        } else {
            expression(Purpose::Claims, text, &path.child("valueExpression"), errors);
        }
    }
    let verified = |text: &str| selects(text, "email_verified");
    let username = &one.username.expression;
    let anywhere = verified(username)
        || one.extra.iter().any(|(_, text)| verified(text))
        || one.claim_rules.iter().any(|rule| verified(&rule.expression));
    if selects(username, "email") && !anywhere {
        let detail = "claims.email_verified must be used in claimMappings.username.expression or \
            claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in \
            claimMappings.username.expression";
        errors.push(FieldError::invalid(&path.child("username").child("expression"), username, detail));
    }
}

/// A key stands below the domain of whoever uses it, in small letters.
fn extra_key(key: &str, path: &Path, errors: &mut Errors) {
    let mut wrong = |detail: &str| errors.push(FieldError::invalid(path, key, detail));
    match key.split_once('/') {
        _ if key.is_empty() => return errors.push(FieldError::required(path, "")),
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            for why in names::dns1123_subdomain(domain) {
                wrong(&why);
            }
            let of_path = |c: char| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c);
            if !rest.chars().all(of_path) {
                wrong("Invalid path");
            }
        }
        _ => wrong("must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
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

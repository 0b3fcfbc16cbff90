//! The issuers whose tokens are believed, and who is let in without any: an AuthenticationConfiguration, or the flags
//! `--oidc-…`, which stand for one.

use api::validation::section::Section;

use super::{
    Anonymous, validation,
    written::{Written, WrittenRule, WrittenSource, text},
};
use crate::{auth::authn::oidc::Settings, document};

/// The content of an AuthenticationConfiguration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    pub issuers: Vec<Settings>,
    /// `None` where the flag decides.
    pub anonymous: Option<Anonymous>,
}

/// Upstream's flags for one issuer.
#[derive(Debug, Clone, Default)]
pub struct OidcFlags {
    pub issuer_url: String,
    pub client_id: String,
    /// The authorities, in PEM.
    pub authorities: Option<String>,
    pub username_claim: String,
    pub username_prefix: String,
    pub groups_claim: String,
    pub groups_prefix: String,
    pub required_claims: Vec<(String, String)>,
    pub algorithms: Vec<String>,
}

const VERSIONS: &[&str] =
    &["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];

fn joined(errors: Vec<String>) -> Result<(), String> {
    match errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

impl Configuration {
    /// Reads an AuthenticationConfiguration, and says all that is wrong with it. `disallowed` are the issuers that none of it
    /// may be.
    pub fn parse(file: &str, disallowed: &[String]) -> Result<Self, String> {
        let value = document::read(file)?;
        let section = Section::of("", &value)?;
        section.is("AuthenticationConfiguration", VERSIONS)?;
        section.has_only(&["apiVersion", "kind", "jwt", "anonymous"])?;
        let written = section.sections("jwt")?.iter().map(Written::read).collect::<Result<Vec<_>, _>>()?;
        let anonymous = match section.get("anonymous") {
            Some(_) => Some(anonymous(&section.section("anonymous")?)?),
            None => None,
        };
        joined(validation::check(&written, anonymous.as_ref(), disallowed))?;
        Ok(Configuration { issuers: written.into_iter().map(Written::settings).collect(), anonymous })
    }

    /// The configuration by the flags for one issuer.
    pub fn of_flags(flags: OidcFlags, disallowed: &[String]) -> Result<Self, String> {
        let prefix = match (&*flags.username_prefix, &*flags.username_claim) {
            ("-", _) => String::new(),
            ("", "email") => String::new(),
            ("", _) => format!("{}#", flags.issuer_url),
            (given, _) => given.to_owned(),
        };
        let known = |one: &&String| !pki::jwk::ALGORITHMS.contains(&one.as_str());
        if let Some(unknown) = flags.algorithms.iter().find(known) {
            return Err(format!("oidc: unsupported signing alg: {unknown:?}"));
        }
        let rule = |(claim, value): (String, String)| WrittenRule {
            claim,
            value,
            expression: String::new(),
            message: String::new(),
        };
        let written = Written {
            url: flags.issuer_url,
            authorities: flags.authorities.unwrap_or_default(),
            audiences: vec![flags.client_id],
            username: WrittenSource { claim: flags.username_claim, prefix: Some(prefix), ..Default::default() },
            groups: WrittenSource {
                claim: flags.groups_claim,
                prefix: Some(flags.groups_prefix),
                ..Default::default()
            },
            claim_rules: flags.required_claims.into_iter().map(rule).collect(),
            algorithms: flags.algorithms,
            ..Written::default()
        };
        joined(validation::check(std::slice::from_ref(&written), None, disallowed))?;
        Ok(Configuration { issuers: vec![written.settings()], anonymous: None })
    }
}

fn anonymous(section: &Section<'_>) -> Result<Anonymous, String> {
    section.has_only(&["enabled", "conditions"])?;
    let mut paths = Vec::new();
    for condition in section.sections("conditions")? {
        condition.has_only(&["path"])?;
        paths.push(text(&condition, "path")?);
    }
    Ok(Anonymous { enabled: section.flag("enabled")?.unwrap_or_default(), paths })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::authn::oidc::Source;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";

    fn parse(rest: &str) -> Result<Configuration, String> {
        Configuration::parse(&format!("{HEAD}{rest}\n"), &["https://us".to_owned()])
    }

    /// An issuer with nothing wrong, but for what is said otherwise.
    fn jwt(issuer: &str, mappings: &str, rest: &str) -> String {
        format!("jwt: [{{issuer: {{{issuer}}}, claimMappings: {{{mappings}}}{rest}}}]")
    }

    const ISSUER: &str = "url: 'https://i', audiences: [a]";
    const NAME: &str = "username: {claim: sub, prefix: ''}";

    #[test]
    fn a_file_says_whose_tokens_are_believed() {
        let issuer = "url: 'https://i', discoveryURL: 'https://d/x', audiences: [a, b], audienceMatchPolicy: MatchAny";
        let mappings = "username: {claim: sub, prefix: 'i:'}, groups: {expression: claims.roles}, uid: {claim: uid}, \
            extra: [{key: example.com/x, valueExpression: claims.x}]";
        let rest = ", claimValidationRules: [{claim: hd, requiredValue: v}, {expression: 'claims.a == 1', message: m}], \
            userValidationRules: [{expression: \"!user.username.startsWith('system:')\", message: reserved}]";
        let found = parse(&format!(
            "{}\nanonymous: {{enabled: true, conditions: [{{path: /livez}}]}}",
            jwt(issuer, mappings, rest)
        ));
        let found = found.unwrap();
        let one = &found.issuers[0];
        assert_eq!(
            (one.url.as_str(), one.discovery.as_deref(), one.audiences.len()),
            ("https://i", Some("https://d/x"), 2)
        );
        assert_eq!(one.username, Source::Claim { name: "sub".into(), prefix: "i:".into() });
        assert_eq!((&one.groups, one.claim_rules.len()), (&Source::Expression("claims.roles".into()), 2));
        let anonymous = found.anonymous.unwrap();
        assert!(anonymous.is_let_in("/livez") && !anonymous.is_let_in("/livez/") && !anonymous.is_let_in("/api"));
        let nothing = parse("jwt: []").unwrap();
        assert!(nothing.issuers.is_empty() && nothing.anonymous.is_none());
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_in_upstreams_words() {
        let check = |text: &str, expected: &str| {
            let said = parse(text).unwrap_err();
            assert!(said.contains(expected), "{text}\n{said}\n{expected}");
        };
        let issuer = |issuer: &str, expected: &str| check(&jwt(issuer, NAME, ""), &format!("jwt[0].issuer.{expected}"));
        issuer("audiences: [a]", "url: Required value");
        issuer("url: 'http://i', audiences: [a]", "url: Invalid value: \"http://i\": URL scheme must be https");
        issuer(
            "url: 'https://us', audiences: [a]",
            "url: Invalid value: \"https://us\": URL must not overlap with disallowed issuers: [https://us]",
        );
        issuer(
            "url: 'https://u:p@i', audiences: [a]",
            "url: Invalid value: \"https://u:p@i\": URL must not contain a username or password",
        );
        issuer(
            "url: 'https://i?a=b', audiences: [a]",
            "url: Invalid value: \"https://i?a=b\": URL must not contain a query",
        );
        issuer(
            "url: 'https://i#a', audiences: [a]",
            "url: Invalid value: \"https://i#a\": URL must not contain a fragment",
        );
        issuer(
            "url: 'https://i', audiences: [a], discoveryURL: 'https://i/'",
            "discoveryURL: Invalid value: \"https://i/\": discoveryURL must be different from URL",
        );
        issuer("url: 'https://i'", "audiences: Required value: at least one jwt[0].issuer.audiences is required");
        issuer("url: 'https://i', audiences: ['']", "audiences[0]: Required value");
        issuer(
            "url: 'https://i', audiences: [a, a], audienceMatchPolicy: MatchAny",
            "audiences[1]: Duplicate value: \"a\"",
        );
        issuer(
            "url: 'https://i', audiences: [a, b]",
            "audienceMatchPolicy: Invalid value: \"\": audienceMatchPolicy must be MatchAny for multiple audiences",
        );
        issuer(
            "url: 'https://i', audiences: [a], audienceMatchPolicy: X",
            "audienceMatchPolicy: Invalid value: \"X\": audienceMatchPolicy must be empty or MatchAny for single audience",
        );
        issuer(
            "url: 'https://i', audiences: [a], certificateAuthority: x",
            "certificateAuthority: Invalid value: \"<omitted>\": data does not contain any valid RSA or ECDSA certificates",
        );
        issuer(
            "url: 'https://i', audiences: [a], egressSelectorType: x",
            "egressSelectorType: Invalid value: \"x\": egress selector must be either controlplane or cluster",
        );
        issuer(
            "url: 'https://i', audiences: [a], egressSelectorType: cluster",
            "egressSelectorType: Invalid value: \"cluster\": ",
        );
        issuer("url: 'https://i', audience: [a]", "audience: there is no such field");
        let mapped = |mappings: &str, expected: &str| {
            check(&jwt(ISSUER, mappings, ""), &format!("jwt[0].claimMappings.{expected}"))
        };
        mapped("", "username: Required value: claim or expression is required");
        mapped(
            "username: {claim: sub}",
            "username.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing",
        );
        mapped(
            "username: {claim: sub, expression: claims.sub}",
            "username: Invalid value: \"\": claim and expression can't both be set",
        );
        mapped(
            "username: {expression: claims.sub, prefix: a}",
            "username.prefix: Invalid value: \"a\": may not be specified when expression is set",
        );
        mapped(
            "username: {expression: 'claims.'}",
            "username.expression: Invalid value: \"claims.\": compilation failed",
        );
        mapped(
            "username: {expression: claims.email}",
            "username.expression: Invalid value: \"claims.email\": claims.email_verified must be used in",
        );
        mapped(
            &format!("{NAME}, uid: {{claim: a, expression: claims.a}}"),
            "uid: Invalid value: \"\": claim and expression can't both be set",
        );
        let extra =
            |extra: &str, expected: &str| mapped(&format!("{NAME}, extra: [{extra}]"), &format!("extra{expected}"));
        extra(
            "{key: foo, valueExpression: claims.a}",
            "[0].key: Invalid value: \"foo\": must be a domain-prefixed path",
        );
        extra(
            "{key: example.com/Foo, valueExpression: claims.a}",
            "[0].key: Invalid value: \"example.com/Foo\": must be lowercase",
        );
        extra(
            "{key: a.k8s.io/foo, valueExpression: claims.a}",
            "[0].key: Invalid value: \"a.k8s.io/foo\": k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use",
        );
        extra("{key: example.com/foo}", "[0].valueExpression: Required value");
        extra(
            "{key: example.com/a, valueExpression: claims.a}, {key: example.com/a, valueExpression: claims.a}",
            "[1].key: Duplicate value: \"example.com/a\"",
        );
        let rules = |rules: &str, expected: &str| {
            check(
                &jwt(ISSUER, NAME, &format!(", claimValidationRules: [{rules}]")),
                &format!("jwt[0].claimValidationRules{expected}"),
            );
        };
        rules("{}", "[0]: Required value: claim or expression is required");
        rules("{claim: a, expression: 'true'}", "[0]: Invalid value: \"a\": claim and expression can't both be set");
        rules("{claim: a, message: m}", "[0].message: Invalid value: \"m\": may not be specified when claim is set");
        rules("{claim: a}, {claim: a}", "[1].claim: Duplicate value: \"a\"");
        rules(
            "{expression: 'true', requiredValue: v}",
            "[0].requiredValue: Invalid value: \"v\": may not be specified when expression is set",
        );
        rules("{expression: claims.a}", "[0].expression: Invalid value: \"claims.a\": must evaluate to bool");
        let user = |rules: &str, expected: &str| {
            check(
                &jwt(ISSUER, NAME, &format!(", userValidationRules: [{rules}]")),
                &format!("jwt[0].userValidationRules{expected}"),
            );
        };
        user("{}", "[0].expression: Required value");
        user("{expression: 'true'}, {expression: 'true'}", "[1].expression: Duplicate value: \"true\"");
        user("{expression: user.name}", "[0].expression: Invalid value: \"user.name\": compilation failed");
        let one = format!("{{issuer: {{{ISSUER}}}, claimMappings: {{{NAME}}}}}");
        check(&format!("jwt: [{one}, {one}]"), "jwt[1].issuer.url: Duplicate value: \"https://i\"");
        check(&format!("jwt: [{}]", vec![one; 65].join(", ")), "jwt: Too many: 65: must have at most 64 items");
        check("anonymous: {conditions: [{path: /a}]}", "enabled should be set to true when conditions are defined");
    }

    /// Upstream's cases for whole files (validation_test.go), each with all that is said about it.
    #[test]
    fn each_mistake_is_said_once_and_alone() {
        let check = |text: &str, expected: &str| {
            assert_eq!(parse(text).err().unwrap_or_default(), expected, "{text}");
        };
        let port = "https://issuer-url:invalid-port";
        let unreadable = format!("parse \"{port}\": invalid port \":invalid-port\" after host");
        let said = format!("jwt[0].issuer.url: Invalid value: \"{port}\": {unreadable}");
        check(&jwt(&format!("url: '{port}', audiences: [a]"), NAME, ""), &said);
        let said = format!("jwt[0].issuer.discoveryURL: Invalid value: \"{port}\": {unreadable}");
        check(&jwt(&format!("{ISSUER}, discoveryURL: '{port}'"), NAME, ""), &said);
        let said = "jwt[0].issuer.url: Invalid value: \"invalid-url\": URL scheme must be https";
        check(&jwt("url: invalid-url, audiences: [a]", NAME, ""), said);
        check(&jwt("audiences: [a]", NAME, ""), "jwt[0].issuer.url: Required value");
        for same in ["https://i", "https://i/", "https://i///"] {
            let said = format!(
                "jwt[0].issuer.discoveryURL: Invalid value: \"{same}\": discoveryURL must be different from URL"
            );
            check(&jwt(&format!("{ISSUER}, discoveryURL: '{same}'"), NAME, ""), &said);
        }
        check(&jwt(&format!("{ISSUER}, discoveryURL: 'https://i/path'"), NAME, ""), "");
        let (one, two) = ("https://d", "url: 'https://j', audiences: [a]");
        let both = format!(
            "jwt: [{{issuer: {{{ISSUER}, discoveryURL: '{one}'}}, claimMappings: {{{NAME}}}}}, {{issuer: {{{two}, discoveryURL: \
             '{one}'}}, claimMappings: {{{NAME}}}}}]"
        );
        let rules = "{claim: a, expression: 'true'}, {claim: a}, {expression: 'true'}";
        let said = "jwt[0].claimValidationRules[0]: Invalid value: \"a\": claim and expression can't both be set";
        check(&jwt(ISSUER, NAME, &format!(", claimValidationRules: [{rules}]")), said);
        check(&format!("{}\n---\njwt: 1\n", jwt(ISSUER, NAME, "")), "");
        check(&both, "jwt[1].issuer.discoveryURL: Duplicate value: \"https://d\"");

        let keys = |key: &str, expected: &str| {
            let mappings = format!("{NAME}, extra: [{{key: '{key}', valueExpression: claims.a}}]");
            let prefix = if expected.is_empty() { "" } else { "jwt[0].claimMappings.extra[0].key: " };
            check(&jwt(ISSUER, &mappings, ""), &format!("{prefix}{expected}"));
        };
        keys("", "Required value");
        keys("example.org/Foo", "Invalid value: \"example.org/Foo\": must be lowercase");
        let path = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
        keys("example.org/a b", &format!("Invalid value: \"a b\": {path}"));
        let reserved = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
        for domain in ["k8s.io", "example.k8s.io", "kubernetes.io", "example.kubernetes.io"] {
            keys(&format!("{domain}/foo"), &format!("Invalid value: \"{domain}/foo\": {reserved}"));
        }
        for domain in ["ak8s.io", "example.ak8s.io", "bkubernetes.io", "example.bkubernetes.io"] {
            keys(&format!("{domain}/foo"), "");
        }
    }

    /// An address counts as a name only where something looks at whether it was verified.
    #[test]
    fn addresses_that_nobody_verified_are_no_names() {
        let unverified = |username: &str| {
            let quoted = api::validation::field::quote(username);
            format!(
                "jwt[0].claimMappings.username.expression: Invalid value: {quoted}: claims.email_verified must be used in \
                 claimMappings.username.expression or claimMappings.extra[*].valueExpression or \
                 claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression"
            )
        };
        let check = |username: &str, extra: &str, rule: &str, expected: &str| {
            let quoted = |text: &str| text.replace('\'', "\'\'");
            let extra = match extra {
                "" => String::new(),
                text => format!(", extra: [{{key: a.io/x, valueExpression: '{}'}}]", quoted(text)),
            };
            let rules = match rule {
                "" => String::new(),
                text => format!(", claimValidationRules: [{{expression: '{}'}}]", quoted(text)),
            };
            let mappings = format!("username: {{expression: '{}'}}{extra}", quoted(username));
            let said = parse(&jwt(ISSUER, &mappings, &rules)).err().unwrap_or_default();
            assert_eq!(said, expected, "{username} {extra} {rules}");
        };
        for username in [
            "claims.email",
            "claims.?email",
            "['yay', string(claims.email), 'panda'].join(' ')",
            "{claims.?email: \"panda\"}",
            "{\"fancy\": claims.?email}",
            "[\"a\"].map(i, i + claims.email)",
            "has(claims.email) ? claims.email : claims.sub",
            "claims.email.trim()",
        ] {
            check(username, "", "", &unverified(username));
            check(username, "string(claims.email_verified)", "", "");
            check(username, "claims.?email_verified", "", "");
            check(username, "claims.?email", "", &unverified(username));
            check(username, "", "claims.?email_verified.orValue(true) == true", "");
        }
        check("claims.emails", "", "", "");
        check("claims.other.claims.email", "", "", "");
        check("claims.email_verified ? claims.email : claims.sub", "", "", "");
        check("claims.email + (claims.email_verified || true ? '' : '-')", "", "", "");
        // An expression that is none has looked at nothing.
        let rule = "claims.?email_verified.orValue(true)";
        let wrong =
            format!("jwt[0].claimValidationRules[0].expression: Invalid value: \"{rule}\": must evaluate to bool");
        check("claims.email", "", rule, &format!("[{wrong}, {}]", unverified("claims.email")));
        let both = "username: {expression: claims.email, prefix: p}";
        let said =
            "jwt[0].claimMappings.username.prefix: Invalid value: \"p\": may not be specified when expression is set";
        assert_eq!(parse(&jwt(ISSUER, both, "")).unwrap_err(), said);
        let both = "username: {expression: claims.email, claim: email}";
        let said = "jwt[0].claimMappings.username: Invalid value: \"\": claim and expression can't both be set";
        assert_eq!(parse(&jwt(ISSUER, both, "")).unwrap_err(), said);
    }

    #[test]
    fn flags_stand_for_an_issuer() {
        let flags = || OidcFlags {
            issuer_url: "https://i".into(),
            client_id: "a".into(),
            username_claim: "sub".into(),
            algorithms: vec!["RS256".into()],
            ..OidcFlags::default()
        };
        let name = |flags: OidcFlags| match Configuration::of_flags(flags, &[]).unwrap().issuers.remove(0).username {
            Source::Claim { name, prefix } => format!("{prefix}{name}"),
            other => panic!("{other:?}"),
        };
        assert_eq!(name(flags()), "https://i#sub");
        assert_eq!(name(OidcFlags { username_prefix: "-".into(), ..flags() }), "sub");
        assert_eq!(name(OidcFlags { username_prefix: "p:".into(), ..flags() }), "p:sub");
        assert_eq!(name(OidcFlags { username_claim: "email".into(), ..flags() }), "email");
        let wrong = |flags: OidcFlags| Configuration::of_flags(flags, &["https://i".to_owned()]).unwrap_err();
        assert!(wrong(flags()).contains("disallowed issuers"));
        assert_eq!(
            wrong(OidcFlags { algorithms: vec!["none".into()], ..flags() }),
            "oidc: unsupported signing alg: \"none\""
        );
        assert_eq!(
            wrong(OidcFlags { algorithms: vec!["HS256".into()], ..flags() }),
            "oidc: unsupported signing alg: \"HS256\""
        );
    }
}

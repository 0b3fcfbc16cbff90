//! The statements of an AuthenticationConfiguration about an issuer, as they stand: only their shape is known to be
//! right.

use api::validation::section::Section;

use crate::auth::authn::oidc::{ClaimRule, Settings, Source};

/// An issuer as the file says it; only its shape is known to be right.
#[derive(Default)]
pub(super) struct Written {
    pub url: String,
    pub discovery: String,
    pub authorities: String,
    pub audiences: Vec<String>,
    pub match_policy: String,
    pub egress: String,
    pub username: WrittenSource,
    pub groups: WrittenSource,
    pub uid: WrittenSource,
    /// Keys with expressions.
    pub extra: Vec<(String, String)>,
    pub claim_rules: Vec<WrittenRule>,
    pub user_rules: Vec<(String, String)>,
    pub algorithms: Vec<String>,
}

#[derive(Default)]
pub(super) struct WrittenSource {
    pub claim: String,
    pub prefix: Option<String>,
    pub expression: String,
}

pub(super) struct WrittenRule {
    pub claim: String,
    pub value: String,
    pub expression: String,
    pub message: String,
}

pub(super) fn text(section: &Section<'_>, field: &str) -> Result<String, String> {
    section.text(field).map(|text| text.unwrap_or_default().to_owned())
}

impl Written {
    pub fn read(section: &Section<'_>) -> Result<Self, String> {
        section.has_only(&["issuer", "claimValidationRules", "claimMappings", "userValidationRules"])?;
        let issuer = section.section("issuer")?;
        issuer.has_only(&[
            "url",
            "discoveryURL",
            "certificateAuthority",
            "audiences",
            "audienceMatchPolicy",
            "egressSelectorType",
        ])?;
        let mappings = section.section("claimMappings")?;
        mappings.has_only(&["username", "groups", "uid", "extra"])?;
        let source = |field: &str, known: &[&str]| {
            let source = mappings.section(field)?;
            source.has_only(known)?;
            let prefix = if known.contains(&"prefix") { source.text("prefix")?.map(str::to_owned) } else { None };
            let (claim, expression) = (text(&source, "claim")?, text(&source, "expression")?);
            Ok::<_, String>(WrittenSource { claim, prefix, expression })
        };
        let mut extra = Vec::new();
        for one in mappings.sections("extra")? {
            one.has_only(&["key", "valueExpression"])?;
            extra.push((text(&one, "key")?, text(&one, "valueExpression")?));
        }
        let mut claim_rules = Vec::new();
        for one in section.sections("claimValidationRules")? {
            one.has_only(&["claim", "requiredValue", "expression", "message"])?;
            claim_rules.push(WrittenRule {
                claim: text(&one, "claim")?,
                value: text(&one, "requiredValue")?,
                expression: text(&one, "expression")?,
                message: text(&one, "message")?,
            });
        }
        let mut user_rules = Vec::new();
        for one in section.sections("userValidationRules")? {
            one.has_only(&["expression", "message"])?;
            user_rules.push((text(&one, "expression")?, text(&one, "message")?));
        }
        Ok(Written {
            url: text(&issuer, "url")?,
            discovery: text(&issuer, "discoveryURL")?,
            authorities: text(&issuer, "certificateAuthority")?,
            audiences: issuer.plain_texts("audiences")?,
            match_policy: text(&issuer, "audienceMatchPolicy")?,
            egress: text(&issuer, "egressSelectorType")?,
            username: source("username", &["claim", "prefix", "expression"])?,
            groups: source("groups", &["claim", "prefix", "expression"])?,
            uid: source("uid", &["claim", "expression"])?,
            extra,
            claim_rules,
            user_rules,
            algorithms: pki::jwk::ALGORITHMS.map(str::to_owned).to_vec(),
        })
    }

    /// The settings of an issuer in which nothing is wrong.
    pub fn settings(self) -> Settings {
        let filled = |text: String| (!text.is_empty()).then_some(text);
        let source = |written: WrittenSource| match (written.claim, written.expression) {
            (claim, expression) if claim.is_empty() && expression.is_empty() => Source::Nothing,
            (claim, expression) if claim.is_empty() => Source::Expression(expression),
            (name, _) => Source::Claim { name, prefix: written.prefix.unwrap_or_default() },
        };
        let rule = |written: WrittenRule| match filled(written.claim) {
            Some(claim) => ClaimRule::Value { claim, value: written.value },
            None => ClaimRule::Expression { expression: written.expression, message: written.message },
        };
        Settings {
            url: self.url,
            discovery: filled(self.discovery),
            authorities: filled(self.authorities),
            audiences: self.audiences,
            algorithms: self.algorithms,
            username: source(self.username),
            groups: source(self.groups),
            uid: source(self.uid),
            extra: self.extra,
            claim_rules: self.claim_rules.into_iter().map(rule).collect(),
            user_rules: self.user_rules,
        }
    }
}

//! The fields of an AuthorizationConfiguration, as they stand: only their shape is known to be right.

use std::path::PathBuf;

use api::{custom::formats::go_duration, validation::section::Section};
use clock::Duration;

use crate::auth::webhook::{self, Version};

/// The sorts of authorizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    AlwaysAllow,
    AlwaysDeny,
    Abac,
    Webhook,
    Rbac,
    Node,
}

impl Mode {
    pub const ALL: [Mode; 6] = [Mode::AlwaysAllow, Mode::AlwaysDeny, Mode::Abac, Mode::Webhook, Mode::Rbac, Mode::Node];

    pub fn name(self) -> &'static str {
        match self {
            Mode::AlwaysAllow => "AlwaysAllow",
            Mode::AlwaysDeny => "AlwaysDeny",
            Mode::Abac => "ABAC",
            Mode::Webhook => "Webhook",
            Mode::Rbac => "RBAC",
            Mode::Node => "Node",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Mode::ALL.into_iter().find(|mode| mode.name() == text)
    }
}

/// The entries of a file, as they stand; only their shape is known to be right.
pub(super) struct Written {
    pub mode: String,
    pub name: String,
    pub webhook: Option<WrittenWebhook>,
}

/// Times are in nanoseconds.
#[derive(Default)]
pub(super) struct WrittenWebhook {
    pub timeout: i64,
    pub authorized: i64,
    pub keeps_authorized: bool,
    pub unauthorized: i64,
    pub keeps_unauthorized: bool,
    pub version: String,
    pub condition_version: String,
    pub failure_policy: String,
    pub connection: String,
    pub kubeconfig: Option<String>,
    pub conditions: Vec<String>,
}

const SECOND: i64 = 1_000_000_000;

impl Written {
    pub fn read(section: &Section<'_>) -> Result<Written, String> {
        section.has_only(&["type", "name", "webhook"])?;
        let text = |field: &str| section.text(field).map(|text| text.unwrap_or_default().to_owned());
        let webhook = match section.get("webhook") {
            Some(_) => Some(WrittenWebhook::read(&section.section("webhook")?)?),
            None => None,
        };
        Ok(Written { mode: text("type")?, name: text("name")?, webhook })
    }
}

impl WrittenWebhook {
    fn read(section: &Section<'_>) -> Result<Self, String> {
        section.has_only(&[
            "authorizedTTL",
            "cacheAuthorizedRequests",
            "unauthorizedTTL",
            "cacheUnauthorizedRequests",
            "timeout",
            "subjectAccessReviewVersion",
            "matchConditionSubjectAccessReviewVersion",
            "failurePolicy",
            "connectionInfo",
            "matchConditions",
        ])?;
        let connection = section.section("connectionInfo")?;
        connection.has_only(&["type", "kubeConfigFile"])?;
        let text = |field: &str| section.text(field).map(|text| text.unwrap_or_default().to_owned());
        let time = |field: &str, otherwise: i64| match section.text(field)? {
            None => Ok(otherwise),
            Some(text) => match go_duration(text) {
                Some(0) => Ok(otherwise),
                Some(time) => Ok(time),
                None => Err(section.wrong(field, &format!("time: invalid duration {text:?}"))),
            },
        };
        let mut conditions = Vec::new();
        for condition in section.sections("matchConditions")? {
            condition.has_only(&["expression"])?;
            conditions.push(condition.text("expression")?.unwrap_or_default().to_owned());
        }
        Ok(WrittenWebhook {
            timeout: time("timeout", 0)?,
            authorized: time("authorizedTTL", 300 * SECOND)?,
            keeps_authorized: section.flag("cacheAuthorizedRequests")?.unwrap_or(true),
            unauthorized: time("unauthorizedTTL", 30 * SECOND)?,
            keeps_unauthorized: section.flag("cacheUnauthorizedRequests")?.unwrap_or(true),
            version: text("subjectAccessReviewVersion")?,
            condition_version: text("matchConditionSubjectAccessReviewVersion")?,
            failure_policy: text("failurePolicy")?,
            connection: connection.text("type")?.unwrap_or_default().to_owned(),
            kubeconfig: connection.text("kubeConfigFile")?.map(str::to_owned),
            conditions,
        })
    }

    /// The settings of a webhook in which nothing is wrong.
    pub fn settings(&self) -> Option<webhook::Settings> {
        let time = |nanos: i64| Duration::from_nanos(nanos.unsigned_abs());
        let kept = |keeps: bool, nanos: i64| if keeps { time(nanos) } else { Duration::ZERO };
        Some(webhook::Settings {
            kubeconfig: PathBuf::from(self.kubeconfig.as_ref()?),
            version: Version::parse(&self.version)?,
            timeout: time(self.timeout),
            authorized: kept(self.keeps_authorized, self.authorized),
            unauthorized: kept(self.keeps_unauthorized, self.unauthorized),
            denies_on_failure: self.failure_policy == "Deny",
            conditions: self.conditions.clone(),
        })
    }
}

//! The authorizers in their order: as `--authorization-mode` and its flags say them, or an AuthorizationConfiguration.

use std::path::PathBuf;

use api::validation::section::Section;

pub use super::written::Mode;
use super::{
    Settings, validation,
    written::{Written, WrittenWebhook},
};
use crate::{
    auth::{abac::Policies, webhook},
    document,
};

/// The authorizers, those that are asked first in front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    pub authorizers: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub mode: Mode,
    pub name: String,
    /// The settings of a webhook; other authorizers have none.
    pub webhook: Option<webhook::Settings>,
}

impl Default for Configuration {
    fn default() -> Self {
        let entry = |mode: Mode| Entry { mode, name: mode.name().to_lowercase(), webhook: None };
        Configuration { authorizers: vec![entry(Mode::Node), entry(Mode::Rbac)] }
    }
}

/// The flags of upstream that stand for a configuration.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    pub modes: Vec<String>,
    pub policy_file: Option<PathBuf>,
    pub webhook: Option<webhook::Settings>,
}

/// The settings by the flags. The error is in upstream's words.
pub fn modes_of(flags: Flags, read: impl Fn(&std::path::Path) -> std::io::Result<String>) -> Result<Settings, String> {
    let Flags { modes, policy_file, webhook } = flags;
    if modes.is_empty() {
        return Err("at least one authorization-mode must be passed".to_owned());
    }
    let mut authorizers: Vec<Entry> = Vec::new();
    for text in &modes {
        let mode = Mode::parse(text).ok_or_else(|| format!("authorization-mode {text:?} is not a valid mode"))?;
        if mode == Mode::Abac && policy_file.is_none() {
            return Err("authorization-mode ABAC's authorization policy file not passed".to_owned());
        }
        if mode == Mode::Webhook && webhook.is_none() {
            return Err("authorization-mode Webhook's authorization config file not passed".to_owned());
        }
        if authorizers.iter().any(|known| known.mode == mode) {
            return Err(format!("authorization-mode [{}] has mode specified more than once", shown(&modes)));
        }
        let webhook = webhook.clone().filter(|_| mode == Mode::Webhook);
        let name = if mode == Mode::Webhook { "default".to_owned() } else { text.to_lowercase() };
        authorizers.push(Entry { mode, name, webhook });
    }
    let has = |mode: Mode| authorizers.iter().any(|known| known.mode == mode);
    if webhook.is_some() && !has(Mode::Webhook) {
        return Err("cannot specify --authorization-webhook-config-file without mode Webhook".to_owned());
    }
    let policies = match policy_file {
        Some(_) if !has(Mode::Abac) => {
            return Err("cannot specify --authorization-policy-file without mode ABAC".to_owned());
        }
        Some(file) => {
            let text = read(&file).map_err(|error| format!("open {}: {error}", file.display()))?;
            Some(Policies::parse(&file.display().to_string(), &text)?)
        }
        None => None,
    };
    Ok(Settings { configuration: Configuration { authorizers }, policies, file: None })
}

fn shown(texts: &[String]) -> String {
    texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(" ")
}

const VERSIONS: &[&str] =
    &["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];

impl Configuration {
    /// Whether there is an authorizer that lets everybody do everything.
    pub fn allows_everything(&self) -> bool {
        self.authorizers.iter().any(|entry| entry.mode == Mode::AlwaysAllow)
    }

    /// Reads an AuthorizationConfiguration, and says all that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value = document::read(text)?;
        let section = Section::of("", &value)?;
        section.is("AuthorizationConfiguration", VERSIONS)?;
        section.has_only(&["apiVersion", "kind", "authorizers"])?;
        let written = section.sections("authorizers")?.iter().map(Written::read).collect::<Result<Vec<_>, _>>()?;
        let errors = validation::check(&written);
        match errors.as_slice() {
            [] => {}
            [one] => return Err(one.clone()),
            many => return Err(format!("[{}]", many.join(", "))),
        }
        let entries = written.into_iter().filter_map(|one| {
            let mode = Mode::parse(&one.mode)?;
            Some(Entry { mode, name: one.name, webhook: one.webhook.as_ref().and_then(WrittenWebhook::settings) })
        });
        Ok(Configuration { authorizers: entries.collect() })
    }
}

#[cfg(test)]
mod tests {
    use clock::Duration;

    use super::*;
    use crate::auth::webhook::Version;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n";

    fn parse(authorizers: &str) -> Result<Configuration, String> {
        Configuration::parse(&format!("{HEAD}authorizers: [{authorizers}]"))
    }

    #[test]
    fn a_file_says_who_is_asked_in_which_order() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, "").unwrap();
        let hook = format!(
            "timeout: 3s, subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1, \
             failurePolicy: Deny, authorizedTTL: 1m30s, cacheUnauthorizedRequests: false, \
             connectionInfo: {{type: KubeConfigFile, kubeConfigFile: {}}}, matchConditions: [{{expression: \"true\"}}]",
            file.display()
        );
        let found =
            parse(&format!("{{type: Webhook, name: a, webhook: {{{hook}}}}}, {{type: Node, name: node}}")).unwrap();
        let settings = webhook::Settings {
            kubeconfig: file,
            version: Version::V1,
            timeout: Duration::from_secs(3),
            authorized: Duration::from_secs(90),
            unauthorized: Duration::ZERO,
            denies_on_failure: true,
            conditions: vec!["true".to_owned()],
        };
        let names: Vec<_> = found.authorizers.iter().map(|entry| (entry.mode, entry.name.as_str())).collect();
        assert_eq!(names, [(Mode::Webhook, "a"), (Mode::Node, "node")]);
        assert_eq!(found.authorizers[0].webhook.as_ref(), Some(&settings));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_in_upstreams_words() {
        let check = |authorizers: &str, expected: &str| {
            let said = parse(authorizers).unwrap_err();
            assert!(said.contains(expected), "{authorizers}\n{said}\n{expected}");
        };
        check("", "authorizers: Required value: at least one authorization mode must be defined");
        check("{name: a}", "authorizers[0].type: Required value");
        check(
            "{type: Foo}",
            "authorizers[0].type: Unsupported value: \"Foo\": supported values: \"ABAC\", \"AlwaysAllow\"",
        );
        check("{type: Node, name: node}, {type: Node, name: b}", "authorizers[1].type: Duplicate value: \"Node\"");
        check("{type: Node}", "authorizers[0].name: Required value");
        check("{type: Node, name: x}", "expected name node for authorizer Node instead of x");
        check(
            "{type: Node, name: node, webhook: {}}",
            "webhook: Invalid value: \"non-null\": may only be specified when type=Webhook",
        );
        check("{type: Webhook, name: a}", "authorizers[0].webhook: Required value: required when type=Webhook");
        check("{type: Webhook, name: A_}", "authorizers[0].name: Invalid value: \"A_\": authorizer name is invalid: ");
        check("{type: Node, nam: x}", "authorizers[0].nam: there is no such field");
        let hook = |part: &str, expected: &str| {
            check(&format!("{{type: Webhook, name: a, webhook: {{{part}}}}}"), &format!("authorizers[0].{expected}"));
        };
        hook("", "timeout: Required value");
        hook("timeout: 31s", "timeout: Invalid value: \"31s\": must be > 0s and <= 30s");
        hook("timeout: -1s", "timeout: Invalid value: \"-1s\": must be > 0s and <= 30s");
        hook("timeout: 1", "webhook.timeout: it must be text");
        hook("timeout: soon", "webhook.timeout: time: invalid duration \"soon\"");
        hook("authorizedTTL: -1s", "authorizedTTL: Invalid value: \"-1s\": must be > 0s");
        hook("unauthorizedTTL: -1m", "unauthorizedTTL: Invalid value: \"-1m0s\": must be > 0s");
        hook("", "subjectAccessReviewVersion: Required value");
        hook(
            "subjectAccessReviewVersion: v2",
            "subjectAccessReviewVersion: Unsupported value: \"v2\": supported values: \"v1\", \"v1beta1\"",
        );
        hook(
            "matchConditions: [{expression: \"true\"}]",
            "matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified",
        );
        hook(
            "matchConditionSubjectAccessReviewVersion: v1beta1",
            "matchConditionSubjectAccessReviewVersion: Unsupported value: \"v1beta1\": supported values: \"v1\"",
        );
        hook("", "failurePolicy: Required value");
        hook(
            "failurePolicy: Allow",
            "failurePolicy: Unsupported value: \"Allow\": supported values: \"NoOpinion\", \"Deny\"",
        );
        hook("", "connectionInfo.type: Required value");
        hook("connectionInfo: {type: X}", "connectionInfo.type: Unsupported value: \"X\"");
        hook("connectionInfo: {type: KubeConfigFile}", "connectionInfo.kubeConfigFile: Required value");
        hook(
            "connectionInfo: {type: KubeConfigFile, kubeConfigFile: a}",
            "connectionInfo.kubeConfigFile: Invalid value: \"a\": must be an absolute path",
        );
        hook(
            "connectionInfo: {type: KubeConfigFile, kubeConfigFile: /none}",
            "connectionInfo.kubeConfigFile: Invalid value: \"/none\": error loading file: ",
        );
        hook(
            "connectionInfo: {type: KubeConfigFile, kubeConfigFile: /}",
            "connectionInfo.kubeConfigFile: Invalid value: \"/\": must be a regular file",
        );
        hook(
            "connectionInfo: {type: InClusterConfig, kubeConfigFile: /a}",
            "connectionInfo.kubeConfigFile: Invalid value: \"/a\": can only be set when type=KubeConfigFile",
        );
        hook("matchConditions: [{expression: \" \"}]", "matchConditions[0].expression: Required value");
        hook(
            "matchConditions: [{expression: request.user}]",
            "matchConditions[0].expression: Invalid value: \"request.user\": must evaluate to bool but got string",
        );
        hook(
            "matchConditions: [{expression: \"true\"}, {expression: \"true\"}]",
            "matchConditions[1].expression: Duplicate value: \"true\"",
        );
        let many = vec!["{expression: \"true\"}"; 65].join(", ");
        hook(&format!("matchConditions: [{many}]"), "matchConditions: Too many: 65: must have at most 64 items");
    }

    #[test]
    fn flags_that_do_not_go_together_are_refused_in_upstreams_words() {
        let settings = || webhook::Settings {
            kubeconfig: "/k".into(),
            version: Version::V1,
            timeout: Duration::from_secs(30),
            authorized: Duration::ZERO,
            unauthorized: Duration::ZERO,
            denies_on_failure: false,
            conditions: Vec::new(),
        };
        let check = |modes: &str, policy: bool, hook: bool, expected: Result<&str, &str>| {
            let flags = Flags {
                modes: modes.split(',').filter(|mode| !mode.is_empty()).map(str::to_owned).collect(),
                policy_file: policy.then(|| "/p".into()),
                webhook: hook.then(settings),
            };
            let found = modes_of(flags, |_| Ok("{\"user\": \"a\"}".to_owned())).map(|settings| {
                let entries = settings.configuration.authorizers;
                entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>().join(" ")
            });
            assert_eq!(found.as_deref().map_err(String::as_str), expected);
        };
        check("Node,RBAC", false, false, Ok("node rbac"));
        check("Webhook,AlwaysDeny,ABAC", true, true, Ok("default alwaysdeny abac"));
        check("", false, false, Err("at least one authorization-mode must be passed"));
        check("rbac", false, false, Err("authorization-mode \"rbac\" is not a valid mode"));
        check("ABAC", false, false, Err("authorization-mode ABAC's authorization policy file not passed"));
        check("Webhook", false, false, Err("authorization-mode Webhook's authorization config file not passed"));
        check("RBAC", true, false, Err("cannot specify --authorization-policy-file without mode ABAC"));
        check("RBAC", false, true, Err("cannot specify --authorization-webhook-config-file without mode Webhook"));
        check(
            "RBAC,RBAC",
            false,
            false,
            Err("authorization-mode [\"RBAC\" \"RBAC\"] has mode specified more than once"),
        );
    }
}

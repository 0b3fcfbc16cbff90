//! The authorizers that decide about requests: upstream's flags.

use std::{path::PathBuf, time::Duration};

use apiserver::auth::{
    modes::{Flags, Settings, configuration::Configuration, modes_of},
    webhook::{self, Version},
};
use clap::Args;

use super::value;

const MODES: [&str; 2] = ["Node", "RBAC"];

#[derive(Args, Clone, Debug, Default)]
pub struct AuthorizationFlags {
    /// The authorizers that are asked about a request, in this order: AlwaysAllow, AlwaysDeny, ABAC, Webhook, RBAC, Node; Node,RBAC
    /// when not given
    #[arg(long, value_name = "MODES", value_delimiter = ',')]
    authorization_mode: Option<Vec<String>>,
    /// The policies of the mode ABAC, one to a line
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    authorization_policy_file: Option<PathBuf>,
    /// A kubeconfig that names the server of the mode Webhook
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    authorization_webhook_config_file: Option<PathBuf>,
    /// The version of the SubjectAccessReviews that it is sent: v1 or v1beta1; v1beta1 when not given
    #[arg(long, value_name = "VERSION", value_parser = Version::ALL)]
    authorization_webhook_version: Option<String>,
    /// How long what the webhook allowed is remembered; 5m when not given
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    authorization_webhook_cache_authorized_ttl: Option<Duration>,
    /// How long it is remembered what the webhook did not allow; 30s when not given
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    authorization_webhook_cache_unauthorized_ttl: Option<Duration>,
    /// An AuthorizationConfiguration that says all of this, and is followed; it takes the place of the other flags
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    authorization_config: Option<PathBuf>,
}

impl AuthorizationFlags {
    fn others_are_set(&self) -> bool {
        self.authorization_mode.is_some()
            || self.authorization_webhook_config_file.is_some()
            || self.authorization_webhook_version.is_some()
            || self.authorization_webhook_cache_authorized_ttl.is_some()
            || self.authorization_webhook_cache_unauthorized_ttl.is_some()
    }

    /// The settings by these flags. A mistake is told before anything begins.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        if let Some(file) = &self.authorization_config {
            anyhow::ensure!(
                !self.others_are_set(),
                "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* \
                 flags are defined"
            );
            let of_file = |why: String| anyhow::anyhow!("--authorization-config: {}: {why}", file.display());
            let text = std::fs::read_to_string(file).map_err(|error| of_file(error.to_string()))?;
            let configuration = Configuration::parse(&text).map_err(of_file)?;
            let policies = self.policies().map_err(of_file)?;
            return Ok(Settings { configuration, policies, file: Some((file.clone(), text)) });
        }
        let version = self.authorization_webhook_version.as_deref().and_then(Version::parse);
        let webhook = self.authorization_webhook_config_file.clone().map(|kubeconfig| webhook::Settings {
            kubeconfig,
            version: version.unwrap_or(Version::V1beta1),
            timeout: webhook::PATIENCE,
            authorized: self.authorization_webhook_cache_authorized_ttl.unwrap_or(Duration::from_secs(300)),
            unauthorized: self.authorization_webhook_cache_unauthorized_ttl.unwrap_or(Duration::from_secs(30)),
            denies_on_failure: false,
            conditions: Vec::new(),
        });
        let modes = self.authorization_mode.clone().unwrap_or_else(|| MODES.map(str::to_owned).to_vec());
        let flags = Flags { modes, policy_file: self.authorization_policy_file.clone(), webhook };
        let read = |path: &std::path::Path| std::fs::read_to_string(path);
        modes_of(flags, read).map_err(|why| anyhow::anyhow!(why))
    }

    /// The policies of ABAC beside a configuration file, which has no place for them.
    fn policies(&self) -> Result<Option<apiserver::auth::abac::Policies>, String> {
        let Some(file) = &self.authorization_policy_file else { return Ok(None) };
        let text = std::fs::read_to_string(file).map_err(|error| format!("open {}: {error}", file.display()))?;
        apiserver::auth::abac::Policies::parse(&file.display().to_string(), &text).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: AuthorizationFlags,
    }

    #[test]
    fn flags_say_who_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let settings = |line: &[&str]| {
            let parsed = Line::try_parse_from([&["skiff"], line].concat()).map_err(|error| error.to_string());
            parsed.and_then(|line| line.flags.settings().map_err(|error| error.to_string()))
        };
        let names = |line: &[&str]| {
            let entries = settings(line)?.configuration.authorizers;
            Ok::<_, String>(entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(names(&[]).unwrap(), "node rbac");
        assert_eq!(names(&["--authorization-mode=RBAC,Node"]).unwrap(), "rbac node");
        assert_eq!(names(&["--authorization-mode=AlwaysAllow"]).unwrap(), "alwaysallow");
        let kubeconfig = format!("--authorization-webhook-config-file={}", file("k", ""));
        let hook = settings(&["--authorization-mode=Webhook", &kubeconfig]).unwrap();
        let hook = hook.configuration.authorizers[0].webhook.clone().unwrap();
        assert_eq!((hook.version, hook.authorized.as_secs(), hook.unauthorized.as_secs()), (Version::V1beta1, 300, 30));
        assert!(names(&[&kubeconfig]).unwrap_err().contains("without mode Webhook"));
        let config = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: rbac}]";
        let config = format!("--authorization-config={}", file("c", config));
        assert_eq!(names(&[&config]).unwrap(), "rbac");
        let both = names(&[&config, "--authorization-mode=RBAC"]).unwrap_err();
        assert!(both.starts_with("--authorization-config can not be specified when --authorization-mode or"), "{both}");
        let broken = format!("--authorization-config={}", file("b", "authorizers: []"));
        assert!(names(&[&broken]).unwrap_err().contains("kind: it must be AuthorizationConfiguration"));
    }
}

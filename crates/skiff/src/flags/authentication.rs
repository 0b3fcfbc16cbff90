//! The issuers whose tokens are believed beside the server's own: upstream's flags.

use std::{path::PathBuf, time::Duration};

use apiserver::auth::authn::{
    structured::{Configuration, OidcFlags, Settings},
    token_webhook,
};
use clap::Args;

use super::value;

#[derive(Args, Clone, Debug, Default)]
pub struct AuthenticationFlags {
    /// Let requests without credentials in as system:anonymous (what they may do is up to RBAC); true when not given
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub anonymous_auth: Option<bool>,
    /// An AuthenticationConfiguration: issuers of tokens, and who is let in without credentials; it is followed
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    authentication_config: Option<PathBuf>,
    /// The URL of an issuer of tokens that speaks OpenID Connect
    #[arg(long, value_name = "URL")]
    oidc_issuer_url: Option<String>,
    /// The audience that its tokens are for
    #[arg(long, value_name = "ID")]
    oidc_client_id: Option<String>,
    /// The authorities that are believed where the issuer is; the machine's when not given
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    oidc_ca_file: Option<PathBuf>,
    /// The claim that is the user's name; sub when not given
    #[arg(long, value_name = "CLAIM")]
    oidc_username_claim: Option<String>,
    /// The prefix of names; `-` is nothing, and the issuer's URL when not given, but for emails
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    oidc_username_prefix: Option<String>,
    /// The claim that holds the user's groups
    #[arg(long, value_name = "CLAIM")]
    oidc_groups_claim: Option<String>,
    /// The prefix of groups
    #[arg(long, value_name = "PREFIX")]
    oidc_groups_prefix: Option<String>,
    /// A claim that tokens must have, with its value; several times for several
    #[arg(long, value_name = "CLAIM=VALUE", value_parser = pair)]
    oidc_required_claim: Vec<(String, String)>,
    /// The algorithms that tokens may be signed with; RS256 when not given
    #[arg(long, value_name = "ALGORITHMS", value_delimiter = ',')]
    oidc_signing_algs: Option<Vec<String>>,
    /// A kubeconfig that names a server which is asked about bearer tokens
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    authentication_token_webhook_config_file: Option<PathBuf>,
    /// The version of the TokenReviews that it is sent
    #[arg(long, value_name = "VERSION", default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    authentication_token_webhook_version: String,
    /// How long its answers are remembered
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = value::duration)]
    authentication_token_webhook_cache_ttl: Duration,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (claim, value) = text.split_once('=').ok_or("it must be claim=value")?;
    Ok((claim.to_owned(), value.to_owned()))
}

impl AuthenticationFlags {
    fn names_an_issuer(&self) -> bool {
        self.oidc_issuer_url.is_some()
            || self.oidc_client_id.is_some()
            || self.oidc_ca_file.is_some()
            || self.oidc_username_claim.is_some()
            || self.oidc_username_prefix.is_some()
            || self.oidc_groups_claim.is_some()
            || self.oidc_groups_prefix.is_some()
            || !self.oidc_required_claim.is_empty()
            || self.oidc_signing_algs.is_some()
    }

    /// The settings by these flags, beside issuers that nobody else may be. A mistake is told before anything begins.
    pub fn settings(&self, own: &[String]) -> anyhow::Result<Settings> {
        let Some(file) = &self.authentication_config else {
            let configuration = if self.names_an_issuer() { self.issuer(own)? } else { Configuration::default() };
            return Ok(Settings { configuration, file: None });
        };
        anyhow::ensure!(!self.names_an_issuer(), "authentication-config file and oidc-* flags are mutually exclusive");
        let of_file = |why: String| anyhow::anyhow!("--authentication-config: {}: {why}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| of_file(error.to_string()))?;
        let configuration = Configuration::parse(&text, own).map_err(of_file)?;
        anyhow::ensure!(
            configuration.anonymous.is_none() || self.anonymous_auth.is_none(),
            "--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file"
        );
        Ok(Settings { configuration, file: Some((file.clone(), text)) })
    }

    fn issuer(&self, own: &[String]) -> anyhow::Result<Configuration> {
        let given = |flag: &Option<String>| flag.clone().filter(|text| !text.is_empty());
        let (Some(issuer_url), Some(client_id)) = (given(&self.oidc_issuer_url), given(&self.oidc_client_id)) else {
            anyhow::bail!(
                "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are specified"
            );
        };
        let read = |file: &PathBuf| {
            std::fs::read_to_string(file)
                .map_err(|error| anyhow::anyhow!("--oidc-ca-file: {}: {error}", file.display()))
        };
        let flags = OidcFlags {
            issuer_url,
            client_id,
            authorities: self.oidc_ca_file.as_ref().map(read).transpose()?,
            username_claim: given(&self.oidc_username_claim).unwrap_or_else(|| "sub".to_owned()),
            username_prefix: self.oidc_username_prefix.clone().unwrap_or_default(),
            groups_claim: self.oidc_groups_claim.clone().unwrap_or_default(),
            groups_prefix: self.oidc_groups_prefix.clone().unwrap_or_default(),
            required_claims: self.oidc_required_claim.clone(),
            algorithms: self.oidc_signing_algs.clone().unwrap_or_else(|| vec!["RS256".to_owned()]),
        };
        Configuration::of_flags(flags, own).map_err(|why| anyhow::anyhow!(why))
    }

    /// The server that is asked about bearer tokens.
    pub fn token_webhook(&self) -> Option<token_webhook::Settings> {
        self.authentication_token_webhook_config_file.clone().map(|kubeconfig| token_webhook::Settings {
            kubeconfig,
            version: self.authentication_token_webhook_version.clone(),
            remembered: self.authentication_token_webhook_cache_ttl,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: AuthenticationFlags,
    }

    fn settings(line: &[&str]) -> Result<Settings, String> {
        let parsed = Line::try_parse_from([&["skiff"], line].concat()).map_err(|error| error.to_string())?;
        parsed.flags.settings(&["https://us".to_owned()]).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_say_whose_tokens_are_believed() {
        assert!(settings(&[]).unwrap().configuration.issuers.is_empty());
        let issuer = ["--oidc-issuer-url=https://i", "--oidc-client-id=a"];
        let found = settings(&issuer).unwrap().configuration.issuers.remove(0);
        assert_eq!(
            (found.url.as_str(), &found.audiences[..], &found.algorithms[..]),
            ("https://i", &["a".to_owned()][..], &["RS256".to_owned()][..])
        );
        let found = settings(&[&issuer[..], &["--oidc-username-prefix", "-", "--oidc-required-claim=hd=b=c"]].concat());
        let found = found.unwrap().configuration.issuers.remove(0);
        let rule = apiserver::auth::authn::oidc::ClaimRule::Value { claim: "hd".into(), value: "b=c".into() };
        assert_eq!(found.claim_rules, [rule]);
        let together = "oidc-issuer-url and oidc-client-id must be specified together";
        assert!(settings(&["--oidc-groups-claim=g"]).unwrap_err().contains(together));
        assert!(settings(&issuer[..1]).unwrap_err().contains(together));
        assert!(
            settings(&["--oidc-issuer-url=https://us", "--oidc-client-id=a"])
                .unwrap_err()
                .contains("disallowed issuers")
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c");
        let text =
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true}";
        std::fs::write(&file, text).unwrap();
        let config = format!("--authentication-config={}", file.display());
        assert!(settings(&[&config]).unwrap().configuration.anonymous.unwrap().is_let_in("/api"));
        assert!(settings(&[&config, issuer[0]]).unwrap_err().contains("mutually exclusive"));
        assert!(
            settings(&[&config, "--anonymous-auth=false"]).unwrap_err().contains("--anonymous-auth flag cannot be set")
        );
    }
}

//! The tokens of service accounts: who signs them, and how long they live. Upstream's flags.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use api::validation::url::Url;
use apiserver::{
    assemble::{ServiceAccounts, SignedBy},
    auth::authn::service_account::LEGACY_ISSUER,
};
use clap::{ArgAction, Args};
use pki::{Pki, SigningKey, VerifyingKey};

use super::value;
use crate::control_plane::{followed::read, jwt_signer};

const HOUR: Duration = Duration::from_secs(3600);
const LONGEST: Duration = Duration::from_secs(1 << 32);
/// The tokens of Pods are asked for with this life.
const PROJECTED: Duration = Duration::from_secs(3607);
const EXTENDED: Duration = Duration::from_secs(365 * 24 * 3600);

#[derive(Args, Clone, Debug)]
pub struct ServiceAccountFlags {
    /// Let a Pod's tokens live longer than the Pod is told, for programs that do not reload them, and count those
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_name = "BOOL")]
    service_account_extend_token_expiration: bool,
    /// The longest life of a token of a service account that is asked for; an hour at least
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    service_account_max_token_expiration: Option<Duration>,
    /// The socket of a program that signs the tokens of service accounts and says which keys there are (externaljwt v1). Secrets get
    /// no tokens then
    #[arg(long, value_name = "SOCKET")]
    service_account_signing_endpoint: Option<PathBuf>,
    /// The issuer of the tokens of service accounts, a URL by preference; https://kubernetes.default.svc and the cluster's domain
    /// when not given. Several times for several: the first one is that of new tokens, and tokens of the others are believed too
    #[arg(long, value_name = "ISSUER", action = ArgAction::Append)]
    service_account_issuer: Vec<String>,
    /// The audiences that the API server answers to; its issuers when not given
    #[arg(long, value_delimiter = ',', value_name = "AUDIENCES")]
    api_audiences: Vec<String>,
    /// A file of keys, public or private, or of certificates, in PEM: tokens that one of them signed are believed too. Several times for
    /// several files
    #[arg(long, value_name = "FILE", action = ArgAction::Append, value_parser = value::readable)]
    service_account_key_file: Vec<PathBuf>,
    /// The private key that signs the tokens of service accounts, in PEM; the cluster's own when not given. The cluster's own is believed
    /// no longer beside another, unless a --service-account-key-file is its pki/sa.pub
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    service_account_signing_key_file: Option<PathBuf>,
    /// Where others find the keys, for the document at /.well-known/openid-configuration; at this server's address when not given
    #[arg(long, value_name = "URL")]
    service_account_jwks_uri: Option<String>,
}

impl ServiceAccountFlags {
    pub fn check(&self) -> anyhow::Result<()> {
        if let Some(longest) = self.service_account_max_token_expiration {
            if !(HOUR..=LONGEST).contains(&longest) {
                anyhow::bail!("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds");
            }
            self.warn(longest);
        }
        self.check_issuers()?;
        self.keys()?;
        if let Some(file) = &self.service_account_signing_key_file {
            signing_key(file)?;
        }
        match &self.service_account_signing_endpoint {
            Some(_) if self.names_keys() => anyhow::bail!(
                "can't set `--service-account-signing-key-file` and/or `--service-account-key-file` with \
                 `--service-account-signing-endpoint` (They are mutually exclusive)"
            ),
            Some(socket) if !socket.is_absolute() => {
                anyhow::bail!(
                    "--service-account-signing-endpoint: {} is no absolute path of a socket",
                    socket.display()
                )
            }
            _ => Ok(()),
        }
    }

    /// Says where a longest life and longer lives of Pods' tokens do not go together.
    fn warn(&self, longest: Duration) {
        let extended = "--service-account-extend-token-expiration";
        let flag = "--service-account-max-token-expiration";
        if self.service_account_extend_token_expiration && longest < PROJECTED {
            tracing::warn!("{extended} needs a {flag} longer than {} s", PROJECTED.as_secs());
        }
        if self.service_account_extend_token_expiration && longest < EXTENDED {
            tracing::warn!("{extended} lets tokens of Pods live for {} s, longer than {flag}", EXTENDED.as_secs());
        }
    }

    /// Whether a Pod's tokens live longer than it is told.
    pub fn extends(&self) -> bool {
        self.service_account_extend_token_expiration
    }

    /// Whether the key is this cluster's own.
    pub fn signs_here(&self) -> bool {
        self.service_account_signing_endpoint.is_none()
    }

    fn names_keys(&self) -> bool {
        self.service_account_signing_key_file.is_some() || !self.service_account_key_file.is_empty()
    }

    /// The issuers, and where the keys are, in upstream's words.
    fn check_issuers(&self) -> anyhow::Result<()> {
        for (at, issuer) in self.service_account_issuer.iter().enumerate() {
            if issuer.contains(':')
                && let Err(why) = Url::parse(issuer)
            {
                anyhow::bail!("service-account-issuer {issuer:?} contained a ':' but was not a valid URL: {why}");
            }
            anyhow::ensure!(!issuer.is_empty(), "service-account-issuer should not be an empty string");
            anyhow::ensure!(
                issuer != LEGACY_ISSUER,
                "service-account-issuer {issuer:?} is the one of tokens in Secrets"
            );
            let known = self.service_account_issuer[..at].contains(issuer);
            anyhow::ensure!(!known, "service-account-issuer {issuer:?} is already specified");
        }
        anyhow::ensure!(
            self.api_audiences.iter().all(|audience| !audience.trim().is_empty()),
            "empty value in \"api-audiences\""
        );
        if let Some(url) = self.service_account_jwks_uri.as_ref().filter(|url| !url.is_empty()) {
            let parts = Url::parse(url)
                .map_err(|why| anyhow::anyhow!("service-account-jwks-uri must be a valid URL: {why}"))?;
            anyhow::ensure!(
                parts.scheme == "https",
                "service-account-jwks-uri requires https scheme, parsed as: {url}"
            );
        }
        Ok(())
    }

    /// All issuers; the first one is that of new tokens.
    pub fn issuers(&self, usual: &str) -> Vec<String> {
        if self.service_account_issuer.is_empty() {
            vec![usual.to_owned()]
        } else {
            self.service_account_issuer.clone()
        }
    }

    /// The keys of the files, all of which have to be read.
    fn keys(&self) -> anyhow::Result<Vec<VerifyingKey>> {
        let mut keys = Vec::new();
        for file in &self.service_account_key_file {
            let text = read(std::slice::from_ref(file))?.concat();
            let of_file = || format!("--service-account-key-file {}", file.display());
            keys.extend(VerifyingKey::load_whole(&text).with_context(of_file)?);
        }
        Ok(keys)
    }

    /// The key that signs tokens, where it is here.
    pub fn signing_key(&self, pki: &Pki) -> anyhow::Result<SigningKey> {
        match &self.service_account_signing_key_file {
            Some(file) => signing_key(file),
            None => Ok(SigningKey::load(&pki.service_account.private)?),
        }
    }

    pub fn settings(&self, usual_issuer: &str, pki: &Pki) -> anyhow::Result<ServiceAccounts> {
        let signed_by = match &self.service_account_signing_endpoint {
            Some(socket) => SignedBy::External(jwt_signer::connect(socket)),
            None => SignedBy::Key(self.signing_key(pki)?),
        };
        let (extend, longest) =
            (self.service_account_extend_token_expiration, self.service_account_max_token_expiration);
        Ok(ServiceAccounts {
            issuers: self.issuers(usual_issuer),
            audiences: self.api_audiences.clone(),
            signed_by,
            keys: self.keys()?,
            keys_url: self.service_account_jwks_uri.clone().filter(|url| !url.is_empty()),
            extend,
            longest,
        })
    }
}

fn signing_key(file: &PathBuf) -> anyhow::Result<SigningKey> {
    let text = read(std::slice::from_ref(file))?.concat();
    SigningKey::load_any(&text).with_context(|| format!("--service-account-signing-key-file {}", file.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        service_accounts: ServiceAccountFlags,
    }

    #[test]
    fn lives_and_sockets_are_checked() {
        let check = |args: &[&str]| Flags::parse_from([&["test"], args].concat()).service_accounts.check();
        assert!(check(&[]).is_ok());
        assert!(check(&["--service-account-max-token-expiration=2h"]).is_ok());
        let error = check(&["--service-account-max-token-expiration=59m"]).unwrap_err().to_string();
        assert!(error.contains("must be between 1 hour and 2^32 seconds"), "{error}");
        assert!(Flags::try_parse_from(["test", "--service-account-max-token-expiration=1200000h"]).is_err());
        assert!(check(&["--service-account-signing-endpoint=/run/signer.sock"]).is_ok());
        assert!(check(&["--service-account-signing-endpoint=signer.sock"]).is_err());
        let off = Flags::parse_from(["test", "--service-account-extend-token-expiration=false"]).service_accounts;
        let folder = tempfile::tempdir().unwrap();
        let settings = off.settings("https://us", &Pki::open(folder.path()).unwrap()).unwrap();
        assert!(!settings.extend && matches!(settings.signed_by, SignedBy::Key(_)));
    }

    fn flags(args: &[&str]) -> ServiceAccountFlags {
        Flags::parse_from([&["test"], args].concat()).service_accounts
    }

    #[test]
    fn issuers_and_audiences_are_checked() {
        let check = |args: &[&str], expected: &str| {
            let error = flags(args).check().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{args:?}: {error}");
        };
        check(&["--service-account-issuer=https://a", "--service-account-issuer=b"], "");
        check(&["--service-account-issuer="], "service-account-issuer should not be an empty string");
        check(
            &["--service-account-issuer=a", "--service-account-issuer=a"],
            "service-account-issuer \"a\" is already specified",
        );
        let port = "--service-account-issuer=http://[::1]:namedport";
        check(
            &[port],
            "service-account-issuer \"http://[::1]:namedport\" contained a ':' but was not a valid URL: parse",
        );
        check(&["--service-account-issuer=kubernetes/serviceaccount"], "is the one of tokens in Secrets");
        check(&["--api-audiences=a,"], "empty value in \"api-audiences\"");
        check(&["--service-account-jwks-uri=https://keys/k"], "");
        check(
            &["--service-account-jwks-uri=http://k"],
            "service-account-jwks-uri requires https scheme, parsed as: http://k",
        );
        let port = "parse \"https://host:port\": invalid port \":port\" after host";
        check(&["--service-account-jwks-uri=https://host:port"], &format!("must be a valid URL: {port}"));
        assert_eq!(flags(&[]).issuers("usual"), ["usual"]);
        assert_eq!(
            flags(&["--service-account-issuer=a", "--service-account-issuer=b,c"]).issuers("usual"),
            ["a", "b,c"]
        );
    }

    #[test]
    fn keys_come_from_files_and_the_clusters_own_gives_way() {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::open(&folder.path().join("pki")).unwrap();
        let [one, two, three] = [(); 3].map(|()| SigningKey::create().unwrap());
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name).display().to_string()
        };
        let private = format!("--service-account-key-file={}", write("one", &one.private));
        let public =
            format!("--service-account-key-file={}", write("two", &format!("{}{}", two.public.pem, one.public.pem)));
        let signs = format!("--service-account-signing-key-file={}", write("three", &three.private));
        let settings = flags(&[&private, &public]).settings("https://us", &pki).unwrap();
        let ids: Vec<String> = settings.keys.into_iter().map(|key| key.id).collect();
        assert_eq!(ids, [&one, &two, &one].map(|key| key.public.id.clone()));
        let signing = |args: &[&str]| flags(args).signing_key(&pki).unwrap().public.id;
        assert_eq!(
            (signing(&[&private]), signing(&[&signs])),
            (pki.service_account.public.id.clone(), three.public.id)
        );
        let check = |args: &[&str], expected: &str| {
            let error = format!("{:#}", flags(args).check().unwrap_err());
            assert!(error.contains(expected), "{args:?}: {error}");
        };
        let endpoint = "--service-account-signing-endpoint=/run/s.sock";
        check(&[endpoint, &private], "They are mutually exclusive");
        check(&[endpoint, &signs], "They are mutually exclusive");
        let no_key = write("text", "hello");
        check(&[&format!("--service-account-key-file={no_key}")], &format!("--service-account-key-file {no_key}"));
        let only_public = write("public", &two.public.pem);
        let of_file = format!("--service-account-signing-key-file {only_public}");
        check(&[&format!("--service-account-signing-key-file={only_public}")], &of_file);
    }
}

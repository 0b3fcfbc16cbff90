//! The tokens of service accounts: who signs them, and how long they live. Upstream's flags.

use std::{path::PathBuf, time::Duration};

use apiserver::assemble::{ServiceAccounts, SignedBy};
use clap::{ArgAction, Args};
use pki::{Pki, SigningKey};

use super::value;
use crate::control_plane::jwt_signer;

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
}

impl ServiceAccountFlags {
    pub fn check(&self) -> anyhow::Result<()> {
        if let Some(longest) = self.service_account_max_token_expiration {
            if !(HOUR..=LONGEST).contains(&longest) {
                anyhow::bail!("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds");
            }
            self.warn(longest);
        }
        match &self.service_account_signing_endpoint {
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

    pub fn settings(&self, issuer: &str, pki: &Pki) -> anyhow::Result<ServiceAccounts> {
        let signed_by = match &self.service_account_signing_endpoint {
            Some(socket) => SignedBy::External(jwt_signer::connect(socket)),
            None => SignedBy::Key(SigningKey::load(&pki.service_account.private)?),
        };
        let (extend, longest) =
            (self.service_account_extend_token_expiration, self.service_account_max_token_expiration);
        Ok(ServiceAccounts { issuer: issuer.to_owned(), signed_by, extend, longest })
    }
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
}

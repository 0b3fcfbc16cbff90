//! Structured authentication: the issuers whose tokens are believed, and who is let in without credentials, as flags say or an
//! AuthenticationConfiguration, which is followed while the server runs.
//!
//! Upstream counterpart: apiserver/pkg/server/options, kube-apiserver's authentication options.

mod configuration;
mod reload;
mod validation;
mod written;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::future::{BoxFuture, join_all};
use parking_lot::RwLock;

use super::{
    oidc::{Jwt, Told},
    token::{Identity, Refusal, Tokens},
};
pub use configuration::{Configuration, OidcFlags};

/// The paths that are open without credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Anonymous {
    pub enabled: bool,
    /// Only to these paths, where there are any.
    pub paths: Vec<String>,
}

impl Anonymous {
    pub fn is_let_in(&self, path: &str) -> bool {
        self.enabled && (self.paths.is_empty() || self.paths.iter().any(|allowed| allowed == path))
    }
}

/// The settings of authentication beyond the credentials that the server always knows.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub configuration: Configuration,
    /// The file that the configuration was read from, and its text. It is followed.
    pub file: Option<(PathBuf, String)>,
}

/// The configuration in force.
pub struct Structured {
    current: RwLock<Arc<InForce>>,
    /// Grows with each change, so that nothing is remembered beyond it.
    changes: AtomicU64,
    /// Issuers that nobody else may be: our own.
    disallowed: Vec<String>,
    told: Told,
}

struct InForce {
    configuration: Configuration,
    issuers: Vec<Jwt>,
}

impl InForce {
    fn new(configuration: &Configuration, told: &Told) -> Result<Self, String> {
        let issuers = configuration.issuers.iter().map(|settings| Jwt::new(settings, told.clone()));
        Ok(InForce { issuers: issuers.collect::<Result<_, _>>()?, configuration: configuration.clone() })
    }

    /// Finds all issuers.
    async fn find(&self) -> Result<(), String> {
        let found = join_all(self.issuers.iter().map(|issuer| issuer.find())).await;
        let missing: Vec<String> = found.into_iter().filter_map(Result::err).collect();
        if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) }
    }

    /// Another configuration is in force from now on.
    fn retire(&self, next: &InForce) {
        for issuer in &self.issuers {
            issuer.retire(next.issuers.iter().any(|other| other.url() == issuer.url()));
        }
    }
}

impl Structured {
    pub fn new(configuration: &Configuration, disallowed: Vec<String>, told: Told) -> Result<Self, String> {
        let current = RwLock::new(Arc::new(InForce::new(configuration, &told)?));
        Ok(Structured { current, changes: AtomicU64::new(0), disallowed, told })
    }

    /// The conditions for requests without credentials, where the configuration says them.
    pub fn anonymous(&self) -> Option<Anonymous> {
        self.current.read().configuration.anonymous.clone()
    }

    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub fn render(&self) -> String {
        self.told.metrics.render()
    }
}

impl Tokens for Structured {
    fn check<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
    ) -> BoxFuture<'a, Result<Option<Identity>, Refusal>> {
        Box::pin(async move {
            let current = self.current.read().clone();
            for issuer in &current.issuers {
                // No two have the same URL, so that what one says is all there is to say.
                if let Some(identity) = issuer.check(token, audiences).await? {
                    return Ok(Some(identity));
                }
            }
            Ok(None)
        })
    }
}

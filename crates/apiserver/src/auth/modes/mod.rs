//! Which authorizers there are, and in which order they are asked: as flags say, or a file that is followed while the server runs.
//!
//! Upstream counterpart: pkg/kubeapiserver/authorizer.

pub mod configuration;
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

use futures::future::Either;
use meter::{Metric, Metrics, Sort};
use parking_lot::{Mutex, RwLock};

use super::{
    AlwaysAllow, Answer, Attributes, Authorizer, Rules, Union, User, Verdict, abac::Policies, known, webhook::Webhook,
};
use configuration::{Configuration, Mode};
pub use configuration::{Flags, modes_of};

/// How requests are authorized.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub configuration: Configuration,
    /// The policies of ABAC, where that is a mode.
    pub policies: Option<Policies>,
    /// The file that the configuration was read from, and its text. It is followed.
    pub file: Option<(PathBuf, String)>,
}

/// The authorizers that the server has itself.
pub struct Own {
    pub node: Arc<dyn Authorizer>,
    pub rbac: Arc<dyn Authorizer>,
}

static DECISIONS: Metric = Metric {
    name: "apiserver_authorization_decisions_total",
    help: "Total number of terminal decisions made by an authorizer split by authorizer type, name, and decision.",
    sort: Sort::Counter,
};

/// The authorizers in force.
pub struct Modes {
    own: Own,
    policies: Option<Arc<Policies>>,
    /// Whether one of them may take time, and all of them.
    current: RwLock<(bool, Arc<Union>)>,
    /// The configuration that was understood last.
    configuration: Mutex<Configuration>,
    decided: Mutex<Vec<Arc<Decided>>>,
    pub metrics: Arc<Metrics>,
}

/// How often an authorizer of some type and name decided. It is asked on each request, so this takes no lock.
struct Decided {
    mode: &'static str,
    name: String,
    allowed: AtomicU64,
    denied: AtomicU64,
}

impl Decided {
    fn count(&self, verdict: &Verdict) {
        let count = match verdict {
            Verdict::Allow(_) => &self.allowed,
            verdict if verdict.denied() => &self.denied,
            _ => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// An authorizer whose decisions are counted.
struct Counted {
    authorizer: Arc<dyn Authorizer>,
    decided: Arc<Decided>,
}

impl Authorizer for Counted {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Answer<'a> {
        match self.authorizer.authorize(attributes) {
            Either::Left(verdict) => {
                let verdict = verdict.into_inner();
                self.decided.count(&verdict);
                known(verdict)
            }
            Either::Right(asked) => Either::Right(Box::pin(async {
                let verdict = asked.await;
                self.decided.count(&verdict);
                verdict
            })),
        }
    }

    fn rules_for(&self, user: &User, namespace: &str) -> Rules {
        self.authorizer.rules_for(user, namespace)
    }
}

/// Lets nothing through.
struct AlwaysDeny;

impl Authorizer for AlwaysDeny {
    fn authorize<'a>(&'a self, _: &'a Attributes<'a>) -> Answer<'a> {
        known(Verdict::NoOpinion("Everything is forbidden.".to_owned()))
    }

    fn rules_for(&self, _: &User, _: &str) -> Rules {
        Rules::default()
    }
}

impl Modes {
    pub fn new(settings: &Settings, own: Own) -> Result<Self, String> {
        let modes = Modes {
            own,
            policies: settings.policies.clone().map(Arc::new),
            current: RwLock::new((false, Arc::new(Union(Vec::new())))),
            configuration: Mutex::new(settings.configuration.clone()),
            decided: Mutex::default(),
            metrics: Arc::default(),
        };
        *modes.current.write() = modes.build(&settings.configuration)?;
        Ok(modes)
    }

    fn build(&self, configuration: &Configuration) -> Result<(bool, Arc<Union>), String> {
        let authorizers = configuration.authorizers.iter().map(|entry| {
            let authorizer: Arc<dyn Authorizer> = match (entry.mode, &entry.webhook) {
                (Mode::Node, _) => self.own.node.clone(),
                (Mode::Rbac, _) => self.own.rbac.clone(),
                (Mode::AlwaysAllow, _) => Arc::new(AlwaysAllow),
                (Mode::AlwaysDeny, _) => Arc::new(AlwaysDeny),
                (Mode::Abac, _) => self
                    .policies
                    .clone()
                    .ok_or("authorizer type ABAC is not allowed if it was not enabled at initial server startup")?,
                (Mode::Webhook, Some(settings)) => {
                    Arc::new(Webhook::new(&entry.name, settings.clone(), self.metrics.clone())?)
                }
                (Mode::Webhook, None) => return Err("authorizer type Webhook needs a webhook".to_owned()),
            };
            let decided = self.decided(entry.mode, &entry.name);
            Ok(Arc::new(Counted { authorizer, decided }) as Arc<dyn Authorizer>)
        });
        let union = Arc::new(Union(authorizers.collect::<Result<_, String>>()?));
        Ok((configuration.authorizers.iter().any(|entry| entry.mode == Mode::Webhook), union))
    }

    /// The figures of an authorizer, also those of one that bore its name before.
    fn decided(&self, mode: Mode, name: &str) -> Arc<Decided> {
        let mut all = self.decided.lock();
        if let Some(known) = all.iter().find(|one| one.mode == mode.name() && one.name == name) {
            return known.clone();
        }
        let (allowed, denied) = (AtomicU64::new(0), AtomicU64::new(0));
        let made = Arc::new(Decided { mode: mode.name(), name: name.to_owned(), allowed, denied });
        all.push(made.clone());
        made
    }

    /// The lines of the page of metrics.
    pub fn render(&self) -> String {
        for one in &*self.decided.lock() {
            for (decision, count) in [("allowed", &one.allowed), ("denied", &one.denied)] {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let labels = [("type", one.mode), ("name", &*one.name), ("decision", decision)];
                    self.metrics.series(&DECISIONS, &labels).reach(count);
                }
            }
        }
        self.metrics.render()
    }
}

impl Authorizer for Modes {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Answer<'a> {
        let (waits, current) = self.current.read().clone();
        // Only a webhook takes time, and nobody is asked twice.
        if !waits && let Either::Left(verdict) = current.authorize(attributes) {
            return Either::Left(verdict);
        }
        Either::Right(Box::pin(async move { current.authorize(attributes).await }))
    }

    fn rules_for(&self, user: &User, namespace: &str) -> Rules {
        self.current.read().1.rules_for(user, namespace)
    }
}

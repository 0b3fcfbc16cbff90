//! The configuration file is followed while the server runs. One that is wrong changes nothing, which is said and counted.

use std::{path::Path, sync::Arc};

use files::followed::Followed;
use meter::{Metric, Sort};

use super::{Configuration, Mode, Modes};
use crate::auth::metrics::hash;

static RELOADS: Metric = Metric {
    name: "apiserver_authorization_config_controller_automatic_reloads_total",
    help: "Total number of automatic reloads of authorization configuration split by status and apiserver identity.",
    sort: Sort::Counter,
};
static LAST: Metric = Metric {
    name: "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds",
    help: "Timestamp of the last automatic reload of authorization configuration split by status and apiserver identity.",
    sort: Sort::Gauge,
};
static CONFIG: Metric = Metric {
    name: "apiserver_authorization_config_controller_last_config_info",
    help: "Information about the last applied authorization configuration with hash as label, split by apiserver identity.",
    sort: Sort::Gauge,
};

impl Modes {
    /// Follows the file, which had this text, until cancelled. `server` is how metrics name the server.
    pub async fn follow(self: Arc<Self>, file: impl AsRef<Path>, text: String, server: String) {
        let applied = |text: &str| {
            self.metrics.replace(&CONFIG, &[("apiserver_id_hash", &server), ("hash", &hash(text))]);
        };
        applied(&text);
        let mut file = Followed::new(vec![file.as_ref().to_owned()], vec![text]);
        loop {
            let found = file.changed().await;
            match found.and_then(|texts| self.take(&texts[0]).map(|taken| taken.then_some(texts))) {
                Ok(None) => {}
                Ok(Some(texts)) => {
                    tracing::info!("the authorization configuration was read anew");
                    self.reloaded(&server, "success");
                    applied(&texts[0]);
                }
                Err(why) => self.failed(&server, &why),
            }
        }
    }

    fn failed(&self, server: &str, why: &str) {
        tracing::error!(why, "the authorization configuration stays as it was");
        self.reloaded(server, "failure");
    }

    fn reloaded(&self, server: &str, status: &str) {
        let labels = [("status", status), ("apiserver_id_hash", server)];
        self.metrics.count(&RELOADS, &labels);
        self.metrics.set(&LAST, &labels, clock::now().as_second() as f64);
    }

    /// Puts another configuration in force; false where it says what was said before.
    fn take(&self, text: &str) -> Result<bool, String> {
        let configuration = Configuration::parse(text)?;
        let mut current = self.configuration.lock();
        if configuration == *current {
            return Ok(false);
        }
        let of = |configuration: &Configuration| {
            let lasting = |mode: &Mode| matches!(mode, Mode::Node | Mode::Rbac | Mode::Abac);
            let modes = configuration.authorizers.iter().map(|entry| entry.mode).filter(lasting);
            let mut names: Vec<&'static str> = modes.map(Mode::name).collect();
            names.sort_unstable();
            names
        };
        let (had, has) = (of(&current), of(&configuration));
        if let Some(missing) = had.iter().find(|mode| !has.contains(mode)) {
            return Err(format!("missing required types: [{missing}]"));
        }
        if let Some(more) = has.iter().find(|mode| !had.contains(mode)) {
            return Err(format!(
                "authorizer type {more} is not allowed if it was not enabled at initial server startup"
            ));
        }
        let built = self.build(&configuration)?;
        *current = configuration;
        *self.current.write() = built;
        Ok(true)
    }
}

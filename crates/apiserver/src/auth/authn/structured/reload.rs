//! The configuration file is followed while the server runs. One that is wrong changes nothing, which is said and counted.

use std::{path::Path, sync::Arc, sync::atomic::Ordering};

use files::followed::Followed;
use meter::{Metric, Sort};

use super::{Configuration, InForce, Structured};
use crate::auth::metrics::hash;

static RELOADS: Metric = Metric {
    name: "apiserver_authentication_config_controller_automatic_reloads_total",
    help: "Total number of automatic reloads of authentication configuration split by status and apiserver identity.",
    sort: Sort::Counter,
};
static LAST: Metric = Metric {
    name: "apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds",
    help: "Timestamp of the last automatic reload of authentication configuration split by status and apiserver identity.",
    sort: Sort::Gauge,
};
static CONFIG: Metric = Metric {
    name: "apiserver_authentication_config_controller_last_config_info",
    help: "Information about the last applied authentication configuration with hash as label, split by apiserver identity.",
    sort: Sort::Gauge,
};

impl Structured {
    /// Follows the file, which had this text, until cancelled.
    pub async fn follow(self: Arc<Self>, file: impl AsRef<Path>, text: String) {
        self.applied(&text);
        let mut file = Followed::new(vec![file.as_ref().to_owned()], vec![text]);
        loop {
            let found = file.changed().await;
            match found.and_then(|texts| self.take(&texts[0]).map(|taken| taken.then_some(texts))) {
                Ok(None) => {}
                Ok(Some(texts)) => {
                    tracing::info!("the authentication configuration was read anew");
                    self.reloaded("success");
                    self.applied(&texts[0]);
                }
                Err(why) => self.failed(&why),
            }
        }
    }

    fn applied(&self, text: &str) {
        self.told.metrics.replace(&CONFIG, &[("apiserver_id_hash", &self.told.server), ("hash", &hash(text))]);
    }

    fn failed(&self, why: &str) {
        tracing::error!(why, "the authentication configuration stays as it was");
        self.reloaded("failure");
    }

    fn reloaded(&self, status: &str) {
        let labels = [("status", status), ("apiserver_id_hash", &*self.told.server)];
        self.told.metrics.count(&RELOADS, &labels);
        self.told.metrics.set(&LAST, &labels, clock::now().as_second() as f64);
    }

    /// Puts another configuration in force; false where it says what was said before. Whoever is known under the one before
    /// is to be asked again.
    fn take(&self, text: &str) -> Result<bool, String> {
        let configuration = Configuration::parse(text, &self.disallowed)?;
        if configuration == self.current.read().configuration {
            return Ok(false);
        }
        let made = Arc::new(InForce::new(&configuration, &self.told)?);
        *self.current.write() = made;
        self.changes.fetch_add(1, Ordering::Release);
        Ok(true)
    }
}

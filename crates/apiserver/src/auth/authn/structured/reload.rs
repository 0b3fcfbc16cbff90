//! The configuration file is followed while the server runs. One that is wrong changes nothing, which is said and counted.

use std::{path::Path, sync::Arc, sync::atomic::Ordering};

use clock::{Duration, Instant};
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

/// The issuers of another configuration are looked for this often, and for this long.
const PAUSE: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a configuration is not put in force.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    /// It is wrong, and stays that.
    Wrong(String),
    /// It may be good at another time.
    Now(String),
}

/// Does it until it succeeds, as long as there is patience. The error is the last one.
async fn patiently<F>(mut work: impl FnMut() -> F) -> Result<(), String>
where
    F: Future<Output = Result<(), String>>,
{
    let begin = Instant::now();
    loop {
        let Err(why) = work().await else { return Ok(()) };
        if begin.elapsed() + PAUSE >= PATIENCE {
            return Err(why);
        }
        clock::sleep(PAUSE).await;
    }
}

impl Structured {
    /// Follows the file, which had this text, until cancelled.
    pub async fn follow(self: Arc<Self>, file: impl AsRef<Path>, text: String) {
        self.applied(&text);
        let mut file = Followed::new(vec![file.as_ref().to_owned()], vec![text]);
        loop {
            let ended = match file.changed().await {
                Ok(texts) => self.take_newest(&mut file, texts).await,
                Err(why) => Err(Refused::Wrong(why)),
            };
            match ended {
                Ok(None) => {}
                Ok(Some(text)) => {
                    tracing::info!("the authentication configuration was read anew");
                    self.reloaded("success");
                    self.applied(&text);
                }
                Err(Refused::Wrong(why)) => self.failed(&why),
                Err(Refused::Now(why)) => {
                    self.failed(&why);
                    file.not_taken();
                }
            }
        }
    }

    /// Puts in force what the file says. A file that changes while its issuers are looked for is not waited for: what it says
    /// then counts. The text that is in force, if it is another one than before.
    async fn take_newest(&self, file: &mut Followed, mut texts: Vec<String>) -> Result<Option<String>, Refused> {
        loop {
            tokio::select! {
                taken = self.take(&texts[0]) => return Ok(taken?.then(|| texts.swap_remove(0))),
                newer = file.changed() => texts = newer.map_err(Refused::Now)?,
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

    /// Puts another configuration in force, as soon as its issuers are found; false where it says what was said before. Whoever
    /// is known under the one before is to be asked again.
    async fn take(&self, text: &str) -> Result<bool, Refused> {
        let configuration = Configuration::parse(text, &self.disallowed).map_err(Refused::Wrong)?;
        let current = self.current.read().clone();
        if configuration == current.configuration {
            return Ok(false);
        }
        // Strangers are let in, or not, as the server began.
        if configuration.anonymous != current.configuration.anonymous {
            let why = "anonymous: Forbidden: changed from initial configuration file";
            return Err(Refused::Wrong(why.to_owned()));
        }
        let made = Arc::new(InForce::new(&configuration, &self.told).map_err(Refused::Wrong)?);
        patiently(|| made.find()).await.map_err(Refused::Now)?;
        *self.current.write() = made.clone();
        self.changes.fetch_add(1, Ordering::Release);
        current.retire(&made);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use json::json;
    use pki::SigningKey;

    use super::*;
    use crate::{
        auth::authn::{oidc::Told, token::Tokens},
        tests::idp::{DISCOVERY, Idp, Page, signed},
    };

    fn file(idps: &[&Idp], more: &str) -> String {
        let issuer = |idp: &&Idp| {
            let (url, authority) = (idp.url(), idp.authorities());
            json!({"issuer": {"url": url, "audiences": ["us"], "certificateAuthority": authority},
                "claimMappings": {"username": {"claim": "sub", "prefix": ""}}})
        };
        let jwt: json::Value = idps.iter().map(issuer).collect::<Vec<_>>().into();
        format!("{{apiVersion: apiserver.config.k8s.io/v1, kind: AuthenticationConfiguration, jwt: {jwt}{more}}}")
    }

    fn structured(text: &str) -> Structured {
        let configuration = Configuration::parse(text, &[]).unwrap();
        Structured::new(&configuration, Vec::new(), Told { metrics: Arc::default(), server: "s".to_owned() }).unwrap()
    }

    async fn knows(structured: &Structured, token: &str) -> bool {
        matches!(structured.check(token, &[]).await, Ok(Some(_)))
    }

    #[tokio::test(start_paused = true)]
    async fn issuers_are_looked_for_more_than_once_and_not_for_ever() {
        let mut asked = 0;
        let found = patiently(|| {
            asked += 1;
            std::future::ready(if asked < 3 { Err("not yet".to_owned()) } else { Ok(()) })
        });
        assert_eq!(found.await, Ok(()));
        assert_eq!(asked, 3);
        let mut asked = 0;
        let never = patiently(|| {
            asked += 1;
            std::future::ready(Err(format!("not at {asked}")))
        });
        assert_eq!(never.await, Err("not at 6".to_owned()));
    }

    #[tokio::test]
    async fn a_configuration_whose_issuer_is_not_found_changes_nothing() {
        let key = SigningKey::create().unwrap();
        let (one, other) = (Idp::start(&[&key.public]).await, Idp::start(&[&key.public]).await);
        let [of_one, of_other] = [&one, &other].map(|idp| signed(&key, &idp.claims(json!({}))));
        let structured = structured(&file(&[&one], ""));
        assert!(knows(&structured, &of_one).await);
        other.be(DISCOVERY, Page::Status(404));
        tokio::time::pause();
        let refused = structured.take(&file(&[&other], "")).await;
        tokio::time::resume();
        assert!(matches!(refused, Err(Refused::Now(_))), "{refused:?}");
        assert!(knows(&structured, &of_one).await && structured.changes() == 0);
        other.publish(DISCOVERY, &json!({"issuer": other.url(), "jwks_uri": format!("{}/keys", other.url())}));
        assert_eq!(structured.take(&file(&[&other], "")).await, Ok(true));
        assert_eq!(structured.take(&file(&[&other], "")).await, Ok(false));
        assert!(knows(&structured, &of_other).await && !knows(&structured, &of_one).await);
    }

    #[tokio::test]
    async fn strangers_are_let_in_as_the_server_began() {
        let [on, off] = ["true", "false"].map(|enabled| file(&[], &format!(", anonymous: {{enabled: {enabled}}}")));
        let structured = structured(&on);
        for other in [off, file(&[], "")] {
            let why = "anonymous: Forbidden: changed from initial configuration file".to_owned();
            assert_eq!(structured.take(&other).await, Err(Refused::Wrong(why)));
        }
        assert!(structured.anonymous().unwrap().enabled);
    }

    #[tokio::test]
    async fn fetches_are_told_of_as_long_as_their_issuer_is_believed() {
        let key = SigningKey::create().unwrap();
        let (one, other) = (Idp::start(&[&key.public]).await, Idp::start(&[&key.public]).await);
        let structured = structured(&file(&[&one, &other], ""));
        for idp in [&one, &other] {
            assert!(knows(&structured, &signed(&key, &idp.claims(json!({})))).await);
        }
        let told = |idp: &Idp| {
            let (page, issuer) = (structured.render(), hash(&idp.url()));
            page.lines().filter(|line| line.contains("jwks_fetch_last") && line.contains(&issuer)).count()
        };
        assert_eq!((told(&one), told(&other)), (2, 2));
        let before = structured.current.read().clone();
        assert_eq!(structured.take(&file(&[&one], "")).await, Ok(true));
        assert_eq!((told(&one), told(&other)), (2, 0));
        // A token that was under way meanwhile brings nothing back.
        other.asked();
        let forged = signed(&SigningKey::create().unwrap(), &other.claims(json!({})));
        while before.issuers[1].check(&forged, &[]).await.is_err() && other.asked().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(told(&other), 0);
    }
}

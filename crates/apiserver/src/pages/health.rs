//! `/healthz`, `/livez`, `/readyz`: named checks, each alone or all together, in upstream's text form.

use std::{fmt::Write as _, sync::Arc};

use api::rules::url::query_pairs;
use clock::{Duration, Instant};
use futures::{FutureExt, future::BoxFuture};
use http::StatusCode;
use meter::{Metric, Metrics, process};
use tokio::sync::Mutex;

use crate::{
    http::body::{Body, Response},
    storage::object_store::ObjectStore,
};

static RESULT: Metric =
    Metric::gauge("kubernetes_healthcheck", "[STABLE] This metric records the result of a single healthcheck.");
static RESULTS: Metric =
    Metric::counter("kubernetes_healthchecks_total", "[STABLE] This metric records the results of all healthcheck.");

/// The result of a check, and its time.
type Known = Option<(Instant, Result<(), String>)>;

type Check = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// A check that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time for which a result holds: anybody may ask, and the store is to do other work too.
const HOLDS: Duration = Duration::from_millis(500);

/// The number of excluded names that are told to be no check's.
const NAMES: usize = 32;

/// Which of the endpoints a check counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    Everywhere,
    /// Only for readiness: not being ready yet is no reason to be killed.
    Ready,
}

const ENDPOINTS: [&str; 3] = ["healthz", "livez", READY];
const READY: &str = "readyz";

impl Counts {
    fn of(self, endpoint: &str) -> bool {
        self == Counts::Everywhere || endpoint == READY
    }
}

/// The named checks, in the order in which they are shown.
#[derive(Clone, Default)]
pub struct Checks {
    checks: Vec<(String, Counts, Check)>,
    /// How those ended that somebody asked for.
    ends: Arc<Metrics>,
}

impl Checks {
    /// Those of every API server: that it can log, that the store answers, and that its caches have what is in there.
    pub fn of(objects: &Arc<ObjectStore>) -> Self {
        let store = {
            let objects = objects.clone();
            move || {
                let objects = objects.clone();
                async move { objects.store.revision().await.map(|_| ()).map_err(|error| error.to_string()) }
            }
        };
        let caches = {
            let objects = objects.clone();
            move || {
                let objects = objects.clone();
                async move { objects.caught_up().await.map(|_| ()).map_err(|error| error.message) }
            }
        };
        Checks::default()
            .with("log", Counts::Everywhere, || Ok(()))
            .with_slow("etcd", Counts::Everywhere, store.clone())
            .with_slow("etcd-readiness", Counts::Ready, store)
            .with_slow("informer-sync", Counts::Ready, caches)
    }

    #[must_use]
    pub fn with(
        mut self,
        name: &str,
        counts: Counts,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.checks.push((name.to_owned(), counts, Arc::new(move || std::future::ready(check()).boxed())));
        self
    }

    /// A check that waits for somebody else. However many ask, it runs once at a time.
    #[must_use]
    pub fn with_slow<F: Future<Output = Result<(), String>> + Send + 'static>(
        mut self,
        name: &str,
        counts: Counts,
        check: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self {
        let known: Arc<Mutex<Known>> = Arc::default();
        let check = Arc::new(check);
        let once = move || {
            let (known, check) = (known.clone(), check.clone());
            async move {
                let mut known = known.lock().await;
                if let Some((when, result)) = &*known
                    && when.elapsed() < HOLDS
                {
                    return result.clone();
                }
                let late = || Err(format!("no answer within {} seconds", PATIENCE.as_secs()));
                let result = clock::timeout(PATIENCE, check()).await.unwrap_or_else(|_| late());
                *known = Some((Instant::now(), result.clone()));
                result
            }
            .boxed()
        };
        self.checks.push((name.to_owned(), counts, Arc::new(once)));
        self
    }

    /// Adds the checks of others behind these.
    pub fn extend(&mut self, others: Checks) {
        self.checks.extend(others.checks);
    }

    /// Takes the check of this name out, if there is one.
    pub fn split_off(&mut self, name: &str) -> Checks {
        let checks = self.checks.extract_if(.., |(own, _, _)| own == name).collect();
        Checks { checks, ..Checks::default() }
    }

    /// The page of what checks found: `/metrics/slis`.
    pub fn slis(&self) -> String {
        self.ends.render() + &process::started_page()
    }

    fn ended(&self, name: &str, endpoint: &str, well: bool) {
        let status = if well { "success" } else { "error" };
        self.ends.set(&RESULT, &[("name", name), ("type", endpoint)], f64::from(u8::from(well)));
        self.ends.count(&RESULTS, &[("name", name), ("status", status), ("type", endpoint)]);
    }

    /// All checks by name, each with what is wrong.
    pub async fn results(&self) -> Vec<(&str, Result<(), String>)> {
        futures::future::join_all(self.checks.iter().map(async |(name, _, check)| (name.as_str(), check().await))).await
    }

    /// The paths that are answered.
    pub fn paths(&self) -> Vec<String> {
        let of = |endpoint: &'static str| {
            let relevant = self.checks.iter().filter(move |(_, counts, _)| counts.of(endpoint));
            let names = std::iter::once("ping").chain(relevant.map(|(name, _, _)| name.as_str()));
            std::iter::once(format!("/{endpoint}")).chain(names.map(move |name| format!("/{endpoint}/{name}")))
        };
        ENDPOINTS.into_iter().flat_map(of).collect()
    }

    /// Answers `/healthz`, `/livez`, `/readyz` and the paths of single checks under them.
    pub async fn answer(&self, path: &str, query: &str) -> Option<Response> {
        let mut parts = path.trim_matches('/').splitn(2, '/');
        let endpoint = parts.next().filter(|e| ENDPOINTS.contains(e))?;
        let relevant = || self.checks.iter().filter(|(_, counts, _)| counts.of(endpoint));
        if let Some(single) = parts.next() {
            if single == "ping" {
                return Some(text(StatusCode::OK, "ok".to_owned()));
            }
            let (_, _, check) = relevant().find(|(name, _, _)| name == single)?;
            return Some(match check().await {
                Ok(()) => text(StatusCode::OK, "ok".to_owned()),
                Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")),
            });
        }
        let mut verbose = false;
        let mut excluded = Vec::new();
        for (key, value) in query_pairs(query) {
            match key.as_str() {
                "verbose" => verbose = true,
                "exclude" => excluded.push(value),
                _ => {}
            }
        }
        let mut report = String::new();
        let mut failed = false;
        let ping: Check = Arc::new(|| std::future::ready(Ok(())).boxed());
        for (name, check) in std::iter::once(("ping", &ping)).chain(relevant().map(|(name, _, c)| (name.as_str(), c))) {
            if excluded.iter().any(|excluded| excluded == name) {
                let _ = writeln!(report, "[+]{name} excluded: ok");
                excluded.retain(|excluded| excluded != name);
                continue;
            }
            let found = check().await;
            self.ended(name, endpoint, found.is_ok());
            match found {
                Ok(()) => {
                    let _ = writeln!(report, "[+]{name} ok");
                }
                Err(why) => {
                    tracing::info!(check = name, %why, "health check failed");
                    failed = true;
                    let _ = writeln!(report, "[-]{name} failed: reason withheld");
                }
            }
        }
        if !excluded.is_empty() {
            excluded.sort();
            excluded.dedup();
            let names: Vec<String> = excluded.iter().take(NAMES).map(|name| format!("{name:?}")).collect();
            let names = names.join(",");
            let _ = writeln!(report, "warn: some health checks cannot be excluded: no matches for {names}");
        }
        Some(match (failed, verbose) {
            (true, _) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{report}{endpoint} check failed\n")),
            (false, true) => text(StatusCode::OK, format!("{report}{endpoint} check passed\n")),
            (false, false) => text(StatusCode::OK, "ok".to_owned()),
        })
    }
}

fn text(code: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert("content-type", http::HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert("cache-control", http::HeaderValue::from_static("no-cache, private"));
    headers.insert("x-content-type-options", http::HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    async fn ask(checks: &Checks, path: &str, query: &str) -> (u16, String) {
        let answer = checks.answer(path, query).await.expect("a check");
        let code = answer.status().as_u16();
        let text = answer.into_body().collect(10_000).await.expect("a body");
        (code, String::from_utf8(text.to_vec()).expect("text"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_hangs_is_told_by_its_name_and_asked_once() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let checks = Checks::default().with_slow("etcd", Counts::Everywhere, move || {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::pending()
        });
        let many = futures::future::join_all((0..50).map(|_| ask(&checks, "/readyz", ""))).await;
        let expected = "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n";
        assert!(many.iter().all(|(code, text)| (*code, text.as_str()) == (500, expected)), "{many:?}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let (code, text) = ask(&checks, "/livez/etcd", "").await;
        assert_eq!((code, text.as_str()), (500, "internal server error: no answer within 2 seconds\n"));
        let (code, text) = ask(&checks, "/readyz", "exclude=etcd&verbose").await;
        assert_eq!((code, text.as_str()), (200, "[+]ping ok\n[+]etcd excluded: ok\nreadyz check passed\n"));
        clock::sleep(HOLDS).await;
        let told = checks.slis();
        for line in [
            r#"kubernetes_healthcheck{name="etcd",type="readyz"} 0"#,
            r#"kubernetes_healthchecks_total{name="etcd",status="error",type="readyz"} 50"#,
            r#"kubernetes_healthchecks_total{name="ping",status="success",type="readyz"} 51"#,
        ] {
            assert!(told.lines().any(|one| one == line), "{line} in {told}");
        }
        ask(&checks, "/healthz", "").await;
        assert_eq!(asked.load(Ordering::Relaxed), 2, "an old answer does not hold for ever");
    }

    #[tokio::test]
    async fn what_is_no_check_cannot_be_excluded() {
        let checks = Checks::default().with("log", Counts::Everywhere, || Ok(()));
        let (code, text) = ask(&checks, "/livez", "verbose&exclude=log&exclude=b%22&exclude=a&exclude=a").await;
        let warning = "warn: some health checks cannot be excluded: no matches for \"a\",\"b\\\"\"\n";
        assert_eq!((code, text), (200, format!("[+]ping ok\n[+]log excluded: ok\n{warning}livez check passed\n")));
    }

    #[tokio::test]
    async fn what_counts_for_readiness_alone_is_no_reason_to_be_killed() {
        let checks = Checks::default().with("late", Counts::Ready, || Err("not yet".to_owned()));
        assert_eq!(ask(&checks, "/readyz", "").await.0, 500);
        for endpoint in ["livez", "healthz"] {
            assert_eq!(ask(&checks, &format!("/{endpoint}"), "").await.0, 200);
            assert!(checks.answer(&format!("/{endpoint}/late"), "").await.is_none());
        }
    }
}

//! `/healthz`, `/livez`, `/readyz`: named checks, each alone or all together, in upstream's text form.

use std::{fmt::Write as _, sync::Arc};

use http::StatusCode;

use crate::http::body::{Body, Response};
use api::rules::url::query_pairs;

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Which of the endpoints a check counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    Everywhere,
    /// Only for readiness: not being ready yet is no reason to be killed.
    Ready,
}

/// The named checks, in the order in which they are shown.
#[derive(Clone, Default)]
pub struct Checks {
    checks: Vec<(String, Counts, Check)>,
}

impl Checks {
    #[must_use]
    pub fn with(
        mut self,
        name: &str,
        counts: Counts,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.checks.push((name.to_owned(), counts, Arc::new(check)));
        self
    }

    /// All checks by name, each with what is wrong.
    pub fn results(&self) -> impl Iterator<Item = (&str, Result<(), String>)> {
        self.checks.iter().map(|(name, _, check)| (name.as_str(), check()))
    }

    /// Answers `/healthz`, `/livez`, `/readyz` and the paths of single checks under them.
    pub fn answer(&self, path: &str, query: &str) -> Option<Response> {
        let mut parts = path.trim_matches('/').splitn(2, '/');
        let endpoint = parts.next().filter(|e| matches!(*e, "healthz" | "livez" | "readyz"))?;
        let counts = |c: &Counts| *c == Counts::Everywhere || endpoint != "livez";
        let relevant = || self.checks.iter().filter(|(_, c, _)| counts(c));
        if let Some(single) = parts.next() {
            if single == "ping" {
                return Some(text(StatusCode::OK, "ok".to_owned()));
            }
            let (_, _, check) = relevant().find(|(name, _, _)| name == single)?;
            return Some(match check() {
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
        let mut report = "[+]ping ok\n".to_owned();
        let mut failed = false;
        for (name, _, check) in relevant() {
            if excluded.contains(name) {
                let _ = writeln!(report, "[+]{name} excluded: ok");
                continue;
            }
            match check() {
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

//! `/debug/pprof/` and `/debug/flags/v`: what a developer asks of a server that runs. Only who may do everything may ask, unless a role
//! names the paths.
//! Upstream counterpart: k8s.io/apiserver/pkg/server/routes, its `profiling.go` and `flags.go`; Go's net/http/pprof.

use std::collections::BTreeMap;

use api::{rules::url::query_pairs, status::StatusError};
use bytes::Bytes;
use clock::Duration;
use http::{HeaderValue, StatusCode, header};
use profile::Refusal;

use crate::{call::Call, http::body::Response};

/// The settings of the pages for developers.
#[derive(Default)]
pub struct Debugging {
    /// Whether there are these pages at all.
    pub profiling: bool,
    /// The flags that it was started with.
    pub flags: BTreeMap<String, String>,
}

const PROFILES: &str = "/debug/pprof";
const FLAGS: &str = "/debug/flags";
/// A profile takes so long when it is not said.
const USUAL: Duration = Duration::from_secs(30);
/// Addresses that are looked up at once.
const ADDRESSES: usize = 4096;

/// The profiles that there are, and their descriptions.
const KINDS: [(&str, &str); 5] = [
    ("cmdline", "The command line of this process."),
    ("goroutine", "The stacks of all threads; what waits for an event is on none. debug=2 gives them as text."),
    ("profile", "CPU profile. The duration stands in seconds=; go tool pprof opens it."),
    ("symbol", "The functions of program counters."),
    ("threadcreate", "The same as goroutine."),
];

/// The profiles of Go's programs that this one does not have, and the reasons.
const MISSING: [(&str, &str); 5] = [
    ("allocs", "the allocator of this program keeps no record of who asked for what"),
    ("block", "waiting is not recorded here"),
    (
        "heap",
        "the allocator of this program keeps no record of who asked for what; /metrics tells how much memory there is in all",
    ),
    ("mutex", "waiting is not recorded here"),
    ("trace", "the format is that of the events of Go's own runtime, and nothing else has these"),
];

impl Debugging {
    /// The answer to a request for one of the pages.
    pub async fn answer(&self, call: &mut Call) -> Result<Option<Response>, StatusError> {
        let path = call.info.path.clone();
        let below = |folder: &str| path.strip_prefix(folder).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if !self.profiling {
            return Ok(None);
        }
        if let Some(rest) = below(PROFILES) {
            return self.profile(rest.trim_start_matches('/'), call).await.map(Some);
        }
        match below(FLAGS) {
            Some(rest @ ("" | "/" | "/v")) => self.verbosity(rest, call).await.map(Some),
            _ => Ok(None),
        }
    }

    async fn verbosity(&self, rest: &str, call: &mut Call) -> Result<Response, StatusError> {
        let (method, body) = (call.info.verb.to_ascii_uppercase(), call.read_body().await?);
        let answer = logs::page::answer(&method, rest, &body);
        if answer.code == 200 && method == "PUT" {
            tracing::info!(level = logs::verbosity(), user = call.user.name, "the verbosity of the log was set");
        }
        let kind = if answer.is_html { "text/html; charset=utf-8" } else { "text/plain; charset=utf-8" };
        let mut response = page(answer.text, kind);
        *response.status_mut() = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Ok(response)
    }

    async fn profile(&self, kind: &str, call: &mut Call) -> Result<Response, StatusError> {
        let (reads, posts) = (matches!(call.info.verb, "get" | "head"), call.info.verb == "post");
        if !(reads || posts && kind == "symbol") {
            return Err(StatusError::no_route());
        }
        if let Some((_, why)) = MISSING.iter().find(|(name, _)| *name == kind) {
            return Ok(refused(StatusCode::NOT_IMPLEMENTED, &format!("there is no {kind} profile: {why}")));
        }
        Ok(match kind {
            "" => index(),
            "cmdline" => plain(std::env::args().collect::<Vec<_>>().join("\0")),
            "profile" => match seconds(&call.query) {
                Err(why) => refused(StatusCode::BAD_REQUEST, &why),
                Ok(time) => told(profile::cpu(time).await, "profile"),
            },
            "goroutine" | "threadcreate" => match query_pairs(&call.query).find(|(key, _)| key == "debug") {
                Some((_, level)) if level != "0" => profile::threads_text().await.map_or_else(|r| busy(&r), plain),
                _ => told(profile::threads().await, kind),
            },
            "symbol" => symbols(call).await?,
            _ => refused(StatusCode::NOT_FOUND, "Unknown profile"),
        })
    }
}

fn seconds(query: &str) -> Result<Duration, String> {
    let Some((_, given)) = query_pairs(query).find(|(key, _)| key == "seconds") else { return Ok(USUAL) };
    let longest = profile::LONGEST.as_secs();
    let seconds = given.parse::<f64>().ok().filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    match seconds {
        // As Go has it, what is no number of seconds says nothing.
        None => Ok(USUAL),
        Some(0.0) => Ok(USUAL),
        Some(seconds) if seconds > longest as f64 => Err(format!("a profile takes at most {longest} seconds")),
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
    }
}

/// The functions at addresses such as `0x55d0+0x5600`. The body of a POST names them, or the query.
async fn symbols(call: &mut Call) -> Result<Response, StatusError> {
    let asked = if call.info.verb == "post" { call.read_body().await? } else { Bytes::from(call.query.clone()) };
    let asked = String::from_utf8_lossy(&asked);
    let address = |text: &str| u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok();
    let addresses: Vec<u64> = asked.split('+').filter_map(address).take(ADDRESSES).collect();
    let found = tokio::task::spawn_blocking(move || profile::lookup(&addresses)).await.unwrap_or_default();
    let lines = found.into_iter().filter_map(|(at, name)| Some(format!("{at:#x} {}\n", name?)));
    // Go's tools read the number as a yes or no.
    Ok(plain(format!("num_symbols: 1\n{}", lines.collect::<String>())))
}

fn index() -> Response {
    let row = |(name, about): &(&str, &str)| {
        format!("<tr><td><a href=\"/debug/pprof/{name}\">{name}</a></td><td>{about}</td></tr>\n")
    };
    let rows: String = KINDS.iter().map(row).collect();
    page(
        format!("<html><head><title>/debug/pprof/</title></head><body>\n<table>\n{rows}</table>\n</body></html>\n"),
        "text/html; charset=utf-8",
    )
}

fn busy(refusal: &Refusal) -> Response {
    match refusal {
        Refusal::Busy => {
            refused(StatusCode::INTERNAL_SERVER_ERROR, "another profile is being made, try again behind it")
        }
        Refusal::Unsupported => {
            refused(StatusCode::NOT_IMPLEMENTED, "there are no profiles on this processor or system")
        }
    }
}

fn told(profile: Result<Vec<u8>, Refusal>, name: &str) -> Response {
    let profile = match profile {
        Ok(profile) => profile,
        Err(refusal) => return busy(&refusal),
    };
    let mut response = Response::new(profile.into());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(disposition) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    response
}

fn page(text: String, kind: &'static str) -> Response {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn plain(text: String) -> Response {
    page(text, "text/plain; charset=utf-8")
}

fn refused(code: StatusCode, why: &str) -> Response {
    let mut response = plain(format!("{why}\n"));
    *response.status_mut() = code;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_profile_is_bounded() {
        let check = |query: &str, expected: Result<u64, &str>| {
            assert_eq!(seconds(query), expected.map(Duration::from_secs).map_err(str::to_owned), "{query}");
        };
        check("", Ok(30));
        check("seconds=5", Ok(5));
        check("seconds=0", Ok(30));
        check("seconds=soon", Ok(30));
        check("seconds=-1", Ok(30));
        check("seconds=300", Ok(300));
        check("seconds=1e9", Err("a profile takes at most 300 seconds"));
    }
}

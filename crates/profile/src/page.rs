//! The pages below `/debug/pprof/` of any server, as `go tool pprof` asks for them. Who may ask is each server's own matter.
//! Upstream counterpart: Go's net/http/pprof.

use std::time::Duration;

use crate::{LONGEST, Memory, Refusal, Waits, cpu, lookup, memory, threads, threads_text, waits};

/// A profile of the processor takes this long when it is not said.
const USUAL: Duration = Duration::from_secs(30);
/// For this time waits are looked at when it is not said: Go answers with all that there were, and at once.
const A_LOOK: Duration = Duration::from_secs(1);
/// Addresses that are looked up at once.
const ADDRESSES: usize = 4096;
/// The page whose question may stand in a body, which is posted.
pub const SYMBOL: &str = "symbol";
const PLAIN: &str = "text/plain; charset=utf-8";

/// The profiles that there are, and their descriptions.
const KINDS: [(&str, &str); 9] = [
    ("allocs", "The memory that was asked for, or is in seconds=, one allocation in 512 KiB; go tool pprof opens it."),
    (
        "block",
        "Where threads that have work wait in seconds= or 1, looked at 100 times a second; go tool pprof opens it.",
    ),
    ("cmdline", "The command line of this process."),
    ("goroutine", "The stacks of all threads; what waits for an event is on none. debug=2 gives them as text."),
    ("heap", "The memory that is held, or more or less of it after seconds=; go tool pprof opens it."),
    ("mutex", "Where threads wait for locks in seconds= or 1, looked at 100 times a second; go tool pprof opens it."),
    ("profile", "CPU profile. The duration stands in seconds=; go tool pprof opens it."),
    (SYMBOL, "The functions of program counters."),
    ("threadcreate", "The same as goroutine."),
];

/// The profile of Go's programs that this one does not have, and the reason.
const MISSING: [(&str, &str); 1] =
    [("trace", "the format is that of the events of Go's own runtime, and nothing else has these")];

/// A question: the part of the path below `/debug/pprof/`, and what the query says.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked<'a> {
    pub kind: &'a str,
    pub seconds: Option<&'a str>,
    pub debug: Option<&'a str>,
    /// Those of the page `symbol`, such as `0x55d0+0x5600`: the body of a POST, or the whole query.
    pub addresses: &'a str,
}

/// An answer. `file` is the value of the header Content-Disposition, where it is to be a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub code: u16,
    pub form: &'static str,
    pub file: Option<String>,
    pub body: Vec<u8>,
}

impl Page {
    fn plain(text: String) -> Self {
        Page { code: 200, form: PLAIN, file: None, body: text.into_bytes() }
    }

    fn refused(code: u16, why: &str) -> Self {
        Page { code, ..Page::plain(format!("{why}\n")) }
    }

    fn busy(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Busy => Page::refused(500, "another profile is being made, try again behind it"),
            Refusal::Unsupported => Page::refused(501, "there are no profiles on this processor or system"),
            Refusal::Unrecorded => {
                Page::refused(501, "the allocator of this program keeps no record of who asked for what")
            }
        }
    }

    fn told(profile: Result<Vec<u8>, Refusal>, name: &str) -> Self {
        match profile {
            Err(refusal) => Page::busy(&refusal),
            Ok(body) => {
                let file = Some(format!("attachment; filename=\"{name}\""));
                Page { code: 200, form: "application/octet-stream", file, body }
            }
        }
    }
}

/// Answers a question. A profile takes its time, and ends with the future.
pub async fn answer(asked: Asked<'_>) -> Page {
    if let Some((name, why)) = MISSING.iter().find(|(name, _)| *name == asked.kind) {
        return Page::refused(501, &format!("there is no {name} profile: {why}"));
    }
    match asked.kind {
        "" => index(),
        "cmdline" => Page::plain(std::env::args().collect::<Vec<_>>().join("\0")),
        "profile" => match seconds(asked.seconds) {
            Err(why) => Page::refused(400, &why),
            Ok(time) => Page::told(cpu(time).await, "profile"),
        },
        "heap" | "allocs" | "block" | "mutex" => match whole_seconds(asked.seconds) {
            Err(why) => Page::refused(400, &why),
            Ok(_) if asked.debug.is_some_and(|level| level != "0") => {
                Page::refused(501, "there is no such profile as text: go tool pprof writes one, with -top or -traces")
            }
            Ok(time) => {
                let look = time.unwrap_or(A_LOOK);
                let made = match asked.kind {
                    "heap" => memory(time, Memory::Held).await,
                    "allocs" => memory(time, Memory::Asked).await,
                    "block" => waits(look, Waits::All).await,
                    _ => waits(look, Waits::Locks).await,
                };
                Page::told(made, asked.kind)
            }
        },
        "goroutine" | "threadcreate" => match asked.debug {
            Some(level) if level != "0" => {
                threads_text().await.map_or_else(|refusal| Page::busy(&refusal), Page::plain)
            }
            _ => Page::told(threads().await, asked.kind),
        },
        SYMBOL => symbols(asked.addresses).await,
        _ => Page::refused(404, "Unknown profile"),
    }
}

fn seconds(given: Option<&str>) -> Result<Duration, String> {
    let seconds = given.and_then(|given| given.parse::<f64>().ok());
    match seconds.filter(|seconds| seconds.is_finite() && *seconds > 0.0) {
        // As Go has it, what is no number of seconds says nothing.
        None => Ok(USUAL),
        Some(seconds) if seconds > LONGEST.as_secs_f64() => too_long(),
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
    }
}

/// The time of a profile of what has been counted all the time, where only what comes in that time is wanted.
fn whole_seconds(given: Option<&str>) -> Result<Option<Duration>, String> {
    let Some(given) = given.filter(|given| !given.is_empty()) else { return Ok(None) };
    match given.parse::<i64>().ok().and_then(|seconds| u64::try_from(seconds).ok()) {
        None | Some(0) => Err("invalid value for \"seconds\" - must be a positive integer".to_owned()),
        Some(seconds) if seconds > LONGEST.as_secs() => too_long(),
        Some(seconds) => Ok(Some(Duration::from_secs(seconds))),
    }
}

fn too_long<T>() -> Result<T, String> {
    Err(format!("a profile takes at most {} seconds", LONGEST.as_secs()))
}

/// The functions at addresses.
async fn symbols(asked: &str) -> Page {
    let address = |text: &str| u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok();
    let addresses: Vec<u64> = asked.split('+').filter_map(address).take(ADDRESSES).collect();
    let found = tokio::task::spawn_blocking(move || lookup(&addresses)).await.unwrap_or_default();
    let lines = found.into_iter().filter_map(|(at, name)| Some(format!("{at:#x} {}\n", name?)));
    // Go's tools read the number as a yes or no.
    Page::plain(format!("num_symbols: 1\n{}", lines.collect::<String>()))
}

fn index() -> Page {
    let row = |(name, about): &(&str, &str)| {
        format!("<tr><td><a href=\"/debug/pprof/{name}\">{name}</a></td><td>{about}</td></tr>\n")
    };
    let rows: String = KINDS.iter().map(row).collect();
    let text =
        format!("<html><head><title>/debug/pprof/</title></head><body>\n<table>\n{rows}</table>\n</body></html>\n");
    Page { form: "text/html; charset=utf-8", ..Page::plain(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_profile_is_bounded() {
        let check = |given: Option<&str>, expected: Result<u64, &str>| {
            assert_eq!(seconds(given), expected.map(Duration::from_secs).map_err(str::to_owned), "{given:?}");
        };
        check(None, Ok(30));
        check(Some("5"), Ok(5));
        check(Some("0"), Ok(30));
        check(Some("soon"), Ok(30));
        check(Some("-1"), Ok(30));
        check(Some("300"), Ok(300));
        check(Some("1e9"), Err("a profile takes at most 300 seconds"));
        let check = |given: Option<&str>, expected: Result<Option<u64>, &str>| {
            let expected = expected.map(|seconds| seconds.map(Duration::from_secs)).map_err(str::to_owned);
            assert_eq!(whole_seconds(given), expected, "{given:?}");
        };
        check(None, Ok(None));
        check(Some(""), Ok(None));
        check(Some("5"), Ok(Some(5)));
        for wrong in ["0", "-1", "1.5", "soon"] {
            check(Some(wrong), Err("invalid value for \"seconds\" - must be a positive integer"));
        }
        check(Some("301"), Err("a profile takes at most 300 seconds"));
    }

    #[tokio::test]
    async fn pages_that_are_not_there_say_why() {
        let ask = async |kind| answer(Asked { kind, ..Asked::default() }).await;
        assert_eq!((ask("trace").await.code, ask("nothing").await.code), (501, 404));
        let text = answer(Asked { kind: "heap", debug: Some("1"), ..Asked::default() }).await;
        assert_eq!(text.code, 501);
        let index = ask("").await;
        assert_eq!((index.code, index.form), (200, "text/html; charset=utf-8"));
        let symbol = answer(Asked { kind: SYMBOL, addresses: "0x1+none", ..Asked::default() }).await;
        assert_eq!(symbol.body, b"num_symbols: 1\n");
    }
}

//! Why an API server cannot be used, as one sentence: what, where, and what to do; and what passes when one waits.

use std::error::Error;

use client::rest;
use clock::Duration;

/// A server that nobody reached, or that had no time. The cause that keeps it away may pass: a machine that starts, a
/// cable.
#[derive(Debug)]
pub struct Away(pub String);

impl std::fmt::Display for Away {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Away {}

/// Whether waiting could help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Passing,
    Lasting,
}
use Fault::{Lasting, Passing};

/// The words in an error's causes, and what they mean for `{url}`.
const MEANINGS: &[(&str, Fault, &str)] = &[
    ("Connection refused", Passing, "nothing listens at {url}; is the server running, and are address and port right?"),
    ("failed to lookup address", Passing, "the host of {url} is not known; check the name, or give an address"),
    ("Network is unreachable", Passing, "there is no route to {url}; check the address and this machine's network"),
    ("No route to host", Passing, "there is no route to {url}; check the address and this machine's network"),
    ("i/o timeout", Passing, SILENT),
    ("TLS handshake timeout", Passing, SILENT),
    ("timed out", Passing, SILENT),
    ("Connection reset", Passing, BROKEN_OFF),
    ("Broken pipe", Passing, BROKEN_OFF),
    ("connection closed", Passing, BROKEN_OFF),
    ("UnexpectedEof", Passing, BROKEN_OFF),
    (
        "UnknownIssuer",
        Lasting,
        "the certificate of {url} was signed by another authority than this cluster's; check the address and the authority",
    ),
    (
        "BadSignature",
        Lasting,
        "the certificate of {url} was signed by another authority of the same name; check the address and the authority",
    ),
    (
        "NotValidForName",
        Lasting,
        "the certificate of {url} is for other names; use one of them, or start the server with --tls-san and this one",
    ),
    (
        "Expired",
        Lasting,
        "the certificate of {url} is not valid any more; does the clock of one of the machines go wrong?",
    ),
    (
        "NotValidYet",
        Lasting,
        "the certificate of {url} is not valid yet; does the clock of one of the machines go wrong?",
    ),
    ("InvalidContentType", Lasting, "{url} does not speak TLS; is this the API server's port?"),
    ("CertificateRequired", Lasting, "{url} is no API server: it demands a client certificate before anything else"),
];
const SILENT: &str = "{url} does not answer; check the address, and whether a firewall is in between";
const BROKEN_OFF: &str =
    "{url} breaks connections off; is the server just starting, and is this the API server's port?";

/// The failure of a request to `url`, for people; an [`Away`] where waiting may help.
pub fn explain(url: &str, error: &client::Error) -> anyhow::Error {
    if let client::Error::Api(status) = error {
        let refusal = format!("{url} refuses: {}", rest::message(error));
        return match status.code {
            401 => anyhow::anyhow!(
                "{url} does not accept the credentials; has the token or certificate ended, or is it of another cluster?"
            ),
            429 | 500..=599 => Away(refusal).into(),
            _ => anyhow::anyhow!(refusal),
        };
    }
    // The variants' names are looked for, and never shown.
    let (mut causes, mut innermost) = (error.to_string(), error.to_string());
    let mut next = error.source();
    while let Some(cause) = next {
        causes = format!("{causes}: {cause} {cause:?}");
        innermost = cause.to_string();
        next = cause.source();
    }
    match meaning(url, &causes) {
        Some((Passing, sentence)) => Away(sentence).into(),
        Some((Lasting, sentence)) => anyhow::anyhow!(sentence),
        None => anyhow::anyhow!("cannot use {url}: {innermost}"),
    }
}

/// Nothing came back in time.
pub fn silent(url: &str) -> anyhow::Error {
    Away(SILENT.replace("{url}", url)).into()
}

fn meaning(url: &str, causes: &str) -> Option<(Fault, String)> {
    let (_, fault, meaning) = MEANINGS.iter().find(|(words, ..)| causes.contains(words))?;
    Some((*fault, meaning.replace("{url}", url)))
}

/// Tries until the server is there, more and more rarely, up to the pauses of upstream's kubelet before it is registered.
/// Whatever waiting does not help against ends it.
pub async fn insist<T, F>(attempt: impl Fn() -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    const LONGEST: Duration = Duration::from_secs(7);
    let mut wait = Duration::from_millis(500);
    loop {
        match attempt().await {
            Err(error) if error.is::<Away>() => {
                tracing::warn!("{}; trying again in {} s", crate::sentence::sentence(&error), wait.as_secs_f32());
            }
            done => return done,
        }
        clock::sleep(wait).await;
        wait = (wait * 2).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn every_failure_has_its_sentence() {
        let check = |causes: &str, fault: Fault, expected: &str| {
            let (found, sentence) = meaning("https://h:1", causes).unwrap();
            assert!(sentence.contains(expected), "{causes}");
            assert_eq!(found, fault, "{causes}");
        };
        check(
            "client error (Connect): tcp connect error: Connection refused (os error 111)",
            Passing,
            "nothing listens at https://h:1",
        );
        check("failed to lookup address information: Name or service not known", Passing, "check the name");
        check("invalid peer certificate: UnknownIssuer", Lasting, "another authority");
        check("invalid peer certificate: NotValidForNameContext { .. }", Lasting, "--tls-san");
        check("received corrupt message of type InvalidContentType", Lasting, "does not speak TLS");
        assert_eq!(meaning("https://h:1", "something new"), None);
    }

    #[test]
    fn a_server_that_says_no_is_not_away() {
        let answered = |code: u16| {
            let status = client::error::Status { code, ..Default::default() };
            explain("https://h:1", &client::Error::Api(Box::new(status))).is::<Away>()
        };
        assert_eq!([401, 403, 404, 429, 500, 503].map(answered), [false, false, false, true, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_away_is_asked_again_and_who_refuses_is_not() {
        let asked = Cell::new(0_u32);
        let begun = clock::Instant::now();
        let outcome: anyhow::Result<()> = insist(async || {
            asked.set(asked.get() + 1);
            // The last word is a lasting one, behind a context as callers add them.
            let away = asked.get() < 10;
            let error = if away { silent("https://h:1") } else { anyhow::anyhow!("does not accept the credentials") };
            Err(error.context("cannot join"))
        })
        .await;
        assert_eq!(outcome.unwrap_err().root_cause().to_string(), "does not accept the credentials");
        // 0.5, 1, 2 and 4 s, then five times the longest.
        assert_eq!((asked.get(), begun.elapsed().as_millis()), (10, 7_500 + 5 * 7_000));
    }
}

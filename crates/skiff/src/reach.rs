//! Why an API server cannot be used, as one sentence: what, where, and what to do.

use std::error::Error;

use client::rest;

/// The words in an error's causes, and what they mean for `{url}`.
const MEANINGS: &[(&str, &str)] = &[
    ("Connection refused", "nothing listens at {url}; is the server running, and are address and port right?"),
    ("failed to lookup address", "the host of {url} is not known; check the name, or give an address"),
    ("Network is unreachable", "there is no route to {url}; check the address and this machine's network"),
    ("No route to host", "there is no route to {url}; check the address and this machine's network"),
    ("i/o timeout", "{url} does not answer; check the address, and whether a firewall is in between"),
    ("TLS handshake timeout", "{url} does not answer; check the address, and whether a firewall is in between"),
    ("timed out", "{url} does not answer; check the address, and whether a firewall is in between"),
    (
        "UnknownIssuer",
        "the certificate of {url} was signed by another authority than this cluster's; check the address and the authority",
    ),
    (
        "BadSignature",
        "the certificate of {url} was signed by another authority of the same name; check the address and the authority",
    ),
    (
        "NotValidForName",
        "the certificate of {url} is for other names; use one of them, or start the server with --tls-san and this one",
    ),
    ("Expired", "the certificate of {url} is not valid any more; does the clock of one of the machines go wrong?"),
    ("NotValidYet", "the certificate of {url} is not valid yet; does the clock of one of the machines go wrong?"),
    ("InvalidContentType", "{url} does not speak TLS; is this the API server's port?"),
    ("CertificateRequired", "{url} is no API server: it demands a client certificate before anything else"),
];

/// What went wrong with a request to `url`, for people.
pub fn explain(url: &str, error: &client::Error) -> anyhow::Error {
    if let client::Error::Api(status) = error {
        return match status.code {
            401 => anyhow::anyhow!(
                "{url} does not accept the credentials; has the token or certificate ended, or is it of another cluster?"
            ),
            _ => anyhow::anyhow!("{url} refuses: {}", rest::message(error)),
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
    anyhow::anyhow!(meaning(url, &causes).unwrap_or_else(|| format!("cannot use {url}: {innermost}")))
}

fn meaning(url: &str, causes: &str) -> Option<String> {
    let (_, meaning) = MEANINGS.iter().find(|(words, _)| causes.contains(words))?;
    Some(meaning.replace("{url}", url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_sentence() {
        let check = |causes: &str, expected: &str| {
            assert!(meaning("https://h:1", causes).unwrap().contains(expected), "{causes}");
        };
        check(
            "client error (Connect): tcp connect error: Connection refused (os error 111)",
            "nothing listens at https://h:1",
        );
        check("invalid peer certificate: UnknownIssuer", "another authority");
        check("invalid peer certificate: NotValidForNameContext { .. }", "--tls-san");
        check("received corrupt message of type InvalidContentType", "does not speak TLS");
        assert_eq!(meaning("https://h:1", "something new"), None);
    }
}

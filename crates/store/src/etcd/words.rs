//! The words for errors of etcd, or of the way to it: they say what is wrong and what to do, not how the error travelled.

use std::error::Error;

/// Either side may have: it is given up here too, when nothing has come for as long as it is kept alive.
const ENDED: &str = "the connection to it ended; does etcd still run, and answer?";

/// The meaning of an end of the connection as long as none has worked: the listener there may be something else, or want to know
/// its client.
const ENDED_AT_ONCE: &str = "it ends the connection; is its address an https:// one, or the port another?";
const ENDED_AT_ONCE_OVER_TLS: &str = "it ends the connection; does it demand a client certificate (--etcd-certfile and --etcd-keyfile), or is the port \
     another?";

const NO_GOOD: &str = "it demands a client certificate that it knows; is one given with --etcd-certfile and --etcd-keyfile, and the right one?";

/// The fate of a call that failed, as far as its error tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It did not get to etcd.
    Unreached,
    /// It may have been done or not, and the member that was asked is not well.
    Unclear,
    /// etcd refused it.
    Answered,
}

/// Words in the causes of a connection that did not come about, and what they mean.
const UNREACHED: &[(&str, &str)] = &[
    ("Connection refused", "nothing listens there; does etcd run, and are address and port right?"),
    ("failed to lookup address", "its host name is not known; check the name, or give an address"),
    ("Network is unreachable", "there is no route to it; check the address and this machine's network"),
    ("No route to host", "there is no route to it; check the address and this machine's network"),
    ("UnknownIssuer", "its certificate was signed by another authority than the one of --etcd-cafile"),
    ("BadSignature", "its certificate was signed by another authority than the one of --etcd-cafile"),
    ("not valid for name", "its certificate is for other names than the one in --etcd-servers"),
    ("NotValidForName", "its certificate is for other names than the one in --etcd-servers"),
    ("certificate expired", "its certificate is not valid any more; does the clock of one of the machines go wrong?"),
    ("CertificateExpired", "the certificate of --etcd-certfile is not valid any more, as it says"),
    ("not valid yet", "its certificate is not valid yet; does the clock of one of the machines go wrong?"),
    ("CertificateRequired", "it demands a client certificate; give --etcd-certfile and --etcd-keyfile"),
    ("certificate required", "it demands a client certificate; give --etcd-certfile and --etcd-keyfile"),
    // Older servers say the same of a client without one.
    ("bad certificate", NO_GOOD),
    ("BadCertificate", NO_GOOD),
    ("UnknownCA", "it does not know the authority that signed the certificate of --etcd-certfile"),
    ("InvalidContentType", "it does not speak TLS; is its address an http:// one?"),
];

/// Words in the causes of other errors.
const OTHERS: &[(&str, &str)] = &[
    (
        "frame with invalid size",
        "it speaks something else than gRPC there; is its address an https:// one, or the port another?",
    ),
    (
        "FRAME_SIZE_ERROR",
        "it speaks something else than gRPC there; is its address an https:// one, or the port another?",
    ),
    ("connection closed", ENDED),
    ("onnection reset", ENDED),
    ("roken pipe", ENDED),
    // HTTP/2's own word for all of these, when the socket's does not come along.
    ("http2 error", ENDED),
    ("h2 protocol error", ENDED),
    ("error reading a body from connection", ENDED),
    ("deadline has elapsed", "it does not answer in time; check the address, and whether a firewall is in between"),
    ("timed out", "it does not answer in time; check the address, and whether a firewall is in between"),
    ("Timeout expired", "it does not answer in time; check the address, and whether a firewall is in between"),
];

/// An error of the first call of all to an address in plain words: address, port and scheme may be wrong.
pub(super) fn plain_at_first(error: &etcd_client::Error, endpoint: &str) -> String {
    match plain(error) {
        meaning if meaning != ENDED => meaning,
        _ if endpoint.starts_with("https://") => ENDED_AT_ONCE_OVER_TLS.to_owned(),
        _ => ENDED_AT_ONCE.to_owned(),
    }
}

/// An error in plain words.
pub(super) fn plain(error: &etcd_client::Error) -> String {
    in_short(&causes_of(error))
}

pub(super) fn fault(error: &etcd_client::Error) -> Fault {
    // gRPC's numbers of what it says by itself, and of an etcd without a leader: cancelled, unknown, too late, internal,
    // unavailable.
    const OF_THE_WAY: [i32; 5] = [1, 2, 4, 13, 14];
    match error {
        etcd_client::Error::GRpcStatus(status) if !OF_THE_WAY.contains(&(status.code() as i32)) => Fault::Answered,
        error if meaning(UNREACHED, &causes_of(error)).is_some() => Fault::Unreached,
        _ => Fault::Unclear,
    }
}

fn causes_of(error: &etcd_client::Error) -> Vec<String> {
    match error {
        etcd_client::Error::GRpcStatus(status) => causes(status.message(), status.source()),
        etcd_client::Error::TransportError(error) => causes("", Some(error)),
        other => vec![other.to_string()],
    }
}

fn causes(first: &str, mut next: Option<&(dyn Error + 'static)>) -> Vec<String> {
    let mut all = vec![first.to_owned()];
    while let Some(cause) = next {
        all.push(cause.to_string());
        next = cause.source();
    }
    all.retain(|cause| !cause.is_empty());
    all
}

fn meaning(known: &'static [(&str, &str)], causes: &[String]) -> Option<&'static str> {
    let found = known.iter().find(|(words, _)| causes.iter().any(|cause| cause.contains(words)));
    found.map(|(_, meaning)| *meaning)
}

/// The meaning of the causes, or the innermost cause, which says the most.
fn in_short(causes: &[String]) -> String {
    let known = meaning(UNREACHED, causes).or_else(|| meaning(OTHERS, causes)).map(str::to_owned);
    known.or_else(|| causes.last().cloned()).unwrap_or_else(|| "it gives no reason".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_by_what_they_mean() {
        let check = |causes: &[&str], expected: &str| {
            let causes: Vec<String> = causes.iter().map(|c| (*c).to_owned()).collect();
            assert!(in_short(&causes).contains(expected), "{causes:?}: {}", in_short(&causes));
        };
        check(&["tcp connect error", "Connection refused (os error 111)"], "nothing listens there");
        check(&["dns error", "failed to lookup address information: Name or service not known"], "is not known");
        check(&["transport error", "invalid peer certificate: UnknownIssuer"], "--etcd-cafile");
        check(&["received fatal alert: CertificateRequired"], "--etcd-certfile and --etcd-keyfile");
        check(&["etcdserver: request timed out"], "does not answer in time");
        check(&["etcdserver: no leader"], "etcdserver: no leader");
        check(&["transport error", "connection closed"], "does etcd still run, and answer?");
        check(&["transport error", "http2 error", "connection error received: not a result of an error"], ENDED);
        check(&["h2 protocol error: error reading a body from connection"], ENDED);
        check(&["Timeout expired"], "does not answer in time");
        check(&["invalid peer certificate: certificate expired: verification time 7"], "not valid any more");
        check(&[], "no reason");
    }
}

//! Why a connection over TLS did not come about, in Go's words: clients and administrators look for these.
//! Upstream counterpart: Go's crypto/tls and crypto/x509.

use std::io;

use clock::Timestamp;
use rustls::{AlertDescription, CertificateError, Error};
use rustls_pki_types::{ServerName, UnixTime};

/// Names of a certificate that are told; where it has more, their number is.
const NAMES: usize = 100;

/// The words for an error of a handshake.
pub fn words(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(why)) => format!("tls: failed to verify certificate: {}", certificate(why)),
        Some(Error::AlertReceived(alert)) => format!("remote error: tls: {}", told(*alert)),
        // Nearly everything that speaks no TLS on such a port speaks HTTP.
        Some(Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            "http: server gave HTTP response to HTTPS client".to_owned()
        }
        Some(other) => format!("tls: {other}"),
        None => match error.kind() {
            io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
            io::ErrorKind::ConnectionReset => "read: connection reset by peer".to_owned(),
            _ => format!("tls: {error}"),
        },
    }
}

fn certificate(why: &CertificateError) -> String {
    let time = |time: &UnixTime| {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
    };
    const OUT_OF_TIME: &str = "x509: certificate has expired or is not yet valid";
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "x509: certificate signed by unknown authority".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => names(expected, presented),
        CertificateError::ExpiredContext { time: now, not_after } => {
            format!("{OUT_OF_TIME}: current time {} is after {}", time(now), time(not_after))
        }
        CertificateError::NotValidYetContext { time: now, not_before } => {
            format!("{OUT_OF_TIME}: current time {} is before {}", time(now), time(not_before))
        }
        CertificateError::Expired | CertificateError::NotValidYet => OUT_OF_TIME.to_owned(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "x509: certificate specifies an incompatible key usage".to_owned()
        }
        CertificateError::UnhandledCriticalExtension => "x509: unhandled critical extension".to_owned(),
        other => format!("x509: {other}"),
    }
}

/// The words for a certificate of other names. `presented` are those of it, as rustls writes them: `DnsName("a")`, `IpAddress(::1)`.
fn names(expected: &ServerName<'_>, presented: &[String]) -> String {
    let host = expected.to_str();
    let is_address = matches!(expected, ServerName::IpAddress(_));
    let (before, after, sort) =
        if is_address { ("IpAddress(", ")", "IP SANs") } else { ("DnsName(\"", "\")", "names") };
    let fitting: Vec<&str> =
        presented.iter().filter_map(|name| name.strip_prefix(before)?.strip_suffix(after)).collect();
    match (fitting.len(), is_address) {
        (0, true) => format!("x509: cannot validate certificate for {host} because it doesn't contain any IP SANs"),
        (0, false) => format!("x509: certificate is not valid for any names, but wanted to match {host}"),
        (count, _) if count >= NAMES => {
            format!("x509: certificate is valid for {count} {sort}, but none matched {host}")
        }
        _ => format!("x509: certificate is valid for {}, not {host}", fitting.join(", ")),
    }
}

/// An alert of the other side.
fn told(alert: AlertDescription) -> String {
    let known = match alert {
        AlertDescription::CloseNotify => "close notify",
        AlertDescription::UnexpectedMessage => "unexpected message",
        AlertDescription::BadRecordMac => "bad record MAC",
        AlertDescription::HandshakeFailure => "handshake failure",
        AlertDescription::BadCertificate => "bad certificate",
        AlertDescription::UnsupportedCertificate => "unsupported certificate",
        AlertDescription::CertificateRevoked => "revoked certificate",
        AlertDescription::CertificateExpired => "expired certificate",
        AlertDescription::CertificateUnknown => "unknown certificate",
        AlertDescription::IllegalParameter => "illegal parameter",
        AlertDescription::UnknownCA => "unknown certificate authority",
        AlertDescription::AccessDenied => "access denied",
        AlertDescription::DecodeError => "error decoding message",
        AlertDescription::DecryptError => "error decrypting message",
        AlertDescription::ProtocolVersion => "protocol version not supported",
        AlertDescription::InsufficientSecurity => "insufficient security level",
        AlertDescription::InternalError => "internal error",
        AlertDescription::MissingExtension => "missing extension",
        AlertDescription::UnsupportedExtension => "unsupported extension",
        AlertDescription::UnrecognisedName => "unrecognized name",
        AlertDescription::CertificateRequired => "certificate required",
        AlertDescription::NoApplicationProtocol => "no application protocol",
        _ => return format!("alert({})", u8::from(alert)),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(error: Error, expected: &str) {
        assert_eq!(words(&io::Error::new(io::ErrorKind::InvalidData, error)), expected);
    }

    fn other_names(expected: &str, presented: &[&str]) -> Error {
        let expected = ServerName::try_from(expected.to_owned()).unwrap();
        let presented = presented.iter().map(|name| (*name).to_owned()).collect();
        Error::InvalidCertificate(CertificateError::NotValidForNameContext { expected, presented })
    }

    #[test]
    fn certificates_that_are_not_believed_have_gos_words() {
        const FAILED: &str = "tls: failed to verify certificate: x509: ";
        let checked = |error, expected: &str| check(error, &format!("{FAILED}{expected}"));
        checked(Error::InvalidCertificate(CertificateError::UnknownIssuer), "certificate signed by unknown authority");
        checked(
            other_names("localhost", &["DnsName(\"a.example\")", "DnsName(\"b.example\")", "IpAddress(10.0.0.1)"]),
            "certificate is valid for a.example, b.example, not localhost",
        );
        checked(
            other_names("127.0.0.1", &["DnsName(\"a\")", "IpAddress(10.0.0.1)", "IpAddress(::1)"]),
            "certificate is valid for 10.0.0.1, ::1, not 127.0.0.1",
        );
        checked(
            other_names("127.0.0.1", &["DnsName(\"a\")"]),
            "cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs",
        );
        checked(other_names("b", &[]), "certificate is not valid for any names, but wanted to match b");
        let many = ["DnsName(\"a\")"; NAMES];
        checked(other_names("b", &many), "certificate is valid for 100 names, but none matched b");
        let at = |seconds| UnixTime::since_unix_epoch(clock::Duration::from_secs(seconds));
        checked(
            Error::InvalidCertificate(CertificateError::ExpiredContext { time: at(1_000_000_000), not_after: at(0) }),
            "certificate has expired or is not yet valid: current time 2001-09-09T01:46:40Z is after 1970-01-01T00:00:00Z",
        );
        checked(
            Error::InvalidCertificate(CertificateError::NotValidYetContext { time: at(0), not_before: at(60) }),
            "certificate has expired or is not yet valid: current time 1970-01-01T00:00:00Z is before 1970-01-01T00:01:00Z",
        );
    }

    #[test]
    fn other_ends_of_a_handshake_have_gos_words() {
        check(Error::AlertReceived(AlertDescription::CertificateRequired), "remote error: tls: certificate required");
        check(Error::AlertReceived(AlertDescription::Unknown(200)), "remote error: tls: alert(200)");
        check(
            Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
            "http: server gave HTTP response to HTTPS client",
        );
        assert_eq!(words(&io::ErrorKind::UnexpectedEof.into()), "EOF");
        assert_eq!(words(&io::ErrorKind::ConnectionReset.into()), "read: connection reset by peer");
    }
}

//! Bootstrap tokens: `abcdef.0123456789abcdef`, kept as Secrets in `kube-system`, with which new nodes ask for more.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;

/// The type of the Secrets that hold them; also how they are selected (`type=…`).
pub const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// The namespace of the Secrets.
pub const NAMESPACE: &str = "kube-system";
/// The group of every user of a token, and the prefix of further groups.
pub const GROUP: &str = "system:bootstrappers";

/// The name of the Secret that holds the token with this id.
pub fn secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

/// Id and secret of a token of the right form.
pub fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let fits = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
    (fits(id, 6) && fits(secret, 16)).then_some((id, secret))
}

/// When a token ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Never,
    At(Timestamp),
    /// Somebody wrote what is no time; the token counts as ended.
    Unreadable,
}

impl End {
    pub fn is_past(self, now: Timestamp) -> bool {
        match self {
            End::Never => false,
            End::At(at) => at <= now,
            End::Unreadable => true,
        }
    }
}

/// A token as its Secret describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    pub id: String,
    pub secret: String,
    pub end: End,
    /// May be used to speak to the API server.
    pub authenticates: bool,
    /// Signs the `cluster-info` ConfigMap.
    pub signs: bool,
    /// Further groups of its users.
    pub groups: Vec<String>,
}

/// When the token in a Secret ends, whether or not it is one that can be used.
pub fn end(object: &Secret) -> End {
    match object.data.as_ref().and_then(|data| data.get("expiration")).filter(|text| !text.0.is_empty()) {
        None => End::Never,
        Some(text) => {
            let text = std::str::from_utf8(&text.0).ok();
            text.and_then(|text| text.parse().ok()).map_or(End::Unreadable, End::At)
        }
    }
}

/// The token in a Secret; `None` when the Secret is not one of a token, is going, can't be read or contradicts itself.
pub fn read(object: &Secret) -> Option<BootstrapToken> {
    let data = object.data.as_ref()?;
    if data.values().any(|value| std::str::from_utf8(&value.0).is_err()) {
        return None;
    }
    let data = |key: &str| data.get(key).map(|value| String::from_utf8_lossy(&value.0).into_owned());
    let id = data("token-id")?;
    let ours = object.type_.as_deref() == Some(SECRET_TYPE)
        && object.metadata.deletion_timestamp.is_none()
        && object.metadata.name.as_deref() == Some(&secret_name(&id));
    let groups = data("auth-extra-groups").unwrap_or_default();
    ours.then_some(BootstrapToken {
        secret: data("token-secret")?,
        end: end(object),
        authenticates: data("usage-bootstrap-authentication").as_deref() == Some("true"),
        signs: data("usage-bootstrap-signing").as_deref() == Some("true"),
        groups: groups.split(',').map(str::trim).filter(|g| !g.is_empty()).map(str::to_owned).collect(),
        id,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::ByteString;

    use super::*;

    fn secret(name: &str, change: &[(&str, &str)]) -> Secret {
        let mut data = BTreeMap::from([("token-id", "abcdef"), ("token-secret", "0123456789abcdef")]);
        data.extend(change.iter().copied());
        let mut secret = Secret { type_: Some(SECRET_TYPE.to_owned()), ..Secret::default() };
        secret.metadata.name = Some(name.to_owned());
        secret.data = Some(data.into_iter().map(|(k, v)| (k.to_owned(), ByteString(v.into()))).collect());
        secret
    }

    #[test]
    fn secrets_are_read_as_tokens() {
        let name = "bootstrap-token-abcdef";
        let plain = read(&secret(name, &[])).unwrap();
        assert_eq!(
            (plain.id.as_str(), plain.end, plain.authenticates, plain.signs),
            ("abcdef", End::Never, false, false)
        );
        let full = [
            ("expiration", "2026-01-02T00:00:00Z"),
            ("usage-bootstrap-authentication", "true"),
            ("usage-bootstrap-signing", "true"),
            ("auth-extra-groups", "system:bootstrappers:a, system:bootstrappers:b"),
        ];
        let full = read(&secret(name, &full)).unwrap();
        assert!(full.authenticates && full.signs);
        assert_eq!(full.groups, ["system:bootstrappers:a", "system:bootstrappers:b"]);
        assert!(full.end.is_past("2026-01-02T00:00:00Z".parse().unwrap()));
        assert!(!full.end.is_past("2026-01-01T23:59:59Z".parse().unwrap()));
        assert_eq!(read(&secret(name, &[("expiration", "tomorrow")])).unwrap().end, End::Unreadable);
        assert!(read(&secret("another-name", &[])).is_none());
        let mut broken = secret(name, &[]);
        broken.data.as_mut().unwrap().insert("expiration".to_owned(), ByteString(vec![0xff]));
        assert!(read(&broken).is_none(), "an end that is no text is not no end");
        let opaque = Secret { type_: Some("Opaque".to_owned()), ..secret(name, &[]) };
        assert!(read(&opaque).is_none());
    }

    #[test]
    fn tokens_have_one_form() {
        assert_eq!(split("abcdef.0123456789abcdef"), Some(("abcdef", "0123456789abcdef")));
        for wrong in ["", "abcdef", "abcdef.0123", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcdefa"] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
    }
}

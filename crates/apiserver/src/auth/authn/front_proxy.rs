//! The front proxy: a trusted server in front says in headers who its caller is.

use http::HeaderMap;
use pki::ClientCertificates;
use rustls_pki_types::CertificateDer;

use crate::auth::{User, header};

/// Why the headers name nobody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The caller is not the proxy; its own certificate may still be good.
    Stranger(String),
    /// It is the proxy, and it can't be understood whom it speaks for: certainly not for itself.
    Unreadable(String),
}

/// The headers in which a front proxy names the user that it speaks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    /// The first one that says something counts.
    pub user: Vec<String>,
    pub uid: Vec<String>,
    /// Each value is a group.
    pub groups: Vec<String>,
    /// The rest of a header's name is the key.
    pub extra_prefixes: Vec<String>,
}

impl Default for Headers {
    /// Those that everybody uses, and that this server itself sends to other API servers.
    fn default() -> Self {
        let one = |name: &str| vec![name.to_owned()];
        Headers {
            user: one("X-Remote-User"),
            uid: one("X-Remote-Uid"),
            groups: one("X-Remote-Group"),
            extra_prefixes: one("X-Remote-Extra-"),
        }
    }
}

/// Which headers count, and from whom.
pub struct FrontProxy {
    pub authorities: ClientCertificates,
    /// Common names that may speak for others; empty means any that the authorities vouch for.
    pub allowed_names: Vec<String>,
    pub headers: Headers,
}

impl FrontProxy {
    /// With the header names that everybody uses.
    pub fn new(authorities: ClientCertificates, allowed_names: Vec<String>) -> Self {
        FrontProxy { authorities, allowed_names, headers: Headers::default() }
    }

    /// The user that the proxy names. `Ok(None)` when nobody is named or the caller shows no certificate.
    pub fn check(&self, chain: &[CertificateDer<'static>], headers: &HeaderMap) -> Result<Option<User>, Refused> {
        let named = self.headers.user.iter().any(|name| headers.contains_key(name));
        if chain.is_empty() || !named {
            return Ok(None);
        }
        self.believes(chain).map_err(Refused::Stranger)?;
        self.user(headers).map_err(|why| Refused::Unreadable(format!("front proxy: {why}")))
    }

    /// Whether the certificate is a proxy's, or why not.
    pub fn believes(&self, chain: &[CertificateDer<'static>]) -> Result<(), String> {
        let facts = self.authorities.verify(chain).map_err(|why| format!("front proxy: x509: {why}"))?;
        let name = facts.common_name;
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(&name) {
            return Err(format!("x509: subject with cn={name} is not in the allowed list"));
        }
        Ok(())
    }

    fn user(&self, headers: &HeaderMap) -> Result<Option<User>, header::Unreadable> {
        let Some(name) = first(headers, &self.headers.user)? else { return Ok(None) };
        let uid = first(headers, &self.headers.uid)?.unwrap_or_default();
        let mut user = User { name, uid, ..User::default() };
        for name in &self.headers.groups {
            user.groups.extend(header::all(headers, name)?.into_iter().filter(|g| !g.is_empty()));
        }
        for prefix in &self.headers.extra_prefixes {
            for (key, values) in header::extra(headers, &prefix.to_ascii_lowercase())? {
                user.extra.entry(key).or_default().extend(values);
            }
        }
        Ok(Some(user))
    }
}

/// The first of some headers that says something.
fn first(headers: &HeaderMap, names: &[String]) -> Result<Option<String>, header::Unreadable> {
    for name in names {
        if let Some(value) = header::one(headers, name)?.filter(|v| !v.is_empty()) {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_proxy_speaks_for_others() {
        let authority = pki::Authority::create("front").unwrap();
        let chain = |name: &str| {
            let issued = authority.issue(&pki::Subject::client(name, None)).unwrap();
            pki::inspect::chain(&issued.certificate).unwrap()
        };
        let authorities = ClientCertificates::new(authority.certificate()).unwrap();
        let proxy = FrontProxy::new(authorities, vec!["front-proxy-client".into()]);
        let mut headers = HeaderMap::new();
        assert_eq!(proxy.check(&chain("front-proxy-client"), &headers), Ok(None));
        headers.insert("x-remote-user", "jane".parse().unwrap());
        headers.append("x-remote-group", "a".parse().unwrap());
        headers.append("x-remote-group", "b".parse().unwrap());
        headers.insert("x-remote-extra-acme.com%2fproject", "p".parse().unwrap());
        let user = proxy.check(&chain("front-proxy-client"), &headers).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.groups.len()), ("jane", 2));
        assert_eq!(user.extra["acme.com/project"], ["p"]);
        assert!(proxy.check(&chain("somebody"), &headers).is_err());
        let raw = |bytes: &[u8]| http::HeaderValue::from_bytes(bytes).unwrap();
        for (name, value) in
            [("x-remote-user", &b"j\xf6"[..]), ("x-remote-group", b"\xff"), ("x-remote-extra-a", b"\xff")]
        {
            let mut broken = headers.clone();
            broken.insert(name, raw(value));
            let refused = proxy.check(&chain("front-proxy-client"), &broken).unwrap_err();
            assert!(matches!(refused, Refused::Unreadable(_)), "{name}");
        }
        let mut two = headers.clone();
        two.append("x-remote-user", "root".parse().unwrap());
        assert!(proxy.check(&chain("front-proxy-client"), &two).is_err());
        headers.insert("x-remote-user", raw("jösé".as_bytes()));
        assert_eq!(proxy.check(&chain("front-proxy-client"), &headers).unwrap().unwrap().name, "jösé");
        assert_eq!(proxy.check(&[], &headers), Ok(None));
    }

    #[test]
    fn other_headers_take_the_place_of_the_usual_ones() {
        let authority = pki::Authority::create("front").unwrap();
        let issued = authority.issue(&pki::Subject::client("proxy", None)).unwrap();
        let chain = pki::inspect::chain(&issued.certificate).unwrap();
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let headers = Headers {
            user: list(&["X-First", "X-Second"]),
            uid: Vec::new(),
            groups: list(&["X-Team", "X-Group"]),
            extra_prefixes: list(&["X-More-"]),
        };
        let authorities = ClientCertificates::new(authority.certificate()).unwrap();
        let proxy = FrontProxy { authorities, allowed_names: Vec::new(), headers };
        let check = |sent: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in sent {
                headers.append(*name, value.parse().unwrap());
            }
            proxy.check(&chain, &headers).unwrap()
        };
        assert_eq!(check(&[("x-remote-user", "root"), ("x-remote-group", "system:masters")]), None);
        let user = check(&[
            ("x-first", ""),
            ("x-second", "jane"),
            ("x-group", "b"),
            ("x-team", "a"),
            ("x-remote-group", "system:masters"),
            ("x-remote-uid", "0"),
            ("x-more-color", "red"),
        ]);
        let user = user.unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", ""));
        assert_eq!((user.groups, user.extra["color"].clone()), (list(&["a", "b"]), list(&["red"])));
    }
}

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

/// Which headers count, and from whom.
pub struct FrontProxy {
    pub authorities: ClientCertificates,
    /// Common names that may speak for others; empty means any that the authorities vouch for.
    pub allowed_names: Vec<String>,
    pub user_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_prefixes: Vec<String>,
}

impl FrontProxy {
    /// With the header names that everybody uses.
    pub fn new(authorities: ClientCertificates, allowed_names: Vec<String>) -> Self {
        let one = |name: &str| vec![name.to_owned()];
        FrontProxy {
            authorities,
            allowed_names,
            user_headers: one("X-Remote-User"),
            uid_headers: one("X-Remote-Uid"),
            group_headers: one("X-Remote-Group"),
            extra_prefixes: one("X-Remote-Extra-"),
        }
    }

    /// The user that the proxy names. `Ok(None)` when nobody is named or the caller shows no certificate.
    pub fn check(&self, chain: &[CertificateDer<'static>], headers: &HeaderMap) -> Result<Option<User>, Refused> {
        let named = self.user_headers.iter().any(|name| headers.contains_key(name));
        if chain.is_empty() || !named {
            return Ok(None);
        }
        let facts =
            self.authorities.verify(chain).map_err(|why| Refused::Stranger(format!("front proxy: x509: {why}")))?;
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(&facts.common_name) {
            let name = facts.common_name;
            return Err(Refused::Stranger(format!("x509: subject with cn={name} is not in the allowed list")));
        }
        self.user(headers).map_err(|why| Refused::Unreadable(format!("front proxy: {why}")))
    }

    fn user(&self, headers: &HeaderMap) -> Result<Option<User>, header::Unreadable> {
        let Some(name) = first(headers, &self.user_headers)? else { return Ok(None) };
        let mut user = User { name, uid: first(headers, &self.uid_headers)?.unwrap_or_default(), ..User::default() };
        for name in &self.group_headers {
            user.groups.extend(header::all(headers, name)?.into_iter().filter(|g| !g.is_empty()));
        }
        for prefix in &self.extra_prefixes {
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
}

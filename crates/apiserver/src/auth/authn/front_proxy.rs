//! The front proxy: a trusted server in front says in headers who its caller is.

use http::HeaderMap;
use pki::ClientCertificates;
use rustls_pki_types::CertificateDer;

use super::Rejected;
use crate::auth::User;

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

    pub fn check(&self, chain: &[CertificateDer<'static>], headers: &HeaderMap) -> Result<Option<User>, Rejected> {
        let Some(name) = first(headers, &self.user_headers) else { return Ok(None) };
        if chain.is_empty() {
            return Ok(None);
        }
        let facts = self.authorities.verify(chain).map_err(|why| format!("front proxy: x509: {why}"))?;
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(&facts.common_name) {
            return Err(format!("x509: subject with cn={} is not in the allowed list", facts.common_name));
        }
        let mut user = User { uid: first(headers, &self.uid_headers).unwrap_or_default(), ..User::default() };
        user.name = name;
        for header in &self.group_headers {
            user.groups.extend(values(headers, header));
        }
        for prefix in &self.extra_prefixes {
            for name in headers.keys() {
                let start = name.as_str().get(..prefix.len());
                if start.is_some_and(|s| s.eq_ignore_ascii_case(prefix)) {
                    let key = crate::auth::impersonation::unescape(&name.as_str()[prefix.len()..]);
                    user.extra.entry(key).or_default().extend(values(headers, name.as_str()));
                }
            }
        }
        Ok(Some(user))
    }
}

fn values(headers: &HeaderMap, name: &str) -> Vec<String> {
    headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned).collect()
}

fn first(headers: &HeaderMap, names: &[String]) -> Option<String> {
    names.iter().flat_map(|name| values(headers, name)).find(|v| !v.is_empty())
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
        assert_eq!(proxy.check(&[], &headers), Ok(None));
    }
}

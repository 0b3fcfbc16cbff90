//! Certificates that a server shows to clients that ask for it by name (SNI): of several that fit the most specific. Who asks for
//! none of the names, or says none, is shown the server's own.

use std::sync::{Arc, RwLock};

use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::{
    Credential, Result, inspect,
    tls::{Serving, certified},
};

/// A certificate, and the names that it is for; those in it where none are given. `*.example.com` stands for names with one more
/// label.
pub struct Site {
    pub credential: Credential,
    pub names: Vec<String>,
}

/// The most specific come first.
#[derive(Debug)]
struct Entry {
    pattern: String,
    key: Arc<CertifiedKey>,
    /// Whether it is a wildcard, and whether it was read from the certificate.
    rank: (bool, bool),
}

#[derive(Debug)]
pub struct Sites {
    own: Arc<Serving>,
    entries: RwLock<Vec<Entry>>,
}

impl Sites {
    pub fn new(own: Arc<Serving>) -> Arc<Self> {
        Arc::new(Sites { own, entries: RwLock::default() })
    }

    /// New connections are shown these, open ones stay.
    pub fn replace(&self, sites: &[Site]) -> Result<()> {
        let mut entries = Vec::new();
        for site in sites {
            let key = certified(&site.credential)?;
            let found = inspect::facts(&site.credential.certificate)?.hosts;
            let extracted = site.names.is_empty();
            let names = if extracted { found.into_iter().collect() } else { site.names.clone() };
            entries.extend(names.into_iter().map(|name| {
                let pattern = name.to_ascii_lowercase();
                let rank = (pattern.starts_with("*."), extracted);
                Entry { pattern, key: key.clone(), rank }
            }));
        }
        entries.sort_by_key(|entry| entry.rank);
        *self.entries.write().unwrap_or_else(|broken| broken.into_inner()) = entries;
        Ok(())
    }

    fn of_name(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let fits = |entry: &&Entry| match entry.pattern.strip_prefix('*') {
            Some(suffix) => name.find('.').is_some_and(|at| at > 0 && name[at..] == *suffix),
            None => entry.pattern == name,
        };
        let entries = self.entries.read().unwrap_or_else(|broken| broken.into_inner());
        entries.iter().find(fits).map(|entry| entry.key.clone())
    }
}

impl ResolvesServerCert for Sites {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello.server_name().and_then(|name| self.of_name(name));
        Some(named.unwrap_or_else(|| self.own.shown()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Subject};

    #[test]
    fn the_most_specific_name_counts() {
        let authority = Authority::create("ca").unwrap();
        let issue = |hosts: &[&str]| {
            let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
            authority.issue(&Subject::server("x", hosts)).unwrap()
        };
        let sites = Sites::new(Serving::new(&issue(&["own"])).unwrap());
        let site = |hosts: &[&str], names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            Site { credential: issue(hosts), names }
        };
        let all = [
            site(&["*.a.io", "b.io"], &[]),
            site(&["x"], &["c.a.io", "*.B.io"]),
            site(&["c.a.io", "d.b.io", "d.a.io"], &[]),
        ];
        sites.replace(&all).unwrap();
        let certificate = |pem: &str| inspect::chain(pem).unwrap().remove(0);
        let check = |name: &str, expected: Option<usize>| {
            let found = sites.of_name(name).map(|key| key.cert[0].clone());
            assert_eq!(found, expected.map(|at| certificate(&all[at].credential.certificate)), "{name}");
        };
        check("c.a.io", Some(1));
        check("d.a.io", Some(2));
        check("D.a.IO.", Some(2));
        check("e.a.io", Some(0));
        check("e.e.a.io", None);
        check("a.io", None);
        check(".a.io", None);
        check("b.io", Some(0));
        check("d.b.io", Some(2));
        check("e.b.io", Some(1));
        check("other", None);
        let wrong =
            Site { credential: Credential { key: all[0].credential.key.clone(), ..issue(&["a"]) }, names: Vec::new() };
        assert!(sites.replace(&[wrong]).is_err(), "a key of another certificate");
        check("c.a.io", Some(1));
        sites.replace(&[]).unwrap();
        check("c.a.io", None);
    }
}

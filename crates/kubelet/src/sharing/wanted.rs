//! The content that a path of the OCI distribution API names. Pure, and refuses whatever is not written in the one plain way.

use std::net::IpAddr;

use api::rules::url::query_pairs;

/// The lengths of the names that registries have for repositories.
const REPOSITORY: usize = 255;
const REGISTRY: usize = 253;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub registry: String,
    pub repository: String,
    /// `sha256:` and its digits.
    pub digest: String,
    pub is_manifest: bool,
}

impl Wanted {
    /// A path `/v2/REPOSITORY/manifests/DIGEST` or `…/blobs/DIGEST`, and the registry as `ns` in the query.
    pub fn parse(path: &str, query: &str) -> Option<Wanted> {
        let (rest, digest) = path.strip_prefix("/v2/")?.rsplit_once('/')?;
        let (repository, sort) = rest.rsplit_once('/')?;
        let is_manifest = match sort {
            "manifests" => true,
            "blobs" => false,
            _ => return None,
        };
        let mut named = query_pairs(query).filter(|(name, _)| name == "ns");
        let (Some((_, registry)), None) = (named.next(), named.next()) else { return None };
        let is_right = is_digest(digest) && is_repository(repository) && is_shared(&registry);
        is_right.then(|| Wanted { registry, repository: repository.to_owned(), digest: digest.to_owned(), is_manifest })
    }

    /// The same as a path and a query. No part of it has to be escaped.
    pub fn path(&self) -> String {
        let sort = if self.is_manifest { "manifests" } else { "blobs" };
        format!("/v2/{}/{sort}/{}?ns={}", self.repository, self.digest, self.registry)
    }
}

fn is_digest(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_repository(name: &str) -> bool {
    let is_alphanumeric = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let is_part = |part: &str| {
        let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-');
        is_alphanumeric(part.bytes().next()) && is_alphanumeric(part.bytes().last()) && part.bytes().all(known)
    };
    name.len() <= REPOSITORY && name.split('/').all(is_part)
}

/// Whether a registry is the same one for all nodes, and is told apart from others by its name.
fn is_shared(registry: &str) -> bool {
    let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-');
    let name = registry.trim_end_matches('.');
    let is_own = match registry.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_link_local() || ip.is_unspecified(),
        Ok(IpAddr::V6(_)) => true,
        // A name of one part, and one that stands for whoever asks, may be another machine on each node.
        Err(_) => {
            !name.contains('.')
                || name.ends_with(".localhost")
                || name.ends_with(".local")
                || name.len() != registry.len()
        }
    };
    registry.len() <= REGISTRY && registry.bytes().all(known) && !is_own
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn content_is_asked_for_by_its_digest_and_where_it_comes_from() {
        let check = |path: &str, query: &str, expected: Option<(&str, &str, bool)>| {
            let path = path.replace("DIGEST", DIGEST);
            let got = Wanted::parse(&path, query);
            let expected = expected.map(|(registry, repository, is_manifest)| Wanted {
                registry: registry.to_owned(),
                repository: repository.to_owned(),
                digest: DIGEST.to_owned(),
                is_manifest,
            });
            assert_eq!(got, expected, "{path} {query}");
            if let Some(wanted) = got {
                assert_eq!(wanted.path().split_once('?'), Some((path.as_str(), query)));
            }
        };
        let hub = "ns=docker.io";
        check("/v2/library/busybox/manifests/DIGEST", hub, Some(("docker.io", "library/busybox", true)));
        check("/v2/a/blobs/DIGEST", "ns=r.example.com", Some(("r.example.com", "a", false)));
        check("/v2/manifests/blobs/DIGEST", "ns=10.0.0.5", Some(("10.0.0.5", "manifests", false)));
        for path in [
            "/v2/library/busybox/manifests/latest",
            "/v2/library/busybox/tags/list",
            "/v2/_catalog",
            "/v2/blobs/DIGEST",
            "/v2//blobs/DIGEST",
            "/v2/a//blobs/DIGEST",
            "/v2/a/../b/blobs/DIGEST",
            "/v2/A/blobs/DIGEST",
            "/v2/a%2fb/blobs/DIGEST",
            "/v2/-a/blobs/DIGEST",
            "/v2/a,b/blobs/DIGEST",
            "/v2/a/blobs/DIGEST/",
            "/v2/a/blobs/DIGEST0",
            "/v2/a/blobs/sha512:00",
            "/v2/a/blobs/uploads/DIGEST",
        ] {
            check(path, hub, None);
        }
        check(&format!("/v2/{}/blobs/DIGEST", "a".repeat(256)), hub, None);
    }

    #[test]
    fn a_registry_that_is_another_one_on_each_node_is_not_shared() {
        let is_right = |query: &str| Wanted::parse(&format!("/v2/a/blobs/{DIGEST}"), query).is_some();
        assert!(is_right("ns=ghcr.io") && is_right("x=1&ns=ghcr.io"));
        for query in [
            "",
            "ns=",
            "ns=ghcr.io&ns=docker.io",
            "ns=r.example.com:5000",
            "ns=localhost",
            "ns=x.localhost",
            "ns=x.local",
            "ns=registry",
            "ns=127.0.0.1",
            "ns=169.254.1.1",
            "ns=0.0.0.0",
            "ns=[fd00::1]",
            "ns=fd00::1",
            "ns=ghcr.io.",
            "ns=gh%0acr.io",
            "ns=GHCR.io",
            "ns=ghcr.io/a",
        ] {
            assert!(!is_right(query), "{query}");
        }
    }
}

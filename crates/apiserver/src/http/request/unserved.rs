//! The names in the path of a request that nothing serves, as upstream reads them: for authorizers and the audit, and nothing is
//! ever done by them.
//!
//! Upstream counterpart: staging/src/k8s.io/apiserver/pkg/endpoints/request/requestinfo.go.

use api::rules::url::percent_decode;

/// A resource that nothing serves, or not like this, as upstream reads the path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unserved {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
}

/// All names in such a path.
pub(super) struct Names {
    pub verb: &'static str,
    pub namespace: String,
    pub name: String,
    pub unserved: Unserved,
}

impl Names {
    /// `verb` is the method's for a resource. A path of no resource has no names.
    pub(super) fn read(path: &str, mut verb: &'static str) -> Option<Self> {
        let parts: Vec<String> = path.trim_matches('/').split('/').map(percent_decode).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, version, mut below) = match parts[..] {
            ["api", version, ref below @ ..] => ("", version, below),
            ["apis", group, version, ref below @ ..] => (group, version, below),
            _ => return None,
        };
        if let [word @ ("watch" | "proxy"), rest @ ..] = below {
            verb = if *word == "watch" { "watch" } else { "proxy" };
            below = rest;
        }
        let mut namespace = "";
        if let ["namespaces", given, rest @ ..] = below {
            namespace = given;
            if rest.first().is_some_and(|first| !matches!(*first, "status" | "finalize")) {
                below = rest;
            }
        }
        let part = |index: usize| below.get(index).copied().unwrap_or_default();
        let (resource, name) = (part(0), part(1));
        if resource.is_empty() {
            return None;
        }
        let verb = match (verb, name.is_empty()) {
            ("get", true) => "list",
            ("delete", true) => "deletecollection",
            (verb, _) => verb,
        };
        let subresource = if verb == "proxy" { "" } else { part(2) };
        let [group, version, resource, subresource] = [group, version, resource, subresource].map(str::to_owned);
        let unserved = Unserved { group, version, resource, subresource };
        Some(Names { verb, namespace: namespace.to_owned(), name: name.to_owned(), unserved })
    }
}

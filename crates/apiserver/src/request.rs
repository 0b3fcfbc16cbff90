//! What a request is about, read from its method and path as upstream's RequestInfo does.

use api::url::{percent_decode, query_pairs};
use http::Method;

/// The parsed path and method. Text fields are empty where they do not apply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Info {
    pub path: String,
    /// A Kubernetes verb for resources, else the method in lower case.
    pub verb: &'static str,
    pub resource_request: bool,
    /// `api` or `apis`.
    pub prefix: &'static str,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
    /// What follows the subresource, for proxies: `a/b` of `…/pods/x/proxy/a/b`.
    pub rest: String,
    pub field_selector: String,
    pub label_selector: String,
}

/// Subresources of a namespace itself; any other word after `/namespaces/x/` is a resource in the namespace.
const NAMESPACE_SUBRESOURCES: &[&str] = &["status", "finalize"];

impl Info {
    pub fn parse(method: &Method, path: &str, query: &str) -> Info {
        let mut info = Info { path: path.to_owned(), verb: method_verb(method), ..Info::default() };
        let decoded: Vec<String> =
            path.trim_matches('/').split('/').filter(|p| !p.is_empty()).map(percent_decode).collect();
        let mut parts = decoded.iter().map(String::as_str);
        let grouped = match parts.next() {
            Some("api") => false,
            Some("apis") => true,
            _ => return info,
        };
        let rest: Vec<&str> = parts.collect();
        let rest = match (grouped, rest.as_slice()) {
            (true, [group, version, rest @ ..]) if !rest.is_empty() => {
                info.group = (*group).to_owned();
                info.version = (*version).to_owned();
                rest
            }
            (false, [version, rest @ ..]) if !rest.is_empty() => {
                info.version = (*version).to_owned();
                rest
            }
            _ => return info,
        };
        info.prefix = if grouped { "apis" } else { "api" };
        info.resource_request = true;
        info.verb = resource_verb(method);
        let mut rest = rest;
        // The old form /api/v1/watch/... and the proxy prefix of early versions.
        if let ["watch", tail @ ..] = rest
            && !tail.is_empty()
        {
            info.verb = "watch";
            rest = tail;
        }
        if let ["namespaces", namespace, tail @ ..] = rest {
            info.namespace = (*namespace).to_owned();
            if !tail.is_empty() && !NAMESPACE_SUBRESOURCES.contains(&tail[0]) {
                rest = tail;
            }
        }
        match rest {
            [resource, name, subresource, more @ ..] => {
                info.resource = (*resource).to_owned();
                info.name = (*name).to_owned();
                info.subresource = (*subresource).to_owned();
                info.rest = more.join("/");
            }
            [resource, name] => {
                info.resource = (*resource).to_owned();
                info.name = (*name).to_owned();
            }
            [resource] => info.resource = (*resource).to_owned(),
            [] => {}
        }
        info.read_query(query);
        info
    }

    /// A list may be a watch, and a list of one name counts as a request for that name.
    fn read_query(&mut self, query: &str) {
        if self.name.is_empty() {
            self.verb = match self.verb {
                "get" => "list",
                "delete" => "deletecollection",
                other => other,
            };
        }
        if !matches!(self.verb, "list" | "watch" | "deletecollection") {
            return;
        }
        let mut watch = false;
        for (key, value) in query_pairs(query) {
            match key.as_str() {
                "watch" => watch = is_true(&value),
                "fieldSelector" => self.field_selector = value,
                "labelSelector" => self.label_selector = value,
                _ => {}
            }
        }
        if self.verb == "list" && watch {
            self.verb = "watch";
        }
        if self.name.is_empty()
            && let Some(name) = self.field_selector.split(',').find_map(|term| {
                let value = term.strip_prefix("metadata.name=")?;
                Some(value.strip_prefix('=').unwrap_or(value))
            })
        {
            self.name = name.to_owned();
        }
    }

    /// Requests that stay open as long as the client likes: no deadline, no place among the requests in flight.
    pub fn long_running(&self) -> bool {
        self.verb == "watch"
            || matches!(self.subresource.as_str(), "attach" | "exec" | "proxy" | "log" | "portforward")
                && self.resource_request
    }

    /// `apps/v1` or `v1`.
    pub fn group_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Whether the request names one object of a resource rather than a list of them.
    pub fn names_object(&self) -> bool {
        matches!(self.verb, "get" | "update" | "patch" | "delete") || (self.verb == "create" && !self.name.is_empty())
    }
}

fn method_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "other",
    }
}

fn resource_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// How query parameters say yes, as Go's `strconv.ParseBool` and the conversion of flags read it.
pub fn is_true(value: &str) -> bool {
    !matches!(value, "0" | "false" | "False" | "FALSE" | "f" | "F")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, uri: &str, expected: &str) {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let i = Info::parse(&method.parse().unwrap(), path, query);
        let got = format!(
            "{} {} g={} v={} ns={} r={} n={} s={} rest={}",
            i.resource_request, i.verb, i.group, i.version, i.namespace, i.resource, i.name, i.subresource, i.rest
        );
        assert_eq!(got, expected, "{method} {uri}");
    }

    #[test]
    fn paths_become_requests() {
        check("GET", "/api/v1/pods", "true list g= v=v1 ns= r=pods n= s= rest=");
        check("GET", "/api/v1/pods?watch=1", "true watch g= v=v1 ns= r=pods n= s= rest=");
        check("GET", "/api/v1/namespaces/a/pods/b", "true get g= v=v1 ns=a r=pods n=b s= rest=");
        check("POST", "/api/v1/namespaces/a/pods/b/exec", "true create g= v=v1 ns=a r=pods n=b s=exec rest=");
        check("GET", "/api/v1/namespaces/a", "true get g= v=v1 ns=a r=namespaces n=a s= rest=");
        check("PUT", "/api/v1/namespaces/a/finalize", "true update g= v=v1 ns=a r=namespaces n=a s=finalize rest=");
        check(
            "DELETE",
            "/apis/apps/v1/namespaces/a/deployments",
            "true deletecollection g=apps v=v1 ns=a r=deployments n= s= rest=",
        );
        check("GET", "/api/v1/nodes/n/proxy/a/b", "true get g= v=v1 ns= r=nodes n=n s=proxy rest=a/b");
        check("GET", "/apis/apps/v1", "false get g= v= ns= r= n= s= rest=");
        check("GET", "/healthz", "false get g= v= ns= r= n= s= rest=");
        check("GET", "/api/v1/watch/namespaces/a/pods", "true watch g= v=v1 ns=a r=pods n= s= rest=");
        check("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", "true list g= v=v1 ns= r=pods n=x s= rest=");
    }
}

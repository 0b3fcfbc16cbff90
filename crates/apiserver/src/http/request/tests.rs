//! Requests, and what they are read as.

use super::*;
use crate::aggregator::registrations::{Backend, Trust};

fn resolve(method: &str, uri: &str) -> Info {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let registrations = Registrations::default().with(
        "v1.a.io",
        Some(Registration {
            name: "v1.a.io".to_owned(),
            group: "a.io".to_owned(),
            version: "v1".to_owned(),
            group_priority: 1,
            version_priority: 1,
            backend: Some(Backend { namespace: "n".into(), name: "s".into(), port: 443, trust: Trust::Anybody }),
            available: true,
            reason: String::new(),
        }),
    );
    let served = Served { kinds: api::kinds::built_in(), registrations: &registrations };
    Info::resolve(&method.parse().unwrap(), path, query, served)
}

/// `verb group/version/resource/subresource namespace name`, or the refusal.
fn check(method: &str, uri: &str, expected: &str) {
    let i = resolve(method, uri);
    let got = match &i.refusal {
        Some(refusal) => {
            assert!(!i.is_served_resource() && i.subresource.is_empty() && i.passed.is_none(), "{method} {uri}");
            format!("{refusal:?}").split('(').next().unwrap().to_owned()
        }
        None if !i.is_resource() => format!("{} {}", i.verb, i.path),
        None => {
            let named = format!("{}/{}/{}", i.group(), i.version(), i.resource());
            format!("{} {named}/{} ns={} n={}", i.verb, i.subresource_name(), i.namespace, i.name)
        }
    };
    assert_eq!(got, expected, "{method} {uri}");
}

#[test]
fn paths_become_requests() {
    check("GET", "/api/v1/pods", "list /v1/pods/ ns= n=");
    check("GET", "/api/v1/pods/", "list /v1/pods/ ns= n=");
    check("GET", "/api/v1/pods?watch=1", "watch /v1/pods/ ns= n=");
    check("GET", "/api/v1/pods?watch=fAlse", "list /v1/pods/ ns= n=");
    check("GET", "/api/v1/pods?watch=f", "watch /v1/pods/ ns= n=");
    check("GET", "/api/v1/pods?watch=0&watch=1", "list /v1/pods/ ns= n=");
    check("GET", "/api/v1/namespaces/a/pods/b", "get /v1/pods/ ns=a n=b");
    check("GET", "/api/v1/namespaces/a/pods/b?watch=1", "get /v1/pods/ ns=a n=b");
    check("POST", "/api/v1/namespaces/a/pods/b/exec", "create /v1/pods/exec ns=a n=b");
    check("GET", "/api/v1/namespaces/a", "get /v1/namespaces/ ns=a n=a");
    check("PUT", "/api/v1/namespaces/a/finalize", "update /v1/namespaces/finalize ns=a n=a");
    check("DELETE", "/apis/apps/v1/namespaces/a/deployments", "deletecollection apps/v1/deployments/ ns=a n=");
    check("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", "list /v1/pods/ ns= n=x");
    check("GET", "/api/v1/nodes/a%20b", "get /v1/nodes/ ns= n=a b");
    check("GET", "/apis/apps/v1", "get /apis/apps/v1");
    check("GET", "/api/v1/", "get /api/v1");
    check("GET", "/healthz", "get /healthz");
    check("POST", "/", "post /");
}

#[test]
fn what_the_table_does_not_serve_is_refused() {
    // A kind of the cluster below a namespace, and the reverse.
    for path in [
        "/apis/rbac.authorization.k8s.io/v1/namespaces/x/clusterrolebindings/x",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/x/clusterrolebindings",
        "/api/v1/namespaces/x/nodes/x",
        "/api/v1/namespaces/x/nodes/n/proxy/a",
        "/api/v1/namespaces/x/namespaces/x",
        "/api/v1/namespaces/x/persistentvolumes",
        "/apis/authorization.k8s.io/v1/namespaces/x/subjectaccessreviews",
        "/apis/authentication.k8s.io/v1/namespaces/x/tokenreviews",
        "/api/v1/pods/p",
        "/api/v1/pods/p/exec",
        "/api/v1/serviceaccounts/s/token",
        "/apis/apps/v1/namespaces/x",
        "/api/v1/namespaces/x/pods/p/nothing",
        "/api/v1/namespaces/x/pods/p/log/more",
        "/api/v1/namespaces/x/configmaps/c/status",
        "/api/v1/nothing",
        "/api/v1//pods",
        "/api/v1/namespaces//pods",
        "/api/v1/namespaces/a//b",
        "/api/v1/watch/namespaces/x/pods/p/exec",
    ] {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            check(method, path, "NoResource");
        }
    }
    for path in ["/api/v2/pods", "/apis/none/v1/pods", "/apis/apps/v7/deployments", "/apis//v1/pods", "//api/v1/pods"] {
        check("GET", path, "NoPage");
    }
    for path in ["/api//v1", "//metrics", "/healthz//ping"] {
        check("GET", path, "NoPage");
    }
    check("GET", "/metrics/", "get /metrics");
    for path in ["/api/v1/nodes/..", "/api/v1/nodes/a%2Fb", "/api/v1/namespaces/%2e%2e/pods", "/api/v1/nodes/%ff"] {
        check("GET", path, "BadPath");
    }
}

/// The cases of upstream's TestGetAPIRequestInfo, of what nothing serves.
#[test]
fn names_of_what_nothing_serves_are_those_in_the_path() {
    let check = |method: &str, uri: &str, expected: &str| {
        let i = resolve(method, uri);
        assert!(i.refusal.is_some() && !i.long_running(), "{method} {uri}");
        let named = format!("{}/{}/{}/{}", i.group(), i.version(), i.resource(), i.subresource_name());
        assert_eq!(format!("{} {named} ns={} n={}", i.verb, i.namespace, i.name), expected, "{method} {uri}");
    };
    check("GET", "/apis/batch/v3/namespaces/other/jobs/x", "get batch/v3/jobs/ ns=other n=x");
    check("GET", "/apis/a.io/v2/things", "list a.io/v2/things/ ns= n=");
    check("GET", "/apis/a.io/v2/things?watch=1", "watch a.io/v2/things/ ns= n=");
    check("HEAD", "/apis/a.io/v2/things/t", "get a.io/v2/things/ ns= n=t");
    check("DELETE", "/apis/a.io/v2/namespaces/n/things", "deletecollection a.io/v2/things/ ns=n n=");
    check("PATCH", "/apis/a.io/v2/namespaces/n/things/t/scale/more", "patch a.io/v2/things/scale ns=n n=t");
    check("POST", "/api/v1/namespaces/other/foos", "create /v1/foos/ ns=other n=");
    check("POST", "/api/v1/namespaces/other/pods/p", "create /v1/pods/ ns=other n=p");
    check("BREW", "/api/v1/pods", " /v1/pods/ ns= n=");
    check("GET", "/api/v1/proxy/namespaces/other/pods/foo", "proxy /v1/pods/ ns=other n=foo");
    check("GET", "/api/v1/watch/namespaces/other/foos", "watch /v1/foos/ ns=other n=");
    check("GET", "/api/v1/namespaces/n/status/x", "get /v1/namespaces/status ns=n n=n");
    check("GET", "/apis/a.io/v2/things?fieldSelector=metadata.name%3Dt", "list a.io/v2/things/ ns= n=t");
    for path in ["/nothing", "/api/v2", "/apis/none/v1/", "/apis/none", "/api/v1/watch", "/openapi/v9/x/y/z"] {
        let method = resolve("POST", path);
        assert!(!method.is_resource() && method.namespace.is_empty(), "{path}");
        assert_eq!((method.verb, method.group()), ("post", ""), "{path}");
    }
}

#[test]
fn methods_fit_their_place() {
    for (method, path) in [
        ("POST", "/api/v1/namespaces/x/pods/p"),
        ("POST", "/api/v1/nodes/n"),
        ("POST", "/api/v1/pods"),
        ("DELETE", "/api/v1/pods"),
        ("PUT", "/api/v1/namespaces/x/pods"),
        ("PATCH", "/api/v1/nodes"),
        ("DELETE", "/api/v1/namespaces"),
        ("OPTIONS", "/api/v1/nodes"),
        ("TRACE", "/api/v1/nodes/n"),
        ("HEAD", "/api/v1/pods/"),
        ("HEAD", "/api/v1/namespaces/x/pods/p"),
        ("HEAD", "/api/v1/namespaces/x/pods/p/log"),
        ("GET", "/api/v1/namespaces/x/bindings"),
        ("PUT", "/api/v1/componentstatuses/c"),
        ("GET", "/api/v1/namespaces/x/pods/p/eviction"),
        ("GET", "/api/v1/namespaces/x/serviceaccounts/s/token"),
        ("DELETE", "/api/v1/namespaces/x/pods/p/status"),
        ("POST", "/api/v1/namespaces/x/pods/p/log"),
        ("GET", "/api/v1/namespaces/x/finalize"),
    ] {
        check(method, path, "WrongMethod");
    }
}

#[test]
fn what_is_only_made_has_no_names() {
    for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
        check(method, "/api/v1/namespaces/x/bindings/b", "NoResource");
        check(method, "/apis/authorization.k8s.io/v1/subjectaccessreviews/r", "NoResource");
    }
}

#[test]
fn the_old_form_of_watches_watches_only() {
    check("GET", "/api/v1/watch/namespaces/a/pods", "watch /v1/pods/ ns=a n=");
    check("GET", "/api/v1/watch/nodes", "watch /v1/nodes/ ns= n=");
    check("GET", "/api/v1/watch/namespaces/a", "watch /v1/namespaces/ ns=a n=a");
    check("GET", "/api/v1/watch", "NoResource");
    for method in ["POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"] {
        check(method, "/api/v1/watch/namespaces/a/pods", "WrongMethod");
        check(method, "/api/v1/watch/namespaces/a/pods/p", "WrongMethod");
    }
    for method in ["GET", "POST", "PUT", "DELETE"] {
        check(method, "/api/v1/watch/namespaces/a/serviceaccounts/s/token", "NoResource");
        check(method, "/api/v1/watch/nodes/n/proxy", "NoResource");
        check(method, "/apis/authentication.k8s.io/v1/watch/tokenreviews", "WrongMethod");
    }
    let selected = |uri: &str| resolve("GET", uri).field_selector;
    let base = "/api/v1/watch/namespaces/y/secrets/allowed";
    assert_eq!(selected(base), "metadata.name=allowed");
    let other = format!("{base}?fieldSelector=metadata.name=other");
    assert_eq!(selected(&other), "metadata.name=allowed,metadata.name=other");
    assert_eq!(resolve("GET", &other).name, "allowed");
    assert_eq!(selected("/api/v1/watch/namespaces/y/secrets/a%2Cb"), "metadata.name=a\\,b");
}

#[test]
fn a_name_counts_only_where_the_selector_demands_it() {
    let selected = "/apis/apps/v1/namespaces/a/deployments?fieldSelector=metadata.name%3Dx";
    check("GET", selected, "list apps/v1/deployments/ ns=a n=x");
    check("DELETE", selected, "deletecollection apps/v1/deployments/ ns=a n=");
    check("DELETE", "/apis/a.io/v1/things?fieldSelector=metadata.name%3Dx", "deletecollection a.io/v1/things/ ns= n=");
    let named = |query: &str| resolve("GET", &format!("/api/v1/namespaces/y/secrets?fieldSelector={query}")).name;
    assert_eq!(named("metadata.name==a"), "a");
    assert_eq!(named("type=x,metadata.name=a"), "a");
    assert_eq!(named("metadata.name!=a"), "");
    // The first one counts, for the handler too.
    assert_eq!(named("metadata.name=a&fieldSelector=type=x"), "a");
    assert_eq!(named("type=x&fieldSelector=metadata.name=a"), "");
    assert_eq!(named("type=x\\,metadata.name=a"), "");
    assert_eq!(named("metadata.name=a,broken"), "");
    for no_name in ["a/b", "a%25b", ".", ".."] {
        assert_eq!(named(&format!("metadata.name={no_name}")), "", "{no_name}");
    }
}

#[test]
fn what_is_passed_on_is_raw() {
    let passed = |uri: &str| resolve("GET", uri).passed.map(|p| (p.base, p.rest));
    let parts = |base: &str, rest: &str| Some((base.to_owned(), rest.to_owned()));
    assert_eq!(passed("/api/v1/nodes/n/proxy/a%2F//b?c"), parts("/api/v1/nodes/n/proxy", "/a%2F//b"));
    assert_eq!(passed("/api/v1/nodes/n/proxy"), parts("/api/v1/nodes/n/proxy", ""));
    let pod = "/api/v1/namespaces/x/pods/p:80/proxy";
    assert_eq!(passed(&format!("{pod}/")), parts(pod, "/"));
    assert_eq!(passed("/api/v1/nodes/n"), None);
    check("OPTIONS", "/api/v1/nodes/n/proxy/a", " /v1/nodes/proxy ns= n=n");
    check("HEAD", "/api/v1/nodes/n/proxy/a", "get /v1/nodes/proxy ns= n=n");
}

#[test]
fn what_other_servers_serve_is_read_by_their_names() {
    check("GET", "/apis/a.io/v1/things", "list a.io/v1/things/ ns= n=");
    check("GET", "/apis/a.io/v1/things?watch=1", "watch a.io/v1/things/ ns= n=");
    check("GET", "/apis/a.io/v1/things?fieldSelector=metadata.name%3Dx", "list a.io/v1/things/ ns= n=x");
    check("POST", "/apis/a.io/v1/namespaces/n/things", "create a.io/v1/things/ ns=n n=");
    check("DELETE", "/apis/a.io/v1/namespaces/n/things", "deletecollection a.io/v1/things/ ns=n n=");
    check("DELETE", "/apis/a.io/v1/namespaces/n/things/t", "delete a.io/v1/things/ ns=n n=t");
    check("GET", "/apis/a.io/v1/namespaces/n/things/t/log/a//b", "get a.io/v1/things/log ns=n n=t");
    check("GET", "/apis/a.io/v1/namespaces/n/things/t?watch=1", "get a.io/v1/things/ ns=n n=t");
    check("GET", "/apis/a.io/v1/namespaces/n", "get a.io/v1/namespaces/ ns=n n=n");
    check("GET", "/apis/a.io/v1/namespaces/n/status", "get a.io/v1/namespaces/status ns=n n=n");
    check("GET", "/apis/a.io/v1/watch/things", "watch a.io/v1/things/ ns= n=");
    check("POST", "/apis/a.io/v1/watch/things", "WrongMethod");
    check("GET", "/apis/a.io/v1/watch", "NoResource");
    check("GET", "/apis/a.io/v1/proxy/things/t", "NoResource");
    check("GET", "/apis/a.io/v1/things?watch=0&watch=1", "list a.io/v1/things/ ns= n=");
    check("GET", "/apis/a.io/v1/things?watch=f&watch=0", "watch a.io/v1/things/ ns= n=");
    check("BREW", "/apis/a.io/v1/things", " a.io/v1/things/ ns= n=");
    // The pages about a group version are no resources.
    check("GET", "/apis/a.io/v1", "get /apis/a.io/v1");
    check("POST", "/apis/a.io/v1/", "post /apis/a.io/v1");
    check("GET", "/openapi/v3/apis/a.io/v1", "get /openapi/v3/apis/a.io/v1");
    assert!(resolve("GET", "/openapi/v3/apis/a.io/v1").remote.is_some());
    assert!(resolve("GET", "/openapi/v3/apis/a.io/v1/x").remote.is_none());
    assert!(resolve("GET", "/openapi/v3/apis/apps/v1").remote.is_none());
    check("GET", "/apis/a.io/v2/things", "NoPage");
    check("GET", "/apis/a%2Eio/v1/things", "NoPage");
    // Nothing that the other server could read as another name.
    for path in ["namespaces/../x", "things/a%2Fb", "things/t/log/..", "things/%2e%2e", "%2E/x", "a%2Fb"] {
        check("GET", &format!("/apis/a.io/v1/{path}"), "BadPath");
    }
    for path in ["/things", "namespaces//things", "namespaces/n//t", "things//log"] {
        check("GET", &format!("/apis/a.io/v1/{path}"), "NoResource");
    }
    let long = |path: &str| resolve("GET", &format!("/apis/a.io/v1/{path}")).long_running();
    assert!(long("things?watch=1") && long("namespaces/n/things/t/exec") && !long("things") && !long("things/t"));
    assert!(!resolve("GET", "/apis/a.io/v1/things").is_document());
}

#[test]
fn every_resource_is_found_where_discovery_says() {
    for d in api::kinds::built_in().all() {
        let base = if d.group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{}", d.api_version()) };
        let place = if d.namespaced() { "/namespaces/x" } else { "" };
        let at = |verb: &str| match verb {
            "create" => ("POST", ""),
            "deletecollection" => ("DELETE", ""),
            "list" => ("GET", ""),
            "watch" => ("GET", "?watch=true"),
            "get" => ("GET", "/n"),
            "update" => ("PUT", "/n"),
            "patch" => ("PATCH", "/n"),
            "delete" => ("DELETE", "/n"),
            other => panic!("{other}"),
        };
        for verb in ["create", "deletecollection", "list", "watch", "get", "update", "patch", "delete"] {
            let (method, rest) = at(verb);
            let info = resolve(method, &format!("{base}{place}/{}{rest}", d.plural));
            let served = d.verbs.iter().any(|v| v == verb);
            assert_eq!(info.refusal.is_none(), served, "{verb} {}", d.plural);
            assert!(!served || info.verb == verb, "{verb} {}", d.plural);
        }
    }
}

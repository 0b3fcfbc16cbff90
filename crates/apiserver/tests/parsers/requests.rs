//! The heads of requests: whatever method, path, query and headers say, they are resolved or refused, the same way each time, and
//! what authorization sees is one name, not a path.

use api::kinds;
use apiserver::{
    aggregator::registrations::Registrations,
    audit::Trail,
    http::{
        encoding::{Encoding, accept},
        options::{DeleteOptions, ListOptions, WriteOptions},
        request::{Info, Served},
        view::View,
    },
};
use fuzz::Target;
use http::{HeaderMap, HeaderValue, Method};
use json::json;

use crate::found;

const METHODS: [Method; 6] = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD];

#[test]
fn heads() {
    let seeds = [
        "G/api/v1/namespaces/a/pods/b/log?container=c&follow=true&tailLines=10",
        "G/apis/apps/v1/deployments?watch=1&labelSelector=a%3Db%2Cc+in+(d)&fieldSelector=metadata.name%3Dx&resourceVersion=5",
        "P/api/v1/namespaces/a/pods/b/exec?command=sh&command=-c&stdin=true",
        "D/api/v1/namespaces/a?propagationPolicy=Orphan&gracePeriodSeconds=0&dryRun=All",
        "G/api/v1/namespaces/a/services/https:s:http/proxy/a%2Fb/../c?d=e",
        "G/apis/a.io/v1/namespaces/a/things/t/status",
        "G/openapi/v3/apis/a.io/v1?hash=AB",
        "U/api/v1/nodes/n/proxy/logs/?limit=500&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ",
    ];
    let words = [
        "/api/v1/",
        "/apis/",
        "namespaces/",
        "/pods/",
        "/proxy/",
        "/exec",
        "/log",
        "/status",
        "/scale",
        "watch/",
        "?watch=1",
        "&limit=",
        "&continue=",
        "&timeout=1s",
        "&resourceVersionMatch=Exact",
        "&sendInitialEvents=true",
        "%2F",
        "%2e%2e",
        "..",
        "//",
        "%00",
        "%",
        "+",
        "&fieldValidation=Strict",
        "&fieldManager=",
        "a.io/v1",
        "&pretty=true",
    ];
    let other = json!({"metadata": {"name": "v1.a.io"}, "spec": {"group": "a.io", "version": "v1", "service": {"namespace": "n", "name": "s"}}});
    let registration = apiserver::aggregator::registrations::Registration::of(&other);
    let registrations = Registrations::default().with("v1.a.io", registration);
    let seeds = seeds.map(|text| text.as_bytes().to_vec()).into();
    fuzz::run(&Target { name: "heads", seeds, words: &words, found: found() }, |input| {
        let Some((first, rest)) = input.split_first() else { return "nothing".to_owned() };
        let text = String::from_utf8_lossy(rest);
        let (path, query) = text.split_once('?').unwrap_or((&text, ""));
        let method = &METHODS[usize::from(*first) % METHODS.len()];
        let resolve =
            || Info::resolve(method, path, query, Served { kinds: kinds::built_in(), registrations: &registrations });
        let (info, again) = (resolve(), resolve());
        let shown = |info: &Info| format!("{} {}/{}/{}", info.verb, info.namespace, info.name, info.subresource_name());
        assert_eq!((shown(&info), info.refusal.is_some()), (shown(&again), again.refusal.is_some()));
        let lists = [ListOptions::of_list(query).is_ok(), ListOptions::of_watch(query).is_ok()];
        let deletes = DeleteOptions::read(query, b"", "", &Trail::default()).is_ok();
        let writes = [WriteOptions::parse(query, "CreateOptions", "x").is_ok(), deletes];
        if let Some(refusal) = &info.refusal {
            return format!("refused {:?}", refusal.error().map(|error| error.reason));
        }
        if info.is_resource() {
            assert!(!info.namespace.contains('/'), "{:?}", info.namespace);
            assert!(!info.name.contains('/'), "{:?}", info.name);
            assert!(info.definition.is_some() || info.remote.is_some(), "{path}");
        }
        format!("{} {} {lists:?} {writes:?}", info.verb, info.subresource_name())
    });
}

#[test]
fn accept_headers() {
    let seeds = [
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
        "application/vnd.kubernetes.protobuf;stream=watch;q=0.5, */*;q=0.1",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList, text/*",
        "application/yaml;sv=v1, application/cbor",
    ];
    let words = [
        ";",
        ",",
        "=",
        "as=PartialObjectMetadata",
        "as=Table",
        "g=meta.k8s.io",
        "v=v1",
        "q=",
        "*/*",
        "\"",
        " ",
        "stream=watch",
    ];
    let seeds = seeds.map(|text| text.as_bytes().to_vec()).into();
    let pods = kinds::built_in().find("", "v1", "pods").unwrap().clone();
    fuzz::run(&Target { name: "accept", seeds, words: &words, found: found() }, |input| {
        let Ok(value) = HeaderValue::from_bytes(input) else { return "no header".to_owned() };
        let mut headers = HeaderMap::new();
        headers.insert("accept", value);
        let clauses = accept::clauses(&headers).len().min(9);
        let view = |known| match View::negotiate(known, &headers, "", Some(&*pods)) {
            Ok(view) => format!("{:?} {:?}", view.form, view.encoding),
            Err(error) => error.code.to_string(),
        };
        let watch = View::negotiate_watch(Encoding::USUAL, &headers, "", &pods).is_ok();
        format!("{} {} {} {watch}", "c".repeat(clauses), view(Encoding::USUAL), view(Encoding::WITH_CBOR))
    });
}

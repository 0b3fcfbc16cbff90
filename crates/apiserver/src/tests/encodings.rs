//! Answers in protobuf: the same documents as in JSON, and who cannot have them.

use api::codec::{decode::normalise, protobuf};
use bytes::Bytes;
use http::header;
use http_body_util::BodyExt;
use json::{Value, json};
use store::{Change, Commit, Expect};

use crate::{http::encoding::binary, tests::conversation::Conversation};

const MAPS: &str = "/api/v1/namespaces/a/configmaps";
const PODS: &str = "/api/v1/namespaces/a/pods";
const ACCEPT: &str = "accept: application/vnd.kubernetes.protobuf";
const META: &str = "g=meta.k8s.io;v=v1";

/// An answer that says it is protobuf.
struct Binary {
    code: u16,
    media_type: String,
    bytes: Bytes,
}

async fn ask(c: &Conversation, head: &str, body: &str) -> Binary {
    let (parts, answer) = c.send(head, body).await.into_parts();
    let media_type = parts.headers[header::CONTENT_TYPE].to_str().unwrap().to_owned();
    Binary { code: parts.status.as_u16(), media_type, bytes: answer.collect(1 << 30).await.unwrap() }
}

/// The content of a message, as the same kind says it in JSON.
fn read(bytes: &[u8]) -> Value {
    let kind = protobuf::decode("io.k8s.apimachinery.pkg.apis.meta.v1.Verbs", bytes).expect("an envelope");
    let text = |name: &str| kind[name].as_str().unwrap_or_default().to_owned();
    let of = binary::message(&text("apiVersion"), &text("kind")).unwrap_or_else(|| panic!("no message for {kind}"));
    let schema = of.schema();
    let object = protobuf::decode(&schema, bytes).expect("a message");
    match api::schema::of(&schema) {
        Some(ty) => normalise(ty, object).expect("the object of the schema").0,
        None => object,
    }
}

fn map(name: &str, size: usize) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"l": "1"}},
        "data": {"k": "v".repeat(size)}, "binaryData": {"b": "AAEC"}})
    .to_string()
}

fn pod(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}},
            "readinessProbe": {"httpGet": {"path": "/", "port": "web"}}, "livenessProbe": {"tcpSocket": {"port": 80}}}],
        "volumes": [{"name": "v", "configMap": {"name": "m", "items": [{"key": "k", "path": "p"}]}}]}})
    .to_string()
}

/// The names of fields in the order in which they stand in the text, each once.
fn order(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices("\":") {
        let name = &text[..at][text[..at].rfind('"').unwrap() + 1..];
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The watchers of one scope share their events. Each is told the columns once, with the first that it gets.
#[tokio::test(start_paused = true)]
async fn a_watch_tells_the_columns_of_its_tables_once() {
    let c = Conversation::start().await;
    c.say(&format!("POST {MAPS}"), map("a", 1)).await;
    c.say(&format!("POST {MAPS}"), map("b", 1)).await;
    let table = |query: &str| {
        format!("GET {MAPS}?watch=1&timeoutSeconds=1&{query}\naccept: application/json;as=Table;g=meta.k8s.io;v=v1")
    };
    let told = async |query: &str| {
        let answer = c.say(&table(query), "").await;
        let lines = answer.text.lines().map(|line| json::parse(line).expect("JSON"));
        let columns = |line: Value| (line["type"].clone(), line["object"]["columnDefinitions"][0]["name"].clone());
        (lines.map(columns).collect::<Vec<_>>(), answer)
    };
    let (added, none) = (json!("ADDED"), Value::Null);
    for query in ["resourceVersion=1", "", "includeObject=Object"] {
        let (lines, answer) = told(query).await;
        assert_eq!(lines, [(added.clone(), json!("Name")), (added.clone(), none.clone())], "{}", answer.text);
    }
    // Live events, which all watchers share.
    let live = table("resourceVersion=0&sendInitialEvents=false&resourceVersionMatch=NotOlderThan");
    let (first, second) = (c.send(&live, "").await, c.send(&live, "").await);
    c.say(&format!("POST {MAPS}"), map("c", 1)).await;
    c.say(&format!("POST {MAPS}"), map("d", 1)).await;
    for watch in [first, second] {
        let bytes = watch.into_parts().1.collect(1 << 20).await.unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let columns: Vec<_> =
            text.lines().map(|line| line.contains("\"columnDefinitions\":[{\"name\":\"Name\"")).collect();
        assert_eq!(columns, [true, false], "{text}");
    }
    // A bookmark is an event too, and the row of an object that has nothing but its version.
    let ending =
        "allowWatchBookmarks=true&labelSelector=l%3Dnone&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let (lines, answer) = told(ending).await;
    let (bookmark, name) = (json!("BOOKMARK"), json!("Name"));
    assert_eq!(lines, [(bookmark.clone(), name), (bookmark, none)], "{}", answer.text);
    let first = json::parse(answer.text.lines().next().expect("a line")).expect("JSON");
    let row = &first["object"]["rows"][0];
    assert_eq!((&row["cells"][0], &row["object"]["kind"]), (&json!(""), &json!("PartialObjectMetadata")));
}

/// A bookmark has the row of an object without any field.
#[test]
fn every_kind_has_a_row_for_nothing() {
    for definition in api::kinds::built_in().all() {
        let bare = json!({"kind": definition.kind, "apiVersion": definition.api_version(), "metadata": {}});
        let row = definition.strategy.row(&bare, "2026-01-01T00:00:00Z".parse().expect("a time"));
        assert_eq!(row.len(), definition.columns.len(), "{}", definition.kind);
    }
}

#[tokio::test(start_paused = true)]
async fn fields_of_every_document_are_in_upstreams_order() {
    let c = Conversation::start().await;
    c.say(&format!("POST {MAPS}"), map("a", 1)).await;
    let metadata = "name namespace uid resourceVersion creationTimestamp labels l managedFields";
    let object = format!("kind apiVersion metadata {metadata}");
    let table = "accept: application/json;as=Table;g=meta.k8s.io;v=v1";
    let columns = "columnDefinitions name type format description priority rows cells object";
    let partial = "accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let event = "type object";
    for (head, expected) in [
        (format!("GET {MAPS}/a"), object.clone()),
        (format!("PUT {MAPS}/a?dryRun=All"), object.clone()),
        (format!("GET {MAPS}/a\n{partial}"), object.clone()),
        (format!("GET {MAPS}"), "kind apiVersion metadata resourceVersion items name namespace uid".to_owned()),
        (format!("GET {MAPS}?limit=1\n{table}"), format!("kind apiVersion metadata resourceVersion {columns}")),
        (format!("GET {MAPS}/a\n{table}"), format!("kind apiVersion metadata resourceVersion {columns}")),
        (format!("GET {MAPS}?watch=1&resourceVersion=0&timeoutSeconds=1"), format!("{event} {object}")),
        (format!("GET {MAPS}/none"), "kind apiVersion metadata status message reason details name code".to_owned()),
        ("GET /api".to_owned(), "kind versions serverAddressByClientCIDRs clientCIDR serverAddress".to_owned()),
        (
            "GET /apis".to_owned(),
            "kind apiVersion groups name versions groupVersion version preferredVersion".to_owned(),
        ),
        ("GET /api/v1".to_owned(), "kind groupVersion resources name singularName namespaced verbs".to_owned()),
        ("GET /version".to_owned(), "major minor emulationMajor emulationMinor minCompatibilityMajor".to_owned()),
    ] {
        let text = c.say(&head, map("a", 1)).await.text;
        assert!(order(&text).join(" ").starts_with(&expected), "{head}: {:?}", order(&text));
    }
}

#[tokio::test(start_paused = true)]
async fn every_document_can_be_had_in_protobuf() {
    let c = Conversation::start().await;
    assert_eq!(ask(&c, &format!("POST {PODS}\n{ACCEPT}"), &pod("x")).await.code, 201);
    for name in ["a", "b", "c"] {
        c.say(&format!("POST {MAPS}"), map(name, 10)).await;
    }
    for path in [
        format!("GET {PODS}/x"),
        format!("GET {PODS}"),
        format!("GET {MAPS}"),
        format!("GET {MAPS}?limit=2"),
        format!("PUT {MAPS}/a?dryRun=All"),
        format!("GET {PODS}/nobody"),
        format!("GET {PODS}?watch=1&resourceVersion=x"),
        format!("PATCH {PODS}/x"),
        "GET /api".to_owned(),
        "GET /apis".to_owned(),
        "GET /apis/apps".to_owned(),
        "GET /api/v1".to_owned(),
        "GET /api/v1/nothing".to_owned(),
        format!("DELETE {PODS}/nobody"),
    ] {
        let body = if path.starts_with("PUT") { map("a", 20) } else { String::new() };
        let json = c.say(&path, &body).await;
        let binary = ask(&c, &format!("{path}\n{ACCEPT}"), &body).await;
        assert_eq!((binary.code, &*binary.media_type), (json.code, protobuf::MEDIA_TYPE), "{path}");
        assert_eq!(lean(read(&binary.bytes)), lean(json.json()), "{path}");
    }
}

/// Without zero values, which kinds whose schema is not known here keep.
fn lean(value: Value) -> Value {
    let is_zero = |v: &Value| [json!(null), json!(""), json!(false), json!(0), json!({}), json!([])].contains(v);
    match value {
        Value::Object(fields) => {
            fields.into_iter().map(|(name, v)| (name, lean(v))).filter(|(_, v)| !is_zero(v)).collect()
        }
        Value::Array(items) => items.into_iter().map(lean).collect(),
        other => other,
    }
}

#[tokio::test(start_paused = true)]
async fn long_lists_are_the_same_as_short_ones() {
    let c = Conversation::start().await;
    for name in 0..24 {
        c.say(&format!("POST {MAPS}"), map(&format!("m{name}"), 90_000)).await;
    }
    let json = c.say(&format!("GET {MAPS}"), "").await.json();
    let binary = ask(&c, &format!("GET {MAPS}\n{ACCEPT}"), "").await;
    assert_eq!(read(&binary.bytes), json);
    let metadata = format!("{ACCEPT};as=PartialObjectMetadataList;{META}");
    let metadata = read(&ask(&c, &format!("GET {MAPS}\n{metadata}"), "").await.bytes);
    assert_eq!(metadata["kind"], "PartialObjectMetadataList");
    assert_eq!(lean(metadata["items"][23]["metadata"].clone()), lean(json["items"][23]["metadata"].clone()));
    let old = format!("{ACCEPT};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1");
    let old = ask(&c, &format!("GET {MAPS}?limit=1\n{old}"), "").await;
    // The old version has the items before the metadata.
    let raw = old.bytes.windows(2).position(|w| w[0] == 0x12 && w[1] > 0x80).expect("the object");
    assert_eq!((old.code, old.bytes[raw + 3]), (200, 0x0a));
    let compressed = c.send(&format!("GET {MAPS}\n{ACCEPT}\naccept-encoding: gzip"), "").await;
    assert_eq!(compressed.headers()[header::CONTENT_ENCODING], "gzip");
    let compressed = compressed.into_body().collect(1 << 30).await.unwrap();
    let mut whole = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&compressed[..]), &mut whole).unwrap();
    assert_eq!(whole, binary.bytes);
}

#[tokio::test(start_paused = true)]
async fn clients_get_the_best_that_there_is() {
    let c = Conversation::start().await;
    c.say(&format!("POST {MAPS}"), map("a", 1)).await;
    let known = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let none = format!("only the following media types are accepted: {known}");
    const BINARY: &str = protobuf::MEDIA_TYPE;
    for (accept, code, media_type) in [
        (BINARY.to_owned(), 200, BINARY),
        (format!("{BINARY},application/json"), 200, BINARY),
        (format!("{BINARY}, */*"), 200, BINARY),
        (format!("{BINARY};q=0.5,application/json"), 200, "application/json"),
        (format!("{BINARY};as=Table;{META},application/json;as=Table;{META}"), 200, "application/json"),
        (format!("{BINARY};as=PartialObjectMetadata;{META}"), 200, BINARY),
        ("application/*".to_owned(), 200, "application/json"),
        (format!("{BINARY};as=Table;{META}"), 406, "application/json"),
        (format!("{BINARY};as=PartialObjectMetadata"), 406, "application/json"),
        (format!("{BINARY};stream=other"), 406, BINARY),
    ] {
        let answer = ask(&c, &format!("GET {MAPS}/a\naccept: {accept}"), "").await;
        assert_eq!((answer.code, &*answer.media_type), (code, media_type), "{accept}");
        if code == 406 && media_type == "application/json" {
            let status: Value = serde_json::from_slice(&answer.bytes).unwrap();
            assert_eq!(status["message"], none.as_str());
        }
    }
    let table = format!("GET {MAPS}/nobody\n{ACCEPT};as=PartialObjectMetadata;{META}");
    assert_eq!(ask(&c, &table, "").await.media_type, "application/json", "an error has no such form");
    let discovery = format!("GET /apis\n{ACCEPT};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json");
    let discovery = ask(&c, &discovery, "").await;
    assert_eq!(discovery.media_type, format!("{BINARY};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"));
    assert_eq!(read(&discovery.bytes)["items"][0]["metadata"]["name"], "apiregistration.k8s.io");
    // So it is with the documents of discovery, but with no page beside them.
    for (path, accept, code) in [
        ("/api", "application/yaml", 200),
        ("/api", "application/json, application/yaml", 200),
        ("/api", "application", 406),
        ("/apis", "text/html", 406),
        ("/apis", "text/html, */*;q=0.1", 200),
        ("/apis/apps", "application/json;as=Table", 406),
        ("/api/v1", "image/png", 406),
        ("/version", "text/html", 200),
        ("/healthz", "text/html", 200),
    ] {
        let answer = ask(&c, &format!("GET {path}\naccept: {accept}"), "").await;
        assert_eq!(answer.code, code, "{path} {accept}");
    }
}

/// Takes one frame off a stream.
async fn frame(
    stream: &mut (impl futures::Stream<Item = Result<Bytes, crate::http::body::BoxError>> + Unpin),
    rest: &mut Vec<u8>,
) -> Option<(String, Value)> {
    use futures::StreamExt;
    loop {
        if let Some((length, more)) = rest.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            if more.len() >= length {
                let event: Vec<u8> = rest.drain(..4 + length).skip(4).collect();
                let text = |at: usize| usize::from(event[at]);
                let kind = String::from_utf8(event[2..2 + text(1)].to_vec()).unwrap();
                let object = event.windows(4).position(|w| w == b"k8s\0").expect("an envelope");
                return Some((kind, read(&event[object..])));
            }
        }
        rest.extend_from_slice(&stream.next().await?.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn watches_come_in_frames() {
    let c = Conversation::start().await;
    c.say(&format!("POST {MAPS}"), map("a", 300)).await;
    let initial =
        "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=5";
    for accept in
        [ACCEPT.to_owned(), format!("{ACCEPT};stream=watch"), format!("{ACCEPT};as=PartialObjectMetadata;{META}")]
    {
        let answer = c.send(&format!("GET {MAPS}?{initial}\n{accept}"), "").await;
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/vnd.kubernetes.protobuf;stream=watch");
        let (mut stream, mut rest) = (BodyExt::into_data_stream(answer.into_body()), Vec::new());
        let mut next = async || frame(&mut stream, &mut rest).await;
        let (kind, first) = next().await.unwrap();
        let mut wanted = c.say(&format!("GET {MAPS}/a"), "").await.json();
        if accept.contains("as=") {
            wanted = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": wanted["metadata"]});
        }
        assert_eq!((kind.as_str(), lean(first)), ("ADDED", lean(wanted)));
        let (kind, end) = next().await.unwrap();
        assert_eq!(
            (kind.as_str(), &end["metadata"]["annotations"]["k8s.io/initial-events-end"]),
            ("BOOKMARK", &json!("true"))
        );
        let merge = format!("PATCH {MAPS}/a\ncontent-type: application/merge-patch+json");
        let change = json!({"metadata": {"labels": {"n": accept.len().to_string()}}}).to_string();
        let changed = c.say(&merge, &change).await.json();
        let (kind, event) = next().await.unwrap();
        assert_eq!((kind.as_str(), lean(event["metadata"].clone())), ("MODIFIED", lean(changed["metadata"].clone())));
        assert_eq!(next().await.unwrap().0, "BOOKMARK");
        assert!(next().await.is_none());
    }
    let objects = c.server.objects();
    objects.store.compact(objects.caught_up().await.unwrap()).await.unwrap();
    let old = ask(&c, &format!("GET {MAPS}?watch=1&resourceVersion=1\n{ACCEPT}"), "").await;
    let mut one = futures::stream::iter([Ok(old.bytes)]);
    let (kind, status) = frame(&mut one, &mut Vec::new()).await.unwrap();
    assert_eq!((old.code, kind.as_str(), &status["code"]), (200, "ERROR", &json!(410)));
    let yaml = c.say(&format!("GET {MAPS}?watch=1\naccept: application/yaml, application/json;q=0.5"), "").await;
    assert_eq!(yaml.code, 406);
}

/// Objects that others have written into the store are not what their kind says.
#[tokio::test(start_paused = true)]
async fn an_object_that_has_no_form_is_said() {
    let c = Conversation::start().await;
    c.say(&format!("POST {MAPS}"), map("good", 1)).await;
    let broken = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "bad", "namespace": "a"}, "data": {"k": 5}});
    let change = Change::Put { value: broken.to_string().into(), ttl_seconds: None };
    let commit = Commit { key: "/registry/configmaps/a/bad".into(), expect: Expect::Any, change };
    c.server.objects().store.commit(commit).await.unwrap();
    let fits = "the object does not fit its type: the number 5 where another type is expected";
    for path in [format!("GET {MAPS}/bad"), format!("GET {MAPS}")] {
        let answer = ask(&c, &format!("{path}\n{ACCEPT}"), "").await;
        let status = read(&answer.bytes);
        assert_eq!((answer.code, &*answer.media_type), (500, protobuf::MEDIA_TYPE));
        assert!(status["message"].as_str().unwrap().contains(fits), "{status}");
    }
    assert_eq!(ask(&c, &format!("GET {MAPS}/good\n{ACCEPT}"), "").await.code, 200);
    let watch = format!("GET {MAPS}?watch=1&resourceVersion=1&timeoutSeconds=1\n{ACCEPT}");
    let watch = ask(&c, &watch, "").await;
    let (mut one, mut rest) = (futures::stream::iter([Ok(watch.bytes)]), Vec::new());
    assert_eq!(frame(&mut one, &mut rest).await.unwrap().0, "ADDED");
    let (kind, status) = frame(&mut one, &mut rest).await.unwrap();
    assert_eq!((kind.as_str(), &status["code"]), ("ERROR", &json!(500)));
}

//! Work without a bound: documents made to take all the time and memory there is. While each is sent a second client reads
//! on, and the server's memory stays below [`MEMORY_MAX`].

use bytes::Bytes;
use json::{Value, json};
use tokio::task::JoinHandle;

use crate::caller::{Answer, Caller};
use crate::server::Server;

/// The server's resident memory at its highest.
const MEMORY_MAX: u64 = 1 << 30;

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

const MAPS: &str = "/api/v1/namespaces/prod/configmaps";
const VICTIM: &str = "/api/v1/namespaces/prod/configmaps/victim";
const PODS: &str = "/api/v1/namespaces/prod/pods";
const SERVICES: &str = "/api/v1/namespaces/prod/services";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/prod/roles";
const REVISIONS: &str = "/apis/apps/v1/namespaces/prod/controllerrevisions";

#[derive(Clone)]
struct Attack {
    name: &'static str,
    method: &'static str,
    path: &'static str,
    media_type: &'static str,
    body: Bytes,
    /// The expected answer: code and part of the message.
    expected: (u16, &'static str),
}

fn attack(
    name: &'static str,
    (method, path, media_type): (&'static str, &'static str, &'static str),
    body: impl Into<Bytes>,
    expected: (u16, &'static str),
) -> Attack {
    Attack { name, method, path, media_type, body: body.into(), expected }
}

fn text(value: &Value) -> String {
    value.to_string()
}

fn patches() -> Vec<Attack> {
    let double: Vec<Value> =
        (0..28).map(|i| json!({"op": "copy", "from": "/data", "path": format!("/data/c{i}")})).collect();
    let long_list = vec![0; 700_000];
    let mut shifts = vec![json!({"op": "add", "path": "/data", "value": long_list})];
    shifts.extend(vec![json!({"op": "remove", "path": "/data/0"}); 9_999]);
    let chain = (0..50).fold(json!({}), |inner, _| json!({"x": inner}));
    let mut deeper = vec![json!({"op": "add", "path": "/a", "value": {}})];
    for _ in 0..500 {
        deeper.push(json!({"op": "add", "path": "/b", "value": chain}));
        deeper.push(json!({"op": "move", "from": "/a", "path": format!("/b{}", "/x".repeat(51))}));
        deeper.push(json!({"op": "move", "from": "/b", "path": "/a"}));
    }
    let finalizers = |count| (0..count).map(|i| Value::from(format!("a/{i}"))).collect::<Vec<_>>();
    let labels: String = (0..150_000).map(|i| format!("\"l{i}\":\"\",")).collect();
    let rejected = "the server rejected our request due to an error in our request";
    let too_large = "Request entity too large: ";
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "victim", "finalizers": finalizers(100_000)}});
    vec![
        attack("doubling copies", ("PATCH", VICTIM, JSON_PATCH), text(&double.into()), (422, rejected)),
        attack(
            "too many operations",
            ("PATCH", VICTIM, JSON_PATCH),
            text(&vec![json!({"op": "test", "path": "/a", "value": 1}); 10_001].into()),
            (413, "The allowed maximum operations in a JSON patch is 10000, got 10001"),
        ),
        attack("a list shifted", ("PATCH", VICTIM, JSON_PATCH), text(&shifts.into()), (422, rejected)),
        attack("ever deeper", ("PATCH", VICTIM, JSON_PATCH), text(&deeper.into()), (422, rejected)),
        attack(
            "finalizers merged",
            ("PATCH", VICTIM, STRATEGIC_PATCH),
            text(&json!({"metadata": {"finalizers": finalizers(170_000)}})),
            (413, too_large),
        ),
        attack(
            "labels merged",
            ("PATCH", VICTIM, MERGE_PATCH),
            format!("{{\"metadata\":{{\"labels\":{{{labels}\"a\":\"\"}}}}}}"),
            (413, too_large),
        ),
        attack(
            "finalizers applied",
            ("PATCH", "/api/v1/namespaces/prod/configmaps/victim?fieldManager=mallory&force=true", APPLY_PATCH),
            text(&applied),
            (413, too_large),
        ),
    ]
}

fn documents() -> Vec<Attack> {
    let pod =
        |containers: String| format!("{{\"metadata\":{{\"name\":\"p\"}},\"spec\":{{\"containers\":[{containers}]}}}}");
    let ports: String = (1..40_000).map(|i| format!("{{\"containerPort\":{i},\"name\":\"A\"}},")).collect();
    let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..=9 {
        let aliases = vec![format!("*a{}", level - 1); 9].join(",");
        laughs.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let duplicates =
        format!("{{\"data\":{{\"{}\":{{{}\"a\":1}}}}}}", "n".repeat(1_000_000), "\"a\":1,".repeat(250_000));
    let managers: Vec<Value> = (0..15_000)
        .map(|i| {
            json!({"manager": format!("m{i}"), "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:data": {format!("f:k{i}"): {}}}})
        })
        .collect();
    let managed = json!({"metadata": {"name": "managed", "managedFields": managers}, "data": {"a": "b"}});
    let owners: String = (0..20_000)
        .map(|i| {
            format!("{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"name\":\"p{i}\",\"uid\":\"{i}\",\"controller\":true}},")
        })
        .collect();
    let owned = format!("{{\"metadata\":{{\"name\":\"o\",\"ownerReferences\":[{}]}}}}", owners.trim_end_matches(','));
    let same = vec!["{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"name\":\"p\",\"uid\":\"1\"}"; 20_000].join(",");
    let same = format!("{{\"metadata\":{{\"name\":\"same\",\"ownerReferences\":[{same}]}}}}");
    let names: Vec<String> = (0..20_000).map(|i| format!("n{i}")).collect();
    let role = json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": names, "verbs": names}]});
    let mut node_ports: Vec<Value> =
        (1..=10_000).map(|i| json!({"port": i, "nodePort": 30000, "protocol": "UDP"})).collect();
    node_ports.extend((1..=10_000).map(|i| json!({"port": 60_000, "protocol": format!("P{i}")})));
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": node_ports}});
    let revision = |data: String| format!("{{\"metadata\":{{\"name\":\"r\"}},\"revision\":1,\"data\":{data}}}");
    vec![
        attack(
            "a Pod of 40,000 ports",
            ("POST", PODS, JSON),
            pod(format!("{{\"name\":\"c\",\"image\":\"i\",\"ports\":[{ports}{{}}]}}")),
            (422, "more errors"),
        ),
        attack(
            "empty containers",
            ("POST", PODS, JSON),
            pod(format!("{}{{}}", "{},".repeat(900_000))),
            (413, "the document has too many values"),
        ),
        attack(
            "almost too many containers",
            ("POST", PODS, JSON),
            pod(format!("{}{{}}", "{},".repeat(80_000))),
            (422, "more errors"),
        ),
        attack(
            "almost too many objects",
            ("POST", REVISIONS, JSON),
            revision(format!("{{\"a\":[{}0]}}", "{\"a\":1},".repeat(80_000))),
            (201, ""),
        ),
        attack("deep lists", ("POST", REVISIONS, JSON), revision(format!("{{\"a\":{}", "[".repeat(1_000_000))), (400, "exceeded max depth")),
        attack("deep lists in YAML", ("POST", REVISIONS, YAML), format!("data: {}", "[".repeat(500_000)), (400, "")),
        attack("deep blocks in YAML", ("POST", REVISIONS, YAML), format!("data:\n {}", "- ".repeat(500_000)), (400, "")),
        attack("anchors", ("POST", MAPS, YAML), laughs, (400, "")),
        attack("duplicates below a long name", ("POST", MAPS, JSON), duplicates, (400, "cannot unmarshal object")),
        attack("many managers", ("POST", MAPS, JSON), text(&managed), (201, "")),
        attack("many owners", ("POST", MAPS, JSON), owned, (422, "Only one reference can have Controller set to true")),
        attack("one owner many times", ("POST", MAPS, JSON), same, (201, "")),
        attack(
            "a huge exponent",
            ("POST", PODS, JSON),
            pod("{\"name\":\"c\",\"image\":\"i\",\"resources\":{\"limits\":{\"cpu\":\"1.5e2147483647\",\"memory\":\"-1.5e-2147483648\"}}}".to_owned()),
            (422, "must be greater than or equal to 0"),
        ),
        attack("rules that multiply", ("POST", ROLES, JSON), text(&role), (403, "attempting to grant RBAC permissions")),
        attack("a Service of 20,000 ports", ("POST", SERVICES, JSON), text(&service), (422, "")),
        attack("a long number", ("POST", REVISIONS, JSON), revision(format!("{{\"a\":{}}}", "9".repeat(2_000_000))), (400, "")),
    ]
}

async fn prepared() -> Server {
    let server = Server::start().await;
    server.namespace("prod").await;
    let resources =
        ["configmaps", "pods", "services", "endpoints", "controllerrevisions.apps", "roles.rbac.authorization.k8s.io"];
    server.allow("mallory", "prod", &["get", "list", "create", "patch", "update", "delete"], &resources).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let made = server.admin().create("/api/v1/namespaces/prod/serviceaccounts", &account).await;
    assert!(matches!(made.code, 201 | 409), "{}", made.text());
    let victim = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "victim"}, "data": {"a": "x".repeat(1000)}});
    server.admin().create(MAPS, &victim).await.expect(201);
    server
}

/// Sends the attack. An attacker who waits in vain waits for nothing: `None` is no answer in time.
fn sent(caller: Caller, attack: Attack) -> JoinHandle<Option<Answer>> {
    tokio::spawn(async move {
        caller.try_send(attack.method, attack.path, &[("content-type", attack.media_type)], attack.body).await.ok()
    })
}

/// A second client's answers come within the callers' patience, at least once and as long as the attacks go on.
async fn read_on(server: &Server, attacks: &[JoinHandle<Option<Answer>>]) {
    let bystander = server.admin();
    loop {
        bystander.get(VICTIM).await.expect(200);
        server.nobody().get("/healthz").await.expect(200);
        if attacks.iter().all(JoinHandle::is_finished) {
            return;
        }
    }
}

fn memory_is_bounded(server: &Server, name: &str) {
    let memory = server.memory("VmHWM");
    assert!(memory < MEMORY_MAX, "{name}: {} MiB", memory >> 20);
}

#[tokio::test]
async fn no_document_takes_all_time_or_memory() {
    let server = prepared().await;
    let mallory = server.user("mallory");
    for attack in patches().into_iter().chain(documents()) {
        let mut running = [sent(mallory.clone(), attack.clone())];
        read_on(&server, &running).await;
        let answer = (&mut running[0]).await.unwrap().unwrap_or_else(|| panic!("{}: no answer", attack.name));
        let shown = answer.text();
        assert_eq!(answer.code, attack.expected.0, "{}: {}", attack.name, &shown[..shown.len().min(500)]);
        let message = if answer.code == 201 { String::new() } else { answer.message() };
        assert!(message.contains(attack.expected.1), "{}: {}", attack.name, &message[..message.len().min(500)]);
        assert!(answer.body.len() < 4 << 20, "{}: the answer has {} bytes", attack.name, answer.body.len());
        memory_is_bounded(&server, attack.name);
    }
}

/// All of them at once: few are worked on, others wait, the rest is told to come again.
#[tokio::test]
async fn many_large_documents_wait_their_turn() {
    let server = prepared().await;
    let all: Vec<Attack> = patches().into_iter().cycle().take(64).collect();
    let running: Vec<_> = all.iter().map(|attack| sent(server.user("mallory"), attack.clone())).collect();
    read_on(&server, &running).await;
    let mut answered = 0;
    for (attack, answer) in all.iter().zip(running) {
        let Some(answer) = answer.await.unwrap() else { continue };
        assert!([attack.expected.0, 429].contains(&answer.code), "{}: {}", attack.name, answer.code);
        answered += usize::from(answer.code != 429);
    }
    assert!(answered > 0, "nothing was worked on");
    memory_is_bounded(&server, "all at once");
}

/// Every address with every port of an Endpoints object would be a hundred million.
#[tokio::test]
async fn tables_make_what_they_show() {
    let server = prepared().await;
    let mallory = server.user("mallory");
    let list = |count: usize, item: Value| vec![item; count];
    let endpoints = json!({"metadata": {"name": "e"}, "subsets": [{
        "addresses": list(10_000, json!({"ip": "10.0.0.1"})), "ports": list(10_000, json!({"name": "a", "port": 80}))}]});
    mallory.create("/api/v1/namespaces/prod/endpoints", &endpoints).await.expect(201);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let shown =
        mallory.send("GET", "/api/v1/namespaces/prod/endpoints", &[("accept", table)], "").await.expect(200).json();
    let rows = shown["rows"].as_array().unwrap();
    assert!(
        rows.iter().any(|row| row["cells"][1].as_str().is_some_and(|c| c.ends_with(" + 99999997 more..."))),
        "{rows:?}"
    );
    memory_is_bounded(&server, "a table");
}

/// A list of empty objects that each get a large default would be a thousand times its own size.
#[tokio::test]
async fn defaults_of_a_definition_do_not_multiply() {
    let server = prepared().await;
    let item = json!({"type": "object", "properties": {"text": {"type": "string", "default": "x".repeat(200_000)}}});
    let spec = json!({"type": "object", "properties": {"items": {"type": "array", "items": item, "nullable": true}}});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "fills.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "fills", "kind": "Fill"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    let admin = server.admin();
    admin.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.expect(201);
    server.allow("mallory", "prod", &["create"], &["fills.example.com"]).await;
    let mallory = server.user("mallory");
    let fill = |count: usize| {
        let items = vec![json!({}); count];
        json!({"apiVersion": "example.com/v1", "kind": "Fill", "metadata": {"generateName": "a"}, "spec": {"items": items}})
    };
    const FILLS: &str = "/apis/example.com/v1/namespaces/prod/fills";
    while mallory.create(FILLS, &fill(2)).await.code == 404 {}
    mallory.create(FILLS, &fill(2)).await.expect(201);
    let many = Attack {
        name: "empty items with defaults",
        method: "POST",
        path: FILLS,
        media_type: JSON,
        body: text(&fill(80_000)).into(),
        expected: (413, "Request entity too large: "),
    };
    let mut running = [sent(mallory, many.clone())];
    read_on(&server, &running).await;
    let answer = (&mut running[0]).await.unwrap().expect("an answer");
    assert_eq!(answer.code, many.expected.0, "{}", &answer.text()[..200]);
    assert!(answer.message().starts_with(many.expected.1), "{}", answer.message());
    memory_is_bounded(&server, many.name);
}

/// Bodies are taken as they are: nothing is unpacked.
#[tokio::test]
async fn packed_bodies_are_not_unpacked() {
    let server = prepared().await;
    // An empty object, packed.
    let packed: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xab, 0xae, 5, 0, 0x43, 0xbf, 0xa6, 0xa3, 2, 0, 0, 0];
    let headers = [("content-type", JSON), ("content-encoding", "gzip")];
    let answer = server.user("mallory").send("POST", MAPS, &headers, Bytes::from_static(packed)).await;
    assert!(matches!(answer.code, 400 | 415), "{}", answer.text());
}

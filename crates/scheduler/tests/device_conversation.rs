//! The running scheduler's writes about claims on devices, against a server that keeps claims and shows their changes.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use api::features::{Feature, Features};
use bytes::Bytes;
use client::{Body, Caches};
use clock::Duration;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use json::{Value, json};
use parking_lot::Mutex;
use scheduler::{Metrics, Settings, run};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// One node with a device, a Pod, the class `gpu`, and claims.
#[derive(Default)]
struct Server {
    pod: Value,
    devices: Value,
    claims: BTreeMap<String, Value>,
    revision: u64,
    watchers: Vec<UnboundedSender<Bytes>>,
    writes: Vec<String>,
    /// The condition that the driver sets when somebody waits for it.
    sets: Option<&'static str>,
    refuses_bindings: bool,
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn answer(code: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
    Response::builder().status(code).body(body).expect("a response")
}

fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else { return *into = patch.clone() };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in fields {
        match value {
            Value::Null => _ = into.as_object_mut().map(|object| object.remove(name)),
            value => merge(&mut into[name], value),
        }
    }
}

impl Server {
    fn list(&self, plural: &str) -> Vec<Value> {
        let pool = json!({"name": "n", "generation": 1, "resourceSliceCount": 1});
        match plural {
            "nodes" => vec![json!({"metadata": {"name": "n", "resourceVersion": "1"},
                "status": {"allocatable": {"cpu": "4", "pods": "9"}}})],
            "pods" => vec![self.pod.clone()],
            "deviceclasses" => vec![json!({"metadata": {"name": "gpu", "resourceVersion": "1"},
                "spec": {"extendedResourceName": "a.io/gpu"}})],
            "resourceslices" => vec![json!({"metadata": {"name": "s", "resourceVersion": "1"},
                "spec": {"driver": "drv", "pool": pool, "nodeName": "n", "devices": self.devices}})],
            "resourceclaims" => self.claims.values().cloned().collect(),
            _ => Vec::new(),
        }
    }

    fn show(&mut self, sort: &str, claim: &Value) {
        let line = Bytes::from(format!("{}\n", json!({"type": sort, "object": claim})));
        self.watchers.retain(|watcher| watcher.send(line.clone()).is_ok());
    }

    fn write(&mut self, name: &str, change: impl FnOnce(&mut Value)) -> Value {
        self.revision += 1;
        let (revision, sort) = (100 + self.revision, if self.claims.contains_key(name) { "MODIFIED" } else { "ADDED" });
        let claim = self.claims.entry(name.to_owned()).or_default();
        change(claim);
        claim["metadata"]["resourceVersion"] = json!(revision.to_string());
        let claim = claim.clone();
        self.show(sort, &claim);
        claim
    }

    fn handle(&mut self, method: &Method, path: &[&str], body: &Value) -> (u16, Value) {
        match (method, path) {
            (&Method::POST, [.., "resourceclaims"]) => {
                let (meta, requests) = (&body["metadata"], &body["spec"]["devices"]["requests"]);
                self.writes.push(format!("create {} for {}", meta["generateName"], meta["ownerReferences"][0]["uid"]));
                self.writes.push(format!("annotations {}, requests {requests}", meta["annotations"]));
                let claim = self.write("made", |claim| {
                    *claim = body.clone();
                    claim["metadata"]["name"] = json!("made");
                    claim["metadata"]["uid"] = json!("made");
                });
                (201, claim)
            }
            (&Method::PATCH, [.., "resourceclaims", name]) => {
                self.writes.push(format!("finalizers of {name} {}", body["metadata"]["finalizers"]));
                (
                    200,
                    self.write(name, |claim| {
                        merge(claim, &json!({"metadata": {"finalizers": body["metadata"]["finalizers"]}}))
                    }),
                )
            }
            (&Method::PATCH, [.., "resourceclaims", name, "status"]) => {
                let status = &body["status"];
                self.writes.push(format!(
                    "{name} gets {} since {}, users {}",
                    status["allocation"]["devices"]["results"][0]["device"],
                    status["allocation"]["allocationTimestamp"],
                    status["reservedFor"][0]["name"]
                ));
                (200, self.write(name, |claim| merge(claim, &json!({"status": status}))))
            }
            (&Method::DELETE, [.., "resourceclaims", name]) => {
                self.writes.push(format!("delete {name}"));
                self.revision += 1;
                let mut claim = self.claims.remove(*name).unwrap_or_default();
                claim["metadata"]["resourceVersion"] = json!((100 + self.revision).to_string());
                self.show("DELETED", &claim);
                (200, claim)
            }
            (_, [.., "binding"]) => {
                self.writes.push(format!("bind to {}", body["target"]["name"]));
                let code = if self.refuses_bindings { 500 } else { 201 };
                (code, json!({"kind": "Status", "message": "no", "reason": "InternalError", "code": code}))
            }
            (_, [.., "pods", _, "status"]) => {
                let (claim, condition) =
                    (&body["status"]["extendedResourceClaimStatus"], &body["status"]["conditions"][0]);
                let said = if claim.is_null() {
                    format!("condition {}", condition["message"])
                } else {
                    format!("status {claim}")
                };
                self.writes.push(said);
                (200, json!({"metadata": {"name": "p", "resourceVersion": "9"}}))
            }
            _ => {
                self.writes.push(format!("event {} {}", body["reason"], body["note"]));
                if let Some(condition) = self.sets.filter(|_| body["reason"] == "BindingConditionsPending") {
                    let told = json!([{"driver": "drv", "pool": "n", "device": "d", "conditions": [{"type": condition,
                        "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "1970-01-01T00:00:00Z"}]}]);
                    self.write("own", |claim| claim["status"]["devices"] = told);
                }
                (201, json!({"metadata": {"name": "x", "resourceVersion": "6"}}))
            }
        }
    }
}

/// The changes of claims, as they happen.
fn watch(server: &mut Server) -> UnboundedReceiver<Bytes> {
    let (sender, receiver) = unbounded_channel();
    server.watchers.push(sender);
    receiver
}

async fn serve(server: Arc<Mutex<Server>>, request: Request<Body>) -> Result<Answer, Infallible> {
    let (parts, body) = request.into_parts();
    let segments: Vec<&str> = parts.uri.path().split('/').collect();
    if parts.method == Method::GET {
        let mut held = server.lock();
        let last = segments.last().copied().unwrap_or_default();
        if parts.uri.query().is_some_and(|q| q.contains("watch=")) {
            let changes = if last == "resourceclaims" { watch(&mut held) } else { watch(&mut Server::default()) };
            let quiet = last != "resourceclaims";
            let frames = futures::stream::unfold(changes, move |mut changes| async move {
                match changes.recv().await {
                    Some(line) => Some((Ok::<_, Infallible>(Frame::data(line)), changes)),
                    None if quiet => std::future::pending().await,
                    None => None,
                }
            });
            return Ok(Response::new(StreamBody::new(frames).boxed_unsync()));
        }
        if let [.., "resourceclaims", name] = segments.as_slice() {
            let missing = json!({"kind": "Status", "message": "no", "reason": "NotFound", "code": 404});
            return Ok(held.claims.get(*name).map_or_else(|| answer(404, &missing), |claim| answer(200, claim)));
        }
        let revision = (100 + held.revision).to_string();
        return Ok(answer(200, &json!({"metadata": {"resourceVersion": revision}, "items": held.list(last)})));
    }
    let bytes = body.collect().await.expect("a whole body").to_bytes();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let (code, said) = server.lock().handle(&parts.method, &segments, &body);
    Ok(answer(code, &said))
}

/// The writes within some time, and the page of metrics.
async fn told(server: Server, features: &[Feature], seconds: u64) -> (Vec<String>, String) {
    clock::simulate(clock::Timestamp::UNIX_EPOCH, 1);
    let server = Arc::new(Mutex::new(server));
    let (shared, metrics) = (server.clone(), Arc::<Metrics>::default());
    let client = client::in_process(tower::service_fn(move |request| serve(shared.clone(), request)));
    let features = features.iter().fold(Features::default(), |all, feature| all.with(*feature, true));
    let scheduling = run(Caches::new(client), Settings { features, ..Settings::default() }, metrics.clone());
    assert!(clock::timeout(Duration::from_secs(seconds), scheduling).await.is_err(), "it runs for ever");
    let writes = std::mem::take(&mut server.lock().writes);
    (writes, metrics.render())
}

fn pod(spec: Value) -> Value {
    let mut pod =
        json!({"metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "2"}, "spec": spec});
    if pod["spec"].get("containers").is_none() {
        pod["spec"]["containers"] = json!([{"name": "c"}]);
    }
    pod
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_made_for_extended_resources() {
    let asks = json!({"requests": {"cpu": "1", "a.io/gpu": "1"}});
    let containers = json!([{"name": "main", "resources": asks}]);
    let server = || Server {
        pod: pod(json!({"initContainers": [{"name": "first", "resources": asks}], "containers": containers})),
        devices: json!([{"name": "d"}]),
        ..Server::default()
    };
    let (writes, page) = told(server(), &[Feature::DRAExtendedResource], 60).await;
    let made = [
        r#"create "p-extended-resources-" for "u""#,
        "annotations {\"resource.kubernetes.io/extended-resource-claim\":\"true\"}, requests [{\"exactly\":\
         {\"allocationMode\":\"ExactCount\",\"count\":1,\"deviceClassName\":\"gpu\"},\"name\":\"container-1-request-0\"}]",
        r#"finalizers of made ["resource.kubernetes.io/delete-protection"]"#,
        r#"made gets "d" since null, users "p""#,
        "status {\"requestMappings\":[{\"containerName\":\"main\",\"requestName\":\"container-1-request-0\",\
         \"resourceName\":\"a.io/gpu\"},{\"containerName\":\"first\",\"requestName\":\"container-1-request-0\",\
         \"resourceName\":\"a.io/gpu\"}],\"resourceClaimName\":\"made\"}",
        r#"bind to "n""#,
    ];
    assert_eq!(writes[..6], made);
    assert!(writes[6].contains("Successfully assigned"), "{writes:?}");
    assert!(page.contains("scheduler_resourceclaim_creates_total{status=\"success\"} 1"), "{page}");
    // A binding that fails leaves a claim behind, which is deleted before the next attempt.
    let (writes, _) = told(Server { refuses_bindings: true, ..server() }, &[Feature::DRAExtendedResource], 8).await;
    assert_eq!(writes[..6], made);
    let deleted = writes.iter().position(|write| write == "delete made").expect("the claim is deleted");
    let again = writes.iter().rposition(|write| write.starts_with("create")).unwrap();
    assert!(deleted < again, "{writes:#?}");
    assert_eq!(writes[deleted - 1], "finalizers of made []");
}

#[tokio::test(start_paused = true)]
async fn a_binding_waits_for_the_conditions_of_devices() {
    let check = async |sets: Option<&'static str>, seconds: u64, expected: &[&str]| {
        let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu", "count": 1}});
        let own = json!({"metadata": {"name": "own", "namespace": "d", "uid": "own", "resourceVersion": "3"},
            "spec": {"devices": {"requests": [request]}}});
        let device = json!({"name": "d", "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]});
        let server = Server {
            pod: pod(json!({"resourceClaims": [{"name": "x", "resourceClaimName": "own"}]})),
            devices: json!([device]),
            claims: [("own".to_owned(), own)].into(),
            sets,
            ..Server::default()
        };
        let (writes, _) = told(server, &[Feature::DRADeviceBindingConditions], seconds).await;
        let begun = [
            r#"finalizers of own ["resource.kubernetes.io/delete-protection"]"#,
            r#"own gets "d" since "1970-01-01T00:00:00Z", users "p""#,
            r#"event "BindingConditionsPending" "waiting for binding conditions for device on node n""#,
        ];
        assert_eq!(writes[..3], begun);
        for said in expected {
            assert!(writes.iter().any(|write| write.contains(said)), "{said}: {writes:#?}");
        }
        writes.iter().filter(|write| write.starts_with("bind")).count()
    };
    assert_eq!(check(Some("Attached"), 60, &["Successfully assigned"]).await, 1);
    assert_eq!(check(None, 300, &[]).await, 0, "it waits");
    let given_up = r#"own gets null since null, users null"#;
    let failed = r#"running PreBind plugin \"DynamicResources\": claim own binding failed: reason=R, message=\"m\""#;
    assert_eq!(check(Some("Broken"), 4, &[failed, given_up]).await, 0);
    assert_eq!(check(None, 640, &["binding timeout", given_up]).await, 0);
}

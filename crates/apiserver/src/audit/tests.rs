//! The events of a whole server about the requests that it gets.

use std::sync::Arc;

use api::Value;
use clock::Duration;
use http::Request;
use json::json;
use parking_lot::Mutex;

use super::{
    Auditor, Settings,
    batch::{self, Batches},
    event::{Course, Event, Facts, Told},
    metrics::{Metrics, Part},
    output::Output,
    policy::{Level, Policy, Stage},
    sink::{Mode, Sink, Truncation, Until},
    webhook::{Deliver, Webhook},
};
use crate::{Server, User, http::body::Body, tests::assembled};

/// The lists that a webhook was sent, and whether it takes them.
#[derive(Clone, Default)]
struct Receiver {
    lists: Arc<Mutex<Vec<Vec<Value>>>>,
    refuses: Arc<Mutex<bool>>,
}

impl Receiver {
    fn webhook(&self) -> Webhook {
        let receiver = self.clone();
        let deliver: Deliver = Arc::new(move |text| {
            let receiver = receiver.clone();
            Box::pin(async move {
                if *receiver.refuses.lock() {
                    return Err("it answered 500".to_owned());
                }
                let list = json::parse(std::str::from_utf8(&text).unwrap()).unwrap();
                assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("audit.k8s.io/v1")));
                receiver.lists.lock().push(list["items"].as_array().unwrap().clone());
                Ok(())
            })
        });
        Webhook { deliver, backoff: Duration::from_secs(1) }
    }

    /// The events so far, which are forgotten.
    fn events(&self) -> Vec<Value> {
        std::mem::take(&mut *self.lists.lock()).into_iter().flatten().collect()
    }
}

struct Scene {
    server: Server,
    told: Receiver,
}

impl Scene {
    async fn start(rules: &str, mode: Mode) -> Scene {
        clock::simulate(clock::Timestamp::from_second(1_700_000_000).unwrap(), 1);
        let told = Receiver::default();
        let policy = Policy::parse(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
        let settings = Settings { policy, log: None, webhook: Some((told.webhook(), mode, None)) };
        let server = crate::assemble(crate::Options { audit: Some(settings), ..assembled::options() }).await.unwrap();
        told.events();
        Scene { server, told }
    }

    async fn send(&self, user: &str, head: &str, body: Value) -> http::Response<Body> {
        let mut lines = head.lines();
        let (method, uri) = lines.next().unwrap().split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(uri).header("user-agent", "test/1");
        for line in lines {
            let (name, value) = line.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        request = match user {
            "root" => request.extension(Arc::new(User::new("root", ["system:masters"]))),
            "" => request,
            token => request.header("authorization", format!("Bearer {token}")),
        };
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.server.handle(request.body(body).unwrap()).await
    }

    /// The code of the answer, and the events of the request.
    async fn say(&self, user: &str, head: &str, body: Value) -> (u16, Vec<Value>) {
        let answer = self.send(user, head, body).await;
        let code = answer.status().as_u16();
        answer.into_body().collect(1 << 24).await.unwrap();
        (code, self.told.events())
    }
}

fn stages(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["stage"].as_str().unwrap()).collect()
}

fn map(name: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"a": "b"}})
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(start_paused = true)]
async fn a_request_is_told_of_from_its_beginning_to_its_end() {
    let scene = Scene::start("rules: [{level: RequestResponse}]", Mode::Blocking).await;
    let head = format!("POST {MAPS}?fieldManager=me\naudit-id: mine\nx-forwarded-for: 10.1.1.1");
    let answer = scene.send("root", &head, map("one")).await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["audit-id"]),
        (201, &http::HeaderValue::from_static("mine"))
    );
    let events = scene.told.events();
    assert_eq!(stages(&events), ["RequestReceived", "ResponseComplete"]);
    let (begin, end) = (&events[0], &events[1]);
    assert!(begin.get("responseStatus").is_none() && begin.get("requestObject").is_none());
    assert_eq!(begin["stageTimestamp"], begin["requestReceivedTimestamp"]);
    assert_eq!(end["auditID"], "mine");
    assert_eq!(end["requestURI"], format!("{MAPS}?fieldManager=me"));
    assert_eq!((&end["verb"], &end["userAgent"]), (&json!("create"), &json!("test/1")));
    assert_eq!(end["user"], json!({"username": "root", "groups": ["system:masters"]}));
    assert_eq!(end["sourceIPs"], json!(["10.1.1.1", "127.0.0.1"]));
    let about = json!({"resource": "configmaps", "namespace": "default", "name": "one", "apiVersion": "v1"});
    assert_eq!(end["objectRef"], about);
    assert_eq!(end["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert_eq!(end["requestObject"]["data"], json!({"a": "b"}));
    assert!(end["requestObject"]["metadata"].get("managedFields").is_none());
    assert_eq!(end["responseObject"]["metadata"]["managedFields"][0]["manager"], "me");
    let allowed = json!({"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": ""});
    assert_eq!(end["annotations"], allowed);
    let patch = json!({"data": {"a": null}});
    let head = format!("PATCH {MAPS}/one\ncontent-type: application/merge-patch+json");
    let (code, events) = scene.say("root", &head, patch.clone()).await;
    assert_eq!((code, &events[1]["requestObject"]), (200, &patch));
    let (_, events) = scene.say("root", &format!("DELETE {MAPS}/one"), Value::Null).await;
    let status = &events[1]["responseStatus"];
    assert_eq!(
        (&status["status"], &status["details"]["name"], &status["code"]),
        (&json!("Success"), &json!("one"), &json!(200))
    );
    assert!(events[1].get("requestObject").is_none());
    let (_, events) = scene.say("root", &format!("GET {MAPS}/one"), Value::Null).await;
    let status = &events[1]["responseStatus"];
    assert_eq!((&status["reason"], &status["code"]), (&json!("NotFound"), &json!(404)));
    let (_, events) = scene.say("root", "GET /version", Value::Null).await;
    assert!(events[1].get("objectRef").is_none() && events[1].get("responseObject").is_none());
}

/// By the names in its path, as authorizers are asked about it: who may not ask does not learn that nothing is there.
#[tokio::test(start_paused = true)]
async fn what_nothing_serves_is_told_of_by_its_names() {
    let rules = "rules: [{level: None, resources: [{group: other.io}]}, {level: RequestResponse}]";
    let scene = Scene::start(rules, Mode::Blocking).await;
    let (code, events) = scene.say("root", "GET /apis/a.io/v1/namespaces/n/things/t/more", Value::Null).await;
    let about = json!({"resource": "things", "namespace": "n", "name": "t", "apiGroup": "a.io", "apiVersion": "v1",
        "subresource": "more"});
    assert_eq!((code, &events[1]["objectRef"], &events[1]["verb"]), (404, &about, &json!("get")));
    assert_eq!(events[1]["annotations"]["authorization.k8s.io/decision"], "allow");
    let (code, events) = scene.say("root", "GET /apis/a.io/v1/things?watch=1", Value::Null).await;
    assert_eq!((code, &events[1]["verb"]), (404, &json!("watch")));
    assert_eq!(stages(&events), ["RequestReceived", "ResponseStarted", "ResponseComplete"]);
    assert_eq!(scene.say("root", "GET /apis/other.io/v1/things", Value::Null).await.1, Vec::<Value>::new());
    let (code, events) = scene.say("", "DELETE /apis/a.io/v1/things", Value::Null).await;
    let why = "things.a.io is forbidden: User \"system:anonymous\" cannot deletecollection resource \"things\" in API group \
               \"a.io\" at the cluster scope";
    assert_eq!((code, &events[1]["responseStatus"]["message"]), (403, &json!(why)));
    assert_eq!(events[1]["annotations"]["authorization.k8s.io/decision"], "forbid");
    let (code, events) = scene.say("", "GET /nothing", Value::Null).await;
    let why = "forbidden: User \"system:anonymous\" cannot get path \"/nothing\"";
    assert_eq!((code, &events[1]["responseStatus"]["message"]), (403, &json!(why)));
    assert!(events[1].get("objectRef").is_none());
}

#[tokio::test(start_paused = true)]
async fn an_object_is_told_of_as_it_was_understood() {
    let scene = Scene::start("omitManagedFields: true\nrules: [{level: RequestResponse}]", Mode::Blocking).await;
    let services = "/api/v1/namespaces/default/services";
    let given = json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "s", "uid": "mine"},
        "spec": {"ports": [{"port": 80}], "type": "ExternalName", "externalName": "a.b"}});
    let defaulted = |event: &Value| {
        let asked = &event["requestObject"];
        assert_eq!(
            (&asked["spec"]["ports"][0]["protocol"], &asked["spec"]["sessionAffinity"]),
            (&json!("TCP"), &json!("None"))
        );
        assert_eq!((&asked["metadata"], &event["objectRef"]["uid"]), (&given["metadata"], &json!("mine")));
    };
    let (code, events) = scene.say("root", &format!("POST {services}"), given.clone()).await;
    assert_eq!(code, 201);
    defaulted(&events[1]);
    let (_, events) = scene.say("root", &format!("PUT {services}/s"), given.clone()).await;
    defaulted(&events[1]);
    let mut elsewhere = given.clone();
    elsewhere["metadata"]["namespace"] = json!("other");
    let (code, events) = scene.say("root", &format!("POST {services}"), elsewhere).await;
    assert_eq!((code, &events[1]["objectRef"]["name"]), (400, &json!("s")));
    assert_eq!(events[1]["requestObject"]["metadata"]["namespace"], "other");

    let head = format!("PATCH {MAPS}/one\ncontent-type: application/merge-patch+json");
    for patch in [json!({"data": {"a": null}}), json!({"metadata": {"managedFields": []}})] {
        let (_, events) = scene.say("root", &head, patch.clone()).await;
        let told = if patch.get("data").is_some() { patch } else { json!({"metadata": {}}) };
        assert_eq!(events[1]["requestObject"], told);
    }
    for options in [json!({"dryRun": ["All"]}), json!({"propagationPolicy": "X"})] {
        let (_, events) = scene.say("root", &format!("DELETE {MAPS}/one"), options.clone()).await;
        let asked = &events[1]["requestObject"];
        assert_eq!((&asked["kind"], &asked["apiVersion"]), (&json!("DeleteOptions"), &json!("meta.k8s.io/__internal")));
        assert_eq!(
            (&asked["dryRun"], &asked["propagationPolicy"]),
            (&options["dryRun"], &options["propagationPolicy"])
        );
    }
}

#[tokio::test(start_paused = true)]
async fn answers_about_no_resource_are_told_of_where_they_are_objects() {
    let scene = Scene::start("rules: [{level: RequestResponse}]", Mode::Blocking).await;
    let (_, events) = scene.say("root", "GET /apis/apps/v1", Value::Null).await;
    assert_eq!(events[1]["responseObject"]["kind"], "APIResourceList");
    let (_, events) = scene.say("root", "GET /healthz", Value::Null).await;
    assert!(events[1].get("responseObject").is_none());
    let (code, events) = scene.say("secret", "GET /metrics", Value::Null).await;
    assert_eq!((code, &events[1]["responseObject"]["reason"]), (403, &json!("Forbidden")));
    let (code, events) = scene.say("root", &format!("GET {MAPS}?watch=1&resourceVersion=x"), Value::Null).await;
    assert_eq!((code, &events[1]["stage"]), (400, &json!("ResponseStarted")));
    assert!(events[1..].iter().all(|event| event["responseObject"]["kind"] == "Status"));
}

#[tokio::test(start_paused = true)]
async fn lists_are_told_of_in_json_whatever_the_client_reads() {
    let scene = Scene::start("omitManagedFields: true\nrules: [{level: RequestResponse}]", Mode::Blocking).await;
    for at in 0..40 {
        let object = json!({"metadata": {"name": format!("m{at}")}, "data": {"a": "x".repeat(4000)}});
        scene.say("root", &format!("POST {MAPS}"), object).await;
    }
    for accept in ["application/json", "application/vnd.kubernetes.protobuf", "application/yaml"] {
        let answer =
            scene.send("root", &format!("GET {MAPS}\naccept: {accept}\naccept-encoding: x"), Value::Null).await;
        assert_eq!(answer.headers()["content-type"], accept);
        let plain = answer.into_body().collect(1 << 24).await.unwrap();
        assert_eq!(plain.starts_with(b"k8s\0"), accept.ends_with("protobuf"));
        let events = scene.told.events();
        let items = events[1]["responseObject"]["items"].as_array().unwrap();
        assert!(items.len() >= 40 && items.iter().all(|item| item["metadata"].get("managedFields").is_none()));
        assert_eq!(events[1]["responseObject"]["kind"], "ConfigMapList");
    }
}

#[tokio::test(start_paused = true)]
async fn secrets_stay_below_the_level_that_asks_for_them() {
    let rules = "rules: [{level: Metadata, resources: [{resources: [secrets]}]}, {level: None}]";
    let scene = Scene::start(rules, Mode::Blocking).await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    let secrets = "/api/v1/namespaces/default/secrets";
    let (_, mut events) = scene.say("root", &format!("POST {secrets}"), secret.clone()).await;
    events.extend(scene.say("root", &format!("GET {secrets}"), Value::Null).await.1);
    events.extend(scene.say("root", &format!("PUT {secrets}/s"), secret.clone()).await.1);
    let head = format!("PATCH {secrets}/s\ncontent-type: application/merge-patch+json");
    events.extend(scene.say("root", &head, secret).await.1);
    assert_eq!(events.len(), 8);
    let text = json!(events).to_string();
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "{text}");
    assert_eq!(scene.say("root", &format!("GET {MAPS}"), Value::Null).await.1, Vec::<Value>::new());
}

#[tokio::test(start_paused = true)]
async fn a_watch_has_a_beginning_and_an_end() {
    let scene = Scene::start("omitStages: [RequestReceived]\nrules: [{level: Metadata}]", Mode::Blocking).await;
    let answer = scene.send("root", &format!("GET {MAPS}?watch=1"), Value::Null).await;
    let events = scene.told.events();
    assert_eq!(stages(&events), ["ResponseStarted"]);
    assert_eq!(events[0]["responseStatus"]["code"], 200);
    drop(answer);
    assert_eq!(stages(&scene.told.events()), ["ResponseComplete"]);
    let (code, events) = scene.say("root", &format!("GET {MAPS}?watch=1&resourceVersion=x"), Value::Null).await;
    assert_eq!((code, stages(&events)), (400, vec!["ResponseStarted", "ResponseComplete"]));
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_client_goes_away_is_complete_with_that() {
    let scene = Scene::start("rules: [{level: Metadata}]", Mode::Blocking).await;
    let request = Request::post(MAPS).extension(Arc::new(User::new("root", ["system:masters"])));
    let body = Body::stream(futures::stream::pending());
    let mut asked = Box::pin(scene.server.handle(request.body(body).unwrap()));
    assert!(futures::poll!(&mut asked).is_pending());
    drop(asked);
    let events = scene.told.events();
    assert_eq!(stages(&events), ["RequestReceived", "ResponseComplete"]);
    assert_eq!(events[1]["responseStatus"]["message"], "Connection closed early");
}

#[tokio::test(start_paused = true)]
async fn who_was_refused_and_who_acts_for_whom_is_told() {
    let scene = Scene::start("rules: [{level: Metadata}]", Mode::Blocking).await;
    let (code, events) = scene.say("wrong", &format!("GET {MAPS}"), Value::Null).await;
    assert_eq!((code, stages(&events)), (401, vec!["ResponseStarted"]));
    let reason = "Unauthorized";
    let status = json!({"metadata": {}, "status": "Failure", "message": reason, "reason": reason, "code": 401});
    assert_eq!((&events[0]["user"], &events[0]["responseStatus"]), (&json!({}), &status));
    let (code, events) = scene.say("root", &format!("GET {MAPS}?timeout=x"), Value::Null).await;
    assert_eq!((code, stages(&events), &events[0]["user"]), (400, vec!["ResponseStarted"], &json!({})));
    assert!(events[0]["responseStatus"]["message"].as_str().unwrap().starts_with("invalid timeout"));
    let (code, events) = scene.say("secret", &format!("GET {MAPS}"), Value::Null).await;
    assert_eq!((code, &events[1]["user"]["username"]), (403, &json!("jane")));
    let said = &events[1]["annotations"];
    assert_eq!(said["authorization.k8s.io/decision"], "forbid");
    assert!(events[1]["responseStatus"]["message"].as_str().unwrap().contains("configmaps is forbidden"));
    let head = format!("GET {MAPS}\nimpersonate-user: jane");
    let (code, events) = scene.say("root", &head, Value::Null).await;
    assert_eq!((code, &events[1]["user"]["username"]), (403, &json!("root")));
    let jane = json!({"username": "jane", "groups": ["system:authenticated"]});
    assert_eq!(events[1]["impersonatedUser"], jane);
    let (code, events) = scene.say("secret", &format!("GET {MAPS}\nimpersonate-user: root"), Value::Null).await;
    assert!(code == 403 && events[1].get("impersonatedUser").is_none());
}

#[tokio::test(start_paused = true)]
async fn what_admission_finds_is_told_even_of_what_it_refuses() {
    let scene = Scene::start("rules: [{level: Metadata}]", Mode::Blocking).await;
    let labels =
        json!({"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/audit": "restricted"});
    scene.say("root", "POST /api/v1/namespaces", json!({"metadata": {"name": "n", "labels": labels}})).await;
    let account = json!({"metadata": {"name": "default"}});
    scene.say("root", "POST /api/v1/namespaces/n/serviceaccounts", account).await;
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "i"}]}});
    let (code, events) = scene.say("root", "POST /api/v1/namespaces/n/pods", pod).await;
    assert_eq!(code, 403);
    let said = &events[1]["annotations"];
    assert_eq!(said["pod-security.kubernetes.io/enforce-policy"], "baseline:latest");
    let violations = said["pod-security.kubernetes.io/audit-violations"].as_str().unwrap();
    assert!(violations.starts_with("would violate PodSecurity \"restricted:latest\": "), "{violations}");
    let old = json!({"metadata": {"name": "e"}});
    let (_, events) = scene.say("root", "POST /api/v1/namespaces/n/endpoints", old).await;
    assert_eq!(events[1]["annotations"]["k8s.io/deprecated"], "true");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_kept_refuses_where_that_is_wanted() {
    for (mode, expected) in [(Mode::Blocking, 200), (Mode::BlockingStrict, 500)] {
        let scene = Scene::start("rules: [{level: Metadata}]", mode).await;
        *scene.told.refuses.lock() = true;
        let answer = scene.send("root", &format!("GET {MAPS}?a=b"), Value::Null).await;
        assert_eq!(answer.status().as_u16(), expected);
        if expected == 500 {
            assert_eq!(answer.headers()["content-type"], "text/plain");
            let words = answer.into_body().collect(1 << 24).await.unwrap();
            let expected = format!("Internal Server Error: \"{MAPS}?a=b\": failed to store audit event");
            assert_eq!(std::str::from_utf8(&words), Ok(&*expected));
        }
        let (code, _) = scene.say("root", "GET /metrics", Value::Null).await;
        assert_eq!(code, expected);
        *scene.told.refuses.lock() = false;
        let page = scene.send("root", "GET /metrics", Value::Null).await.into_body().collect(1 << 24).await.unwrap();
        let page = String::from_utf8(page.to_vec()).unwrap();
        let rejected = if expected == 500 { 2 } else { 0 };
        assert!(page.contains(&format!("apiserver_audit_requests_rejected_total {rejected}\n")), "{page}");
        assert!(page.contains("apiserver_audit_level_total{level=\"Metadata\"} "));
        assert!(page.contains("apiserver_audit_error_total{plugin=\"webhook\"} "));
    }
}

fn event(level: Level, object: &str) -> Event {
    let (user, about, received) = (None, None, clock::now());
    let facts =
        Facts { level, id: "id", uri: "/", verb: "get", user, addresses: &[], agent: "".into(), received, about };
    let course = Course { request: Some(json!(object).to_string().into_bytes()), ..Course::default() };
    Event::of(level, &Told::of(&facts, false), &course, None, (Stage::ResponseComplete, Some(received)))
}

/// How many events each batch had.
fn sizes(told: &Receiver) -> Vec<usize> {
    told.lists.lock().iter().map(Vec::len).collect()
}

#[tokio::test(start_paused = true)]
async fn batches_are_full_or_old_and_come_at_a_rate() {
    let (told, metrics) = (Receiver::default(), Arc::<Metrics>::default());
    let wait = Duration::from_secs(30);
    let settings = batch::Settings { buffer: 5, batch: 2, batch_bytes: None, wait, throttle: Some((1.0, 1)) };
    let (batches, work) = Batches::new(settings, Output::Webhook(told.webhook()), metrics.clone());
    let work = tokio::spawn(work);
    for _ in 0..6 {
        batches.add(event(Level::Metadata, ""));
    }
    assert_eq!(metrics.lost_in(Part::Buffered), 1);
    clock::sleep(Duration::from_millis(500)).await;
    assert_eq!(sizes(&told), [2], "the rate allows one");
    clock::sleep(Duration::from_millis(1000)).await;
    assert_eq!(sizes(&told), [2, 2]);
    clock::sleep(Duration::from_secs(20)).await;
    assert_eq!(sizes(&told), [2, 2], "the last one waits for another");
    clock::sleep(Duration::from_secs(11)).await;
    assert_eq!(sizes(&told), [2, 2, 1]);
    batches.add(event(Level::Metadata, ""));
    batches.flush().await;
    assert_eq!(sizes(&told), [2, 2, 1, 1]);
    drop(batches);
    work.await.unwrap();
}

/// Events do not wake their collector one by one; nevertheless none is lost where a batch is larger than the room to wait in.
#[tokio::test(start_paused = true)]
async fn a_batch_may_be_larger_than_the_room_before_it() {
    let (told, metrics) = (Receiver::default(), Arc::<Metrics>::default());
    let wait = Duration::from_secs(30);
    let settings = batch::Settings { buffer: 4, batch: 10, batch_bytes: None, wait, throttle: None };
    let (batches, work) = Batches::new(settings, Output::Webhook(told.webhook()), metrics.clone());
    let work = tokio::spawn(work);
    for _ in 0..10 {
        batches.add(event(Level::Metadata, ""));
        tokio::task::yield_now().await;
    }
    clock::sleep(Duration::from_secs(1)).await;
    assert_eq!((sizes(&told), metrics.lost_in(Part::Buffered)), (vec![10], 0));
    for _ in 0..3 {
        batches.add(event(Level::Metadata, ""));
    }
    drop(batches);
    clock::timeout(Duration::from_secs(1), work).await.expect("the last ones do not wait any more").unwrap();
    assert_eq!(sizes(&told), [10, 3]);
}

#[tokio::test]
async fn it_is_said_why_events_do_not_get_into_a_batch() {
    let (told, metrics) = (Receiver::default(), Arc::<Metrics>::default());
    let settings = batch::Settings { buffer: 1, batch: 1, batch_bytes: None, wait: Duration::ZERO, throttle: None };
    let (batches, work) = Batches::new(settings, Output::Webhook(told.webhook()), metrics);
    let offer = || batches.offer(event(Level::Metadata, ""));
    assert_eq!([offer(), offer()], [Ok(()), Err("audit buffer queue blocked")]);
    drop(work);
    assert_eq!(offer(), Err("audit backend shut down"));
}

#[tokio::test(start_paused = true)]
async fn a_webhook_is_asked_again_until_it_takes_events() {
    let (told, begun) = (Receiver::default(), clock::Instant::now());
    *told.refuses.lock() = true;
    let webhook = Webhook { backoff: Duration::from_secs(10), ..told.webhook() };
    assert!(webhook.send(&[event(Level::Metadata, "")]).await.is_err());
    let (took, pauses) = (begun.elapsed(), [10.0, 15.0, 22.5, 33.75]);
    let least: f64 = pauses.iter().sum();
    assert!(took.as_secs_f64() >= least && took.as_secs_f64() < least * 1.2, "{took:?}");
    *told.refuses.lock() = false;
    assert!(webhook.send(&[event(Level::Metadata, "")]).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn large_events_lose_their_objects() {
    let (told, metrics) = (Receiver::default(), Arc::<Metrics>::default());
    let most = Truncation { event_bytes: 400, batch_bytes: 1000 };
    let output = Output::Webhook(told.webhook());
    let sink = Sink::new(output, Mode::Blocking, Some(most), &metrics, &mut Default::default());
    assert!(sink.take(event(Level::Request, "small"), Until::Written, &metrics).await);
    assert!(sink.take(event(Level::Request, &"x".repeat(500)), Until::Written, &metrics).await);
    let events = told.events();
    assert_eq!((&events[0]["requestObject"], events[0].get("annotations")), (&json!("small"), None));
    assert!(events[1].get("requestObject").is_none());
    assert_eq!(events[1]["annotations"], json!({"audit.k8s.io/truncated": "true"}));
    // At the lowest level there is nothing to leave out.
    assert!(sink.take(event(Level::Metadata, &"x".repeat(500)), Until::Written, &metrics).await);
    assert_eq!((told.events().len(), metrics.lost_in(Part::Truncate)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_the_end() {
    let policy = Policy::parse("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]").unwrap();
    let told = Receiver::default();
    let settings = Settings { policy, log: None, webhook: Some((told.webhook(), Mode::Blocking, None)) };
    let auditor = Auditor::new(settings, &mut Default::default());
    let (parts, ()) = Request::get("/").body(()).unwrap().into_parts();
    let user = Arc::new(User::new("jane", ["dev"]));
    let begun = super::Begun::of(&parts, true);
    let trail = auditor.receive(&parts, &Arc::default(), &user, &begun).await.unwrap();
    trail.panicked("oh").await;
    drop(trail);
    let events = told.events();
    assert_eq!(stages(&events), ["RequestReceived", "Panic"]);
    let expected = json!({"metadata": {}, "status": "Failure", "message": "APIServer panic'd: oh",
        "reason": "InternalError", "code": 500});
    assert_eq!(events[1]["responseStatus"], expected);
}

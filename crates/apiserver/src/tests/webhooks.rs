//! Admission webhooks over HTTPS, through all verbs, with webhooks that are honest, refuse, lie, hang and die.

use std::sync::Arc;

use api::Value;
use json::json;

use super::assembled::Talk;
use super::hook::{Hook, Mood, patched};
use crate::special::connect::connector::Connector;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

struct Scene {
    talk: Talk,
    hook: Hook,
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

fn rule(operations: &[&str], group: &str, resources: &[&str]) -> Value {
    json!([{"operations": operations, "apiGroups": [group], "apiVersions": ["*"], "resources": resources}])
}

impl Scene {
    async fn start() -> Self {
        let tls = pki::client_config_believing_all(None, &["http/1.1"]).unwrap();
        let connector = Connector::new(Arc::new(tls), vec!["InternalIP".to_owned()]);
        Scene { talk: Talk::with(Some(connector)).await, hook: Hook::start().await }
    }

    /// A webhook about creates and updates of ConfigMaps, but for these fields. It is asked at `/NAME`.
    fn webhook(&self, name: &str, fields: Value) -> Value {
        let mut webhook = json!({"name": format!("{name}.example.com"), "clientConfig": self.hook.at(&format!("/{name}")),
            "rules": rule(&["CREATE", "UPDATE"], "", &["configmaps"]), "sideEffects": "None",
            "admissionReviewVersions": ["v1"]});
        for (field, value) in fields.as_object().unwrap() {
            webhook[field] = value.clone();
        }
        webhook
    }

    /// Puts a configuration in force.
    async fn configure(&self, sort: &str, name: &str, webhooks: &[Value]) {
        let path = format!("{GROUP}/{sort}webhookconfigurations");
        let configuration = json!({"metadata": {"name": name}, "webhooks": webhooks});
        let (code, warnings, answer) = self.talk.hear("+root", &format!("POST {path}"), configuration).await;
        assert_eq!((code, warnings), (201, Vec::new()), "{answer}");
        self.talk.0.objects().caught_up().await.unwrap();
    }

    async fn one(&self, sort: &str, fields: Value) {
        self.configure(sort, "one", &[self.webhook("one", fields)]).await;
    }

    async fn ok(&self, head: &str, body: Value) -> Value {
        self.talk.ok("+root", head, body).await
    }

    /// The code and message of a refusal, or an empty one.
    async fn refusal(&self, head: &str, body: Value) -> (u16, String) {
        let (code, answer) = self.talk.say("+root", head, body).await;
        (code, if code < 300 { String::new() } else { answer["message"].as_str().unwrap_or_default().to_owned() })
    }

    /// The request that was asked about last, and nothing before it.
    fn request(&self) -> Value {
        let questions = self.hook.questions();
        assert_eq!(questions.len(), 1, "{questions:?}");
        questions[0].2["request"].clone()
    }
}

#[tokio::test]
async fn a_webhook_sees_the_whole_request_and_changes_the_object() {
    let scene = Scene::start().await;
    scene.one("mutating", json!({})).await;
    scene.hook.be(
        "/one",
        Mood::Saying(|request| {
            let mut response = patched(json!([{"op": "add", "path": "/metadata/labels", "value": {"by": "one"}},
            {"op": "add", "path": "/data/user", "value": request["userInfo"]["username"]}]));
            response["warnings"] = json!(["be careful", "be careful"]);
            response["auditAnnotations"] = json!({"k": "v"});
            response
        }),
    );
    let head = format!("POST {MAPS}?fieldManager=me&fieldValidation=Strict");
    let (code, warnings, made) = scene.talk.hear("+root", &head, map("m")).await;
    assert_eq!((code, warnings), (201, vec!["299 - \"be careful\"".to_owned()]));
    assert_eq!(
        (&made["metadata"]["labels"], &made["data"]),
        (&json!({"by": "one"}), &json!({"a": "1", "user": "root"}))
    );
    let (uri, headers, review) = scene.hook.questions().pop().unwrap();
    assert_eq!(uri, "/one?timeout=10s");
    assert_eq!(
        (headers.get("authorization"), &headers["user-agent"]),
        (None, &"kube-apiserver-admission".parse().unwrap())
    );
    assert_eq!((&review["kind"], &review["apiVersion"]), (&json!("AdmissionReview"), &json!("admission.k8s.io/v1")));
    let mut request = review["request"].clone();
    assert_eq!(request["uid"].as_str().unwrap().len(), 36);
    let seen = request["object"].take();
    assert_eq!((&seen["data"], seen["metadata"].get("uid")), (&json!({"a": "1"}), None));
    request["uid"] = json!("");
    let expected = json!({"uid": "", "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
        "requestKind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "requestResource": {"group": "", "version": "v1", "resource": "configmaps"}, "name": "m", "namespace": "default",
        "operation": "CREATE", "userInfo": {"username": "root", "groups": ["system:masters", "system:authenticated"]},
        "object": null, "oldObject": null, "dryRun": false,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me", "fieldValidation": "Strict"}});
    assert_eq!(request, expected);

    scene.hook.be("/one", Mood::Allowing);
    scene.ok(&format!("PATCH {MAPS}/m\n{MERGE}"), json!({"data": {"a": "2"}})).await;
    let request = scene.request();
    assert_eq!((&request["operation"], &request["options"]["kind"]), (&json!("UPDATE"), &json!("PatchOptions")));
    assert_eq!((&request["oldObject"]["data"]["a"], &request["object"]["data"]["a"]), (&json!("1"), &json!("2")));
    assert_eq!(request["oldObject"]["metadata"]["uid"], made["metadata"]["uid"]);
}

/// Mutating webhooks see the beginning of a name, validating ones the name; nobody names an object twice.
#[tokio::test]
async fn names_are_generated_between_the_two_sorts() {
    let scene = Scene::start().await;
    let rules = rule(&["CREATE"], "", &["configmaps", "namespaces"]);
    scene.one("mutating", json!({ "rules": rules })).await;
    scene.configure("validating", "v", &[scene.webhook("v", json!({ "rules": rules }))]).await;
    let wanted = json!({"metadata": {"generateName": "m-"}});
    let made = scene.ok(&format!("POST {MAPS}"), wanted.clone()).await;
    let names = |questions: Vec<(String, http::HeaderMap, Value)>| {
        let name = |(_, _, review): &(String, http::HeaderMap, Value)| {
            let request = &review["request"];
            (request["name"].clone(), request["object"]["metadata"]["name"].clone())
        };
        questions.iter().map(name).collect::<Vec<_>>()
    };
    let name = made["metadata"]["name"].clone();
    assert!(name.as_str().is_some_and(|name| name.starts_with("m-") && name.len() == 7), "{name}");
    assert_eq!(names(scene.hook.questions()), [(Value::Null, Value::Null), (name.clone(), name)]);
    scene.hook.be("/one", Mood::Saying(|_| patched(json!([{"op": "add", "path": "/metadata/name", "value": "own"}]))));
    assert_eq!(scene.ok(&format!("POST {MAPS}"), wanted.clone()).await["metadata"]["name"], "own");
    scene.hook.be("/one", Mood::Allowing);
    let made = scene.ok("POST /api/v1/namespaces", wanted).await;
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], made["metadata"]["name"]);
}

#[tokio::test]
async fn webhooks_are_asked_in_order_and_again_when_they_want_it() {
    let scene = Scene::start().await;
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    scene.configure("mutating", "b", &[scene.webhook("third", json!({}))]).await;
    let webhooks = [scene.webhook("first", again), scene.webhook("second", json!({}))];
    scene.configure("mutating", "a", &webhooks).await;
    let validating = [scene.webhook("last", json!({}))];
    scene.configure("validating", "a", &validating).await;
    scene.ok(&format!("POST {MAPS}"), map("a")).await;
    assert_eq!(scene.hook.paths(), "/first /second /third /last", "nobody changed anything");
    let count = |request: &Value| {
        let count = request["object"]["data"]["count"].as_str().unwrap_or("0").parse::<u32>().unwrap();
        patched(json!([{"op": "add", "path": "/data/count", "value": (count + 1).to_string()}]))
    };
    scene.hook.be("/first", Mood::Saying(count));
    let made = scene.ok(&format!("POST {MAPS}"), map("b")).await;
    assert_eq!((scene.hook.paths().as_str(), &made["data"]["count"]), ("/first /second /third /last", &json!("1")));
    scene.hook.be("/third", Mood::Saying(count));
    let made = scene.ok(&format!("POST {MAPS}"), map("c")).await;
    assert_eq!(
        (scene.hook.paths().as_str(), &made["data"]["count"]),
        ("/first /second /third /first /last", &json!("3"))
    );
    scene.hook.be("/third", Mood::Saying(|_| patched(json!([{"op": "replace", "path": "/data/a", "value": "1"}]))));
    scene.ok(&format!("POST {MAPS}"), map("d")).await;
    assert_eq!(scene.hook.paths(), "/first /second /third /last", "what changes nothing is no change");
}

#[tokio::test]
async fn refusals_are_told_in_the_webhooks_words() {
    let scene = Scene::start().await;
    scene.one("validating", json!({})).await;
    let check = async |status: fn(&Value) -> Value, code: u16, reason: Value, why: &str| {
        scene.hook.be("/one", Mood::Saying(status));
        let (found, answer) = scene.talk.say("+root", &format!("POST {MAPS}"), map("m")).await;
        let message = format!("admission webhook \"one.example.com\" denied the request{why}");
        assert_eq!((found, &answer["message"], &answer["reason"]), (code, &json!(message), &reason), "{answer}");
    };
    let nothing = Value::Null;
    check(|_| json!({"allowed": false}), 400, nothing.clone(), " without explanation").await;
    check(|_| json!({"status": {"message": "no"}}), 400, nothing.clone(), ": no").await;
    check(|_| json!({"status": {"reason": "Forbidden", "code": 403}}), 403, json!("Forbidden"), ": Forbidden").await;
    check(|_| json!({"status": {"message": "no", "reason": "Odd", "code": 418}}), 418, json!("Odd"), ": no").await;
    check(|_| json!({"status": {"message": "no", "code": 200}}), 400, nothing.clone(), ": no").await;
    check(|_| json!({"status": {"message": "no", "code": 70000}}), 400, nothing, ": no").await;
    scene.hook.be(
        "/one",
        Mood::Saying(|_| {
            let causes = json!([{"field": "f", "message": "m"}]);
            json!({"status": {"code": 409, "details": {"causes": causes}}, "warnings": ["careful"]})
        }),
    );
    let (_, warnings, answer) = scene.talk.hear("+root", &format!("POST {MAPS}"), map("m")).await;
    assert_eq!(warnings, ["299 - \"careful\""]);
    assert_eq!(answer["details"]["causes"], json!([{"field": "f", "message": "m"}]));
    assert_eq!(scene.talk.say("+root", &format!("GET {MAPS}/m"), Value::Null).await.0, 404);

    // What is refused as if it were not there is not created instead.
    scene.hook.be("/one", Mood::Allowing);
    scene.ok(&format!("POST {MAPS}"), map("m")).await;
    scene.hook.be("/one", Mood::Saying(|_| json!({"status": {"code": 404, "reason": "NotFound"}})));
    let (code, why) = scene.refusal(&format!("PATCH {MAPS}/m?fieldManager=x&force=true\n{APPLY}"), map("m")).await;
    assert_eq!((code, why.as_str()), (404, "admission webhook \"one.example.com\" denied the request: NotFound"));
}

/// What a webhook does wrong, and what is said of it.
const WRONGS: &[(Mood, &str)] = &[
    (Mood::Dying, "failed to call webhook: Post \"URL\": "),
    (
        Mood::Text(500, "boom"),
        "failed to call webhook: an error on the server (\"boom\") has prevented the request from succeeding",
    ),
    (Mood::Text(404, ""), "failed to call webhook: the server could not find the requested resource"),
    (Mood::Text(200, "x"), "failed to call webhook: couldn't get version/kind; json parse error: "),
    (Mood::Text(200, "[[[[[["), "failed to call webhook: couldn't get version/kind; json parse error: "),
    (Mood::Endless, "failed to call webhook: Post \"URL\": the answer has more than 8388608 bytes"),
    (Mood::Redirecting, "failed to call webhook: the server responded with the status code 307"),
    (Mood::Lying(|_| json!([])), "received invalid webhook response: webhook response was absent"),
    (Mood::Lying(|_| json!({"response": null})), "received invalid webhook response: webhook response was absent"),
    (
        Mood::Lying(|_| json!({"response": {"uid": "other", "allowed": true}})),
        "received invalid webhook response: expected response.uid=\"UID\", got \"other\"",
    ),
    (
        Mood::Lying(|review| json!({"response": {"uid": review["request"]["uid"], "allowed": true}})),
        "received invalid webhook response: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=",
    ),
    (Mood::Saying(|_| json!({"allowed": "yes"})), "received invalid webhook response: "),
    (Mood::Saying(|_| json!({"allowed": true, "patch": "e30="})), "received invalid webhook response: "),
];

#[tokio::test]
async fn what_a_webhook_does_wrong_harms_its_own_requests_alone() {
    let scene = Scene::start().await;
    for sort in ["mutating", "validating"] {
        let selector = |strict: &str| json!({"matchLabels": {"strict": strict}});
        let strict = scene.webhook("one", json!({"objectSelector": selector("yes")}));
        let lenient = scene.webhook("two", json!({"objectSelector": selector("no"), "failurePolicy": "Ignore"}));
        scene.configure(sort, sort, &[strict, lenient]).await;
        for (mood, expected) in WRONGS {
            scene.hook.questions();
            scene.hook.be("/one", mood.clone());
            scene.hook.be("/two", mood.clone());
            let mut wanted = map("m");
            wanted["metadata"]["labels"] = json!({"strict": "yes"});
            let (code, why) = scene.refusal(&format!("POST {MAPS}"), wanted.clone()).await;
            let (_, _, review) = scene.hook.questions().pop().unwrap();
            let url = format!("https://localhost:{}/one?timeout=10s", scene.hook.address.port());
            let expected = expected.replace("URL", &url).replace("UID", review["request"]["uid"].as_str().unwrap());
            let expected = format!("Internal error occurred: failed calling webhook \"one.example.com\": {expected}");
            assert!(code == 500 && why.starts_with(&expected), "{sort}: {why} instead of {expected}");
            wanted["metadata"]["labels"]["strict"] = json!("no");
            scene.ok(&format!("POST {MAPS}?dryRun=All"), wanted).await;
            scene.ok(&format!("POST {MAPS}?dryRun=All"), map("m")).await;
        }
        scene.ok(&format!("DELETE {GROUP}/{sort}webhookconfigurations/{sort}"), Value::Null).await;
        scene.talk.0.objects().caught_up().await.unwrap();
    }
}

#[tokio::test]
async fn a_webhook_that_hangs_is_given_up_in_its_time() {
    let scene = Scene::start().await;
    scene.one("mutating", json!({"timeoutSeconds": 3})).await;
    scene.hook.be("/one", Mood::Hanging);
    let asking = async {
        let (code, why) = scene.refusal(&format!("POST {MAPS}"), map("m")).await;
        let url = format!("https://localhost:{}/one?timeout=3s", scene.hook.address.port());
        let expected = format!("failed to call webhook: Post \"{url}\": context deadline exceeded");
        assert!(code == 500 && why.ends_with(&expected), "{why}");
    };
    let giving_up = async {
        scene.hook.asked().await;
        // Others go on meanwhile.
        scene.ok("GET /api/v1/namespaces/default", Value::Null).await;
        let secret = json!({"metadata": {"name": "s"}});
        scene.ok("POST /api/v1/namespaces/default/secrets", secret).await;
        // Nothing is left to happen but the end of its patience.
        tokio::time::pause();
    };
    tokio::join!(asking, giving_up);
}

#[tokio::test]
async fn patches_are_decoded_defaulted_and_validated() {
    let scene = Scene::start().await;
    let rules = json!([rule(&["*"], "", &["pods", "configmaps", "services"])[0]]);
    scene.one("mutating", json!({"rules": rules})).await;
    let say = |say: fn(&Value) -> Value| scene.hook.be("/one", Mood::Saying(say));
    let pods = "/api/v1/namespaces/default/pods";
    scene.ok("POST /api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let pod = |name: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});

    say(|_| {
        patched(json!([{"op": "add", "path": "/spec/containers/-", "value": {"name": "side", "image": "s:latest"}}]))
    });
    let made = scene.ok(&format!("POST {pods}"), pod("a")).await;
    let side = &made["spec"]["containers"][1];
    assert_eq!(
        (&side["imagePullPolicy"], &side["terminationMessagePath"]),
        (&json!("Always"), &json!("/dev/termination-log"))
    );
    let mounts = side["volumeMounts"][0]["mountPath"].as_str().unwrap();
    assert!(mounts.contains("serviceaccount"), "the plugins see what the webhook made: {side}");

    say(|_| patched(json!([{"op": "replace", "path": "/spec/containers/0/name", "value": "Not A Name"}])));
    let (code, why) = scene.refusal(&format!("POST {pods}"), pod("b")).await;
    assert!(
        code == 422 && why.starts_with("Pod \"b\" is invalid: spec.containers[0].name: Invalid value: \"Not A Name\""),
        "{why}"
    );

    let internal = async |head: &str, body: Value, expected: &str| {
        let (code, why) = scene.refusal(head, body).await;
        assert_eq!((code, why), (500, format!("Internal error occurred: {expected}")), "{head}");
    };
    let create = format!("POST {MAPS}");
    say(|_| patched(json!([{"op": "remove", "path": "/data/none"}])));
    internal(&create, map("m"), "operation 0 failed: the object has no such path").await;
    say(|_| patched(json!([{"op": "replace", "path": "/kind", "value": "Secret"}])));
    internal(&create, map("m"), "admission webhook \"one.example.com\" attempted to make another kind of the object")
        .await;
    say(|_| patched(json!({"op": "remove"})));
    let (code, why) = scene.refusal(&create, map("m")).await;
    assert!(code == 500 && why.contains("received undecodable patch in webhook response: "), "{why}");
    say(|_| json!({"allowed": true, "patchType": "Odd", "patch": "W3sib3AiOiJ0ZXN0IiwicGF0aCI6IiIsInZhbHVlIjoxfV0="}));
    let (code, why) = scene.refusal(&create, map("m")).await;
    assert!(code == 500 && why.ends_with("unsupported patch type \"Odd\""), "{why}");
    say(|_| patched(json!([])));
    scene.ok(&create, map("empty")).await;

    // An object stays in its namespace. In a create it may be named anew.
    say(|_| patched(json!([{"op": "replace", "path": "/metadata/namespace", "value": "kube-system"}])));
    let (code, why) = scene.refusal(&create, map("m")).await;
    assert_eq!(
        (code, why.as_str()),
        (400, "the namespace of the provided object does not match the namespace sent on the request")
    );
    say(|_| patched(json!([{"op": "replace", "path": "/metadata/name", "value": "other"}])));
    assert_eq!(scene.ok(&create, map("m")).await["metadata"]["name"], "other");
    let apply = format!("PATCH {MAPS}/m?fieldManager=x\n{APPLY}");
    let (code, why) = scene.refusal(&apply, map("m")).await;
    assert_eq!((code, why.as_str()), (400, "the name of the object (other) does not match the name on the URL (m)"));

    // Neither is its identity the webhook's to give.
    say(|_| {
        patched(json!([{"op": "add", "path": "/metadata/uid", "value": "forged"},
        {"op": "add", "path": "/metadata/managedFields", "value": [{"manager": "x"}]}]))
    });
    let (code, warnings, made) = scene.talk.hear("+root", &create, map("n")).await;
    assert_eq!((code, warnings.len()), (201, 1), "{made}");
    assert!(warnings[0].contains(".metadata.managedFields was in an invalid state after admission"), "{warnings:?}");
    assert!(
        made["metadata"]["uid"] != "forged" && made["metadata"]["managedFields"][0]["operation"] == "Update",
        "{made}"
    );
    say(|_| patched(json!([{"op": "replace", "path": "/metadata/uid", "value": "forged"}])));
    let (code, why) = scene.refusal(&format!("PATCH {MAPS}/n\n{MERGE}"), json!({"data": {"a": "2"}})).await;
    assert!(code == 422 && why.contains("metadata.uid: Invalid value: \"forged\": field is immutable"), "{code} {why}");
    say(|_| patched(json!([{"op": "remove", "path": "/metadata"}])));
    let deleted = format!("DELETE {MAPS}/n");
    let what = "attempted to modify the object, which is not supported for this operation";
    internal(&deleted, Value::Null, &format!("admission webhook \"one.example.com\" {what}")).await;
}

#[tokio::test]
async fn dry_runs_are_kept_from_webhooks_with_effects() {
    let scene = Scene::start().await;
    scene.one("validating", json!({"sideEffects": "NoneOnDryRun"})).await;
    scene.ok(&format!("POST {MAPS}?dryRun=All"), map("m")).await;
    let request = scene.request();
    assert_eq!((&request["dryRun"], &request["options"]["dryRun"]), (&json!(true), &json!(["All"])));
    // Only what was stored before they were forbidden has other effects.
    let hooks = crate::admission::webhook::source::Webhooks::default();
    let webhook = scene.webhook("one", json!({"sideEffects": "Some", "failurePolicy": "Ignore"}));
    hooks.object_changed("validatingwebhookconfigurations", "c", Some(&json!({"webhooks": [webhook]})));
    let context = crate::admission::Context { webhooks: Arc::new(hooks), ..super::admission::context(vec![]).await };
    let write = super::admission::Write::create("configmaps", map("m"));
    let error = write.refused_dry(&context, &crate::admission::webhook::VALIDATING).await;
    let expected = "admission webhook \"one.example.com\" does not support dry run";
    assert_eq!((error.code, &*error.reason, error.message.as_str()), (400, "BadRequest", expected));
}

#[tokio::test]
async fn deletions_and_subresources_are_asked_about() {
    let scene = Scene::start().await;
    let all = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    scene.one("mutating", json!({"rules": all})).await;
    scene.configure("validating", "v", &[scene.webhook("v", json!({"rules": all}))]).await;
    // What admission is asked about a request: the same by both sorts of webhooks, of which the second may see more.
    let check = async |head: &str, body: Value, expected: &str| {
        scene.hook.questions();
        let (code, answer) = scene.talk.say("+root", head, body).await;
        assert!(code < 300, "{head}: {answer}");
        let questions = scene.hook.questions();
        let shown = |(path, _, review): &(String, _, Value)| {
            let request = &review["request"];
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            let kind = |value: &Value| format!("{}/{}", text(&value["apiVersion"]), text(&value["kind"]));
            let (resource, operation) = (text(&request["resource"]["resource"]), text(&request["operation"]));
            let (subresource, name) = (text(&request["subResource"]), text(&request["name"]));
            let namespace = text(&request["namespace"]);
            let (object, old, as_kind) =
                (kind(&request["object"]), kind(&request["oldObject"]), text(&request["kind"]["kind"]));
            let options = text(&request["options"]["kind"]);
            let asked =
                format!("{operation} {resource} {subresource} {namespace} {name} {as_kind} {object} {old} {options}");
            (path.split('?').next().unwrap().to_owned(), asked)
        };
        let shown: Vec<(String, String)> = questions.iter().map(shown).collect();
        let of =
            |wanted: &str| shown.iter().filter(|(path, _)| path == wanted).map(|(_, s)| s.clone()).collect::<Vec<_>>();
        assert_eq!(of("/one"), [expected], "{head}");
        assert_eq!(of("/v"), [expected], "{head}");
    };
    scene.ok("POST /api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    check(&format!("POST {pods}"), pod, "CREATE pods - default p Pod v1/Pod -/- CreateOptions").await;
    let status = json!({"status": {"message": "m"}});
    let expected = "UPDATE pods status default p Pod v1/Pod v1/Pod PatchOptions";
    check(&format!("PATCH {pods}/p/status\n{MERGE}"), status, expected).await;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let expected = "CREATE pods binding default p Binding v1/Binding -/- CreateOptions";
    check(&format!("POST {pods}/p/binding"), binding, expected).await;
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let expected = "CREATE pods eviction default p Eviction policy/v1/Eviction -/- CreateOptions";
    check(&format!("POST {pods}/p/eviction?dryRun=All"), eviction, expected).await;
    let expected = "DELETE pods - default p Pod -/- v1/Pod DeleteOptions";
    check(&format!("DELETE {pods}/p?gracePeriodSeconds=0"), Value::Null, expected).await;

    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let set =
        json!({"metadata": {"name": "r"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    scene.ok(&format!("POST {sets}"), set).await;
    let expected = "UPDATE replicasets scale default r Scale autoscaling/v1/Scale autoscaling/v1/Scale PatchOptions";
    check(&format!("PATCH {sets}/r/scale\n{MERGE}"), json!({"spec": {"replicas": 3}}), expected).await;
    scene.hook.be("/one", Mood::Saying(|_| patched(json!([{"op": "replace", "path": "/spec/replicas", "value": 2}]))));
    scene.ok(&format!("PATCH {sets}/r/scale\n{MERGE}"), json!({"spec": {"replicas": 5}})).await;
    assert_eq!(scene.ok(&format!("GET {sets}/r"), Value::Null).await["spec"]["replicas"], 2);
    scene.hook.be("/one", Mood::Allowing);

    let namespace = json!({"metadata": {"name": "team"}});
    check(
        "POST /api/v1/namespaces",
        namespace,
        "CREATE namespaces - team team Namespace v1/Namespace -/- CreateOptions",
    )
    .await;
    check(
        "DELETE /api/v1/namespaces/team",
        Value::Null,
        "DELETE namespaces - team team Namespace -/- v1/Namespace DeleteOptions",
    )
    .await;
    let review = json!({"spec": {"nonResourceAttributes": {"verb": "get", "path": "/"}}});
    let path = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let expected = "CREATE selfsubjectaccessreviews - - - SelfSubjectAccessReview authorization.k8s.io/v1/SelfSubjectAccessReview -/- \
                    CreateOptions";
    check(path, review, expected).await;
    let expected = "CREATE serviceaccounts token default default TokenRequest authentication.k8s.io/v1/TokenRequest -/- CreateOptions";
    check("POST /api/v1/namespaces/default/serviceaccounts/default/token", json!({"spec": {}}), expected).await;
    // Those that configure webhooks are not asked about, so that nobody is locked out.
    scene.hook.questions();
    scene.ok(&format!("DELETE {GROUP}/validatingwebhookconfigurations/v"), Value::Null).await;
    assert_eq!(scene.hook.paths(), "");
}

#[tokio::test]
async fn each_object_of_a_collection_is_asked_about_before_it_is_deleted() {
    let scene = Scene::start().await;
    for name in ["a", "b", "c"] {
        scene.ok(&format!("POST {MAPS}"), map(name)).await;
    }
    scene.one("validating", json!({"rules": rule(&["DELETE"], "", &["configmaps"])})).await;
    scene.hook.be("/one", Mood::Saying(|request| json!({"allowed": request["oldObject"]["metadata"]["name"] != "b"})));
    let (code, why) = scene.refusal(&format!("DELETE {MAPS}"), Value::Null).await;
    assert_eq!(
        (code, why.as_str()),
        (400, "admission webhook \"one.example.com\" denied the request without explanation")
    );
    assert!(scene.hook.questions().iter().all(|(_, _, review)| review["request"]["name"].is_null()), "none was named");
    let left = scene.ok(&format!("GET {MAPS}"), Value::Null).await;
    assert!(left["items"].as_array().unwrap().iter().any(|map| map["metadata"]["name"] == "b"), "{left}");
}

#[tokio::test]
async fn connections_are_asked_about() {
    let scene = Scene::start().await;
    let rules = rule(&["CONNECT"], "", &["pods/exec", "pods/proxy"]);
    scene.one("validating", json!({"rules": rules})).await;
    scene.hook.be("/one", Mood::Saying(|_| json!({"status": {"message": "not here", "code": 403}})));
    let denied = "admission webhook \"one.example.com\" denied the request: not here";
    let request = http::Request::post("/api/v1/namespaces/default/pods/p/exec?command=sh&container=c&stdin=true")
        .header("connection", "upgrade")
        .header("upgrade", "SPDY/3.1")
        .extension(Arc::new(crate::User::new("root", ["system:masters"]).authenticated()));
    let response = scene.talk.0.handle(request.body(crate::http::body::Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 403);
    let asked = scene.request();
    let expected = json!({"kind": "PodExecOptions", "apiVersion": "v1", "container": "c", "stdin": true, "stdout": true,
        "stderr": true, "command": ["sh"]});
    assert_eq!((&asked["object"], &asked["kind"]["kind"]), (&expected, &json!("PodExecOptions")));
    assert_eq!(
        (&asked["operation"], &asked["subResource"], &asked["options"]),
        (&json!("CONNECT"), &json!("exec"), &Value::Null)
    );
    let (code, why) = scene.refusal("GET /api/v1/namespaces/default/pods/p/proxy/a/b?c=d", Value::Null).await;
    assert_eq!((code, why.as_str()), (403, denied));
    assert_eq!(scene.request()["object"], json!({"kind": "PodProxyOptions", "apiVersion": "v1", "path": "/a/b"}));
}

#[tokio::test]
async fn other_versions_are_converted_and_custom_kinds_are_asked_about() {
    let scene = Scene::start().await;
    let rules = json!([{"operations": ["*"], "apiGroups": ["autoscaling"], "apiVersions": ["v2"],
        "resources": ["horizontalpodautoscalers"]}]);
    scene.one("mutating", json!({"rules": rules})).await;
    scene
        .configure("mutating", "exact", &[scene.webhook("exact", json!({"rules": rules, "matchPolicy": "Exact"}))])
        .await;
    scene.hook.be(
        "/one",
        Mood::Saying(|_| {
            patched(
                json!([{"op": "replace", "path": "/spec/metrics/0/resource/target/averageUtilization", "value": 70}]),
            )
        }),
    );
    let scaler = json!({"metadata": {"name": "s"}, "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    let made = scene.ok("POST /apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", scaler).await;
    assert_eq!(made["spec"]["targetCPUUtilizationPercentage"], 70);
    let request = scene.request();
    assert_eq!((&request["kind"]["version"], &request["requestKind"]["version"]), (&json!("v2"), &json!("v1")));
    assert_eq!(
        (&request["resource"]["version"], &request["object"]["apiVersion"]),
        (&json!("v2"), &json!("autoscaling/v2"))
    );

    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer"}, "color": {"type": "string", "default": "red"}}}}}});
    let crd = json!({"metadata": {"name": "hosts.a.io"}, "spec": {"group": "a.io", "scope": "Namespaced",
        "names": {"plural": "hosts", "kind": "Host"}, "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    scene.ok("POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).await;
    let hosts = "/apis/a.io/v1/namespaces/default/hosts";
    while scene.talk.say("+root", &format!("GET {hosts}"), Value::Null).await.0 != 200 {
        clock::sleep(std::time::Duration::from_millis(5)).await;
    }
    scene
        .configure("mutating", "hosts", &[scene.webhook("hosts", json!({"rules": rule(&["*"], "a.io", &["*"])}))])
        .await;
    scene.hook.be(
        "/hosts",
        Mood::Saying(|_| patched(json!([{"op": "add", "path": "/spec", "value": {"size": 3, "unknown": true}}]))),
    );
    let host = json!({"apiVersion": "a.io/v1", "kind": "Host", "metadata": {"name": "h"}, "spec": {"size": 1}});
    let made = scene.ok(&format!("PATCH {hosts}/h?fieldManager=x\n{APPLY}"), host.clone()).await;
    assert_eq!(made["spec"], json!({"size": 3, "color": "red"}));
    let request = scene.request();
    assert_eq!((&request["operation"], &request["kind"]["kind"]), (&json!("CREATE"), &json!("Host")));
    scene
        .hook
        .be("/hosts", Mood::Saying(|_| patched(json!([{"op": "replace", "path": "/spec/size", "value": "big"}]))));
    let (code, why) = scene.refusal(&format!("PATCH {hosts}/h\n{MERGE}"), json!({"spec": {"size": 2}})).await;
    assert!(code == 422 && why.contains("spec.size: Invalid value"), "{code} {why}");
}

#[tokio::test]
async fn conditions_keep_writes_from_webhooks() {
    let scene = Scene::start().await;
    let conditions = |expression: &str| json!([{"name": "c", "expression": expression}]);
    let open = "object.metadata.name != 'free' && request.userInfo.username == 'root' && \
                authorizer.group('').resource('pods').check('list').allowed()";
    let strict = scene.webhook("one", json!({"matchConditions": conditions(open)}));
    let broken = json!({"matchConditions": conditions("object.data.missing == 'x'"), "failurePolicy": "Ignore"});
    scene.configure("validating", "a", &[strict, scene.webhook("two", broken)]).await;
    scene.ok(&format!("POST {MAPS}"), map("free")).await;
    assert_eq!(scene.hook.paths(), "");
    scene.ok(&format!("POST {MAPS}"), map("m")).await;
    assert_eq!(scene.hook.paths(), "/one");
    let broken = json!({"matchConditions": conditions("object.data.missing == 'x'")});
    scene.configure("validating", "b", &[scene.webhook("three", broken)]).await;
    let (code, why) = scene.refusal(&format!("POST {MAPS}"), map("n")).await;
    let expected = "configmaps \"n\" is forbidden: expression 'object.data.missing == 'x'' resulted in error: no such key: missing";
    assert_eq!((code, why.as_str()), (403, expected));
}

#[tokio::test]
async fn webhooks_behind_services_are_asked_and_only_their_authority_is_believed() {
    let scene = Scene::start().await;
    let service = json!({"metadata": {"name": "hook"}, "spec": {"type": "ExternalName", "externalName": "127.0.0.1",
        "ports": [{"port": scene.hook.address.port()}]}});
    scene.ok("POST /api/v1/namespaces/default/services", service).await;
    let port = scene.hook.address.port();
    let reference = json!({"namespace": "default", "name": "hook", "path": "/one", "port": port});
    scene.one("validating", json!({"clientConfig": {"service": reference, "caBundle": scene.hook.bundle()}})).await;
    scene.ok(&format!("POST {MAPS}"), map("m")).await;
    let (uri, headers, _) = scene.hook.questions().pop().unwrap();
    assert_eq!(
        (uri.as_str(), headers["host"].to_str().unwrap()),
        ("/one?timeout=10s", &*format!("hook.default.svc:{port}"))
    );
    let other = Hook::start().await;
    let config = json!({"clientConfig": {"service": reference, "caBundle": other.bundle()}});
    scene.configure("validating", "two", &[scene.webhook("two", config)]).await;
    let (code, why) = scene.refusal(&format!("POST {MAPS}"), map("n")).await;
    assert!(
        code == 500
            && why.contains("failed calling webhook \"two.example.com\": failed to call webhook: ")
            && why.contains("tls: "),
        "{why}"
    );
}

/// Fields that are there and say nothing are no reason not to ask.
#[tokio::test]
async fn empty_fields_keep_no_webhook_from_being_asked() {
    let scene = Scene::start().await;
    let mut config = scene.hook.at("/one");
    config["service"] = Value::Null;
    let empty =
        ["failurePolicy", "matchPolicy", "namespaceSelector", "objectSelector", "timeoutSeconds", "matchConditions"];
    let mut fields: Value = json!({ "clientConfig": config });
    empty.iter().for_each(|field| fields[*field] = Value::Null);
    scene.one("validating", fields).await;
    let port = scene.hook.address.port();
    let service = json!({"metadata": {"name": "hook"}, "spec": {"type": "ExternalName", "externalName": "127.0.0.1",
        "ports": [{"port": port}]}});
    scene.ok("POST /api/v1/namespaces/default/services", service).await;
    let reference = json!({"namespace": "default", "name": "hook", "path": null, "port": port});
    let config = json!({"url": null, "service": reference, "caBundle": scene.hook.bundle()});
    let two = scene.webhook("two", json!({"clientConfig": config, "reinvocationPolicy": null}));
    scene.configure("mutating", "two", &[two]).await;
    scene.ok(&format!("POST {MAPS}"), map("m")).await;
    assert_eq!(scene.hook.paths(), "/ /one");
}

#[tokio::test]
async fn only_administrators_name_webhooks_and_what_they_say_is_checked() {
    let scene = Scene::start().await;
    let path = format!("POST {GROUP}/mutatingwebhookconfigurations");
    let of = |webhook: Value| json!({"metadata": {"name": "c"}, "webhooks": [webhook]});
    let (code, _) = scene.talk.say("secret", &path, of(scene.webhook("one", json!({})))).await;
    assert_eq!(code, 403);
    let (code, why) =
        scene.refusal(&path, of(scene.webhook("one", json!({"sideEffects": "Some", "timeoutSeconds": 31})))).await;
    assert!(code == 422 && why.contains("webhooks[0].timeoutSeconds: Invalid value: 31"), "{why}");
}

#[tokio::test]
async fn questions_are_counted() {
    let scene = Scene::start().await;
    scene.one("validating", json!({})).await;
    scene.configure("mutating", "m", &[scene.webhook("open", json!({"failurePolicy": "Ignore"}))]).await;
    scene.hook.be("/open", Mood::Text(500, ""));
    scene.ok(&format!("POST {MAPS}"), map("m")).await;
    scene.hook.be("/one", Mood::Saying(|_| json!({"status": {"code": 418}})));
    scene.refusal(&format!("POST {MAPS}"), map("n")).await;
    let request = http::Request::get("/metrics").extension(Arc::new(crate::User::new("root", ["system:masters"])));
    let response = scene.talk.0.handle(request.body(crate::http::body::Body::empty()).unwrap()).await;
    let page = response.into_body().collect(1 << 24).await.unwrap();
    let page = String::from_utf8_lossy(&page);
    for line in [
        r#"apiserver_admission_webhook_admission_duration_seconds_count{name="one.example.com",type="validating",operation="CREATE",rejected="false"} 1"#,
        r#"apiserver_admission_webhook_rejection_count{name="one.example.com",type="validating",operation="CREATE",error_type="no_error",rejection_code="418"} 1"#,
        r#"apiserver_admission_webhook_request_total{name="open.example.com",type="admit",operation="CREATE",code="500",rejected="false"} 2"#,
        r#"apiserver_admission_webhook_fail_open_count{name="open.example.com",type="admit"} 2"#,
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is missing in {page}");
    }
}

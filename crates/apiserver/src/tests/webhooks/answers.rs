//! The effects of the answers of webhooks that are honest, refuse, lie, hang and die.

use super::*;

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

    // A write that is refused as if the object were not there does not create it instead.
    scene.hook.be("/one", Mood::Allowing);
    scene.ok(&format!("POST {MAPS}"), map("m")).await;
    scene.hook.be("/one", Mood::Saying(|_| json!({"status": {"code": 404, "reason": "NotFound"}})));
    let (code, why) = scene.refusal(&format!("PATCH {MAPS}/m?fieldManager=x&force=true\n{APPLY}"), map("m")).await;
    assert_eq!((code, why.as_str()), (404, "admission webhook \"one.example.com\" denied the request: NotFound"));
}

/// The misbehaviours of a webhook, and the messages about them.
const WRONGS: &[(Mood, &str)] = &[
    (Mood::Dying, "failed to call webhook: Post \"URL\": "),
    (
        Mood::Text(500, "boom"),
        "failed to call webhook: an error on the server (\"boom\") has prevented the request from succeeding",
    ),
    (Mood::Text(404, ""), "failed to call webhook: the server could not find the requested resource"),
    (Mood::Text(200, ""), "failed to call webhook: 0-length response with status code: 200 and content type: "),
    (Mood::Text(200, "x"), "failed to call webhook: couldn't get version/kind; json parse error: "),
    (Mood::Text(200, "[[[[[["), "failed to call webhook: couldn't get version/kind; json parse error: "),
    (Mood::Endless, "failed to call webhook: Post \"URL\": the answer has more than 8388608 bytes"),
    (Mood::Redirecting, "failed to call webhook: the server responded with the status code 307"),
    (
        Mood::Lying(|_| json!([])),
        r#"failed to call webhook: couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\"""#,
    ),
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
    let absent = "error in remove for path: '/data/none': Unable to remove nonexistent key: none: missing value";
    internal(&create, map("m"), absent).await;
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
    say(|_| patched(json!([{"op": "add", "path": "/metadata/resourceVersion", "value": "7"}])));
    let (code, why) = scene.refusal(&create, map("v")).await;
    assert_eq!((code, why.as_str()), (500, "resourceVersion should not be set on objects to be created"));
    assert_eq!(scene.talk.say("+root", &format!("GET {MAPS}/v"), Value::Null).await.0, 404);
    assert_eq!(scene.talk.say("+root", &format!("{create}?dryRun=All"), map("v")).await.0, 201);
    say(|_| patched(json!([{"op": "replace", "path": "/metadata/uid", "value": "forged"}])));
    let (code, why) = scene.refusal(&format!("PATCH {MAPS}/n\n{MERGE}"), json!({"data": {"a": "2"}})).await;
    assert!(code == 422 && why.contains("metadata.uid: Invalid value: \"forged\": field is immutable"), "{code} {why}");
    say(|_| patched(json!([{"op": "remove", "path": "/metadata"}])));
    let deleted = format!("DELETE {MAPS}/n");
    let what = "attempted to modify the object, which is not supported for this operation";
    internal(&deleted, Value::Null, &format!("admission webhook \"one.example.com\" {what}")).await;
}

/// Upstream's TestMutatingWebhookDuplicateOwnerReferences.
#[tokio::test]
async fn owners_that_stand_twice_are_told_of() {
    let scene = Scene::start().await;
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Node", "name": "fake-node", "uid": uid});
    let owned = |owners: Value| {
        let mut map = map("m");
        map["metadata"]["ownerReferences"] = owners;
        map
    };
    let create = format!("POST {MAPS}");
    let update = format!("PUT {MAPS}/m");
    let patch = format!("PATCH {MAPS}/m\napplication/json-patch+json");
    let hear = async |head: &str, body: Value| {
        let (code, warnings, made) = scene.talk.hear("+root", head, body).await;
        assert!(code < 300, "{head}: {made}");
        assert_eq!(made["metadata"]["ownerReferences"].as_array().unwrap().len(), 1, "{head}: {made}");
        let told = |text: &String| match text.contains("contains duplicate entries after mutating admission happens;") {
            true => "after",
            false if text.contains("metadata.ownerReferences contains duplicate entries;") => "before",
            false => panic!("{text}"),
        };
        assert!(warnings.iter().all(|text| text.ends_with("duplicate UID(s) observed: u\"")), "{warnings:?}");
        warnings.iter().map(told).collect::<Vec<_>>().join(" ")
    };
    let twice = || json!([owner("u"), owner("u")]);
    let add = json!([{"op": "add", "path": "/metadata/ownerReferences/-", "value": owner("u")}]);
    assert_eq!(hear(&create, owned(twice())).await, "before");
    assert_eq!(hear(&update, owned(twice())).await, "before");
    assert_eq!(hear(&patch, add).await, "after", "a patch is looked at once");
    scene.one("mutating", json!({})).await;
    scene.hook.be(
        "/one",
        Mood::Saying(|_| {
            let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "fake-node", "uid": "u"});
            patched(json!([{"op": "add", "path": "/metadata/ownerReferences/-", "value": owner}]))
        }),
    );
    assert_eq!(hear(&patch, json!([])).await, "after");
    assert_eq!(hear(&update, owned(json!([owner("u")]))).await, "after");
    assert_eq!(hear(&update, owned(twice())).await, "before after");
    scene.ok(&format!("DELETE {MAPS}/m"), json!(null)).await;
    assert_eq!(hear(&create, owned(json!([owner("u")]))).await, "after");
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
    let context =
        crate::admission::Context { webhooks: Arc::new(hooks), ..crate::tests::admission::context(vec![]).await };
    let write = crate::tests::admission::Write::create("configmaps", map("m"));
    let error = write.refused_dry(&context, &crate::admission::webhook::VALIDATING).await;
    let expected = "admission webhook \"one.example.com\" does not support dry run";
    assert_eq!((error.code, &*error.reason, error.message.as_str()), (400, "BadRequest", expected));
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

/// The server's own statements and demands about a request are changed by no webhook.
#[tokio::test]
async fn webhooks_forge_nobody_and_get_around_no_check() {
    let scene = Scene::start().await;
    let all = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    scene.one("mutating", json!({"rules": all, "reinvocationPolicy": "IfNeeded"})).await;
    scene.ok("POST /api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let path = "POST /api/v1/namespaces/default/serviceaccounts/default/token";
    scene
        .hook
        .be("/one", Mood::Saying(|_| patched(json!([{"op": "add", "path": "/spec/expirationSeconds", "value": 1}]))));
    let (code, why) = scene.refusal(path, json!({"spec": {}})).await;
    assert!(code == 422 && why.contains("spec.expirationSeconds: Invalid value: 1"), "{code} {why}");
    scene.hook.be("/one", Mood::Allowing);
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    scene.ok(&format!("POST {pods}"), pod).await;
    scene.hook.be("/one", Mood::Saying(|_| patched(json!([{"op": "replace", "path": "/target/name", "value": ""}]))));
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let (code, why) = scene.refusal(&format!("POST {pods}/p/binding"), binding).await;
    assert!(code == 422 && why.contains("target.name: Required value"), "{code} {why}");

    let forged = |_: &Value| {
        patched(json!([{"op": "add", "path": "/spec/username", "value": "system:node:other"},
            {"op": "add", "path": "/spec/groups", "value": ["system:nodes"]}]))
    };
    scene.hook.be("/one", Mood::Saying(forged));
    let pem = pki::Wish::new(&pki::Subject::client("eve", None)).unwrap().request;
    let request = json!({"metadata": {"name": "r"}, "spec": {"signerName": "a.io/b", "usages": ["client auth"],
        "request": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem)}});
    let made = scene.ok("POST /apis/certificates.k8s.io/v1/certificatesigningrequests", request).await;
    let expected = json!(["system:masters", "system:authenticated"]);
    assert_eq!((&made["spec"]["username"], &made["spec"]["groups"]), (&json!("root"), &expected));
}

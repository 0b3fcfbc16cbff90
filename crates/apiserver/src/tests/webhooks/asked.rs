//! Which requests webhooks are asked about, and what they see of them.

use super::*;

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
    assert_eq!((&request["operation"], &request["options"]["kind"]), (&json!("UPDATE"), &json!("UpdateOptions")));
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
async fn deletions_and_subresources_are_asked_about() {
    let scene = Scene::start().await;
    let all = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    scene.one("mutating", json!({"rules": all})).await;
    scene.configure("validating", "v", &[scene.webhook("v", json!({"rules": all}))]).await;
    // The questions of admission about a request: the same by both sorts of webhooks, of which the second may see more.
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
    let expected = "UPDATE pods status default p Pod v1/Pod v1/Pod UpdateOptions";
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
    let expected = "UPDATE replicasets scale default r Scale autoscaling/v1/Scale autoscaling/v1/Scale UpdateOptions";
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

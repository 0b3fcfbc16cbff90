//! More rights than somebody has: by roles and bindings in each way of writing, by aggregation, by subresources, and by acting for
//! others. Each try is refused, and the audit log tells of it.

use json::{Value, json};

use crate::{audited::Audited, caller::Answer, server::rule};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
const DEFAULT: &str = "/api/v1/namespaces/default";

fn role(kind: &str, name: &str, rules: Value) -> Value {
    json!({"apiVersion": format!("{RBAC_GROUP}/v1"), "kind": kind, "metadata": {"name": name}, "rules": rules})
}

fn everything() -> Value {
    json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])
}

fn binding(name: &str, of: &str) -> Value {
    json!({"apiVersion": format!("{RBAC_GROUP}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": of},
        "subjects": [{"apiGroup": RBAC_GROUP, "kind": "User", "name": "mallory"}]})
}

/// Admission refuses what the authorizers let through: the rights to write roles are there, those in them are not.
#[track_caller]
fn escalates(scene: &Audited, what: &str, answer: &Answer) {
    scene.refused(what, answer, 403, Some("mallory"));
    let said = answer.message();
    assert!(said.contains("attempting to grant RBAC permissions not currently held"), "{what}: {said}");
}

#[tokio::test]
async fn roles_grant_no_more_than_their_author_has() {
    let scene = Audited::start(&[]).await;
    let write = ["create", "get", "update", "patch", "delete"];
    let kinds =
        ["clusterroles", "roles", "clusterrolebindings", "rolebindings"].map(|kind| format!("{kind}.{RBAC_GROUP}"));
    let kinds = kinds.each_ref().map(String::as_str);
    scene.server.allow("mallory", "", &write, &kinds).await;
    scene.server.allow("mallory", "", &["get"], &["pods"]).await;
    let (mallory, admin) = (scene.server.user("mallory"), scene.server.admin());
    let clusterroles = format!("{RBAC}/clusterroles");
    let harmless = json!([rule(&["get"], "pods")]);
    mallory.create(&clusterroles, &role("ClusterRole", "mine", harmless.clone())).await.expect(201);
    let mine = format!("{clusterroles}/mine");
    let secrets = json!([rule(&["get"], "secrets")]);
    for (what, rules) in [("all", everything()), ("secrets", secrets.clone())] {
        let wanted = role("ClusterRole", "mine", rules.clone());
        let patch = json!({"rules": rules}).to_string();
        let operations = json!([{"op": "replace", "path": "/rules", "value": rules}]).to_string();
        let created = mallory.create(&clusterroles, &role("ClusterRole", "other", rules.clone())).await;
        escalates(&scene, &format!("create {what}"), &created);
        escalates(&scene, &format!("update {what}"), &mallory.replace(&mine, &wanted).await);
        escalates(&scene, &format!("merge {what}"), &mallory.patch("merge", &mine, patch.clone()).await);
        escalates(&scene, &format!("strategic {what}"), &mallory.patch("strategic", &mine, patch).await);
        escalates(&scene, &format!("json {what}"), &mallory.patch("json", &mine, operations).await);
        let applied = mallory.patch("apply", &format!("{mine}?fieldManager=m&force=true"), wanted.to_string()).await;
        escalates(&scene, &format!("apply {what}"), &applied);
        let roles = format!("{RBAC}/namespaces/default/roles");
        let namespaced = mallory.create(&roles, &role("Role", "other", rules)).await;
        escalates(&scene, &format!("create a Role of {what}"), &namespaced);
    }
    // A role that is filled from others is everything that somebody labels so.
    let mut filled = role("ClusterRole", "filled", json!([]));
    filled["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
    let answer = mallory.create(&clusterroles, &filled).await;
    scene.refused("aggregate", &answer, 403, Some("mallory"));
    // A label alone adds rules to what others are bound to: the rules themselves must be held.
    let mut labelled = role("ClusterRole", "labelled", secrets);
    labelled["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    escalates(&scene, "a labelled role", &mallory.create(&clusterroles, &labelled).await);
    // A user who may write bindings binds no role that holds more.
    let bindings = format!("{RBAC}/clusterrolebindings");
    for of in ["cluster-admin", "admin", "system:node"] {
        escalates(&scene, of, &mallory.create(&bindings, &binding("more", of)).await);
    }
    mallory.create(&bindings, &binding("more", "mine")).await.expect(201);
    let subjects = json!({"subjects": [{"apiGroup": RBAC_GROUP, "kind": "Group", "name": "system:authenticated"}]});
    let answer = mallory.patch("merge", &format!("{bindings}/cluster-admin"), subjects.to_string()).await;
    escalates(&scene, "the administrators' binding", &answer);
    // Its role stays what it is, for everybody.
    let moved = json!({"roleRef": {"name": "cluster-admin"}}).to_string();
    let answer = admin.patch("merge", &format!("{bindings}/more"), moved).await;
    assert!(answer.code == 422 && answer.message().contains("cannot change roleRef"), "{}", answer.text());
    assert_eq!(admin.get(&mine).await.expect(200).json()["rules"], harmless);
}

#[tokio::test]
async fn a_right_on_an_object_is_none_on_its_parts_nor_the_other_way() {
    let scene = Audited::start(&[]).await;
    let admin = scene.server.admin();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    admin.create(&format!("{DEFAULT}/pods"), &pod).await.expect(201);
    scene.server.allow("mallory", "default", &["*"], &["pods", "serviceaccounts"]).await;
    scene.server.allow("bob", "default", &["*"], &["pods/status", "pods/log"]).await;
    let (mallory, bob) = (scene.server.user("mallory"), scene.server.user("bob"));
    let patch = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    let (none, pods) = (json!({}), format!("{DEFAULT}/pods/p"));
    for part in ["exec", "attach", "portforward", "binding", "eviction"] {
        let answer = mallory.create(&format!("{pods}/{part}"), &none).await;
        scene.forbidden(part, &answer, "mallory");
    }
    for part in ["log", "status", "proxy", "exec?command=sh", "ephemeralcontainers"] {
        let answer = mallory.get(&format!("{pods}/{part}")).await;
        scene.forbidden(part, &answer, "mallory");
    }
    for part in ["status", "resize", "ephemeralcontainers"] {
        let answer = mallory.patch("merge", &format!("{pods}/{part}"), patch.clone()).await;
        scene.forbidden(part, &answer, "mallory");
    }
    let answer = mallory.create(&format!("{DEFAULT}/serviceaccounts/default/token"), &none).await;
    scene.forbidden("token", &answer, "mallory");
    scene.forbidden("the whole", &bob.get(&pods).await, "bob");
    scene.forbidden("the whole, written", &bob.patch("merge", &pods, patch).await, "bob");
    scene.forbidden("the list", &bob.get(&format!("{DEFAULT}/pods")).await, "bob");
}

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A request of mallory's for somebody else.
async fn acting(scene: &Audited, headers: &[(&str, &str)], method: &str, path: &str) -> Answer {
    scene.server.user("mallory").send(method, path, headers, "").await
}

#[tokio::test]
async fn who_may_act_for_one_acts_for_no_other() {
    let scene = Audited::start(&[]).await;
    let named = json!({"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["jane"]});
    scene.server.allow_rules("mallory", "", vec![named]).await;
    scene.server.allow("jane", "default", &["list"], &["pods"]).await;
    let jane = ("impersonate-user", "jane");
    let allowed = acting(&scene, &[jane], "GET", PODS).await.expect(200);
    let event = scene.events(&allowed).pop().unwrap();
    assert_eq!(
        (&event["user"]["username"], &event["impersonatedUser"]["username"]),
        (&json!("mallory"), &json!("jane"))
    );
    for headers in [
        &[jane, ("impersonate-group", "system:masters")][..],
        &[jane, ("impersonate-uid", "1")],
        &[jane, ("impersonate-extra-scopes", "all")],
        &[("impersonate-user", "bob")],
        &[("impersonate-user", "system:admin")],
        &[("impersonate-user", "system:node:n1"), ("impersonate-group", "system:nodes")],
        &[("impersonate-user", "system:serviceaccount:kube-system:namespace-controller")],
    ] {
        let answer = acting(&scene, headers, "GET", PODS).await;
        let event = scene.refused(&format!("{headers:?}"), &answer, 403, Some("mallory"));
        assert!(event.get("impersonatedUser").is_none(), "{event}");
        assert!(answer.message().contains("cannot impersonate"), "{}", answer.message());
    }
}

#[tokio::test]
async fn who_may_act_for_one_in_some_requests_does_nothing_else_as_it() {
    let scene = Audited::start(&["--feature-gates=ConstrainedImpersonation=true"]).await;
    let authentication = "authentication.k8s.io";
    let user = json!({"apiGroups": [authentication], "resources": ["users"], "verbs": ["impersonate:user-info"], "resourceNames": ["jane"]});
    let nodes = json!({"apiGroups": [authentication], "resources": ["nodes"], "verbs": ["impersonate:arbitrary-node"], "resourceNames": ["n1"]});
    scene.server.allow_rules("mallory", "", vec![user, nodes]).await;
    let verbs = ["impersonate-on:user-info:list", "impersonate-on:arbitrary-node:list"];
    scene.server.allow("mallory", "default", &verbs, &["pods"]).await;
    scene.server.allow("jane", "default", &["list", "delete", "get"], &["pods", "secrets"]).await;
    let jane = ("impersonate-user", "jane");
    let allowed = acting(&scene, &[jane], "GET", PODS).await.expect(200);
    let event = scene.events(&allowed).pop().unwrap();
    let metadata = json!({"impersonationConstraint": "impersonate:user-info"});
    assert_eq!((&event["impersonatedUser"]["username"], &event["authenticationMetadata"]), (&json!("jane"), &metadata));
    for (headers, method, path) in [
        (&[jane][..], "DELETE", PODS.to_owned()),
        (&[jane], "GET", format!("{PODS}/p")),
        (&[jane], "GET", format!("{DEFAULT}/secrets")),
        (&[jane], "GET", "/api/v1/namespaces/kube-system/pods".to_owned()),
        (&[jane], "GET", "/api/v1/pods".to_owned()),
        (&[jane, ("impersonate-group", "people")], "GET", PODS.to_owned()),
        (&[jane, ("impersonate-group", "system:masters")], "GET", PODS.to_owned()),
        (&[("impersonate-user", "bob")], "GET", PODS.to_owned()),
        (&[("impersonate-user", "system:node:n2")], "GET", PODS.to_owned()),
        (&[("impersonate-user", "system:node:n1"), ("impersonate-group", "system:nodes")], "GET", PODS.to_owned()),
        (&[("impersonate-user", "system:serviceaccount:default:default")], "GET", PODS.to_owned()),
    ] {
        let what = format!("{headers:?} {method} {path}");
        let answer = acting(&scene, headers, method, &path).await;
        let event = scene.refused(&what, &answer, 403, Some("mallory"));
        assert!(event.get("impersonatedUser").is_none(), "{what}: {event}");
    }
    acting(&scene, &[("impersonate-group", "people")], "GET", PODS).await.expect(400);
}

#[tokio::test]
async fn a_policy_in_a_file_allows_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("abac.jsonl");
    let line = |spec: Value| {
        format!(
            "{}\n",
            json!({"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": spec})
        )
    };
    let policy = line(json!({"user": "mallory", "namespace": "default", "resource": "pods", "readonly": true}))
        + &line(json!({"user": "bob", "nonResourcePath": "/metrics", "readonly": true}));
    std::fs::write(&file, policy).unwrap();
    let file = format!("--authorization-policy-file={}", file.display());
    let scene = Audited::start(&["--authorization-mode=Node,RBAC,ABAC", &file]).await;
    let (mallory, bob) = (scene.server.user("mallory"), scene.server.user("bob"));
    mallory.get(PODS).await.expect(200);
    bob.get("/metrics").await.expect(200);
    for path in ["/api/v1/pods", "/api/v1/namespaces/kube-system/pods", &format!("{DEFAULT}/secrets"), "/metrics"] {
        scene.forbidden(path, &mallory.get(path).await, "mallory");
    }
    scene.forbidden("delete", &mallory.delete(PODS).await, "mallory");
    scene.forbidden("create", &mallory.create(PODS, &json!({})).await, "mallory");
    for path in ["/metrics/slis", "/logs", PODS] {
        scene.forbidden(path, &bob.get(path).await, "bob");
    }
}

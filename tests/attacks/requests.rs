//! The meaning of a request is decided once: no path makes the authorizer see another request than the handler serves.

use std::time::Duration;

use json::{Value, json};

use crate::server::{Server, rule};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

#[tokio::test]
async fn the_old_form_of_watches_serves_watches_only() {
    let server = Server::start().await;
    server.namespace("prod").await;
    let reads = ["get", "list", "watch"];
    let resources =
        ["pods", "pods/exec", "pods/eviction", "pods/binding", "bindings", "serviceaccounts", "serviceaccounts/token"];
    server.allow("mallory", "prod", &reads, &resources).await;
    server.allow("mallory", "", &["watch"], &["nodes/proxy", "tokenreviews.authentication.k8s.io"]).await;
    let mallory = server.user("mallory");
    for path in [
        "/api/v1/watch/namespaces/prod/serviceaccounts/default/token",
        "/api/v1/watch/namespaces/prod/pods/p/exec?command=id",
        "/api/v1/watch/namespaces/prod/pods/p/eviction",
        "/api/v1/watch/namespaces/prod/pods/p/binding",
        "/api/v1/watch/nodes/n/proxy/run/prod/p/c",
    ] {
        for method in ["GET", "POST", "PUT", "DELETE"] {
            mallory.send(method, path, &[("content-type", "application/json")], "{}").await.expect(404);
        }
    }
    for path in [
        "/api/v1/watch/namespaces/prod/bindings",
        "/api/v1/watch/namespaces/prod/pods",
        "/apis/authentication.k8s.io/v1/watch/tokenreviews",
    ] {
        for method in ["POST", "PUT", "DELETE", "PATCH"] {
            mallory.send(method, path, &[("content-type", "application/json")], "{}").await.expect(405);
        }
    }
    // The right way needs the right verb.
    let token = "/api/v1/namespaces/prod/serviceaccounts/default/token";
    let refused = mallory.create(token, &json!({})).await.expect(403).message();
    assert!(refused.contains("cannot create resource \"serviceaccounts/token\""), "{refused}");
}

#[tokio::test]
async fn rights_in_a_namespace_reach_nothing_of_the_cluster() {
    let server = Server::start().await;
    server.namespace("x").await;
    let everything = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    server.allow_rules("mallory", "x", vec![everything, rule(&["create"], "pods")]).await;
    let mallory = server.user("mallory");
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "x"},
        "roleRef": role, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"}]});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x"}});
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "x"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/"}}});
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": "admin", "resourceAttributes": {"verb": "get", "resource": "secrets"}}});
    let token =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "bob-token"}});
    for (path, object) in [
        (format!("{RBAC}/namespaces/x/clusterrolebindings/x"), &binding),
        (format!("{RBAC}/namespaces/x/clusterrolebindings"), &binding),
        (format!("{RBAC}/namespaces/x/clusterroles/x"), &binding),
        ("/api/v1/namespaces/x/nodes/x".into(), &node),
        ("/api/v1/namespaces/x/nodes".into(), &node),
        ("/api/v1/namespaces/x/persistentvolumes/x".into(), &volume),
        ("/api/v1/namespaces/x/namespaces/x".into(), &json!({})),
        ("/apis/authorization.k8s.io/v1/namespaces/x/subjectaccessreviews".into(), &review),
        ("/apis/authorization.k8s.io/v1/namespaces/x/selfsubjectaccessreviews/x".into(), &review),
        ("/apis/authentication.k8s.io/v1/namespaces/x/tokenreviews".into(), &token),
        ("/api/v1/namespaces/x/nodes/node-1/proxy/runningpods/".into(), &json!({})),
        ("/api/v1/namespaces/x/componentstatuses".into(), &json!({})),
    ] {
        mallory.create(&path, object).await.expect(404);
        mallory.replace(&path, object).await.expect(404);
        mallory.get(&path).await.expect(404);
    }
    // The same objects where they belong.
    mallory.create(&format!("{RBAC}/clusterrolebindings"), &binding).await.expect(403);
    mallory.create("/api/v1/nodes", &node).await.expect(403);
    mallory.get("/api/v1/nodes/node-1/proxy/").await.expect(403);
    server.admin().get(&format!("{RBAC}/clusterrolebindings/x")).await.expect(404);
    // A Namespace is in the namespace of its own name, and still nobody else's.
    mallory.get("/api/v1/namespaces/x").await.expect(200);
    mallory.get("/api/v1/namespaces/default").await.expect(403);
}

#[tokio::test]
async fn a_name_in_the_path_is_the_name_that_is_watched() {
    let server = Server::start().await;
    server.namespace("y").await;
    let admin = server.admin();
    for name in ["allowed", "other"] {
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"a": name}});
        admin.create("/api/v1/namespaces/y/secrets", &secret).await.expect(201);
    }
    let one = json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["allowed"],
        "verbs": ["get", "list", "watch"]});
    server.allow_rules("mallory", "y", vec![one]).await;
    let mallory = server.user("mallory");
    let seen = async |query: &str| mallory.get(&format!("/api/v1/{query}")).await.expect(200).text();
    let own = seen("watch/namespaces/y/secrets/allowed?timeoutSeconds=1").await;
    assert!(own.contains("\"name\":\"allowed\"") && !own.contains("other"), "{own}");
    for selector in ["metadata.name=other", "metadata.name!=allowed", "metadata.name%3D%3Dother,metadata.name=allowed"]
    {
        let path = format!("watch/namespaces/y/secrets/allowed?timeoutSeconds=1&fieldSelector={selector}");
        assert_eq!(seen(&path).await, "", "{selector}");
    }
    let base = "/api/v1/namespaces/y/secrets?";
    for query in [
        "fieldSelector=metadata.name=other",
        "fieldSelector=metadata.name=other&fieldSelector=metadata.name=allowed",
        "fieldSelector=&fieldSelector=metadata.name=allowed",
        "fieldSelector=metadata.name!=allowed",
        "fieldSelector=type=x%5C,metadata.name=allowed",
        "watch=1&fieldSelector=metadata.name=other",
    ] {
        mallory.get(&format!("{base}{query}")).await.expect(403);
        mallory.delete(&format!("{base}{query}")).await.expect(403);
    }
    // Of several the first counts, for who is allowed and for what is read.
    for second in ["metadata.name=other", ""] {
        let seen =
            seen(&format!("namespaces/y/secrets?fieldSelector=metadata.name=allowed&fieldSelector={second}")).await;
        assert!(seen.contains("\"name\":\"allowed\"") && !seen.contains("other"), "{seen}");
    }
    let none = mallory.get(&format!("{base}fieldSelector=metadata.name=allowed,metadata.name=other")).await;
    assert_eq!(none.expect(200).json()["items"], json!([]));
    // A selector that nobody understands selects no name, and so nothing that mallory may see.
    mallory.get(&format!("{base}fieldSelector=metadata.name=allowed,broken")).await.expect(403);
}

#[tokio::test]
async fn a_node_watches_no_secret_but_its_own() {
    let server = Server::start().await;
    let node = server.node("node-1").await;
    let admin = server.admin();
    for name in ["mine", "other"] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
        admin.create("/api/v1/namespaces/default/secrets", &secret).await.expect(201);
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "node-1",
        "containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "v", "secret": {"secretName": "mine"}}]}});
    admin.create("/api/v1/namespaces/default/pods", &pod).await.expect(201);
    let watch = "/api/v1/watch/namespaces/default/secrets";
    let mut mine = node.get(&format!("{watch}/mine?timeoutSeconds=1")).await;
    // The graph of the authorizer follows the store.
    for _ in 0..200 {
        if mine.code == 200 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        mine = node.get(&format!("{watch}/mine?timeoutSeconds=1")).await;
    }
    assert!(mine.expect(200).text().contains("\"name\":\"mine\""));
    let other = node.get(&format!("{watch}/mine?timeoutSeconds=1&fieldSelector=metadata.name=other")).await;
    assert_eq!(other.expect(200).text(), "");
    node.get(&format!("{watch}/other?timeoutSeconds=1")).await.expect(403);
    node.get(&format!("{watch}?timeoutSeconds=1")).await.expect(403);
}

#[tokio::test]
async fn rules_with_names_do_not_let_new_objects_in() {
    let server = Server::start().await;
    let one = json!({"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["create"]});
    let other = rule(&["create"], "pods");
    server.allow_rules("mallory", "default", vec![one, other]).await;
    let mallory = server.user("mallory");
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}});
    mallory.create("/api/v1/namespaces/default/configmaps/mine", &object).await.expect(405);
    mallory.create("/api/v1/namespaces/default/configmaps", &object).await.expect(403);
}

#[tokio::test]
async fn a_custom_object_is_made_under_the_name_that_was_allowed() {
    let server = Server::start().await;
    let admin = server.admin();
    let kind = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "toys.a.io"}, "spec": {"group": "a.io", "scope": "Namespaced",
            "names": {"plural": "toys", "kind": "Toy"}, "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let path = "/apis/a.io/v1/namespaces/default/toys";
    admin.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &kind).await.expect(201);
    while admin.get(path).await.code != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let one = json!({"apiGroups": ["a.io"], "resources": ["toys"], "resourceNames": ["mine"], "verbs": ["create"]});
    server.allow_rules("mallory", "default", vec![one]).await;
    let mallory = server.user("mallory");
    let toy = |metadata: Value| json!({"apiVersion": "a.io/v1", "kind": "Toy", "metadata": metadata});
    for metadata in
        [json!({"name": "other"}), json!({"generateName": "mine"}), json!({"name": "mine", "namespace": "y"})]
    {
        mallory.create(&format!("{path}/mine"), &toy(metadata)).await.expect(400);
    }
    for at in [format!("{path}/other"), path.to_owned()] {
        mallory.create(&at, &toy(json!({"name": "mine"}))).await.expect(403);
    }
    mallory.create(&format!("{path}/mine"), &toy(json!({"name": "mine"}))).await.expect(201);
}

#[tokio::test]
async fn odd_paths_are_nobodys() {
    let server = Server::start().await;
    let admin = server.admin();
    for (path, code) in [
        ("/api/v1//namespaces", 404),
        ("//api/v1/namespaces", 404),
        ("/api/v1/namespaces//secrets", 404),
        ("/api/v1/namespaces/default/secrets/a%2Fb", 400),
        ("/api/v1/namespaces/%2E%2E/secrets", 400),
        ("/api/v1/namespaces/default/pods/%ff", 400),
        ("/api/v9/namespaces/default/pods/p/exec", 404),
        ("/%61pi/v1/namespaces", 404),
        ("/apis/apps/v1/nothing", 404),
        ("//metrics", 404),
    ] {
        admin.get(path).await.expect(code);
    }
    // Strangers do not learn what is served: rights are asked for first.
    let nobody = server.nobody();
    for path in ["/api/v1/secrets", "/api/v1/nothing", "/apis/a.io/v1/things", "/nothing", "//metrics"] {
        nobody.get(path).await.expect(403);
    }
    let mallory = server.user("mallory");
    mallory.get("/apis/a.io/v1/things").await.expect(403);
    mallory.get("/api/v1/namespaces/default/secrets/a%2Fb").await.expect(403);
    mallory.send("BREW", "/api/v1/namespaces/default/pods", &[], "").await.expect(403);
    server.bearer("wrong").get("/api/v1/nothing").await.expect(401);
    // The authorizer sees the path that is served.
    server.allow_rules("mallory", "", vec![json!({"nonResourceURLs": ["/metrics/*"], "verbs": ["get"]})]).await;
    mallory.get("/metrics/").await.expect(403);
}

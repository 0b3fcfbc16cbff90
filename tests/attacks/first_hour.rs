//! The requests that everyone makes in the first hour, over the network: bodies as Go clients send them, HEAD, objects
//! that were exported, addresses in odd forms, and fields that have no effect yet.

use json::{Value, json};

use crate::{
    caller::{Answer, Caller},
    server::Server,
};

const DEFAULT: &str = "/api/v1/namespaces/default";

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// A request whose body is in protobuf; `schema` is the type's, without `io.k8s.`.
async fn binary(caller: &Caller, request: &str, schema: &str, object: Value) -> Answer {
    let (method, path) = request.split_once(' ').unwrap();
    let body =
        api::codec::protobuf::encode(&format!("io.k8s.{schema}"), &object).expect("the type has a protobuf form");
    caller.send(method, path, &[("content-type", api::codec::protobuf::MEDIA_TYPE)], body).await
}

#[tokio::test]
async fn every_subresource_reads_protobuf() {
    let server = Server::start().await;
    let admin = server.admin();
    for name in ["p", "q", "r"] {
        admin.create(&format!("{DEFAULT}/pods"), &pod(name)).await.expect(201);
    }
    let tried = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"},
        "deleteOptions": {"dryRun": ["All"], "propagationPolicy": "Background"}});
    let evict = format!("POST {DEFAULT}/pods/p/eviction");
    binary(&admin, &evict, "api.policy.v1.Eviction", tried).await.expect(201);
    let wrong = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"},
        "deleteOptions": {"propagationPolicy": "Sideways"}});
    let refused = binary(&admin, &evict, "api.policy.v1.Eviction", wrong).await.expect(422).message();
    assert!(refused.contains("propagationPolicy: Unsupported value: \"Sideways\""), "{refused}");
    admin.get(&format!("{DEFAULT}/pods/p")).await.expect(200);
    let now = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    binary(&admin, &evict, "api.policy.v1.Eviction", now).await.expect(201);
    admin.get(&format!("{DEFAULT}/pods/p")).await.expect(404);

    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "q"},
        "target": {"kind": "Node", "name": "somewhere"}});
    let bind = format!("POST {DEFAULT}/pods/q/binding");
    binary(&admin, &bind, "api.core.v1.Binding", binding).await.expect(201);
    assert_eq!(admin.get(&format!("{DEFAULT}/pods/q")).await.expect(200).json()["spec"]["nodeName"], "somewhere");

    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 700}});
    let token = format!("POST {DEFAULT}/serviceaccounts/default/token");
    let answer = binary(&admin, &token, "api.authentication.v1.TokenRequest", request).await.expect(201).json();
    assert_eq!(answer["spec"]["expirationSeconds"], 700);

    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let reviews = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let schema = "api.authorization.v1.SelfSubjectAccessReview";
    assert_eq!(binary(&admin, reviews, schema, review).await.expect(201).json()["status"]["allowed"], true);

    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    let all = format!("DELETE {DEFAULT}/pods?labelSelector=app%3Da");
    binary(&admin, &all, "apimachinery.pkg.apis.meta.v1.DeleteOptions", options.clone()).await.expect(200);
    assert_eq!(admin.get(&format!("{DEFAULT}/pods")).await.expect(200).json()["items"], json!([]));
    server.namespace("gone").await;
    let namespace = "DELETE /api/v1/namespaces/gone";
    binary(&admin, namespace, "apimachinery.pkg.apis.meta.v1.DeleteOptions", options).await.expect(200);

    for path in ["pods/q/eviction", "pods/q/binding", "serviceaccounts/default/token", "pods", "bindings"] {
        let text = [("content-type", "text/plain")];
        admin.send("POST", &format!("{DEFAULT}/{path}"), &text, "{}").await.expect(415);
    }
    admin.send("DELETE", &format!("{DEFAULT}/pods"), &[("content-type", "text/plain")], "{}").await.expect(415);
}

#[tokio::test]
async fn head_ends_with_its_headers() {
    let server = Server::start().await;
    let admin = server.admin();
    for path in ["/healthz", "/version", "/openapi/v2", "/metrics/nothing"] {
        let whole = admin.send_h2("GET", path, &[], "").await;
        for head in [admin.send_h2("HEAD", path, &[], "").await, admin.send("HEAD", path, &[], "").await] {
            assert_eq!((head.code, head.body.len()), (whole.code, 0), "{path}");
            let length = |answer: &Answer| answer.headers.get("content-length").cloned();
            assert!(length(&head).is_some() && length(&head) == length(&whole), "{path}: {:?}", head.headers);
            assert_eq!(head.headers.get("content-type"), whole.headers.get("content-type"), "{path}");
        }
    }
}

#[tokio::test]
async fn exported_objects_and_external_addresses_are_taken() {
    let server = Server::start().await;
    let admin = server.admin();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"type": "ClusterIP", "externalIPs": ["192.0.2.7"], "ports": [{"port": 80}]}});
    let services = format!("{DEFAULT}/services");
    let mut exported = admin.create(&services, &service).await.expect(201).json();
    assert_eq!(exported["spec"]["externalTrafficPolicy"], "Cluster");
    admin.delete(&format!("{services}/s")).await.expect(200);
    for field in ["resourceVersion", "uid", "managedFields"] {
        exported["metadata"].as_object_mut().unwrap().remove(field);
    }
    exported["metadata"]["creationTimestamp"] = json!("2001-02-03T04:05:06Z");
    admin.create(&services, &exported).await.expect(201);
    let replaced = admin.replace(&format!("{services}/s"), &exported).await.expect(200).json();
    assert_ne!(replaced["metadata"]["creationTimestamp"], "2001-02-03T04:05:06Z");
    let path = format!("{services}/s?fieldManager=me&force=true");
    admin.patch("apply", &path, exported.to_string()).await.expect(200);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "r", "namespace": "default"}, "rules": []});
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let made = admin.create(roles, &role).await.expect(201).json();
    assert_eq!(made["metadata"]["namespace"], Value::Null);
}

#[tokio::test]
async fn no_form_of_an_address_leads_to_the_machine() {
    let server = Server::start().await;
    server
        .allow("mallory", "default", &["create"], &["endpoints", "endpointslices.discovery.k8s.io", "services"])
        .await;
    let mallory = server.user("mallory");
    for address in ["169.254.169.254", "127.0.0.1", "0.0.0.0"] {
        for form in
            [address.to_owned(), format!("::ffff:{address}"), format!("0{address}"), format!("::ffff:0{address}")]
        {
            let subsets = json!([{"addresses": [{"ip": form}], "ports": [{"port": 80}]}]);
            let endpoints =
                json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "e"}, "subsets": subsets});
            mallory.create(&format!("{DEFAULT}/endpoints"), &endpoints).await.expect(422);
            for kind in ["IPv4", "IPv6"] {
                let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "e"},
                    "addressType": kind, "endpoints": [{"addresses": [form]}], "ports": [{"port": 80}]});
                let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
                mallory.create(path, &slice).await.expect(422);
            }
            let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "e"},
                "spec": {"externalIPs": [form], "ports": [{"port": 80}]}});
            mallory.create(&format!("{DEFAULT}/services"), &service).await.expect(422);
        }
    }
}

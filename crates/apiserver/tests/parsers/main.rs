//! Every parser of what clients send and other servers answer, with inputs that are nearly right: no panic, no work without a
//! bound, and what was read and written again is the same. Frames of SPDY and WebSocket are tried in the crate `stream`, Corefiles
//! and packets in `dns`, kubeconfig files in `client`, what the node reads in `kubelet`.
//!
//! An input that was found once is kept in `found/NAME/`, one file for each input, and tried first in every run.

mod answers;
mod changes;
mod documents;
mod expressions;
mod kinds;
mod requests;
mod selectors;
mod tokens;

use std::path::Path;

fn found() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/parsers/found"))
}

/// Some kinds with objects of them, of which the others are made.
fn objects() -> Vec<Vec<u8>> {
    const OBJECTS: &[&str] = &[
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"default","labels":{"app":"web"},"annotations":{"k":"v"},
            "finalizers":["example.com/x"],"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"u","controller":true}]},
            "spec":{"nodeSelector":{"a":"b"},"tolerations":[{"key":"k","operator":"Exists"}],"volumes":[{"name":"v","configMap":{"name":"c",
            "items":[{"key":"k","path":"p"}],"defaultMode":420}},{"name":"e","emptyDir":{"sizeLimit":"1Gi"}}],"containers":[{"name":"c","image":"i:1",
            "command":["a","b"],"env":[{"name":"A","value":"1"},{"name":"B","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}],
            "ports":[{"containerPort":80,"protocol":"TCP"}],"resources":{"requests":{"cpu":"100m","memory":"1.5Gi"}},
            "readinessProbe":{"httpGet":{"path":"/","port":"http"},"periodSeconds":5},"volumeMounts":[{"name":"v","mountPath":"/v"}]}]}}"#,
        r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":3,"selector":{"matchLabels":{"app":"web"},
            "matchExpressions":[{"key":"k","operator":"In","values":["a","b"]}]},"strategy":{"rollingUpdate":{"maxSurge":"25%","maxUnavailable":1}},
            "template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
        r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"selector":{"app":"web"},"ports":[{"name":"http","port":80,
            "targetPort":"http","nodePort":30080},{"name":"b","port":81,"targetPort":8081}],"type":"NodePort","sessionAffinity":"ClientIP"}}"#,
        r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"data":{"k":"aGVsbG8="},"stringData":{"p":"w"},"type":"Opaque"}"#,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"k":"v"},"binaryData":{"b":"AAEC"},"immutable":true}"#,
        r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"foos.example.com"},"spec":{
            "group":"example.com","names":{"plural":"foos","kind":"Foo"},"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,
            "schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"n":{"type":"integer","minimum":1,
            "default":1},"t":{"type":"string","pattern":"^a+$","enum":["a"]}},"x-kubernetes-validations":[{"rule":"self.n > 0"}]}}}}}]}}"#,
        r#"{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"name":"i"},"spec":{"rules":[{"host":"*.example.com","http":{"paths":[{
            "path":"/","pathType":"Prefix","backend":{"service":{"name":"s","port":{"number":80}}}}]}}],"tls":[{"hosts":["a"],"secretName":"t"}]}}"#,
        r#"{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"c"},"spec":{"schedule":"*/5 1-3 * * mon","timeZone":"Etc/UTC","jobTemplate":{
            "spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}"#,
        r#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["pods"],
            "verbs":["get"],"resourceNames":["a"]}]}"#,
    ];
    OBJECTS.iter().map(|text| text.as_bytes().to_vec()).collect()
}

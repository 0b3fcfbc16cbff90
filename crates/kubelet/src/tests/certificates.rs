//! Volumes with a Pod's own certificate and with the authorities of others.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use clock::Timestamp;
use json::{Value, json};

use crate::tests::world::{World, until};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1beta1/namespaces/d/podcertificaterequests";
const BUNDLES: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";

fn block(body: &str) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
}

/// A Pod with one volume of this source.
fn make_pod(world: &World, source: Value) {
    world.api.put("/api/v1/namespaces/d/serviceaccounts/bot", json!({"metadata": {"name": "bot", "uid": "bot-1"}}));
    let spec = json!({
        "restartPolicy": "Always", "serviceAccountName": "bot",
        "containers": [{"name": "m", "image": "x:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "projected": {"defaultMode": 0o440, "sources": [source]}}],
    });
    world.make_pod("p", spec);
}

fn file(world: &World, name: &str) -> Option<String> {
    let path = world.pod_dir("p").join("volumes/kubernetes.io~projected/v").join(name);
    let mode = fs::metadata(&path).ok()?.permissions().mode() & 0o777;
    assert_eq!(mode, 0o440, "{name}");
    fs::read_to_string(path).ok()
}

fn requests(world: &World) -> Vec<Value> {
    world.api.all(REQUESTS)
}

/// Says what became of a request; a certificate is to be renewed after half an hour, and ends after a whole one.
fn answer(world: &World, mut request: Value, condition: &str, chain: &str) {
    let at = |seconds: u64| clock::now_seconds().checked_add(Duration::from_secs(seconds)).unwrap();
    let condition = json!({"type": condition, "status": "True", "reason": "Test", "message": "so it is", "lastTransitionTime": at(0)});
    request["status"] = json!({
        "conditions": [condition], "certificateChain": chain,
        "notBefore": at(0), "beginRefreshAt": at(1800), "notAfter": at(3600),
    });
    let name = request["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    world.api.put(&format!("{REQUESTS}/{name}"), request);
}

fn certificate() -> Value {
    json!({"podCertificate": {
        "signerName": "x.y/z", "keyType": "ECDSAP256", "maxExpirationSeconds": 3600,
        "userAnnotations": {"x.y/a": "b"},
        "credentialBundlePath": "all.pem", "keyPath": "key.pem", "certificateChainPath": "chain.pem",
    }})
}

#[test]
fn a_pod_waits_for_its_certificate_and_gets_another_one_in_time() {
    let world = World::new();
    make_pod(&world, certificate());
    let (one, two) = (block("AQID"), block("BAUG"));
    world.life(None, async || {
        until("a certificate is asked for", || requests(&world).len() == 1).await;
        let request = requests(&world).remove(0);
        let owner = &request["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Pod"), &json!("p-1")));
        let mut spec = request["spec"].clone();
        for field in ["pkixPublicKey", "proofOfPossession"] {
            assert!(!spec.as_object_mut().unwrap().remove(field).unwrap().as_str().unwrap().is_empty());
        }
        let expected = json!({
            "signerName": "x.y/z", "podName": "p", "podUID": "p-1", "serviceAccountName": "bot",
            "serviceAccountUID": "bot-1", "nodeName": "n1", "nodeUID": "uid-of-n1", "maxExpirationSeconds": 3600,
            "unverifiedUserAnnotations": {"x.y/a": "b"},
        });
        assert_eq!(spec, expected);
        clock::sleep(Duration::from_secs(300)).await;
        assert_eq!((requests(&world).len(), world.asked("start m")), (1, 0), "it waits, and asks once");
        answer(&world, request, "Issued", &format!("ours:\n{one}{two}"));
        until("the Pod is ready", || world.is_ready("p")).await;
        let (key, chain) = (file(&world, "key.pem").unwrap(), file(&world, "chain.pem").unwrap());
        assert!(key.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{key}");
        assert_eq!(chain, format!("{one}{two}"));
        assert_eq!(file(&world, "all.pem").unwrap(), format!("{key}{chain}"));

        let begun = clock::now().as_second();
        clock::sleep(Duration::from_secs(1750)).await;
        assert_eq!(requests(&world).len(), 1);
        until("another one is asked for", || requests(&world).len() == 2).await;
        let waited = clock::now().as_second() - begun;
        assert!((1790..2110).contains(&waited), "{waited}");
        assert_eq!(file(&world, "key.pem").unwrap(), key);
        let second = requests(&world).pop().unwrap();
        answer(&world, second, "Issued", &two);
        until("it is there", || file(&world, "chain.pem").unwrap() == two).await;
        assert_ne!(file(&world, "key.pem").unwrap(), key);
        assert_eq!(world.asked("start m"), 1);
    });
    // The next kubelet has no key any more, and leaves what is there until it has another one.
    world.life(None, async || {
        until("a third one is asked for", || requests(&world).len() == 3).await;
        assert_eq!(file(&world, "chain.pem").unwrap(), two);
        let third = requests(&world).pop().unwrap();
        answer(&world, third, "Issued", &one);
        until("it is there", || file(&world, "chain.pem").unwrap() == one).await;
        world.delete_pod("p");
        until("nothing is left", || world.left().is_empty()).await;
    });
}

#[test]
fn a_pod_whose_certificate_is_denied_never_starts_and_one_whose_request_is_deleted_asks_again() {
    let world = World::new();
    make_pod(&world, certificate());
    world.life(None, async || {
        until("a certificate is asked for", || requests(&world).len() == 1).await;
        let first = requests(&world).remove(0);
        world.api.remove(&format!("{REQUESTS}/{}", first["metadata"]["name"].as_str().unwrap()));
        until("it is asked for anew", || requests(&world).len() == 1).await;
        let second = requests(&world).remove(0);
        assert_ne!(second["metadata"]["name"], first["metadata"]["name"]);
        answer(&world, second, "Denied", "");
        clock::sleep(Duration::from_secs(3600)).await;
        assert_eq!((requests(&world).len(), world.asked("start m")), (1, 0));
        world.delete_pod("p");
        until("nothing is left", || world.left().is_empty()).await;
    });
}

#[test]
fn a_volume_shows_the_authorities_of_a_bundle_and_follows_them() {
    let world = World::new();
    make_pod(&world, json!({"clusterTrustBundle": {"name": "ca", "path": "ca.pem"}}));
    let put = |body: &str| {
        let bundle = json!({"metadata": {"name": "ca"}, "spec": {"trustBundle": block(body)}});
        world.api.put(&format!("{BUNDLES}/ca"), bundle);
    };
    world.life(None, async || {
        clock::sleep(Duration::from_secs(30)).await;
        assert_eq!(world.asked("start m"), 0, "there is no such bundle");
        let begun: Timestamp = clock::now();
        put("AQID");
        until("the Pod is ready", || world.is_ready("p")).await;
        assert!(clock::now().as_second() - begun.as_second() < 10, "the bundle itself ends the wait");
        assert_eq!(file(&world, "ca.pem").unwrap(), block("AQID"));
        put("BAUG");
        until("the volume follows", || file(&world, "ca.pem").unwrap() == block("BAUG")).await;
    });
}

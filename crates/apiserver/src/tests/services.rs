//! Updates of Services: what a client may leave out, and what is for life.

use api::Value;
use json::json;

use super::assembled::{Talk, options};
use crate::{assemble::Options, bootstrap::Cluster};

const SERVICES: &str = "/api/v1/namespaces/default/services";

struct Scene(Talk);

impl Scene {
    /// A cluster with both families.
    async fn start() -> Self {
        let service_ranges = vec!["10.96.0.0/16".parse().unwrap(), "fd00::/112".parse().unwrap()];
        let cluster = Cluster { service_ranges, ..Cluster::example() };
        Scene(Talk::over(Options { cluster, ..options() }).await)
    }

    async fn create(&self, name: &str, spec: Value) -> Value {
        let body = json!({"metadata": {"name": name}, "spec": spec});
        self.0.ok("+root", &format!("POST {SERVICES}"), body).await["spec"].clone()
    }

    async fn put(&self, name: &str, spec: Value) -> (u16, Value) {
        let body = json!({"metadata": {"name": name}, "spec": spec});
        self.0.say("+root", &format!("PUT {SERVICES}/{name}"), body).await
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_of_another_service_is_no_address_to_change_to() {
    let scene = Scene::start().await;
    let ports = json!([{"port": 80}]);
    let other = scene.create("other", json!({"ports": ports})).await["clusterIP"].clone();
    let own = scene.create("own", json!({"ports": ports})).await["clusterIP"].clone();
    let refused = async |address: &Value| {
        let (code, error) = scene.put("own", json!({"clusterIP": address, "ports": ports})).await;
        let why = format!("Invalid value: [{address}]: may not change once set");
        let message = format!("Service \"own\" is invalid: spec.clusterIPs[0]: {why}");
        assert_eq!((code, &error["reason"], &error["message"]), (422, &json!("Invalid"), &json!(message)));
        let cause = json!({"reason": "FieldValueInvalid", "message": why, "field": "spec.clusterIPs[0]"});
        assert_eq!(error["details"]["causes"], json!([cause]));
    };
    for address in [&other, &json!("10.96.9.9"), &json!("10.1.1.1"), &json!("None")] {
        refused(address).await;
    }
    // A second address is another matter.
    let both = |second: &str| json!({"clusterIP": own, "clusterIPs": [own, second], "ipFamilyPolicy": "RequireDualStack", "ports": ports});
    assert_eq!(scene.put("own", both("fd00::9")).await.0, 200);
    scene.create("third", json!({"ports": ports})).await;
    let third = json!({"ipFamilyPolicy": "RequireDualStack", "ports": ports, "ipFamilies": ["IPv4", "IPv6"],
        "clusterIP": scene.put("third", json!({"ports": ports})).await.1["spec"]["clusterIP"]});
    let mut taken = third.clone();
    taken["clusterIPs"] = json!([third["clusterIP"], "fd00::9"]);
    let (code, error) = scene.put("third", taken).await;
    let message = error["message"].as_str().unwrap();
    assert!(
        code == 422 && message.contains("failed to allocate IP fd00::9: provided IP is already allocated"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_old_manifest_can_be_put_again() {
    let scene = Scene::start().await;
    let families =
        |spec: &Value| (spec["clusterIPs"].clone(), spec["ipFamilies"].clone(), spec["ipFamilyPolicy"].clone());
    let check = async |name: &str, made: Value, old: Value, expected: (Value, Value, Value)| {
        scene.create(name, made).await;
        let (code, answer) = scene.put(name, old).await;
        assert_eq!((code, families(&answer["spec"])), (200, expected), "{name}: {answer}");
    };
    let (none, four, six) = (json!(["None"]), json!(["IPv4"]), json!(["IPv6"]));
    let (single, require) = (json!("SingleStack"), json!("RequireDualStack"));
    let headless = || json!({"clusterIP": "None", "selector": {"a": "b"}});
    check("plain", headless(), headless(), (none.clone(), four.clone(), single.clone())).await;
    check("left-out", headless(), json!({"selector": {"a": "c"}}), (none.clone(), four.clone(), single.clone())).await;
    let free = || json!({"clusterIP": "None"});
    let both = json!(["IPv4", "IPv6"]);
    check("free", free(), free(), (none.clone(), both.clone(), require.clone())).await;
    // The policy stays, and the families are settled anew: no address holds them.
    let made = json!({"clusterIP": "None", "selector": {"a": "b"}, "ipFamilies": six});
    check("six", made, headless(), (none.clone(), four.clone(), single)).await;
    let made = json!({"clusterIP": "None", "ipFamilies": ["IPv6", "IPv4"]});
    check("order", made, free(), (none, both, require)).await;
    // Those of other Services follow from their addresses.
    let ports = json!([{"port": 80}]);
    let made = scene.create("address", json!({"ipFamilies": ["IPv6"], "ports": ports})).await;
    let (code, answer) = scene.put("address", json!({"ports": ports})).await;
    assert_eq!((code, families(&answer["spec"])), (200, families(&made)), "{answer}");
}

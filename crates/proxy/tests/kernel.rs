//! The rendered rules against the real kernel, in a network namespace that the test makes itself.

use std::{
    io::Write,
    process::{Command, Stdio},
    sync::Arc,
};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use proxy::{
    picture::{self, Node, Picture},
    script::{self, Script},
};

struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

impl Namespace {
    fn nft(&self, script: &str) -> Result<String, String> {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.0, "nft", "-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| e.to_string())?;
        child.stdin.take().unwrap().write_all(script.as_bytes()).map_err(|e| e.to_string())?;
        let out = child.wait_with_output().map_err(|e| e.to_string())?;
        if out.status.success() {
            Ok(String::from_utf8_lossy(&out.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&out.stderr).into_owned())
        }
    }
}

fn render(endpoints: &[&str], affinity: &str) -> Picture {
    let service: Service = serde_json::from_value(serde_json::json!({
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "sessionAffinity": affinity,
                 "ports": [{"name": "http", "port": 80, "nodePort": 30080}, {"name": "dns", "port": 53, "protocol": "UDP"}]}
    })).unwrap();
    let endpoints: Vec<_> =
        endpoints.iter().map(|ip| serde_json::json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
    let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web-1"}, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    }))
    .unwrap();
    picture::render(&service, &[Arc::new(slice)], &Node { name: "n1".into() })
}

#[test]
fn the_kernel_takes_every_transition_between_pictures() {
    let name = format!("skiff-proxy-{}", std::process::id());
    let made = Command::new("ip").args(["netns", "add", &name]).output();
    if !made.is_ok_and(|o| o.status.success()) {
        eprintln!("SKIPPED: network namespaces need root and iproute2");
        return;
    }
    let ns = Namespace(name);
    ns.nft(&script::fresh_table()).expect("the fixed part of the table");
    let states = [
        render(&[], "None"),
        render(&["10.244.0.2"], "None"),
        render(&["10.244.0.2", "10.244.0.3"], "None"),
        render(&["10.244.0.2", "10.244.0.3"], "ClientIP"),
        render(&["10.244.0.3"], "ClientIP"),
        render(&["10.244.0.3"], "None"),
        Picture::default(),
    ];
    let mut held = Picture::default();
    for (step, next) in states.into_iter().enumerate() {
        let mut script = Script::default();
        script.difference(&held, &next);
        ns.nft(&script.text()).unwrap_or_else(|e| panic!("step {step}: {e}\n{}", script.text()));
        held = next;
    }
    let out = Command::new("ip").args(["netns", "exec", &ns.0, "nft", "list", "ruleset"]).output().unwrap();
    let left = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(!left.contains("10.96.0.7") && !left.contains("default/web"), "nothing of the Service is left: {left}");
}

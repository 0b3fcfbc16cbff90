//! The rows of a custom kind: its objects take the way of the built-in ones.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::bail;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use json::{Value, json};

use crate::{
    api::Api,
    report::{
        Goal::{AtLeast, AtMost},
        Report,
    },
    subject::Server,
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/bench.io/v1/namespaces/bench/widgets";

fn definition() -> Value {
    let spec = json!({"type": "object", "required": ["size"], "properties": {
        "size": {"type": "integer", "minimum": 0}, "color": {"type": "string", "default": "blue"},
        "parts": {"type": "array", "items": {"type": "object", "properties": {
            "name": {"type": "string"}, "weight": {"type": "integer"},
        }}},
    }});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.bench.io"},
        "spec": {
            "group": "bench.io", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}],
        },
    })
}

fn widget(i: usize) -> Value {
    let parts: Value = (0..4).map(|part| json!({"name": format!("part-{part}"), "weight": part * 10})).collect();
    json!({"apiVersion": "bench.io/v1", "kind": "Widget", "metadata": {"name": format!("w-{i}"), "labels": {"app": "bench"}},
        "spec": {"size": i, "parts": parts}})
}

/// A kind of the size that the kinds of large projects have: Pod templates in their schemas, everything described.
fn large_definition(i: usize) -> Value {
    let group = format!("large-{}.bench.io", i % 10);
    let about = "Says at some length what the field is for, and what happens where it is not set.";
    let leaf = json!({"type": "string", "description": about, "maxLength": 253});
    let port = json!({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true});
    let object = |properties: &Value| json!({"type": "object", "description": about, "properties": properties});
    let leaves: Value = (0..25).map(|n| (format!("field{n}"), leaf.clone())).collect();
    let mut parts: Value = (0..24).map(|n| (format!("part{n}"), object(&leaves))).collect();
    parts["port"] = port;
    let schema = object(&json!({"spec": object(&parts), "status": object(&leaves)}));
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things{i}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": format!("things{i}"), "kind": format!("Thing{i}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// Registers a hundred large kinds at a server of its own, and sees when the last of them is served.
pub async fn hundred_kinds(skiff: &Path, report: &mut Report) -> anyhow::Result<()> {
    let server = Server::start(skiff, &["--disable=scheduler,controllers"]).await?;
    let api = &server.api;
    let definitions: Vec<Value> = (0..100).map(large_definition).collect();
    let (definitions, bytes) = (&definitions, definitions[0].to_string().len());
    let before = server.resident_mb();
    let begun = Instant::now();
    // One user may have this many large requests waiting; more are refused.
    let run = server.drive(100, 8, async |i: usize| api.post(DEFINITIONS, &definitions[i]).await).await?;
    for definition in definitions {
        served(api, definition["metadata"]["name"].as_str().unwrap_or_default()).await?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let what = format!("100 custom kinds of {} KB, created to served", bytes / 1000);
    report.add(&what, seconds, "s", Some(AtMost(1.0)), format!("{:.0} µs of CPU each", run.cpu_micros));
    let each = (server.resident_mb() - before) * 10.0;
    report.add("memory of each of them", each, "KB", Some(AtMost(1000.0)), "");
    Ok(())
}

/// The kind is served once its definition says so.
async fn served(api: &Api, name: &str) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let path = format!("{DEFINITIONS}/{name}");
        let body = api.open(Method::GET, &path, "", Bytes::new()).await?.into_body().collect().await?.to_bytes();
        let definition: Value = serde_json::from_slice(&body)?;
        let conditions = definition["status"]["conditions"].as_array();
        if conditions.into_iter().flatten().any(|c| c["type"] == "Established" && c["status"] == "True") {
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(10) {
            bail!("the custom kind is not served: {}", definition["status"]);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn measure(server: &Server, objects: usize, report: &mut Report) -> anyhow::Result<()> {
    let api = &server.api;
    api.post(DEFINITIONS, &definition()).await?;
    served(api, "widgets.bench.io").await?;
    let run = server.drive(objects, 32, |i| async move { api.post(WIDGETS, &widget(i)).await }).await?;
    report.rate("create custom objects, 32 in flight", &run, 4000.0, 120.0);
    let get = async |i: usize| api.get(&format!("{WIDGETS}/w-{}", i % objects)).await;
    let run = server.drive(objects * 2, 32, get).await?;
    report.rate("get custom objects, 32 in flight", &run, 20_000.0, 25.0);
    let length = api.get(WIDGETS).await?;
    let run = server.drive(32, 8, |_| async move { api.get(WIDGETS).await }).await?;
    let rate = length as f64 * run.per_second() / 1e6;
    let what = format!("list {objects} custom objects, 8 at once");
    report.add(&what, rate, "MB/s", Some(AtLeast(600.0)), run.latencies());
    Ok(())
}

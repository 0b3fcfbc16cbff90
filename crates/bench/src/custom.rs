//! The rows of a custom kind: its objects take the way of the built-in ones.

use std::time::{Duration, Instant};

use anyhow::bail;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use json::{Value, json};

use crate::{
    api::Api,
    report::{Goal::AtLeast, Report},
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

/// The kind is served once its definition says so.
async fn served(api: &Api) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let path = format!("{DEFINITIONS}/widgets.bench.io");
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
    served(api).await?;
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

//! The rows of one Pod after another on a node that has nothing else to do: how long each takes, and which part of that is not the
//! engine's. The node counts the time of its calls to the engine; those of a Pod's start follow one another.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use json::{Value, json};

use crate::{
    api::{self, Api},
    report::{Goal::AtMost, Report},
};

const PODS: usize = 5;
/// The calls that a Pod waits for, as the metric names them.
const CALLS: [&str; 4] = ["run_podsandbox", "image_status", "create_container", "start_container"];

/// Over a node of the name `first`.
pub async fn measure(api: &Api, report: &mut Report) -> anyhow::Result<()> {
    let (mut whole, mut ours) = (Vec::new(), Vec::new());
    for i in 0..PODS {
        let before = in_engine(api).await?;
        let begun = Instant::now();
        run_pod(api, &format!("again-{i}")).await?;
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        whole.push(took);
        ours.push(took - (in_engine(api).await? - before));
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[PODS / 2]
    };
    report.add("Pod create to Running seen (engine time included)", median(&mut whole), "ms", None, "median of 5");
    report.add(
        "the same: beyond the node's calls to the engine",
        median(&mut ours),
        "ms",
        Some(AtMost(30.0)),
        "median of 5",
    );
    Ok(())
}

/// Milliseconds that the node has waited for those calls so far.
async fn in_engine(api: &Api) -> anyhow::Result<f64> {
    let answer = api.open(Method::GET, "/api/v1/nodes/first/proxy/metrics", "", Bytes::new()).await?;
    let text = answer.into_body().collect().await?.to_bytes();
    let text = std::str::from_utf8(&text)?;
    let waited = |call: &str| {
        let series = format!("kubelet_runtime_operations_duration_seconds_sum{{operation_type=\"{call}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        value.with_context(|| format!("the node does not count {call}"))?.parse::<f64>().context(series)
    };
    CALLS.into_iter().map(waited).sum::<anyhow::Result<f64>>().map(|seconds| seconds * 1000.0)
}

/// Creates a Pod and waits on a watch until it runs.
pub async fn run_pod(api: &Api, name: &str) -> anyhow::Result<()> {
    let path = "/api/v1/namespaces/default/pods";
    let watch = format!("{path}?watch=true&fieldSelector=metadata.name%3D{name}");
    let body = api.open(Method::GET, &watch, "", Bytes::new()).await?.into_body();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "skiff.local/busybox:1", "command": ["sleep", "100000"]}]}});
    api.post(path, &pod).await?;
    let running = api::follow(body, |line| {
        let event: Value = serde_json::from_slice(line)?;
        Ok(if event["object"]["status"]["phase"] == "Running" {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    });
    tokio::time::timeout(Duration::from_secs(60), running).await.with_context(|| format!("Pod {name} does not run"))?
}

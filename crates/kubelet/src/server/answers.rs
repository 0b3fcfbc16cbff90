//! Answers that are documents: Pods, metrics, configuration, logs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use ::logs::page;
use api::{features::Feature, object::Object, rules::pod_log::LogOptions};
use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use json::{Value, json};
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{
    answer::{Answer, document, exposition, html, text},
    volume_metrics,
};
use crate::{
    counted::Moment,
    engine::logs::{self, Options},
    kubelet::Kubelet,
    pod::{
        desired::{CONTAINER_NAME, DesiredPod, POD_NAME, POD_NAMESPACE, POD_UID},
        running,
        status::conditions::RESIZE_IN_PROGRESS,
        workers::Handle,
    },
    volume_usage, volumes,
};

pub fn pods(kubelet: &Kubelet) -> Answer {
    let with_status = |handle: &Handle| {
        let mut pod = (*handle.desired().pod).clone();
        pod.status = Some(Arc::unwrap_or_clone(handle.status()));
        pod.to_value()
    };
    // One that is only ending is no longer the node's.
    let wanted = kubelet.pods.all().into_iter().filter(|pod| !pod.desired().removed);
    let items: Vec<Value> = wanted.map(|pod| with_status(&pod)).collect();
    document(&json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }))
}

/// `/debug/flags` and `/debug/flags/v`.
pub async fn debug_flags(rest: &str, request: Request<Incoming>) -> Answer {
    let method = request.method().clone();
    let body = Limited::new(request.into_body(), page::LONGEST).collect().await;
    match body {
        Err(_) => text(StatusCode::BAD_REQUEST, "the request body is too long or broke off\n".to_owned()),
        Ok(body) => {
            let page = page::answer(method.as_str(), rest, &body.to_bytes());
            let code = StatusCode::from_u16(page.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            if page.is_html { html(page.text) } else { text(code, page.text) }
        }
    }
}

/// The Pods that the engine has containers of which run, as far as it knows them.
pub async fn running_pods(kubelet: &Kubelet) -> Answer {
    let containers = match kubelet.config.runtime.containers(None).await {
        Ok(containers) => containers,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let mut pods = BTreeMap::<[String; 3], Vec<Value>>::new();
    for container in containers.into_iter().filter(|container| container.state == RUNS) {
        let label = |name: &str| container.labels.get(name).cloned();
        let (Some(namespace), Some(pod), Some(uid), Some(name)) =
            (label(POD_NAMESPACE), label(POD_NAME), label(POD_UID), label(CONTAINER_NAME))
        else {
            continue;
        };
        let image = container.image.map(|image| image.image).unwrap_or_default();
        let one = json!({"name": name, "image": image, "resources": {}});
        pods.entry([namespace, pod, uid]).or_default().push(one);
    }
    let pod = |([namespace, name, uid], containers): ([String; 3], Vec<Value>)| json!({"metadata": {"name": name, "namespace": namespace, "uid": uid}, "spec": {"containers": containers}, "status": {}});
    let items: Vec<Value> = pods.into_iter().map(pod).collect();
    document(&json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }))
}

/// The state of a container that runs, in the engine's terms.
const RUNS: i32 = 1;

pub async fn metrics(kubelet: &Arc<Kubelet>) -> Answer {
    kubelet.figures.now(&moment(kubelet).await);
    let volumes = volume_metrics::render(&*volume_usage::read(kubelet).await);
    let rest = preemptions(&kubelet.pods.preemptions()) + &volumes + &kubelet.config.features.metrics();
    let images = kubelet.images.counts.render(kubelet.images.records.sizes());
    let certificates = kubelet.config.serving.as_ref().map(|serving| (serving.metrics)()).unwrap_or_default();
    let rest = rest + &certificates + &meter::build::page();
    exposition(kubelet.figures.render() + &kubelet.affinity.render() + &images + &rest)
}

/// The numbers of Pods, containers and volumes. Of those that the engine does not tell there are none.
async fn moment(kubelet: &Kubelet) -> Moment {
    let engine = &kubelet.config.runtime;
    let (containers, sandboxes) = tokio::join!(engine.containers(None), engine.sandboxes(None));
    let by_engine = kubelet.config.features.enabled(Feature::PodAndContainerStatsFromCRI);
    let provider = if by_engine { "cri" } else { "cadvisor" };
    let mut moment = Moment { node_name: kubelet.config.node_name.clone(), provider, ..Moment::default() };
    moment.containers.insert("running", 0);
    for container in containers.iter().flatten() {
        let state = match container.state {
            0 => "created",
            RUNS => "running",
            2 => "exited",
            _ => "unknown",
        };
        *moment.containers.entry(state).or_default() += 1;
    }
    // Several sandboxes of one Pod count once, as upstream's.
    let ready = sandboxes.iter().flatten().filter(|sandbox| sandbox.state == 0);
    moment.mirror_pods = kubelet.pods.mirrors();
    moment.running_pods = ready.filter_map(|sandbox| sandbox.labels.get(POD_UID)).collect::<BTreeSet<_>>().len();
    for pod in kubelet.pods.all() {
        let (desired, is_active) = (pod.desired(), !pod.is_over() && !pod.is_refused);
        if !desired.removed {
            let counts = &mut moment.pods[usize::from(desired.is_static)];
            *counts = (counts.0 + 1, counts.1 + usize::from(is_active));
        }
        // No worker works at one that was not let in.
        if !pod.is_refused {
            *moment.working_pods.entry(working(&desired, pod.lifecycle())).or_default() += 1;
        }
        if !is_active {
            continue;
        }
        if let Some(pending) = &desired.pending {
            *moment.pending_resizes.entry(pending.reason.to_ascii_lowercase()).or_default() += 1;
        }
        let status = pod.status();
        moment.resizes += usize::from(status.conditions.iter().flatten().any(|c| c.type_ == RESIZE_IN_PROGRESS));
        for (plugin, is_mounted) in volumes::counts(&desired.pod, &kubelet.pod_folder(desired.uid())).await {
            *moment.volumes.entry((plugin.clone(), "desired_state_of_world")).or_default() += 1;
            *moment.volumes.entry((plugin, "actual_state_of_world")).or_default() += usize::from(is_mounted);
        }
    }
    moment
}

/// The source that wants a Pod, how far its worker is, and whether it is static, in upstream's words.
fn working(desired: &DesiredPod, lifecycle: &'static str) -> [&'static str; 3] {
    if desired.runtime_only {
        return ["runtime_only", lifecycle, "unknown"];
    }
    let config = if desired.removed { "orphan" } else { "desired" };
    [config, lifecycle, if desired.is_static { "true" } else { "" }]
}

/// How often Pods had to go for critical ones. Nothing is told of what never happened.
fn preemptions(by_resource: &BTreeMap<String, u64>) -> String {
    let rows = by_resource.iter().map(|(resource, count)| {
        format!(
            "kubelet_preemptions{{preemption_signal=\"{}\"}} {count}\n",
            api::rules::metrics_text::escaped(resource)
        )
    });
    let rows: String = rows.collect();
    let help = "[ALPHA] Cumulative number of pod preemptions by preemption resource";
    let head = format!("# HELP kubelet_preemptions {help}\n# TYPE kubelet_preemptions counter\n");
    if rows.is_empty() { rows } else { head + &rows }
}

/// The options of a log's reader, from a query in the words of PodLogOptions, and whether the previous run is meant. The error is
/// upstream's.
fn options(query: &str, selects_streams: bool) -> Result<(Options, bool), (StatusCode, &'static str)> {
    let bad = |_| (StatusCode::BAD_REQUEST, "{\"message\": \"Unable to decode query.\"}");
    let asked = LogOptions::read(query).map_err(bad)?;
    if !asked.faults(selects_streams).is_empty() {
        return Err((StatusCode::UNPROCESSABLE_ENTITY, "{\"message\": \"Invalid request.\"}"));
    }
    let count = |number: Option<i64>| number.and_then(|number| usize::try_from(number).ok());
    let ago = |seconds: i64| clock::now().checked_sub(Duration::from_secs(seconds.unsigned_abs())).ok();
    let options = Options {
        follow: asked.follow,
        timestamps: asked.timestamps,
        tail: count(asked.tail_lines),
        since: asked.since_time.and_then(|time| time.parse().ok()).or_else(|| ago(asked.since_seconds?)),
        limit_bytes: count(asked.limit_bytes),
        stream: asked.stream.map(|stream| stream.to_lowercase()).filter(|stream| stream != "all"),
    };
    Ok((options, asked.previous))
}

/// The Pod of that name on this node.
pub fn find(kubelet: &Kubelet, namespace: &str, name: &str) -> Option<(DesiredPod, Arc<PodStatus>)> {
    kubelet.pods.named(namespace, name).map(|pod| (pod.desired(), pod.status()))
}

/// The run (by its id in the engine) whose log is meant. Of a container that waits it is the last one that ended. The error is
/// in upstream's words.
fn choose(status: &PodStatus, pod: &str, container: &str, previous: bool) -> Result<String, String> {
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let found = lists.into_iter().flat_map(|l| l.iter().flatten()).find(|s| s.name == container);
    let Some(found) = found else {
        return Err(format!("container \"{container}\" in pod \"{pod}\" is not available"));
    };
    let bare = |id: Option<String>| id.map(|id| id.rsplit('/').next().unwrap_or_default().to_owned());
    let (state, last) = (found.state.clone().unwrap_or_default(), found.last_state.clone().unwrap_or_default());
    let last = bare(last.terminated.and_then(|t| t.container_id));
    if previous {
        return last.ok_or_else(|| format!("previous terminated container \"{container}\" in pod \"{pod}\" not found"));
    }
    if state.running.is_some() {
        return bare(found.container_id.clone()).ok_or_else(|| format!("container \"{container}\" has no id"));
    }
    if let Some(id) = bare(state.terminated.clone().and_then(|t| t.container_id)).or(last) {
        return Ok(id);
    }
    if state.terminated.is_some() {
        return Err(format!("container \"{container}\" in pod \"{pod}\" is terminated"));
    }
    let reason = state.waiting.and_then(|w| w.reason).unwrap_or_default();
    let why = match reason.as_str() {
        "ErrImagePull" => "image can't be pulled",
        "ImagePullBackOff" => "trying and failing to pull image",
        other => other,
    };
    Err(format!("container \"{container}\" in pod \"{pod}\" is waiting to start: {why}"))
}

pub async fn logs(kubelet: Arc<Kubelet>, namespace: &str, pod: &str, container: &str, query: &str) -> Answer {
    let selects_streams = kubelet.config.features.enabled(Feature::PodLogsQuerySplitStreams);
    let (options, previous) = match options(query, selects_streams) {
        Ok(options) => options,
        Err((code, message)) => return text(code, message.to_owned()),
    };
    let Some((desired, status)) = find(&kubelet, namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod \"{pod}\" does not exist\n"));
    };
    if desired.container(container).is_none() {
        return text(StatusCode::NOT_FOUND, format!("container \"{container}\" not found in pod \"{pod}\"\n"));
    }
    let running = match running::observe(&kubelet.config, desired.uid()).await {
        Ok(running) => running,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let id = match choose(&status, pod, container, previous) {
        Ok(id) => id,
        Err(message) => return text(StatusCode::BAD_REQUEST, message),
    };
    let Some(ran) = running.containers.iter().find(|c| c.id == id) else {
        return text(StatusCode::NOT_FOUND, format!("container \"{id}\" not found\n"));
    };
    let (to, pieces) = mpsc::channel::<Bytes>(4);
    tokio::spawn(logs::send(kubelet.clone(), PathBuf::from(&ran.log_path), ran.id.clone(), options, to));
    let frames = ReceiverStream::new(pieces).map(|bytes| Ok(Frame::data(bytes)));
    let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
    answer.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{fixture, workers};

    #[test]
    fn the_log_that_is_meant() {
        let check = |state: Value, last: Option<&str>, now: &str, previous: &str| {
            let ended =
                last.map(|id| json!({"terminated": {"containerID": format!("containerd://{id}"), "exitCode": 1}}));
            let one = json!({"name": "c", "containerID": "containerd://up", "state": state, "lastState": ended});
            let status: PodStatus = json::from_value(json!({"containerStatuses": [one]})).unwrap();
            let of = |previous| choose(&status, "p", "c", previous).unwrap_or_else(|message| message);
            assert_eq!((of(false), of(true)), (now.to_owned(), previous.to_owned()), "{status:?}");
        };
        let none = "previous terminated container \"c\" in pod \"p\" not found";
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let waits = |why: &str| format!("container \"c\" in pod \"p\" is waiting to start: {why}");
        check(json!({"running": {}}), None, "up", none);
        check(json!({"running": {}}), Some("old"), "up", "old");
        check(json!({"terminated": {"exitCode": 0, "containerID": "containerd://end"}}), Some("old"), "end", "old");
        check(waiting("CrashLoopBackOff"), Some("old"), "old", "old");
        check(waiting("ContainerCreating"), None, &waits("ContainerCreating"), none);
        check(waiting("ErrImagePull"), None, &waits("image can't be pulled"), none);
        check(waiting("ImagePullBackOff"), None, &waits("trying and failing to pull image"), none);
    }

    #[tokio::test]
    async fn pods_are_counted_by_who_wants_them_and_how_far_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = fixture::kubelet(folder.path(), runtime::fake::Fake::default(), |_, _| None);
        let begin = |uid: &str, phase: &str, change: &dyn Fn(&mut DesiredPod)| {
            let object = json!({"metadata": {"uid": uid}, "spec": {"containers": []}, "status": {"phase": phase}});
            let mut desired = fixture::pod_of(object);
            change(&mut desired);
            let (handle, inbox) = workers::channels(desired, uid == "refused");
            kubelet.pods.insert(uid, handle);
            inbox
        };
        let _lives = begin("lives", "Running", &|_| ());
        let _done = begin("done", "Succeeded", &|_| ());
        let _refused = begin("refused", "Failed", &|_| ());
        let _evicted = begin("evicted", "Running", &|_| ());
        kubelet.pods.get("evicted").unwrap().evict("short of memory".to_owned(), 0);
        let _static = begin("static", "Running", &|pod| pod.is_static = true);
        let _gone = begin("gone", "Running", &|pod| (pod.is_static, pod.removed) = (true, true));
        let _unknown = begin("unknown", "", &|pod| (pod.runtime_only, pod.removed) = (true, true));
        kubelet.pods.set_mirrors(2);
        let moment = moment(&kubelet).await;
        let expected = [
            (["desired", "sync", ""], 1),
            (["desired", "sync", "true"], 1),
            (["desired", "terminated", ""], 1),
            (["desired", "terminating", ""], 1),
            (["orphan", "terminating", "true"], 1),
            (["runtime_only", "terminating", "unknown"], 1),
        ];
        assert_eq!(moment.working_pods, expected.into());
        assert_eq!((moment.pods, moment.mirror_pods), ([(4, 2), (1, 1)], 2));
    }

    #[test]
    fn what_a_query_asks() {
        let read = |query| options(query, true);
        let (options, previous) = read("follow=true&timestamps=1&tailLines=5&previous=true&limitBytes=9").unwrap();
        assert!(previous && options.follow && options.timestamps);
        assert_eq!((options.tail, options.limit_bytes), (Some(5), Some(9)));
        assert_eq!(read("stream=Stderr").unwrap().0.stream.as_deref(), Some("stderr"));
        assert_eq!(read("stream=All").unwrap().0, Options::default());
        let refused = |query| read(query).unwrap_err().0.as_u16();
        assert_eq!(["tailLines=-1", "limitBytes=0", "stream=x"].map(refused), [422; 3]);
        assert_eq!(["tailLines=abc", "sinceTime=now"].map(refused), [400; 2]);
        assert!(super::options("stream=Stderr", false).is_err());
        let since = read("sinceTime=2026-01-02T03:04:05Z").unwrap().0.since.unwrap();
        assert_eq!(since.to_string(), "2026-01-02T03:04:05Z");
    }
}

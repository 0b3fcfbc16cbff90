//! `/checkpoint/namespace/pod/container`: a running container is written into an archive on the node, where its engine can.
//! Upstream counterpart: the checkpoint handler of pkg/kubelet/server.

use std::{path::Path, sync::Arc, time::Duration};

use files::modes;
use http::StatusCode;
use json::json;

use super::{
    answer::{Answer, document, text},
    answers::find,
};
use crate::{kubelet::Kubelet, pod::running};

pub async fn answer(kubelet: &Arc<Kubelet>, (namespace, pod, name): (&str, &str, &str), query: &str) -> Answer {
    let Some((desired, _)) = find(kubelet, namespace, pod) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist\n".to_owned());
    };
    if desired.container(name).is_none() {
        return text(StatusCode::NOT_FOUND, format!("container {name} does not exist\n"));
    }
    let given = api::rules::url::query_pairs(query).find(|(key, _)| key == "timeout").map(|(_, value)| value);
    let seconds = match given.map(|text| text.parse::<u32>()).transpose() {
        Ok(seconds) => seconds.unwrap_or(0),
        Err(_) => return text(StatusCode::BAD_REQUEST, "cannot parse value of timeout parameter\n".to_owned()),
    };
    let engine = &kubelet.config.runtime;
    let failed = |code, why: &str| text(code, format!("checkpointing of {namespace}/{pod}/{name} failed ({why})\n"));
    let running = match running::observe(&kubelet.config, desired.uid()).await {
        Ok(running) => running,
        Err(error) => return failed(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    };
    let Some(ran) = running.alive().find(|ran| ran.name == name) else {
        return failed(StatusCode::INTERNAL_SERVER_ERROR, "the container does not run");
    };
    let folder = kubelet.config.root_dir.join("checkpoints");
    if let Err(error) = modes::folder(&folder, modes::PRIVATE_FOLDER) {
        return failed(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string());
    }
    let path = folder.join(file_name(namespace, pod, name, &clock::now_seconds().to_string()));
    let location = path.display().to_string();
    match engine.checkpoint(&ran.id, &location, Duration::from_secs(seconds.into())).await {
        Ok(()) => document(&json!({ "items": [location] })),
        Err(error) => {
            // An archive that the engine may have begun is no checkpoint.
            let _ = files::remove(Path::new(&location));
            let code = if error.is_unimplemented() { StatusCode::NOT_FOUND } else { StatusCode::INTERNAL_SERVER_ERROR };
            failed(code, error.words())
        }
    }
}

/// Upstream's name of the archive.
fn file_name(namespace: &str, pod: &str, container: &str, time: &str) -> String {
    format!("checkpoint-{pod}_{namespace}-{container}-{time}.tar")
}

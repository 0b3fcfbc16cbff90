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

/// No checkpoint is waited for longer than a day, however long a client would.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

pub async fn answer(kubelet: &Arc<Kubelet>, (namespace, pod, name): (&str, &str, &str), query: &str) -> Answer {
    let Some((desired, _)) = find(kubelet, namespace, pod) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist\n".to_owned());
    };
    if desired.container(name).is_none() {
        return text(StatusCode::NOT_FOUND, format!("container {name} does not exist\n"));
    }
    let given = api::rules::url::query_pairs(query).filter(|(key, _)| key == "timeout").map(|(_, value)| value).last();
    let Ok(seconds) = given.map_or(Ok(0), |text| text.parse::<i64>()) else {
        return text(StatusCode::NOT_FOUND, "cannot parse value of timeout parameter\n".to_owned());
    };
    let engine = &kubelet.config.runtime;
    let failed = |why: &str| {
        let words = format!("checkpointing of {namespace}/{pod}/{name} failed ({why})\n");
        text(StatusCode::INTERNAL_SERVER_ERROR, words)
    };
    let Ok(seconds) = u64::try_from(seconds) else {
        let why = "CheckpointContainer requires the timeout value to be > 0";
        return failed(why);
    };
    let limit = Duration::from_secs(seconds).min(LONGEST);
    let running = match running::observe(&kubelet.config, desired.uid()).await {
        Ok(running) => running,
        Err(error) => return failed(&error.to_string()),
    };
    let Some(ran) = running.alive().find(|ran| ran.name == name) else {
        return failed(&format!("container {name} not found"));
    };
    let folder = kubelet.config.root_dir.join("checkpoints");
    if let Err(error) = modes::folder(&folder, modes::PRIVATE_FOLDER) {
        return failed(&error.to_string());
    }
    let path = folder.join(file_name(namespace, pod, name, &clock::now_seconds().to_string()));
    let location = path.display().to_string();
    match engine.checkpoint(&ran.id, &location, limit).await {
        Ok(()) => document(&json!({ "items": [location] })),
        Err(error) => {
            // An archive that the engine may have begun is no checkpoint.
            let _ = files::remove(Path::new(&location));
            failed(&error.to_string())
        }
    }
}

/// Upstream's name of the archive.
fn file_name(namespace: &str, pod: &str, container: &str, time: &str) -> String {
    format!("checkpoint-{pod}_{namespace}-{container}-{time}.tar")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures::FutureExt;
    use http_body_util::BodyExt;
    use json::Value;
    use runtime::{
        cri_api::{ContainerMetadata, PodSandboxConfig, PodSandboxMetadata},
        engine::Runtime,
        fake::{Fake, Moment},
    };

    use super::*;
    use crate::pod::{
        desired::{CONTAINER_NAME, POD_UID},
        fixture, workers,
    };

    /// A node with the Pod `d/p`, of whose containers `c` runs, and `i` does not any more.
    struct World {
        folder: tempfile::TempDir,
        engine: Fake,
        kubelet: Arc<Kubelet>,
        _inbox: workers::Inbox,
    }

    impl World {
        async fn new() -> World {
            let (folder, engine) = (tempfile::tempdir().unwrap(), Fake::default());
            let kubelet = fixture::kubelet(folder.path(), engine.clone(), |_, _| None);
            let spec = json!({"initContainers": [{"name": "i", "image": "i:1"}], "containers": [{"name": "c", "image": "i:1"}]});
            let desired = fixture::pod_of(json!({ "spec": spec }));
            let labels =
                |name: &str| [(POD_UID, "u"), (CONTAINER_NAME, name)].map(|(k, v)| (k.to_owned(), v.to_owned()));
            let sandbox = PodSandboxConfig {
                metadata: Some(PodSandboxMetadata { name: "p".into(), uid: "u".into(), ..Default::default() }),
                labels: labels("").into(),
                ..Default::default()
            };
            let id = engine.run_sandbox(sandbox.clone(), "").await.unwrap();
            for name in ["i", "c"] {
                let config = runtime::container::ContainerConfig {
                    metadata: Some(ContainerMetadata { name: name.into(), attempt: 0 }),
                    labels: labels(name).into(),
                    ..Default::default()
                };
                let container = engine.create_container(&id, config, sandbox.clone()).await.unwrap();
                engine.start_container(&container).await.unwrap();
            }
            engine.exit("i", 0);
            let (handle, inbox) = workers::channels(desired, false);
            kubelet.pods.insert("u", handle);
            World { folder, engine, kubelet, _inbox: inbox }
        }

        async fn ask(&self, (pod, container): (&str, &str), query: &str) -> (u16, String) {
            let answer = answer(&self.kubelet, ("d", pod, container), query).await;
            let code = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (code, String::from_utf8(body.to_vec()).unwrap())
        }

        fn asked(&self) -> usize {
            self.engine.calls().iter().filter(|call| *call == "checkpoint c").count()
        }

        fn archives(&self) -> Vec<String> {
            let files = fs::read_dir(self.folder.path().join("kubelet/checkpoints")).into_iter().flatten().flatten();
            files.map(|file| file.path().display().to_string()).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_archive_is_named_after_the_container_and_the_moment() {
        let world = World::new().await;
        clock::simulate(fixture::now(), 1);
        let (code, body) = world.ask(("p", "c"), "timeout=x&timeout=7").await;
        assert_eq!(code, 200, "of several limits the last one counts: {body}");
        let name = "kubelet/checkpoints/checkpoint-p_d-c-2023-11-14T22:13:20Z.tar";
        let items = json!({"items": [world.folder.path().join(name).display().to_string()]});
        assert_eq!((serde_json::from_str::<Value>(&body).unwrap(), world.asked()), (items, 1));
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(world.folder.path().join("kubelet/checkpoints")).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o700, "all of the container's memory is in there");
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_done_is_refused_in_upstreams_words() {
        let world = World::new().await;
        let failed = |name: &str, why: &str| (500, format!("checkpointing of d/p/{name} failed ({why})\n"));
        let wrong = (404, "cannot parse value of timeout parameter\n".to_owned());
        for (of, query, expected) in [
            (("q", "c"), "", (404, "pod does not exist\n".to_owned())),
            (("p", "x"), "", (404, "container x does not exist\n".to_owned())),
            (("p", "c"), "timeout=7s", wrong.clone()),
            (("p", "c"), "timeout=", wrong.clone()),
            (("p", "c"), "timeout=9223372036854775808", wrong),
            (("p", "c"), "timeout=-1", failed("c", "CheckpointContainer requires the timeout value to be > 0")),
            (("p", "i"), "", failed("i", "container i not found")),
        ] {
            assert_eq!(world.ask(of, query).await, expected, "{of:?} {query}");
        }
        assert_eq!(world.asked(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_cannot_do_it_says_so_and_leaves_nothing() {
        let world = World::new().await;
        let words = "rpc error: code = Unimplemented desc = unknown method CheckpointContainer";
        let begun = world.folder.path().join("kubelet/checkpoints");
        world.engine.intercept(Some(Arc::new(move |call, moment| {
            let is_it = call == "checkpoint c" && moment == Moment::After;
            let begun = begun.clone();
            async move {
                if !is_it {
                    return Ok(());
                }
                fs::write(begun.join("checkpoint-p_d-c-1970-01-01T00:00:00Z.tar"), "half").unwrap();
                Err(runtime::Error::Refused { code: runtime::grpc::Code::Unimplemented, message: words.to_owned() })
            }
            .boxed()
        })));
        clock::simulate(clock::Timestamp::from_second(0).unwrap(), 1);
        let expected = (500, format!("checkpointing of d/p/c failed ({words})\n"));
        assert_eq!(world.ask(("p", "c"), "timeout=3").await, expected);
        assert_eq!((world.asked(), world.archives()), (1, Vec::<String>::new()));
    }
}

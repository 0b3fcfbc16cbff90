//! Variables that come from a file which another container wrote.
//! Upstream counterpart: test/e2e/common/node/file_key.go.

use json::{Value, json};

use crate::tests::world::{World, until};

fn spec(key: &str, optional: bool) -> Value {
    let from = json!({"volumeName": "config", "path": "config.env", "key": key, "optional": optional});
    json!({
        "restartPolicy": "Never",
        "initContainers": [{"name": "i", "image": "x:1", "volumeMounts": [{"name": "config", "mountPath": "/data"}]}],
        "containers": [{"name": "m", "image": "x:1", "env": [{"name": "X", "valueFrom": {"fileKeyRef": from}}]}],
        "volumes": [{"name": "config", "emptyDir": {}}],
    })
}

fn state(world: &World) -> Value {
    world.pod("p").map(|pod| pod["status"]["containerStatuses"][0]["state"].clone()).unwrap_or_default()
}

/// The value that the variable has in the container's configuration.
fn value(world: &World) -> Option<String> {
    let config = world.engine.container("m")?;
    config.envs.into_iter().find(|variable| variable.key == "X").map(|variable| variable.value)
}

/// Lets the first container write this and end.
async fn write(world: &World, text: &str) {
    until("the first container runs", || world.engine.running() == ["i"]).await;
    std::fs::write(world.pod_dir("p").join("volumes/kubernetes.io~empty-dir/config/config.env"), text).unwrap();
    world.engine.exit("i", 0);
}

#[test]
fn a_container_begins_with_what_the_one_before_it_wrote() {
    for (key, optional, expected) in [("A", false, Some("1")), ("B", true, None)] {
        let world = World::new();
        world.make_pod("p", spec(key, optional));
        world.life(None, async || {
            write(&world, "# by the first\nA='1'\n").await;
            until("the Pod is ready", || world.is_ready("p")).await;
            assert_eq!(value(&world).as_deref(), expected, "{key}");
            assert!(world.engine.mounts("m").iter().all(|mount| mount.container_path != "/data"));
        });
    }
}

#[test]
fn a_variable_that_is_not_there_keeps_its_container_from_starting_until_it_is() {
    for (text, why) in
        [("B='1'\n", "environment variable key \"A\" not found in file"), ("A=1\n", "couldn't parse env file")]
    {
        let world = World::new();
        world.make_pod("p", spec("A", false));
        world.life(None, async || {
            write(&world, text).await;
            until("it is told", || state(&world)["waiting"]["reason"] == "CreateContainerConfigError").await;
            assert_eq!(state(&world)["waiting"]["message"], why);
            assert_eq!(world.asked("create m"), 0);
            let file = world.pod_dir("p").join("volumes/kubernetes.io~empty-dir/config/config.env");
            std::fs::write(file, "A='2'").unwrap();
            until("the Pod is ready", || world.is_ready("p")).await;
            assert_eq!(value(&world).as_deref(), Some("2"));
        });
    }
}

#[test]
fn a_link_out_of_the_volume_tells_nothing_of_the_node() {
    let world = World::new();
    world.make_pod("p", spec("A", false));
    let secret = world.path("secret");
    std::fs::write(&secret, "A='s3cret'").unwrap();
    world.life(None, async || {
        until("the first container runs", || world.engine.running() == ["i"]).await;
        let file = world.pod_dir("p").join("volumes/kubernetes.io~empty-dir/config/config.env");
        std::os::unix::fs::symlink(&secret, file).unwrap();
        world.engine.exit("i", 0);
        until("it is told", || state(&world)["waiting"]["reason"] == "CreateContainerConfigError").await;
        assert_eq!(world.asked("create m"), 0);
        assert!(!world.api.has_said("s3cret"));
    });
}

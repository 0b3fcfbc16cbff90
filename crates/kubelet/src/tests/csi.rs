//! CSI drivers and their volumes: what the API hears of them, what they are asked, whatever becomes of drivers and kubelets.

use json::{Value, json};

use crate::{
    csi::messages::{NodeInfo, Topology},
    tests::{
        csi_driver::{CsiDriver, Disks, Mood},
        world::{World, until},
    },
};

const D: &str = "d.example.com";
const REFUSED: &str = "RegisterPlugin error -- plugin registration failed with err: ";

/// The drivers in the node's CSINode.
fn drivers(world: &World) -> Value {
    world.api.get("/apis/storage.k8s.io/v1/csinodes/n1").unwrap_or_default()["spec"]["drivers"].clone()
}

/// An annotation or a label of the Node.
fn node_says(world: &World, list: &str, name: &str) -> Value {
    world.api.get("/api/v1/nodes/n1").unwrap_or_default()["metadata"][list][name].clone()
}

fn ids(world: &World) -> Value {
    node_says(world, "annotations", "csi.volume.kubernetes.io/nodeid")
}

fn info(node_id: &str, most: i64, zone: &str) -> NodeInfo {
    let segments = [("example.com/zone".to_owned(), zone.to_owned())].into();
    let accessible_topology = Some(Topology { segments });
    NodeInfo { node_id: node_id.to_owned(), max_volumes_per_node: most, accessible_topology }
}

#[test]
fn what_a_driver_says_of_the_node_is_in_the_api_as_long_as_it_is_there() {
    let world = World::new();
    world.life(None, async || {
        let driver = CsiDriver::at(&world, D, &["1.0.0"]);
        *driver.disks.info.lock() = info("here", 7, "z1");
        until("it is registered", || driver.is_registered()).await;
        let entry =
            json!({"name": D, "nodeID": "here", "topologyKeys": ["example.com/zone"], "allocatable": {"count": 7}});
        assert_eq!(drivers(&world), json!([entry]));
        let owner = &world.api.get("/apis/storage.k8s.io/v1/csinodes/n1").unwrap()["metadata"]["ownerReferences"][0];
        assert_eq!(*owner, json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1"}));
        assert_eq!(ids(&world), r#"{"d.example.com":"here"}"#);
        assert_eq!(node_says(&world, "labels", "example.com/zone"), "z1");
        let other = CsiDriver::at(&world, "e.example.com", &["1.5.0"]);
        until("another one is registered", || other.is_registered()).await;
        assert_eq!(drivers(&world).as_array().unwrap().len(), 2);
        assert_eq!(ids(&world), r#"{"d.example.com":"here","e.example.com":"node-1"}"#);
        drop(driver);
        until("the first one is gone", || drivers(&world).as_array().unwrap().len() == 1).await;
        until("its id is gone", || ids(&world) == r#"{"e.example.com":"node-1"}"#).await;
        // Pods may go by the label.
        assert_eq!(node_says(&world, "labels", "example.com/zone"), "z1");
        drop(other);
        until("all ids are gone", || ids(&world).is_null()).await;
        assert_eq!(drivers(&world), json!([]));
    });
}

#[test]
fn a_driver_that_changes_its_mind_is_asked_again_in_the_period_of_its_object() {
    let world = World::new();
    world.life(None, async || {
        let object = |period: Option<u64>| {
            let path = format!("/apis/storage.k8s.io/v1/csidrivers/{D}");
            let spec = json!({"nodeAllocatableUpdatePeriodSeconds": period});
            world.api.put(&path, json!({"metadata": {"name": D}, "spec": spec}));
        };
        let count = || drivers(&world)[0]["allocatable"]["count"].clone();
        let driver = CsiDriver::at(&world, D, &["1.0.0"]);
        *driver.disks.info.lock() = info("here", 7, "z1");
        until("it is registered", || driver.is_registered()).await;
        *driver.disks.info.lock() = info("here", 5, "z1");
        object(None);
        clock::sleep(std::time::Duration::from_secs(600)).await;
        assert_eq!(count(), 7, "nobody said that it changes");
        object(Some(60));
        until("it is asked again", || count() == 5).await;
        *driver.disks.info.lock() = info("here", 6, "z1");
        until("and again", || count() == 6).await;
        object(None);
        *driver.disks.info.lock() = info("here", 9, "z1");
        clock::sleep(std::time::Duration::from_secs(600)).await;
        assert_eq!(count(), 6, "it is not asked any more");
    });
}

#[test]
fn a_driver_that_says_nothing_useful_is_told_why_it_is_not_taken() {
    let world = World::new();
    world.life(None, async || {
        let told = async |driver: &CsiDriver| {
            until("it is told", || !driver.told().is_empty()).await;
            driver.told()[0].clone()
        };
        let old = CsiDriver::at(&world, D, &["0.3.0"]);
        let endpoint = world.kubelet_folder().join("plugins").join(D).join("csi.sock");
        let why = format!(
            "RegisterPlugin error -- plugin validation failed with err: validation failed for CSI Driver {D} at endpoint \
             {}: kubernetes.io/csi: ValidatePlugin for CSI driver {D:?} failed. None of the versions specified [\"0.3.0\"] \
             are supported. err=highest supported version reported by driver is 0.3.0, must be v1.x",
            endpoint.display()
        );
        assert_eq!(told(&old).await, (false, why));
        drop(old);
        // A name becomes a part of paths.
        let climbing = CsiDriver::with(&world, "../../x", &["1.0.0"], "climbing", Disks::new(&world));
        let (taken, why) = told(&climbing).await;
        assert!(!taken && why.contains("validation failed for CSI Driver ../../x at endpoint"), "{why}");
        let nameless = CsiDriver::at(&world, "nameless.example.com", &["1.0.0"]);
        *nameless.disks.info.lock() = NodeInfo::default();
        let empty = "error adding CSI driver node info: driverNodeID must not be empty";
        assert_eq!(told(&nameless).await, (false, format!("{REFUSED}{empty}")));
        drop(nameless);
        let refusing = CsiDriver::at(&world, "refusing.example.com", &["1.0.0"]);
        refusing.disks.becomes("GetInfo", Some(Mood::Refusing("no")));
        assert_eq!(told(&refusing).await, (false, format!("{REFUSED}rpc error: code = Internal desc = no")));
        // It comes to itself, and is asked again.
        refusing.disks.becomes("GetInfo", None);
        until("it is registered", || refusing.is_registered()).await;
        // One that hangs is not waited for without end, and keeps nobody else.
        let hanging = CsiDriver::at(&world, "hanging.example.com", &["1.0.0"]);
        hanging.disks.becomes("GetInfo", Some(Mood::Hanging));
        let late = "rpc error: code = DeadlineExceeded desc = context deadline exceeded";
        assert_eq!(told(&hanging).await, (false, format!("{REFUSED}{late}")));
        assert_eq!(drivers(&world).as_array().unwrap().len(), 1);
    });
}

#[test]
fn a_driver_does_not_move_a_node_to_another_zone() {
    let world = World::new();
    world.life(None, async || {
        let first = CsiDriver::at(&world, D, &["1.0.0"]);
        *first.disks.info.lock() = info("here", 0, "z1");
        until("it is registered", || first.is_registered()).await;
        let second = CsiDriver::at(&world, "e.example.com", &["1.0.0"]);
        *second.disks.info.lock() = info("there", 0, "z2");
        until("it is told", || !second.told().is_empty()).await;
        let why = "error updating Node object with CSI driver node info: error updating node: detected topology value \
                   collision: driver reported \"example.com/zone\":\"z2\" but existing label is \"example.com/zone\":\"z1\"";
        assert_eq!(second.told()[0], (false, format!("{REFUSED}{why}")));
        assert_eq!(drivers(&world).as_array().unwrap().len(), 1);
        assert_eq!(ids(&world), r#"{"d.example.com":"here"}"#);
    });
}

#[test]
fn of_two_processes_of_a_driver_the_newer_version_counts() {
    let world = World::new();
    world.life(None, async || {
        let first = CsiDriver::with(&world, D, &["1.1.0"], "first", Disks::new(&world));
        until("it is registered", || first.is_registered()).await;
        let same = CsiDriver::with(&world, D, &["1.1.0"], "same", Disks::new(&world));
        until("the same is told", || !same.told().is_empty()).await;
        let (taken, why) = same.told()[0].clone();
        let held = "Another driver with the same name is already registered with a higher supported version: \"1.1.0\"";
        assert!(!taken && why.ends_with(held), "{why}");
        drop(same);
        let newer = CsiDriver::with(&world, D, &["1.2.0"], "newer", Disks::new(&world));
        *newer.disks.info.lock() = info("first", 3, "z");
        until("the newer one is registered", || newer.is_registered()).await;
        assert_eq!(drivers(&world)[0]["nodeID"], "first");
        // A socket that an old process leaves is not the newer one's end.
        drop(first);
        let next = CsiDriver::at(&world, "e.example.com", &["1.0.0"]);
        until("the one after it is registered", || next.is_registered()).await;
        assert_eq!(drivers(&world)[0]["nodeID"], "first");
        drop(newer);
        until("it is gone", || drivers(&world).as_array().unwrap().len() == 1).await;
    });
}

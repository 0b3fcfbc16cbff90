//! Huge pages: what the node shows of them, and what its Pods get.

use std::fs;

use json::json;

use crate::{
    affinity::fixture::single_socket_ht,
    node::huge_pages::HugePages,
    tests::world::{World, until},
};

const MIB: i64 = 1 << 20;

#[test]
fn a_pod_gets_the_huge_pages_that_it_asks_for_and_no_more_than_there_are() {
    let pages = vec![HugePages { page: 2 * MIB, bytes: 512 * MIB }, HugePages { page: 1024 * MIB, bytes: 0 }];
    let world = World::on_machine(&single_socket_ht(), 4).with_huge_pages(pages);
    fs::create_dir_all(world.cgroups().join("hugetlb")).unwrap();
    let spec = |name: &str, bytes: &str| {
        let amounts = json!({"cpu": "1", "memory": "64Mi", "hugepages-2Mi": bytes});
        let mounts = json!([{"name": "v", "mountPath": "/pages"}]);
        let resources = json!({"requests": amounts, "limits": amounts});
        let container = json!({"name": name, "image": "x:1", "resources": resources, "volumeMounts": mounts});
        let volume = json!({"name": "v", "emptyDir": {"medium": "HugePages"}});
        json!({"terminationGracePeriodSeconds": 5, "containers": [container], "volumes": [volume]})
    };
    world.life(None, async || {
        let status = |list: &str| world.api.get("/api/v1/nodes/n1").unwrap_or_default()["status"][list].clone();
        until("the node is there", || !status("capacity").is_null()).await;
        let shown = |list: &str| ["memory", "hugepages-2Mi", "hugepages-1Gi"].map(|name| status(list)[name].clone());
        assert_eq!(shown("capacity"), ["4194304Ki", "512Mi", "0"].map(json::Value::from));
        assert_eq!(shown("allocatable"), ["3670016Ki", "512Mi", "0"].map(json::Value::from));
        world.make_pod("p", spec("p", "500Mi"));
        until("it is ready", || world.is_ready("p")).await;
        let told = world.engine.resources("p").unwrap().hugepage_limits;
        let told: Vec<_> = told.iter().map(|limit| (limit.page_size.as_str(), limit.limit)).collect();
        assert_eq!(told, [("2MB", 500 << 20), ("1GB", 0)]);
        let limit = |path: &str| fs::read_to_string(world.cgroups().join("hugetlb/kubepods").join(path)).unwrap();
        assert_eq!(limit("podp-1/hugetlb.2MB.limit_in_bytes"), (500 * MIB).to_string());
        assert_eq!(limit("podp-1/hugetlb.1GB.limit_in_bytes"), "0");
        assert_eq!(limit("hugetlb.2MB.limit_in_bytes"), (512 * MIB).to_string());
        assert!(world.mounts.points().iter().any(|point| point.ends_with("v")), "{:?}", world.mounts.points());
        world.make_pod("q", spec("q", "14Mi"));
        until("there is none left", || world.phase("q") == "Failed").await;
        assert_eq!(world.pod("q").unwrap()["status"]["reason"], "OutOfhugepages-2Mi");
        world.delete_pod("p");
        until("it is gone", || world.pod("p").is_none()).await;
        assert!(world.mounts.points().is_empty());
        // A volume of pages that nobody asks for is not made.
        let mut plain = spec("r", "2Mi");
        plain["volumes"][0]["emptyDir"]["medium"] = "HugePages-1Gi".into();
        world.make_pod("r", plain);
        let why = "FailedMount: MountVolume.SetUp failed for volume \"v\" : medium HugePages-1Gi: hugePages storage \
                   requested, but there is no resource request for huge pages";
        until("it is told", || world.api.has_said(why)).await;
    });
}

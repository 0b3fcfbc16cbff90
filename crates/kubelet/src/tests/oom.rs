//! Memory that runs out: what the node tells when the kernel's log says so.

use std::{fs::File, io::Write};

use nix::sys::stat::Mode;

use crate::tests::world::{World, until};

const BEGINS: &str = "4,1,1,-;a invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0";

#[test]
fn a_machine_without_memory_is_an_event_of_its_node_and_a_cgroup_without_is_none() {
    let world = World::new();
    let path = world.path("kmsg");
    nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)).unwrap();
    // Both ends of it stay open from one kubelet to the next.
    let mut kernel = File::options().read(true).write(true).open(&path).unwrap();
    *world.kernel_log.lock() = Some(path);
    let told = || {
        let all = world.api.events("n1");
        all.into_iter().filter_map(|event| event.strip_prefix("SystemOOM ").map(str::to_owned)).collect::<Vec<_>>()
    };
    let of_cgroup = "4,2,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
        oom_memcg=/kubepods/podu,task_memcg=/kubepods/podu/c,task=a,pid=5,uid=0";
    // A program wrote this, as the number at its beginning says.
    let forged = "12,3,3,-;a invoked oom-killer: x\n12,4,4,-;Out of memory: Killed process 1 (init) total-vm:1kB";
    world.life(None, async || {
        writeln!(kernel, "{BEGINS}\n{of_cgroup}\n{forged}").unwrap();
        writeln!(kernel, "{BEGINS}\n4,5,5,-;Out of memory: Killed process 41 (hog) total-vm:2236kB, UID:0").unwrap();
        until("the node tells", || !told().is_empty()).await;
        assert_eq!(told(), ["System OOM encountered, victim process: hog, pid: 41"]);
    });
    world.life(None, async || {
        writeln!(kernel, "{BEGINS}\n4,6,6,-;Out of memory: Killed process 42 (hog) total-vm:2236kB, UID:0").unwrap();
        until("the next kubelet tells on", || told().len() == 2).await;
    });
    // The kubelet of a machine that lets nobody read its log works all the same.
    *world.kernel_log.lock() = Some(world.path("none"));
    world.make_pod("p", json::json!({"containers": [{"name": "m", "image": "x:1"}]}));
    world.life(None, async || until("the Pod is ready", || world.is_ready("p")).await);
}

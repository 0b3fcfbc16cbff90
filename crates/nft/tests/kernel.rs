//! Changes by others to rules in the real kernel, in a network namespace that the test makes itself.
//! One test alone: the transactions of a process are counted together, whatever namespaces they are in.

use std::{fs::File, process::Command, time::Duration};

use nix::sched::{CloneFlags, setns};

const TABLE: &str = "ip t";
const SCRIPT: &str = "add table ip t
delete table ip t
table ip t {
  comment \"made by a test\"
  map m { type ipv4_addr : verdict; }
  chain one { type nat hook output priority -100; ip daddr 192.0.2.1 accept; ip daddr vmap @m; }
  chain two { drop; }
}
add chain ip t three
add rule ip t three accept
add element ip t m { 192.0.2.2 : goto two, 192.0.2.3 : goto three }
";

struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn what_others_take_away_is_noticed() {
    let namespace = Namespace(format!("skiff-nft-{}", std::process::id()));
    let made = Command::new("ip").args(["netns", "add", &namespace.0]).output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("SKIPPED: network namespaces need root and iproute2");
        return;
    }
    let inside = File::open(format!("/run/netns/{}", namespace.0)).unwrap();
    let work = move || {
        setns(&inside, CloneFlags::CLONE_NEWNET).unwrap();
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(story());
    };
    // A thread of its own, because the namespace is a thread's property.
    std::thread::spawn(work).join().unwrap();
}

async fn story() {
    let mut watch = nft::Watch::default();
    nft::transaction(SCRIPT).await.unwrap();
    assert_eq!(nft::Census::of_kernel(TABLE).await.unwrap(), Some(nft::Census::of_script(SCRIPT)));
    for (command, expected) in [
        ("add table ip stranger", None),
        ("add rule ip t two accept", None),
        ("delete element ip t m { 192.0.2.3 }", Some("set m holds 1 instead of 2")),
        ("flush chain ip t one", Some("chain one holds 0 instead of 2")),
        ("flush table ip t", Some("chain one holds 0 instead of 2")),
        ("flush ruleset", Some("the whole table")),
    ] {
        // Own changes are no news, however many; the first look only counts.
        for _ in 0..3 {
            nft::remove_table("ip own").await.unwrap();
        }
        tokio::time::timeout(Duration::from_secs(3), watch.others()).await.expect_err("only own changes");
        let done = Command::new("nft").args(command.split(' ')).output().unwrap();
        assert!(done.status.success(), "{command}: {done:?}");
        watch.others().await;
        assert_eq!(watch.missing(TABLE, SCRIPT).await.as_deref(), expected, "{command}");
        nft::transaction(SCRIPT).await.unwrap();
        assert_eq!(watch.missing(TABLE, SCRIPT).await, None);
    }
}

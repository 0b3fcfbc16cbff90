//! Volumes of a target that a script stands for.

use super::*;
use crate::volumes::remote::{Disks, programs::Fakes};

const IQN: &str = "iqn.2016-04.test:disk";
const PORTAL: &str = "10.0.0.1:3260";

/// A target with two disks, as iscsiadm shows it. The file `session` says whether there is a session.
const TARGET: &str = r#"
state=down
[ ! -e session ] || read state <session
case "$*" in
"-m session")
    [ "$state" = up ] || { echo "iscsiadm: No active sessions." >&2; exit 21; }
    echo "tcp: [1] 10.0.0.1:3260,1 iqn.2016-04.test:disk (non-flash)" ;;
*--login)
    [ ! -e broken ] || { echo "login failed for password s3cret" >&2; exit 24; }
    echo up >session
    for lun in 0 1; do : >"ip-10.0.0.1:3260-iscsi-iqn.2016-04.test:disk-lun-$lun"; done ;;
*--logout)
    [ "$state" = up ] || exit 21
    echo down >session ;;
*"-o show") printf 'iface.iscsi_ifacename = default\niface.transport_name = tcp\niface.initiatorname = <empty>\n' ;;
esac
"#;

struct World {
    fakes: Fakes,
    remote: Remote,
    pods: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let fakes = Fakes::in_a_new_folder();
        fakes.add("iscsiadm", TARGET);
        let remote = Remote::new(fakes.programs(), Disks::below(fakes.folder.path()));
        World { fakes, remote, pods: tempfile::tempdir().unwrap() }
    }

    fn pod(&self, name: &str) -> PathBuf {
        self.pods.path().join(name)
    }

    async fn attach(&self, pod: &str, lun: i32, chap: &Chap) -> Result<PathBuf, String> {
        self.remote.attach(&self.pod(pod), "v", &disk(lun), chap).await
    }

    async fn detach(&self, pod: &str) {
        self.remote.detach(&self.pod(pod), "v").await.unwrap();
    }

    /// The calls of iscsiadm that begin or end something.
    fn turns(&self) -> Vec<String> {
        let counts = |call: &String| ["--login", "--logout", "--rescan"].iter().any(|word| call.ends_with(word));
        let of = |call: String| call.rsplit_once("--").map(|(_, word)| word.to_owned()).unwrap_or_default();
        self.fakes.calls().into_iter().filter(counts).map(of).collect()
    }
}

fn disk(lun: i32) -> Disk {
    let interface = "default".to_owned();
    Disk { portals: vec![PORTAL.to_owned()], iqn: IQN.to_owned(), lun, interface, own: None }
}

#[tokio::test]
async fn the_last_volume_of_a_target_ends_the_session() {
    let world = World::new();
    let path = world.attach("a", 0, &Chap::default()).await.unwrap();
    assert!(path.ends_with(format!("ip-{PORTAL}-iscsi-{IQN}-lun-0")));
    assert!(is_known(&world.pod("a"), "v"));
    world.attach("a", 0, &Chap::default()).await.unwrap();
    world.attach("b", 1, &Chap::default()).await.unwrap();
    assert_eq!(world.turns(), ["login", "rescan", "rescan"]);
    world.detach("a").await;
    assert_eq!(world.turns().len(), 3, "another Pod has a disk of it");
    assert!(!is_known(&world.pod("a"), "v"));
    world.detach("b").await;
    assert_eq!(world.turns().last().unwrap(), "logout");
    let last = world.fakes.calls().pop().unwrap();
    assert_eq!(last, format!("iscsiadm -m node -p {PORTAL} -T {IQN} -I default -o delete"));
    world.detach("b").await;
    world.detach("nobody").await;
    assert_eq!(world.turns().len(), 4);
}

#[tokio::test]
async fn a_session_of_the_administrators_stays() {
    let world = World::new();
    world.fakes.programs().run("iscsiadm", &["--login"]).await.unwrap();
    world.attach("a", 0, &Chap::default()).await.unwrap();
    world.attach("b", 1, &Chap::default()).await.unwrap();
    world.detach("a").await;
    world.detach("b").await;
    assert_eq!(world.turns(), ["login", "rescan", "rescan"]);
}

#[tokio::test]
async fn secrets_are_neither_told_nor_kept() {
    let world = World::new();
    std::fs::write(world.fakes.folder.path().join("broken"), "").unwrap();
    let secrets = [("node.session.auth.username", "me"), ("node.session.auth.password", "s3cret")];
    let secrets = secrets.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let chap = Chap { discovery: false, session: true, secrets };
    let why = world.attach("a", 0, &chap).await.unwrap_err();
    assert!(why.contains("login failed for password ***") && !why.contains("s3cret"), "{why}");
    let record = std::fs::read_to_string(record::file(&world.pod("a"), "v")).unwrap();
    assert!(!record.contains("s3cret") && record.contains(IQN));
    let given: Vec<String> = world.fakes.calls().into_iter().filter(|call| call.contains("auth.")).collect();
    let place = format!("iscsiadm -m node -p {PORTAL} -T {IQN} -I default -o update -n node.session.auth");
    assert_eq!(
        given,
        [
            format!("{place}.authmethod -v CHAP"),
            format!("{place}.username -v me"),
            format!("{place}.password -v s3cret")
        ]
    );
    // A beginning that came to nothing is undone, too.
    world.detach("a").await;
    assert!(!is_known(&world.pod("a"), "v"));
}

#[tokio::test]
async fn an_interface_of_its_own_has_its_name() {
    let world = World::new();
    let own = Some((format!("{PORTAL}:v"), "iqn.2020-01.me:node".to_owned()));
    let disk = Disk { own, ..disk(0) };
    world.remote.attach(&world.pod("a"), "v", &disk, &Chap::default()).await.unwrap();
    world.detach("a").await;
    let calls: Vec<String> = world.fakes.calls().into_iter().filter(|call| call.contains("-m iface")).collect();
    let at = format!("iscsiadm -m iface -I {PORTAL}:v -o");
    assert_eq!(
        calls,
        [
            "iscsiadm -m iface -I default -o show".to_owned(),
            format!("{at} new"),
            format!("{at} update -n iface.transport_name -v tcp"),
            format!("{at} update -n iface.initiatorname -v iqn.2020-01.me:node"),
            format!("{at} delete"),
        ]
    );
}

#[tokio::test]
async fn what_is_missing_is_said() {
    let fakes = Fakes::in_a_new_folder();
    let remote = Remote::new(fakes.programs(), Disks::below(fakes.folder.path()));
    let pods = tempfile::tempdir().unwrap();
    let why = remote.attach(&pods.path().join("a"), "v", &disk(0), &Chap::default()).await.unwrap_err();
    assert!(why.starts_with("iscsiadm is not on this node") && why.contains("open-iscsi"), "{why}");
}

#[test]
fn names_of_a_disk_are_no_paths() {
    let portal = |portal: &str| Disk { portals: vec![portal.to_owned()], ..disk(0) }.checked();
    let check = |text: &str, expected: Option<&str>| {
        let checked = portal(text).ok().map(|disk| disk.portals[0].clone());
        assert_eq!(checked.as_deref(), expected, "{text:?}");
    };
    check("10.0.0.1", Some("10.0.0.1:3260"));
    check("10.0.0.1:860", Some("10.0.0.1:860"));
    check("fd00::1", Some("[fd00::1]:3260"));
    check("[fd00::1]:860", Some("[fd00::1]:860"));
    for bad in ["", "../../dev/sda", "10.0.0.1/..", "-p", "a b", "10.0.0.1,1"] {
        check(bad, None);
    }
    for bad in ["", "iqn.a/../b", "--login", "iqn a"] {
        assert!(Disk { iqn: bad.to_owned(), ..disk(0) }.checked().is_err(), "{bad}");
        assert!(Disk { interface: bad.to_owned(), ..disk(0) }.checked().is_err(), "{bad}");
    }
}

/// A target with two portals, of which each shows the disk as another one. multipathd sees both when the file `daemon` is there.
const TWO_WAYS: &str = r#"
PATH=/usr/bin:/bin
case "$*" in
"-m session")
    [ -e up ] || exit 21
    sed 's/.*/tcp: [1] &,1 iqn.2016-04.test:disk (non-flash)/' up ;;
*--login)
    [ ! -e "dead-$4" ] || exit 8
    grep -qsx "$4" up || echo "$4" >>up
    disk=sd$(wc -l <up)
    : >"$disk" && ln -sf "$disk" "ip-$4-iscsi-iqn.2016-04.test:disk-lun-0"
    [ ! -e daemon ] || {
        mkdir -p block/dm-4/slaves block/dm-4/dm by-id
        : >"block/dm-4/slaves/$disk" && echo mpath-36 >block/dm-4/dm/uuid && echo mpatha >block/dm-4/dm/name && : >by-id/dm-uuid-mpath-36
    } ;;
*--logout) rm -f "ip-$4-iscsi-iqn.2016-04.test:disk-lun-0"; exit 0 ;;
esac
"#;

fn two_ways() -> (World, Disk) {
    let world = World::new();
    world.fakes.add("iscsiadm", TWO_WAYS);
    let portals = [PORTAL, "10.0.0.2:3260"].map(str::to_owned).to_vec();
    (world, Disk { portals, ..disk(0) })
}

impl World {
    fn touch(&self, name: &str) {
        std::fs::write(self.fakes.folder.path().join(name), "").unwrap();
    }

    /// Where a disk is, below the folder of the machine's disks.
    async fn place(&self, disk: &Disk) -> Result<String, String> {
        let path = self.remote.attach(&self.pod("a"), "v", disk, &Chap::default()).await?;
        Ok(path.strip_prefix(self.fakes.folder.path()).unwrap().display().to_string())
    }
}

#[tokio::test]
async fn the_device_over_all_ways_to_a_disk_is_taken_and_given_back() {
    let (world, disk) = two_ways();
    world.touch("daemon");
    world.fakes.add("multipath", "");
    assert_eq!(world.place(&disk).await.unwrap(), "by-id/dm-uuid-mpath-36");
    assert_eq!(world.turns(), ["login", "login"]);
    world.detach("a").await;
    assert_eq!(world.turns(), ["login", "login", "logout", "logout"]);
    let calls = world.fakes.calls();
    let place = |words: &str| calls.iter().position(|call| call.contains(words));
    assert!(place("multipath -f mpatha").unwrap() < place("--logout").unwrap(), "{calls:?}");
}

#[tokio::test]
async fn without_such_a_device_the_first_way_is_taken() {
    let (world, disk) = two_ways();
    let first = format!("ip-{PORTAL}-iscsi-{IQN}-lun-0");
    assert_eq!(world.place(&disk).await.unwrap(), first);
    world.detach("a").await;
    assert!(!world.fakes.calls().iter().any(|call| call.starts_with("multipath")));
}

#[tokio::test]
async fn a_portal_that_does_not_answer_is_tried_once_more_and_then_done_without() {
    let (world, disk) = two_ways();
    world.touch(&format!("dead-{PORTAL}"));
    let second = format!("ip-10.0.0.2:3260-iscsi-{IQN}-lun-0");
    assert_eq!(world.place(&disk).await.unwrap(), second);
    assert_eq!(world.turns(), ["login", "login", "login"]);
    world.touch("dead-10.0.0.2:3260");
    let (world, disk) = two_ways();
    for portal in &disk.portals {
        world.touch(&format!("dead-{portal}"));
    }
    let why = world.place(&disk).await.unwrap_err();
    assert!(why.starts_with("failed to get any path for iscsi disk, last err seen:\n"), "{why}");
    assert_eq!(world.turns(), ["login", "login"], "nothing is tried again where nothing works");
}

#[test]
fn a_portal_that_is_named_twice_is_one() {
    let portals = ["10.0.0.1", "10.0.0.2", "10.0.0.1:3260"].map(str::to_owned).to_vec();
    let checked = Disk { portals, ..disk(0) }.checked().unwrap();
    assert_eq!(checked.portals, ["10.0.0.1:3260", "10.0.0.2:3260"]);
}

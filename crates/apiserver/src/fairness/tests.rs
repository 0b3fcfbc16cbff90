//! The order in which requests get seats, over simulated time: with the objects that every cluster has, and with
//! others.

use std::sync::Arc;

use api::{Value, meta};
use clock::{Duration, Instant};
use futures::FutureExt;
use http::Method;
use json::json;
use store::embedded::Embedded;

use super::{Fairness, Flow, Seat, keep};
use crate::{
    User,
    bootstrap::flow_control,
    http::request::{Info, Served},
    storage::object_store::ObjectStore,
};

fn info(request: &str) -> Info {
    let (method, uri) = request.split_once(' ').unwrap();
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let registrations = Default::default();
    let served = Served { kinds: api::kinds::built_in(), registrations: &registrations };
    Info::resolve(&method.parse::<Method>().unwrap(), path, query, served)
}

/// With all objects that every cluster has.
fn usual(seats: u32) -> Arc<Fairness> {
    let fairness = Fairness::new(seats, Duration::from_secs(60));
    for one in flow_control::objects() {
        fairness.take_in(one.plural, meta::name(&one.object), Some(&one.object));
    }
    fairness
}

fn put(fairness: &Fairness, plural: &str, name: &str, spec: Value) {
    let object = json!({"metadata": {"name": name, "uid": format!("uid-{name}")}, "spec": spec});
    fairness.take_in(plural, name, Some(&object));
}

/// A level of its own for all that `group` asks for, before anything else.
fn level(fairness: &Fairness, group: &str, shares: u32, response: Value) {
    let limited = json!({"nominalConcurrencyShares": shares, "lendablePercent": 0, "borrowingLimitPercent": 0, "limitResponse": response});
    put(fairness, flow_control::LEVELS_PLURAL, group, json!({"type": "Limited", "limited": limited}));
    let rule =
        json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true});
    let subject = json!({"kind": "Group", "group": {"name": group}});
    put(
        fairness,
        flow_control::SCHEMAS,
        group,
        json!({"priorityLevelConfiguration": {"name": group}, "matchingPrecedence": 50,
            "distinguisherMethod": {"type": "ByUser"}, "rules": [{"subjects": [subject], "resourceRules": [rule]}]}),
    );
}

fn queued(length: u32) -> Value {
    json!({"type": "Queue", "queuing": {"queues": 64, "handSize": 4, "queueLengthLimit": length}})
}

const PODS: &str = "GET /api/v1/namespaces/n/pods/p";

struct Asker {
    fairness: Arc<Fairness>,
    user: User,
    info: Info,
    flow: Arc<Flow>,
}

impl Asker {
    fn new(fairness: &Arc<Fairness>, name: &str, group: &str) -> Asker {
        let (user, info) = (User::new(name, [group, "system:authenticated"]), info(PODS));
        let flow = fairness.classify(&user, &info).unwrap();
        Asker { fairness: fairness.clone(), user, info, flow }
    }

    async fn seat(&self) -> Result<Seat, u16> {
        self.fairness.seat(&self.flow, &self.user, &self.info, "").await.map_err(|error| error.code)
    }

    /// Seats as long as there are any at once.
    fn all(&self) -> Vec<Seat> {
        std::iter::from_fn(|| self.seat().now_or_never().and_then(Result::ok)).take(1000).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn seats_can_be_left_for_a_while() {
    let fairness = usual(600);
    level(&fairness, "dev", 10, queued(50));
    let (jane, joe) = (Asker::new(&fairness, "jane", "dev"), Asker::new(&fairness, "joe", "dev"));
    let mut held = jane.all();
    let seats = held.len();
    assert!(seats > 1 && joe.all().is_empty());
    held.iter_mut().for_each(Seat::leave);
    held.iter_mut().for_each(Seat::leave);
    let others = joe.all();
    assert_eq!(others.len(), seats, "others have them meanwhile");
    held.iter_mut().for_each(Seat::take_back);
    held.iter_mut().for_each(Seat::take_back);
    let in_use = || jane.flow.level.look(|level| (level.queues.seats as usize, level.queues.executing as usize));
    assert_eq!(in_use(), (2 * seats, 2 * seats));
    drop(others);
    assert_eq!((in_use().0, joe.all().len()), (seats, 0), "nobody more until those are done who were there before");
    held.iter_mut().take(1).for_each(Seat::leave);
    drop(held);
    assert_eq!((in_use(), joe.all().len()), ((0, 0), seats));
}

#[tokio::test(start_paused = true)]
async fn requests_are_of_the_flows_that_upstream_finds() {
    let fairness = usual(600);
    let check = |name: &str, groups: &[&str], request: &str, expected: &str| {
        let (user, info) = (User::new(name, groups.iter().copied()), info(request));
        let flow = fairness.classify(&user, &info).unwrap();
        let shown = format!("{} {} {}", flow.schema.name, flow.level.name, flow.schema.distinguisher(&user, &info));
        assert_eq!(shown.trim_end(), expected, "{name} {request}");
    };
    let known = "system:authenticated";
    check("root", &["system:masters", known], "GET /api/v1/pods", "exempt exempt");
    check("jane", &[known], "GET /healthz", "probes exempt");
    check("jane", &[known], PODS, "global-default global-default jane");
    check(
        "system:anonymous",
        &["system:unauthenticated"],
        "GET /api",
        "global-default global-default system:anonymous",
    );
    check("stranger", &[], PODS, "catch-all catch-all stranger");
    let node = ["system:nodes", known];
    check("system:node:a", &node, "PATCH /api/v1/nodes/a/status", "system-node-high node-high system:node:a");
    let lease = "PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a";
    check("system:node:a", &node, lease, "system-node-high node-high system:node:a");
    check("system:node:a", &node, PODS, "system-nodes system system:node:a");
    let lease = "PUT /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a";
    let manager = "system:kube-controller-manager";
    check(manager, &[known], lease, &format!("system-leader-election leader-election {manager}"));
    check(manager, &[known], PODS, "kube-controller-manager workload-high n");
    let account = "system:serviceaccount:kube-system:a";
    let groups = ["system:serviceaccounts", known];
    check(account, &groups, PODS, "kube-system-service-accounts workload-high n");
    check("system:serviceaccount:n:a", &groups, PODS, "service-accounts workload-low system:serviceaccount:n:a");
}

#[tokio::test(start_paused = true)]
async fn what_is_mandatory_is_there_without_its_objects() {
    let fairness = usual(600);
    for one in flow_control::objects() {
        fairness.take_in(one.plural, meta::name(&one.object), None);
    }
    let root = User::new("root", ["system:masters"]);
    assert_eq!(fairness.classify(&root, &info(PODS)).unwrap().level.name, "exempt");
    let jane = User::new("jane", ["system:authenticated"]);
    assert_eq!(fairness.classify(&jane, &info(PODS)).unwrap().level.name, "catch-all");
    put(
        &fairness,
        flow_control::SCHEMAS,
        "lost",
        json!({"priorityLevelConfiguration": {"name": "none"}, "matchingPrecedence": 1,
        "rules": [{"subjects": [{"kind": "User", "user": {"name": "*"}}], "resourceRules":
            [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}]}]}),
    );
    assert_eq!(fairness.classify(&jane, &info(PODS)).unwrap().level.name, "catch-all", "a level that is not there");
    let lost = fairness.dangling().into_iter().find(|(name, ..)| name == "lost").unwrap();
    assert!(lost.2 && fairness.dangling().iter().any(|(_, _, dangling)| !dangling));
}

#[tokio::test(start_paused = true)]
async fn one_with_a_thousand_requests_does_not_hold_up_another() {
    let fairness = usual(100);
    level(&fairness, "team", 10, queued(50));
    let (greedy, modest) = (Asker::new(&fairness, "greedy", "team"), Asker::new(&fairness, "modest", "team"));
    let held = greedy.all();
    assert!(held.len() > 1 && held.len() < 20, "{}", held.len());
    // Everyone has its seats for a second.
    let work = |asker: Arc<Asker>| async move {
        let begun = Instant::now();
        let seat = asker.seat().await?;
        let waited = begun.elapsed();
        clock::sleep(Duration::from_secs(1)).await;
        drop(seat);
        Ok::<_, u16>(waited)
    };
    let (greedy, modest) = (Arc::new(greedy), Arc::new(modest));
    let many: Vec<_> = (0..1000).map(|_| tokio::spawn(work(greedy.clone()))).collect();
    tokio::task::yield_now().await;
    let one = tokio::spawn(work(modest.clone()));
    tokio::task::yield_now().await;
    drop(held);
    let waited = one.await.unwrap().unwrap();
    assert!(waited <= Duration::from_secs(2), "{waited:?}");
    let mut codes = std::collections::BTreeMap::new();
    for task in many {
        *codes.entry(task.await.unwrap().err().unwrap_or(200)).or_insert(0) += 1;
    }
    assert!(codes[&200] > 50 && codes[&429] > 500, "{codes:?}");
    let page = fairness.render();
    for expected in [
        "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"team\",priority_level=\"team\",reason=\"queue-full\"} ",
        "apiserver_flowcontrol_current_executing_seats{flow_schema=\"team\",priority_level=\"team\"} 0\n",
        "apiserver_flowcontrol_current_inqueue_requests{flow_schema=\"team\",priority_level=\"team\"} 0\n",
        "apiserver_flowcontrol_request_wait_duration_seconds_count{execute=\"true\",flow_schema=\"team\",priority_level=\"team\"} ",
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"team\"} ",
        "# TYPE apiserver_flowcontrol_demand_seats histogram\n",
        "apiserver_flowcontrol_demand_seats_bucket{priority_level=\"team\",le=\"0.2\"} ",
    ] {
        assert!(page.contains(expected), "{expected} in {page}");
    }
}

/// The number in a line of the page of metrics.
fn told(fairness: &Fairness, name: &str, labels: &str) -> f64 {
    let page = fairness.render();
    let line = format!("apiserver_flowcontrol_{name}{{{labels}}} ");
    let value = page.lines().find_map(|one| one.strip_prefix(&line));
    value.unwrap_or_else(|| panic!("{line} in {page}")).parse().unwrap()
}

/// A level with ten seats of which eight are taken, and with three that wait for three each.
#[tokio::test(start_paused = true)]
async fn the_page_tells_of_seats_queues_and_time() {
    let fairness = usual(245);
    level(&fairness, "team", 10, queued(50));
    let (team, both) = ("priority_level=\"team\"", "flow_schema=\"team\",priority_level=\"team\"");
    let asker = Asker::new(&fairness, "jane", "team");
    let seats =
        |count: u32| asker.flow.level.seat(&asker.flow, (7, count, false), Duration::from_secs(60), Default::default);
    assert_eq!(told(&fairness, "current_limit_seats", team), 10.0);
    let held = [seats(4).await.unwrap(), seats(4).await.unwrap()];
    let mut waiting = [3, 3, 3].map(|count| Box::pin(seats(count)));
    waiting.iter_mut().for_each(|asked| assert!(asked.now_or_never().is_none()));
    assert_eq!(told(&fairness, "current_executing_seats", both), 8.0);
    assert_eq!(told(&fairness, "current_inqueue_requests", both), 3.0);
    assert_eq!(told(&fairness, "current_inqueue_seats", both), 9.0);
    assert_eq!(told(&fairness, "request_queue_length_after_enqueue_count", both), 3.0);
    assert_eq!(told(&fairness, "work_estimated_seats_sum", both), 17.0);
    assert_eq!(told(&fairness, "request_dispatch_no_accommodation_total", both), 3.0, "two seats were free each time");
    clock::sleep(Duration::from_secs(2)).await;
    let over_time =
        |name: &str, phase: &str| told(&fairness, &format!("{name}_sum"), &format!("phase=\"{phase}\",{team}")) / 1e9;
    assert_eq!(over_time("priority_level_seat_utilization", "executing"), 1.6, "eight of ten, for two seconds");
    assert_eq!(over_time("priority_level_request_utilization", "executing"), 0.4);
    let places = 64.0 * 50.0;
    assert!((over_time("priority_level_request_utilization", "waiting") - 2.0 * 3.0 / places).abs() < 1e-9);
    fairness.borrow();
    assert_eq!(told(&fairness, "demand_seats_high_watermark", team), 17.0);
    assert!(told(&fairness, "demand_seats_average", team) > 16.9 && told(&fairness, "demand_seats_stdev", team) < 1.0);
    assert_eq!(told(&fairness, "target_seats", team), told(&fairness, "demand_seats_smoothed", team));
    assert!(fairness.render().contains("\napiserver_flowcontrol_seat_fair_frac "));
    drop(held);
    let seated = futures::future::join_all(waiting).await;
    assert!(seated.iter().all(Result::is_ok));
    assert_eq!(told(&fairness, "current_inqueue_seats", both), 0.0);
    let took = format!("{both},type=\"regular\"");
    assert_eq!(told(&fairness, "request_execution_seconds_count", &took), 2.0);
    assert_eq!(told(&fairness, "request_execution_seconds_sum", &took), 4.0);
    let bound = |name: &str, bound: &str| told(&fairness, name, &format!("bound=\"{bound}\",{team}"));
    assert!(told(&fairness, "dispatch_r", team) <= told(&fairness, "current_r", team));
    assert!(bound("next_s_bounds", "min") <= bound("next_s_bounds", "max"));
    assert!(bound("next_discounted_s_bounds", "min") <= bound("next_s_bounds", "min"));
    assert!(told(&fairness, "latest_s", team) <= bound("next_s_bounds", "max"));
    // Every line is of a metric that is described, once.
    let page = fairness.render();
    let described: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let of = |end: &str| name.strip_suffix(end).unwrap_or(name);
        let all = [name, of("_bucket"), of("_sum"), of("_count")];
        assert_eq!(described.iter().filter(|one| all.contains(one)).count(), 1, "{line}");
    }
    drop(seated);
}

#[tokio::test(start_paused = true)]
async fn without_shares_everyone_waits_in_vain() {
    let fairness = usual(100);
    level(&fairness, "jail", 0, queued(50));
    let asker = Asker::new(&fairness, "jane", "jail");
    let begun = Instant::now();
    assert_eq!(asker.seat().await.err(), Some(429));
    assert_eq!(begun.elapsed(), Duration::from_secs(15));
    fairness.borrow();
    assert_eq!(asker.seat().await.err(), Some(429));
    // Without queues there is always a seat for one.
    level(&fairness, "closed", 0, json!({"type": "Reject"}));
    let asker = Asker::new(&fairness, "jane", "closed");
    let seat = asker.seat().await;
    assert!(seat.is_ok());
    assert_eq!(asker.seat().await.err(), Some(429));
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_or_goes_away_leaves_no_trace() {
    let fairness = usual(100);
    level(&fairness, "team", 10, queued(50));
    let asker = Asker::new(&fairness, "jane", "team");
    let held = asker.all();
    let begun = Instant::now();
    assert_eq!(asker.seat().await.err(), Some(429));
    assert_eq!(begun.elapsed(), Duration::from_secs(15), "a quarter of the time that a request has");
    let mut gone = Box::pin(asker.seat());
    assert!((&mut gone).now_or_never().is_none());
    let rows = |page: &str| {
        fairness.page(&format!("/debug/api_priority_and_fairness/{page}"), "includeRequestDetails=1").unwrap()
    };
    let waiting = rows("dump_requests");
    assert!(
        waiting
            .lines()
            .nth(1)
            .is_some_and(|row| row.starts_with("team,") && row.contains("jane") && row.contains("pods")),
        "{waiting}"
    );
    assert!(rows("dump_priority_levels").lines().any(|row| row.starts_with("team,") && row.contains("1,")));
    assert!(rows("dump_queues").lines().count() > 64);
    drop(gone);
    assert_eq!(rows("dump_requests").lines().count(), 1);
    // One that was given its seats and never came to know it gives them back.
    let mut late = Box::pin(asker.seat());
    assert!((&mut late).now_or_never().is_none());
    let count = held.len();
    drop(held);
    drop(late);
    assert_eq!(asker.all().len(), count);
}

#[tokio::test(start_paused = true)]
async fn a_level_without_queues_turns_away_and_the_exempt_never_wait() {
    let fairness = usual(100);
    level(&fairness, "team", 10, json!({"type": "Reject"}));
    let asker = Asker::new(&fairness, "jane", "team");
    let held = asker.all();
    assert_eq!(asker.seat().now_or_never().map(|seat| seat.err()), Some(Some(429)));
    drop(held);
    assert!(asker.seat().now_or_never().is_some_and(|seat| seat.is_ok()));
    let root = Asker::new(&fairness, "root", "system:masters");
    assert_eq!(root.all().len(), 1000);
}

#[tokio::test(start_paused = true)]
async fn seats_that_nobody_uses_are_lent_and_given_back() {
    let fairness = usual(600);
    let asker = Asker::new(&fairness, "jane", "others");
    let nominal = asker.all().len();
    assert_eq!(asker.flow.level.name, "global-default");
    assert_eq!(nominal, asker.flow.level.look(|level| level.bounds.nominal) as usize);
    // More are wanted than there are.
    let held = asker.all();
    let waiting: Vec<_> = (0..200).map(|at| Asker::new(&fairness, &format!("u{at}"), "others")).collect();
    let mut waiting: Vec<_> = waiting.iter().map(|asker| Box::pin(asker.seat())).collect();
    waiting.iter_mut().for_each(|asked| assert!(asked.now_or_never().is_none()));
    clock::sleep(Duration::from_secs(10)).await;
    fairness.borrow();
    let seated = futures::future::join_all(waiting).await;
    assert!(seated.iter().all(Result::is_ok));
    drop((held, seated));
    // A level that needs its own seats gets them at once with the next period.
    let other = Asker::new(&fairness, "system:serviceaccount:n:a", "system:serviceaccounts");
    let own = other.flow.level.look(|level| level.bounds.nominal) as usize;
    let busy = other.all();
    fairness.borrow();
    fairness.borrow();
    assert!(busy.len() + other.all().len() >= own.min(busy.len()));
    assert!(other.flow.level.look(|level| level.queues.limit) as usize >= busy.len());
}

#[tokio::test(start_paused = true)]
async fn large_lists_take_more_seats() {
    let fairness = usual(600);
    let definition = info("GET /api/v1/pods").definition.unwrap();
    let seats = |request: &str| {
        let (_, uri) = request.split_once(' ').unwrap();
        fairness.sizes.seats(&info(request), uri.split_once('?').map_or("", |(_, query)| query), || 98)
    };
    assert_eq!(seats("GET /api/v1/pods"), 1, "nothing is known of its size");
    fairness.sizes.listed(&definition, 1000, 500_000);
    assert_eq!(seats("GET /api/v1/pods"), 5);
    assert_eq!(seats("GET /api/v1/pods?limit=500"), 3);
    assert_eq!(seats("GET /api/v1/pods?fieldSelector=metadata.name%3Dx"), 1);
    assert_eq!(seats("GET /api/v1/pods?limit=500&resourceVersion=0"), 5, "it has no pages");
    assert_eq!(seats("GET /api/v1/pods?watch=1&resourceVersion=7"), 1);
    // As much as is done for it, whatever it says beside.
    assert_eq!(seats("GET /api/v1/pods?limit=500&limit=1"), 3);
    assert_eq!(seats("GET /api/v1/pods?limit=&limit=1"), 5);
    let twice = "&resourceVersion=&resourceVersion=7";
    for begins in ["", twice, "&resourceVersion=0", "&resourceVersion=7&sendInitialEvents=true"] {
        assert_eq!(seats(&format!("GET /api/v1/pods?watch=1{begins}")), 5, "{begins}");
    }
    fairness.sizes.listed(&definition, 100_000, 500_000_000);
    assert_eq!(seats("GET /api/v1/pods"), 10, "no more of it is in memory at once");
    assert_eq!(fairness.sizes.seats(&info("GET /api/v1/pods"), "", || 13), 1, "a part of a small level");
    assert_eq!(seats("POST /api/v1/namespaces/n/pods"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_names_its_schema_and_level() {
    let server = crate::assemble(crate::tests::assembled::options()).await.unwrap();
    let ask = async |method: &str, uri: &str, token: &str| {
        let address = "192.0.2.7:1234".parse().unwrap();
        let request = http::Request::builder()
            .method(method)
            .uri(uri)
            .header("authorization", format!("Bearer {token}"))
            .extension(crate::http::access::Peer { address, certificates: Arc::new([]) });
        let answer = server.handle(request.body(crate::http::body::Body::empty()).unwrap()).await;
        let uid = |name: &http::HeaderName| answer.headers().get(name).map(|uid| uid.to_str().unwrap().to_owned());
        (answer.status().as_u16(), super::HEADERS.each_ref().map(uid))
    };
    let stored = async |plural: &str, name: &str| {
        let definition = server.objects().definition(flow_control::GROUP, plural).unwrap();
        let object = server.objects().get(&definition, "", name).await.unwrap();
        Some(meta::uid(&object).to_owned())
    };
    let expected = [
        stored(flow_control::SCHEMAS, "global-default").await,
        stored(flow_control::LEVELS_PLURAL, "global-default").await,
    ];
    assert_eq!(ask("GET", "/api", "secret").await, (200, expected.clone()));
    assert_eq!(ask("GET", "/api/v1/pods", "secret").await, (403, expected));
    assert_eq!(ask("GET", "/api", "wrong").await, (401, [None, None]));
}

/// Objects that ask to be kept by the server and are none that it has, are no more; the administrator's stay.
#[tokio::test]
async fn what_the_server_no_longer_has_is_taken_away() {
    let objects = ObjectStore::new(Arc::new(Embedded::memory())).await.unwrap();
    let definition = objects.definition(flow_control::GROUP, flow_control::LEVELS_PLURAL).unwrap();
    for (name, annotations) in [
        ("gone", json!({"apf.kubernetes.io/autoupdate-spec": "true"})),
        ("kept", json!({"apf.kubernetes.io/autoupdate-spec": "false"})),
        ("odd", json!({"apf.kubernetes.io/autoupdate-spec": "perhaps"})),
        ("own", json!({})),
    ] {
        let limited = json!({"nominalConcurrencyShares": 1, "limitResponse": {"type": "Reject"}});
        let spec = json!({"type": "Limited", "limited": limited});
        let object = json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec});
        objects.create(&definition, object).await.unwrap();
    }
    keep::keep_objects(&objects).await.unwrap();
    let all = objects.list(&definition, "").await.unwrap();
    let wanted: Vec<_> = flow_control::objects().into_iter().filter(|one| one.plural == definition.plural).collect();
    let own = |name: &&str| !wanted.iter().any(|one| meta::name(&one.object) == *name);
    let left: Vec<&str> = all.iter().map(meta::name).filter(own).collect();
    assert_eq!((left, all.len()), (vec!["kept", "odd", "own"], wanted.len() + 3));
}

#[tokio::test(start_paused = true)]
async fn shares_of_the_exempt_level_count() {
    let fairness = usual(600);
    let nominal = |level: &str| {
        let name = format!("apiserver_flowcontrol_nominal_limit_seats{{priority_level=\"{level}\"}} ");
        let page = fairness.render();
        let line = page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().to_owned();
        line.parse::<u32>().unwrap()
    };
    let exempt = |shares: i32| json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": shares}});
    assert_eq!(nominal("exempt"), 0);
    put(&fairness, flow_control::LEVELS_PLURAL, "exempt", exempt(100));
    assert!(nominal("exempt") > 0);
    let catch_all = nominal("catch-all");
    let limited = json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 500}});
    put(&fairness, flow_control::LEVELS_PLURAL, "catch-all", limited);
    assert_eq!(nominal("catch-all"), catch_all, "the other mandatory one is as it has to be");
}

/// Long before the next look at all objects.
#[tokio::test(start_paused = true)]
async fn a_schema_is_told_of_its_level_at_once() {
    let objects = ObjectStore::new(Arc::new(Embedded::memory())).await.unwrap();
    let fairness = Fairness::new(600, Duration::from_secs(60));
    let of = |plural: &str| objects.definition(flow_control::GROUP, plural).unwrap();
    let (schemas, levels) = (of(flow_control::SCHEMAS), of(flow_control::LEVELS_PLURAL));
    for definition in [&schemas, &levels] {
        objects.add_event_handler(definition, fairness.clone()).await.unwrap();
    }
    let _keeping = tokio::spawn(fairness.keep(objects.clone()));
    let told = async |status: &str| {
        for _ in 0..100 {
            let schema = objects.get(&schemas, "", "team").await.unwrap();
            if schema["status"]["conditions"][0]["status"] == status {
                return;
            }
            clock::sleep(Duration::from_millis(100)).await;
        }
        panic!("it was never told {status}");
    };
    let spec = json!({"priorityLevelConfiguration": {"name": "team"}, "matchingPrecedence": 7});
    objects.create(&schemas, json!({"metadata": {"name": "team"}, "spec": spec})).await.unwrap();
    told("True").await;
    let limited = json!({"nominalConcurrencyShares": 1, "limitResponse": {"type": "Reject"}});
    let spec = json!({"type": "Limited", "limited": limited});
    objects.create(&levels, json!({"metadata": {"name": "team"}, "spec": spec})).await.unwrap();
    told("False").await;
}

//! Statuses of Pods whose containers are written in short: `m:up n:1` runs `m`, and `n` ended with 1.

use k8s_openapi::api::core::v1::{ContainerState, LinuxContainerUser, PodCondition};

use super::*;
use crate::pod::{
    fixture::{now, pod, running},
    memory::{Cause, End, Life, Renewal, RunRecord},
};
use json::{Value, json};

const SPEC: &str = r#"{"restartPolicy": "POLICY",
    "initContainers": [{"name": "i", "image": "x"}, {"name": "s", "image": "x", "restartPolicy": "Always"}],
    "containers": [{"name": "m", "image": "x"}, {"name": "n", "image": "x"}]}"#;

fn desired(policy: &str) -> DesiredPod {
    pod(&SPEC.replace("POLICY", policy))
}

/// The status with everything started and ready that runs.
fn of(desired: &DesiredPod, text: &str, change: impl FnOnce(&mut Memory)) -> PodStatus {
    after(desired, text, &PodStatus::default(), change)
}

fn after(desired: &DesiredPod, text: &str, before: &PodStatus, change: impl FnOnce(&mut Memory)) -> PodStatus {
    let found = running(desired, text);
    let mut memory = Memory::default();
    for ran in found.alive() {
        *memory.run_mut(&ran.id) = RunRecord { started: true, ready: true, ..Default::default() };
    }
    change(&mut memory);
    status(desired, &found, &memory, &Place { engine: "fake", host_ips: &["1.2.3.4".to_owned()], now: now(), before })
}

#[test]
fn phases() {
    for (policy, text, expected) in [
        ("Always", "nothing", "Pending"),
        ("Always", "i:up", "Pending"),
        ("Always", "i:1", "Pending"),
        ("Never", "i:1", "Failed"),
        ("OnFailure", "i:1", "Pending"),
        ("Always", "i:0 s:up", "Pending"),
        ("Always", "i:0 s:up m:up", "Pending"),
        ("Always", "i:0 s:up m:up n:up", "Running"),
        ("Always", "i:0 s:up m:1 n:1", "Running"),
        ("OnFailure", "i:0 s:up m:0 n:1", "Running"),
        ("OnFailure", "i:0 s:0 m:0 n:0", "Succeeded"),
        ("Never", "i:0 s:up m:0 n:up", "Running"),
        ("Never", "i:0 s:0 m:0 n:0", "Succeeded"),
        ("Never", "i:0 s:0 m:0 n:1", "Failed"),
        // How a sidecar ended does not count.
        ("Never", "i:0 s:137 m:0 n:0", "Succeeded"),
    ] {
        let got = of(&desired(policy), text, |_| ());
        assert_eq!(got.phase.as_deref(), Some(expected), "{policy}: {text}");
    }
}

#[test]
fn what_still_runs_holds_back_the_end_of_its_pod() {
    let held = |fresh: &PodStatus, reported: &PodStatus| {
        let mut fresh = fresh.clone();
        hold_back(&mut fresh, reported);
        fresh
    };
    let up = of(&desired("Never"), "i:0 s:up m:up n:up", |_| ());
    // The sidecar outlives the others.
    let over = of(&desired("Never"), "i:0 s:up m:0 n:0", |_| ());
    assert_eq!(over.phase.as_deref(), Some("Succeeded"));
    let shown = held(&over, &up);
    assert_eq!(shown, PodStatus { phase: up.phase.clone(), ..over.clone() });
    assert_eq!(held(&over, &PodStatus::default()).phase.as_deref(), Some("Running"));
    // Why the node ends it is told with its end.
    let cause = Cause::new("Evicted", "The node was low on resource: memory.");
    let evicted = of(&desired("Never"), "i:0 s:up m:up n:up", |memory| {
        memory.life.end_by(End::Evicted { cause, most: 0 });
    });
    let disrupted = |status: &PodStatus| status.conditions.iter().flatten().any(|c| c.type_ == "DisruptionTarget");
    assert!(evicted.phase.as_deref() == Some("Failed") && disrupted(&evicted));
    let shown = held(&evicted, &up);
    assert_eq!((shown.phase.as_deref(), shown.reason.as_deref(), disrupted(&shown)), (Some("Running"), None, false));
    assert!(disrupted(&held(&evicted, &evicted)));
}

#[test]
fn a_phase_follows_from_the_rules_and_policies_of_the_containers() {
    let spec = r#"{"restartPolicy": "POLICY",
        "initContainers": [{"name": "i", "restartPolicy": "Never", "restartPolicyRules": [RULE]}],
        "containers": [{"name": "m", "restartPolicy": "Never", "restartPolicyRules": [RULE]}, {"name": "n"}]}"#;
    let rule = r#"{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}"#;
    let spec = spec.replace("RULE", rule);
    for (policy, text, expected) in [
        ("Never", "i:42", "Pending"),
        ("Always", "i:1", "Failed"),
        ("Never", "i:0 m:42 n:1", "Running"),
        ("Never", "i:0 m:1 n:0", "Failed"),
        ("Never", "i:0 m:0 n:0", "Succeeded"),
        ("OnFailure", "i:0 m:1 n:1", "Running"),
        ("OnFailure", "i:0 m:1 n:0", "Failed"),
    ] {
        let got = of(&pod(&spec.replace("POLICY", policy)), text, |_| ());
        assert_eq!(got.phase.as_deref(), Some(expected), "{policy}: {text}");
    }
}

#[test]
fn a_pod_that_begins_anew_says_so_until_nothing_of_it_is_left() {
    let rule = r#"{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}"#;
    let spec = r#"{"restartPolicy": "Never", "initContainers": [{"name": "i"}],
        "containers": [{"name": "m", "restartPolicy": "Never", "restartPolicyRules": [RULE]}, {"name": "n"}]}"#;
    let desired = pod(&spec.replace("RULE", rule));
    let told = |status: &PodStatus| -> (String, String) {
        let found = conditions_of(status).into_iter().find(|c| c.starts_with("AllContainersRestarting"));
        (status.phase.clone().unwrap_or_default(), found.unwrap_or_default())
    };
    let is = |phase: &str, condition: &str| (phase.to_owned(), format!("AllContainersRestarting={condition}"));
    let begins = "True RestartAllContainersStarted container exited with restart policy rule";
    assert_eq!(told(&of(&desired, "i:0 m:up n:up", |_| ())), is("Running", "False"));
    assert_eq!(told(&of(&desired, "i:0 m:42 n:up", |_| ())), is("Running", begins));
    let killed = of(&desired, "i:0 m:42 n:137", |_| ());
    assert_eq!(told(&killed), is("Running", begins));
    assert_eq!(told(&of(&desired, "i:0 m:1 n:0", |_| ())), is("Failed", "False PodFailed"));
    // All were removed: they wait to run for the second time, and their ends are remembered.
    let anew = |memory: &mut Memory| ["i", "m", "n"].iter().for_each(|name| memory.container_mut(name).is_anew = true);
    let removed = after(&desired, "", &killed, anew);
    assert_eq!(told(&removed), is("Pending", "False"));
    let main = &removed.container_statuses.as_ref().unwrap()[0];
    let last = main.last_state.as_ref().and_then(|s| s.terminated.as_ref()).map(|t| t.exit_code);
    let waits = main.state.as_ref().and_then(|s| s.waiting.as_ref()?.reason.clone());
    assert_eq!((waits.as_deref(), last), (Some("PodInitializing"), Some(42)));
    assert_eq!(main.container_id.as_deref(), Some("fake://m1"), "the next kubelet counts on");
    assert_eq!(told(&after(&desired, "i:up", &removed, anew)), is("Pending", "False"));
    assert_eq!(told(&of(&self::desired("Never"), "i:0", |_| ())).1, "", "no container of it can ask");
}

fn conditions_of(status: &PodStatus) -> Vec<String> {
    let text = |c: &PodCondition| {
        let (reason, message) = (c.reason.clone().unwrap_or_default(), c.message.clone().unwrap_or_default());
        format!("{}={} {reason} {message}", c.type_, c.status).trim_end().to_owned()
    };
    let all = status.conditions.iter().flatten();
    all.filter(|c| !matches!(c.type_.as_str(), "PodScheduled" | "PodReadyToStartContainers")).map(text).collect()
}

#[test]
fn conditions_name_who_is_missing() {
    let unready = "ContainersNotReady containers with unready status:";
    let check = |policy: &str, text: &str, initialized: &str, ready: &str| {
        let expected =
            [format!("Initialized={initialized}"), format!("Ready={ready}"), format!("ContainersReady={ready}")];
        assert_eq!(conditions_of(&of(&desired(policy), text, |_| ())), expected, "{policy}: {text}");
    };
    let incomplete = "ContainersNotInitialized containers with incomplete status:";
    check("Always", "", &format!("False {incomplete} [i s]"), &format!("False {unready} [s m n]"));
    check("Always", "i:up", &format!("False {incomplete} [i s]"), &format!("False {unready} [s m n]"));
    check("Always", "i:0", &format!("False {incomplete} [s]"), &format!("False {unready} [s m n]"));
    check("Always", "i:0 s:up", "True", &format!("False {unready} [m n]"));
    check("Always", "i:0 s:up m:up n:1", "True", &format!("False {unready} [n]"));
    check("Always", "i:0 s:up m:up n:up", "True", "True");
    check("Never", "i:0 s:0 m:0 n:0", "True PodCompleted", "False PodCompleted");
    check("Never", "i:0 s:0 m:0 n:1", "True", "False PodFailed");
}

#[test]
fn readiness_gates_hold_back_the_pod_alone() {
    let gated = |conditions: Value| {
        crate::pod::fixture::pod_of(json!({
            "spec": {"containers": [{"name": "m"}], "readinessGates": [{"conditionType": "a.io/lb"}]},
            "status": {"conditions": conditions},
        }))
    };
    for (conditions, expected) in [
        (
            json!([]),
            "Ready=False ReadinessGatesNotReady corresponding condition of pod readiness gate \"a.io/lb\" does not exist.",
        ),
        (
            json!([{"type": "a.io/lb", "status": "False"}]),
            "Ready=False ReadinessGatesNotReady the status of pod readiness gate \"a.io/lb\" is not \"True\", but False",
        ),
        (json!([{"type": "a.io/lb", "status": "True"}]), "Ready=True"),
    ] {
        let got = conditions_of(&of(&gated(conditions), "m:up", |_| ()));
        assert_eq!(got[1..], [expected.to_owned(), "ContainersReady=True".to_owned()]);
    }
}

fn state(status: &PodStatus, name: &str) -> Value {
    let all = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    let found = all.into_iter().find(|s| s.name == name).unwrap();
    let text = |s: &Option<ContainerState>| {
        let s = s.clone().unwrap_or_default();
        match (s.waiting, s.terminated) {
            (Some(w), _) => format!("waiting {}", w.reason.unwrap_or_default()),
            (_, Some(t)) => format!("{} {}", t.reason.unwrap_or_default(), t.exit_code),
            _ if s.running.is_some() => "running".to_owned(),
            _ => String::new(),
        }
    };
    json!([text(&found.state), text(&found.last_state), found.restart_count, found.ready, found.started])
}

#[test]
fn states_of_containers() {
    let desired = desired("Always");
    let crashing = |m: &mut Memory| {
        m.container_mut("m").waiting = Some(Cause::new("CrashLoopBackOff", ""));
    };
    let waiting = |reason: &str| json!([format!("waiting {reason}"), "", 0, false, false]);
    assert_eq!(state(&of(&desired, "", |_| ()), "i"), waiting("PodInitializing"));
    assert_eq!(state(&of(&desired, "i:up", |_| ()), "m"), waiting("PodInitializing"));
    assert_eq!(state(&of(&desired, "i:up", |_| ()), "i"), json!(["running", "", 0, false, true]));
    assert_eq!(state(&of(&desired, "i:0", |_| ()), "i"), json!(["Completed 0", "", 0, true, false]));
    assert_eq!(state(&of(&desired, "i:0 s:up m:1", |_| ()), "m"), json!(["Error 1", "", 0, false, false]));
    let crashed = of(&desired, "i:0 s:up m:1 m:2", crashing);
    assert_eq!(state(&crashed, "m"), json!(["waiting CrashLoopBackOff", "Error 2", 1, false, false]));
    let again = of(&desired, "i:0 s:up m:1 m:up", |_| ());
    assert_eq!(state(&again, "m"), json!(["running", "Error 1", 1, true, true]));
    let probed = of(&desired, "i:0 s:up m:up", |m| m.run_mut("m2").ready = false);
    assert_eq!(state(&probed, "m"), json!(["running", "", 0, false, true]));
}

#[test]
fn a_container_shows_what_it_has() {
    let desired = pod(
        r#"{"containers": [{"name": "m", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "r", "mountPath": "/r", "readOnly": true}]}]}"#,
    );
    let status = of(&desired, "m:up", |_| ()).container_statuses.unwrap().remove(0);
    let shown = json::to_value(status).unwrap();
    assert_eq!(shown["containerID"], "fake://m0");
    assert_eq!(shown["allocatedResources"], json!({"cpu": "1"}));
    assert_eq!(shown["resources"], json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}));
    let read_only = json!({"name": "r", "mountPath": "/r", "readOnly": true, "recursiveReadOnly": "Disabled"});
    assert_eq!(shown["volumeMounts"], json!([{"name": "v", "mountPath": "/v"}, read_only]));
    assert_eq!(shown["user"], Value::Null);
    // The engine tells who it runs as, and which mounts are read-only all the way down.
    let mut found = running(&desired, "m:up");
    found.containers[0].user = Some(LinuxContainerUser { uid: 1, gid: 2, supplemental_groups: Some(vec![2, 3]) });
    found.containers[0].read_only_below.insert("/r".to_owned());
    let place = Place { engine: "fake", host_ips: &[], now: now(), before: &PodStatus::default() };
    let status = super::status(&desired, &found, &Memory::default(), &place).container_statuses.unwrap().remove(0);
    let shown = json::to_value(status).unwrap();
    assert_eq!(shown["user"], json!({"linux": {"uid": 1, "gid": 2, "supplementalGroups": [2, 3]}}));
    assert_eq!(shown["volumeMounts"][1]["recursiveReadOnly"], "Enabled");
}

#[test]
fn the_end_of_a_container_that_starts_with_its_new_definition_is_not_the_end_of_its_work() {
    let desired = desired("Never");
    let of = |text: &str| of(&desired, text, |m| m.container_mut("m").renewal = Some(Renewal::Definition));
    let between = of("i:0 s:up m:137 n:up");
    assert_eq!(state(&between, "m"), json!(["waiting PodInitializing", "Error 137", 0, false, false]));
    assert_eq!(between.phase.as_deref(), Some("Running"));
    assert_eq!(of("i:0 s:up m:137 n:0").phase.as_deref(), Some("Running"));
}

#[test]
fn what_the_engine_has_forgotten_is_taken_from_the_last_report() {
    let desired = desired("OnFailure");
    let before = of(&desired, "i:0 s:up m:1 m:up n:0", |_| ());
    // The first run is removed when the second has ended.
    let mut found = running(&desired, "i:0 s:0 m:0 n:0");
    found.containers.iter_mut().find(|c| c.name == "m").unwrap().restarts = 1;
    let place = Place { engine: "fake", host_ips: &[], now: now(), before: &before };
    let ended = status(&desired, &found, &Memory::default(), &place);
    assert_eq!(state(&ended, "m"), json!(["Completed 0", "Error 1", 1, false, false]));
    // An engine that lost everything: ends that were reported stay, the others are unknown.
    let lost = after(&desired, "nothing", &before, |_| ());
    assert_eq!(state(&lost, "n"), json!(["Completed 0", "", 0, false, false]));
    assert_eq!(state(&lost, "s"), json!(["waiting PodInitializing", "ContainerStatusUnknown 137", 1, false, false]));
}

#[test]
fn a_pod_that_was_not_let_in_has_a_reason_and_no_containers() {
    let refused = of(&desired("Always"), "nothing", |m| {
        m.life = Life::Ending(End::Refused(Cause::new("OutOfcpu", "Pod was rejected: no")));
    });
    assert_eq!(refused.phase.as_deref(), Some("Failed"));
    assert_eq!(
        (refused.reason.as_deref(), refused.message.as_deref()),
        (Some("OutOfcpu"), Some("Pod was rejected: no"))
    );
    assert_eq!((refused.container_statuses, refused.init_container_statuses), (None, None));
    let late = of(&desired("Always"), "i:0 s:0 m:137 n:137", |m| {
        m.life = Life::Ending(End::Late(Cause::new("DeadlineExceeded", "late")));
    });
    assert_eq!(late.phase.as_deref(), Some("Failed"));
    assert_eq!(late.container_statuses.unwrap().len(), 2);
}

#[test]
fn an_evicted_pod_says_who_disrupted_it() {
    let evicted = of(&desired("Always"), "i:0 s:137 m:137 n:137", |m| {
        m.life = Life::Ending(End::Evicted {
            cause: Cause::new("Evicted", "The node was low on resource: memory. "),
            most: 1,
        });
    });
    assert_eq!((evicted.phase.as_deref(), evicted.reason.as_deref()), (Some("Failed"), Some("Evicted")));
    let told = &conditions_of(&evicted)[0];
    assert_eq!(told, "DisruptionTarget=True TerminationByKubelet The node was low on resource: memory.");
    let kinds: Vec<&str> = evicted.conditions.iter().flatten().map(|condition| condition.type_.as_str()).collect();
    let order = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    assert_eq!(kinds, [&["DisruptionTarget"], &order[..]].concat());
}

#[test]
fn a_debugging_container_has_a_status_and_keeps_nothing_from_being_ready() {
    let desired =
        pod(r#"{"containers": [{"name": "m"}], "ephemeralContainers": [{"name": "e", "targetContainerName": "m"}]}"#);
    let got = of(&desired, "m:up e:1", |_| ());
    assert_eq!(got.phase.as_deref(), Some("Running"));
    assert_eq!(conditions_of(&got)[1], "Ready=True");
    let status = &got.ephemeral_container_statuses.unwrap()[0];
    assert_eq!(status.state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 1);
    assert_eq!((status.ready, status.started), (false, None));
}

#[test]
fn a_condition_keeps_its_time_as_long_as_it_holds() {
    let desired = desired("Always");
    let mut before = of(&desired, "i:0 s:up m:up n:up", |_| ());
    let early = Time(Timestamp::from_second(5).unwrap());
    before.conditions.iter_mut().flatten().for_each(|c| c.last_transition_time = Some(early.clone()));
    let times = |status: PodStatus, kind: &str| {
        let all = status.conditions.unwrap();
        all.into_iter().find(|c| c.type_ == kind).unwrap().last_transition_time.unwrap()
    };
    let unready = |m: &mut Memory| m.run_mut("m2").ready = false;
    assert_eq!(times(after(&desired, "i:0 s:up m:up n:up", &before, unready), "Initialized"), early);
    assert_eq!(times(after(&desired, "i:0 s:up m:up n:up", &before, unready), "Ready"), Time(now()));
}

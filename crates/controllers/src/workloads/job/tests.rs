//! The plan of a Job, as tables.

use super::{orphans::Owner, *};
use json::{Value, json};

const NOW: &str = "2026-01-01T01:00:00Z";

fn job(spec: &Value, status: &Value) -> Job {
    let mut job = json!({
        "metadata": {"name": "work", "namespace": "d", "uid": "job", "generation": 1},
        "spec": {"parallelism": 2, "completions": 4, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": false,
            "podReplacementPolicy": "TerminatingOrFailed", "selector": {"matchLabels": {"job": "work"}},
            "template": {"metadata": {"labels": {"job": "work"}}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}}},
        "status": {"startTime": "2026-01-01T00:59:00Z"},
    });
    for (part, changes) in [("spec", spec), ("status", status)] {
        for (field, value) in changes.as_object().into_iter().flatten() {
            job[part][field] = value.clone();
        }
    }
    json::from_value(job).unwrap()
}

/// `name:word:word` with the words pending, ready, succeeded, failed, deleting, loose (without finalizer), orphan,
/// relabelled, disrupted; `i3` is an index, `f2` a number of failures before, `x5` an exit code, `r4` restarts, and `t10` how
/// many seconds ago the Pod ended. A Pod without such words runs.
fn pod(text: &str) -> Arc<Pod> {
    let mut words = text.split(':');
    let name = words.next().unwrap();
    let words: Vec<&str> = words.collect();
    let has = |word: &str| words.contains(&word);
    let number = |letter: char| words.iter().find_map(|w| w.strip_prefix(letter)?.parse::<i64>().ok());
    let phase = match () {
        () if has("succeeded") => "Succeeded",
        () if has("failed") => "Failed",
        () if has("pending") => "Pending",
        () => "Running",
    };
    let now: Timestamp = NOW.parse().unwrap();
    let ended = Timestamp::from_second(now.as_second() - number('t').unwrap_or(3000)).unwrap().to_string();
    let code = number('x').unwrap_or(i64::from(has("failed")));
    let is_terminal = has("succeeded") || has("failed");
    let state = json!({"terminated": {"exitCode": code, "finishedAt": ended}});
    let container = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": number('r').unwrap_or(0),
        "state": if is_terminal { state } else { json!({"running": {}}) }});
    let mut conditions = Vec::new();
    if has("ready") {
        conditions.push(json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:59:30Z"}));
    }
    if has("disrupted") {
        conditions.push(json!({"type": "DisruptionTarget", "status": "True"}));
    }
    let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "work", "uid": "job", "controller": true}]);
    let mut annotations = json!({});
    if let Some(index) = number('i') {
        annotations[pods::COMPLETION_INDEX] = index.to_string().into();
    }
    if let Some(failures) = number('f') {
        annotations["batch.kubernetes.io/job-index-failure-count"] = failures.to_string().into();
    }
    let value = json!({
        "metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": "1", "annotations": annotations,
            "labels": {"job": if has("relabelled") { "other" } else { "work" }},
            "deletionTimestamp": has("deleting").then_some(ended), "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": if has("loose") || has("orphan") { json!([]) } else { json!([TRACKING]) },
            "ownerReferences": if has("orphan") { Value::Null } else { owner }},
        "spec": {"containers": [{"name": "c"}], "nodeName": "n"},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": [container]},
    });
    Arc::new(json::from_value(value).unwrap())
}

fn plan(job: &Job, pods: &str) -> Plan {
    let pods: Vec<Arc<Pod>> = pods.split_whitespace().map(pod).collect();
    let jobs = Jobs::default();
    let failures = jobs.learn(job, job.spec.as_ref().unwrap(), &pods);
    jobs.plan(job, &Observed { pods, failures }, NOW.parse().unwrap())
}

/// `+` creates a Pod (`+3` one with that index), `-a` deletes one, `~a` takes its finalizer, `=a` patches it otherwise.
fn steps_of(plan: &Plan) -> String {
    let words = plan.writes().filter(|w| w.subresource.is_empty()).map(|w| {
        let metadata = &w.body()["metadata"];
        match w.verb_name() {
            "create" => format!("+{}", metadata["annotations"][pods::COMPLETION_INDEX].as_str().unwrap_or("")),
            "delete" => format!("-{}", w.name),
            _ if metadata.get("$deleteFromPrimitiveList/finalizers").is_some() => format!("~{}", w.name),
            _ => format!("={}", w.name),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The parts of the status that are not nothing: counts, UIDs that are not counted yet, indexes, conditions.
fn status_of(job: &Job, plan: &Plan) -> String {
    let new = plan.status.as_ref().map(|w| w.body()["status"].clone());
    let status: JobStatus = json::from_value(new.unwrap_or(json!(job.status))).unwrap();
    let mut words = Vec::new();
    let counts = [
        ("active", status.active),
        ("ready", status.ready),
        ("terminating", status.terminating),
        ("succeeded", status.succeeded),
        ("failed", status.failed),
    ];
    words.extend(
        counts.into_iter().filter(|(_, n)| n.unwrap_or(0) != 0).map(|(name, n)| format!("{name}={}", n.unwrap())),
    );
    let uncounted = status.uncounted_terminated_pods.unwrap_or_default();
    words.extend(uncounted.succeeded.map(|uids| format!("s:{}", uids.join(","))));
    words.extend(uncounted.failed.map(|uids| format!("f:{}", uids.join(","))));
    words.extend(status.completed_indexes.map(|text| format!("completed={text}")));
    words.extend(status.failed_indexes.map(|text| format!("failedIndexes={text}")));
    for condition in status.conditions.unwrap_or_default() {
        let reason = condition.reason.unwrap_or_default();
        words.push(match condition.status.as_str() {
            "True" => format!("{}({reason})", condition.type_),
            status => format!("{}={status}({reason})", condition.type_),
        });
    }
    words.join(" ")
}

#[track_caller]
fn check(spec: Value, status: Value, pods: &str, steps: &str, expected: &str) {
    let job = job(&spec, &status);
    let plan = plan(&job, pods);
    assert_eq!(
        (steps_of(&plan).as_str(), status_of(&job, &plan).as_str()),
        (steps, expected),
        "{spec} {status} {pods}"
    );
}

fn condition(kind: &str, reason: &str) -> Value {
    json!({"conditions": [{"type": kind, "status": "True", "reason": reason, "message": "m"}]})
}

#[test]
fn as_many_run_as_are_wanted() {
    let none = || json!({});
    check(none(), none(), "", "+ +", "");
    check(none(), none(), "a", "+", "active=1");
    check(none(), none(), "a:ready b:pending", "", "active=2 ready=1");
    check(json!({"parallelism": 0}), none(), "a", "~a -a", "active=1");
    check(json!({"parallelism": 1}), none(), "a:ready b:pending", "~b -b", "active=2 ready=1");
    // One that is still missing is not started twice at the end.
    check(none(), json!({"succeeded": 3}), "a", "", "active=1 succeeded=3");
    check(none(), json!({"succeeded": 3}), "", "+", "succeeded=3");
    // A Pod that is going is replaced at once, or when it has gone.
    check(none(), none(), "a:deleting:t100 b", "+", "active=1 terminating=1 f:a");
    check(json!({"podReplacementPolicy": "Failed"}), none(), "a:deleting:t100 b", "", "active=1 terminating=1");
    // A work queue: the first success ends the making of Pods.
    check(json!({"completions": null, "parallelism": 3}), none(), "a", "+ +", "active=1");
    check(json!({"completions": null, "parallelism": 3}), none(), "a:succeeded b", "", "active=1 s:a");
    check(json!({"completions": 0}), none(), "", "", "SuccessCriteriaMet(CompletionsReached)");
}

#[test]
fn ended_pods_are_noted_then_let_go_then_counted() {
    let none = || json!({});
    let noted = |succeeded: &[&str], failed: &[&str]| json!({"uncountedTerminatedPods": {"succeeded": succeeded, "failed": failed}});
    check(none(), none(), "a:succeeded b:failed c:ready d", "", "active=2 ready=1 s:a f:b");
    check(none(), noted(&["a"], &["b"]), "a:succeeded b:failed c d", "~a ~b", "active=2 s:a f:b");
    check(none(), noted(&["a"], &["b"]), "a:succeeded b:failed:loose c d", "~a", "active=2 failed=1 s:a");
    check(none(), noted(&["a"], &["b"]), "a:succeeded:loose c d", "", "active=2 succeeded=1 failed=1");
    // One more that ends meanwhile is noted in the same write.
    check(none(), noted(&["a"], &[]), "a:succeeded:loose c:succeeded d", "+", "active=1 succeeded=1 s:c");
    // A Pod without a finalizer is counted already.
    check(none(), json!({"succeeded": 1}), "a:succeeded:loose c d", "", "active=2 succeeded=1");
    // A Pod that was noted as failed while it was being deleted may succeed after all; it counts once.
    check(none(), noted(&[], &["a"]), "a:succeeded:deleting b c", "~a", "active=2 f:a");
}

#[test]
fn a_pod_that_lost_its_finalizer_but_not_its_life_gets_it_back() {
    check(json!({}), json!({}), "a:loose b", "=a", "active=2");
    check(json!({"parallelism": 1}), json!({}), "a:loose:pending b", "-a", "active=2");
    check(json!({"parallelism": 1}), json!({}), "a:loose b:pending", "=a ~b -b", "active=2");
}

#[test]
fn the_end_comes_when_all_pods_are_counted() {
    let none = || json!({});
    check(
        none(),
        json!({"succeeded": 4}),
        "a:succeeded:loose",
        "",
        "succeeded=4 SuccessCriteriaMet(CompletionsReached)",
    );
    let noted = json!({"succeeded": 3, "uncountedTerminatedPods": {"succeeded": ["a"]}});
    check(none(), noted, "a:succeeded", "~a", "succeeded=3 s:a SuccessCriteriaMet(CompletionsReached)");
    let met = |more: Value| {
        let mut status = condition("SuccessCriteriaMet", "CompletionsReached");
        more.as_object().unwrap().iter().for_each(|(k, v)| status[k] = v.clone());
        status
    };
    let end = "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)";
    check(none(), met(json!({"succeeded": 4})), "", "", &format!("succeeded=4 {end}"));
    let last = met(json!({"succeeded": 3, "uncountedTerminatedPods": {"succeeded": ["a"]}}));
    check(none(), last, "a:succeeded:loose", "", &format!("succeeded=4 {end}"));
    let waits = "terminating=1 succeeded=4 SuccessCriteriaMet(CompletionsReached)";
    check(none(), met(json!({"succeeded": 4})), "a:deleting:loose", "", waits);
    let job = job(&json!({"completions": 2}), &met(json!({"succeeded": 3})));
    let plan = plan(&job, "");
    let told: Vec<_> = plan
        .steps
        .iter()
        .filter_map(|s| if let controller::Step::Tell(n) = s { Some(&n.reason) } else { None })
        .collect();
    assert_eq!(told, ["TooManySucceededPods"]);
    let write = plan.status.unwrap();
    assert_eq!(write.on_success, Some(Note::normal("Completed", "Job completed")));
    assert_eq!(write.body()["status"]["completionTime"], NOW);
}

#[test]
fn limits_fail_the_job() {
    let limited = |n: i32| json!({"backoffLimit": n});
    let exceeded = "FailureTarget(BackoffLimitExceeded)";
    check(limited(0), json!({}), "a:failed b", "-b", &format!("active=1 f:a {exceeded}"));
    check(limited(1), json!({}), "a:failed b", "+", "active=1 f:a");
    check(limited(1), json!({"failed": 1}), "a:failed b", "-b", &format!("active=1 failed=1 f:a {exceeded}"));
    check(
        limited(1),
        json!({"failed": 1, "uncountedTerminatedPods": {"failed": ["z"]}}),
        "b c",
        "-b -c",
        &format!("active=2 failed=2 {exceeded}"),
    );
    // Restarts count where containers are restarted.
    let restarts = |n: i32| json!({"backoffLimit": n, "template": {"metadata": {"labels": {"job": "work"}}, "spec": {"restartPolicy": "OnFailure", "containers": []}}});
    check(restarts(0), json!({}), "a:r0 b", "", "active=2");
    check(restarts(0), json!({}), "a:r1 b", "-a -b", &format!("active=2 {exceeded}"));
    check(restarts(3), json!({}), "a:r1 b:r1", "", "active=2");
    check(restarts(3), json!({}), "a:r1 b:r2", "-a -b", &format!("active=2 {exceeded}"));
    // A Pod that still runs then counts as failed too.
    let target = || condition("FailureTarget", "BackoffLimitExceeded");
    check(limited(0), target(), "a:failed:loose b:deleting", "", &format!("terminating=1 f:b {exceeded}"));
    check(limited(0), target(), "a:loose:deleting", "", &format!("terminating=1 {exceeded}"));
    check(limited(0), target(), "", "", &format!("{exceeded} Failed(BackoffLimitExceeded)"));
    let job = job(&limited(0), &target());
    let note = plan(&job, "").status.unwrap().on_success;
    assert_eq!(note, Some(Note::warning("BackoffLimitExceeded", "m")));
}

#[test]
fn the_deadline_counts_active_time() {
    let deadline = |seconds: i64| json!({"activeDeadlineSeconds": seconds});
    check(deadline(60), json!({}), "a b", "-a -b", "active=2 FailureTarget(DeadlineExceeded)");
    check(deadline(61), json!({}), "a b", "", "active=2");
    let job = job(&deadline(61), &json!({}));
    assert_eq!(plan(&job, "a b").requeue_after, Some(Duration::from_secs(1)));
    let suspended = json!({"activeDeadlineSeconds": 60, "suspend": true});
    check(suspended, condition("Suspended", "JobSuspended"), "", "", "Suspended(JobSuspended)");
    // Time in which it was suspended does not count.
    check(deadline(60), condition("Suspended", "JobSuspended"), "", "+ +", "Suspended=False(JobResumed)");
}

#[test]
fn a_suspended_job_has_no_pods() {
    let suspended = || json!({"suspend": true});
    check(suspended(), json!({}), "a b:pending", "~b ~a -b -a", "active=2 Suspended(JobSuspended)");
    check(suspended(), json!({"startTime": null}), "", "", "Suspended(JobSuspended)");
    check(suspended(), json!({"succeeded": 4}), "", "", "succeeded=4 SuccessCriteriaMet(CompletionsReached)");
    check(suspended(), json!({}), "a:failed", "", "f:a Suspended(JobSuspended)");
    let start = |spec: Value, status: Value| {
        let plan = plan(&job(&spec, &status), "");
        let write = plan.status.unwrap();
        (write.body()["status"]["startTime"].clone(), write.on_success.map(|n| format!("{} {}", n.reason, n.message)))
    };
    let note = |text: &str| Some(text.to_owned());
    assert_eq!(start(suspended(), json!({"startTime": null})), (Value::Null, note("Suspended Job suspended")));
    assert_eq!(start(json!({}), condition("Suspended", "JobSuspended")), (json!(NOW), note("Resumed Job resumed")));
    assert_eq!(start(json!({}), json!({"startTime": null})), (json!(NOW), None));
}

#[test]
fn failures_delay_replacements() {
    let wait = |pods: &str| {
        let plan = plan(&job(&json!({}), &json!({})), pods);
        (steps_of(&plan), plan.requeue_after.map(|d| d.as_secs()))
    };
    assert_eq!(wait("a:failed:t10"), ("+ +".to_owned(), None));
    assert_eq!(wait("a:failed:t9"), (String::new(), Some(1)));
    assert_eq!(wait("a:failed:t9 b:failed:t8"), (String::new(), Some(12)));
    assert_eq!(wait("a:failed:t9 b:succeeded:t8"), ("+ +".to_owned(), None));
    // The end of a Pod that was not needed any more is no failure.
    assert_eq!(wait("a:deleting:loose:t1"), ("+ +".to_owned(), None));
    assert_eq!(wait("a:failed:deleting:loose:t1"), ("+ +".to_owned(), None));
}

#[test]
fn a_pod_failure_policy_judges_failures() {
    let policy = |action: &str| {
        json!({"backoffLimit": 0, "podFailurePolicy": {"rules": [
            {"action": action, "onExitCodes": {"operator": "In", "values": [5]}},
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}})
    };
    check(policy("Ignore"), json!({}), "a:failed:x5 b c", "~a", "active=2");
    check(policy("Ignore"), json!({}), "a:failed:disrupted b c", "~a", "active=2");
    let exceeded = "active=1 f:a FailureTarget(BackoffLimitExceeded)";
    check(policy("Ignore"), json!({}), "a:failed:x6 b", "-b", exceeded);
    check(policy("Count"), json!({}), "a:failed:x5:disrupted b", "-b", exceeded);
    check(policy("FailJob"), json!({}), "a:failed:x5 b", "-b", "active=1 f:a FailureTarget(PodFailurePolicy)");
    // With a policy only the end of a Pod tells whether it failed.
    check(policy("FailJob"), json!({}), "a:deleting b", "", "active=1 terminating=1");
    let job = job(&policy("FailJob"), &json!({}));
    let written = plan(&job, "a:failed:x5").status.unwrap();
    let message = &written.body()["status"]["conditions"][0]["message"];
    assert_eq!(message, "Container c for pod d/a failed with exit code 5 matching FailJob rule at index 0");
}

#[test]
fn an_indexed_job_completes_each_index() {
    let indexed = || json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3});
    check(indexed(), json!({}), "", "+0 +1 +2", "");
    check(indexed(), json!({}), "a:i1", "+0 +2", "active=1");
    check(indexed(), json!({}), "a:i1:succeeded b:i0 c:i2", "", "active=2 succeeded=1 completed=1");
    check(
        indexed(),
        json!({"completedIndexes": "1", "succeeded": 1}),
        "a:i1:succeeded b:i0 c:i2",
        "~a",
        "active=2 succeeded=1 completed=1",
    );
    // A second success of an index is no other.
    check(
        indexed(),
        json!({"completedIndexes": "1", "succeeded": 1}),
        "a:i1:loose:succeeded d:i1:succeeded b:i0 c:i2",
        "~d",
        "active=2 succeeded=1 completed=1",
    );
    check(
        indexed(),
        json!({"completedIndexes": "0,1", "succeeded": 2}),
        "c:i2:succeeded",
        "",
        "succeeded=3 completed=0-2 SuccessCriteriaMet(CompletionsReached)",
    );
    check(indexed(), json!({}), "a:i0:failed:t100 b:i1 c:i2", "+0", "active=2 f:a");
    // Pods that nobody asked for: a second one of an index, one without and one beyond.
    check(indexed(), json!({}), "a:i0:ready b:i0:pending c:i1 d e:i7 f:i2", "~d ~e ~b -d -e -b", "active=6 ready=1");
    // The Job shrinks, and grows.
    let two = || json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2});
    check(two(), json!({"completedIndexes": "0,2", "succeeded": 2}), "b:i1", "", "active=1 succeeded=1 completed=0");
    let five = || json!({"completionMode": "Indexed", "completions": 5, "parallelism": 5});
    check(
        five(),
        json!({"completedIndexes": "0,1", "succeeded": 2}),
        "c:i2",
        "+3 +4",
        "active=1 succeeded=2 completed=0,1",
    );
    check(two(), json!({}), "a:i0 b:i1 c:i4:failed", "~c", "active=2");
    check(two(), json!({}), "a:i0 b:i1 c:i4:succeeded", "~c", "active=2");
    // An index whose Pod is going is free, or only when the Pod has gone.
    check(two(), json!({}), "a:i0:deleting:t100 b:i1", "+0", "active=1 terminating=1 f:a");
    let patient =
        json!({"completionMode": "Indexed", "completions": 2, "parallelism": 3, "podReplacementPolicy": "Failed"});
    check(patient, json!({}), "a:i0:deleting:t100 b:i1", "", "active=1 terminating=1");
}

#[test]
fn an_index_has_a_limit_of_its_own() {
    let limited = |limit: i32| json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimitPerIndex": limit, "backoffLimit": i32::MAX});
    check(limited(1), json!({}), "a:i0:f0 b:i1:f0", "", "active=2 failedIndexes=");
    // The failed Pod stays until its replacement knows of the failure.
    check(limited(1), json!({}), "a:i0:f0:failed:t5 b:i1:f0", "", "active=1 failedIndexes=");
    check(limited(1), json!({}), "a:i0:f0:failed:t10 b:i1:f0", "+0", "active=1 failedIndexes=");
    check(limited(1), json!({}), "a:i0:f0:failed:t10 c:i0:f1 b:i1:f0", "", "active=2 f:a failedIndexes=");
    check(limited(1), json!({}), "c:i0:f1:failed b:i1:f0", "", "active=1 f:c failedIndexes=0");
    let failed = json!({"failedIndexes": "0", "failed": 2});
    check(
        limited(1),
        failed,
        "b:i1:succeeded",
        "",
        "succeeded=1 failed=2 completed=1 failedIndexes=0 FailureTarget(FailedIndexes)",
    );
    check(limited(0), json!({}), "a:i0:f0:failed b:i1:f0", "", "active=1 f:a failedIndexes=0");
    let mut most = limited(0);
    most["maxFailedIndexes"] = json!(0);
    check(
        most,
        json!({}),
        "a:i0:f0:failed b:i1:f0",
        "-b",
        "active=1 f:a failedIndexes=0 FailureTarget(MaxFailedIndexesExceeded)",
    );
    let mut policy = limited(5);
    policy["podFailurePolicy"] = json!({"rules": [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [5]}},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [6]}}]});
    check(policy.clone(), json!({}), "a:i0:f0:failed:x5 b:i1:f0", "", "active=1 f:a failedIndexes=0");
    check(policy.clone(), json!({}), "a:i0:f0:failed:x6 b:i1:f0", "+0", "active=1 failedIndexes=");
    let told = |pods: &str| {
        let plan = plan(&job(&policy, &json!({})), pods);
        let create = plan.writes().find(|w| w.verb_name() == "create").unwrap();
        create.body()["metadata"]["annotations"].clone()
    };
    let annotations =
        |failures: &str| json!({pods::COMPLETION_INDEX: "0", "batch.kubernetes.io/job-index-failure-count": failures});
    assert_eq!(told("b:i1"), annotations("0"));
    assert_eq!(told("a:i0:f2:failed b:i1"), annotations("3"));
    let mut ignored = annotations("2");
    ignored["batch.kubernetes.io/job-index-ignored-failure-count"] = "1".into();
    assert_eq!(told("a:i0:f2:failed:x6 b:i1"), ignored);
}

#[test]
fn a_success_policy_ends_the_job_early() {
    let spec = || {
        json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3,
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]}})
    };
    let met = "SuccessCriteriaMet(SuccessPolicy)";
    check(spec(), json!({}), "a:i1:succeeded b:i0 c:i2", "", "active=2 succeeded=1 completed=1");
    check(
        spec(),
        json!({}),
        "a:i0:succeeded b:i1 c:i2:failed",
        "-b",
        &format!("active=1 succeeded=1 f:c completed=0 {met}"),
    );
    // Pods that are stopped then have not failed.
    let mut status = condition("SuccessCriteriaMet", "SuccessPolicy");
    (status["completedIndexes"], status["succeeded"]) = (json!("0"), json!(1));
    check(spec(), status.clone(), "b:i1:deleting:failed", "~b", &format!("succeeded=1 completed=0 {met}"));
    check(spec(), status, "", "", &format!("succeeded=1 completed=0 {met} Complete(SuccessPolicy)"));
}

#[test]
fn pods_are_adopted_and_released_with_their_finalizer() {
    let plan = plan(&job(&json!({}), &json!({})), "a:orphan b:relabelled c d:orphan:relabelled");
    assert_eq!(steps_of(&plan), "=a ~b");
    let mut writes = plan.writes();
    assert_eq!(writes.next().unwrap().body()["metadata"]["finalizers"], json!([TRACKING]));
    let released = &writes.next().unwrap().body()["metadata"];
    assert_eq!(released["ownerReferences"], json!([{"$patch": "delete", "uid": "job"}]));
}

#[test]
fn pods_carry_what_their_containers_and_the_controller_need() {
    let name = "a-job-with-a-name-that-is-nearly-as-long-as-names-are-allowed-to";
    let mut indexed = job(&json!({"completionMode": "Indexed", "completions": 12, "parallelism": 12}), &json!({}));
    indexed.metadata.name = Some(name.to_owned());
    let plan = plan(&indexed, "");
    let last: Pod = json::from_value(plan.writes().nth(11).unwrap().body().clone()).unwrap();
    let prefix = last.metadata.generate_name.unwrap();
    assert_eq!((prefix.len(), prefix.ends_with("-11-"), name.starts_with(&prefix[..54])), (58, true, true));
    assert_eq!(last.metadata.labels.unwrap()[pods::COMPLETION_INDEX], "11");
    assert_eq!(last.metadata.finalizers, Some(vec![TRACKING.to_owned()]));
    let spec = last.spec.unwrap();
    assert_eq!(spec.hostname, Some(format!("{name}-11")));
    let variable = json!([{"name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]);
    assert_eq!(json!(spec.containers[0].env), variable);
}

#[test]
fn some_jobs_are_left_alone() {
    let quiet = |spec: Value, status: Value, pods: &str| {
        let plan = plan(&job(&spec, &status), pods);
        assert!(plan.is_empty(), "{plan}");
    };
    quiet(json!({"managedBy": "example.com/queue"}), json!({}), "a b c");
    quiet(json!({}), condition("Complete", ""), "a");
    quiet(json!({}), condition("Failed", "BackoffLimitExceeded"), "a");
    check(json!({"managedBy": "kubernetes.io/job-controller"}), json!({}), "", "+ +", "");
    let mut going = job(&json!({}), &json!({}));
    going.metadata.deletion_timestamp = json::from_value(json!(NOW)).unwrap();
    let plan = plan(&going, "a b:failed c:succeeded");
    assert_eq!((steps_of(&plan).as_str(), status_of(&going, &plan).as_str()), ("~a", "active=1 s:c f:b"));
}

#[test]
fn the_finalizer_of_an_orphan_goes() {
    let plan_of = |text: &str, owner: Owner| steps_of(&OrphanedPods.plan(&pod(text), &owner, NOW.parse().unwrap()));
    assert_eq!(plan_of("a:succeeded", Owner::Gone), "~a");
    assert_eq!(plan_of("a:succeeded", Owner::There), "");
    assert_eq!(plan_of("a:loose", Owner::Gone), "");
}

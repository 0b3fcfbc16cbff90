//! The plan of a CronJob, as tables.

use super::*;
use json::{Value, json};

/// `10:30` on 19 May 2016, a Thursday, with more hours than a day has for later days.
fn at(text: &str) -> Timestamp {
    let (hours, minutes) = text.split_once(':').unwrap();
    let (minutes, seconds) = minutes.split_once(':').unwrap_or((minutes, "0"));
    let [hours, minutes, seconds] = [hours, minutes, seconds].map(|n| n.parse::<i64>().unwrap());
    let day: Timestamp = "2016-05-19T00:00:00Z".parse().unwrap();
    Timestamp::from_second(day.as_second() + hours * 3600 + minutes * 60 + seconds).unwrap()
}

fn minutes(text: &str) -> i64 {
    at(text).as_second() / 60
}

/// Hourly, created at ten o'clock.
fn cron(spec: Value, status: Value) -> CronJob {
    let mut cron = json!({
        "metadata": {"name": "c", "namespace": "d", "uid": "cron", "creationTimestamp": at("10:00").to_string()},
        "spec": {"schedule": "0 * * * *", "concurrencyPolicy": "Allow", "suspend": false,
            "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1,
            "jobTemplate": {"metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}}, "spec": {"template": {}}}},
        "status": status,
    });
    spec.as_object().unwrap().iter().for_each(|(field, value)| cron["spec"][field] = value.clone());
    json::from_value(cron).unwrap()
}

/// `11:00:word:word`: the Job of that time, or one of another name; with the words complete, failed, going, manual.
fn job(text: &str) -> Arc<Job> {
    let mut words: Vec<&str> = text.split(':').collect();
    let time = (words.len() > 1 && words[1].parse::<u32>().is_ok()).then(|| format!("{}:{}", words[0], words[1]));
    let name = time.as_ref().map_or_else(|| words[0].to_owned(), |time| format!("c-{}", minutes(time)));
    words.drain(..if time.is_some() { 2 } else { 1 });
    let has = |word: &str| words.contains(&word);
    let condition = |kind: &str| json!([{"type": kind, "status": "True"}]);
    let conditions = match () {
        () if has("complete") => condition("Complete"),
        () if has("failed") => condition("Failed"),
        () => json!([]),
    };
    let start = time.as_ref().map(|time| at(time).to_string());
    let owner = json!([{"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "cron", "controller": true}]);
    let value = json!({
        "metadata": {"name": name, "namespace": "d", "uid": format!("u-{name}"), "ownerReferences": owner,
            "annotations": if has("manual") { json!({INSTANTIATE: "manual"}) } else { Value::Null },
            "deletionTimestamp": has("going").then(|| at("10:00").to_string())},
        "spec": {"template": {}},
        "status": {"conditions": conditions, "startTime": start, "completionTime": start.filter(|_| has("complete"))},
    });
    Arc::new(json::from_value(value).unwrap())
}

fn listed(times: &[&str]) -> Value {
    let reference = |time: &&str| {
        let name = format!("c-{}", minutes(time));
        json!({"kind": "Job", "namespace": "d", "name": name, "uid": format!("u-{name}")})
    };
    times.iter().map(reference).collect()
}

fn plan(cron: &CronJob, jobs: &str, now: &str) -> Plan {
    let jobs: Vec<Arc<Job>> = jobs.split_whitespace().map(job).collect();
    let here: BTreeSet<_> = jobs.iter().filter_map(|job| job.metadata.uid.clone()).collect();
    let active = cron.status.iter().flat_map(|s| s.active.iter().flatten());
    let missing = active.filter_map(|r| r.uid.clone()).filter(|uid| !here.contains(uid)).collect();
    CronJobs.plan(cron, &Observed { jobs, missing }, at(now))
}

/// A time of the Job's name instead of the number of minutes that the name has.
fn readable(name: &str) -> String {
    let minutes = name.strip_prefix("c-").and_then(|n| n.parse::<i64>().ok()).map(|n| n - minutes("0:00"));
    minutes.map_or_else(|| name.to_owned(), |n| format!("{}:{:02}", n / 60, n % 60))
}

/// `+11:00` creates that Job and `-10:00` deletes one, in order; then the reasons of the events; then the status as it
/// will be: the running Jobs, and the last time.
fn shown(cron: &CronJob, plan: &Plan) -> String {
    let (mut words, mut status) = (Vec::new(), json!(cron.status));
    for write in plan.writes() {
        match write.verb_name() {
            "create" => words.push(format!("+{}", readable(&write.name))),
            "delete" => words.push(format!("-{}", readable(&write.name))),
            _ => status = write.body()["status"].clone(),
        }
    }
    words.extend(plan.steps.iter().filter_map(|step| match step {
        Step::Tell(note) => Some(note.reason.clone()),
        _ => None,
    }));
    let status: CronJobStatus = json::from_value(status).unwrap();
    let active: Vec<String> = status.active.iter().flatten().map(|r| readable(r.name.as_deref().unwrap())).collect();
    if !active.is_empty() {
        words.push(format!("active={}", active.join(",")));
    }
    words.extend(
        status.last_schedule_time.map(|time| format!("last={}", readable(&format!("c-{}", time.0.as_second() / 60)))),
    );
    words.extend(
        status
            .last_successful_time
            .map(|time| format!("success={}", readable(&format!("c-{}", time.0.as_second() / 60)))),
    );
    words.join(" ")
}

#[track_caller]
fn check(spec: Value, status: Value, jobs: &str, now: &str, expected: &str) {
    let cron = cron(spec.clone(), status.clone());
    assert_eq!(shown(&cron, &plan(&cron, jobs, now)), expected, "{spec} {status} {jobs} at {now}");
}

fn last(time: &str) -> Value {
    json!({"lastScheduleTime": at(time).to_string()})
}

#[test]
fn each_time_gets_one_job() {
    let none = || json!({});
    check(none(), none(), "", "10:30", "");
    check(none(), none(), "", "11:00", "+11:00 last=11:00");
    check(none(), none(), "", "11:59", "+11:00 last=11:00");
    // Of several missed times the last one counts.
    check(none(), none(), "", "15:01", "+15:00 last=15:00");
    check(none(), last("11:00"), "", "11:30", "last=11:00");
    check(none(), last("11:00"), "", "12:00", "+12:00 last=12:00");
    check(json!({"suspend": true}), none(), "", "12:00", "");
    check(json!({"schedule": "30 6-16/4 * * 1-5"}), last("10:30"), "", "34:31", "+34:30 last=34:30");
    check(json!({"timeZone": "Asia/Kathmandu", "schedule": "0 17 * * *"}), none(), "", "11:14", "");
    check(json!({"timeZone": "Asia/Kathmandu", "schedule": "0 17 * * *"}), none(), "", "11:15", "+11:15 last=11:15");
    let mut going = cron(none(), none());
    going.metadata.deletion_timestamp = Some(Time(at("11:00")));
    assert_eq!(shown(&going, &plan(&going, "", "11:00")), "");
}

#[test]
fn killed_after_the_creation_no_time_gets_a_second_job() {
    // The Job is there, and the status does not tell of it.
    check(json!({}), json!({}), "11:00", "11:01", "active=11:00 last=11:00");
    check(json!({}), json!({}), "11:00:complete", "11:01", "last=11:00 success=11:00");
    check(json!({}), last("11:00"), "11:00", "11:01", "active=11:00 last=11:00");
    check(json!({}), last("11:00"), "11:00:going", "11:01", "last=11:00");
    // The status is written after the Job only.
    let cron = cron(json!({}), json!({}));
    let plan = plan(&cron, "", "11:00");
    let writes: Vec<String> = plan.writes().map(ToString::to_string).collect();
    assert_eq!(writes, [format!("create jobs c-{}", minutes("11:00")), "update cronjobs/status c".to_owned()]);
    assert!(plan.status.is_none(), "it would be written even if the creation fails");
}

#[test]
fn policies_for_jobs_that_still_run() {
    let policy = |name: &str| json!({"concurrencyPolicy": name});
    let running = || json!({"active": listed(&["11:00"]), "lastScheduleTime": at("11:00").to_string()});
    check(policy("Allow"), running(), "11:00", "12:00", "+12:00 active=11:00 last=12:00");
    check(policy("Forbid"), running(), "11:00", "12:00", "JobAlreadyActive active=11:00 last=11:00");
    check(policy("Forbid"), running(), "11:00:complete", "12:00", "+12:00 SawCompletedJob last=12:00 success=11:00");
    check(policy("Replace"), running(), "11:00", "12:00", "-11:00 +12:00 last=12:00");
    // Also one that the status does not tell of yet.
    check(policy("Forbid"), last("11:00"), "11:00", "12:00", "JobAlreadyActive active=11:00 last=11:00");
}

#[test]
fn what_is_too_late_is_not_started() {
    let deadline = |seconds: i64| json!({"startingDeadlineSeconds": seconds});
    check(deadline(60), json!({}), "", "11:00:59", "+11:00 last=11:00");
    check(deadline(60), json!({}), "", "11:01", "");
    check(deadline(7200), last("11:00"), "", "15:30", "+15:00 last=15:00");
    let many = json!({"schedule": "* * * * *"});
    check(many, json!({}), "", "12:00", "+12:00 TooManyMissedTimes last=12:00");
    check(json!({"schedule": "@every 1h", "startingDeadlineSeconds": 10}), last("10:01"), "", "178:00", "last=10:01");
}

#[test]
fn the_list_follows_the_jobs() {
    let running = || json!({"active": listed(&["10:00"]), "lastScheduleTime": at("10:00").to_string()});
    check(json!({}), running(), "", "10:30", "MissingJob last=10:00");
    check(json!({}), running(), "10:00:failed", "10:30", "SawCompletedJob last=10:00");
    check(json!({}), running(), "10:00", "10:30", "active=10:00 last=10:00");
    check(json!({}), running(), "10:00 other", "10:30", "UnexpectedJob active=10:00 last=10:00");
    check(json!({}), running(), "10:00 10:07:manual", "10:30", "UnexpectedJob active=10:00 last=10:00");
}

#[test]
fn history_has_an_end() {
    let kept = |successes: i64, failures: i64| json!({"successfulJobsHistoryLimit": successes, "failedJobsHistoryLimit": failures});
    let jobs = "8:00:complete 7:00:failed 9:00:complete 6:00:failed 10:00:complete 5:00";
    let status = || json!({"active": listed(&["5:00"]), "lastScheduleTime": at("10:00").to_string(), "lastSuccessfulTime": at("10:00").to_string()});
    let end = "active=5:00 last=10:00 success=10:00";
    check(kept(3, 2), status(), jobs, "10:30", end);
    check(kept(2, 1), status(), jobs, "10:30", &format!("-8:00 -6:00 {end}"));
    check(kept(0, 0), status(), jobs, "10:30", &format!("-8:00 -9:00 -10:00 -6:00 -7:00 {end}"));
    check(
        kept(1, 9),
        status(),
        &jobs.replace("8:00:complete", "8:00:complete:going"),
        "10:30",
        &format!("-9:00 {end}"),
    );
}

#[test]
fn mistakes_are_told_and_nothing_is_started() {
    let told = |spec: Value, now: &str| {
        let plan = plan(&cron(spec, json!({})), "", now);
        assert!(plan.writes().next().is_none() && plan.requeue_after.is_none(), "{plan}");
        let notes = plan.steps.iter().filter_map(|step| match step {
            Step::Tell(note) => Some(format!("{}: {}", note.reason, note.message)),
            _ => None,
        });
        notes.collect::<Vec<_>>()
    };
    let never =
        "InvalidSchedule: invalid schedule: 59 23 31 2 * : time difference between two schedules is less than 1 second";
    assert_eq!(told(json!({"schedule": "59 23 31 2 *"}), "11:00"), [never]);
    let unreadable = "UnparseableSchedule: unparseable schedule: \"x\" : expected exactly 5 fields, found 1: [x]";
    assert_eq!(told(json!({"schedule": "x"}), "11:00"), [unreadable]);
    let zone = "UnknownTimeZone: invalid timeZone: \"Mars\": unknown time zone Mars";
    assert_eq!(told(json!({"timeZone": "Mars"}), "11:00"), [zone]);
}

#[test]
fn a_time_zone_in_the_schedule_works_with_a_warning() {
    let spec = json!({"schedule": "TZ=Asia/Kathmandu 0 17 * * *"});
    check(spec, json!({}), "", "11:15", "+11:15 UnsupportedSchedule last=11:15");
}

#[test]
fn a_missed_time_is_told() {
    // The CronJob's last time is the one that is missed, so that it is found again.
    let late = json!({"schedule": "@every 1h", "startingDeadlineSeconds": 10});
    let cron = cron(late, last("10:30"));
    let mut round = Round {
        cron: &cron,
        spec: cron.spec.as_ref().unwrap(),
        jobs: &[],
        status: CronJobStatus::default(),
        now: at("12:00"),
    };
    round.status = cron.status.clone().unwrap();
    let mut plan = Plan::default();
    assert!(!round.may_start(at("11:30"), &mut plan));
    let Some(Step::Tell(note)) = plan.steps.first() else { panic!("nothing is told") };
    assert_eq!(note.message, "Missed scheduled time to start a job: Thu, 19 May 2016 11:30:00 +0000");
}

#[test]
fn it_looks_again_at_the_next_time() {
    let wait = |spec: Value, status: Value, now: &str| plan(&cron(spec, status), "", now).requeue_after.unwrap();
    let expect = |hours: u64, minutes: u64| std::time::Duration::from_millis((hours * 60 + minutes) * 60_000 + 100);
    assert_eq!(wait(json!({}), json!({}), "10:20"), expect(0, 40));
    assert_eq!(wait(json!({}), json!({}), "11:00"), expect(1, 0));
    assert_eq!(wait(json!({"schedule": "30 6-16/4 * * 1-5"}), last("10:30"), "34:31"), expect(3, 59));
    assert_eq!(wait(json!({"schedule": "30 10,11,12 * * 1-5"}), last("10:30"), "40:30"), expect(66, 0));
    assert_eq!(wait(json!({"schedule": "0 12 * * 4"}), last("12:00"), "467:30"), expect(48, 30));
    assert_eq!(wait(json!({"schedule": "0 12 * * 5"}), json!({}), "16:00"), expect(20, 0));
}

#[test]
fn the_job_is_made_from_the_template() {
    let cron = cron(json!({"timeZone": "Asia/Kathmandu", "schedule": "0 17 * * *"}), json!({}));
    let plan = plan(&cron, "", "11:15");
    let job: Job = json::from_value(plan.writes().next().unwrap().body().clone()).unwrap();
    let metadata = json!({"name": "c-24394275", "namespace": "d", "labels": {"a": "b"},
        "annotations": {"x": "y", SCHEDULED: "2016-05-19T17:00:00+05:45"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "cron", "controller": true,
            "blockOwnerDeletion": true}]});
    assert_eq!(json!(job.metadata), metadata);
    assert_eq!(rfc3339(at("11:15"), &TimeZone::UTC), "2016-05-19T11:15:00Z");
}

#[test]
fn a_schedule_may_count_from_the_last_time() {
    let every = |deadline: Option<i64>| json!({"schedule": "@every 1h", "startingDeadlineSeconds": deadline});
    // The time until it looks again, in seconds, is the last word.
    let check = |deadline: Option<i64>, status: Value, jobs: &str, now: &str, expected: &str| {
        let cron = cron(every(deadline), status.clone());
        let plan = plan(&cron, jobs, now);
        let wait = plan.requeue_after.unwrap().as_secs();
        let shown = format!("{} {wait}", shown(&cron, &plan));
        assert_eq!(shown.trim_start(), expected, "{deadline:?} {status} {jobs} at {now}");
    };
    let running = |time: &str| json!({"active": listed(&[time]), "lastScheduleTime": at(time).to_string()});
    let (none, week) = (json!({}), 7 * 24);
    check(None, none.clone(), "", "10:01", "3540");
    check(None, none.clone(), "", "11:00", "+11:00 last=11:00 3600");
    check(Some(10), none.clone(), "", "11:00:11", "3589");
    check(Some(1_000_000), none.clone(), "", "11:00:09", "+11:00 last=11:00 3591");
    check(None, last("11:00"), "11:00:complete", "11:01", "last=11:00 success=11:00 3540");
    check(None, last("11:00"), "11:00:complete", "12:01", "+12:00 last=12:00 success=11:00 3540");
    check(Some(10), last("11:00"), "11:00:complete", "12:00:11", "last=11:00 success=11:00 3589");
    check(None, running("11:00"), "11:00", "11:01", "active=11:00 last=11:00 3540");
    check(None, running("10:00"), "10:00", "11:02", "+11:00 active=10:00 last=11:00 3480");
    check(Some(10), running("11:00"), "11:00", "12:00:11", "active=11:00 last=11:00 3589");
    check(Some(1_000_000), running("11:00"), "11:00", "12:00:09", "+12:00 active=11:00 last=12:00 3591");
    let late = |seconds: &str| format!("{}:{seconds}", 11 + week);
    check(None, last("11:01"), "", &late("00"), "+178:01 TooManyMissedTimes last=178:01 60");
    check(Some(10), last("11:01"), "", &late("01:11"), "last=11:01 3589");
}

#[test]
fn times_that_were_missed_for_a_week() {
    let overdue = |policy: &str, deadline: Option<i64>, expected: &str| {
        let spec = json!({"concurrencyPolicy": policy, "startingDeadlineSeconds": deadline});
        check(spec, last("10:01"), "", "179:00", expected);
    };
    for policy in ["Allow", "Replace", "Forbid"] {
        overdue(policy, None, "+179:00 TooManyMissedTimes last=179:00");
        overdue(policy, Some(1_000_000), "+179:00 TooManyMissedTimes last=179:00");
        overdue(policy, Some(10), "+179:00 last=179:00");
        overdue(policy, Some(2 * 3600), "+179:00 last=179:00");
    }
}

#[test]
fn clocks_that_go_back_start_nothing_twice() {
    for policy in ["Allow", "Forbid", "Replace"] {
        let spec = || json!({"concurrencyPolicy": policy});
        check(spec(), last("11:00"), "11:00:complete", "10:59", "last=11:00 success=11:00");
        check(spec(), json!({}), "11:00", "10:59", "active=11:00 last=11:00");
    }
}

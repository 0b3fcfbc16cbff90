//! Elections step by step. Times are seconds from now.

use json::Value;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

pub const NOW: i64 = 1_000_000;

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn time(text: &str) -> Option<MicroTime> {
    let second = (text != "never").then(|| text.parse::<i64>().expect("a number"));
    second.map(|second| MicroTime(at(NOW + second)))
}

/// `name emulation binary [made=…] [renewed=…|never] [asked=…] [by=strategy]`; it spoke just now unless it says otherwise.
pub fn candidate(text: &str) -> LeaseCandidate {
    let words: Vec<&str> = text.split(' ').collect();
    let mut candidate = LeaseCandidate::default();
    candidate.metadata.name = Some(words[0].to_owned());
    let spec = candidate.spec.get_or_insert_default();
    spec.lease_name = "work".to_owned();
    spec.emulation_version = Some(words[1].to_owned());
    spec.binary_version = words[2].to_owned();
    spec.strategy = STRATEGY.to_owned();
    spec.renew_time = time("0");
    for word in &words[3..] {
        let (key, value) = word.split_once('=').expect("a setting");
        let spec = candidate.spec.get_or_insert_default();
        match key {
            "made" => candidate.metadata.creation_timestamp = Some(Time(at(value.parse().expect("a number")))),
            "renewed" => spec.renew_time = time(value),
            "asked" => spec.ping_time = time(value),
            "by" => spec.strategy = value.to_owned(),
            _ => panic!("{word}"),
        }
    }
    candidate
}

/// `holder [lasts=seconds] [by=strategy] [then=preferred]`, `-` for none.
fn lease(text: &str) -> Lease {
    let mut words = text.split(' ');
    let holder = words.next().filter(|holder| *holder != "-").map(str::to_owned);
    let mut spec = LeaseSpec {
        holder_identity: holder,
        lease_duration_seconds: Some(10),
        renew_time: time("0"),
        acquire_time: time("-90"),
        ..LeaseSpec::default()
    };
    for word in words {
        let (key, value) = word.split_once('=').expect("a setting");
        match key {
            "lasts" => spec.lease_duration_seconds = value.parse().ok(),
            "by" => spec.strategy = Some(value.to_owned()),
            "then" => spec.preferred_holder = Some(value.to_owned()),
            _ => panic!("{word}"),
        }
    }
    let mut lease = Lease { spec: Some(spec), ..Lease::default() };
    lease.metadata.name = Some("work".to_owned());
    lease
}

/// The plan as `ask a b` or `create|update holder by=strategy [then=preferred]`, with `again=seconds`.
fn step(lease: Option<&Lease>, still: u64, candidates: &[LeaseCandidate]) -> String {
    let candidates = candidates.iter().cloned().map(Arc::new).collect();
    let observed = Observed { candidates, still: Duration::from_secs(still) };
    let plan = elect(&Key::new("default", "work"), lease, &observed, at(NOW));
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or("-").to_owned();
    let mut said = Vec::new();
    for write in plan.writes() {
        let spec = &write.body()["spec"];
        if write.resource.plural == "leasecandidates" {
            assert_eq!(spec["pingTime"], json::to_value(time("0")).unwrap());
            said.push(format!("ask {}", write.name));
            continue;
        }
        let (holder, strategy) = (text(spec.get("holderIdentity")), text(spec.get("strategy")));
        let mut decided = format!("{} {holder} by={strategy}", write.verb_name());
        if let Some(next) = spec.get("preferredHolder") {
            decided += &format!(" then={}", text(Some(next)));
        } else if holder != "-" && spec["leaseDurationSeconds"] == FIRST_TERM_SECONDS {
            // A new term begins.
            assert_eq!((spec.get("acquireTime"), spec["renewTime"].is_null()), (None, false));
            decided += " anew";
        }
        said.push(decided);
    }
    said.extend(plan.requeue_after.map(|after| format!("again={}", after.as_secs())));
    said.join(", ")
}

fn check(held: &str, candidates: &[&str], expected: &str) {
    let candidates: Vec<LeaseCandidate> = candidates.iter().map(|text| candidate(text)).collect();
    let (held, still) = held.split_once(" still=").unwrap_or((held, "0"));
    let lease = (!held.is_empty()).then(|| lease(held));
    assert_eq!(step(lease.as_ref(), still.parse().expect("a number"), &candidates), expected, "{held}");
}

#[test]
fn a_lease_without_candidates_is_nobodys_business() {
    check("", &[], "");
    check("somebody still=60", &[], "");
    check("somebody still=60", &["a 1.19.0 1.19.0 renewed=-1801"], "");
    check("", &["a 1.19.0 1.19.0 renewed=never"], "");
}

#[test]
fn who_is_heard_of_gets_a_free_lease() {
    let created = "create a by=OldestEmulationVersion anew, again=5";
    let updated = "update a by=OldestEmulationVersion anew, again=5";
    check("", &["a 1.19.0 1.19.0"], created);
    check("", &["a 1.19.0 1.19.0", "b 1.19.0 1.20.0", "c 1.20.0 1.20.0"], created);
    check("-", &["a 1.19.0 1.19.0"], updated);
    check("- then=b", &["a 1.19.0 1.19.0"], updated);
    check("gone still=10", &["a 1.19.0 1.19.0"], updated);
    check("gone lasts=0", &["a 1.19.0 1.19.0"], updated);
    // A candidate whose own Lease ran out needs it anew.
    check("a by=OldestEmulationVersion still=10", &["a 1.19.0 1.19.0"], updated);
    // No candidate states its version and its strategy as it should.
    check("", &["a xyz 1.19.0"], "");
    check("", &["a 1.19.0 1.19.0", "b 1.19.0 1.19.0 by=foo.com/bar"], "");
}

#[test]
fn candidates_are_asked_before_one_is_chosen() {
    check("", &["a 1.19.0 1.19.0 renewed=-10"], "ask a, again=5");
    check("", &["a 1.19.0 1.19.0 renewed=-10", "b 1.19.0 1.19.0 renewed=-1"], "ask a, again=5");
    check("", &["a 1.19.0 1.19.0 renewed=-10 asked=-11"], "ask a, again=5");
    // They have time to answer.
    check("", &["a 1.19.0 1.19.0 renewed=-60 asked=0"], "again=5");
    check("", &["a 1.19.0 1.19.0 renewed=-60 asked=-4", "b 1.20.0 1.20.0 asked=-4"], "again=5");
    // A candidate that does not answer in time is passed over, and not asked again.
    check("", &["a 1.19.0 1.19.0 renewed=-60 asked=-30"], "");
    let other = "create b by=OldestEmulationVersion anew, again=5";
    check("", &["a 1.19.0 1.19.0 renewed=-20 asked=-10", "b 1.20.0 1.20.0 asked=-1"], other);
    check("", &["a 1.19.0 1.19.0 renewed=-20 asked=9000", "b 1.20.0 1.20.0 asked=-1"], other);
}

#[test]
fn a_better_candidate_follows_the_one_that_leads() {
    let lasts = "a lasts=10";
    let ahead = ["a 1.19.0 1.19.0", "b 1.18.0 1.18.0"];
    check(lasts, &ahead, "update a by=OldestEmulationVersion then=b, again=5");
    check("a lasts=10 by=OldestEmulationVersion", &ahead, "update a by=OldestEmulationVersion then=b, again=5");
    check("a lasts=10 by=OldestEmulationVersion then=b", &ahead, "again=5");
    check(
        "a lasts=10 by=OldestEmulationVersion then=b still=10",
        &ahead,
        "update b by=OldestEmulationVersion anew, again=5",
    );
    // It is asked first, and does not count while it is silent.
    check(lasts, &["a 1.19.0 1.19.0", "b 1.18.0 1.18.0 renewed=-9"], "ask b, again=5");
    check(lasts, &["a 1.19.0 1.19.0 renewed=-9", "b 1.18.0 1.18.0 renewed=-60 asked=-9"], "again=10");
    // Whoever leads and is best is left alone until the Lease could be over.
    check(
        "a lasts=10 by=OldestEmulationVersion still=4",
        &["a 1.19.0 1.19.0 renewed=-9", "b 1.20.0 1.20.0"],
        "again=6",
    );
    // A leader that does not take part is followed too.
    check("stranger lasts=10", &["a 1.19.0 1.19.0"], "update stranger by=OldestEmulationVersion then=a, again=5");
}

#[test]
fn candidates_that_were_silent_for_long_are_asked() {
    let kept = "a lasts=10 by=OldestEmulationVersion";
    check(kept, &["a 1.19.0 1.19.0 renewed=-899"], "again=1");
    check(kept, &["a 1.19.0 1.19.0 renewed=-900", "b 1.20.0 1.20.0 renewed=-1"], "ask a, again=5");
    check(kept, &["a 1.19.0 1.19.0", "b 1.20.0 1.20.0 renewed=-1200 asked=-60"], "again=10");
    let many: Vec<LeaseCandidate> =
        (0..250).map(|number| candidate(&format!("c{number} 1.19.0 1.19.0 renewed=-9"))).collect();
    assert_eq!(step(None, 0, &many).matches("ask c").count(), QUESTIONS);
}

#[test]
fn by_a_foreign_strategy_somebody_else_chooses() {
    let foreign = "a 1.19.0 1.19.0 by=foo.com/bar";
    check("", &[foreign], "create - by=foo.com/bar, again=5");
    check("gone by=OldestEmulationVersion still=60", &[foreign], "update gone by=foo.com/bar, again=5");
    check("- by=foo.com/bar still=4", &[foreign], "again=6");
    check("- by=foo.com/bar still=60", &["a 1.19.0 1.19.0 by=foo.com/bar renewed=-60"], "again=840");
}

//! Job controllers that are killed between any two writes, while Pods end at random: in the end the counts are exact.
//!
//! Here is no server, only what matters of one: versions, UIDs, finalizers, and deletion that waits for them.

use api::kinds::built_in;
use client::{Object, rest::Verb};
use controller::Write;
use json::{Value, json};

use super::*;

/// A small generator of random numbers, so that a seed tells the whole story.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

struct World {
    random: Random,
    job: Job,
    pods: BTreeMap<String, Pod>,
    revision: u64,
    made: u64,
    now: Timestamp,
    /// UIDs that were noted as succeeded and as failed, in all versions of the status.
    noted: [BTreeSet<String>; 2],
    /// UIDs of Pods that ended by themselves while they carried the finalizer, with the outcome and the index.
    ended: BTreeMap<String, (bool, Option<i32>)>,
    most_active: i32,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let completions = random.below(7) + 1;
        let mut spec = json!({"parallelism": random.below(4) + 1, "completions": completions, "backoffLimit": 1000,
            "completionMode": "NonIndexed", "podReplacementPolicy": "TerminatingOrFailed",
            "selector": {"matchLabels": {"job": "work"}},
            "template": {"metadata": {"labels": {"job": "work"}}, "spec": {"restartPolicy": "Never", "containers": []}}});
        let rules = json!([{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [7]}}]);
        match random.below(8) {
            0 => spec["completions"] = Value::Null,
            1 => spec["backoffLimit"] = json!(random.below(4)),
            2 => spec["completionMode"] = json!("Indexed"),
            3 => {
                spec["completionMode"] = json!("Indexed");
                spec["backoffLimitPerIndex"] = json!(random.below(3));
            }
            4 => {
                spec["completionMode"] = json!("Indexed");
                spec["successPolicy"] = json!({"rules": [{"succeededCount": random.below(completions) + 1}]});
            }
            5 => spec["podReplacementPolicy"] = json!("Failed"),
            6 => spec["podFailurePolicy"] = json!({"rules": rules}),
            _ => {}
        }
        let most_active = spec["parallelism"].as_i64().unwrap() as i32;
        let metadata = json!({"name": "work", "namespace": "d", "uid": "job", "resourceVersion": "1"});
        World {
            random,
            job: json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap(),
            pods: BTreeMap::new(),
            revision: 1,
            made: 0,
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            noted: Default::default(),
            ended: BTreeMap::new(),
            most_active,
        }
    }

    fn next_revision(&mut self) -> String {
        self.revision += 1;
        self.revision.to_string()
    }

    fn put(&mut self, mut pod: Pod) {
        pod.metadata.resource_version = Some(self.next_revision());
        let name = pod.metadata.name.clone().unwrap();
        let held = pod.metadata.finalizers.as_ref().is_some_and(|f| !f.is_empty());
        // A Pod that the kubelet runs it removes itself, once it has ended.
        if pod.metadata.deletion_timestamp.is_some() && pod::is_terminal(&pod) && !held {
            self.pods.remove(&name);
        } else {
            self.pods.insert(name, pod);
        }
    }

    /// Carries a write out as a server would; false when it refuses.
    fn write(&mut self, write: &Write) -> bool {
        if write.resource.plural == "jobs" {
            return self.write_status(write.body());
        }
        if let Verb::Create(body) = &write.verb {
            self.made += 1;
            let mut pod = json::from_value::<Pod>(body.clone()).unwrap();
            let name = format!("{}{}", pod.metadata.generate_name.take().unwrap(), self.made);
            pod.metadata.uid = Some(name.clone());
            pod.metadata.name = Some(name);
            pod.status = json::from_value(json!({"phase": "Pending"})).unwrap();
            self.put(pod);
            return true;
        }
        let Some(mut pod) = self.pods.get(&write.name).cloned() else { return write.tolerated.contains(&"NotFound") };
        match &write.verb {
            Verb::Delete(options) => {
                assert_eq!(options.uid, pod.metadata.uid);
                let changed = options
                    .resource_version
                    .as_ref()
                    .is_some_and(|v| Some(v) != pod.metadata.resource_version.as_ref());
                if changed {
                    return write.tolerated.contains(&"Conflict");
                }
                pod.metadata.deletion_timestamp = json::from_value(json!(self.now.to_string())).unwrap();
            }
            Verb::StrategicPatch(patch) => {
                let version = &patch["metadata"]["resourceVersion"];
                if version.as_str().is_some_and(|v| Some(v) != pod.metadata.resource_version.as_deref()) {
                    return false;
                }
                let adds = patch["metadata"].get("finalizers").is_some();
                if adds && pod.metadata.deletion_timestamp.is_some() {
                    return write.tolerated.contains(&"Forbidden");
                }
                let definition = built_in().all().iter().find(|d| d.kind == "Pod").unwrap();
                let merged = api::write::patch::strategic::apply(&definition.ty, pod.to_value(), patch).unwrap();
                pod = json::from_value(merged).unwrap();
            }
            other => panic!("no controller of Jobs does {other:?}"),
        }
        self.put(pod);
        true
    }

    fn write_status(&mut self, body: &Value) -> bool {
        let new = json::from_value::<Job>(body.clone()).unwrap();
        if new.metadata.resource_version != self.job.metadata.resource_version {
            return false;
        }
        let uids = |job: &Job| -> [BTreeSet<String>; 2] {
            let uncounted = job.status.clone().unwrap_or_default().uncounted_terminated_pods.unwrap_or_default();
            [uncounted.succeeded, uncounted.failed].map(|list| list.unwrap_or_default().into_iter().collect())
        };
        for (which, (old, new)) in uids(&self.job).iter().zip(&uids(&new)).enumerate() {
            for uid in new.difference(old) {
                let other = self.noted[1 - which].contains(uid);
                assert!(!other && self.noted[which].insert(uid.clone()), "{uid} is noted twice");
            }
        }
        self.job.status = new.status;
        self.job.metadata.resource_version = Some(self.next_revision());
        true
    }

    /// Something that kubelets or users do.
    fn happen(&mut self) {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        if names.is_empty() || self.random.one_in(10) {
            return self.change_job();
        }
        let mut pod = self.pods[&names[self.random.below(names.len() as u64) as usize]].clone();
        let ends = !pod::is_terminal(&pod) && !self.random.one_in(3);
        if ends {
            let succeeds = self.random.below(5) < 3;
            let code = if succeeds { 0 } else { [1, 7][self.random.below(2) as usize] };
            let state = json!({"terminated": {"exitCode": code, "finishedAt": self.now.to_string()}});
            let container =
                json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
            let phase = if succeeds { "Succeeded" } else { "Failed" };
            pod.status = json::from_value(json!({"phase": phase, "containerStatuses": [container]})).unwrap();
            if tracking::is_tracked(&pod) && pod.metadata.deletion_timestamp.is_none() && !(code == 7 && self.ignores())
            {
                self.ended.insert(pod.metadata.uid.clone().unwrap(), (succeeds, index_of(&pod)));
            }
        } else if self.random.one_in(8) && pod::is_active(&pod) {
            pod.metadata.deletion_timestamp = json::from_value(json!(self.now.to_string())).unwrap();
        }
        self.put(pod);
    }

    fn ignores(&self) -> bool {
        self.job.spec.as_ref().unwrap().pod_failure_policy.is_some()
    }

    fn change_job(&mut self) {
        let (suspends, parallelism) = (self.random.one_in(4), self.random.below(5) as i32);
        let spec = self.job.spec.as_mut().unwrap();
        if suspends {
            spec.suspend = Some(spec.suspend != Some(true));
        } else {
            spec.parallelism = Some(parallelism);
            self.most_active = self.most_active.max(parallelism);
        }
        self.job.metadata.resource_version = Some(self.next_revision());
    }

    /// Makes a plan and carries out as many of its writes as the process lives to make; false when there are none.
    fn step(&mut self, controller: &mut Jobs, disturbed: bool) -> bool {
        let pods: Vec<Arc<Pod>> = self.pods.values().cloned().map(Arc::new).collect();
        let failures = controller.learn(&self.job, self.job.spec.as_ref().unwrap(), &pods);
        let plan = controller.plan(&self.job, &Observed { pods, failures }, self.now);
        let writes: Vec<Write> = plan.writes().cloned().collect();
        let status_at = writes.len() - usize::from(plan.status.is_some());
        let mut at = 0;
        while let Some(write) = writes.get(at) {
            if disturbed && self.random.one_in(6) {
                *controller = Jobs::default();
                return true;
            }
            if disturbed && self.random.one_in(4) {
                self.happen();
            }
            // A step that fails ends the steps, but the status is written all the same.
            let done = self.write(write);
            at = if done || at >= status_at { at + 1 } else { status_at };
            let active = self.pods.values().filter(|p| pod::is_active(p)).count() as i32;
            assert!(active <= self.most_active, "{active} Pods run");
        }
        !writes.is_empty()
    }

    fn live(&mut self) {
        let mut controller = Jobs::default();
        for _ in 0..60 {
            self.step(&mut controller, true);
            self.now = Timestamp::from_second(self.now.as_second() + self.random.below(200) as i64).unwrap();
            if self.random.one_in(2) {
                self.happen();
            }
        }
        let spec = self.job.spec.as_mut().unwrap();
        (spec.suspend, spec.parallelism) = (None, Some(3));
        self.most_active = self.most_active.max(3);
        self.job.metadata.resource_version = Some(self.next_revision());
        for _ in 0..2000 {
            if finished(&self.job).is_some() {
                return assert!(!self.step(&mut controller, false), "a Job that is over is left alone");
            }
            self.step(&mut controller, false);
            self.now = Timestamp::from_second(self.now.as_second() + 700).unwrap();
            let running = self.pods.values().filter(|p| !pod::is_terminal(p)).count();
            (0..running * 3).for_each(|_| self.end_one());
        }
        panic!("the Job never ends: {:?} {:?}", self.job.status, self.pods);
    }

    /// As [`happen`](Self::happen), but the Job and the Pods are left in peace.
    fn end_one(&mut self) {
        let running: Vec<String> =
            self.pods.iter().filter(|(_, p)| !pod::is_terminal(p)).map(|(name, _)| name.clone()).collect();
        let Some(name) = running.first() else { return };
        let mut pod = self.pods[name].clone();
        pod.status = json::from_value(json!({"phase": "Succeeded"})).unwrap();
        if tracking::is_tracked(&pod) && pod.metadata.deletion_timestamp.is_none() {
            self.ended.insert(pod.metadata.uid.clone().unwrap(), (true, index_of(&pod)));
        }
        self.put(pod);
    }

    fn check(&self) {
        let (spec, status) = (self.job.spec.as_ref().unwrap(), self.job.status.clone().unwrap());
        let [succeeded, failed] = &self.noted;
        assert!(!self.pods.values().any(|p| tracking::is_tracked(p) || pod::is_active(p)), "{:?}", self.pods);
        assert_eq!(status.failed.unwrap_or(0), failed.len() as i32);
        for (uid, (success, _)) in &self.ended {
            let missed = if *success { !is_indexed(spec) && !succeeded.contains(uid) } else { !failed.contains(uid) };
            assert!(!missed, "the end of {uid} is not counted");
        }
        if is_indexed(spec) {
            let done: Indexes = self
                .ended
                .iter()
                .filter(|(uid, (success, _))| *success && !failed.contains(*uid))
                .filter_map(|(_, (_, i))| *i)
                .collect();
            let counted = Indexes::parse(status.completed_indexes.as_deref().unwrap_or(""), i32::MAX);
            assert_eq!(done.common(&counted), done.len(), "{done} of {counted}");
            assert_eq!(status.succeeded.unwrap_or(0), counted.len());
        } else {
            assert_eq!(status.succeeded.unwrap_or(0), succeeded.len() as i32);
        }
        let complete = finished(&self.job).is_some_and(|c| c.type_ == "Complete");
        if let (true, None, Some(wanted)) = (complete, &spec.success_policy, spec.completions) {
            assert!(status.succeeded.unwrap_or(0) >= wanted);
        }
    }
}

#[test]
fn counts_are_exact_though_the_process_is_killed_at_any_moment() {
    for seed in 0..300 {
        let told = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.live();
            world.check();
        });
        assert!(told.is_ok(), "seed {seed}");
    }
}

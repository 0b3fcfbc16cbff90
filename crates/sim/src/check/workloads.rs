//! The checkers of StatefulSets, DaemonSets and Jobs.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::rules::pod;
use clock::Timestamp;
use controllers::workloads::job::LONGEST_DELAY;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, StatefulSet},
    batch::v1::{Job, JobSpec},
    core::v1::Pod,
};

use crate::{
    check::news::{Counts, is_news},
    objects::{owner, serves, set},
};

/// The finalizer of a Pod that its Job has not counted.
const TRACKED: &str = "batch.kubernetes.io/job-tracking";
/// The failures that a Job is allowed which says nothing of them.
const BACKOFF_LIMIT: i32 = 6;
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The objects that the checkers remember of these kinds.
#[derive(Default)]
pub struct Workloads {
    stateful_sets: BTreeMap<String, StatefulSet>,
    daemon_sets: BTreeMap<String, DaemonSet>,
    jobs: BTreeMap<String, Job>,
    /// How many members StatefulSets asked for, and how many nodes there were (under no key).
    counts: Counts,
    /// How many Jobs came to their end.
    pub ended_jobs: usize,
    /// By the UID of the Job: how the Pods ended that it had to count, by their own UIDs.
    ended: BTreeMap<String, BTreeMap<String, End>>,
    /// By the UID of the Job: the Pods that may count as failed, since they failed, or were taken away before they ended.
    failed: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug, Clone, PartialEq)]
struct End {
    succeeded: bool,
    index: Option<i32>,
}

/// How many Pods of a Job may fail until it ends, whatever becomes of the others.
fn allowed_failures(job: &JobSpec) -> u32 {
    let failures = match job.backoff_limit_per_index {
        Some(of_index) => job.completions.unwrap_or(1) * (of_index + 1),
        None => job.backoff_limit.unwrap_or(BACKOFF_LIMIT) + 1,
    };
    failures.unsigned_abs()
}

fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|f| f == TRACKED)
}

fn replicas(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

fn image(spec: Option<&k8s_openapi::api::core::v1::PodSpec>) -> Option<&str> {
    spec?.containers.first()?.image.as_deref()
}

fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The condition that ended the Job.
fn finished(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref()?.conditions.as_deref()?;
    let ended = conditions.iter().find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True");
    ended.map(|c| c.type_.as_str())
}

impl Workloads {
    pub fn stateful_set(&mut self, key: String, new: Option<StatefulSet>, now: Timestamp) {
        if let Some(before) = self.stateful_sets.get(&key) {
            self.counts.changed(&key, replicas(before), now);
        }
        set(&mut self.stateful_sets, key, new);
    }

    /// The number of nodes was this one before, and has changed.
    pub fn nodes(&mut self, before: usize, now: Timestamp) {
        self.counts.changed("", before as i32, now);
    }

    pub fn daemon_set(&mut self, key: String, new: Option<DaemonSet>) {
        set(&mut self.daemon_sets, key, new);
    }

    fn job_of(&self, pod: &Pod) -> Option<&Job> {
        let owner = owner(&pod.metadata)?;
        self.jobs.values().find(|job| job.metadata.uid.as_deref() == Some(owner))
    }

    fn set_of(&self, pod: &Pod) -> Option<(&str, &StatefulSet)> {
        let owner = owner(&pod.metadata)?;
        let mut all = self.stateful_sets.iter();
        all.find(|(_, set)| set.metadata.uid.as_deref() == Some(owner)).map(|(key, set)| (key.as_str(), set))
    }

    /// Notes a changed Pod; says what is wrong about it. `pods` are all Pods after the change.
    pub fn pod(&mut self, old: Option<&Pod>, new: Option<&Pod>, pods: &BTreeMap<String, Pod>) -> Vec<String> {
        let mut wrong = Vec::new();
        let same = old.zip(new).is_some_and(|(old, new)| uid(old) == uid(new));
        if let Some(gone) = old.filter(|_| !same) {
            wrong.extend(self.ended_before_it_went(gone));
        }
        if let Some(new) = new {
            if !same {
                wrong.extend(self.made_by_job(new, pods));
                wrong.extend(self.alone_on_its_node(new, pods));
            }
            self.note_end(old.filter(|_| same), new);
        }
        let taken_away = old.filter(|_| !same).or(new.filter(|new| new.metadata.deletion_timestamp.is_some()));
        taken_away.into_iter().chain(new).for_each(|pod| self.note_failure(pod, taken_away.is_some()));
        wrong
    }

    /// A member of a StatefulSet that has a node goes when the node has said that it ended: another one of its name may be
    /// made then, and there are never two.
    fn ended_before_it_went(&self, gone: &Pod) -> Option<String> {
        let member = self.set_of(gone).is_some() && node(gone).is_some();
        (member && !pod::is_terminal(gone)).then(|| format!("{} may still run on {:?}", name(gone), node(gone)))
    }

    /// The members of a StatefulSet are numbered from 0 to what it asks for.
    pub fn numbered(&self, new: &Pod, now: Timestamp) -> Option<String> {
        let (key, set) = self.set_of(new)?;
        let most = self.counts.believed(key, replicas(set), now).max()?;
        let number: Option<i32> = name(new).rsplit('-').next().and_then(|number| number.parse().ok());
        number.is_none_or(|number| number >= most).then(|| format!("a member of a set of {most}"))
    }

    /// A Job has at most as many Pods as it may have at once, and none more when it is over.
    fn made_by_job(&self, new: &Pod, pods: &BTreeMap<String, Pod>) -> Option<String> {
        let job = self.job_of(new)?;
        if let Some(end) = finished(job) {
            return Some(format!("a Pod is made for a Job that is {end}"));
        }
        let most = job.spec.as_ref().and_then(|s| s.parallelism).unwrap_or(1);
        let active = pods.values().filter(|p| owner(&p.metadata) == owner(&new.metadata) && pod::is_active(p)).count();
        (active as i32 > most).then(|| format!("the Job has {active} active Pods, at most {most} are allowed"))
    }

    /// A DaemonSet without surge has one Pod on a node.
    fn alone_on_its_node(&self, new: &Pod, pods: &BTreeMap<String, Pod>) -> Option<String> {
        let owned = owner(&new.metadata)?;
        self.daemon_sets.values().find(|set| set.metadata.uid.as_deref() == Some(owned))?;
        let place = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.affinity.as_ref()).cloned();
        let twins = pods.values().filter(|p| {
            owner(&p.metadata) == Some(owned) && pod::is_active(p) && place(p) == place(new) && uid(p) != uid(new)
        });
        let twins: Vec<&str> = twins.map(name).collect();
        (!twins.is_empty()).then(|| format!("{} is for the node that has {}", name(new), twins.join(" ")))
    }

    /// A Pod that served since then was taken away: a rolling update of a StatefulSet or a DaemonSet takes one member away at
    /// a time. `pods` are those that are left, `nodes` is how many nodes there are.
    pub fn still_serves(
        &self,
        (gone, since): (&Pod, Timestamp),
        pods: &BTreeMap<String, Pod>,
        nodes: usize,
        now: Timestamp,
    ) -> Option<String> {
        let fewest = self.members(gone, nodes, now)?.min()?;
        if is_news(since, now) {
            return None;
        }
        let ours = |p: &&Pod| owner(&p.metadata) == owner(&gone.metadata);
        let serving = pods.values().filter(ours).filter(|p| serves(p)).count() as i32;
        (serving < fewest - 1).then(|| format!("{serving} members serve, {} are promised", fewest - 1))
    }

    /// How many members the set of a Pod should have, by all that one may still believe; `None` where nothing is promised.
    fn members(&self, of: &Pod, nodes: usize, now: Timestamp) -> Option<Box<dyn Iterator<Item = i32> + '_>> {
        if let Some((key, set)) = self.set_of(of) {
            let stays = set.metadata.deletion_timestamp.is_none();
            return stays.then(|| Box::new(self.counts.believed(key, replicas(set), now)) as Box<_>);
        }
        let owner = owner(&of.metadata)?;
        let set = self.daemon_sets.values().find(|set| set.metadata.uid.as_deref() == Some(owner))?;
        let stays = set.metadata.deletion_timestamp.is_none();
        stays.then(|| Box::new(self.counts.believed("", nodes as i32, now)) as Box<_>)
    }

    /// The first end counts: one that is counted does not end again.
    fn note_end(&mut self, old: Option<&Pod>, new: &Pod) {
        let Some(job) = self.job_of(new).and_then(|job| job.metadata.uid.clone()) else { return };
        let was_tracked = old.is_none_or(is_tracked);
        if !pod::is_terminal(new) || old.is_some_and(pod::is_terminal) || !was_tracked {
            return;
        }
        let index = new.metadata.annotations.as_ref().and_then(|a| a.get(INDEX)).and_then(|text| text.parse().ok());
        let end = End { succeeded: pod::phase(new) == "Succeeded", index };
        self.ended.entry(job).or_default().insert(uid(new).to_owned(), end);
    }

    fn note_failure(&mut self, pod: &Pod, taken_away: bool) {
        let failed = pod::phase(pod) == "Failed" || (taken_away && !pod::is_terminal(pod));
        let job = self.job_of(pod).filter(|_| failed).and_then(|job| job.metadata.uid.clone());
        if let Some(job) = job {
            self.failed.entry(job).or_default().insert(uid(pod).to_owned());
        }
    }

    /// Notes a changed Job; says what is wrong about its counts.
    pub fn job(&mut self, key: String, new: Option<Job>) -> Vec<String> {
        let wrong = new.as_ref().map(|job| self.counts(job)).unwrap_or_default();
        let was_over = self.jobs.get(&key).is_some_and(|job| finished(job).is_some());
        self.ended_jobs += usize::from(!was_over && new.as_ref().is_some_and(|job| finished(job).is_some()));
        set(&mut self.jobs, key, new);
        wrong
    }

    /// A Job never counts what did not happen, and has counted everything that did when it is complete.
    fn counts(&self, job: &Job) -> Vec<String> {
        let none = BTreeMap::new();
        let ends = job.metadata.uid.as_ref().and_then(|uid| self.ended.get(uid)).unwrap_or(&none);
        let indexed = job.spec.as_ref().is_some_and(|s| s.completion_mode.as_deref() == Some("Indexed"));
        let succeeded = ends.values().filter(|end| end.succeeded);
        let succeeded = match indexed {
            true => succeeded.filter_map(|end| end.index).collect::<BTreeSet<_>>().len(),
            false => succeeded.count(),
        } as i32;
        let counted = job.status.as_ref().and_then(|s| s.succeeded).unwrap_or(0);
        let mut wrong = Vec::new();
        if counted > succeeded {
            wrong.push(format!("{counted} successes are counted, there were {succeeded}"));
        }
        let failed = job.metadata.uid.as_ref().and_then(|uid| self.failed.get(uid)).map_or(0, BTreeSet::len) as i32;
        let counted_failed = job.status.as_ref().and_then(|s| s.failed).unwrap_or(0);
        if counted_failed > failed {
            wrong.push(format!("{counted_failed} failures are counted, there were {failed}"));
        }
        if finished(job) == Some("Complete") && counted != succeeded {
            wrong.push(format!("the Job is complete with {counted} of {succeeded} successes"));
        }
        wrong
    }

    /// Whether each StatefulSet and DaemonSet has the members it should have, with the newest template, and all Jobs have
    /// ended that are not suspended.
    pub fn settled(&self, pods: &BTreeMap<String, Pod>, nodes: &BTreeSet<String>) -> bool {
        let members = |owned: Option<&str>| -> Vec<&Pod> {
            pods.values().filter(|p| owner(&p.metadata) == owned && owned.is_some()).collect()
        };
        let stateful = self.stateful_sets.values().all(|set| {
            let Some(spec) = &set.spec else { return false };
            let members = members(set.metadata.uid.as_deref());
            let base = set.metadata.name.as_deref().unwrap_or_default();
            let expected: BTreeSet<String> = (0..spec.replicas.unwrap_or(1)).map(|n| format!("{base}-{n}")).collect();
            members.iter().map(|p| name(p).to_owned()).collect::<BTreeSet<_>>() == expected
                && members.iter().all(|p| serves(p) && image(p.spec.as_ref()) == image(spec.template.spec.as_ref()))
        });
        let daemons = self.daemon_sets.values().all(|set| {
            let Some(spec) = &set.spec else { return false };
            let members = members(set.metadata.uid.as_deref());
            members.len() == nodes.len()
                && members.iter().filter_map(|p| node(p)).collect::<BTreeSet<_>>().len() == nodes.len()
                && members.iter().all(|p| serves(p) && image(p.spec.as_ref()) == image(spec.template.spec.as_ref()))
        });
        let is_suspended = |job: &Job| job.spec.as_ref().is_some_and(|s| s.suspend == Some(true));
        stateful && daemons && self.jobs.values().all(|job| finished(job).is_some() || is_suspended(job))
    }

    /// How much longer than anything else a Job may take: it waits after each failure that it is allowed, in the end as
    /// long as Jobs wait at most.
    pub fn patience(&self) -> Duration {
        let unfinished = self.jobs.values().filter(|job| finished(job).is_none());
        unfinished.filter_map(|job| job.spec.as_ref()).map(allowed_failures).max().unwrap_or(0) * LONGEST_DELAY
    }

    /// How many Jobs ended, and how many of their Pods were counted.
    pub fn figures(&self) -> (usize, usize) {
        (self.jobs.values().filter(|job| finished(job).is_some()).count(), self.ended.values().map(BTreeMap::len).sum())
    }

    /// The UIDs of all these objects.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        let sets = self.stateful_sets.values().map(|o| &o.metadata);
        let all =
            sets.chain(self.daemon_sets.values().map(|o| &o.metadata)).chain(self.jobs.values().map(|o| &o.metadata));
        all.filter_map(|meta| meta.uid.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::news::Serving;
    use json::{Value, json};

    /// `name:owner:words` with the words running, succeeded, failed, deleted, counted (without finalizer), unbound, apart
    /// (for a node of its own).
    fn pod(text: &str) -> Pod {
        let mut words = text.split(':');
        let (name, owner) = (words.next().unwrap(), words.next().unwrap());
        let words: Vec<&str> = words.collect();
        let has = |word: &str| words.contains(&word);
        let phase = [("succeeded", "Succeeded"), ("failed", "Failed"), ("running", "Running")];
        let phase = phase.iter().find(|(word, _)| has(word)).map_or("Pending", |(_, phase)| phase);
        let ready = if has("running") { "True" } else { "False" };
        let owner = json!([{"apiVersion": "v1", "kind": "Any", "name": owner, "uid": owner, "controller": true}]);
        json::from_value(json!({
            "metadata": {"name": name, "uid": name, "ownerReferences": owner,
                "finalizers": if has("counted") { json!([]) } else { json!([TRACKED]) },
                "deletionTimestamp": has("deleted").then_some("2026-01-01T00:00:00Z")},
            "spec": {"nodeName": (!has("unbound")).then_some("n"), "containers": [],
                "affinity": has("apart").then(|| json!({"podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": name}]}}))},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    struct Story {
        workloads: Workloads,
        pods: BTreeMap<String, Pod>,
        serving: Serving,
        now: i64,
    }

    impl Story {
        fn new() -> Self {
            let mut workloads = Workloads::default();
            let template = json!({"spec": {"containers": []}});
            let meta = |name: &str| json!({"name": name, "uid": name});
            let of = |spec: Value, name: &str| json!({"metadata": meta(name), "spec": spec});
            let stateful = json!({"replicas": 3, "selector": {}, "template": template});
            let long_ago = Timestamp::UNIX_EPOCH;
            workloads.stateful_set("s".into(), json::from_value(of(stateful, "set")).unwrap(), long_ago);
            let daemons = json!({"selector": {}, "template": template});
            workloads.daemon_set("d".into(), json::from_value(of(daemons, "daemons")).unwrap());
            Story { workloads, pods: BTreeMap::new(), serving: Serving::default(), now: 1000 }
        }

        /// Shows the checkers the Pod in its new state; `-name` removes it.
        fn pod(&mut self, text: &str) -> String {
            let (key, new) = match text.strip_prefix('-') {
                Some(name) => (name.to_owned(), None),
                None => (text.split(':').next().unwrap().to_owned(), Some(pod(text))),
            };
            let old = self.pods.get(&key).cloned();
            set(&mut self.pods, key, new.clone());
            let mut wrong = self.workloads.pod(old.as_ref(), new.as_ref(), &self.pods);
            let now = Timestamp::from_second(self.now).unwrap();
            let since = self.serving.changed(old.as_ref(), new.as_ref(), now);
            wrong
                .extend(old.as_ref().zip(since).and_then(|gone| self.workloads.still_serves(gone, &self.pods, 3, now)));
            wrong.join("; ")
        }

        fn job(&mut self, succeeded: i32, condition: &str) -> String {
            self.job_with(succeeded, 0, condition)
        }

        fn job_with(&mut self, succeeded: i32, failed: i32, condition: &str) -> String {
            let conditions: Vec<Value> =
                condition.split(' ').filter(|c| !c.is_empty()).map(|c| json!({"type": c, "status": "True"})).collect();
            let template = json!({"spec": {"containers": []}});
            let job = json!({"metadata": {"name": "job", "uid": "job"}, "spec": {"parallelism": 2, "template": template},
                "status": {"succeeded": succeeded, "failed": failed, "conditions": conditions}});
            self.workloads.job("j".into(), json::from_value(job).unwrap()).join("; ")
        }
    }

    #[test]
    fn members_end_before_they_go() {
        let mut story = Story::new();
        assert_eq!(story.pod("set-0:set:running"), "");
        assert_eq!(story.pod("-set-0"), "set-0 may still run on Some(\"n\")");
        assert_eq!(story.pod("set-0:set:failed:deleted"), "");
        assert_eq!(story.pod("-set-0"), "");
        assert_eq!(story.pod("set-1:set:unbound"), "");
        assert_eq!(story.pod("-set-1"), "");
    }

    #[test]
    fn members_are_taken_away_one_at_a_time() {
        for set in ["set", "daemons"] {
            let running = |n: i32| format!("m-{n}:{set}:running:apart");
            let mut story = Story::new();
            assert!((0..3).all(|n| story.pod(&running(n)).is_empty()));
            story.now += 60;
            assert_eq!(story.pod(&format!("{}:deleted", running(2))), "");
            assert_eq!(story.pod(&format!("{}:deleted", running(1))), "1 members serve, 2 are promised");
        }
    }

    #[test]
    fn news_is_not_held_against_a_controller() {
        let mut story = Story::new();
        assert!((0..3).all(|n| story.pod(&format!("set-{n}:set:running")).is_empty()));
        story.now += 20;
        for n in [2, 1] {
            assert_eq!(story.pod(&format!("set-{n}:set:running:deleted")), "", "it may not be known to be ready");
        }
        // It asked for 3 until a moment ago, and asks for 6.
        let mut story = Story::new();
        assert!((0..3).all(|n| story.pod(&format!("set-{n}:set:running")).is_empty()));
        story.now += 60;
        let (key, mut set) = story.workloads.stateful_sets.pop_first().unwrap();
        story.workloads.stateful_sets.insert(key.clone(), set.clone());
        set.spec.as_mut().unwrap().replicas = Some(6);
        story.workloads.stateful_set(key, Some(set), Timestamp::from_second(story.now).unwrap());
        story.now += 20;
        assert_eq!(story.pod("set-2:set:running:deleted"), "");
        story.now += 20;
        assert_eq!(story.pod("set-1:set:running:deleted"), "1 members serve, 5 are promised");
    }

    #[test]
    fn a_daemon_is_alone() {
        let mut story = Story::new();
        assert_eq!(story.pod("a:daemons:running"), "");
        assert_eq!(story.pod("b:daemons:running"), "b is for the node that has a");
        let mut story = Story::new();
        assert_eq!((story.pod("a:daemons:running:deleted"), story.pod("b:daemons")), Default::default());
    }

    #[test]
    fn jobs_count_what_happened() {
        let mut story = Story::new();
        assert_eq!(story.job(0, ""), "");
        assert_eq!((story.pod("a:job:running"), story.pod("b:job:running")), Default::default());
        assert_eq!(story.pod("c:job"), "the Job has 3 active Pods, at most 2 are allowed");
        assert_eq!((story.pod("-c"), story.pod("a:job:succeeded")), Default::default());
        assert_eq!(story.job(1, ""), "");
        assert_eq!(story.job(2, ""), "2 successes are counted, there were 1");
        assert_eq!(story.job_with(1, 1, ""), "");
        assert_eq!(story.job_with(1, 2, ""), "2 failures are counted, there were 1");
        // Its finalizer is gone, so it counts no more.
        assert_eq!((story.pod("b:job:running:counted"), story.pod("b:job:succeeded:counted")), Default::default());
        assert_eq!(story.job(1, "Complete"), "");
        assert_eq!(story.job(0, "Complete"), "the Job is complete with 0 of 1 successes");
        assert_eq!(story.pod("d:job"), "a Pod is made for a Job that is Complete");
    }
}

//! Jobs, with and without indexes, and CronJobs.

use client::rest::DeleteOptions;
use json::{Value, json};
use k8s_openapi::api::{
    batch::v1::{CronJob, Job, JobStatus},
    core::v1::Pod,
};

use crate::world::{Story, World, below, converges, phase};

fn job(name: &str, spec: Value) -> Value {
    let mut job = json!({"metadata": {"name": name}, "spec": {"completions": 4, "parallelism": 2, "backoffLimit": 1000,
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    spec.as_object().unwrap().iter().for_each(|(field, value)| job["spec"][field] = value.clone());
    job
}

fn is(status: &JobStatus, kind: &str) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == kind && c.status == "True")
}

fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|f| f == "batch.kubernetes.io/job-tracking")
}

/// Lets what runs succeed.
async fn succeed(world: &World) {
    for pod in world.list::<Pod>().await {
        if phase(&pod) == "Running" && pod.metadata.deletion_timestamp.is_none() {
            world.say(&pod, "Succeeded", false).await;
        }
    }
}

/// Lets what is deleted end, as a kubelet does before it lets go of a Pod.
async fn end_deleted(world: &World) {
    for pod in world.list::<Pod>().await {
        if matches!(phase(&pod), "Pending" | "Running") && pod.metadata.deletion_timestamp.is_some() {
            world.say(&pod, "Failed", false).await;
        }
    }
}

/// A Job of each mode that is suspended and resumed, grows and shrinks, and one that is deleted some time.
struct Modes {
    suspended: [bool; 2],
    /// The numbers of succeeded and failed Pods that were told last: they never fall.
    told: std::cell::RefCell<[(i32, i32); 2]>,
}

const NAMES: [&str; 2] = ["plain", "indexed"];

impl Story for Modes {
    const CONTROLLERS: &'static [&'static str] = &["job-controller", "garbage-collector-controller"];

    async fn begin(world: &World) -> Self {
        world.create::<Job>(job("plain", json!({}))).await;
        let indexed = json!({"completionMode": "Indexed", "podReplacementPolicy": "Failed"});
        world.create::<Job>(job("indexed", indexed)).await;
        world.create::<Job>(job("doomed", json!({}))).await;
        Modes { suspended: [false; 2], told: Default::default() }
    }

    async fn change(&mut self, world: &World) {
        let which = below(2) as usize;
        let patch = match below(6) {
            0 | 1 => {
                self.suspended[which] = !self.suspended[which];
                json!({"spec": {"suspend": self.suspended[which]}})
            }
            2 | 3 => json!({"spec": {"parallelism": below(4)}}),
            4 => return world.delete_some_pod().await,
            _ => {
                let options = DeleteOptions { propagation: Some("Background"), ..Default::default() };
                return drop(world.api::<Job>().delete("doomed", options).await);
            }
        };
        world.api::<Job>().merge_patch(NAMES[which], "", patch).await.unwrap();
    }

    async fn check(&self, world: &World) {
        for (which, name) in NAMES.into_iter().enumerate() {
            let status = world.api::<Job>().get(name).await.unwrap().status.unwrap_or_default();
            let counts = (status.succeeded.unwrap_or(0), status.failed.unwrap_or(0));
            let mut told = self.told.borrow_mut();
            assert!(counts.0 >= told[which].0 && counts.1 >= told[which].1, "{name}: {counts:?} after {told:?}");
            assert!(counts.0 <= 4, "{name}: {counts:?}");
            told[which] = counts;
        }
    }

    async fn missing(&self, world: &World) -> Option<String> {
        end_deleted(world).await;
        let _ = world
            .api::<Job>()
            .delete("doomed", DeleteOptions { propagation: Some("Background"), ..Default::default() })
            .await;
        for (which, name) in NAMES.into_iter().enumerate() {
            let job = world.api::<Job>().get(name).await.unwrap();
            let status = job.status.unwrap_or_default();
            if is(&status, "Complete") {
                let whole = (status.succeeded, status.active, status.terminating) == (Some(4), None, Some(0));
                assert!(whole && status.uncounted_terminated_pods.is_none_or(|u| u == Default::default()));
            } else if self.suspended[which] {
                if !is(&status, "Suspended") || status.active.is_some() || status.terminating != Some(0) {
                    return Some(format!("{name} is not suspended: {status:?}"));
                }
            } else {
                if job.spec.unwrap().parallelism == Some(0) {
                    world.api::<Job>().merge_patch(name, "", json!({"spec": {"parallelism": 2}})).await.unwrap();
                }
                succeed(world).await;
                return Some(format!("{name} is not complete: {status:?}"));
            }
        }
        let pods = world.list::<Pod>().await;
        let left = pods.iter().any(|p| is_tracked(p) || !matches!(phase(p), "Succeeded" | "Failed"));
        left.then(|| format!("Pods are left: {:?}", pods.iter().map(|p| &p.metadata).collect::<Vec<_>>()))
    }
}

#[test]
fn jobs_converge() {
    converges::<Modes>(0..12);
}

/// A CronJob that is changed and has its Jobs deleted, and then suspended.
struct Minutely;

impl Story for Minutely {
    const CONTROLLERS: &'static [&'static str] =
        &["cronjob-controller", "job-controller", "ttl-after-finished-controller", "garbage-collector-controller"];

    async fn begin(world: &World) -> Self {
        let template = job("", json!({"completions": 1, "parallelism": 1, "ttlSecondsAfterFinished": 100}));
        let cron = json!({"metadata": {"name": "cron"}, "spec": {"schedule": "* * * * *", "concurrencyPolicy": "Forbid",
            "successfulJobsHistoryLimit": 1, "jobTemplate": {"spec": template["spec"]}}});
        world.create::<CronJob>(cron).await;
        Minutely
    }

    async fn change(&mut self, world: &World) {
        match below(4) {
            0 => {
                let jobs = world.list::<Job>().await;
                let Some(job) = jobs.get(below(jobs.len().max(1) as u64) as usize) else { return };
                let options = DeleteOptions { propagation: Some("Background"), ..Default::default() };
                let _ = world.api::<Job>().delete(job.metadata.name.as_deref().unwrap(), options).await;
            }
            1 => {
                let policy = ["Forbid", "Replace"][below(2) as usize];
                let patch = json!({"spec": {"concurrencyPolicy": policy}});
                world.api::<CronJob>().merge_patch("cron", "", patch).await.unwrap();
            }
            2 => clock::sleep(std::time::Duration::from_secs(below(90))).await,
            _ => succeed(world).await,
        }
    }

    async fn check(&self, world: &World) {
        let lives = |job: &&Job| {
            let over = job.status.as_ref().is_some_and(|s| is(s, "Complete") || is(s, "Failed"));
            !over && job.metadata.deletion_timestamp.is_none()
        };
        let running = world.list::<Job>().await.iter().filter(lives).count();
        assert!(running <= 1, "{running} Jobs run though only one may");
    }

    async fn missing(&self, world: &World) -> Option<String> {
        let status = world.api::<CronJob>().get("cron").await.unwrap().status.unwrap_or_default();
        if status.last_schedule_time.is_none() {
            return Some("no time has come yet".to_owned());
        }
        world.api::<CronJob>().merge_patch("cron", "", json!({"spec": {"suspend": true}})).await.unwrap();
        succeed(world).await;
        let (jobs, pods) = (world.list::<Job>().await.len(), world.list::<Pod>().await.len());
        let rest = status.active.is_none() && jobs + pods == 0;
        (!rest).then(|| format!("{jobs} Jobs and {pods} Pods are left: {status:?}"))
    }
}

#[test]
fn cron_jobs_converge() {
    converges::<Minutely>(0..12);
}

//! CronJobs, whose Jobs take longer than the time to the next now and then.

use client::rest::{DeleteOptions, Verb};
use json::json;
use k8s_openapi::api::batch::v1::CronJob;

use crate::{
    Chaos,
    chaos::{below, minutes, one_of},
    stories::Course,
};

pub struct Story {
    chaos: Chaos,
    cron_jobs: Vec<String>,
    made: u64,
}

impl Story {
    fn any(&self) -> String {
        self.cron_jobs[below(self.cron_jobs.len() as u64) as usize].clone()
    }

    async fn make(&mut self) {
        self.made += 1;
        let name = format!("s{}", self.made);
        let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "20m"}}});
        let pod = json!({"metadata": {"labels": {"app": name}},
            "spec": {"restartPolicy": "Never", "containers": [container]}});
        let job = json!({"completions": 1 + below(12), "parallelism": 1, "template": pod});
        let spec = json!({"schedule": one_of(&["* * * * *", "*/2 * * * *"]),
            "concurrencyPolicy": one_of(&["Allow", "Forbid", "Replace"]),
            "successfulJobsHistoryLimit": below(3), "failedJobsHistoryLimit": below(3),
            "startingDeadlineSeconds": one_of(&[None, Some(30), Some(200)]), "jobTemplate": {"spec": job}});
        self.chaos.cluster.tell(&format!("{name}: {spec}"));
        let meta = json!({"name": name, "namespace": "default"});
        let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": meta, "spec": spec});
        self.chaos.write::<CronJob>("", Verb::Create(cron)).await;
        self.cron_jobs.push(name);
    }

    async fn suspend(&self, name: &str, suspended: bool) {
        self.chaos.cluster.tell(&format!("{name} is suspended: {suspended}"));
        self.chaos.write::<CronJob>(name, Verb::MergePatch(json!({"spec": {"suspend": suspended}}))).await;
    }

    async fn delete(&mut self) {
        let name = self.cron_jobs.swap_remove(below(self.cron_jobs.len() as u64) as usize);
        self.chaos.cluster.tell(&format!("delete {name}"));
        let propagation = Some("Background");
        let delete = Verb::Delete(DeleteOptions { propagation, ..DeleteOptions::default() });
        self.chaos.write::<CronJob>(&name, delete).await;
    }
}

impl Course for Story {
    const STEPS: usize = 30;

    async fn begin(chaos: Chaos) -> Self {
        Story { chaos, cron_jobs: Vec::new(), made: 0 }
    }

    async fn step(&mut self) {
        match below(12) {
            0..2 if self.cron_jobs.len() < 4 => self.make().await,
            2 if !self.cron_jobs.is_empty() => self.suspend(&self.any(), below(2) == 0).await,
            3 if self.cron_jobs.len() > 2 => self.delete().await,
            4..7 => self.chaos.cluster.pass(minutes(1 + below(5))).await,
            _ => self.chaos.mishap().await,
        }
    }

    async fn end(&mut self) {
        self.chaos.good_weather();
        for name in &self.cron_jobs {
            self.suspend(name, false).await;
        }
        self.chaos.cluster.pass(minutes(3)).await;
        self.chaos.cluster.until("each schedule is kept", minutes(10), |m| m.schedules.kept(clock::now())).await;
        for name in &self.cron_jobs {
            self.suspend(name, true).await;
        }
        self.chaos.clears_up().await;
        while !self.cron_jobs.is_empty() {
            self.delete().await;
        }
    }

    fn chaos(&self) -> &Chaos {
        &self.chaos
    }
}

//! Controllers that make, keep and delete Pods, and what they share. Controllers whose work depends on a Pod's node are
//! in `node`.

mod availability;
pub mod cron_job;
pub mod daemonset;
pub mod deployment;
pub mod disruption;
mod history;
pub mod job;
mod owner_scale;
pub mod pod_garbage;
mod pod_rank;
mod pod_template;
mod portion;
pub mod replicaset;
pub mod replication_controller;
pub mod stale_disruption;
pub mod statefulset;
mod template_hash;
pub mod ttl_after_finished;

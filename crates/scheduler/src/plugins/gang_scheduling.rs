//! GangScheduling: Pods of one group of a Workload are bound together, or not at all. How they wait for each other is in the
//! core's `gang_events`, since it needs the queue. It does something where its feature is on.

use api::features::Feature;

use crate::plugin::Plugin;

pub const NAME: &str = "GangScheduling";

pub const PLUGIN: Plugin =
    Plugin { name: NAME, feature: Some(Feature::GangScheduling), concerns: |_| false, gangs: true, ..Plugin::NONE };

//! DefaultPreemption: room for Pods that fit nowhere, at the cost of less important ones. How it is found is in the core's
//! `preemption`, since it needs the whole engine.

use crate::plugin::Plugin;

pub const PLUGIN: Plugin = Plugin { name: "DefaultPreemption", concerns: |_| false, preempts: true, ..Plugin::NONE };

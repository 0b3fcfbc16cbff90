//! A whole kubelet without root: over an engine, an API server and mounts that are kept in memory, under paused time.

mod affinity;
pub mod api;
mod away;
mod certificates;
mod churn;
mod claims;
mod csi;
mod csi_driver;
mod csi_volumes;
mod device_plugin;
mod devices;
mod dra_driver;
mod events;
mod hooks;
mod huge_pages;
mod killed;
mod life;
mod logind;
mod oom;
pub mod plugin;
mod resize;
mod room;
mod shutdown;
mod traced;
mod users;
mod variables;
pub mod world;

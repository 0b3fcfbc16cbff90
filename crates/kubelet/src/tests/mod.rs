//! A whole kubelet without root: over an engine, an API server and mounts that are kept in memory, under paused time.

mod api;
mod certificates;
mod device_plugin;
mod devices;
mod killed;
mod life;
pub mod plugin;
mod resize;
mod room;
pub mod world;

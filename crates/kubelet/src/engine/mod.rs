//! The container engine beside the Pods that run in it: its events, handlers, images and logs, and leftovers that are cleared
//! up. Calls to the engine for one Pod are not here.

pub mod handler;
pub mod image;
pub mod image_gc;
pub mod linked;
pub mod log_folders;
pub mod log_links;
pub mod logs;
pub mod measured;
pub mod orphans;
pub mod parallel_starts;
pub mod pleg;
mod pull;
pub mod rotation;

//! What the container engine holds besides running Pods: its events, images, logs, and what nobody needs any more.

pub mod handler;
pub mod image;
pub mod image_gc;
pub mod logs;
pub mod orphans;
pub mod pleg;

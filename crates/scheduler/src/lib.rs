//! The scheduler: decides which node each waiting Pod runs on.
//!
//! [`engine`] keeps a compact picture of nodes and Pods and decides; [`run`] feeds it from the caches and writes its
//! decisions to the API. The plugins are values in one ordered list, [`plugin::PLUGINS`].

mod bind;
pub mod budget;
pub mod class;
pub mod engine;
pub mod failure;
pub mod node;
pub mod picture;
pub mod plugin;
pub mod plugins;
mod preemption;
pub mod queue;
pub mod resources;
pub mod run;
mod search;
pub mod tally;
pub mod topology;

pub use engine::{Decision, Engine, Settings};
pub use run::run;

//! The meaning of a Pod's spec in the terms of the engine and the kernel: configurations, environment, mounts, limits, and
//! what protects it or others. When something is done, and whether it worked, is not here.

pub mod downward;
pub mod env;
pub mod env_file;
pub mod hardening;
pub mod linux;
pub mod mounts;
pub mod names;
pub mod quota;
pub mod render;
pub mod resources;
pub mod security;
pub mod selinux;

//! The commands, one file each. Code that several of them share does not belong here.

pub mod agent;
pub mod check;
pub mod down;
pub mod images;
pub mod server;
pub mod store;
pub mod token;
pub mod up;

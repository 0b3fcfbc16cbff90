//! Devices that plugins offer (`deviceplugin/v1beta1`): how many there are, who has which, and what they bring into containers.
//! Upstream counterpart: pkg/kubelet/cm/devicemanager.
//!
//! A plugin comes over [`register`] and lists its devices. When a Pod is let in, [`allocate`] chooses among those that are healthy
//! and that nobody has ([`state`], pure), asks the plugin what they need, and writes that down ([`checkpoint`]) before the Pod
//! begins. Nothing of the Pod runs any more when they are given back.

mod aligned;
pub mod allocate;
mod checkpoint;
pub mod given;
pub mod messages;
pub mod register;
pub mod state;

//! Devices that Pods claim (`resource.k8s.io`): their drivers, and what these prepare on this node before a Pod begins. Which
//! device a claim gets is the scheduler's; how a driver shows itself in the registry is `plugins`.
//! Upstream counterpart: pkg/kubelet/cm/dra.
//!
//! [`drivers`] knows who is registered. [`prepare`] asks the drivers of a Pod's claims before its containers begin, and again
//! when the last Pod with a claim has gone. The claims that they were asked about are in [`state`] (pure) and, before they are
//! asked, on the disk ([`checkpoint`]): a kubelet that starts again takes back the claims that the one before it had prepared.
//! [`slices`] takes the devices of drivers that have gone away out of the scheduler's sight; [`health`] is what drivers report of
//! theirs.

mod checkpoint;
pub mod drivers;
pub mod health;
pub mod messages;
pub mod prepare;
mod slices;
pub mod state;

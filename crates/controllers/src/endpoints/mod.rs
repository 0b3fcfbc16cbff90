//! Controllers that say where a Service's Pods are. Rules of the kernel and records of DNS are not here.

mod endpoint;
pub mod legacy;
pub mod mirroring;
mod slice_packing;
pub mod slices;
mod topology;

//! Controllers that say where a Service's Pods are. What the kernel or DNS makes of it is not here.

mod endpoint;
pub mod legacy;
pub mod mirroring;
mod slice_packing;
pub mod slices;
mod topology;

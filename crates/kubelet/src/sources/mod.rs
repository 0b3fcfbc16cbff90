//! Where Pods come from: the API server and the folder of manifests, brought together and handed to the workers. What a worker
//! does with its Pod is not here.

pub mod admission;
pub mod allocations;
pub mod dispatch;
pub mod manifests;
pub mod mirror;

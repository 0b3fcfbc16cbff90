//! Where Pods come from: the API server and the folder of manifests, brought together and handed to the workers. The work on a
//! Pod is its worker's and not here.

pub mod admission;
pub mod allocations;
pub mod dispatch;
pub mod manifests;
pub mod mirror;

//! Where Pods come from: the API server and the folder of manifests, brought together and handed to the workers. The work on a
//! Pod is its worker's and not here.

pub mod admission;
pub mod allocations;
pub mod dispatch;
pub mod manifests;
pub mod mirror;
mod web;

use std::sync::Arc;

use api::features::{Feature, Features};
use k8s_openapi::api::core::v1::Pod;

/// Where Pods come from that need no API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Files,
    Web,
}

/// The node that static Pods are for.
#[derive(Debug, Clone, Default)]
pub struct Home {
    pub node_name: String,
    /// They may name objects of the API.
    pub may_refer: bool,
}

impl Home {
    pub fn new(node_name: &str, features: &Features) -> Self {
        let may_refer = !features.enabled(Feature::PreventStaticPodAPIReferences);
        Home { node_name: node_name.to_owned(), may_refer }
    }
}

impl Source {
    /// Upstream's word for it, in annotations.
    pub fn word(self) -> &'static str {
        match self {
            Source::Files => "file",
            Source::Web => "http",
        }
    }
}

/// All the Pods that such a source has now.
#[derive(Debug)]
pub struct Heard {
    pub source: Source,
    pub pods: Vec<Arc<Pod>>,
}

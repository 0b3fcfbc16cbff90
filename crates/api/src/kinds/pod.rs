//! Pod: containers that run together on one node.

use k8s_openapi::api::core::v1::Pod;

use crate::kind::Kind;

pub const POD: Kind<Pod> = Kind { short: &["po"], categories: &["all"], status: true, ..Kind::BASE };

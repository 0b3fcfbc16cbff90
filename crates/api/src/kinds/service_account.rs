//! ServiceAccount: who a Pod is when it speaks to the API server.

use k8s_openapi::api::core::v1::ServiceAccount;

use crate::kind::{Kind, Subresource, Way, age, name};

const TOKEN: Subresource = Subresource {
    name: "token",
    object: ("authentication.k8s.io", "v1", "TokenRequest"),
    verbs: &["create"],
    way: Way::Own,
};

pub const SERVICE_ACCOUNT: Kind<ServiceAccount> = Kind {
    unconditional_update: false,
    short: &["sa"],
    subresources: &[TOKEN],
    columns: &[name(), age()],
    ..Kind::BASE
};

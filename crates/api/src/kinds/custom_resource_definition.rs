//! CustomResourceDefinition: a kind that users add.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition,
};

use crate::kind::{Generation, Kind};

pub const CUSTOM_RESOURCE_DEFINITION: Kind<CustomResourceDefinition> = Kind {
    short: &["crd", "crds"],
    categories: &["api-extensions"],
    status: true,
    storage_prefix: Some("apiextensions.k8s.io/customresourcedefinitions"),
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default),
    ..Kind::BASE
};

fn default(crd: &mut CustomResourceDefinition) {
    let names = &mut crd.spec.names;
    if names.singular.as_deref().unwrap_or_default().is_empty() {
        names.singular = Some(names.kind.to_lowercase());
    }
    if names.list_kind.as_deref().unwrap_or_default().is_empty() && !names.kind.is_empty() {
        names.list_kind = Some(format!("{}List", names.kind));
    }
    let none = || CustomResourceConversion { strategy: "None".to_owned(), ..Default::default() };
    let conversion = crd.spec.conversion.get_or_insert_with(none);
    let client = conversion.webhook.as_mut().and_then(|w| w.client_config.as_mut());
    if let Some(service) = client.and_then(|c| c.service.as_mut()) {
        service.port.get_or_insert(443);
    }
}

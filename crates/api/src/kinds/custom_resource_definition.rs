//! CustomResourceDefinition: a kind that users add.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition,
};

use crate::kind::{Generation, Kind};
use crate::validation::field::{Errors, FieldError, Path};

pub const CUSTOM_RESOURCE_DEFINITION: Kind<CustomResourceDefinition> = Kind {
    without_effect: Some("the resource that it defines is not served"),
    unconditional_update: false,
    short: &["crd", "crds"],
    categories: &["api-extensions"],
    status: true,
    storage_prefix: Some("apiextensions.k8s.io/customresourcedefinitions"),
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default),
    validate: Some(validate),
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

fn validate(crd: &CustomResourceDefinition) -> Errors {
    let mut errors = Errors::new();
    let spec = &crd.spec;
    let name = crd.metadata.name.as_deref().unwrap_or_default();
    if name != format!("{}.{}", spec.names.plural, spec.group) {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid(&Path::new("metadata").child("name"), name, detail));
    }
    let path = Path::new("spec");
    let names = path.child("names");
    for (place, value) in [
        (path.child("group"), &spec.group),
        (names.child("plural"), &spec.names.plural),
        (names.child("kind"), &spec.names.kind),
    ] {
        if value.is_empty() {
            errors.push(FieldError::required(&place, ""));
        }
    }
    if !matches!(spec.scope.as_str(), "Cluster" | "Namespaced") {
        errors.push(FieldError::not_supported(&path.child("scope"), &spec.scope, &["Cluster", "Namespaced"]));
    }
    if spec.versions.iter().filter(|v| v.storage).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid(&path.child("versions"), &spec.versions, detail));
    }
    for (i, version) in spec.versions.iter().enumerate() {
        if version.schema.as_ref().is_none_or(|s| s.open_api_v3_schema.is_none()) {
            let place = path.child("versions").index(i).child("schema").child("openAPIV3Schema");
            errors.push(FieldError::required(&place, "schemas are required"));
        }
    }
    errors
}

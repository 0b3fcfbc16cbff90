//! The checks of a definition: names, versions, subresources, columns and conversion. Its schemas have files of their own.
//! Upstream counterpart: apiextensions-apiserver/pkg/apis/apiextensions/validation.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceConversion, CustomResourceDefinition, CustomResourceDefinitionNames,
    CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceSubresources, JSONSchemaProps,
    SelectableField, WebhookClientConfig,
};

use super::schema;
use crate::custom::conditions::{APPROVED, approval_state, is_protected};
use crate::custom::{REVIEWS, Structural, bundle_error, resolve_field};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::{dns1035_label, dns1123_subdomain};
use crate::validation::webhook;

const SELECTABLE_MAX: usize = 8;
const WARNING_MAX: usize = 256;
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

/// The checks of a new definition.
pub fn validate_create(crd: &CustomResourceDefinition) -> Errors {
    let mut errors = Errors::new();
    let name = crd.metadata.name.as_deref().unwrap_or_default();
    if name != format!("{}.{}", crd.spec.names.plural, crd.spec.group) {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid(&Path::new("metadata").child("name"), name, detail));
    }
    errors.extend(validate(crd, None));
    errors.extend(approval(crd, None));
    errors
}

/// The faults that a definition may have because it was stored with them.
struct Lenience {
    /// A bundle of authorities that cannot be read. Until a definition is established nothing depends on it.
    bundle: bool,
    /// No version of ConversionReview that is known here.
    reviews: bool,
    /// `preserveUnknownFields`
    unknown_fields: bool,
    /// Versions without a schema.
    no_schema: bool,
    schemas: schema::Lenience,
}

impl Lenience {
    fn of_new() -> Self {
        let schemas = schema::Lenience::default();
        Lenience { bundle: true, reviews: false, unknown_fields: false, no_schema: false, schemas }
    }

    fn of(old: &CustomResourceDefinition) -> Self {
        let webhook = old.spec.conversion.as_ref().and_then(|conversion| conversion.webhook.as_ref());
        let bundle = webhook.and_then(|w| w.client_config.as_ref()?.ca_bundle.as_ref());
        let reviews = webhook.map(|w| w.conversion_review_versions.as_slice()).unwrap_or_default();
        Lenience {
            bundle: !is_established(old) || bundle.is_some_and(|bundle| bundle_error(&bundle.0).is_some()),
            reviews: !reviews.is_empty() && !reviews.iter().any(|known| REVIEWS.contains(&&**known)),
            unknown_fields: old.spec.preserve_unknown_fields == Some(true),
            no_schema: old.spec.versions.iter().any(|version| given_schema(version).is_none()),
            schemas: schema::Lenience::of(old.spec.versions.iter().filter_map(given_schema)),
        }
    }
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let mut conditions = crd.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| c.type_ == "Established" && c.status == "True")
}

/// The checks of every write.
fn validate(crd: &CustomResourceDefinition, old: Option<&CustomResourceDefinition>) -> Errors {
    let lenience = old.map_or_else(Lenience::of_new, Lenience::of);
    let mut errors = spec(&crd.spec, old.map(|old| &old.spec), &lenience, &Path::new("spec"));
    errors.extend(validate_status(crd));
    errors.extend(stored_versions(crd, &Path::new("status").child("storedVersions")));
    errors
}

/// The checks of a change of the status alone. The rest is stored as it is, whatever rules there are by now.
pub fn validate_status(crd: &CustomResourceDefinition) -> Errors {
    let accepted = crd.status.as_ref().and_then(|status| status.accepted_names.as_ref());
    accepted.map(|accepted| names(accepted, &Path::new("status").child("acceptedNames"))).unwrap_or_default()
}

/// The checks of a change.
pub fn validate_update(new: &CustomResourceDefinition, old: &CustomResourceDefinition) -> Errors {
    let path = Path::new("spec");
    let names = path.child("names");
    let mut errors = validate(new, Some(old));
    let mut fixed = |path: Path, new: &str, old: &str| {
        if new != old {
            errors.push(FieldError::invalid(&path, new, "field is immutable"));
        }
    };
    if is_established(old) {
        fixed(path.child("scope"), &new.spec.scope, &old.spec.scope);
        fixed(names.child("kind"), &new.spec.names.kind, &old.spec.names.kind);
    }
    fixed(path.child("group"), &new.spec.group, &old.spec.group);
    fixed(names.child("plural"), &new.spec.names.plural, &old.spec.names.plural);
    errors.extend(approval(new, Some(old)));
    errors
}

/// Kinds in the community's groups are approved by it, or say why they are not. A definition that was let in before
/// stays.
pub fn approval(new: &CustomResourceDefinition, old: Option<&CustomResourceDefinition>) -> Errors {
    if !is_protected(&new.spec.group) {
        return Errors::new();
    }
    let annotation = |crd: &CustomResourceDefinition| {
        crd.metadata.annotations.as_ref().and_then(|a| a.get(APPROVED)).cloned().unwrap_or_default()
    };
    let given = annotation(new);
    let (reason, message, allowed) = approval_state(&given);
    if allowed || old.is_some_and(|old| approval_state(&annotation(old)).0 == reason) {
        return Errors::new();
    }
    let path = Path::new("metadata").child("annotations").key(APPROVED);
    vec![match reason {
        "MissingAnnotation" => FieldError::required(&path, &message),
        _ => FieldError::invalid(&path, given, &message),
    }]
}

fn stored_versions(crd: &CustomResourceDefinition, path: &Path) -> Errors {
    let stored = crd.status.as_ref().and_then(|s| s.stored_versions.clone()).unwrap_or_default();
    if stored.is_empty() {
        return vec![FieldError::invalid(path, &stored, "must have at least one stored version")];
    }
    let mut errors = Errors::new();
    for version in crd.spec.versions.iter().filter(|version| version.storage && !stored.contains(&version.name)) {
        errors.push(FieldError::invalid(path, &stored, &format!("must have the storage version {}", version.name)));
    }
    for (i, name) in stored.iter().enumerate().filter(|(_, name)| crd.spec.versions.iter().all(|v| v.name != **name)) {
        let detail = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a \
             storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
        );
        errors.push(FieldError::invalid(&path.index(i), name, &detail));
    }
    errors
}

/// One error about a name, with all that is wrong.
fn wrong_name(path: &Path, name: &str, before: &str, wrong: Vec<String>) -> Option<FieldError> {
    (!wrong.is_empty()).then(|| FieldError::invalid(path, name, &format!("{before}{}", wrong.join(","))))
}

fn spec(
    spec: &CustomResourceDefinitionSpec,
    old: Option<&CustomResourceDefinitionSpec>,
    lenience: &Lenience,
    path: &Path,
) -> Errors {
    let mut errors = Errors::new();
    let group = path.child("group");
    match dns1123_subdomain(&spec.group) {
        _ if spec.group.is_empty() => errors.push(FieldError::required(&group, "")),
        wrong if wrong.is_empty() && !spec.group.contains('.') => {
            errors.push(FieldError::invalid(&group, &spec.group, "should be a domain with at least one dot"));
        }
        wrong => errors.extend(wrong_name(&group, &spec.group, "", wrong)),
    }
    match spec.scope.as_str() {
        "" => errors.push(FieldError::required(&path.child("scope"), "")),
        "Cluster" | "Namespaced" => {}
        other => errors.push(FieldError::not_supported(&path.child("scope"), other, &["Cluster", "Namespaced"])),
    }
    errors.extend(unknown_fields(spec, lenience, path));
    let place = path.child("versions");
    let shared = Shared::of(&spec.versions);
    let whole = Whole { spec, shared: &shared, lenience };
    for (i, one) in spec.versions.iter().enumerate() {
        errors.extend(wrong_name(&place.index(i).child("name"), &one.name, "", dns1035_label(&one.name)));
        let before = old.and_then(|old| old.versions.iter().find(|version| version.name == one.name));
        errors.extend(version(one, before, &whole, &place.index(i)));
    }
    let unique: BTreeSet<&str> = spec.versions.iter().map(|version| &*version.name).collect();
    if unique.len() != spec.versions.len() {
        errors.push(FieldError::invalid(&place, &spec.versions, "must contain unique version names"));
    }
    if spec.versions.iter().filter(|version| version.storage).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid(&place, &spec.versions, detail));
    }
    let of_names = path.child("names");
    let given = &spec.names;
    let text = |name: &Option<String>| name.clone().unwrap_or_default();
    for (field, value) in [
        ("plural", given.plural.clone()),
        ("singular", text(&given.singular)),
        ("kind", given.kind.clone()),
        ("listKind", text(&given.list_kind)),
    ] {
        if value.is_empty() {
            errors.push(FieldError::required(&of_names.child(field), ""));
        }
    }
    errors.extend(names(given, &of_names));
    if let Some(first) = spec.versions.first() {
        let before = old.and_then(|old| old.versions.iter().find(|version| version.name == first.name));
        let status = spec.versions.iter().any(has_status);
        errors.extend(parts(first, before, (status, &shared), &whole, (path, path.child("validation"))));
    }
    errors.extend(spec.conversion.iter().flat_map(|given| conversion(given, lenience, &path.child("conversion"))));
    errors
}

/// Only what kept them before may keep unknown fields, and has neither defaults nor conversion then.
fn unknown_fields(spec: &CustomResourceDefinitionSpec, lenience: &Lenience, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if spec.preserve_unknown_fields != Some(true) {
        return errors;
    }
    let mut wrong = |path: Path, detail: &str| errors.push(FieldError::invalid(&path, true, detail));
    if !lenience.unknown_fields {
        let detail =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        wrong(path.child("preserveUnknownFields"), detail);
    }
    if spec.versions.iter().filter_map(given_schema).any(schema::has_defaults) {
        wrong(path.child("preserveUnknownFields"), "must be false in order to use defaults in the schema");
    }
    if let Some(conversion) = spec.conversion.as_ref().filter(|conversion| conversion.strategy != "None") {
        let detail = "must be None if spec.preserveUnknownFields is true";
        errors.push(FieldError::invalid(&path.child("conversion.strategy"), &conversion.strategy, detail));
    }
    errors
}

fn names(names: &CustomResourceDefinitionNames, path: &Path) -> Errors {
    const MIXED: &str = "may have mixed case, but should otherwise match: ";
    let mut errors = Errors::new();
    let mut check = |path: Path, name: &str, before: &str| {
        if !name.is_empty() {
            let plain = if before.is_empty() { name.to_owned() } else { name.to_lowercase() };
            errors.extend(wrong_name(&path, name, before, dns1035_label(&plain)));
        }
    };
    let list_kind = names.list_kind.as_deref().unwrap_or_default();
    check(path.child("plural"), &names.plural, "");
    check(path.child("singular"), names.singular.as_deref().unwrap_or_default(), "");
    check(path.child("kind"), &names.kind, MIXED);
    check(path.child("listKind"), list_kind, MIXED);
    for (field, list) in [("shortNames", &names.short_names), ("categories", &names.categories)] {
        for (i, name) in list.iter().flatten().enumerate() {
            errors.extend(wrong_name(&path.child(field).index(i), name, "", dns1035_label(name)));
        }
    }
    if !names.kind.is_empty() && names.kind == list_kind {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(&path.child("listKind"), list_kind, detail));
    }
    errors
}

/// The parts that all versions have alike. Upstream moves them out of the versions before it looks at them: that is where
/// complaints about them point to.
struct Shared {
    schema: bool,
    subresources: bool,
    columns: bool,
    selectable: bool,
}

impl Shared {
    fn of(versions: &[CustomResourceDefinitionVersion]) -> Self {
        type Version = CustomResourceDefinitionVersion;
        let alike = |same: fn(&Version, &Version) -> bool| versions.windows(2).all(|pair| same(&pair[0], &pair[1]));
        Shared {
            schema: alike(|a, b| a.schema == b.schema),
            subresources: alike(|a, b| a.subresources == b.subresources),
            columns: alike(|a, b| a.additional_printer_columns == b.additional_printer_columns),
            selectable: alike(|a, b| a.selectable_fields == b.selectable_fields),
        }
    }

    fn others(&self) -> Self {
        let Shared { schema, subresources, columns, selectable } = self;
        Shared { schema: !schema, subresources: !subresources, columns: !columns, selectable: !selectable }
    }
}

fn has_status(version: &CustomResourceDefinitionVersion) -> bool {
    version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some())
}

fn given_schema(version: &CustomResourceDefinitionVersion) -> Option<&JSONSchemaProps> {
    version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref())
}

/// The definition around a version.
struct Whole<'d> {
    spec: &'d CustomResourceDefinitionSpec,
    shared: &'d Shared,
    lenience: &'d Lenience,
}

impl Whole<'_> {
    /// Schemas are structural wherever something depends on that.
    fn schema_lenience(&self) -> schema::Lenience {
        let closed = self.spec.preserve_unknown_fields != Some(true);
        let strict = closed || self.spec.versions.iter().filter_map(given_schema).any(schema::needs_structure);
        let given = self.lenience.schemas;
        if strict { given.structural() } else { given }
    }
}

fn version(
    version: &CustomResourceDefinitionVersion,
    old: Option<&CustomResourceDefinitionVersion>,
    whole: &Whole<'_>,
    path: &Path,
) -> Errors {
    let mut errors = deprecation(version, &path.child("deprecationWarning"));
    let of_schema = path.child("schema");
    let pruned = version.served && whole.spec.preserve_unknown_fields != Some(true);
    if given_schema(version).is_none() && (pruned || !whole.lenience.no_schema) {
        let detail = if whole.lenience.no_schema { "because otherwise all fields are pruned" } else { "" };
        errors.push(FieldError::required(&of_schema.child("openAPIV3Schema"), detail));
    }
    let which = (has_status(version), &whole.shared.others());
    errors.extend(parts(version, old, which, whole, (path, of_schema)));
    errors
}

/// Checks these parts of a version, which stand below `path`, the schema at its own place.
fn parts(
    version: &CustomResourceDefinitionVersion,
    old: Option<&CustomResourceDefinitionVersion>,
    (status, which): (bool, &Shared),
    whole: &Whole<'_>,
    (path, of_schema): (&Path, Path),
) -> Errors {
    let mut errors = Errors::new();
    let given = given_schema(version);
    if let Some(given) = given.filter(|_| which.schema) {
        let unchanged = old.is_some_and(|old| old.schema == version.schema);
        let kept = schema::Kept { lenience: whole.schema_lenience(), unchanged };
        errors.extend(schema::validate(given, status, kept, &of_schema.child("openAPIV3Schema")));
    }
    if let Some(subresources) = version.subresources.as_ref().filter(|_| which.subresources) {
        errors.extend(scale(subresources, &path.child("subresources")));
    }
    for (i, one) in version.additional_printer_columns.iter().flatten().enumerate().filter(|_| which.columns) {
        errors.extend(column(one, &path.child("additionalPrinterColumns").index(i)));
    }
    let selectable = version.selectable_fields.as_deref().filter(|_| which.selectable).unwrap_or_default();
    let place = path.child("selectableFields");
    match given {
        Some(given) if !selectable.is_empty() => {
            let before = old.and_then(|old| old.selectable_fields.as_deref()).unwrap_or_default();
            // A list that was too long may stay as it is.
            let most = if before == selectable { before.len().max(SELECTABLE_MAX) } else { SELECTABLE_MAX };
            errors.extend(selectable_fields(selectable, most, &Structural::of(given), &place));
        }
        None if !selectable.is_empty() => {
            let detail = "may only be set when `version.schema.openAPIV3Schema` is not included";
            errors.push(FieldError::invalid(&place, "", detail));
        }
        _ => {}
    }
    errors
}

fn deprecation(version: &CustomResourceDefinitionVersion, path: &Path) -> Errors {
    let Some(warning) = &version.deprecation_warning else { return Errors::new() };
    let mut wrong: Vec<String> = Vec::new();
    if version.deprecated != Some(true) {
        wrong.push("can only be set for deprecated versions".to_owned());
    } else {
        if warning.len() > WARNING_MAX {
            wrong.push(format!("must be <= {WARNING_MAX} characters long"));
        }
        if warning.is_empty() {
            wrong.push("must not be an empty string".to_owned());
        }
        if let Some((at, _)) = warning.char_indices().find(|(_, c)| c.is_control() || c.is_whitespace() && *c != ' ') {
            let what = "must only contain printable UTF-8 characters; non-printable character found at index";
            wrong.push(format!("{what} {at}"));
        }
    }
    wrong.iter().map(|detail| FieldError::invalid(path, warning, detail)).collect()
}

/// A path of names from the root.
fn simple_path(text: &str, path: &Path) -> Option<FieldError> {
    (!text.starts_with('.')).then(|| FieldError::invalid(path, text, "must be a simple json path starting with ."))
}

fn scale(subresources: &CustomResourceSubresources, path: &Path) -> Errors {
    let Some(scale) = &subresources.scale else { return Errors::new() };
    let mut errors = Errors::new();
    let mut check = |field: &str, given: &str, below: &[&str], detail: &str| {
        let place = path.child(&format!("scale.{field}"));
        if let Some(error) = simple_path(given, &place) {
            errors.push(error);
        } else if !below.iter().any(|start| given.starts_with(start)) {
            errors.push(FieldError::invalid(&place, given, detail));
        }
    };
    let required = |field: &str| FieldError::required(&path.child(&format!("scale.{field}")), "");
    let mut missing = Errors::new();
    for (field, given, below, detail) in [
        ("specReplicasPath", &scale.spec_replicas_path, ".spec.", "should be a json path under .spec"),
        ("statusReplicasPath", &scale.status_replicas_path, ".status.", "should be a json path under .status"),
    ] {
        if given.is_empty() { missing.push(required(field)) } else { check(field, given, &[below], detail) }
    }
    if let Some(given) = scale.label_selector_path.as_deref().filter(|given| !given.is_empty()) {
        let detail = "should be a json path under either .spec or .status";
        check("labelSelectorPath", given, &[".spec.", ".status."], detail);
    }
    missing.append(&mut errors);
    missing
}

fn column(column: &CustomResourceColumnDefinition, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if column.name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    let types = format!("must be one of {}", COLUMN_TYPES.join(","));
    if column.type_.is_empty() {
        errors.push(FieldError::required(&path.child("type"), &types));
    } else if !COLUMN_TYPES.contains(&&*column.type_) {
        errors.push(FieldError::invalid(&path.child("type"), &column.type_, &types));
    }
    let format = column.format.as_deref().unwrap_or_default();
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.push(FieldError::invalid(&path.child("format"), format, &detail));
    }
    if column.json_path.is_empty() {
        errors.push(FieldError::required(&path.child("JSONPath"), ""));
    } else {
        errors.extend(simple_path(&column.json_path, &path.child("JSONPath")));
    }
    errors
}

fn selectable_fields(fields: &[SelectableField], most: usize, schema: &Structural, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut unique: BTreeSet<String> = BTreeSet::new();
    for (i, field) in fields.iter().enumerate() {
        let (place, given) = (path.index(i).child("jsonPath"), &field.json_path);
        if given.is_empty() {
            errors.push(FieldError::required(&place, ""));
            continue;
        }
        let (found, of) = match resolve_field(given, schema, false) {
            Ok(found) => found,
            Err(why) => {
                errors.push(FieldError::invalid(&place, given, &format!("is an invalid path: {why}")));
                continue;
            }
        };
        let found = found.to_string();
        if found.split('.').next() == Some("metadata") {
            errors.push(FieldError::invalid(&place, given, "must not point to fields in metadata"));
        }
        if !matches!(&*of.ty, "string" | "boolean" | "integer") {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                          formats are allowed.";
            errors.push(FieldError::invalid(&place, given, detail));
        }
        if !unique.insert(found) {
            errors.push(FieldError::duplicate(&place, given));
        }
    }
    if unique.len() > most {
        errors.push(FieldError::too_many(path, unique.len(), SELECTABLE_MAX));
    }
    errors
}

fn conversion(conversion: &CustomResourceConversion, lenience: &Lenience, path: &Path) -> Errors {
    let mut errors = Errors::new();
    match conversion.strategy.as_str() {
        "" => errors.push(FieldError::required(&path.child("strategy"), "")),
        "None" | "Webhook" => {}
        other => errors.push(FieldError::not_supported(&path.child("strategy"), other, &["None", "Webhook"])),
    }
    let given = conversion.webhook.as_ref().and_then(|w| w.client_config.as_ref());
    let reviews = conversion.webhook.as_ref().map(|w| w.conversion_review_versions.as_slice()).unwrap_or_default();
    let (of_client, of_reviews) = (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    if conversion.strategy != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        errors.extend(given.map(|_| FieldError::forbidden(&of_client, detail)));
        errors.extend((!reviews.is_empty()).then(|| FieldError::forbidden(&of_reviews, detail)));
        return errors;
    }
    match given {
        None => errors.push(FieldError::required(&of_client, "required when strategy is set to Webhook")),
        Some(given) => errors.extend(client(given, lenience, &of_client)),
    }
    let known: &[&str] = if lenience.reviews { &[] } else { &REVIEWS };
    errors.extend(webhook::review_versions(reviews, known, "", &of_reviews));
    errors
}

fn client(client: &WebhookClientConfig, lenience: &Lenience, path: &Path) -> Errors {
    let service = client.service.as_ref().map(|service| webhook::Service {
        namespace: &service.namespace,
        name: &service.name,
        path: service.path.as_deref(),
        port: service.port,
    });
    let mut errors = webhook::client(client.url.as_deref(), service, path);
    if let Some(bundle) = client.ca_bundle.as_ref().filter(|_| !lenience.bundle)
        && let Some(why) = bundle_error(&bundle.0)
    {
        errors.push(FieldError::invalid(&path.child("caBundle"), STANDARD.encode(&bundle.0), &why));
    }
    errors
}

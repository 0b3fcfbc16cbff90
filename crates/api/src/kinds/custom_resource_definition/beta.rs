//! Definitions as upstream's API servers store them: in v1beta1, whose form is the shorter one where all versions have the same schema.
//! Upstream counterpart: apiextensions-apiserver/pkg/apis/apiextensions/v1 (conversion.go) and v1beta1 (defaults.go).

use json::{Map, Value, json};

/// The fields that a definition has for all of its versions, and the same of one version.
const FOR_ALL: &[(&str, &str)] = &[
    ("validation", "schema"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

/// Makes a definition of v1beta1 one of v1.
pub fn into_v1(definition: &mut Value) {
    definition["apiVersion"] = "apiextensions.k8s.io/v1".into();
    if let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) {
        into_v1_spec(spec);
    }
}

fn versions(spec: &mut Map) -> impl Iterator<Item = &mut Map> {
    let list = spec.get_mut("versions").and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn into_v1_spec(spec: &mut Map) {
    let alone = spec.remove("version");
    if let Some(name) = alone.filter(|_| versions(spec).next().is_none()) {
        spec.insert("versions", json!([{"name": name, "served": true, "storage": true}]));
    }
    for (of_all, of_one) in FOR_ALL {
        let Some(value) = spec.remove(of_all).filter(|value| !value.is_null()) else { continue };
        versions(spec).for_each(|version| drop(version.insert(*of_one, value.clone())));
    }
    for version in versions(spec) {
        let columns = version.get_mut("additionalPrinterColumns").and_then(Value::as_array_mut);
        for column in columns.into_iter().flatten().filter_map(Value::as_object_mut) {
            let path = column.remove("JSONPath");
            path.into_iter().for_each(|path| drop(column.insert("jsonPath", path)));
        }
    }
    if let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut) {
        into_v1_conversion(conversion);
    }
    // A definition that says nothing keeps fields that its schema does not know.
    if *spec.entry("preserveUnknownFields").or_insert(true.into()) == false {
        spec.remove("preserveUnknownFields");
    }
}

fn into_v1_conversion(conversion: &mut Map) {
    let client = conversion.remove("webhookClientConfig");
    let reviews = conversion.remove("conversionReviewVersions");
    let usual = || (conversion.get("strategy")? == "Webhook").then(|| json!(["v1beta1"]));
    let reviews = reviews.or_else(usual);
    if client.is_none() && reviews.is_none() {
        return;
    }
    let mut webhook = Map::new();
    client.into_iter().for_each(|client| drop(webhook.insert("clientConfig", client)));
    reviews.into_iter().for_each(|reviews| drop(webhook.insert("conversionReviewVersions", reviews)));
    conversion.insert("webhook", Value::Object(webhook));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(mut spec: Value) -> Value {
        let mut definition = json!({"apiVersion": "apiextensions.k8s.io/v1beta1", "spec": spec.take()});
        into_v1(&mut definition);
        assert_eq!(definition["apiVersion"], "apiextensions.k8s.io/v1");
        definition["spec"].take()
    }

    #[test]
    fn what_all_versions_share_is_each_ones() {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let (subresources, fields) = (json!({"status": {}}), json!([{"jsonPath": ".spec.a"}]));
        let one = json!({"name": "v1", "served": true, "storage": true});
        let old = json!({"group": "a.io", "version": "v1", "names": {"kind": "Box"}, "scope": "Namespaced",
            "validation": schema, "subresources": subresources, "selectableFields": fields,
            "additionalPrinterColumns": [{"name": "A", "type": "string", "JSONPath": ".spec.a"}],
            "versions": [one, {"name": "v2", "served": true, "storage": false}],
            "conversion": {"strategy": "None"}, "preserveUnknownFields": false});
        let new = |name: &str, storage: bool| {
            json!({"name": name, "served": true, "storage": storage, "schema": schema, "subresources": subresources,
                "additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": ".spec.a"}], "selectableFields": fields})
        };
        let expected = json!({"group": "a.io", "names": {"kind": "Box"}, "scope": "Namespaced",
            "versions": [new("v1", true), new("v2", false)], "conversion": {"strategy": "None"}});
        assert_eq!(converted(old), expected);
        let alone = converted(json!({"version": "v1"}));
        assert_eq!(alone, json!({"versions": [one], "preserveUnknownFields": true}));
    }

    #[test]
    fn what_a_version_has_of_its_own_stays_and_a_converter_moves() {
        let own = json!({"name": "v1", "schema": {"openAPIV3Schema": {"type": "object"}},
            "additionalPrinterColumns": [{"name": "A", "JSONPath": ".a"}]});
        let client = json!({"service": {"namespace": "n", "name": "s", "port": 443}});
        let convert = |conversion: Value| {
            let spec =
                json!({"version": "v1", "versions": [own], "preserveUnknownFields": false, "conversion": conversion});
            converted(spec)
        };
        let new =
            convert(json!({"strategy": "Webhook", "webhookClientConfig": client, "conversionReviewVersions": ["v1"]}));
        assert_eq!(new["versions"][0]["schema"], own["schema"]);
        assert_eq!(new["versions"][0]["additionalPrinterColumns"], json!([{"name": "A", "jsonPath": ".a"}]));
        let webhook = json!({"clientConfig": client, "conversionReviewVersions": ["v1"]});
        assert_eq!(new["conversion"], json!({"strategy": "Webhook", "webhook": webhook}));
        let usual = convert(json!({"strategy": "Webhook", "webhookClientConfig": client}));
        assert_eq!(usual["conversion"]["webhook"]["conversionReviewVersions"], json!(["v1beta1"]));
    }

    #[test]
    fn what_is_no_definition_is_left() {
        for odd in [json!({"spec": 1}), json!({"spec": {"versions": 1, "conversion": [], "validation": {}}}), json!({})]
        {
            let mut definition = odd;
            into_v1(&mut definition);
        }
    }
}

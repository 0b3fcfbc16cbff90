//! StorageVersion: as which version each API server writes the objects of a resource, and which it can read.
//! Upstream counterpart: pkg/apis/apiserverinternal/validation, pkg/registry/apiserverinternal/storageversion.

use json::Value;
use k8s_openapi::api::apiserverinternal::v1alpha1::{
    ServerStorageVersion, StorageVersion, StorageVersionCondition, StorageVersionStatus,
};
use serde::Deserialize;

use crate::kind::cell;
use crate::kind::{Kind, StatusMetadata, age, col, name};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::{self, NameRule};
use crate::validation::object_meta::invalid_at;

pub const STORAGE_VERSION: Kind<StorageVersion> = Kind {
    status: true,
    status_metadata: StatusMetadata::Stays,
    unconditional_update: false,
    name: NameRule::Own,
    validate: Some(|version| {
        let name = version.metadata.name.as_deref().unwrap_or_default();
        let mut errors = invalid_at(&Path::new("metadata"), "name", name, wrong_name(name));
        errors.extend(status(&version.status));
        errors
    }),
    validate_status: Some(|new, _| match new.get("status").map(StorageVersionStatus::deserialize).transpose() {
        Ok(new) => status(&new.unwrap_or_default()),
        Err(why) => vec![FieldError::invalid_unshown(&Path::new("status"), &why.to_string())],
    }),
    columns: &[
        name(),
        col("CommonEncodingVersion", "The version that all servers write.", |v, _| {
            cell::text_or(v.status.common_encoding_version.as_ref(), "<unset>")
        }),
        col("StorageVersions", "The version that each server writes.", |v, _| Value::from(servers(&v.status))),
        age(),
    ],
    ..Kind::BASE
};

/// The condition that says whether all servers write the same version.
pub const ALL_EQUAL: &str = "AllEncodingVersionsEqual";

/// The version that all servers write, if they agree.
pub fn common(servers: &[ServerStorageVersion]) -> Option<&str> {
    let mut versions = servers.iter().map(encoding);
    let first = versions.next()?;
    versions.all(|version| version == first).then_some(first)
}

fn encoding(server: &ServerStorageVersion) -> &str {
    server.encoding_version.as_deref().unwrap_or_default()
}

fn servers(status: &StorageVersionStatus) -> String {
    let one = |server: &ServerStorageVersion| {
        format!("{}={}", server.api_server_id.as_deref().unwrap_or_default(), encoding(server))
    };
    let list: Vec<String> = status.storage_versions.iter().flatten().map(one).collect();
    cell::first_three(&list, "")
}

/// `<group>.<resource>`; the core group is called `core`.
fn wrong_name(name: &str) -> Vec<String> {
    let Some((group, resource)) = name.rsplit_once('.') else {
        return vec!["name must be in the form of <group>.<resource>".to_owned()];
    };
    let of_group = names::dns1123_subdomain(group).into_iter().map(|why| format!("the group segment {why}"));
    let of_resource = names::dns1035_label(resource).into_iter().map(|why| format!("the resource segment {why}"));
    of_group.chain(of_resource).collect()
}

fn status(status: &StorageVersionStatus) -> Errors {
    let path = Path::new("status");
    let list = status.storage_versions.as_deref().unwrap_or_default();
    let place = path.child("storageVersions");
    let mut errors: Errors = list.iter().enumerate().flat_map(|(i, one)| server(one, &place.index(i))).collect();
    let place = path.child("commonEncodingVersion");
    let said = status.common_encoding_version.as_deref();
    match (common(list), said) {
        (None, Some(said)) => {
            let detail = "should be nil if servers do not agree on the same encoding version, or if there is no server \
                          reporting the supported versions yet";
            errors.push(FieldError::invalid(&place, said, detail));
        }
        (Some(common), None) => {
            errors.push(FieldError::invalid(&place, Value::Null, &format!("the common encoding version is {common}")));
        }
        (Some(common), Some(said)) if common != said => {
            errors.push(FieldError::invalid(&place, said, &format!("the actual common encoding version is {common}")));
        }
        _ => {}
    }
    errors.extend(conditions(status.conditions.as_deref().unwrap_or_default(), &path));
    errors
}

fn server(server: &ServerStorageVersion, path: &Path) -> Errors {
    let id = server.api_server_id.as_deref().unwrap_or_default();
    let mut errors = invalid_at(path, "apiServerID", id, names::dns1123_subdomain(id));
    let mut check = |place: Path, version: &str| {
        let wrong = wrong_version(version);
        if !wrong.is_empty() {
            errors.push(FieldError::invalid(&place, version, &wrong.join(",")));
        }
    };
    check(path.child("encodingVersion"), encoding(server));
    let place = path.child("decodableVersions");
    let readable = server.decodable_versions.as_deref().unwrap_or_default();
    for (i, version) in readable.iter().enumerate() {
        check(place.index(i), version);
    }
    if !readable.iter().any(|version| version == encoding(server)) {
        let detail = format!("decodableVersions must include encodingVersion {}", encoding(server));
        errors.push(FieldError::invalid(&place, readable, &detail));
    }
    errors
}

/// The places are upstream's, without the name of the list.
fn conditions(list: &[StorageVersionCondition], path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (i, condition) in list.iter().enumerate() {
        let place = path.index(i);
        if let Some(first) = list[..i].iter().rposition(|before| before.type_ == condition.type_) {
            let detail = format!("the type of the condition is not unique, it also appears in conditions[{first}]");
            errors.push(FieldError::invalid(&place.child("type"), &condition.type_, &detail));
        }
        for (field, text) in [("type", &condition.type_), ("status", &condition.status)] {
            errors.extend(invalid_at(&place, field, text, names::qualified_name(text)));
        }
        for (field, text) in [("reason", &condition.reason), ("message", &condition.message)] {
            if text.is_empty() {
                errors.push(FieldError::required(&place.child(field), &format!("{field} cannot be empty")));
            }
        }
    }
    errors
}

/// `v1` or `group/v1`.
fn wrong_version(version: &str) -> Vec<String> {
    let (group, version) = version.split_once('/').map_or((None, version), |(group, version)| (Some(group), version));
    if version.contains('/') {
        let shape = names::dns1035_label("/").pop().unwrap_or_default();
        return vec![format!(
            "an apiVersion is {shape} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyVersion')"
        )];
    }
    let part = |what: &str, text: &str, rule: fn(&str) -> Vec<String>| match text {
        "" => vec![format!("{what} must be specified")],
        text => rule(text).into_iter().map(|why| format!("{what} part: {why}")).collect(),
    };
    let mut wrong = group.map_or_else(Vec::new, |group| part("group", group, names::dns1123_subdomain));
    wrong.extend(part("version", version, names::dns1035_label));
    wrong
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn server(id: &str, writes: &str, reads: &[&str]) -> Value {
        json!({"apiServerID": id, "encodingVersion": writes, "decodableVersions": reads})
    }

    fn check(value: Value, expected: &[&str]) {
        let said: Vec<String> =
            status(&json::from_value(value.clone()).unwrap()).iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), expected.len(), "{value}: {said:?}");
        assert!(said.iter().zip(expected).all(|(s, e)| s.contains(e)), "{value}: {said:?}");
    }

    #[test]
    fn servers_say_what_they_write_and_read() {
        check(json!({}), &[]);
        check(json!({"storageVersions": [server("a", "v1", &["v1", "apps/v1"])], "commonEncodingVersion": "v1"}), &[]);
        let bad = |value: Value, expected: &[&str]| {
            let writes = value["encodingVersion"].clone();
            check(json!({"storageVersions": [value], "commonEncodingVersion": writes}), expected);
        };
        bad(server("A_", "v1", &["v1"]), &["status.storageVersions[0].apiServerID: Invalid"]);
        bad(
            server("a", "", &[""]),
            &["encodingVersion: Invalid value: \"\": version must be specified", "decodableVersions[0]"],
        );
        bad(server("a", "/v1", &["/v1"]), &["group must be specified", "decodableVersions[0]"]);
        bad(
            server("a", "mygroup.com/2", &["mygroup.com/2"]),
            &["version part: a DNS-1035 label", "decodableVersions[0]"],
        );
        bad(server("a", "a/b/c", &["a/b/c"]), &["an apiVersion is a DNS-1035 label", "decodableVersions[0]"]);
        bad(server("a", "v1", &["v2"]), &["decodableVersions must include encodingVersion v1"]);
    }

    #[test]
    fn what_they_agree_on_is_said() {
        let (one, two, other) = (server("a", "v1", &["v1"]), server("b", "v1", &["v1"]), server("c", "v2", &["v2"]));
        check(json!({"storageVersions": [one, two], "commonEncodingVersion": "v1"}), &[]);
        check(json!({"storageVersions": [one, other]}), &[]);
        check(
            json!({"storageVersions": [one, two]}),
            &["commonEncodingVersion: Invalid value: null: the common encoding version is v1"],
        );
        check(
            json!({"storageVersions": [one, two], "commonEncodingVersion": "v2"}),
            &["the actual common encoding version is v1"],
        );
        check(
            json!({"storageVersions": [one, other], "commonEncodingVersion": "v1"}),
            &["should be nil if servers do not agree"],
        );
        check(json!({"commonEncodingVersion": "v1"}), &["should be nil"]);
    }

    #[test]
    fn conditions_are_whole() {
        let condition =
            |kind: &str, reason: &str| json!({"type": kind, "status": "True", "reason": reason, "message": "m"});
        check(json!({"conditions": [condition("A", "r"), condition("B", "r")]}), &[]);
        check(
            json!({"conditions": [condition("A", "r"), condition("A", "r")]}),
            &[
                "status[1].type: Invalid value: \"A\": the type of the condition is not unique, it also appears in conditions[0]",
            ],
        );
        check(json!({"conditions": [condition("A b", "")]}), &["status[0].type: Invalid", "reason cannot be empty"]);
    }

    #[test]
    fn a_name_is_a_group_and_a_resource() {
        let check = |name: &str, expected: &[&str]| {
            let wrong = wrong_name(name);
            assert_eq!(wrong.len(), expected.len(), "{name}: {wrong:?}");
            assert!(wrong.iter().zip(expected).all(|(w, e)| w.starts_with(e)), "{name}: {wrong:?}");
        };
        check("core.pods", &[]);
        check("apiextensions.k8s.io.customresourcedefinitions", &[]);
        check("pods", &["name must be in the form of <group>.<resource>"]);
        check("-a.pods", &["the group segment a lowercase RFC 1123 subdomain"]);
        check("core.Pods", &["the resource segment a DNS-1035 label"]);
    }
}

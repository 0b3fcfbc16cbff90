//! Answers in protobuf: what the server has written as JSON becomes a message by its `apiVersion` and `kind`.

use std::{collections::HashMap, sync::LazyLock};

use api::{
    codec::protobuf::{Encoder, Message, type_of},
    kind::group::GROUPS,
    status::StatusError,
};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta";

/// The package of each `apiVersion`, as schemas are named.
static PACKAGES: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
    let own = GROUPS.iter().flat_map(|group| group.versions.iter().map(move |(version, _)| (group.name, *version)));
    let shared = [("meta.k8s.io", "v1"), ("meta.k8s.io", "v1beta1")];
    let discovery = [("apidiscovery.k8s.io", "v2"), ("apidiscovery.k8s.io", "v2beta1")];
    own.chain(shared)
        .chain(discovery)
        .map(|(group, version)| match group {
            "" => (version.to_owned(), format!("io.k8s.api.core.{version}")),
            _ => (format!("{group}/{version}"), format!("{}.{version}", package(group))),
        })
        .collect()
});

fn package(group: &str) -> String {
    match group {
        "meta.k8s.io" => META.to_owned(),
        "apiextensions.k8s.io" => "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions".to_owned(),
        "apiregistration.k8s.io" => "io.k8s.kube-aggregator.pkg.apis.apiregistration".to_owned(),
        "internal.apiserver.k8s.io" => "io.k8s.api.apiserverinternal".to_owned(),
        other => format!("io.k8s.api.{}", other.split('.').next().unwrap_or(other)),
    }
}

/// The message of a kind. Kinds that all groups share are in the one of the metadata.
pub fn message(api_version: &str, kind: &str) -> Option<&'static Message> {
    let own = PACKAGES.get(api_version).and_then(|package| Message::of(&format!("{package}.{kind}")));
    let shared = || Message::of(&format!("{META}.v1.{kind}"));
    let is_shared = matches!(api_version, "" | "v1") || api_version.starts_with("meta.k8s.io/");
    own.or_else(|| is_shared.then(shared).flatten())
}

/// An object in its envelope.
pub fn object(json: &[u8]) -> Result<Vec<u8>, StatusError> {
    let [api_version, kind] = type_of(json);
    let of = message(&api_version, &kind).ok_or_else(|| no_message(&kind))?;
    let bytes = Encoder::default().object(of, [&api_version, &kind], json).map(<[u8]>::to_vec);
    bytes.map_err(StatusError::internal)
}

fn no_message(kind: &str) -> StatusError {
    let why = "does not implement the protobuf marshalling interface and cannot be encoded to a protobuf message";
    StatusError::not_acceptable(format!("object {kind} {why}"))
}

/// One event of a watch.
pub fn event(event: &str, json: &[u8]) -> Result<Vec<u8>, StatusError> {
    let [api_version, kind] = type_of(json);
    let of = message(&api_version, &kind).ok_or_else(|| no_message(&kind))?;
    let frame = Encoder::default().event(event, of, [&api_version, &kind], json).map(<[u8]>::to_vec);
    frame.map_err(|misfit| StatusError::internal(format!("unable to encode watch object {kind}: {misfit}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The measured kinds, the use of nodes and Pods, are an API of their own, which the table does not have.
    #[test]
    fn every_built_in_kind_and_its_list_have_a_message() {
        let missing: Vec<String> = api::kinds::built_in()
            .all()
            .iter()
            .filter(|d| d.group != "metrics.k8s.io")
            .flat_map(|d| {
                let list = d.verbs.iter().any(|verb| verb == "list").then(|| d.list_kind.clone());
                [Some(d.kind.clone()), list].into_iter().flatten().map(|kind| (d.api_version(), kind))
            })
            .filter(|(api_version, kind)| message(api_version, kind).is_none())
            .map(|(api_version, kind)| format!("{api_version} {kind}"))
            .collect();
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn kinds_of_others_have_none() {
        for (api_version, kind) in [("apps.example.com/v1", "Deployment"), ("example.com/v1", "Status"), ("v2", "Pod")]
        {
            assert!(message(api_version, kind).is_none(), "{api_version} {kind}");
        }
        assert!(message("autoscaling/v1", "Scale").is_some() && message("v1", "Status").is_some());
        assert!(message("meta.k8s.io/v1beta1", "PartialObjectMetadata").is_some());
        assert!(message("apidiscovery.k8s.io/v2", "APIGroupDiscoveryList").is_some());
    }
}

//! The resources that the server offers, as controllers need them that work on objects of any kind.

use client::{Client, rest::Resource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;

/// One resource in its group's preferred version.
#[derive(Debug, Clone, PartialEq)]
pub struct Offered {
    pub resource: Resource,
    pub namespaced: bool,
    pub verbs: Vec<String>,
}

impl Offered {
    pub fn can(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|wanted| self.verbs.iter().any(|verb| verb == wanted))
    }
}

/// All resources, without subresources. A group that cannot be asked is left out and named in the second part.
pub async fn discover(client: &Client) -> Result<(Vec<Offered>, Vec<String>), kube::Error> {
    let mut offered = Vec::new();
    let mut failed = Vec::new();
    for version in client.list_core_api_versions().await?.versions {
        collect(client.list_core_api_resources(&version).await?, &mut offered);
    }
    for group in client.list_api_groups().await?.groups {
        let Some(preferred) = group.preferred_version.or_else(|| group.versions.first().cloned()) else { continue };
        match client.list_api_group_resources(&preferred.group_version).await {
            Ok(list) => collect(list, &mut offered),
            Err(error) => {
                tracing::debug!(group = preferred.group_version, %error, "a group cannot be discovered");
                failed.push(preferred.group_version);
            }
        }
    }
    Ok((offered, failed))
}

/// The resource of a kind in the first version of its group that has it. The error says why there is none, in upstream's words.
pub async fn of_kind(client: &Client, group: &str, kind: &str) -> Result<Resource, String> {
    let words = |error: kube::Error| client::rest::message(&error);
    let mut offered = Vec::new();
    if group.is_empty() {
        collect(client.list_core_api_resources("v1").await.map_err(words)?, &mut offered);
    } else {
        let groups = client.list_api_groups().await.map_err(words)?.groups;
        for version in groups.into_iter().filter(|g| g.name == group).flat_map(|g| g.versions) {
            collect(client.list_api_group_resources(&version.group_version).await.map_err(words)?, &mut offered);
        }
    }
    let found = offered.into_iter().find(|offered| offered.resource.kind == kind);
    found.map(|found| found.resource).ok_or_else(|| format!("no matches for kind {kind:?} in group {group:?}"))
}

fn collect(list: APIResourceList, offered: &mut Vec<Offered>) {
    let (group, version) = list.group_version.split_once('/').unwrap_or(("", &list.group_version));
    for item in list.resources {
        if item.name.contains('/') {
            continue;
        }
        offered.push(Offered {
            resource: Resource {
                group: group.to_owned(),
                version: version.to_owned(),
                kind: item.kind,
                plural: item.name,
            },
            namespaced: item.namespaced,
            verbs: item.verbs,
        });
    }
}

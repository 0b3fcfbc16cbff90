//! The resources that the server offers, as controllers need them that work on objects of any kind.

use api::{Value, rules::cel::typed::Custom, schema};
use client::{
    Client,
    rest::{self, Form, Resource},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    APIGroup, APIGroupList, APIResource, APIResourceList, ObjectMeta,
};
use serde::{Deserialize, de::DeserializeOwned};

/// One resource in its group's preferred version.
#[derive(Debug, Clone, PartialEq)]
pub struct Offered {
    pub resource: Resource,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    /// All versions of the group that have it, the preferred one first.
    pub versions: Vec<String>,
}

impl Offered {
    /// Whether this is the resource of that kind in this version.
    pub fn is_of(&self, api_version: &str, kind: &str) -> bool {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.resource.group == group && self.resource.kind == kind && self.versions.iter().any(|one| one == version)
    }

    pub fn can(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|wanted| self.verbs.iter().any(|verb| verb == wanted))
    }
}

/// Why the resources of some group versions are not known, in upstream's words.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Unknown(pub(crate) Vec<String>);

impl Unknown {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let each = |version: &String| format!("{version}: stale GroupVersion discovery: {version}");
        let all: Vec<String> = self.0.iter().map(each).collect();
        write!(f, "unable to retrieve the complete list of server APIs: {}", all.join(", "))
    }
}

/// The form in which a server tells of all its groups at once.
const ALL_GROUPS: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[derive(Deserialize)]
struct Groups {
    #[serde(default = "Vec::new")]
    items: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
    #[serde(default)]
    resources: Vec<Found>,
    #[serde(default)]
    freshness: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    resource: String,
    #[serde(default)]
    response_kind: Named,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize, Default)]
struct Named {
    #[serde(default)]
    kind: String,
}

/// All resources, without subresources, each in the first version of its group that has it. Group versions of other API
/// servers that did not answer lately are named in the second part.
pub async fn discover(client: &Client) -> Result<(Vec<Offered>, Unknown), client::Error> {
    let (mut offered, mut unknown) = (Vec::new(), Unknown::default());
    for path in ["/api", "/apis"] {
        let answer = rest::open(client, http::Method::GET, path, ALL_GROUPS, "application/json", Vec::new()).await?;
        let text = answer.into_body().collect_bytes().await?;
        let groups: Groups = serde_json::from_slice(&text).map_err(client::Error::Decode)?;
        groups.items.into_iter().for_each(|group| take(group, &mut offered, &mut unknown));
    }
    unknown.0.sort();
    Ok((offered, unknown))
}

fn take(group: Group, offered: &mut Vec<Offered>, unknown: &mut Unknown) {
    let name = group.metadata.name.unwrap_or_default();
    let begin = offered.len();
    for version in group.versions {
        if version.freshness == "Stale" {
            unknown.0.push(format!("{name}/{}", version.version));
        }
        for found in version.resources {
            let mut before = offered[begin..].iter_mut();
            if let Some(known) = before.find(|known: &&mut Offered| known.resource.plural == found.resource) {
                known.versions.push(version.version.clone());
                continue;
            }
            let resource = Resource {
                group: name.clone(),
                version: version.version.clone(),
                kind: found.response_kind.kind,
                plural: found.resource,
            };
            offered.push(Offered {
                versions: vec![resource.version.clone()],
                resource,
                namespaced: found.scope == "Namespaced",
                verbs: found.verbs,
            });
        }
    }
}

/// The groups of the server and their versions.
pub async fn groups(client: &Client) -> Result<Vec<APIGroup>, client::Error> {
    Ok(document::<APIGroupList>(client, "/apis").await?.groups)
}

async fn document<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, client::Error> {
    serde_json::from_slice(&rest::read(client, path, Form::Whole).await?).map_err(client::Error::Decode)
}

/// The resource of a kind in the first version of its group that has it. The error says why there is none, in upstream's words.
pub async fn of_kind(client: &Client, group: &str, kind: &str) -> Result<Resource, String> {
    find(client, group, kind).await?.ok_or_else(|| format!("no matches for kind {kind:?} in group {group:?}"))
}

/// The resource of a kind in the first version of its group that has it, if one has.
pub async fn find(client: &Client, group: &str, kind: &str) -> Result<Option<Resource>, String> {
    let words = |error: client::Error| rest::message(&error);
    let mut offered = Vec::new();
    if group.is_empty() {
        collect(document(client, "/api/v1").await.map_err(words)?, &mut offered);
    } else {
        let groups = groups(client).await.map_err(words)?;
        for version in groups.into_iter().filter(|g| g.name == group).flat_map(|g| g.versions) {
            let list = document(client, &format!("/apis/{}", version.group_version)).await.map_err(words)?;
            collect(list, &mut offered);
        }
    }
    Ok(offered.into_iter().find(|offered| offered.resource.kind == kind).map(|found| found.resource))
}

/// The kinds of a group version with what the server's OpenAPI document says of them; none if there is no such version.
pub async fn schemas(client: &Client, group: &str, version: &str) -> Result<Vec<Custom>, client::Error> {
    let (Ok(group), Ok(version)) = (segment(group), segment(version)) else { return Ok(Vec::new()) };
    let path = format!("/apis/{group}/{version}");
    let Some(list) = rest::found(document::<APIResourceList>(client, &path).await)? else { return Ok(Vec::new()) };
    let Some(mut about) = rest::found(document::<Value>(client, &format!("/openapi/v3{path}")).await)? else {
        return Ok(Vec::new());
    };
    let schemas = about["components"]["schemas"].take();
    let schemas: Vec<&Value> = schemas.as_object().into_iter().flatten().map(|(_, schema)| schema).collect();
    let is = |schema: &Value, kind: &str| {
        let names = schema["x-kubernetes-group-version-kind"].as_array();
        names.into_iter().flatten().any(|n| n["group"] == *group && n["version"] == *version && n["kind"] == *kind)
    };
    let custom = |found: APIResource| {
        let schema = schemas.iter().find(|schema| is(schema, &found.kind))?;
        let ty = schema::custom(&found.kind, schema);
        Some(Custom { group: group.to_owned(), version: version.to_owned(), kind: found.kind, plural: found.name, ty })
    };
    Ok(list.resources.into_iter().filter(|found| !found.name.contains('/')).filter_map(custom).collect())
}

/// Whether objects of the resource have a scale.
pub async fn has_scale(client: &Client, resource: &Resource) -> Result<bool, client::Error> {
    let root = if resource.group.is_empty() { "/api" } else { "/apis" };
    let list: APIResourceList = document(client, &format!("{root}/{}", resource.api_version())).await?;
    let scale = format!("{}/scale", resource.plural);
    Ok(list.resources.iter().any(|found| found.name == scale))
}

/// A name that somebody wrote, as a part of a path. A name that would lead elsewhere (names may hold it) finds nothing.
pub fn segment(name: &str) -> Result<&str, String> {
    let leads_away = |c: char| matches!(c, '?' | '#' | '/' | '%') || c.is_whitespace() || c.is_control();
    if name.contains(leads_away) || matches!(name, "" | "." | "..") {
        return Err(format!("{name:?} is not found: no path leads to it"));
    }
    Ok(name)
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
            versions: vec![version.to_owned()],
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_path() {
        for good in ["d", "a.b-c", "http_requests", "x:y"] {
            assert_eq!(segment(good), Ok(good));
        }
        for bad in ["a?b", "a#b", "a b", "a/b", "a%2Fb", "a\nb", "", ".", ".."] {
            assert!(segment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_resource_is_taken_once_and_stale_versions_are_named() {
        let groups: Groups = serde_json::from_str(
            r#"{"items": [{"metadata": {"name": "a.io"}, "versions": [
                {"version": "v2", "freshness": "Current", "resources": [
                    {"resource": "things", "responseKind": {"kind": "Thing"}, "scope": "Namespaced", "verbs": ["list"]}]},
                {"version": "v1", "freshness": "Stale", "resources": [{"resource": "things"}, {"resource": "olds"}]}]}]}"#,
        )
        .unwrap();
        let (mut offered, mut unknown) = (Vec::new(), Unknown::default());
        groups.items.into_iter().for_each(|group| take(group, &mut offered, &mut unknown));
        let shown: Vec<String> = offered
            .iter()
            .map(|o| format!("{} {} {}", o.resource.path("", "", ""), o.resource.kind, o.namespaced))
            .collect();
        assert_eq!(shown, ["/apis/a.io/v2/things Thing true", "/apis/a.io/v1/olds  false"]);
        assert_eq!(offered[0].versions, ["v2", "v1"]);
        assert!(offered[0].is_of("a.io/v1", "Thing") && !offered[0].is_of("a.io/v9", "Thing"));
        let why = "unable to retrieve the complete list of server APIs: a.io/v1: stale GroupVersion discovery: a.io/v1";
        assert_eq!((unknown.len(), unknown.to_string().as_str()), (1, why));
    }
}

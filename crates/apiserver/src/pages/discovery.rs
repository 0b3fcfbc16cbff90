//! Discovery: which groups, versions and resources there are, in the old documents and in the aggregated one.

use std::{collections::BTreeSet, sync::Arc};

use api::{
    Value,
    codec::encode,
    kind::{Definition, KindTable, group::GROUPS},
    schema,
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use json::{Map, json};
use sha2::{Digest, Sha256, Sha512};

use crate::{
    aggregator::{
        registrations::{Listed, Registrations, in_order},
        told,
    },
    call::Call,
    http::{
        body::Response,
        encoding::{Encoding, accept},
        respond,
    },
    state::State,
};

/// Custom kinds have these priorities, of their group and of their version.
const CUSTOM: (i64, i64) = (1000, 100);

/// The groups and kinds that are served: here, and by other API servers.
struct Served {
    table: Arc<KindTable>,
    registrations: Arc<Registrations>,
}

impl Served {
    fn of(state: &State) -> Self {
        Served { table: state.objects.kinds.table(), registrations: state.aggregator.table() }
    }

    /// Groups with their versions, the preferred one first.
    fn groups(&self) -> Vec<Listed> {
        let known = |group: &str, version: &str| {
            let group = GROUPS.iter().find(|g| g.name == group)?;
            let version = group.versions.iter().find(|v| v.0 == version)?;
            Some((i64::from(group.priority), i64::from(version.1)))
        };
        let own: BTreeSet<(&str, &str)> = self.table.all().iter().map(|d| (&*d.group, &*d.version)).collect();
        let own = own.into_iter().filter(|(group, version)| self.registrations.find(group, version).is_none());
        let own = own.map(|(group, version)| {
            let told = self.registrations.by_name(&format!("{version}.{group}"));
            let told = told.map(|r| (r.group_priority, r.version_priority));
            let (of_group, of_version) = told.or_else(|| known(group, version)).unwrap_or(CUSTOM);
            (group.to_owned(), version.to_owned(), of_group, of_version)
        });
        let others = self.registrations.passed_on();
        let others = others.map(|r| (r.group.clone(), r.version.clone(), r.group_priority, r.version_priority));
        in_order(own.chain(others))
    }
}

/// Answers `/api`, `/apis` and what is below them.
pub fn answer(call: &Call) -> Option<Response> {
    let served = Served::of(&call.state);
    let table = &served.table;
    let parts: Vec<&str> = call.info.path.trim_matches('/').split('/').collect();
    let aggregated = || aggregated_version(call.state.encodings, &call.headers);
    let document = match parts.as_slice() {
        ["api"] => match aggregated() {
            Some(version) => return Some(aggregate(call, version, true)),
            None => json!({
                "kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address(call)}],
            }),
        },
        ["apis"] => match aggregated() {
            Some(version) => return Some(aggregate(call, version, false)),
            None => {
                let groups = served.groups();
                let list = groups.iter().filter(|l| !l.group.is_empty()).map(|l| group(l, false));
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list.collect::<Vec<_>>()})
            }
        },
        ["api", version] => resources(table, "", version)?,
        ["apis", name] => {
            let listed = served.groups().into_iter().find(|l| !l.group.is_empty() && l.group == *name)?;
            group(&listed, true)
        }
        ["apis", group, version] => resources(table, group, version)?,
        _ => return None,
    };
    Some(respond::value(StatusCode::OK, &document))
}

/// Where clients reach the server, whatever they called it this time.
fn address(call: &Call) -> String {
    call.state.address.map_or_else(|| call.header(header::HOST).to_owned(), |address| address.to_string())
}

fn group(Listed { group: name, versions }: &Listed, alone: bool) -> Value {
    let version = |v: &String| json!({"groupVersion": format!("{name}/{v}"), "version": v});
    let mut group = json!({
        "name": name,
        "versions": versions.iter().map(version).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(version),
    });
    if alone {
        group["kind"] = json!("APIGroup");
        group["apiVersion"] = json!("v1");
    }
    group
}

/// A resource or subresource, as all documents need it.
struct Row<'a> {
    definition: &'a Definition,
    subresource: &'a str,
    /// Group, version and kind of what it reads or writes.
    object: (String, String, String),
    verbs: Vec<String>,
}

fn rows(definition: &Definition) -> Vec<Row<'_>> {
    let own = || (definition.group.clone(), definition.version.clone(), definition.kind.clone());
    let mut verbs = definition.verbs.clone();
    if definition.terminating {
        verbs.retain(|verb| !matches!(verb.as_str(), "create" | "patch" | "update"));
    }
    let mut rows = vec![Row { definition, subresource: "", object: own(), verbs }];
    let usual = || ["get", "patch", "update"].map(ToOwned::to_owned).to_vec();
    for sub in &definition.subresources {
        let (group, version, kind) = sub.object;
        let object = (group.to_owned(), version.to_owned(), kind.to_owned());
        let verbs = sub.verbs.iter().map(|v| (*v).to_owned()).collect();
        rows.push(Row { definition, subresource: sub.name, object, verbs });
    }
    if definition.scale.is_some() {
        let object = ("autoscaling".to_owned(), "v1".to_owned(), "Scale".to_owned());
        rows.push(Row { definition, subresource: "scale", object, verbs: usual() });
    }
    if definition.status {
        rows.push(Row { definition, subresource: "status", object: own(), verbs: usual() });
    }
    // A custom kind has its status before its scale.
    rows[1..].sort_by_key(|r| (definition.is_custom() && r.subresource != "status", r.subresource));
    rows
}

fn of_version(table: &KindTable, group: &str, version: &str) -> Vec<Arc<Definition>> {
    let mut list: Vec<_> = table.all().iter().filter(|d| d.group == group && d.version == version).cloned().collect();
    list.sort_by(|a, b| a.plural.cmp(&b.plural));
    list
}

/// `APIResourceList` of one group version.
fn resources(table: &KindTable, group: &str, version: &str) -> Option<Value> {
    let definitions = of_version(table, group, version);
    if definitions.is_empty() {
        return None;
    }
    let mut list = Vec::new();
    for row in definitions.iter().flat_map(|d| rows(d)) {
        let d = row.definition;
        let top = row.subresource.is_empty();
        let name = if top { d.plural.clone() } else { format!("{}/{}", d.plural, row.subresource) };
        let mut resource = json!({
            "name": name, "singularName": if top { d.singular.as_str() } else { "" },
            "namespaced": d.namespaced(), "kind": row.object.2, "verbs": row.verbs,
        });
        if (row.object.0.as_str(), row.object.1.as_str()) != (group, version) {
            if !row.object.0.is_empty() {
                resource["group"] = json!(row.object.0);
            }
            resource["version"] = json!(row.object.1);
        }
        if top {
            if !d.short_names.is_empty() {
                resource["shortNames"] = json!(d.short_names);
            }
            if !d.categories.is_empty() {
                resource["categories"] = json!(d.categories);
            }
            if d.verbs.iter().any(|v| v == "watch") {
                let hash = Sha256::digest(format!("{}/{}/{}", d.storage.0, d.storage.1, d.kind));
                use base64::Engine as _;
                resource["storageVersionHash"] = json!(base64::engine::general_purpose::STANDARD.encode(&hash[..8]));
            }
        }
        list.push(resource);
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut document = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": list});
    // Upstream's document of the core group does not say it.
    if !group.is_empty() {
        document["apiVersion"] = json!("v1");
    }
    Some(document)
}

/// The version of `apidiscovery.k8s.io` that the best usable clause of `Accept` names; `None` for the old documents.
fn aggregated_version(known: &[Encoding], headers: &HeaderMap) -> Option<&'static str> {
    for clause in accept::clauses(headers) {
        let of = |wanted| clause.parameters().find(|(name, _)| *name == wanted).map(|(_, value)| value);
        let taken = known.iter().any(|encoding| clause.takes(encoding.media_type()));
        match (of("g"), of("v"), of("as")) {
            _ if !taken => {}
            (None, None, None) => return None,
            (Some("apidiscovery.k8s.io"), Some("v2"), Some("APIGroupDiscoveryList")) => return Some("v2"),
            (Some("apidiscovery.k8s.io"), Some("v2beta1"), Some("APIGroupDiscoveryList")) => return Some("v2beta1"),
            _ => {}
        }
    }
    None
}

/// `APIGroupDiscoveryList` with everything in it.
fn aggregate(call: &Call, version: &'static str, core_group: bool) -> Response {
    let served = Served::of(&call.state);
    let of = |Listed { group, versions }: Listed| {
        let entry = |version: &String| match served.registrations.find(&group, version) {
            Some(registration) => told::entry(registration, call.state.aggregator.told(&registration.name).as_ref()),
            None => discovered_version(&served.table, &group, version),
        };
        let versions: Vec<Value> = versions.iter().map(entry).collect();
        json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
    };
    let items: Vec<Value> = served.groups().into_iter().filter(|l| l.group.is_empty() == core_group).map(of).collect();
    let document = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {}, "items": items,
    });
    let document = encode::text(&schema::of_kind("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList"), &document);
    let hash = base16ct::upper::encode_string(&Sha512::digest(&document));
    let etag = format!("\"{hash}\"");
    let known = call.headers.get(header::IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == etag.as_bytes());
    let mut response = respond::json(StatusCode::OK, document);
    if known {
        response = Response::new(crate::http::body::Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let media = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
    for (name, value) in [(header::CONTENT_TYPE, media), (header::ETAG, etag)] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    response.headers_mut().append(header::VARY, HeaderValue::from_static("Accept"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    response
}

fn discovered_version(table: &KindTable, group: &str, version: &str) -> Value {
    let kind = |o: &(String, String, String)| json!({"group": o.0, "version": o.1, "kind": o.2});
    let resource = |d: &Arc<Definition>| {
        let rows = rows(d);
        let mut resource = Map::new();
        resource.insert("resource", json!(d.plural));
        resource.insert("responseKind", kind(&rows[0].object));
        resource.insert("scope", json!(if d.namespaced() { "Namespaced" } else { "Cluster" }));
        resource.insert("singularResource", json!(d.singular));
        resource.insert("verbs", json!(rows[0].verbs));
        if !d.short_names.is_empty() {
            resource.insert("shortNames", json!(d.short_names));
        }
        if !d.categories.is_empty() {
            resource.insert("categories", json!(d.categories));
        }
        if rows.len() > 1 {
            let sub =
                |r: &Row<'_>| json!({"subresource": r.subresource, "responseKind": kind(&r.object), "verbs": r.verbs});
            resource.insert("subresources", rows[1..].iter().map(sub).collect());
        }
        Value::Object(resource)
    };
    let list: Vec<Value> = of_version(table, group, version).iter().map(resource).collect();
    json!({"version": version, "resources": list, "freshness": "Current"})
}

/// The paths of the groups and versions.
pub fn paths(state: &State) -> Vec<String> {
    let mut paths = ["/api", "/apis", "/apis/"].map(ToOwned::to_owned).to_vec();
    for Listed { group, versions } in Served::of(state).groups() {
        let place = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        paths.extend(versions.iter().map(|v| format!("{place}/{v}")));
        paths.extend((!group.is_empty()).then_some(place));
    }
    paths
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::{User, http::body::Body, tests::assembled::Talk};

    #[tokio::test(start_paused = true)]
    async fn the_server_tells_its_own_address() {
        let talk = Talk::start().await;
        let request = Request::get("/api")
            .header("host", "elsewhere:1")
            .extension(Arc::new(User::new("root", ["system:masters"]).authenticated()));
        let answer = talk.0.handle(request.body(Body::empty()).unwrap()).await;
        let document: Value =
            serde_json::from_slice(&answer.into_body().collect(1 << 16).await.unwrap()).expect("it is JSON");
        let told = json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": "192.168.0.1:6443"}]);
        assert_eq!(document["serverAddressByClientCIDRs"], told);
    }
}

//! Discovery: which groups, versions and resources there are, in the old documents and in the aggregated one.

use std::sync::Arc;

use api::{
    Value,
    kind::{Definition, KindTable, group::GROUPS},
};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, json};
use sha2::{Digest, Sha512};

use crate::{call::Call, http::body::Response, http::respond};

/// Groups with their versions, the preferred one first.
fn groups(table: &KindTable) -> Vec<(String, Vec<String>)> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for known in GROUPS {
        let served = |v: &&(&str, i32)| table.all().iter().any(|d| d.group == known.name && d.version == v.0);
        let versions: Vec<String> = known.versions.iter().filter(served).map(|v| v.0.to_owned()).collect();
        if !versions.is_empty() {
            groups.push((known.name.to_owned(), versions));
        }
    }
    for definition in table.all() {
        match groups.iter_mut().find(|(group, _)| *group == definition.group) {
            Some((_, versions)) if versions.contains(&definition.version) => {}
            Some((_, versions)) => versions.push(definition.version.clone()),
            None => groups.push((definition.group.clone(), vec![definition.version.clone()])),
        }
    }
    groups
}

/// Answers `/api`, `/apis` and what is below them.
pub fn answer(call: &Call) -> Option<Response> {
    let table = &call.state.objects.kinds.table();
    let parts: Vec<&str> = call.info.path.trim_matches('/').split('/').collect();
    let accept = call.header(header::ACCEPT);
    let aggregated = || aggregated_version(accept);
    let document = match parts.as_slice() {
        ["api"] => match aggregated() {
            Some(version) => return Some(aggregate(call, version, true)),
            None => json!({
                "kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host(call)}],
            }),
        },
        ["apis"] => match aggregated() {
            Some(version) => return Some(aggregate(call, version, false)),
            None => {
                let list = groups(table).into_iter().filter(|(g, _)| !g.is_empty()).map(|(g, v)| group(&g, &v, false));
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list.collect::<Vec<_>>()})
            }
        },
        ["api", version] => resources(table, "", version)?,
        ["apis", name] => {
            let (name, versions) = groups(table).into_iter().find(|(g, _)| !g.is_empty() && g == name)?;
            group(&name, &versions, true)
        }
        ["apis", group, version] => resources(table, group, version)?,
        _ => return None,
    };
    Some(respond::value(StatusCode::OK, &document))
}

fn host(call: &Call) -> String {
    call.header(header::HOST).to_owned()
}

fn group(name: &str, versions: &[String], alone: bool) -> Value {
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
    let mut rows = vec![Row { definition, subresource: "", object: own(), verbs: definition.verbs.clone() }];
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
    rows[1..].sort_by_key(|r| r.subresource);
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
                let hash = Sha512::digest(format!("{}/{}/{}", d.storage.0, d.storage.1, d.kind));
                use base64::Engine as _;
                resource["storageVersionHash"] = json!(base64::engine::general_purpose::STANDARD.encode(&hash[..8]));
            }
        }
        list.push(resource);
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}))
}

/// The version of `apidiscovery.k8s.io` that the first usable clause of `Accept` names; `None` for the old documents.
fn aggregated_version(accept: &str) -> Option<&'static str> {
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        if parts.next() != Some("application/json") {
            continue;
        }
        let params: Vec<&str> = parts.collect();
        if !params.contains(&"as=APIGroupDiscoveryList") {
            return None;
        }
        if params.contains(&"g=apidiscovery.k8s.io") {
            for version in ["v2", "v2beta1"] {
                if params.contains(&format!("v={version}").as_str()) {
                    return Some(version);
                }
            }
        }
    }
    None
}

/// `APIGroupDiscoveryList` with everything in it.
fn aggregate(call: &Call, version: &'static str, core_group: bool) -> Response {
    let table = &call.state.objects.kinds.table();
    let of = |(group, versions): (String, Vec<String>)| {
        let versions: Vec<Value> = versions.iter().map(|v| discovered_version(table, &group, v)).collect();
        json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
    };
    let items: Vec<Value> = groups(table).into_iter().filter(|(g, _)| g.is_empty() == core_group).map(of).collect();
    let document = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {}, "items": items,
    })
    .to_string();
    let hash: String = Sha512::digest(document.as_bytes()).iter().map(|b| format!("{b:02X}")).collect();
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
        resource.insert("resource".into(), json!(d.plural));
        resource.insert("responseKind".into(), kind(&rows[0].object));
        resource.insert("scope".into(), json!(if d.namespaced() { "Namespaced" } else { "Cluster" }));
        resource.insert("singularResource".into(), json!(d.singular));
        resource.insert("verbs".into(), json!(d.verbs));
        if !d.short_names.is_empty() {
            resource.insert("shortNames".into(), json!(d.short_names));
        }
        if !d.categories.is_empty() {
            resource.insert("categories".into(), json!(d.categories));
        }
        if rows.len() > 1 {
            let sub =
                |r: &Row<'_>| json!({"subresource": r.subresource, "responseKind": kind(&r.object), "verbs": r.verbs});
            resource.insert("subresources".into(), rows[1..].iter().map(sub).collect());
        }
        Value::Object(resource)
    };
    let list: Vec<Value> = of_version(table, group, version).iter().map(resource).collect();
    json!({"version": version, "resources": list, "freshness": "Current"})
}

/// The paths that `/` lists.
pub fn paths(table: &KindTable) -> Value {
    let mut paths = vec![
        "/.well-known/openid-configuration".to_owned(),
        "/api".to_owned(),
        "/api/v1".to_owned(),
        "/apis".to_owned(),
    ];
    for (group, versions) in groups(table).into_iter().filter(|(g, _)| !g.is_empty()) {
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|v| format!("/apis/{group}/{v}")));
    }
    let rest =
        ["/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/openid/v1/jwks", "/readyz", "/version"];
    paths.extend(rest.map(ToOwned::to_owned));
    paths.sort_unstable();
    json!({"paths": paths})
}

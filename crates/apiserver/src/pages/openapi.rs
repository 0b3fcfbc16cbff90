//! `/openapi/v2` and `/openapi/v3`: made on the first request, then kept. The kinds of other API servers are in them too; their
//! own documents of version 3 are passed on by `special/aggregated.rs`.

use std::{collections::HashMap, sync::Arc};

use api::{
    Value,
    features::Features,
    kind::{Definition, KindTable},
    rules::url,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use json::json;
use parking_lot::Mutex;
use sha2::{Digest, Sha512};

use crate::{
    aggregator::{Aggregator, openapi::merge},
    call::Call,
    http::{
        body::{Body, Response},
        encoding::accept::{self, Clause},
        respond,
    },
};

/// Documents that were asked for.
#[derive(Default)]
pub struct Documents {
    features: Features,
    kept: Mutex<Kept>,
}

/// Bytes and entity tag of each document, made from one picture of the kinds and one state of what other servers told.
#[derive(Default)]
struct Kept {
    table: Option<Arc<KindTable>>,
    generation: u64,
    documents: HashMap<String, (Bytes, String)>,
}

impl Documents {
    pub fn new(features: Features) -> Self {
        Documents { features, kept: Mutex::default() }
    }

    /// The document under a name, made if it is not there yet.
    fn get(
        &self,
        (table, generation): (&Arc<KindTable>, u64),
        name: &str,
        make: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Option<(Bytes, String)> {
        let mut kept = self.kept.lock();
        if !kept.table.as_ref().is_some_and(|t| Arc::ptr_eq(t, table)) || kept.generation != generation {
            *kept = Kept { table: Some(table.clone()), generation, documents: HashMap::new() };
        }
        if let Some(document) = kept.documents.get(name) {
            return Some(document.clone());
        }
        let bytes = Bytes::from(make()?);
        let hash = base16ct::upper::encode_string(&Sha512::digest(&bytes));
        let document = (bytes, format!("\"{hash}\""));
        kept.documents.insert(name.to_owned(), document.clone());
        Some(document)
    }
}

fn text(document: &Value) -> Vec<u8> {
    document.to_string().into_bytes()
}

/// The document of everything, version 2.
fn v2(aggregator: &Aggregator, served: &[Arc<Definition>], features: Features) -> Value {
    let mut document = api::openapi::v2(served, features);
    for registration in aggregator.table().passed_on() {
        if let Some((_, part)) = aggregator.told(&registration.name).and_then(|told| told.v2) {
            merge(&mut document, &part);
        }
    }
    document
}

/// The places of the documents of version 3.
fn v3_index(aggregator: &Aggregator, served: &[Arc<Definition>], features: Features) -> Value {
    let mut index = api::openapi::v3_index(served, features);
    for registration in aggregator.table().passed_on() {
        let path = registration.path();
        if let Some(hash) = aggregator.told(&registration.name).and_then(|told| told.v3) {
            let url = format!("/openapi/v3{path}?hash={hash}");
            index["paths"][path.trim_start_matches('/')] = json!({"serverRelativeURL": url});
        }
    }
    index
}

/// The forms of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Protobuf,
}

/// The form that a client likes best of those that a document has.
fn chosen(headers: &HeaderMap, protobuf: &[&str]) -> Option<Form> {
    let known = std::iter::once(&"application/json").chain(protobuf);
    let form = |media: &str| if media == "application/json" { Form::Json } else { Form::Protobuf };
    let taken = |clause: &Clause<'_>| known.clone().find(|media| clause.takes(media)).map(|media| form(media));
    accept::clauses(headers).iter().find_map(taken)
}

/// The group and version of a document below `openapi/v3`.
fn part(path: &str) -> Option<(&str, &str)> {
    match path.strip_prefix("openapi/v3/")?.split('/').collect::<Vec<_>>().as_slice() {
        ["api", version] => Some(("", version)),
        ["apis", group, version] => Some((group, version)),
        _ => None,
    }
}

/// Answers `/openapi/v2`, `/openapi/v3` and the documents below it.
pub fn answer(call: &Call, documents: &Documents) -> Option<Response> {
    let path = call.info.path.trim_matches('/');
    let table = call.state.objects.kinds.table();
    let aggregator = &*call.state.aggregator;
    let registrations = aggregator.table();
    let all: Vec<_> =
        table.all().iter().filter(|d| registrations.find(&d.group, &d.version).is_none()).cloned().collect();
    let (all, features) = (&all[..], documents.features);
    let table = (&table, aggregator.generation());
    let (protobuf, returned) = match path {
        "openapi/v2" => (api::openapi::V2_PROTOBUF, api::openapi::V2_PROTOBUF_RETURNED),
        _ => (api::openapi::V3_PROTOBUF, api::openapi::V3_PROTOBUF_RETURNED),
    };
    // The documents that are served here are known before the client is told that it has no form that it takes.
    let part = match path {
        "openapi/v2" | "openapi/v3" => ("", ""),
        other => {
            part(other).filter(|(group, version)| all.iter().any(|d| d.group == *group && d.version == *version))?
        }
    };
    // The index is in JSON, whatever is asked for.
    let form = if path == "openapi/v3" { Some(Form::Json) } else { chosen(&call.headers, &protobuf) };
    let Some(form) = form else { return Some(empty(StatusCode::NOT_ACCEPTABLE)) };
    let mut place = None;
    let (bytes, etag) = match path {
        "openapi/v2" if form == Form::Protobuf => {
            documents.get(table, "v2 protobuf", || Some(api::openapi::v2_protobuf(&v2(aggregator, all, features))))?
        }
        "openapi/v2" => documents.get(table, "v2", || Some(text(&v2(aggregator, all, features))))?,
        "openapi/v3" => documents.get(table, "v3", || Some(text(&v3_index(aggregator, all, features))))?,
        other => {
            let (group, version) = part;
            if url::query_value(&call.query, "hash").is_some() {
                place = Some(api::openapi::v3_place(all, group, version, features)?);
            }
            let document = || api::openapi::v3(all, group, version, features);
            match form {
                Form::Json => documents.get(table, other, || document().map(|document| text(&document)))?,
                Form::Protobuf => documents
                    .get(table, &format!("{other} protobuf"), || document().map(|d| api::openapi::v3_protobuf(&d)))?,
            }
        }
    };
    // A hash that was right once leads to the document as it is now.
    let hash = |query: &str| url::query_value(query, "hash");
    let old = place.as_deref().filter(|place| hash(url::query(place)) != hash(&call.query));
    if let Some(place) = old.and_then(|place| HeaderValue::from_str(place).ok()) {
        let mut moved = empty(StatusCode::MOVED_PERMANENTLY);
        moved.headers_mut().insert(header::LOCATION, place);
        return Some(moved);
    }
    let known = call.headers.get(header::IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == etag.as_bytes());
    let mut response = if known { empty(StatusCode::NOT_MODIFIED) } else { respond::json(StatusCode::OK, bytes) };
    let headers = response.headers_mut();
    let media = if form == Form::Protobuf { returned } else { "application/json" };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(header::ETAG, etag);
    }
    headers.append(header::VARY, HeaderValue::from_static("Accept"));
    // A document asked for by its hash never changes.
    if place.is_some() {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        let year = clock::Duration::from_secs(365 * 24 * 3600);
        let later = clock::now().checked_add(year).unwrap_or(clock::Timestamp::MAX);
        if let Ok(later) = HeaderValue::from_str(&later.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()) {
            headers.insert(header::EXPIRES, later);
        }
    }
    Some(response)
}

fn empty(code: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = code;
    response
}

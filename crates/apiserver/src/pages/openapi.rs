//! `/openapi/v2` and `/openapi/v3`: made on the first request, then kept. The kinds of other API servers are in them too; their
//! own documents of version 3 are passed on by `special/aggregated.rs`.

use std::{collections::HashMap, sync::Arc};

use api::{
    Value,
    kind::{Definition, KindTable},
};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use json::json;
use parking_lot::Mutex;
use sha2::{Digest, Sha512};

use crate::{
    aggregator::{Aggregator, openapi::merge},
    call::Call,
    http::{body::Body, body::Response, respond},
};

/// Documents that were asked for.
#[derive(Default)]
pub struct Documents {
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
fn v2(aggregator: &Aggregator, served: &[Arc<Definition>]) -> Value {
    let mut document = api::openapi::v2(served);
    for registration in aggregator.table().passed_on() {
        if let Some((_, part)) = aggregator.told(&registration.name).and_then(|told| told.v2) {
            merge(&mut document, &part);
        }
    }
    document
}

/// The places of the documents of version 3.
fn v3_index(aggregator: &Aggregator, served: &[Arc<Definition>]) -> Value {
    let mut index = api::openapi::v3_index(served);
    for registration in aggregator.table().passed_on() {
        let path = registration.path();
        if let Some(hash) = aggregator.told(&registration.name).and_then(|told| told.v3) {
            let url = format!("/openapi/v3{path}?hash={hash}");
            index["paths"][path.trim_start_matches('/')] = json!({"serverRelativeURL": url});
        }
    }
    index
}

/// Answers `/openapi/v2`, `/openapi/v3` and the documents below it.
pub fn answer(call: &Call, documents: &Documents) -> Option<Response> {
    let path = call.info.path.trim_matches('/');
    let table = call.state.objects.kinds.table();
    let aggregator = &*call.state.aggregator;
    let registrations = aggregator.table();
    let all: Vec<_> =
        table.all().iter().filter(|d| registrations.find(&d.group, &d.version).is_none()).cloned().collect();
    let all = &all[..];
    let table = (&table, aggregator.generation());
    let accept = call.header(header::ACCEPT);
    let ((bytes, etag), media) = match path {
        "openapi/v2" if accept.contains(api::openapi::V2_PROTOBUF_ACCEPTED) => {
            let make = || Some(api::openapi::v2_protobuf(&v2(aggregator, all)));
            (documents.get(table, "v2 protobuf", make)?, api::openapi::V2_PROTOBUF_RETURNED)
        }
        "openapi/v2" => (documents.get(table, "v2", || Some(text(&v2(aggregator, all))))?, "application/json"),
        "openapi/v3" => (documents.get(table, "v3", || Some(text(&v3_index(aggregator, all))))?, "application/json"),
        other => {
            let rest: Vec<&str> = other.strip_prefix("openapi/v3/")?.split('/').collect();
            let (group, version) = match rest.as_slice() {
                ["api", version] => ("", *version),
                ["apis", group, version] => (*group, *version),
                _ => return None,
            };
            let make = || api::openapi::v3(all, group, version).map(|document| text(&document));
            (documents.get(table, other, make)?, "application/json")
        }
    };
    let known = call.headers.get(header::IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == etag.as_bytes());
    let mut response = if known { Response::new(Body::empty()) } else { respond::json(StatusCode::OK, bytes) };
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(header::ETAG, etag);
    }
    headers.append(header::VARY, HeaderValue::from_static("Accept"));
    // A document asked for by its hash never changes.
    if call.query.contains("hash=") {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    Some(response)
}

//! `/openapi/v2` and `/openapi/v3`: made on the first request, then kept.

use std::{collections::HashMap, sync::Arc};

use api::{Value, kind::KindTable};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use sha2::{Digest, Sha512};

use crate::{
    call::Call,
    http::{body::Body, body::Response, respond},
};

/// Documents that were asked for.
#[derive(Default)]
pub struct Documents {
    kept: Mutex<Kept>,
}

/// Bytes and entity tag of each document, made from one picture of the kinds.
#[derive(Default)]
struct Kept {
    table: Option<Arc<KindTable>>,
    documents: HashMap<String, (Bytes, String)>,
}

impl Documents {
    /// The document under a name, made if it is not there yet.
    fn get(
        &self,
        table: &Arc<KindTable>,
        name: &str,
        make: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Option<(Bytes, String)> {
        let mut kept = self.kept.lock();
        if !kept.table.as_ref().is_some_and(|t| Arc::ptr_eq(t, table)) {
            *kept = Kept { table: Some(table.clone()), documents: HashMap::new() };
        }
        if let Some(document) = kept.documents.get(name) {
            return Some(document.clone());
        }
        let bytes = Bytes::from(make()?);
        let hash: String = Sha512::digest(&bytes).iter().map(|b| format!("{b:02X}")).collect();
        let document = (bytes, format!("\"{hash}\""));
        kept.documents.insert(name.to_owned(), document.clone());
        Some(document)
    }
}

fn text(document: &Value) -> Vec<u8> {
    document.to_string().into_bytes()
}

/// Answers `/openapi/v2`, `/openapi/v3` and the documents below it.
pub fn answer(call: &Call, documents: &Documents) -> Option<Response> {
    let path = call.info.path.trim_matches('/');
    let table = call.state.objects.kinds.table();
    let all = table.all();
    let accept = call.header(header::ACCEPT);
    let ((bytes, etag), media) = match path {
        "openapi/v2" if accept.contains(api::openapi::V2_PROTOBUF_ACCEPTED) => {
            let make = || Some(api::openapi::v2_protobuf(&api::openapi::v2(all)));
            (documents.get(&table, "v2 protobuf", make)?, api::openapi::V2_PROTOBUF_RETURNED)
        }
        "openapi/v2" => (documents.get(&table, "v2", || Some(text(&api::openapi::v2(all))))?, "application/json"),
        "openapi/v3" => (documents.get(&table, "v3", || Some(text(&api::openapi::v3_index(all))))?, "application/json"),
        other => {
            let rest: Vec<&str> = other.strip_prefix("openapi/v3/")?.split('/').collect();
            let (group, version) = match rest.as_slice() {
                ["api", version] => ("", *version),
                ["apis", group, version] => (*group, *version),
                _ => return None,
            };
            let make = || api::openapi::v3(all, group, version).map(|document| text(&document));
            (documents.get(&table, other, make)?, "application/json")
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

//! The forms in which a client can have an object: as it is, as a row of a Table, or its metadata alone.

use std::io::Write as _;

use api::{
    Value,
    codec::{self, encode, protobuf},
    kind::Definition,
    schema::{self, Type},
    status::StatusError,
    validation::field::{FieldError, Path},
};
use bytes::Bytes;
use http::HeaderMap;
use json::json;
use store::{Entry, Revision};

use crate::{
    http::{
        encoding::{
            Encoding,
            accept::{self, Clause},
            binary, cbor, not_acceptable,
        },
        pieces::Pieces,
    },
    storage::object,
};

/// The names of the two forms of metadata alone.
const METADATA: &str = "PartialObjectMetadata";
const METADATA_LIST: &str = "PartialObjectMetadataList";

/// The object that comes with each row of a Table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Include {
    None,
    #[default]
    Metadata,
    Object,
}

impl Include {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "None" => Include::None,
            "" | "Metadata" => Include::Metadata,
            "Object" => Include::Object,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    Object,
    Table(Include),
    Metadata,
}

/// The form asked for, the version of `meta.k8s.io` it is in, and its encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    pub form: Form,
    pub meta_version: &'static str,
    pub encoding: Encoding,
}

impl View {
    pub const OBJECT: View = View { form: Form::Object, meta_version: "v1", encoding: Encoding::Json };

    /// The view that the `Accept` header asks for among the encodings that the server knows, the best alternative that it can make
    /// of a kind; without one, of a page about the API.
    pub fn negotiate(
        known: &[Encoding],
        headers: &HeaderMap,
        include: &str,
        of: Option<&Definition>,
    ) -> Result<View, StatusError> {
        Self::choose(known, headers, include, of, "").map(|(view, _)| view)
    }

    /// The view of one object. Its metadata are no list.
    pub fn negotiate_one(
        known: &[Encoding],
        headers: &HeaderMap,
        include: &str,
        of: &Definition,
    ) -> Result<View, StatusError> {
        match Self::choose(known, headers, include, Some(of), METADATA_LIST)? {
            (_, Some(METADATA_LIST)) => Err(StatusError::not_acceptable(format!(
                "you requested {METADATA_LIST}, but the requested object is not a list ({})",
                go_type(of, &of.kind)
            ))),
            (view, _) => Ok(view),
        }
    }

    /// The view of a list. Its metadata are no object.
    pub fn negotiate_list(
        known: &[Encoding],
        headers: &HeaderMap,
        include: &str,
        of: &Definition,
    ) -> Result<View, StatusError> {
        match Self::choose(known, headers, include, Some(of), METADATA)? {
            (_, Some(METADATA)) => Err(StatusError::not_acceptable(format!(
                "you requested {METADATA}, but the requested object is a list ({})",
                go_type(of, &of.list_kind)
            ))),
            (view, _) => Ok(view),
        }
    }

    /// The view that is asked for, with the name of its form where that is one of metadata. The form `unfit` is taken only where
    /// there is no other.
    fn choose(
        known: &[Encoding],
        headers: &HeaderMap,
        include: &str,
        of: Option<&Definition>,
        unfit: &str,
    ) -> Result<(View, Option<&'static str>), StatusError> {
        if accept::is_usual(headers) {
            return Ok((View::OBJECT, None));
        }
        let clauses = accept::clauses(headers);
        let read = |clause: &Clause<'_>| {
            let taken = known.iter().filter(|encoding| clause.takes(encoding.media_type()));
            taken.copied().find_map(|encoding| Self::read(encoding, clause, include, of))
        };
        // A client may name the form of an object and that of a list for whichever it gets.
        let fits = |(_, named): &(View, Option<&'static str>)| *named != Some(unfit);
        let found = clauses.iter().filter_map(read).find(fits).or_else(|| clauses.iter().find_map(read));
        let (view, named) = found.ok_or_else(|| not_acceptable(known, false))?;
        if matches!(view.form, Form::Table(_)) && Include::parse(include).is_none() {
            let known = "must be 'Metadata', 'Object', 'None', or empty";
            let error = FieldError::invalid(&Path::new("includeObject"), include, known);
            return Err(StatusError::bad_request(format!("Unable to convert to Table as requested: {error}")));
        }
        Ok((view, named))
    }

    /// The view that the `Accept` header of a watch asks for: only some encodings can be streamed.
    pub fn negotiate_watch(
        known: &[Encoding],
        headers: &HeaderMap,
        include: &str,
        of: &Definition,
    ) -> Result<View, StatusError> {
        let view = Self::negotiate_one(known, headers, include, of)?;
        if view.encoding.is_streamed() { Ok(view) } else { Err(not_acceptable(known, true)) }
    }

    /// The view that a clause asks for in one of its encodings, if there is such a view; see [`View::choose`].
    fn read(
        encoding: Encoding,
        clause: &Clause<'_>,
        include: &str,
        of: Option<&Definition>,
    ) -> Option<(View, Option<&'static str>)> {
        let mut named = None;
        let (mut kind, mut version, mut group) = (None, None, None);
        for (name, value) in clause.parameters() {
            match name {
                "as" => kind = Some(value),
                "v" => version = Some(value),
                "g" => group = Some(value),
                "stream" if !(value.is_empty() || value == "watch" && encoding.is_streamed()) => return None,
                "sv" if !matches!(value, "" | "v1") => return None,
                _ => {}
            }
        }
        let binary = encoding == Encoding::Protobuf;
        let form = match (group, version, kind, of) {
            (None, None, None, of) => {
                // Objects of custom kinds have no messages.
                let has = |d: &Definition| !d.is_custom() && protobuf::has(&d.schema);
                return of.is_none_or(|d| !binary || has(d)).then_some((View { encoding, ..View::OBJECT }, None));
            }
            (Some("meta.k8s.io"), Some("v1" | "v1beta1"), Some(kind), Some(_)) => match kind {
                "Table" if !binary => Form::Table(Include::parse(include).unwrap_or_default()),
                _ => {
                    named = Some(*[METADATA, METADATA_LIST].iter().find(|known| **known == kind)?);
                    Form::Metadata
                }
            },
            (Some("apidiscovery.k8s.io"), Some("v2" | "v2beta1"), Some("APIGroupDiscoveryList"), None) => Form::Object,
            _ => return None,
        };
        Some((View { form, meta_version: if version == Some("v1beta1") { "v1beta1" } else { "v1" }, encoding }, named))
    }
}

/// The type that upstream's server has for a kind, or its list.
fn go_type(of: &Definition, kind: &str) -> String {
    of.gvk().internal_type(kind, of.is_custom())
}

/// Where an object stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Alone,
    InList,
    InEvent,
}

/// Appends one stored object in this view. In a Table's list this is a row, outside a list a whole Table.
pub fn write(out: &mut Vec<u8>, definition: &Definition, view: View, entry: &Entry, item: bool) {
    write_at(out, definition, view, entry, entry.modified, if item { Place::InList } else { Place::Alone });
}

/// Appends one stored object in this view to text that is sent piece by piece.
pub fn write_pieces(pieces: &mut Pieces, definition: &Definition, view: View, entry: &Entry, item: bool) {
    if view.encoding == Encoding::Cbor {
        let mut json = Vec::new();
        write(&mut json, definition, view, entry, item);
        let of_item = if view.form == Form::Object { &definition.ty } else { &Type::Any };
        cbor::item(pieces.text(), of_item, &json);
    } else if view.form == Form::Object && !object::reads_through(definition, entry) {
        let at = object::write_head(pieces.text(), &entry.value, entry.modified, is_bare(definition, item));
        pieces.share(entry.value.slice(at..));
    } else {
        write(pieces.text(), definition, view, entry, item);
    }
}

/// Whether an object stands without its kind and apiVersion. Items of lists do, but not those of custom kinds.
fn is_bare(definition: &Definition, item: bool) -> bool {
    item && !definition.is_custom()
}

/// Appends an object as it is stored, with the revision of what happened to it.
fn write_at(out: &mut Vec<u8>, definition: &Definition, view: View, entry: &Entry, revision: Revision, place: Place) {
    let (bytes, item) = (&entry.value, place == Place::InList);
    let shown = || {
        let mut value = object::value(bytes, revision);
        object::convert(definition, &mut value, entry);
        value
    };
    match view.form {
        Form::Object if !object::reads_through(definition, entry) => {
            object::write(out, bytes, revision, is_bare(definition, item));
        }
        Form::Object if definition.is_custom() => out.extend_from_slice(&object::encode_served(definition, &shown())),
        Form::Object => {
            let value = shown();
            let text = object::encode_in_version(definition, &value);
            object::write(out, &text, revision, is_bare(definition, item));
        }
        Form::Metadata => {
            let version = view.meta_version;
            let _ = write!(
                out,
                "{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/{version}\",\"metadata\":"
            );
            if definition.webhook.is_some() || object::is_settled(definition, entry) {
                out.extend_from_slice(&object::metadata(bytes, revision));
            } else {
                out.extend_from_slice(in_order("ObjectMeta", &shown()["metadata"]).as_bytes());
            }
            out.push(b'}');
        }
        Form::Table(include) => {
            let value = shown();
            if item {
                return row_text(out, definition, view, include, &value);
            }
            let metadata = json!({"resourceVersion": revision.to_string()});
            let columns = if place == Place::InEvent { NO_COLUMNS.to_owned() } else { column_text(definition) };
            out.extend_from_slice(table_head(view, &metadata, &columns).as_bytes());
            row_text(out, definition, view, include, &value);
            out.extend_from_slice(b"]}");
        }
    }
}

/// Appends the row of an object.
fn row_text(out: &mut Vec<u8>, definition: &Definition, view: View, include: Include, value: &Value) {
    out.extend_from_slice(b"{\"cells\":");
    Value::Array(definition.strategy.row(value, clock::now())).append_to(out);
    match include {
        Include::None => out.extend_from_slice(b",\"object\":null"),
        Include::Object => {
            out.extend_from_slice(b",\"object\":");
            out.extend_from_slice(&object::encode_served(definition, value));
        }
        Include::Metadata => {
            let version = view.meta_version;
            let head = "\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io";
            let metadata = in_order("ObjectMeta", &value["metadata"]);
            let _ = write!(out, ",\"object\":{{{head}/{version}\",\"metadata\":{metadata}}}");
        }
    }
    out.push(b'}');
}

/// The text of a value of that type of `meta/v1`.
fn in_order(name: &str, value: &Value) -> String {
    let text = encode::text(&schema::of_kind("meta.k8s.io", "v1", name), value);
    String::from_utf8(text).unwrap_or_default()
}

/// Any value that is not stored, such as the answer of a dry run.
pub fn value(definition: &Definition, view: View, value: Value) -> Value {
    let version = view.meta_version;
    match view.form {
        Form::Object => value,
        Form::Metadata => json!({
            "kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": value["metadata"],
        }),
        Form::Table(include) => {
            let metadata = match api::meta::resource_version(&value) {
                "" => json!({}),
                revision => json!({ "resourceVersion": revision }),
            };
            json!({
                "kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": metadata,
                "columnDefinitions": columns(definition), "rows": [row(definition, view, include, value)],
            })
        }
    }
}

/// A list of values that are not stored.
pub fn list(definition: &Definition, view: View, items: Vec<Value>) -> Value {
    let version = format!("meta.k8s.io/{}", view.meta_version);
    match view.form {
        Form::Object => {
            let bare = |mut item: Value| {
                if let Some(fields) = item.as_object_mut() {
                    fields.retain(|name, _| !matches!(name.as_str(), "kind" | "apiVersion"));
                }
                item
            };
            let items: Vec<Value> = items.into_iter().map(bare).collect();
            json!({
                "kind": definition.list_kind, "apiVersion": definition.api_version(), "metadata": {}, "items": items,
            })
        }
        Form::Metadata => {
            let items: Vec<Value> = items.into_iter().map(|item| value(definition, view, item)).collect();
            json!({"kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": {}, "items": items})
        }
        Form::Table(include) => {
            let rows: Vec<Value> = items.into_iter().map(|item| row(definition, view, include, item)).collect();
            json!({
                "kind": "Table", "apiVersion": version, "metadata": {},
                "columnDefinitions": columns(definition), "rows": rows,
            })
        }
    }
}

fn row(definition: &Definition, view: View, include: Include, mut value: Value) -> Value {
    let cells = definition.strategy.row(&value, clock::now());
    let mut row = json!({"cells": cells});
    match include {
        Include::None => row["object"] = Value::Null,
        Include::Object => row["object"] = value,
        Include::Metadata => {
            row["object"] = json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": format!("meta.k8s.io/{}", view.meta_version),
                "metadata": value["metadata"].take(),
            });
        }
    }
    row
}

fn columns(definition: &Definition) -> Value {
    definition
        .columns
        .iter()
        .map(|c| json!({"name": c.name, "type": c.kind, "format": c.format, "description": c.description, "priority": c.priority}))
        .collect()
}

/// The columns in a Table of an event: the watcher has them from the first one. See [`with_columns`].
const NO_COLUMNS: &str = "\"columnDefinitions\":null";

fn column_text(definition: &Definition) -> String {
    let columns = columns(definition);
    let each = columns.as_array().into_iter().flatten().map(|column| in_order("TableColumnDefinition", column));
    format!("\"columnDefinitions\":[{}]", each.collect::<Vec<_>>().join(","))
}

/// The text of a Table up to its first row.
fn table_head(view: View, metadata: &Value, columns: &str) -> String {
    let (version, metadata) = (view.meta_version, in_order("ListMeta", metadata));
    format!(
        "{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/{version}\",\"metadata\":{metadata},{columns},\"rows\":["
    )
}

/// The first lines of a watch of Tables, of which the first one tells the columns. All watchers of the same share their events,
/// and each begins with another one.
pub fn with_columns(definition: &Definition, view: View, lines: Bytes) -> Bytes {
    let (none, told) = match view.encoding {
        Encoding::Cbor => {
            let mut none = Vec::new();
            codec::cbor::text(&mut none, "columnDefinitions");
            let mut told = none.clone();
            codec::cbor::append(&mut none, &Type::Any, &Value::Null);
            codec::cbor::append(&mut told, &Type::Any, &columns(definition));
            (none, told)
        }
        _ => (NO_COLUMNS.into(), column_text(definition).into_bytes()),
    };
    let Some(at) = memchr::memmem::find(&lines, &none) else { return lines };
    [&lines[..at], &told, &lines[at + none.len()..]].concat().into()
}

/// The bytes before and after this number of items of a list, in the encoding of the view.
pub fn list_frame(definition: &Definition, view: View, metadata: &Value, items: usize) -> (Vec<u8>, Vec<u8>) {
    let (kind, api_version, last) = match view.form {
        Form::Object => (&*definition.list_kind, definition.api_version(), "items"),
        Form::Metadata => ("PartialObjectMetadataList", format!("meta.k8s.io/{}", view.meta_version), "items"),
        Form::Table(_) => ("Table", format!("meta.k8s.io/{}", view.meta_version), "rows"),
    };
    let columns = matches!(view.form, Form::Table(_)).then(|| columns(definition));
    if view.encoding == Encoding::Cbor {
        let more: Vec<_> = columns.iter().map(|columns| ("columnDefinitions", columns)).collect();
        return (codec::cbor::list_head(kind, &api_version, metadata, &more, last, items), Vec::new());
    }
    if view.form == Form::Object && definition.is_custom() {
        let head = format!("{{\"apiVersion\":\"{api_version}\",\"items\":[");
        return (head.into(), format!("],\"kind\":\"{kind}\",\"metadata\":{metadata}}}\n").into());
    }
    if columns.is_some() {
        return (table_head(view, metadata, &column_text(definition)).into(), b"]}\n".to_vec());
    }
    let metadata = in_order("ListMeta", metadata);
    let head = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\"{last}\":[");
    (head.into(), b"]}\n".to_vec())
}

/// An event of a watch about an object that is there, as text that is sent piece by piece.
pub fn added(pieces: &mut Pieces, definition: &Definition, view: View, entry: &Entry) {
    if matches!(view.encoding, Encoding::Protobuf | Encoding::Cbor) || matches!(view.form, Form::Table(_)) {
        let frame = event(definition, view, "ADDED", entry, entry.modified);
        return pieces.text().extend_from_slice(&frame);
    }
    pieces.text().extend_from_slice(b"{\"type\":\"ADDED\",\"object\":");
    write_pieces(pieces, definition, view, entry, false);
    pieces.text().extend_from_slice(b"}\n");
}

/// One event of a watch. An object that the encoding has no form for is an error instead.
pub fn event(definition: &Definition, view: View, event: &str, entry: &Entry, revision: Revision) -> Vec<u8> {
    let mut out = Vec::with_capacity(entry.value.len() + 96);
    if view.encoding == Encoding::Protobuf {
        write_at(&mut out, definition, view, entry, revision, Place::InEvent);
        return binary::event(event, &out).unwrap_or_else(|misfit| error(view, &misfit));
    }
    if view.encoding == Encoding::Cbor {
        write_at(&mut out, definition, view, entry, revision, Place::InEvent);
        return cbor::event(event, &out);
    }
    let _ = write!(out, "{{\"type\":\"{event}\",\"object\":");
    write_at(&mut out, definition, view, entry, revision, Place::InEvent);
    out.extend_from_slice(b"}\n");
    out
}

/// One event of a watch about a value.
pub fn event_of(encoding: Encoding, event: &str, object: &Value) -> Vec<u8> {
    let object = encode::described(object);
    if encoding == Encoding::Protobuf {
        return binary::event(event, &object).unwrap_or_default();
    }
    if encoding == Encoding::Cbor {
        return cbor::event(event, &object);
    }
    [format!("{{\"type\":\"{event}\",\"object\":").as_bytes(), &object, b"}\n"].concat()
}

/// An error that ends a watch.
pub fn error(view: View, error: &StatusError) -> Vec<u8> {
    let mut status = json!(error.to_status());
    status["metadata"] = json!({});
    event_of(view.encoding, "ERROR", &status)
}

/// A bookmark: only its resourceVersion counts. `initial_end` marks the end of the initial events.
pub fn bookmark(definition: &Definition, view: View, revision: Revision, initial_end: bool) -> Vec<u8> {
    let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
    if initial_end {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let meta = format!("meta.k8s.io/{}", view.meta_version);
    let bare = json!({"kind": definition.kind, "apiVersion": definition.api_version(), "metadata": metadata});
    let of_metadata = || json!({"kind": "PartialObjectMetadata", "apiVersion": meta, "metadata": metadata});
    let object = match view.form {
        Form::Object => bare,
        Form::Metadata => of_metadata(),
        Form::Table(include) => {
            let cells = definition.strategy.row(&bare, clock::now());
            let object = match include {
                Include::Object => bare,
                // A client that asked for no objects hears of this end all the same.
                Include::None if !initial_end => Value::Null,
                _ => of_metadata(),
            };
            json!({
                "kind": "Table", "apiVersion": meta, "metadata": {"resourceVersion": revision.to_string()},
                "columnDefinitions": null, "rows": [{"cells": cells, "object": object}],
            })
        }
    };
    event_of(view.encoding, "BOOKMARK", &object)
}

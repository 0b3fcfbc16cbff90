//! A list in protobuf. Its length stands before it, so that every item is measured before the first one is sent. The items of
//! short lists are kept from then; of long ones no more than those are in memory, and the others are made again, piece by
//! piece as the client takes them.

use std::{sync::Arc, vec};

use api::{
    Value,
    codec::protobuf::{Encoder, Message, items_of},
    kind::Definition,
    status::StatusError,
};
use bytes::Bytes;
use json::json;
use store::Entry;

use crate::{
    http::{
        encoding::binary,
        large,
        pieces::Pieces,
        view::{self, Form, View},
    },
    storage::object,
};

/// Items are kept up to this size in all.
const KEPT: usize = 1 << 20;
/// Measuring makes way for others after this much.
const STEP: usize = 256 << 10;

pub(super) struct BinaryList {
    items: Items,
    size: usize,
    head: Option<Vec<u8>>,
    /// The first items, made already.
    kept: Vec<u8>,
    entries: vec::IntoIter<Entry>,
    tail: Option<Vec<u8>>,
    pieces: Pieces,
}

impl BinaryList {
    /// Measures the items. Many that are large are measured in turn with other large work.
    pub async fn measure(
        definition: Arc<Definition>,
        view: View,
        metadata: &Value,
        entries: Vec<Entry>,
    ) -> Result<Self, StatusError> {
        let [api_version, kind] = match view.form {
            Form::Object => [definition.api_version(), definition.list_kind.clone()],
            _ => [format!("meta.k8s.io/{}", view.meta_version), "PartialObjectMetadataList".to_owned()],
        };
        let item = match view.form {
            Form::Object => Message::of(&definition.schema),
            _ => binary::message(&api_version, "PartialObjectMetadata"),
        };
        let list = binary::message(&api_version, &kind);
        let (Some(item), Some(list)) = (item, list) else {
            return Err(StatusError::internal(format!("{kind} has no message")));
        };
        let stored: usize = entries.iter().map(|entry| entry.value.len()).sum();
        if stored > KEPT {
            large::enter(stored).await?;
        }
        let (json, encoder) = (Vec::new(), Encoder::default());
        let mut items = Items { definition, view, of: item, number: items_of(list), json, encoder };
        let (mut kept, mut kept_items, mut size, mut step) = (Vec::new(), 0, 0, 0);
        for (at, entry) in entries.iter().enumerate() {
            let bytes = items.make(entry)?;
            size += bytes.len();
            if kept_items == at && kept.len() + bytes.len() <= KEPT {
                kept.extend_from_slice(bytes);
                kept_items += 1;
            }
            step += entry.value.len();
            if step > STEP {
                step = 0;
                tokio::task::yield_now().await;
            }
        }
        let text = json!({"metadata": metadata}).to_string();
        let frame = items.encoder.list(list, [&api_version, &kind], text.as_bytes(), size);
        let (head, tail) = frame.map_err(StatusError::internal)?;
        let size = size + head.len() + tail.len();
        let mut entries = entries.into_iter();
        if kept_items > 0 {
            entries.nth(kept_items - 1);
        }
        let pieces = Pieces::default();
        Ok(BinaryList { items, size, head: Some(head), kept, entries, tail: Some(tail), pieces })
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// All of it in one.
    pub fn whole(mut self) -> Bytes {
        while self.add() {}
        self.pieces.whole()
    }

    /// Adds the next part; false when there is none.
    fn add(&mut self) -> bool {
        if let Some(head) = self.head.take() {
            self.pieces.text().extend_from_slice(&head);
            self.pieces.share(std::mem::take(&mut self.kept).into());
        } else if let Some(entry) = self.entries.next() {
            // It could be made when it was measured.
            self.pieces.text().extend_from_slice(self.items.make(&entry).unwrap_or_default());
        } else if let Some(tail) = self.tail.take() {
            self.pieces.text().extend_from_slice(&tail);
        } else {
            return false;
        }
        true
    }
}

impl Iterator for BinaryList {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        while !self.pieces.is_full() && self.add() {}
        self.pieces.take()
    }
}

/// Makes the items of a list.
struct Items {
    definition: Arc<Definition>,
    view: View,
    of: &'static Message,
    number: u32,
    json: Vec<u8>,
    encoder: Encoder,
}

impl Items {
    /// An item with what stands before it.
    fn make(&mut self, entry: &Entry) -> Result<&[u8], StatusError> {
        self.json.clear();
        view::write(&mut self.json, &self.definition, self.view, entry, true);
        self.encoder.field(self.number, self.of, &self.json).map_err(|misfit| {
            let (namespace, name) = object::names(&self.definition, &entry.key);
            let kind = &self.definition.kind;
            StatusError::internal(format!("unable to encode {kind} {namespace}/{name}: {misfit}"))
        })
    }
}

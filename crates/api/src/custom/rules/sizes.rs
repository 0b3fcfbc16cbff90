//! How large the values of a schema can be, and how small they can be written: from the one follows what a rule costs at
//! the most, from the other how often it can be asked in one object.
//! Upstream counterpart: SchemaDeclType of apiserver/pkg/cel/common.

use cel::escaped;
use cel::estimate::Sizes;
use json::Value;

use crate::custom::structural::Structural;

/// The largest request, as estimates take it. It does not follow the server's own bound: which definitions are valid must
/// not depend on that.
const REQUEST_MAX: u64 = 3 * 1024 * 1024;
/// A text is as long as a request without its quotation marks.
const TEXT_MAX: u64 = REQUEST_MAX - 2;

/// The sizes that one place of a schema can have.
pub struct Extent {
    pub sizes: Sizes,
    /// The bytes of its smallest value in JSON.
    least: u64,
}

impl Extent {
    /// How often a value can be in one object, where nothing else bounds that.
    pub fn cardinality(&self) -> u64 {
        REQUEST_MAX / (self.least + 1)
    }

    /// `None` where expressions cannot see what the schema describes. `whole` is for what has kind and metadata of its own.
    pub fn of(schema: &Structural, whole: bool) -> Option<Extent> {
        let limit = |limit: Option<i64>| limit.map(|limit| u64::try_from(limit).unwrap_or(0));
        let length = limit(schema.limits.max_length);
        if schema.int_or_string {
            return Some(scalar(length.map_or(TEXT_MAX, four_bytes), 1));
        }
        Some(match &*schema.ty {
            _ if whole => object(schema, true),
            "array" => {
                let items = schema.items.as_deref()?;
                let items = Extent::of(items, items.embedded)?;
                let most = limit(schema.limits.max_items).unwrap_or((REQUEST_MAX - 2) / (items.least + 1));
                let sizes = Sizes { most, items: Some(Box::new(items.sizes)), ..Sizes::default() };
                Extent { sizes, least: 2 }
            }
            "object" => match schema.values() {
                Some(values) => {
                    let values = Extent::of(values, values.embedded)?;
                    // A key of two marks, a colon, a comma and the smallest value.
                    let most = limit(schema.limits.max_properties).unwrap_or((REQUEST_MAX - 2) / (values.least + 6));
                    // Nothing is known about the length of keys, which upstream takes for none.
                    let keys = Some(Box::default());
                    let sizes = Sizes { most, keys, items: Some(Box::new(values.sizes)), ..Sizes::default() };
                    Extent { sizes, least: 2 }
                }
                None => object(schema, false),
            },
            "string" => match &*schema.shown_format {
                "byte" => scalar(length.unwrap_or(TEXT_MAX), 2),
                "duration" => scalar(32, 3),
                "date" => scalar(12, 12),
                "date-time" => scalar(32, 21),
                _ => scalar(length.map(four_bytes).or_else(|| longest(&schema.allowed)).unwrap_or(TEXT_MAX), 2),
            },
            "boolean" => scalar(0, 4),
            "number" | "integer" => scalar(0, 1),
            _ => return None,
        })
    }
}

fn scalar(most: u64, least: u64) -> Extent {
    Extent { sizes: Sizes { most, ..Sizes::default() }, least }
}

/// Limits count characters, and a request counts bytes.
fn four_bytes(characters: u64) -> u64 {
    characters.saturating_mul(4)
}

fn longest(allowed: &[Value]) -> Option<u64> {
    let lengths = allowed.iter().map(|value| value.as_str().map_or(0, str::len) as u64);
    lengths.max()
}

fn object(schema: &Structural, whole: bool) -> Extent {
    let replaced = whole && !has_metadata(schema);
    let metadata = metadata();
    let own = schema.properties.iter().filter(|(name, _)| !(replaced && metadata.properties.contains_key(name)));
    let added = metadata.properties.iter().filter(|_| replaced);
    let (mut sizes, mut least) = (Sizes::default(), 2);
    for (name, of) in own.chain(added) {
        let Some(extent) = Extent::of(of, of.embedded) else { continue };
        if schema.required.iter().any(|required| **required == **name) && of.default.is_none() {
            least += name.len() as u64 + extent.least + 4;
        }
        if let Some(spelled) = escaped(name) {
            sizes.fields.insert(spelled.into(), extent.sizes);
        }
    }
    Extent { sizes, least }
}

/// The metadata that every object of the API has, as expressions see it.
fn metadata() -> Structural {
    let text = || Structural { ty: "string".into(), ..Structural::default() };
    let object = |properties: Vec<(&str, Structural)>| Structural {
        ty: "object".into(),
        properties: properties.into_iter().map(|(name, of)| (json::Key::of(name), of)).collect(),
        ..Structural::default()
    };
    let names = object(vec![("name", text()), ("generateName", text())]);
    object(vec![("apiVersion", text()), ("kind", text()), ("metadata", names)])
}

/// Whether a schema says all of it itself.
fn has_metadata(schema: &Structural) -> bool {
    let is = |schema: &Structural, name: &str, ty: &str| schema.properties.get(name).is_some_and(|of| &*of.ty == ty);
    let names = |of: &Structural| is(of, "name", "string") && is(of, "generateName", "string");
    is(schema, "kind", "string")
        && is(schema, "apiVersion", "string")
        && is(schema, "metadata", "object")
        && schema.properties.get("metadata").is_some_and(names)
}

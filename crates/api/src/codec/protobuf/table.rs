//! The messages of all built-in kinds, from the generated table `tables/protobuf.tsv`. Reading and writing go by the same
//! table.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use crate::schema::places::Places;

/// One message type; its fields are parsed when first asked for.
pub struct Message {
    /// Without `k8s.io.`.
    pub(super) name: &'static str,
    pub(super) form: Form,
    text: &'static str,
    fields: OnceLock<Box<[Field]>>,
    names: OnceLock<Names>,
    zero: OnceLock<Box<[u8]>>,
}

/// How a message looks in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// An object with the message's fields.
    Fields,
    Quantity,
    Time,
    MicroTime,
    IntOrString,
    /// Any JSON, kept as text.
    Raw,
    /// A list of strings.
    Strings,
    SchemaOrBool,
    SchemaOrArray,
    SchemaOrStrings,
}

#[derive(Clone, Copy)]
pub(super) struct Field {
    pub number: u32,
    pub name: &'static str,
    pub ty: Type,
    pub repeat: Repeat,
    /// Written only when it is set; other fields are written when they are zero too.
    pub optional: bool,
}

/// The fields of a message's JSON object.
pub(super) struct Names {
    pub all: Box<[Named]>,
    places: Places,
}

impl Names {
    /// The place of a name in `all`.
    #[inline]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.places.find(name, |at| self.all[at].name == name)
    }
}

/// The way from a message to one of the fields of its JSON object: through the messages that stand in the same object.
pub(super) struct Named {
    pub name: &'static str,
    pub outer: Box<[(&'static Field, &'static Message)]>,
    pub field: &'static Field,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    One,
    List,
    Map,
    /// A message whose fields stand in the JSON object around it.
    Inline,
}

#[derive(Clone, Copy)]
pub(super) enum Type {
    String,
    Int32,
    Int64,
    Bool,
    Double,
    Bytes,
    Message(&'static Message),
}

static ALL: LazyLock<HashMap<&'static str, Message>> = LazyLock::new(|| {
    let table: &str = include_str!("../../../tables/protobuf.tsv");
    let blocks = table.strip_prefix('=').unwrap_or(table).split("\n=");
    blocks
        .map(|block| {
            let (name, text) = block.split_once('\n').unwrap_or((block, ""));
            let (fields, names, zero) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
            (name, Message { name, form: Form::of(name), text, fields, names, zero })
        })
        .collect()
});

/// A message without fields is not in the table.
static EMPTY: Message = Message {
    name: "",
    form: Form::Fields,
    text: "",
    fields: OnceLock::new(),
    names: OnceLock::new(),
    zero: OnceLock::new(),
};

impl Message {
    /// By the name in the table.
    pub(super) fn named(name: &str) -> Option<&'static Message> {
        ALL.get(name)
    }

    /// By the name of the schema in OpenAPI documents: `io.k8s.api.core.v1.Pod`.
    pub fn of(schema: &str) -> Option<&'static Message> {
        Self::named(&schema.strip_prefix("io.k8s.")?.replace('-', "_"))
    }

    /// The name of the schema in OpenAPI documents.
    pub fn schema(&self) -> String {
        format!("io.k8s.{}", self.name.replace('_', "-"))
    }

    /// In the order of their numbers.
    pub(super) fn fields(&'static self) -> &'static [Field] {
        self.fields.get_or_init(|| {
            let mut fields: Vec<Field> = self.text.lines().filter_map(parse_field).collect();
            fields.sort_by_key(|field| field.number);
            fields.into()
        })
    }

    pub(super) fn by_number(&'static self, number: u32) -> Option<&'static Field> {
        let fields = self.fields();
        fields.binary_search_by_key(&number, |field| field.number).ok().map(|at| &fields[at])
    }

    /// The fields of the JSON object.
    pub(super) fn names(&'static self) -> &'static Names {
        self.names.get_or_init(|| {
            let mut names = Vec::new();
            for field in self.fields() {
                match (field.repeat, field.ty) {
                    (Repeat::Inline, Type::Message(inner)) => names.extend(inner.names().all.iter().map(|within| {
                        let outer = [(field, inner)].into_iter().chain(within.outer.iter().copied()).collect();
                        Named { name: within.name, outer, field: within.field }
                    })),
                    _ => names.push(Named { name: field.name, outer: Box::default(), field }),
                }
            }
            let places = Places::of(names.iter().map(|named| named.name));
            Names { all: names.into(), places }
        })
    }

    /// The bytes of a message whose fields are all zero; `make` makes them once.
    pub(super) fn zero(&'static self, make: impl FnOnce(&'static Message) -> Box<[u8]>) -> &'static [u8] {
        self.zero.get_or_init(|| make(self))
    }

    /// The schema message beside one of its alternatives.
    pub(super) fn props(&self) -> &'static Message {
        let version = if self.name.contains(".v1beta1.") { "v1beta1" } else { "v1" };
        let name = format!("apiextensions_apiserver.pkg.apis.apiextensions.{version}.JSONSchemaProps");
        Self::named(&name).expect("the table has both versions of schemas")
    }
}

impl Form {
    fn of(name: &str) -> Self {
        match name.strip_prefix("apimachinery.pkg.").unwrap_or_default() {
            "api.resource.Quantity" | "api.resource.QuantityValue" => return Form::Quantity,
            "apis.meta.v1.Time" => return Form::Time,
            "apis.meta.v1.MicroTime" => return Form::MicroTime,
            "apis.meta.v1.Verbs" => return Form::Strings,
            "apis.meta.v1.FieldsV1" | "runtime.RawExtension" => return Form::Raw,
            "util.intstr.IntOrString" => return Form::IntOrString,
            _ => {}
        }
        match name.rsplit('.').next().unwrap_or_default() {
            "JSON" => Form::Raw,
            "ExtraValue" => Form::Strings,
            "JSONSchemaPropsOrBool" => Form::SchemaOrBool,
            "JSONSchemaPropsOrArray" => Form::SchemaOrArray,
            "JSONSchemaPropsOrStringArray" => Form::SchemaOrStrings,
            _ => Form::Fields,
        }
    }
}

fn parse_field(line: &'static str) -> Option<Field> {
    let mut columns = line.split('\t');
    let (number, name, code) = (columns.next()?.parse().ok()?, columns.next()?, columns.next()?);
    let (code, optional) = code.strip_suffix('?').map_or((code, false), |code| (code, true));
    let (repeat, code) = match code.as_bytes().first()? {
        b'[' => (Repeat::List, &code[1..]),
        b'{' => (Repeat::Map, &code[1..]),
        b'^' => (Repeat::Inline, code),
        _ => (Repeat::One, code),
    };
    let ty = match code.as_bytes().first()? {
        b's' => Type::String,
        b'i' => Type::Int32,
        b'l' => Type::Int64,
        b'b' => Type::Bool,
        b'd' => Type::Double,
        b'y' => Type::Bytes,
        _ => Type::Message(Message::named(&code[1..]).unwrap_or(&EMPTY)),
    };
    Some(Field { number, name, ty, repeat, optional })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that is misread would be left out, aloud only here.
    #[test]
    fn every_line_of_the_table_is_a_field() {
        for message in ALL.values() {
            assert_eq!(message.fields().len(), message.text.lines().count(), "{}", message.name);
            let mut names: Vec<_> = message.names().all.iter().map(|n| n.name).filter(|n| !n.is_empty()).collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{}: two fields of one name", message.name);
        }
    }
}

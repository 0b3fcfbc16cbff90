//! From the JSON text of an object to the parts of its message, in one pass along the table. Text that needs no
//! translation is not copied.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::codec::base64;

use super::table::{Field, Form, Message, Names, Repeat, Type};

/// The parts of one message, each a node. Nodes that belong together are a chain, the one that comes last on the wire
/// first: messages are written from their end.
pub struct Tree<'j> {
    nodes: Vec<Node<'j>>,
}

pub struct Node<'j> {
    pub number: u32,
    pub part: Part<'j>,
    next: Id,
}

pub enum Part<'j> {
    Varint(u64),
    Double(f64),
    Block(Cow<'j, [u8]>),
    /// Of these fields those that are not in the chain are zero.
    Message {
        fields: &'static [Field],
        last: Id,
    },
    /// Several parts with the number of the list, or the entries of a map.
    List {
        last: Id,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id(u32);

/// The end of a chain.
const END: Id = Id(u32::MAX);

/// The message of an object in JSON text.
pub fn read<'j>(of: &'static Message, json: &'j [u8]) -> serde_json::Result<(Tree<'j>, Id)> {
    let mut tree = Tree { nodes: Vec::with_capacity(json.len() / 24 + 4) };
    // Looked at once: every string of it is text then.
    let json = std::str::from_utf8(json).map_err(serde_json::Error::custom)?;
    let mut text = serde_json::Deserializer::from_str(json);
    let root = ValueSeed { tree: &mut tree, number: 0, ty: Type::Message(of) }.deserialize(&mut text)?;
    text.end()?;
    let root = root.unwrap_or_else(|| tree.zero(0, Type::Message(of)));
    Ok((tree, root))
}

/// The message whose fields are all zero.
pub fn zero(of: &'static Message) -> (Tree<'static>, Id) {
    let mut tree = Tree { nodes: Vec::new() };
    let root = tree.zero(0, Type::Message(of));
    (tree, root)
}

impl<'j> Tree<'j> {
    pub fn node(&self, id: Id) -> &Node<'j> {
        &self.nodes[id.0 as usize]
    }

    /// The nodes of a chain.
    pub fn chain(&self, first: Id) -> impl Iterator<Item = &Node<'j>> {
        let at = |id: Id| (id != END).then(|| self.node(id));
        std::iter::successors(at(first), move |node| at(node.next))
    }

    fn add(&mut self, number: u32, part: Part<'j>) -> Id {
        let id = Id(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(Node { number, part, next: END });
        id
    }

    fn block(&mut self, number: u32, text: impl Into<Cow<'j, [u8]>>) -> Id {
        self.add(number, Part::Block(text.into()))
    }

    fn empty_message(&mut self, number: u32, of: &'static Message) -> Id {
        self.add(number, Part::Message { fields: of.fields(), last: END })
    }

    /// A message of exactly these parts, the last one first.
    fn message(&mut self, number: u32, parts: &[Id]) -> Id {
        for pair in parts.windows(2) {
            self.nodes[pair[0].0 as usize].next = pair[1];
        }
        self.add(number, Part::Message { fields: &[], last: parts.first().copied().unwrap_or(END) })
    }

    /// Puts a field into its message's chain, in the place of one with its number that is there already.
    fn insert(&mut self, message: Id, new: Id) {
        let number = self.node(new).number;
        let (mut before, mut at) = (None, self.last(message));
        while at != END && self.node(at).number > number {
            (before, at) = (Some(at), self.node(at).next);
        }
        let behind = if at != END && self.node(at).number == number { self.node(at).next } else { at };
        self.nodes[new.0 as usize].next = behind;
        match before {
            Some(before) => self.nodes[before.0 as usize].next = new,
            None => *self.last_mut(message) = new,
        }
    }

    /// The message of this field that is there already, or an empty one.
    fn inner(&mut self, message: Id, field: &Field, of: &'static Message) -> Id {
        let mut at = self.last(message);
        while at != END {
            if self.node(at).number == field.number {
                return at;
            }
            at = self.node(at).next;
        }
        let new = self.empty_message(field.number, of);
        self.insert(message, new);
        new
    }

    fn last(&self, id: Id) -> Id {
        match self.node(id).part {
            Part::Message { last, .. } | Part::List { last } => last,
            _ => END,
        }
    }

    fn last_mut(&mut self, id: Id) -> &mut Id {
        match &mut self.nodes[id.0 as usize].part {
            Part::Message { last, .. } | Part::List { last } => last,
            _ => unreachable!("only messages and lists have chains"),
        }
    }

    /// Appends to a list.
    fn push(&mut self, list: Id, new: Id) {
        self.nodes[new.0 as usize].next = self.last(list);
        *self.last_mut(list) = new;
    }

    /// Adds the value that stands for null where something has to.
    fn zero(&mut self, number: u32, ty: Type) -> Id {
        match ty {
            Type::String | Type::Bytes => self.block(number, &[][..]),
            Type::Int32 | Type::Int64 | Type::Bool => self.add(number, Part::Varint(0)),
            Type::Double => self.add(number, Part::Double(0.0)),
            Type::Message(of) => match of.form {
                Form::Fields => self.empty_message(number, of),
                Form::Quantity => self.quantity(number, Cow::Borrowed("0")),
                Form::IntOrString => self.int_or_string(number, 0, None),
                Form::SchemaOrBool => self.flag(number, false),
                _ => self.message(number, &[]),
            },
        }
    }

    fn quantity(&mut self, number: u32, text: Cow<'j, str>) -> Id {
        let text = self.block(1, bytes(text));
        self.message(number, &[text])
    }

    /// Negative numbers are extended to 64 bits.
    fn int_or_string(&mut self, number: u32, int: i32, text: Option<Cow<'j, str>>) -> Id {
        let parts = [
            self.block(3, bytes(text.clone().unwrap_or_default())),
            self.add(2, Part::Varint(i64::from(int) as u64)),
            self.add(1, Part::Varint(u64::from(text.is_some()))),
        ];
        self.message(number, &parts)
    }

    fn flag(&mut self, number: u32, value: bool) -> Id {
        let allows = self.add(1, Part::Varint(u64::from(value)));
        self.message(number, &[allows])
    }

    /// In whole seconds, or to the microsecond: finer times are not told in any encoding.
    fn time(&mut self, number: u32, time: Timestamp, fine: bool) -> Id {
        let nanos = if fine { time.subsec_nanosecond() / 1000 * 1000 } else { 0 };
        let parts =
            [self.add(2, Part::Varint(i64::from(nanos) as u64)), self.add(1, Part::Varint(time.as_second() as u64))];
        self.message(number, &parts)
    }
}

fn bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// A value of one type; null is `None`.
struct ValueSeed<'t, 'j> {
    tree: &'t mut Tree<'j>,
    number: u32,
    ty: Type,
}

impl<'j> DeserializeSeed<'j> for ValueSeed<'_, 'j> {
    type Value = Option<Id>;

    fn deserialize<D: Deserializer<'j>>(self, json: D) -> Result<Option<Id>, D::Error> {
        match self.ty {
            Type::Message(of) if of.form == Form::Raw => {
                let text = <&RawValue>::deserialize(json)?.get();
                Ok((text != "null").then(|| {
                    let raw = self.tree.block(1, text.as_bytes());
                    self.tree.message(self.number, &[raw])
                }))
            }
            _ => json.deserialize_any(self),
        }
    }
}

impl<'j> Visitor<'j> for ValueSeed<'_, 'j> {
    type Value = Option<Id>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.ty {
            Type::String => "a string",
            Type::Int32 => "a number of 32 bits",
            Type::Int64 => "a whole number",
            Type::Bool => "true or false",
            Type::Double => "a number",
            Type::Bytes => "base64",
            Type::Message(of) => return write!(f, "{}", of.name.rsplit('.').next().unwrap_or_default()),
        })
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Id>, E> {
        Ok(None)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Option<Id>, E> {
        Ok(Some(match self.ty {
            Type::Bool => self.tree.add(self.number, Part::Varint(u64::from(value))),
            Type::Message(of) if of.form == Form::SchemaOrBool => self.tree.flag(self.number, value),
            _ => return Err(E::invalid_type(serde::de::Unexpected::Bool(value), &self)),
        }))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Option<Id>, E> {
        let (tree, number) = (self.tree, self.number);
        let wrong = |what: &str| Err(E::custom(format!("the number {value} where {what} is expected")));
        Ok(Some(match self.ty {
            Type::Int32 if i32::try_from(value).is_err() => return wrong("one of 32 bits"),
            Type::Int32 | Type::Int64 => tree.add(number, Part::Varint(value as u64)),
            Type::Double => tree.add(number, Part::Double(value as f64)),
            Type::Message(of) if of.form == Form::Quantity => tree.quantity(number, value.to_string().into()),
            Type::Message(of) if of.form == Form::IntOrString => match i32::try_from(value) {
                Ok(int) => tree.int_or_string(number, int, None),
                Err(_) => return wrong("one of 32 bits"),
            },
            _ => return wrong("another type"),
        }))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Option<Id>, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => self.visit_f64(value as f64),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<Id>, E> {
        Ok(Some(match self.ty {
            Type::Double => self.tree.add(self.number, Part::Double(value)),
            Type::Message(of) if of.form == Form::Quantity => self.tree.quantity(self.number, value.to_string().into()),
            _ => return Err(E::invalid_type(serde::de::Unexpected::Float(value), &self)),
        }))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'j str) -> Result<Option<Id>, E> {
        self.text(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<Id>, E> {
        self.text(Cow::Owned(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'j>>(self, items: A) -> Result<Option<Id>, A::Error> {
        let (number, ty) = match self.ty {
            Type::Message(of) => match of.form {
                Form::Strings => (1, Type::String),
                Form::SchemaOrArray => (2, Type::Message(of.props())),
                Form::SchemaOrStrings => (2, Type::String),
                _ => return Err(A::Error::invalid_type(serde::de::Unexpected::Seq, &self)),
            },
            _ => return Err(A::Error::invalid_type(serde::de::Unexpected::Seq, &self)),
        };
        let tree = self.tree;
        let list = ListSeed { tree: &mut *tree, number, ty }.visit_seq(items)?;
        Ok(Some(tree.message(self.number, list.as_slice())))
    }

    fn visit_map<A: MapAccess<'j>>(self, fields: A) -> Result<Option<Id>, A::Error> {
        let (tree, number) = (self.tree, self.number);
        let Type::Message(of) = self.ty else {
            return Err(A::Error::custom("an object where another type is expected"));
        };
        let read = |tree: &mut Tree<'j>, number, of: &'static Message| {
            let node = tree.empty_message(number, of);
            object(tree, node, of, fields).map(|()| node)
        };
        Ok(Some(match of.form {
            Form::Fields => read(tree, number, of)?,
            Form::SchemaOrBool => {
                let parts = [read(tree, 2, of.props())?, tree.add(1, Part::Varint(1))];
                tree.message(number, &parts)
            }
            Form::SchemaOrArray | Form::SchemaOrStrings => {
                let part = read(tree, 1, of.props())?;
                tree.message(number, &[part])
            }
            _ => return Err(A::Error::custom(format!("an object where {} is expected", of.name))),
        }))
    }
}

impl<'j> ValueSeed<'_, 'j> {
    fn text<E: Error>(self, text: Cow<'j, str>) -> Result<Option<Id>, E> {
        let (tree, number) = (self.tree, self.number);
        let wrong = |what| E::invalid_value(serde::de::Unexpected::Str(&text), &what);
        let time = |fine| text.parse::<Timestamp>().map(|time| (time, fine)).map_err(|_| wrong("a time"));
        let (time, fine) = match self.ty {
            Type::String => return Ok(Some(tree.block(number, bytes(text)))),
            Type::Bytes => {
                let decoded = base64::decode(&text).map_err(|_| wrong("base64"))?;
                return Ok(Some(tree.block(number, decoded)));
            }
            Type::Message(of) => match of.form {
                Form::Quantity => return Ok(Some(tree.quantity(number, text))),
                Form::IntOrString => return Ok(Some(tree.int_or_string(number, 0, Some(text)))),
                Form::Time => time(false)?,
                Form::MicroTime => time(true)?,
                _ => return Err(wrong("an object")),
            },
            _ => return Err(wrong("a number or a flag")),
        };
        Ok(Some(tree.time(number, time, fine)))
    }
}

/// Reads the fields of an object into its message.
fn object<'j, A: MapAccess<'j>>(
    tree: &mut Tree<'j>,
    node: Id,
    of: &'static Message,
    mut fields: A,
) -> Result<(), A::Error> {
    let names = of.names();
    while let Some(found) = fields.next_key_seed(NameSeed { names })? {
        let Some(at) = found else {
            fields.next_value::<IgnoredAny>()?;
            continue;
        };
        let named = &names.all[at];
        let mut holder = node;
        for (field, inner) in &named.outer {
            holder = tree.inner(holder, field, inner);
        }
        if let Some(value) = fields.next_value_seed(FieldSeed { tree, field: named.field })? {
            tree.insert(holder, value);
        }
    }
    Ok(())
}

/// The place of a key among the names of a message.
struct NameSeed {
    names: &'static Names,
}

impl<'j> DeserializeSeed<'j> for NameSeed {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'j>>(self, json: D) -> Result<Option<usize>, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for NameSeed {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Option<usize>, E> {
        Ok(self.names.find(key))
    }
}

/// The value of a field.
struct FieldSeed<'t, 'j> {
    tree: &'t mut Tree<'j>,
    field: &'static Field,
}

impl<'j> DeserializeSeed<'j> for FieldSeed<'_, 'j> {
    type Value = Option<Id>;

    fn deserialize<D: Deserializer<'j>>(self, json: D) -> Result<Option<Id>, D::Error> {
        let Field { number, ty, repeat, .. } = *self.field;
        let tree = self.tree;
        match repeat {
            Repeat::List => json.deserialize_any(ListSeed { tree, number, ty }),
            Repeat::Map => json.deserialize_any(MapSeed { tree, number, ty }),
            Repeat::One | Repeat::Inline => ValueSeed { tree, number, ty }.deserialize(json),
        }
    }
}

struct ListSeed<'t, 'j> {
    tree: &'t mut Tree<'j>,
    number: u32,
    ty: Type,
}

impl<'j> Visitor<'j> for ListSeed<'_, 'j> {
    type Value = Option<Id>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Id>, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'j>>(self, mut items: A) -> Result<Option<Id>, A::Error> {
        let ListSeed { tree, number, ty } = self;
        let list = tree.add(number, Part::List { last: END });
        while let Some(item) = items.next_element_seed(ValueSeed { tree: &mut *tree, number, ty })? {
            let item = item.unwrap_or_else(|| tree.zero(number, ty));
            tree.push(list, item);
        }
        Ok(Some(list))
    }
}

struct MapSeed<'t, 'j> {
    tree: &'t mut Tree<'j>,
    number: u32,
    ty: Type,
}

impl<'j> Visitor<'j> for MapSeed<'_, 'j> {
    type Value = Option<Id>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Id>, E> {
        Ok(None)
    }

    /// Entries are written in the order of their keys, which is mostly the one in which they come.
    fn visit_map<A: MapAccess<'j>>(self, mut entries: A) -> Result<Option<Id>, A::Error> {
        let MapSeed { tree, number, ty } = self;
        let mut found: Vec<(Key<'j>, Id)> = Vec::new();
        while let Some(key) = entries.next_key::<Key<'j>>()? {
            let value = entries.next_value_seed(ValueSeed { tree: &mut *tree, number: 2, ty })?;
            let value = value.unwrap_or_else(|| tree.zero(2, ty));
            found.push((key, value));
        }
        if !found.is_sorted_by(|a, b| a.0.0 < b.0.0) {
            // Of equal keys the last one counts.
            found.reverse();
            found.sort_by(|a, b| a.0.0.cmp(&b.0.0));
            found.dedup_by(|a, b| a.0.0 == b.0.0);
        }
        let list = tree.add(number, Part::List { last: END });
        for (key, value) in found {
            let key = tree.block(1, bytes(key.0));
            let entry = tree.message(number, &[value, key]);
            tree.push(list, entry);
        }
        Ok(Some(list))
    }
}

#[derive(Deserialize)]
struct Key<'j>(#[serde(borrow)] Cow<'j, str>);

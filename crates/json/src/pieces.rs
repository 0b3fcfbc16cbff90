//! The pieces that a [`Reader`] reads one by one: the fields of an object, the items of a list, the variant of an enum.

use std::borrow::Cow;

use serde::{
    Deserializer,
    de::{DeserializeSeed, EnumAccess, Error as _, Expected, MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor},
    forward_to_deserialize_any,
};

use crate::{
    Error, Map, Value, map,
    source::{Reader, Source, visit_text},
    text::{Sort, Text},
};

impl<'de> Reader<'_, 'de> {
    /// Enters an object, if one stands here.
    pub(crate) fn fields(&mut self) -> Result<Option<Fields<'_, 'de>>, Error> {
        let source = match &mut self.source {
            Source::Tree(Value::Object(map)) => Left::Tree { left: map.iter(), value: &Value::Null },
            Source::Tree(_) => return Ok(None),
            Source::Text(text) => match text.sort()? {
                Sort::Object => {
                    text.enter()?;
                    Left::Text { text, first: true, ended: false }
                }
                _ => return Ok(None),
            },
        };
        Ok(Some(Fields { source, without: self.without, below: &[] }))
    }

    /// Enters a list, if one stands here.
    pub(crate) fn items(&mut self) -> Result<Option<Items<'_, 'de>>, Error> {
        match &mut self.source {
            Source::Tree(Value::Array(items)) => Ok(Some(Items::Tree(items.iter()))),
            Source::Tree(_) => Ok(None),
            Source::Text(text) => match text.sort()? {
                Sort::Array => {
                    text.enter()?;
                    let ended = !text.next(b']', true)?;
                    Ok(Some(Items::Text { text, is_at_item: !ended, ended }))
                }
                _ => Ok(None),
            },
        }
    }
}

/// The fields of an object that are left to read.
pub(crate) struct Fields<'r, 'de> {
    source: Left<'r, 'de>,
    without: &'static [&'static str],
    /// The paths that are passed over below the field whose value comes next.
    below: &'static [&'static str],
}

enum Left<'r, 'de> {
    Tree { left: map::Iter<'de, Value>, value: &'de Value },
    Text { text: &'r mut Text<'de>, first: bool, ended: bool },
}

impl<'de> Fields<'_, 'de> {
    pub(crate) fn of(map: &'de Map) -> Self {
        Fields { source: Left::Tree { left: map.iter(), value: &Value::Null }, without: &[], below: &[] }
    }

    /// Gives all fields to a visitor, which has to take them all. The result may be large, so it is returned as it came and
    /// not matched apart.
    #[inline]
    pub(crate) fn give<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let read = visitor.visit_map(&mut self);
        if read.is_ok() {
            self.end()?;
        }
        read
    }

    fn end(&mut self) -> Result<(), Error> {
        match self.name()? {
            None => Ok(()),
            Some(name) => Err(Error::custom(format_args!("the field {name:?} was not read"))),
        }
    }

    /// The next field's name, but for the one that is passed over.
    pub(crate) fn name(&mut self) -> Result<Option<Cow<'de, str>>, Error> {
        if self.without.is_empty() {
            return self.any_name();
        }
        while let Some(name) = self.any_name()? {
            self.below = match self.without {
                [only] if *only == name => {
                    if let Left::Text { text, .. } = &mut self.source {
                        text.skip()?;
                    }
                    continue;
                }
                [first, below @ ..] if *first == name => below,
                _ => &[],
            };
            return Ok(Some(name));
        }
        Ok(None)
    }

    fn any_name(&mut self) -> Result<Option<Cow<'de, str>>, Error> {
        match &mut self.source {
            Left::Tree { left, value } => Ok(left.next().map(|(name, of)| {
                *value = of;
                Cow::Borrowed(name.as_str())
            })),
            Left::Text { ended: true, .. } => Ok(None),
            Left::Text { text, first, ended } => {
                *ended = !text.next(b'}', std::mem::take(first))?;
                if *ended { Ok(None) } else { text.name().map(Some) }
            }
        }
    }

    /// The value of the field whose name was read.
    pub(crate) fn value(&mut self) -> Reader<'_, 'de> {
        let source = match &mut self.source {
            Left::Tree { value, .. } => Source::Tree(value),
            Left::Text { text, .. } => Source::Text(text),
        };
        Reader { source, without: self.below }
    }
}

impl<'de> MapAccess<'de> for Fields<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        match self.name()? {
            Some(name) => seed.deserialize(Name(name)).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.value())
    }

    fn size_hint(&self) -> Option<usize> {
        match &self.source {
            Left::Tree { left, .. } => Some(left.len()),
            Left::Text { .. } => None,
        }
    }
}

/// The name of a field or of a variant.
struct Name<'de>(Cow<'de, str>);

impl<'de> Deserializer<'de> for Name<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visit_text(self.0, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// The items of a list that are left to read.
pub(crate) enum Items<'r, 'de> {
    Tree(std::slice::Iter<'de, Value>),
    Text { text: &'r mut Text<'de>, is_at_item: bool, ended: bool },
}

impl<'de> Items<'_, 'de> {
    /// Gives all items to a visitor, which has to take them all.
    #[inline]
    pub(crate) fn give<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let read = visitor.visit_seq(&mut self);
        if read.is_ok() && self.next()?.is_some() {
            return Err(Error::custom("a list has more items than are expected"));
        }
        read
    }

    fn next(&mut self) -> Result<Option<Reader<'_, 'de>>, Error> {
        let source = match self {
            Items::Tree(left) => match left.next() {
                Some(value) => Source::Tree(value),
                None => return Ok(None),
            },
            Items::Text { ended: true, .. } => return Ok(None),
            Items::Text { text, is_at_item, ended } => {
                if !std::mem::take(is_at_item) {
                    *ended = !text.next(b']', false)?;
                }
                if *ended {
                    return Ok(None);
                }
                Source::Text(text)
            }
        };
        Ok(Some(Reader { source, without: &[] }))
    }
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        match self.next()? {
            Some(reader) => seed.deserialize(reader).map(Some),
            None => Ok(None),
        }
    }

    fn size_hint(&self) -> Option<usize> {
        match self {
            Items::Tree(left) => Some(left.len()),
            // Most lists of objects have one item, and a list that begins without a hint has room for four: what is read is kept.
            Items::Text { is_at_item, .. } => Some(usize::from(*is_at_item)),
        }
    }
}

/// A variant of an enum, alone or with what it holds.
pub(crate) struct Variant<'r, 'de> {
    pub(crate) name: Cow<'de, str>,
    pub(crate) value: Option<Reader<'r, 'de>>,
}

impl<'r, 'de> EnumAccess<'de> for Variant<'r, 'de> {
    type Error = Error;
    type Variant = Held<'r, 'de>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Held<'r, 'de>), Error> {
        Ok((seed.deserialize(Name(self.name))?, Held(self.value)))
    }
}

/// The content of a variant.
pub(crate) struct Held<'r, 'de>(Option<Reader<'r, 'de>>);

impl<'r, 'de> Held<'r, 'de> {
    fn value(self, expected: &dyn Expected) -> Result<Reader<'r, 'de>, Error> {
        self.0.ok_or_else(|| Error::invalid_type(Unexpected::UnitVariant, expected))
    }
}

impl<'de> VariantAccess<'de> for Held<'_, 'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.0 {
            None => Ok(()),
            Some(mut reader) => match reader.sort()? {
                Sort::Null => reader.word("null"),
                _ => Err(reader.mismatch(&"unit variant")),
            },
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.value(&"newtype variant")?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Error> {
        self.value(&"tuple variant")?.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _fields: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        self.value(&"struct variant")?.deserialize_struct("", &[], visitor)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_list_takes_room_for_what_it_most_often_holds() {
        let check = |text: &str, items: &[u64], room: usize| {
            let read: Vec<u64> = crate::from_text(text).expect("a list of numbers");
            assert_eq!((&*read, read.capacity()), (items, room), "{text}");
        };
        check("[]", &[], 0);
        check("[ 7 ]", &[7], 1);
        check("[1, 2, 3]", &[1, 2, 3], 4);
        for broken in ["[", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[}"] {
            assert!(crate::from_text::<Vec<u64>>(broken).is_err(), "{broken}");
        }
    }
}

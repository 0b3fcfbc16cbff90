//! The values of expressions. Input is borrowed: a whole object enters as a reference to its JSON, and only what an
//! expression touches is looked at.

mod aggregate;
mod associative;
mod equality;
mod made;
mod moment;
mod text;

use std::any::Any;
use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use json::Value as Json;

use aggregate::Associative;
pub use aggregate::{Key, List, Lookup, Map};
pub use equality::{compare, equal};
pub use made::Made;
pub use moment::Moment;
pub use text::Text;
pub(crate) use text::quoted;

use crate::typing::Type;

/// A value of a library's own type: only its functions look into it.
pub trait Opaque: Any + Debug + Send + Sync {
    /// The name of the type, as signatures write it.
    fn type_name(&self) -> &'static str;
    fn equals(&self, other: &dyn Opaque) -> bool;
    /// The size of the value for upstream's cost rules.
    fn size(&self) -> u64 {
        1
    }
    fn as_any(&self) -> &dyn Any;
}

#[derive(Debug, Clone, Default)]
pub enum Value<'a> {
    #[default]
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    Timestamp(Moment),
    /// Nanoseconds.
    Duration(i64),
    List(List<'a>),
    Map(Map<'a>),
    Optional(Option<Arc<Value<'a>>>),
    Type(Type),
    Opaque(Arc<dyn Opaque>),
    /// An object that an expression made.
    Object(Arc<Made<'a>>),
}

impl<'a> Value<'a> {
    /// JSON as an untyped value. Nothing is copied.
    pub fn json(json: &'a Json) -> Value<'a> {
        match json {
            Json::Null => Value::Null,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(int), _) => Value::Int(int),
                (None, Some(uint)) => Value::Uint(uint),
                _ => Value::Double(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::String(Text::Borrowed(text)),
            Json::Array(items) => Value::List(List::Json(items)),
            Json::Object(fields) => Value::Map(Map::Json(fields)),
        }
    }

    pub fn string(text: impl Into<String>) -> Value<'a> {
        Value::String(Text::Shared(text.into().into()))
    }

    pub fn str(text: &'a str) -> Value<'a> {
        Value::String(Text::Borrowed(text))
    }

    pub fn list(items: Vec<Value<'a>>) -> Value<'a> {
        Value::List(List::Values(Arc::new(items)))
    }

    /// A list that is a map by these fields of its items; without any it is a set.
    pub fn associative(items: Vec<Value<'a>>, keys: Arc<[Box<str>]>) -> Value<'a> {
        Value::List(List::Associative(Arc::new(Associative { items, keys })))
    }

    pub fn lookup(map: &'a dyn Lookup) -> Value<'a> {
        Value::Map(Map::Lookup(map))
    }

    pub fn opaque(value: impl Opaque) -> Value<'a> {
        Value::Opaque(Arc::new(value))
    }

    pub fn some(value: Value<'a>) -> Value<'a> {
        Value::Optional(Some(Arc::new(value)))
    }

    /// The library's value inside, if it is of this type.
    pub fn downcast<T: 'static>(&self) -> Option<&T> {
        match self {
            Value::Opaque(value) => value.as_any().downcast_ref(),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// The type that the value shows when evaluated. Types of elements are not known then.
    pub fn type_of(&self) -> Type {
        match self {
            Value::Null => Type::Null,
            Value::Bool(_) => Type::Bool,
            Value::Int(_) => Type::Int,
            Value::Uint(_) => Type::Uint,
            Value::Double(_) => Type::Double,
            Value::String(_) => Type::String,
            Value::Bytes(_) => Type::Bytes,
            Value::Timestamp(_) => Type::Timestamp,
            Value::Duration(_) => Type::Duration,
            Value::List(_) => Type::list(Type::Dyn),
            Value::Map(_) => Type::map(Type::Dyn, Type::Dyn),
            Value::Optional(_) => Type::optional(Type::Dyn),
            Value::Type(_) => Type::Type(Arc::new(Type::Dyn)),
            Value::Opaque(value) => Type::Opaque(value.type_name()),
            Value::Object(made) => Type::Object(made.name.clone()),
        }
    }

    /// Upstream's size of a value, by which operations cost: code points, bytes, elements; one for everything else.
    pub fn size(&self) -> u64 {
        let size = match self {
            Value::String(text) => text.chars().count(),
            Value::Bytes(bytes) => bytes.len(),
            Value::List(list) => list.len(),
            Value::Map(map) => map.len(),
            Value::Optional(Some(value)) => return value.size(),
            Value::Opaque(value) => return value.size(),
            _ => 1,
        };
        size as u64
    }

    /// Whether a value may stand where a signature has this type. The first element speaks for all of a list.
    pub(crate) fn fits(&self, wanted: &Type) -> bool {
        match (wanted, self) {
            (Type::Dyn | Type::Error | Type::Parameter(_) | Type::Variable(_), _)
            | (Type::Null, Value::Null)
            | (Type::Bool, Value::Bool(_))
            | (Type::Int, Value::Int(_))
            | (Type::Uint, Value::Uint(_))
            | (Type::Double, Value::Double(_))
            | (Type::String, Value::String(_))
            | (Type::Bytes, Value::Bytes(_))
            | (Type::Timestamp, Value::Timestamp(_))
            | (Type::Duration, Value::Duration(_))
            | (Type::Map(_) | Type::Object(_), Value::Map(_))
            | (Type::Optional(_), Value::Optional(_))
            | (Type::Type(_), Value::Type(_)) => true,
            (Type::List(item), Value::List(list)) => list.get(0).is_none_or(|first| first.fits(item)),
            (Type::Opaque(name), Value::Opaque(value)) => *name == value.type_name(),
            (Type::Object(name), Value::Object(made)) => *name == made.name,
            _ => false,
        }
    }
}

/// How messages show a value.
impl Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Int(i) => write!(f, "{i}"),
            Value::Uint(u) => write!(f, "{u}"),
            Value::Double(d) => write!(f, "{d}"),
            Value::String(text) => f.write_str(text),
            Value::Bytes(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Value::Timestamp(at) => write!(f, "{at}"),
            Value::Duration(nanos) => write!(f, "{nanos}ns"),
            other => write!(f, "{}", other.type_of()),
        }
    }
}

//! The types of expressions, as the checker reasons about them, and their names in messages.

use std::fmt::{self, Display};
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// Known only when the expression is evaluated.
    Dyn,
    /// The type of an expression that has already been complained about.
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    List(Arc<Type>),
    Map(Arc<(Type, Type)>),
    Optional(Arc<Type>),
    /// The type of a type: `type(1)`.
    Type(Arc<Type>),
    /// A value that only its functions look into, such as a quantity.
    Opaque(&'static str),
    /// An object whose fields the environment declares.
    Object(Arc<str>),
    /// A letter of a function's signature.
    Parameter(char),
    /// A letter of one call's signature; what it stands for is found out.
    Variable(u32),
}

impl Type {
    pub fn list(item: Type) -> Type {
        Type::List(Arc::new(item))
    }

    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new((key, value)))
    }

    pub fn optional(item: Type) -> Type {
        Type::Optional(Arc::new(item))
    }

    pub fn object(name: &str) -> Type {
        Type::Object(name.into())
    }

    pub(crate) fn is_dyn(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }

    /// Reads the type of a signature: `list<T>`, `map<string, dyn>`, `kubernetes.Quantity`.
    ///
    /// # Panics
    /// Signatures are constants of the libraries; a wrong one is a mistake of the program.
    pub(crate) fn parse(text: &'static str) -> Type {
        let text = text.trim();
        let inner = |name: &str| text.strip_prefix(name).and_then(|t| t.strip_suffix('>'));
        if let Some(item) = inner("list<") {
            return Type::list(Type::parse(item));
        }
        if let Some(item) = inner("optional<") {
            return Type::optional(Type::parse(item));
        }
        if let Some(item) = inner("type<") {
            return Type::Type(Arc::new(Type::parse(item)));
        }
        if let Some(pair) = inner("map<") {
            let (key, value) = pair.split_once(',').expect("a map's signature has two types");
            return Type::map(Type::parse(key), Type::parse(value));
        }
        match text {
            "dyn" => Type::Dyn,
            "null" => Type::Null,
            "bool" => Type::Bool,
            "int" => Type::Int,
            "uint" => Type::Uint,
            "double" => Type::Double,
            "string" => Type::String,
            "bytes" => Type::Bytes,
            "timestamp" => Type::Timestamp,
            "duration" => Type::Duration,
            letter if letter.len() == 1 => Type::Parameter(letter.chars().next().expect("it has one")),
            name => Type::Opaque(name),
        }
    }
}

impl Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Type::Dyn => "dyn",
            Type::Error => "!error!",
            Type::Null => "null",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Timestamp => "timestamp",
            Type::Duration => "duration",
            Type::List(item) => return write!(f, "list({item})"),
            Type::Map(pair) => return write!(f, "map({}, {})", pair.0, pair.1),
            Type::Optional(item) => return write!(f, "optional_type({item})"),
            Type::Type(of) => return write!(f, "type({of})"),
            Type::Opaque(name) => name,
            Type::Object(name) => name,
            Type::Parameter(letter) => return write!(f, "{letter}"),
            Type::Variable(number) => return write!(f, "_var{number}"),
        };
        f.write_str(name)
    }
}

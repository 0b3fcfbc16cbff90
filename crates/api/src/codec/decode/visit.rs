//! The walk itself: a serde visitor that builds the value and follows the schema at the same time.

use std::fmt;

use json::{Map, Number, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::DuplicateKeyPolicy;

use super::{Words, converter, fill, is_zero, repeated, scalar, yaml, zero};
use crate::codec::bounds::{self, DEPTH_MAX, OBJECT_WEIGHT, TOO_DEEP, WEIGHT_MAX};
use crate::codec::problem::Problem;
use crate::schema::{Object, Type, Zero};
use crate::validation::field::{FieldError, Path};

/// Unknown and duplicate fields named at most, as upstream.
const STRICT_LIMIT: usize = 100;
/// The number of times that it is looked whether one is named already.
const STRICT_LOOKS: usize = 10_000;
/// The length of a name, and of a path, among them.
const NAME_MAX: usize = 256;
const PATH_MAX: usize = 2048;

/// Below this a double holds every whole number.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// One step of the path to the value that is being read.
enum Step<'t> {
    Field(&'t Object, &'t str),
    Index(usize),
    Key(json::Key),
}

/// The findings of a walk, for its caller.
pub(crate) struct Context {
    /// Whether unknown and duplicate fields are collected.
    pub collect: bool,
    /// Whether zero values are dropped and filled in as Go would.
    zeros: bool,
    pub strict: Vec<String>,
    words: Words,
    /// Unknown and duplicate fields found, with those that are named already.
    found: usize,
}

impl Context {
    pub fn new(collect: bool) -> Self {
        Context { collect, zeros: true, strict: Vec::new(), words: Words::Json, found: 0 }
    }

    pub fn in_words(words: Words) -> Self {
        Context { words, ..Context::new(true) }
    }

    /// Leaves zero values as they are.
    pub fn with_zeros(collect: bool) -> Self {
        Context { zeros: false, ..Context::new(collect) }
    }

    fn repeated_in_yaml(&mut self, bytes: &[u8]) {
        if self.collect {
            self.strict.extend(repeated::keys(bytes, yaml::options(DuplicateKeyPolicy::LastWins)));
        }
    }
}

/// The walk's own state.
struct Walk<'t, 'c> {
    context: &'c mut Context,
    path: Vec<Step<'t>>,
    /// Objects and lists around the value that is read.
    depth: usize,
    /// The weight of all values read so far, see [`WEIGHT_MAX`].
    weight: usize,
    /// Why the walk is broken off; set just before.
    problem: Option<Problem>,
}

impl<'t> Walk<'t, '_> {
    fn strict(&mut self, what: &str, name: &str) {
        let context = &mut self.context;
        if !context.collect || context.strict.len() >= STRICT_LIMIT || context.found >= STRICT_LOOKS {
            return;
        }
        context.found += 1;
        let mut path = String::new();
        for step in &self.path {
            match step {
                Step::Index(i) => path.push_str(&format!("[{i}]")),
                Step::Field(_, name) => dotted(&mut path, name),
                Step::Key(name) => dotted(&mut path, &bounds::cut(name, NAME_MAX)),
            }
            if path.len() > PATH_MAX {
                break;
            }
        }
        dotted(&mut path, &bounds::cut(name, NAME_MAX));
        let text = format!("{what} field {path:?}");
        if !self.context.strict.contains(&text) {
            self.context.strict.push(text);
        }
    }

    /// Go's complaint about a value of the wrong type, which its decoder calls `found`.
    fn mismatch<E: Error>(&mut self, found: &str, value: &Value, ty: &Type) -> E {
        if self.context.words == Words::Converter
            && let Some(problem) = converter::complaint(value, ty)
        {
            return self.fail(problem);
        }
        let mut path = String::new();
        let mut owner = None;
        for step in &self.path {
            match step {
                // Upstream reads the metadata of custom objects by themselves.
                Step::Field(object, name) if object.custom && **name == *"metadata" => {
                    path.clear();
                    owner = None;
                }
                Step::Field(object, name) => {
                    owner = Some(*object);
                    dotted(&mut path, name);
                }
                _ => {}
            }
        }
        let into = match owner {
            Some(object) => format!("struct field {}.{path}", object.name.rsplit('.').next().unwrap_or_default()),
            None => "value".to_owned(),
        };
        self.fail(format!("json: cannot unmarshal {found} into Go {into} of type {}", ty.go_name()))
    }

    /// Reads the metadata of an object within a custom one. What is wrong with them is told with the whole of them.
    fn embedded_metadata<E: Error>(&mut self, ty: &'t Type, whole: Value) -> Result<Option<Value>, E> {
        let here = self.path.len();
        let read: Result<Option<Value>, json::Error> = Seed { ty, walk: self, custom: false }.deserialize(&whole);
        self.path.truncate(here);
        match (read, self.problem.take()) {
            (Ok(value), _) => Ok(value),
            (Err(_), Some(Problem::Type(why))) => Err(self.misplaced(&whole, &why)),
            (Err(error), problem) => Err(self.broken(problem.unwrap_or_else(|| Problem::Syntax(error.to_string())))),
        }
    }

    /// A value that cannot stand where the walk is, as field errors tell of it.
    fn misplaced<E: Error>(&mut self, value: &Value, why: &str) -> E {
        let place = self.path.iter().fold(Path::default(), |place, step| match step {
            Step::Field(_, name) => place.child(name),
            Step::Index(at) => place.index(*at),
            Step::Key(name) => place.key(name),
        });
        self.fail(FieldError::invalid(&place, value, why).to_string())
    }

    fn fail<E: Error>(&mut self, problem: String) -> E {
        self.broken(Problem::Type(problem))
    }

    fn broken<E: Error>(&mut self, problem: Problem) -> E {
        self.problem = Some(problem);
        E::custom("")
    }

    /// Goes into an object or list.
    fn enter<E: Error>(&mut self) -> Result<(), E> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.broken(Problem::Syntax(TOO_DEEP.to_owned())));
        }
        Ok(())
    }

    fn weigh<E: Error>(&mut self, weight: usize) -> Result<(), E> {
        self.weight += weight;
        if self.weight > WEIGHT_MAX {
            let why = format!("the document has too many values (weight {}, at most {WEIGHT_MAX})", self.weight);
            return Err(self.broken(Problem::TooLarge(why)));
        }
        Ok(())
    }
}

/// Whether a field says which kind a whole object is of.
fn says_kind(object: &Object, name: &str) -> bool {
    matches!(name, "apiVersion" | "kind")
        && object.field("metadata").is_some_and(|field| matches!(field.ty, Type::Ref(_)))
}

fn dotted(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

/// Text is not looked at again string by string where the whole is text. Other bytes may stand in what nobody reads.
pub fn from_json(ty: &Type, bytes: &[u8], context: &mut Context) -> Result<Value, Problem> {
    match std::str::from_utf8(bytes) {
        Ok(text) => read_json(ty, serde_json::Deserializer::from_str(text), context),
        Err(_) => read_json(ty, serde_json::Deserializer::from_slice(bytes), context),
    }
}

fn read_json<'de, R: serde_json::de::Read<'de>>(
    ty: &Type,
    mut reader: serde_json::Deserializer<R>,
    context: &mut Context,
) -> Result<Value, Problem> {
    walk(ty, context, |seed| {
        let value = seed.deserialize(&mut reader)?;
        reader.end()?;
        Ok::<_, serde_json::Error>(value)
    })
}

/// YAML is read whole first: its anchors and merges are resolved by the library.
pub fn from_yaml(ty: &Type, bytes: &[u8], context: &mut Context) -> Result<Value, Problem> {
    let bytes = yaml::first_document(bytes);
    if bytes.trim_ascii_start().first() == Some(&b'{') {
        match from_json(ty, bytes, context) {
            Err(Problem::Syntax(_) | Problem::Type(_)) => {}
            // Of keys that stand there twice, YAML tells in other words.
            Ok(_) if context.strict.iter().any(|fault| fault.starts_with("duplicate ")) => {}
            done => return done,
        }
    }
    context.strict.clear();
    let value = match serde_saphyr::from_slice_with_options::<Value>(bytes, yaml::options(DuplicateKeyPolicy::Error)) {
        Ok(value) => value,
        Err(error) => {
            // A document that can be read when the last of two equal keys wins was wrong in its duplicates only.
            match serde_saphyr::from_slice_with_options(bytes, yaml::options(DuplicateKeyPolicy::LastWins)) {
                Ok(value) => {
                    context.repeated_in_yaml(bytes);
                    value
                }
                Err(_) => return Err(Problem::Syntax(yaml::broken(&error))),
            }
        }
    };
    from_value(ty, value, context)
}

pub fn from_value(ty: &Type, value: Value, context: &mut Context) -> Result<Value, Problem> {
    walk(ty, context, |seed| seed.deserialize(&value))
}

fn walk<'t, E: fmt::Display>(
    ty: &'t Type,
    context: &mut Context,
    read: impl FnOnce(Seed<'t, '_, '_>) -> Result<Option<Value>, E>,
) -> Result<Value, Problem> {
    let mut walk = Walk { context, path: Vec::with_capacity(16), depth: 0, weight: 0, problem: None };
    let result = read(Seed { ty, walk: &mut walk, custom: false });
    match (result, walk.problem) {
        (Ok(value), _) => Ok(value.unwrap_or(Value::Null)),
        (Err(_), Some(problem)) => Err(problem),
        (Err(error), None) => Err(Problem::Syntax(error.to_string())),
    }
}

/// Reads one value of a type. `None` is a null that stands for nothing.
struct Seed<'t, 'w, 'c> {
    ty: &'t Type,
    walk: &'w mut Walk<'t, 'c>,
    /// Inside a custom resource: nulls and values of a wrong type are kept.
    custom: bool,
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_, '_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'t, 'w, 'c> Seed<'t, 'w, 'c> {
    fn wrong<E: Error>(self, found: &str, value: impl Into<Value>) -> Result<Option<Value>, E> {
        let value = value.into();
        if self.custom { Ok(Some(value)) } else { Err(self.walk.mismatch(found, &value, self.ty)) }
    }

    fn number<E: Error>(self, number: Number) -> Result<Option<Value>, E> {
        let fits = match self.ty.resolve() {
            Type::Any | Type::Number => true,
            Type::Int32 | Type::IntOrString => number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            Type::Int64 => number.as_i64().is_some(),
            Type::Quantity => return self.quantity(&number.to_string()),
            _ => return self.wrong("number", number),
        };
        if fits { Ok(Some(Value::Number(number))) } else { self.wrong(&format!("number {number}"), number) }
    }

    fn quantity<E: Error>(self, text: &str) -> Result<Option<Value>, E> {
        self.scalar(scalar::quantity(text), text)
    }

    fn scalar<E: Error>(self, result: Result<String, String>, text: &str) -> Result<Option<Value>, E> {
        match result {
            Ok(canonical) => Ok(Some(Value::String(canonical))),
            Err(_) if self.custom => Ok(Some(text.into())),
            Err(problem) => Err(self.walk.fail(problem)),
        }
    }

    fn text<E: Error>(self, text: &str) -> Result<Option<Value>, E> {
        match self.ty.resolve() {
            Type::String | Type::Any | Type::IntOrString | Type::Scalar => Ok(Some(text.into())),
            Type::Bytes => self.scalar(scalar::base64(text), text),
            Type::Quantity => self.quantity(text),
            Type::Time if text.is_empty() => Ok(None),
            Type::MicroTime if text.is_empty() => Ok(None),
            Type::Time => self.scalar(scalar::time(text), text),
            Type::MicroTime => self.scalar(scalar::micro_time(text), text),
            _ => self.wrong("string", text),
        }
    }

    fn object<'de, A: MapAccess<'de>>(self, object: &'t Object, mut access: A) -> Result<Option<Value>, A::Error> {
        let walk = self.walk;
        walk.enter()?;
        walk.weigh(OBJECT_WEIGHT)?;
        let zeros = walk.context.zeros;
        let mut map = Map::new();
        // Fields read so far, to find duplicates even of values that were dropped. No type has more than 64 fields that
        // matter here: further ones are looked up in the map.
        let mut seen = 0u64;
        // Those of them that stand in the map: it has the order of the fields, so they say where the next one goes.
        let mut kept = 0u64;
        while let Some(key) = access.next_key_seed(KeySeed(object))? {
            walk.weigh(1)?;
            match key {
                Key::Known(at) => {
                    let field = &object.fields[at];
                    let bit = 1u64.checked_shl(at as u32).unwrap_or(0);
                    if seen & bit != 0 || (bit == 0 && map.contains_key(&field.name)) {
                        walk.strict("duplicate", &field.name);
                    }
                    seen |= bit;
                    walk.path.push(Step::Field(object, &field.name));
                    // `metadata` of a custom resource is a built-in type.
                    let built_in = object.custom && matches!(field.ty, Type::Ref(_));
                    let custom = object.custom && !built_in;
                    let embedded = object.custom && walk.path.len() > 1;
                    let value = if embedded && built_in {
                        let whole = access.next_value_seed(Seed { ty: &Type::Any, walk, custom: true })?;
                        walk.embedded_metadata(&field.ty, whole.unwrap_or_default())?
                    } else {
                        access.next_value_seed(Seed { ty: &field.ty, walk, custom })?
                    };
                    if embedded && says_kind(object, &field.name) && !value.as_ref().is_some_and(Value::is_string) {
                        return Err(walk.misplaced(&value.unwrap_or_default(), "must be a string"));
                    }
                    walk.path.pop();
                    if let Some(value) = value
                        && !(zeros && field.zero == Zero::Drop && is_zero(&value) && *field.name != *"managedFields")
                    {
                        if bit == 0 || object.open {
                            map.insert(&field.name, value);
                        } else {
                            map.put_at((kept & (bit - 1)).count_ones() as usize, &field.name, value);
                            kept |= bit;
                        }
                    }
                }
                Key::Other(name) if object.open => {
                    if map.contains_key(&name) {
                        walk.strict("duplicate", &name);
                    }
                    walk.path.push(Step::Key(name.clone()));
                    let value = access.next_value_seed(Seed { ty: &Type::Any, walk, custom: true })?;
                    walk.path.pop();
                    map.insert(name, value.unwrap_or(Value::Null));
                }
                Key::Other(name) => {
                    walk.strict("unknown", &name);
                    access.next_value::<IgnoredAny>()?;
                }
            }
        }
        if zeros {
            fill(object, &mut map);
        }
        walk.depth -= 1;
        Ok(Some(Value::Object(map)))
    }

    /// Free keys with values of one type.
    fn entries<'de, A: MapAccess<'de>>(self, values: &'t Type, mut access: A) -> Result<Option<Value>, A::Error> {
        let walk = self.walk;
        let nested = matches!(values.resolve(), Type::Any | Type::Object(_) | Type::Map(_) | Type::List(_));
        let keep_null = self.custom || matches!(values, Type::Any);
        let mut map = Map::new();
        walk.enter()?;
        while let Some(name) = access.next_key::<json::Key>()? {
            walk.weigh(if map.is_empty() { OBJECT_WEIGHT + 1 } else { 1 })?;
            if map.contains_key(&name) {
                walk.strict("duplicate", &name);
            }
            if nested {
                walk.path.push(Step::Key(name.clone()));
            }
            let value = access.next_value_seed(Seed { ty: values, walk, custom: self.custom })?;
            if nested {
                walk.path.pop();
            }
            let value = if keep_null { value } else { value.or_else(|| zero(values)) };
            map.insert(name, value.unwrap_or(Value::Null));
        }
        walk.depth -= 1;
        Ok(Some(Value::Object(map)))
    }

    fn items<'de, A: SeqAccess<'de>>(self, items: &'t Type, mut access: A) -> Result<Option<Value>, A::Error> {
        let walk = self.walk;
        let mut list = Vec::with_capacity(access.size_hint().unwrap_or(0).min(1024));
        let keep_null = self.custom || matches!(items, Type::Any);
        walk.enter()?;
        loop {
            walk.path.push(Step::Index(list.len()));
            let item = access.next_element_seed(Seed { ty: items, walk, custom: self.custom })?;
            walk.path.pop();
            let Some(item) = item else {
                walk.depth -= 1;
                return Ok(Some(Value::Array(list)));
            };
            walk.weigh(1)?;
            let item = if keep_null { item } else { item.or_else(|| zero(items)) };
            list.push(item.unwrap_or(Value::Null));
        }
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_, '_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(self, v: bool) -> Result<Self::Value, E> {
        match self.ty.resolve() {
            Type::Bool | Type::Any => Ok(Some(v.into())),
            _ => self.wrong("bool", v),
        }
    }

    fn visit_i64<E: Error>(self, v: i64) -> Result<Self::Value, E> {
        self.number(v.into())
    }

    fn visit_u64<E: Error>(self, v: u64) -> Result<Self::Value, E> {
        // Upstream knows no type for it here, and takes for a double what is no `int64`.
        if self.custom && i64::try_from(v).is_err() {
            return self.visit_f64(v as f64);
        }
        self.number(v.into())
    }

    fn visit_f64<E: Error>(self, v: f64) -> Result<Self::Value, E> {
        // Where any number will do, Go writes whole ones without a point.
        let free = self.custom || matches!(self.ty.resolve(), Type::Any | Type::Number);
        if free && v.fract() == 0.0 && v.abs() < WHOLE_MAX {
            return self.number((v as i64).into());
        }
        match Number::from_f64(v) {
            Some(number) => self.number(number),
            None => Err(E::custom("number is not finite")),
        }
    }

    fn visit_str<E: Error>(self, v: &str) -> Result<Self::Value, E> {
        self.text(v)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(if self.custom || matches!(self.ty, Type::Any) { Some(Value::Null) } else { None })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        match self.ty.resolve() {
            Type::List(list) => self.items(&list.items, access),
            Type::Any => self.items(&Type::Any, access),
            _ if self.custom => self.items(&Type::Any, access),
            _ => Err(self.walk.mismatch("array", &Value::Array(Vec::new()), self.ty)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        match self.ty.resolve() {
            Type::Object(object) => self.object(object, access),
            Type::Map(map) => self.entries(&map.values, access),
            Type::Any | Type::Raw => self.entries(&Type::Any, access),
            _ if self.custom => self.entries(&Type::Any, access),
            _ => Err(self.walk.mismatch("object", &Value::Object(Map::new()), self.ty)),
        }
    }
}

/// A key of an object: one of its fields, or something else.
enum Key {
    Known(usize),
    Other(json::Key),
}

struct KeySeed<'t>(&'t Object);

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed<'_> {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Key, E> {
        Ok(self.0.position(name).map_or_else(|| Key::Other(json::Key::of(name)), Key::Known))
    }
}

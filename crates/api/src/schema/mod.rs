//! The shape of every object: fields by JSON name with their types, list types, merge keys and zero rules. One structure
//! for built-in kinds (from the generated table `tables/schema.tsv`) and for custom resources (from their structural
//! schema); it drives decoding, the patches and server-side apply.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

mod custom;
pub(crate) mod places;

pub use custom::custom;
use places::Places;

/// The type of a value. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Type {
    String,
    Int32,
    Int64,
    Number,
    Bool,
    /// Base64 text.
    Bytes,
    Quantity,
    /// RFC 3339 in whole seconds.
    Time,
    /// RFC 3339 with microseconds.
    MicroTime,
    IntOrString,
    /// Any scalar, kept as it is: a text of a custom kind that has a format.
    Scalar,
    /// Any JSON, kept as it is.
    Any,
    /// Any JSON object, kept as it is.
    Raw,
    Map(Arc<Map>),
    List(Arc<List>),
    Object(Arc<Object>),
    /// A type of the built-in table, parsed when first asked for.
    Ref(&'static Named),
    /// A type that is made when it is first asked for.
    Later(Arc<Later>),
}

/// A type with the way to make it.
pub struct Later {
    make: Box<dyn Fn() -> Type + Send + Sync>,
    made: OnceLock<Type>,
}

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.made.fmt(f)
    }
}

/// Free keys, one type of value.
#[derive(Debug)]
pub struct Map {
    pub values: Type,
    /// Apply owns and replaces it as a whole.
    pub atomic: bool,
}

#[derive(Debug)]
pub struct List {
    pub items: Type,
    pub kind: ListKind,
}

/// How apply tells the items of a list apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListKind {
    /// Owned and replaced as a whole.
    Atomic,
    /// Scalars, each its own identity.
    Set,
    /// Objects identified by the values of these fields.
    Map(Box<[Key]>),
}

impl ListKind {
    /// Keys are kept sorted by name.
    pub fn map(mut keys: Vec<Key>) -> Self {
        keys.sort_by(|a, b| a.name.cmp(&b.name));
        ListKind::Map(keys.into())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub name: Box<str>,
    /// The value of an item that does not have the field.
    pub default: Option<json::Value>,
}

/// Named fields.
#[derive(Debug, Default)]
pub struct Object {
    /// `io.k8s.api.core.v1.Pod`; for custom resources the kind.
    pub name: Box<str>,
    /// Sorted by name.
    pub fields: Box<[Field]>,
    /// Where each field stands in `fields`; empty where there are more than a few.
    places: Places,
    /// Apply owns and replaces it as a whole.
    pub atomic: bool,
    /// Keeps fields that the schema does not know.
    pub open: bool,
    /// An apply may state fields that the schema does not know, whether they are kept or not.
    pub applied_freely: bool,
    /// Its schema says no type: a scalar or a list may stand in its place.
    pub untyped: bool,
    /// Part of a custom resource: values of a wrong type are kept for validation to find, nulls too.
    pub custom: bool,
}

/// How encoding treats a field that is absent or zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zero {
    Keep,
    /// A zero value counts as none, and is not written.
    Drop,
    /// Written even when zero.
    Fill,
}

#[derive(Debug)]
pub struct Field {
    pub name: json::Key,
    /// The field's name in managed fields: `f:` and its own. Every create asks for it once a field.
    pub element: json::Key,
    /// Its place among the fields of the object when they are written.
    pub place: u16,
    pub ty: Type,
    pub zero: Zero,
    /// Strategic merge merges the lists item by item instead of replacing.
    pub merge: bool,
    /// Strategic merge honours `$retainKeys`.
    pub retain_keys: bool,
    /// Strategic merge replaces the whole object.
    pub replace: bool,
    /// The field that identifies an item for strategic merge; empty for lists of scalars.
    pub merge_key: Box<str>,
    /// The further statements of OpenAPI, as the table of built-in types has them.
    pub published: &'static str,
}

impl Field {
    pub fn new(name: &str, ty: Type) -> Self {
        let (element, merge_key) = (json::Key::joined("f:", name), "".into());
        Field {
            name: json::Key::of(name),
            element,
            place: 0,
            ty,
            zero: Zero::Keep,
            merge: false,
            retain_keys: false,
            replace: false,
            merge_key,
            published: "",
        }
    }
}

impl Object {
    /// The fields come in the order in which they are written.
    pub fn new(name: &str, mut fields: Vec<Field>) -> Self {
        for (place, field) in (0..).zip(&mut fields) {
            field.place = place;
        }
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        let few = fields.len() <= places::FEW;
        let places = if few { Places::of(fields.iter().map(|field| &*field.name)) } else { Places::default() };
        Object { name: name.into(), places, fields: fields.into(), ..Default::default() }
    }

    pub fn field(&self, name: &str) -> Option<&Field> {
        self.position(name).map(|i| &self.fields[i])
    }

    /// The index of a field in `fields`.
    pub fn position(&self, name: &str) -> Option<usize> {
        if self.places.is_empty() {
            return self.fields.binary_search_by(|f| (*f.name).cmp(name)).ok();
        }
        self.places.find(name, |at| *self.fields[at].name == *name)
    }
}

impl Type {
    /// A type that is made when it is first asked for. The value that is made is a type itself.
    pub fn later(make: impl Fn() -> Type + Send + Sync + 'static) -> Type {
        Type::Later(Arc::new(Later { make: Box::new(make), made: OnceLock::new() }))
    }

    /// The type itself, never a [`Type::Ref`] or [`Type::Later`].
    pub fn resolve(&self) -> &Type {
        match self {
            Type::Ref(named) => named.resolve(),
            Type::Later(later) => later.made.get_or_init(|| (later.make)()),
            other => other,
        }
    }

    /// The name in the built-in table: `io.k8s.api.core.v1.Pod`.
    pub fn name(&self) -> Option<String> {
        match self {
            Type::Ref(named) => Some(format!("{PREFIX}{}", named.name)),
            _ => None,
        }
    }

    pub fn object(&self) -> Option<&Object> {
        match self.resolve() {
            Type::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The field of an object type.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.object()?.field(name)
    }

    /// The type at a path of field names; steps into list items and map values do not need a name.
    pub fn at(&self, path: &[&str]) -> Option<&Type> {
        let mut ty = self;
        for name in path {
            ty = &ty.field(name)?.ty;
        }
        Some(ty)
    }

    /// As Go names it in messages.
    pub fn go_name(&self) -> String {
        match self {
            Type::String | Type::Time | Type::MicroTime | Type::Scalar => "string".to_owned(),
            Type::Int32 => "int32".to_owned(),
            Type::Int64 => "int64".to_owned(),
            Type::Number => "float64".to_owned(),
            Type::Bool => "bool".to_owned(),
            Type::Bytes => "[]uint8".to_owned(),
            Type::Quantity => "resource.Quantity".to_owned(),
            Type::IntOrString => "intstr.IntOrString".to_owned(),
            Type::Any => "interface {}".to_owned(),
            Type::Raw => "runtime.RawExtension".to_owned(),
            Type::Map(map) => format!("map[string]{}", map.values.go_name()),
            Type::List(list) => format!("[]{}", list.items.go_name()),
            Type::Object(object) => last_two(&object.name),
            Type::Ref(named) => last_two(named.name),
            Type::Later(_) => self.resolve().go_name(),
        }
    }
}

/// `v1.Pod` of `io.k8s.api.core.v1.Pod`.
fn last_two(name: &str) -> String {
    let start = name.rmatch_indices('.').nth(1).map_or(0, |(at, _)| at + 1);
    name[start..].to_owned()
}

/// One named type of the built-in API.
#[derive(Debug)]
pub struct Named {
    /// Without the prefix `io.k8s.`.
    pub name: &'static str,
    atomic: bool,
    text: &'static str,
    parsed: OnceLock<Type>,
}

impl Named {
    /// The type where apply owns and replaces its fields one by one. The few fields of such a type are parsed once.
    fn granular(&self) -> &'static Named {
        let Named { name, text, .. } = *self;
        Box::leak(Box::new(Named { name, atomic: false, text, parsed: OnceLock::new() }))
    }

    fn resolve(&self) -> &Type {
        self.parsed.get_or_init(|| {
            let fields = self.text.lines().filter(|line| !line.is_empty()).map(parse_field).collect();
            let object = Object::new(&format!("{PREFIX}{}", self.name), fields);
            Type::Object(Arc::new(Object { atomic: self.atomic, ..object }))
        })
    }
}

const PREFIX: &str = "io.k8s.";
const SHARED: &str = "apimachinery.pkg.apis.meta.v1.";
static TABLE: &str = include_str!("../../tables/schema.tsv");

/// All named types, sorted by name; their fields are parsed on demand.
fn all() -> &'static [Named] {
    static ALL: OnceLock<Box<[Named]>> = OnceLock::new();
    ALL.get_or_init(|| {
        json::know(known_names);
        let blocks = TABLE.strip_prefix('=').unwrap_or(TABLE).split("\n=");
        let parsed = blocks.map(|block| {
            let (head, text) = block.split_once('\n').unwrap_or((block, ""));
            let name = head.trim_end_matches('!');
            Named { name, atomic: head.ends_with('!'), text, parsed: OnceLock::new() }
        });
        let mut all: Vec<_> = parsed.collect();
        all.sort_by_key(|d| d.name);
        all.into()
    })
}

/// The names of all fields, and what managed fields call them.
fn known_names() -> Vec<&'static str> {
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('='));
    let names: BTreeSet<&str> = lines.filter_map(|line| line.split('\t').next()).collect();
    let owned: &'static str = names.iter().map(|name| format!("f:{name}\n")).collect::<String>().leak();
    names.into_iter().chain(owned.lines()).chain(["."]).collect()
}

fn named(short: &str) -> Option<&'static Named> {
    let all = all();
    let at = all.binary_search_by(|d| d.name.cmp(short)).ok()?;
    Some(&all[at])
}

/// The type of that name: `io.k8s.api.core.v1.Pod`.
pub fn of(name: &str) -> Option<&'static Type> {
    named(name.strip_prefix(PREFIX)?).map(Named::resolve)
}

/// The type of a built-in kind, also of those that all groups share; any JSON when the table does not have it.
pub fn of_kind(group: &str, version: &str, kind: &str) -> Type {
    const FOLDERS: [&str; 4] =
        ["api", "apiextensions-apiserver.pkg.apis", "kube-aggregator.pkg.apis", "metrics.pkg.apis"];
    let group = match group.split('.').next().unwrap_or_default() {
        "" => "core",
        "internal" => "apiserverinternal",
        other => other,
    };
    let own = || FOLDERS.iter().find_map(|folder| named(&format!("{folder}.{group}.{version}.{kind}")));
    let shared = || named(&format!("{SHARED}{kind}")).filter(|_| matches!(group, "core" | "meta"));
    own().or_else(shared).map_or(Type::Any, Type::Ref)
}

/// The type of an object that says itself what it is.
pub fn of_object(object: &json::Value) -> Type {
    let said = |name: &str| object.get(name).and_then(json::Value::as_str).unwrap_or("");
    let api_version = said("apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    of_kind(group, version, said("kind"))
}

/// The names of all named types, sorted.
pub fn names() -> impl Iterator<Item = String> {
    all().iter().map(|named| format!("{PREFIX}{}", named.name))
}

fn parse_field(line: &'static str) -> Field {
    let mut columns = line.split('\t');
    let mut next = || columns.next().unwrap_or("");
    let (name, code, zero, patch) = (next(), next(), next(), next());
    let (strategies, merge_key) = patch.split_once(':').unwrap_or((patch, ""));
    let has = |wanted: &str| strategies.split(',').any(|s| s == wanted);
    Field {
        name: json::Key::of(name),
        element: json::Key::joined("f:", name),
        place: 0,
        ty: parse_type(code),
        zero: match zero {
            "d" => Zero::Drop,
            "f" => Zero::Fill,
            _ => Zero::Keep,
        },
        merge: has("merge"),
        retain_keys: has("retainKeys"),
        replace: has("replace"),
        merge_key: merge_key.into(),
        published: next(),
    }
}

fn parse_type(code: &'static str) -> Type {
    let map = |values, atomic| Type::Map(Arc::new(Map { values: parse_type(values), atomic }));
    let list = |items, kind| Type::List(Arc::new(List { items: parse_type(items), kind }));
    let rest = code.get(1..).unwrap_or("");
    match code.as_bytes().first() {
        Some(b's') => Type::String,
        Some(b'i') => Type::Int32,
        Some(b'l') => Type::Int64,
        Some(b'n') => Type::Number,
        Some(b'b') => Type::Bool,
        Some(b'y') => Type::Bytes,
        Some(b'q') => Type::Quantity,
        Some(b't') => Type::Time,
        Some(b'm') => Type::MicroTime,
        Some(b'x') => Type::IntOrString,
        Some(b'r') => Type::Raw,
        Some(b'@') => match rest.strip_prefix('+') {
            Some(name) => named(name).map_or(Type::Any, |named| Type::Ref(named.granular())),
            None => named(rest).map_or(Type::Any, Type::Ref),
        },
        Some(b'{') => match rest.strip_prefix('!') {
            Some(values) => map(values, true),
            None => map(rest, false),
        },
        Some(b'[') => match (rest.strip_prefix('='), rest.split_once(';')) {
            (Some(items), _) => list(items, ListKind::Set),
            (None, Some((keys, items))) => list(items, ListKind::map(keys.split(',').map(parse_key).collect())),
            (None, None) => list(rest, ListKind::Atomic),
        },
        _ => Type::Any,
    }
}

fn parse_key(text: &str) -> Key {
    match text.split_once(':') {
        Some((name, default)) => Key { name: name.into(), default: Some(default.into()) },
        None => Key { name: text.into(), default: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_parses_and_every_reference_resolves() {
        fn visit(ty: &Type, at: &str) {
            match ty {
                Type::Map(map) => visit(&map.values, at),
                Type::List(list) => visit(&list.items, at),
                Type::Any => assert!(!at.contains('@'), "{at}"),
                _ => {}
            }
        }
        let mut fields = 0;
        for name in names() {
            let object = of(&name).and_then(Type::object).expect(&name);
            for field in &object.fields {
                fields += 1;
                visit(&field.ty, &field.name);
            }
        }
        assert!(fields > 2900, "{fields}");
        assert_eq!(TABLE.matches('@').count(), count_refs());
    }

    #[test]
    fn fields_are_found_whether_few_or_many() {
        for count in [0, 1, 2, 3, 8, 33, places::FEW, places::FEW + 1, 300] {
            let names: Vec<String> = (0..count).map(|i| format!("field{}", i * 7)).collect();
            let object = Object::new("O", names.iter().map(|name| Field::new(name, Type::Any)).collect());
            for name in &names {
                let position = object.position(name).expect(name);
                assert_eq!(*object.fields[position].name, **name, "of {count}");
            }
            for other in ["", "field", "field1", "zz", "a-name-that-is-longer-than-all-others"] {
                assert_eq!(object.position(other), None, "{other:?} among {count}");
            }
        }
        for object in all().iter().filter_map(|named| named.resolve().object()) {
            for (position, field) in object.fields.iter().enumerate() {
                assert_eq!(object.position(&field.name), Some(position), "{} {}", object.name, field.name);
            }
        }
    }

    fn count_refs() -> usize {
        fn refs(ty: &Type) -> usize {
            match ty {
                Type::Ref(_) => 1,
                Type::Map(map) => refs(&map.values),
                Type::List(list) => refs(&list.items),
                _ => 0,
            }
        }
        let objects = all().iter().filter_map(|named| named.resolve().object());
        objects.flat_map(|o| o.fields.iter()).map(|f| refs(&f.ty)).sum()
    }

    #[test]
    fn a_reference_may_be_owned_field_by_field() {
        let of = |name: &str, field: &str| of(name).and_then(|ty| ty.field(field)).expect("known").ty.clone();
        let (claim, target) =
            (of("io.k8s.api.core.v1.PersistentVolumeSpec", "claimRef"), of("io.k8s.api.core.v1.Binding", "target"));
        assert_eq!((claim.name(), claim.object().map(|object| object.atomic)), (target.name(), Some(false)));
        assert_eq!(target.object().map(|object| object.atomic), Some(true));
    }

    #[test]
    fn fields_carry_their_merge_rules() {
        let pod = of("io.k8s.api.core.v1.PodSpec").expect("known");
        let volumes = pod.field("volumes").expect("known");
        assert!(volumes.merge && volumes.retain_keys && &*volumes.merge_key == "name");
        let ports = of("io.k8s.api.core.v1.Container").and_then(|c| c.field("ports")).expect("known");
        let Type::List(list) = &ports.ty else { panic!("{ports:?}") };
        let ListKind::Map(keys) = &list.kind else { panic!("{list:?}") };
        assert_eq!(keys[1].default, Some("TCP".into()));
        assert_eq!(ports.ty.go_name(), "[]v1.ContainerPort");
    }
}

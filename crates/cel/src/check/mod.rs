//! The checker: gives every expression a type, finds the functions that its calls may mean, and turns it into what is
//! evaluated. Its complaints are cel-go's.

mod calls;
mod facts;
mod fold;
mod inference;
mod objects;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{CompileError, Issue};
use crate::function::Functions;
use crate::node::{Index, Node, Select};
use crate::syntax::ast::{Access, Expr, Kind};
use crate::syntax::{escaped, unescaped};
use crate::typing::Type;
use crate::value::Value;
pub(crate) use facts::{Facts, Resolved};
use inference::Inference;
pub(crate) use objects::Made;

/// The functions, variables and composed variables that expressions may name.
#[derive(Default, Clone)]
pub(crate) struct Declarations {
    pub functions: Arc<Functions>,
    pub variables: Arc<Vec<(String, Type)>>,
    /// The name in front of composed variables, and their types in order.
    pub composed: Option<(String, Vec<(String, Type)>)>,
    /// Object types, with their fields.
    pub objects: BTreeMap<String, BTreeMap<String, Type>>,
    /// Types that expressions make objects of.
    pub made: Vec<Made>,
    /// Names of types.
    pub types: BTreeMap<&'static str, Type>,
    /// Whether the keys of maps are selected by their spelling: `a__dot__b` for `a.b`.
    pub spelled: bool,
}

/// The checked form of an expression, and the type of its result.
pub(crate) fn check(source: &str, expr: &Expr, declarations: &Declarations) -> Result<(Node, Type), CompileError> {
    Checker::new(declarations, None).whole(source, expr).map(|(node, kind, _)| (node, kind))
}

/// The checked form and type, with the facts about each part. The expression's parts are numbered, below `count`.
pub(crate) fn check_with_facts(
    source: &str,
    expr: &Expr,
    count: usize,
    declarations: &Declarations,
) -> Result<(Node, Type, Facts), CompileError> {
    Checker::new(declarations, Some(Facts::new(count))).whole(source, expr)
}

struct Checker<'d> {
    declarations: &'d Declarations,
    inference: Inference,
    /// The variables of the folds around, innermost last.
    scope: Vec<(String, Type)>,
    issues: Vec<Issue>,
    /// The forms of the call that was checked last.
    resolved: Option<Resolved>,
    /// The calls of `format` around: what is formatted together may be of different types.
    formats: usize,
    /// Literals whose elements must be of one type.
    literals: Vec<Literal>,
    /// Complaints that are made only of an expression whose types are right.
    late: Vec<Issue>,
    /// Why no program can be made of the expression, right as it is.
    no_program: Option<String>,
    /// Kept for whoever asks.
    facts: Option<Facts>,
}

type Checked = (Node, Type);

/// The places and types of what must be of one type. Upstream complains about one item of a list, and about all of a map.
struct Literal {
    items: Vec<(usize, Type)>,
    complaints_max: usize,
}

impl<'d> Checker<'d> {
    fn new(declarations: &'d Declarations, facts: Option<Facts>) -> Self {
        let (scope, issues, literals, late) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let inference = Inference::default();
        Checker {
            declarations,
            inference,
            scope,
            issues,
            resolved: None,
            formats: 0,
            literals,
            late,
            no_program: None,
            facts,
        }
    }

    fn whole(mut self, source: &str, expr: &Expr) -> Result<(Node, Type, Facts), CompileError> {
        let (node, kind) = self.check(expr);
        let kind = self.inference.finished(&kind);
        if self.issues.is_empty() {
            self.compare_literals();
            self.issues.append(&mut self.late);
        }
        if !self.issues.is_empty() {
            return Err(CompileError::new(source, self.issues));
        }
        if let Some(why) = self.no_program {
            return Err(CompileError::of_program(why));
        }
        let mut facts = self.facts.take().unwrap_or_default();
        facts.finish(|kind| self.inference.finished(kind));
        Ok((node, kind, facts))
    }
}

impl Checker<'_> {
    fn complain(&mut self, at: usize, message: String) -> Checked {
        self.issues.push(Issue { at, message });
        (Node::Constant(Value::Null), Type::Error)
    }

    fn mismatch(&mut self, at: usize, expected: &Type, found: &Type) {
        let (expected, found) = (self.inference.finished(expected), self.inference.finished(found));
        self.complain(at, format!("expected type '{expected}' but found '{found}'"));
    }

    fn check(&mut self, expr: &Expr) -> Checked {
        let checked = self.check_kind(expr);
        let resolved = self.resolved.take();
        if let Some(facts) = &mut self.facts {
            facts.note(expr, &checked.1, resolved);
        }
        checked
    }

    fn check_kind(&mut self, expr: &Expr) -> Checked {
        match &expr.kind {
            Kind::Literal(value) => (Node::Constant(value.clone()), value.type_of()),
            Kind::Ident(name) => self.ident(expr.at, name),
            Kind::Select { operand, field, access } => self.select(expr, operand, field, *access),
            Kind::Call { function, target, arguments } => self.call(expr.at, function, target.as_deref(), arguments),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
            Kind::Object { name, fields } => self.object(expr.at, name, fields),
            Kind::Fold(fold) => self.fold(fold),
        }
    }

    /// The variable that a name means, if anything.
    fn named(&self, name: &str) -> Option<Checked> {
        if let Some(slot) = self.scope.iter().rposition(|(n, _)| n == name) {
            return Some((Node::Slot(slot), self.scope[slot].1.clone()));
        }
        if let Some(number) = self.declarations.variables.iter().position(|(n, _)| n == name) {
            return Some((Node::Variable(number), self.declarations.variables[number].1.clone()));
        }
        let kind = self.declarations.types.get(name)?;
        Some((Node::Constant(Value::Type(kind.clone())), Type::Type(Arc::new(kind.clone()))))
    }

    fn ident(&mut self, at: usize, name: &str) -> Checked {
        match self.named(name) {
            Some(found) => found,
            None => self.undeclared(at, name),
        }
    }

    fn undeclared(&mut self, at: usize, name: &str) -> Checked {
        self.complain(at, format!("undeclared reference to '{name}' (in container '')"))
    }

    fn select(&mut self, expr: &Expr, operand: &Expr, field: &str, access: Access) -> Checked {
        if access == Access::Plain
            && let Some(name) = expr.qualified_name()
            && !self.in_scope(name.split('.').next().unwrap_or_default())
            && let Some(found) = self.named(&name)
        {
            return found;
        }
        if let Some(found) = self.composed(expr.at, operand, field, access) {
            return found;
        }
        let (node, kind) = self.check(operand);
        let kind = self.inference.known(&kind);
        let (inner, wrapped) = match &kind {
            Type::Optional(inner) => (self.inference.known(inner), true),
            other => (other.clone(), false),
        };
        let field = &*self.spelling(&inner, field);
        let Some(found) = self.field_type(expr.at, &inner, field) else { return (node, Type::Error) };
        let result = match access {
            Access::Presence => Type::Bool,
            Access::Optional => match found {
                already @ Type::Optional(_) => already,
                other => Type::optional(other),
            },
            Access::Plain if wrapped => Type::optional(found),
            Access::Plain => found,
        };
        let spelled = self.declarations.spelled && !matches!(inner, Type::Object(_));
        let field = if spelled { unescaped(field) } else { None }.unwrap_or_else(|| field.to_owned()).into();
        (Node::Select(Box::new(Select { operand: node, field, access })), result)
    }

    /// The name under which an object has a field. Words that are reserved though the grammar has no use for them, such
    /// as `namespace`, select fields as they are, which are declared by their spelling.
    fn spelling<'f>(&self, kind: &Type, field: &'f str) -> Cow<'f, str> {
        match kind {
            Type::Object(name) if self.declarations.field_of(name, field).is_none() => {
                let spelled = escaped(field).filter(|spelled| *spelled == format!("__{field}__"));
                let declared = spelled.filter(|spelled| self.declarations.field_of(name, spelled).is_some());
                declared.map_or(Cow::Borrowed(field), Cow::Owned)
            }
            _ => Cow::Borrowed(field),
        }
    }

    fn in_scope(&self, name: &str) -> bool {
        self.scope.iter().any(|(n, _)| n == name)
    }

    /// A variable that is an expression of its own: `variables.name`.
    fn composed(&mut self, at: usize, operand: &Expr, field: &str, access: Access) -> Option<Checked> {
        let (prefix, variables) = self.declarations.composed.as_ref()?;
        if operand.as_ident() != Some(prefix) || self.in_scope(prefix) {
            return None;
        }
        let Some(number) = variables.iter().rposition(|(name, _)| name == field) else {
            return Some(self.complain(at, format!("undefined field '{field}'")));
        };
        let kind = variables[number].1.clone();
        Some(match access {
            Access::Plain => (Node::Composed(number), kind),
            Access::Presence => (Node::Constant(Value::Bool(true)), Type::Bool),
            Access::Optional => (Node::Some(Box::new(Node::Composed(number))), Type::optional(kind)),
        })
    }

    fn field_type(&mut self, at: usize, kind: &Type, field: &str) -> Option<Type> {
        match kind {
            Type::Dyn | Type::Error => Some(Type::Dyn),
            // A type that is not known yet turns out to be something when it is evaluated.
            Type::Variable(_) => {
                self.inference.assignable(&Type::Dyn, kind);
                Some(Type::Dyn)
            }
            Type::Map(pair) => Some(pair.1.clone()),
            Type::Object(name) => {
                let found = self.declarations.field_of(name, field);
                if found.is_none() {
                    self.complain(at, format!("undefined field '{field}'"));
                }
                found
            }
            other => {
                let other = self.inference.finished(other);
                self.complain(at, format!("type '{other}' does not support field selection"));
                None
            }
        }
    }

    /// The type of an element behind a `?`: what the optional holds.
    fn element(&mut self, expr: &Expr, optional: bool) -> Checked {
        let (node, kind) = self.check(expr);
        if !optional {
            return (node, kind);
        }
        match self.inference.known(&kind) {
            Type::Optional(inner) => (node, (*inner).clone()),
            known if known.is_dyn() => (node, known),
            other => {
                self.mismatch(expr.at, &Type::optional(other.clone()), &other);
                (node, other)
            }
        }
    }

    /// The type that elements share: `dyn` where they have none in common.
    fn join(&mut self, before: Option<Type>, next: Type) -> Type {
        match before {
            None => next,
            Some(before) if self.inference.assignable(&before, &next) => self.inference.more_general(before, next),
            Some(_) => Type::Dyn,
        }
    }

    /// Remembers a literal whose elements must be of one type.
    fn remember(&mut self, items: Vec<(usize, Type)>, complaints_max: usize) {
        if self.formats == 0 {
            self.literals.push(Literal { items, complaints_max });
        }
    }

    /// Refuses elements of different types, as Kubernetes configures cel-go. What a type is in the end decides.
    fn compare_literals(&mut self) {
        for Literal { items, complaints_max } in std::mem::take(&mut self.literals) {
            let Some((_, first)) = items.first() else { continue };
            let first = self.inference.finished(first);
            let others = items.iter().filter(|(_, kind)| self.inference.finished(kind) != first);
            let wrong: Vec<&(usize, Type)> = others.take(complaints_max).collect();
            wrong.into_iter().for_each(|(at, kind)| self.mismatch(*at, &first, kind));
        }
    }

    fn list(&mut self, items: &[(Expr, bool)]) -> Checked {
        let (mut nodes, mut kinds, mut kind) = (Vec::new(), Vec::new(), None);
        for (item, optional) in items {
            let (node, found) = self.element(item, *optional);
            kinds.push((item.at, found.clone()));
            kind = Some(self.join(kind, found));
            nodes.push((node, *optional));
        }
        self.remember(kinds, 1);
        let kind = kind.unwrap_or_else(|| self.inference.fresh());
        // Constants make a constant, which costs nothing to evaluate.
        let constants: Option<Vec<Value<'static>>> =
            nodes.iter().map(|(node, optional)| node.constant().filter(|_| !optional).cloned()).collect();
        let node = constants.map_or(Node::List(nodes), |values| Node::Constant(Value::list(values)));
        (node, Type::list(kind))
    }

    fn map(&mut self, entries: &[(Expr, Expr, bool)]) -> Checked {
        let (mut nodes, mut keys, mut values) = (Vec::new(), None, None);
        let (mut key_types, mut value_types) = (Vec::new(), Vec::new());
        for (key, value, optional) in entries {
            let (key_node, key_type) = self.check(key);
            key_types.push((key.at, key_type.clone()));
            keys = Some(self.join(keys, key_type));
            let (value_node, value_type) = self.element(value, *optional);
            value_types.push((value.at, value_type.clone()));
            values = Some(self.join(values, value_type));
            nodes.push((key_node, value_node, *optional));
        }
        self.remember(key_types, usize::MAX);
        self.remember(value_types, usize::MAX);
        let keys = keys.unwrap_or_else(|| self.inference.fresh());
        let values = values.unwrap_or_else(|| self.inference.fresh());
        let mut constant = Some(crate::value::Map::empty());
        for (key, value, optional) in &nodes {
            constant = match (constant, key.constant(), value.constant()) {
                (Some(map), Some(key), Some(value)) if !optional => map.insert(key.clone(), value.clone()).ok(),
                _ => None,
            };
        }
        let node = constant.map_or(Node::Map(nodes), |map| Node::Constant(Value::Map(map)));
        (node, Type::map(keys, values))
    }

    fn index(&mut self, at: usize, operand: &Expr, index: &Expr, optional: bool) -> Checked {
        let (node, kind) = self.check(operand);
        let (index_node, index_type) = self.check(index);
        let kind = self.inference.known(&kind);
        let (inner, wrapped) = match &kind {
            Type::Optional(inner) => (self.inference.known(inner), true),
            other => (other.clone(), false),
        };
        let (wanted, found) = match &inner {
            Type::List(item) => (Type::Int, (**item).clone()),
            Type::Map(pair) => (pair.0.clone(), pair.1.clone()),
            known if known.is_dyn() => (Type::Dyn, Type::Dyn),
            Type::Variable(_) => (Type::Dyn, Type::Dyn),
            _ => (Type::Error, Type::Error),
        };
        let known = !matches!(wanted, Type::Error) || inner == Type::Error;
        if !known || !self.inference.assignable(&wanted, &index_type) {
            let name = if optional { "_[?_]" } else { "_[_]" };
            return self.no_overload(at, name, &[kind, index_type], false);
        }
        let result = if optional || wrapped { Type::optional(found) } else { found };
        (Node::Index(Box::new(Index { operand: node, index: index_node, optional })), result)
    }
}

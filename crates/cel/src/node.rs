//! A checked expression, ready to be evaluated: names are places, functions are the forms that may apply.

use std::sync::Arc;

use regex::Regex;

use crate::syntax::ast::Access;
use crate::typing::Type;
use crate::value::Value;

#[derive(Debug, Clone)]
pub(crate) enum Node {
    Constant(Value<'static>),
    /// A variable of the environment, by its number.
    Variable(usize),
    /// A variable of a fold, by its place on the stack.
    Slot(usize),
    /// A variable that is an expression of its own, by its number.
    Composed(usize),
    Some(Box<Node>),
    Select(Box<Select>),
    /// `a[b]`, and whether it is `a[?b]`.
    Index(Box<Index>),
    And(Vec<Node>),
    Or(Vec<Node>),
    Conditional(Box<[Node; 3]>),
    Equal(Box<[Node; 2]>, bool),
    /// `x in [1, 2]` with simple constants costs nothing upstream.
    OneOf(Box<Node>, Vec<Value<'static>>),
    /// `a.or(b)` and, with the flag, `a.orValue(b)`.
    Alternative(Box<[Node; 2]>, bool),
    NotStrictlyFalse(Box<Node>),
    Call(Box<CallNode>),
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    /// The type's name, and fields with their values and whether each is optional.
    Object(Arc<str>, Vec<FieldNode>),
    Fold(Box<FoldNode>),
    /// A fold's step that adds to its accumulator, which nobody else holds: in place.
    Append {
        slot: usize,
        item: Box<Node>,
        /// The cost of the list of the one item.
        cost: u64,
    },
    Insert {
        slot: usize,
        entry: Box<Entry>,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum Entry {
    One(Node, Node),
    All(Node),
}

#[derive(Debug, Clone)]
pub(crate) struct Select {
    pub operand: Node,
    pub field: Arc<str>,
    pub access: Access,
}

/// A field of an object that is made.
#[derive(Debug, Clone)]
pub(crate) struct FieldNode {
    pub name: Arc<str>,
    /// The type that the field is declared with.
    pub kind: Type,
    pub value: Node,
    pub optional: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Index {
    pub operand: Node,
    pub index: Node,
    pub optional: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct CallNode {
    /// The forms that the types of the arguments allow.
    pub overloads: Vec<usize>,
    pub arguments: Vec<Node>,
    pub pattern: Option<Regex>,
}

#[derive(Debug, Clone)]
pub(crate) struct FoldNode {
    pub range: Node,
    pub start: Node,
    pub condition: Node,
    pub step: Node,
    pub result: Node,
    /// The place of the accumulator; the variables follow it.
    pub slot: usize,
    /// Whether the fold has two variables: index or key, and value.
    pub pairs: bool,
}

impl Node {
    /// Whether upstream evaluates the node as one attribute: a variable, a path from it, or a choice between such.
    pub(crate) fn is_attribute(&self) -> bool {
        matches!(self, Node::Variable(_) | Node::Slot(_) | Node::Select(_) | Node::Index(_) | Node::Conditional(_))
    }

    pub(crate) fn constant(&self) -> Option<&Value<'static>> {
        match self {
            Node::Constant(value) => Some(value),
            _ => None,
        }
    }
}

//! How large the values that an expression sees can be, place by place, as their declaration bounds them.

use std::collections::BTreeMap;

use super::Range;

/// One place of a variable's declaration.
#[derive(Debug, Clone, Default)]
pub struct Sizes {
    /// The most elements of a list or map, or the most characters. Zero for numbers and for objects, which have no size.
    pub most: u64,
    pub fields: BTreeMap<Box<str>, Sizes>,
    /// The sizes of a map's keys.
    pub keys: Option<Box<Sizes>>,
    /// The sizes of a list's items or a map's values.
    pub items: Option<Box<Sizes>>,
    /// Whether a value that is selected like a field is as large as the items are. Otherwise nothing bounds it.
    pub selected: bool,
}

/// The declarations that an estimate goes by.
#[derive(Debug, Clone, Copy)]
pub struct Declared<'s> {
    pub root: &'s Sizes,
    /// The only variable that the root is about; `None` if it is about every one.
    pub variable: Option<&'s str>,
}

/// A step of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step<'e> {
    Field(&'e str),
    Items,
    Keys,
    /// The number of a list's item. No declaration knows its size.
    Indices,
}

/// Where in the declarations a value comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'s> {
    /// The expression made it.
    Nowhere,
    At(&'s Sizes),
    /// It comes from a variable, but nothing is declared about it.
    Undeclared,
}

impl<'s> Place<'s> {
    pub(crate) fn size(self) -> Option<Range> {
        match self {
            Place::At(sizes) => Some(Range::up_to(sizes.most)),
            _ => None,
        }
    }

    /// The place one step further. Upstream takes the first step of every path for the name of a variable, and what
    /// an expression made has a path too once something is selected from it: its first step leads to the root.
    pub(crate) fn child(self, step: Step<'_>, declared: Declared<'s>) -> Place<'s> {
        let found = match (self, step) {
            (Place::Nowhere, Step::Field(name)) => return declared.variable(name),
            (Place::Nowhere, _) if declared.variable.is_none() => Some(declared.root),
            (Place::At(sizes), Step::Field(name)) => {
                sizes.fields.get(name).or_else(|| sizes.items.as_deref().filter(|_| sizes.selected))
            }
            (Place::At(sizes), Step::Items) => sizes.items.as_deref(),
            (Place::At(sizes), Step::Keys) => sizes.keys.as_deref(),
            _ => None,
        };
        found.map_or(Place::Undeclared, Place::At)
    }
}

impl<'s> Declared<'s> {
    pub(crate) fn variable(self, name: &str) -> Place<'s> {
        if self.variable.is_none_or(|only| only == name) { Place::At(self.root) } else { Place::Undeclared }
    }
}

//! The facts about a span that is over, within bounds: clients choose some of them.

use std::borrow::Cow;

use clock::Timestamp;

use crate::context::Context;

/// Longer values are cut.
const VALUE_BYTES: usize = 1024;
const ATTRIBUTES: usize = 32;
/// Upstream's number.
const EVENTS: usize = 128;

/// The side of a call that a span shows. The numbers are the protocol's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Side {
    /// A part of a process's own work.
    Internal = 1,
    Server = 2,
    Client = 3,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    Text(String),
    Number(i64),
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        let mut end = text.len().min(VALUE_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Attribute::Text(text[..end].to_owned())
    }
}

impl From<u16> for Attribute {
    fn from(number: u16) -> Self {
        Attribute::Number(number.into())
    }
}

impl From<usize> for Attribute {
    fn from(number: usize) -> Self {
        Attribute::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// A point in time within a span.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub name: &'static str,
    pub at: Timestamp,
    pub attributes: Vec<(&'static str, Attribute)>,
}

/// Everything about a span that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    pub context: Context,
    pub parent: Option<u64>,
    /// Another trace that this one came from without belonging to it.
    pub link: Option<Context>,
    pub name: Cow<'static, str>,
    pub side: Side,
    pub began: Timestamp,
    pub ended: Timestamp,
    pub attributes: Vec<(&'static str, Attribute)>,
    pub events: Vec<Event>,
    pub failed: bool,
}

impl Facts {
    /// A span that begins now. Its context is not known yet.
    pub fn new(name: Cow<'static, str>, side: Side) -> Self {
        let began = clock::now();
        let context = Context { trace: 0, span: 0, sampled: true };
        let (attributes, events) = (Vec::new(), Vec::new());
        Facts { context, parent: None, link: None, name, side, began, ended: began, attributes, events, failed: false }
    }

    pub fn below(mut self, parent: u64) -> Self {
        self.parent = Some(parent);
        self
    }

    pub fn set(&mut self, name: &'static str, value: Attribute) {
        if self.attributes.len() < ATTRIBUTES {
            self.attributes.push((name, value));
        }
    }

    pub fn add(&mut self, name: &'static str, attributes: Vec<(&'static str, Attribute)>) {
        if self.events.len() < EVENTS {
            self.events.push(Event { name, at: clock::now(), attributes });
        }
    }
}

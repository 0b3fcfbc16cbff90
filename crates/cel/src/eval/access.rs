//! Fields and elements: what there is, what there is not, and what an optional passes on.

use std::sync::Arc;

use super::{Outcome, Run};
use crate::error::EvaluationError;
use crate::node::{Index, Node, Select};
use crate::syntax::ast::Access;
use crate::value::Value;

impl<'a> Run<'a, '_> {
    /// The value that a path continues from. An operand that is no attribute itself is charged for becoming one.
    fn operand(&mut self, node: &Node) -> Outcome<'a> {
        let value = self.eval(node)?;
        if !node.is_attribute() {
            self.budget.charge(1)?;
        }
        Ok(value)
    }

    pub(super) fn select(&mut self, select: &Select) -> Outcome<'a> {
        let operand = self.operand(&select.operand)?;
        let field = &*select.field;
        if select.access == Access::Presence {
            let inner = match operand {
                Value::Optional(None) => return Ok(Value::Bool(false)),
                Value::Optional(Some(inner)) => (*inner).clone(),
                other => other,
            };
            return found(&inner, &Value::str(field)).map(|v| Value::Bool(v.is_some()));
        }
        self.budget.charge(1)?;
        if let Value::Map(map) = &operand
            && select.access == Access::Plain
        {
            return map.field(field)?.ok_or_else(|| EvaluationError::no_such_key(field));
        }
        reach(operand, &Value::string(field), select.access == Access::Optional)
    }

    pub(super) fn index(&mut self, index: &Index) -> Outcome<'a> {
        let operand = self.operand(&index.operand)?;
        let key = self.eval(&index.index)?;
        // An index that is an attribute is charged as a part of the path.
        if index.index.is_attribute() && !matches!(index.index, Node::Conditional(_)) {
            self.budget.refund(1);
        }
        self.budget.charge(1)?;
        reach(operand, &key, index.optional)
    }
}

/// The value behind a key or index; `None` if nothing is there.
fn found<'a>(operand: &Value<'a>, key: &Value<'_>) -> Result<Option<Value<'a>>, EvaluationError> {
    match operand {
        Value::Map(map) => map.get(key),
        Value::Object(object) => Ok(key.as_str().and_then(|field| object.get(field)).cloned()),
        Value::List(list) => match position(key) {
            Some(at) => Ok(usize::try_from(at).ok().and_then(|at| list.get(at))),
            None => Err(EvaluationError::new(format!("unsupported index type '{}' in list", key.type_of()))),
        },
        _ => Ok(None),
    }
}

fn position(key: &Value<'_>) -> Option<i128> {
    match key {
        Value::Int(i) => Some((*i).into()),
        Value::Uint(u) => Some((*u).into()),
        #[expect(clippy::cast_possible_truncation)]
        Value::Double(d) if d.fract() == 0.0 => Some(*d as i128),
        _ => None,
    }
}

fn reach<'a>(operand: Value<'a>, key: &Value<'_>, optional: bool) -> Outcome<'a> {
    let wrap = |value: Option<Value<'a>>| match value {
        Some(already @ Value::Optional(_)) => already,
        other => Value::Optional(other.map(Arc::new)),
    };
    match operand {
        Value::Optional(None) => Ok(Value::Optional(None)),
        // Behind an optional, what is missing is no error.
        Value::Optional(Some(inner)) => found(&inner, key).map(wrap),
        operand if optional => found(&operand, key).map(wrap),
        // A field that is not set has no value.
        Value::Object(_) => found(&operand, key).map(Option::unwrap_or_default),
        operand => found(&operand, key)?.ok_or_else(|| match operand {
            Value::List(_) => EvaluationError::new(format!("index out of bounds: {key}")),
            _ => EvaluationError::no_such_key(key),
        }),
    }
}

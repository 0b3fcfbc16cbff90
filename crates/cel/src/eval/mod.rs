//! The evaluator. Costs are charged as upstream's interpreter charges them, step by step.

mod access;
mod fold;
mod program;

use std::sync::Arc;

pub use program::{Composed, Composition, Program, Variables};

use crate::budget::{Budget, LIST_COST, MAP_COST, OBJECT_COST, traversal};
use crate::error::EvaluationError;
use crate::function::{Call, Overload};
use crate::node::{CallNode, FieldNode, Node};
use crate::value::{Made, Map, Value, equal};

pub(crate) type Outcome<'a> = Result<Value<'a>, EvaluationError>;

/// Expressions are no deeper than half of this; one that uses composed variables goes on in theirs.
const DEEPEST: usize = 500;

/// One evaluation.
pub(crate) struct Run<'a, 'r> {
    pub overloads: &'r [Overload],
    /// The environment's variables by their numbers.
    pub variables: &'r [Option<Value<'a>>],
    pub names: &'r [(String, crate::typing::Type)],
    /// The variables of the folds around. An accumulator may hold an error, which a later element can absorb.
    pub slots: Vec<Outcome<'a>>,
    pub budget: &'r mut Budget,
    /// The variables that are expressions of their own.
    pub composition: Option<&'r Composition<'r, 'a>>,
    /// Nodes around the one that is evaluated.
    pub depth: usize,
}

impl<'a> Run<'a, '_> {
    pub(crate) fn eval(&mut self, node: &Node) -> Outcome<'a> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(EvaluationError::new("variables are nested too deeply"));
        }
        let outcome = self.step(node);
        self.depth -= 1;
        outcome
    }

    fn step(&mut self, node: &Node) -> Outcome<'a> {
        match node {
            Node::Constant(value) => Ok(value.clone()),
            Node::Variable(number) => self.variable(*number),
            Node::Slot(slot) => {
                self.budget.charge(1)?;
                self.slots[*slot].clone()
            }
            Node::Composed(number) => {
                // One for the name in front and one for the field.
                self.budget.charge(2)?;
                let missing = || EvaluationError::no_such_key("variables");
                self.composition.ok_or_else(missing)?.value(*number, self.depth)
            }
            Node::Some(inner) => self.eval(inner).map(Value::some),
            Node::Select(select) => self.select(select),
            Node::Index(index) => self.index(index),
            Node::And(terms) => self.logic(terms, true),
            Node::Or(terms) => self.logic(terms, false),
            Node::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                match self.eval(condition)? {
                    Value::Bool(true) => self.branch(yes),
                    Value::Bool(false) => self.branch(no),
                    _ => Err(EvaluationError::no_such_overload()),
                }
            }
            Node::Equal(sides, wanted) => self.equality(&sides[0], &sides[1], *wanted),
            Node::OneOf(item, values) => self.one_of(item, values),
            Node::Alternative(sides, value) => self.alternative(&sides[0], &sides[1], *value),
            Node::NotStrictlyFalse(inner) => {
                let value = self.passing(inner)?;
                self.budget.charge(1)?;
                Ok(Value::Bool(!matches!(value, Ok(Value::Bool(false)))))
            }
            Node::Call(call) => self.call(call),
            Node::List(items) => self.list(items),
            Node::Map(entries) => self.map(entries),
            Node::Object(name, fields) => self.object(name, fields),
            Node::Fold(fold) => self.fold(fold),
            Node::Append { slot, item, cost } => self.append(*slot, item, *cost),
            Node::Insert { slot, entry } => self.insert(*slot, entry),
        }
    }

    /// The outcome as a value of its own, unless the budget is used up: that ends everything.
    fn passing(&mut self, node: &Node) -> Result<Outcome<'a>, EvaluationError> {
        match self.eval(node) {
            Err(EvaluationError::CostLimitExceeded) => Err(EvaluationError::CostLimitExceeded),
            outcome => Ok(outcome),
        }
    }

    fn variable(&mut self, number: usize) -> Outcome<'a> {
        self.budget.charge(1)?;
        self.variables[number]
            .clone()
            .ok_or_else(|| EvaluationError::new(format!("no such attribute(s): {}", self.names[number].0)))
    }

    /// An attribute that is the branch of a choice, or an index, is not charged for its beginning.
    fn branch(&mut self, node: &Node) -> Outcome<'a> {
        let value = self.eval(node)?;
        if node.is_attribute() && !matches!(node, Node::Conditional(_)) {
            self.budget.refund(1);
        }
        Ok(value)
    }

    /// `&&` and `||`: the side that decides wins, also over an error of the other.
    fn logic(&mut self, terms: &[Node], neutral: bool) -> Outcome<'a> {
        let mut failed = None;
        for term in terms {
            match self.passing(term)? {
                Ok(Value::Bool(b)) if b == neutral => {}
                Ok(Value::Bool(b)) => return Ok(Value::Bool(b)),
                Ok(_) => failed = failed.or(Some(EvaluationError::no_such_overload())),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(Value::Bool(neutral)), Err)
    }

    fn equality(&mut self, left: &Node, right: &Node, wanted: bool) -> Outcome<'a> {
        let (left, right) = (self.eval(left)?, self.eval(right)?);
        let cost = match &left {
            Value::Opaque(_) if wanted => 1,
            _ => traversal(left.size().min(right.size())),
        };
        self.budget.charge(cost)?;
        equal(&left, &right, self.budget).map(|e| Value::Bool(e == wanted))
    }

    fn one_of(&mut self, item: &Node, values: &[Value<'static>]) -> Outcome<'a> {
        let item = self.eval(item)?;
        for value in values {
            if equal(&item, value, self.budget)? {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }

    fn alternative(&mut self, first: &Node, second: &Node, value: bool) -> Outcome<'a> {
        match self.eval(first)? {
            Value::Optional(Some(inner)) if value => Ok((*inner).clone()),
            found @ Value::Optional(Some(_)) => Ok(found),
            Value::Optional(None) => self.eval(second),
            _ => Err(EvaluationError::no_such_overload()),
        }
    }

    fn call(&mut self, call: &CallNode) -> Outcome<'a> {
        let mut arguments = Vec::with_capacity(call.arguments.len());
        for argument in &call.arguments {
            arguments.push(self.eval(argument)?);
        }
        let fits = |o: &&Overload| arguments.iter().zip(&o.parameters).all(|(value, kind)| value.fits(kind));
        let mut forms = call.overloads.iter().map(|number| &self.overloads[*number]);
        let Some(form) = forms.find(fits) else { return Err(EvaluationError::no_such_overload()) };
        let mut running = Call { budget: &mut *self.budget, pattern: call.pattern.as_ref() };
        let result = (form.run)(&mut running, &arguments);
        self.budget.charge((form.cost)(&arguments, result.as_ref().ok()))?;
        result
    }

    fn list(&mut self, items: &[(Node, bool)]) -> Outcome<'a> {
        let mut values = Vec::with_capacity(items.len());
        for (item, optional) in items {
            match self.eval(item)? {
                Value::Optional(inner) if *optional => values.extend(inner.map(|v| (*v).clone())),
                _ if *optional => return Err(EvaluationError::no_such_overload()),
                value => values.push(value),
            }
        }
        self.budget.charge(LIST_COST)?;
        Ok(Value::list(values))
    }

    fn map(&mut self, entries: &[(Node, Node, bool)]) -> Outcome<'a> {
        let mut map = Map::empty();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let value = match self.eval(value)? {
                Value::Optional(None) if *optional => continue,
                Value::Optional(Some(inner)) if *optional => (*inner).clone(),
                _ if *optional => return Err(EvaluationError::no_such_overload()),
                value => value,
            };
            map = map.put(key, value)?;
        }
        self.budget.charge(MAP_COST)?;
        Ok(Value::Map(map))
    }

    fn object(&mut self, name: &Arc<str>, fields: &[FieldNode]) -> Outcome<'a> {
        let mut made = Made { name: name.clone(), fields: Vec::with_capacity(fields.len()) };
        for field in fields {
            let value = match self.eval(&field.value)? {
                Value::Optional(None) if field.optional => continue,
                Value::Optional(Some(inner)) if field.optional => (*inner).clone(),
                _ if field.optional => return Err(EvaluationError::no_such_overload()),
                value => value,
            };
            if !value.fits(&field.kind) {
                let (found, field) = (value.type_of(), &field.name);
                return Err(EvaluationError::new(format!("unexpected type {found} for {name}Type '{field}' field")));
            }
            made.put(field.name.clone(), value);
        }
        self.budget.charge(OBJECT_COST)?;
        Ok(Value::Object(Arc::new(made)))
    }
}

//! Comprehensions.

use std::sync::Arc;

use super::{Outcome, Run};
use crate::error::EvaluationError;
use crate::node::{Entry, FoldNode, Node};
use crate::value::{List, Map, Value};

impl<'a> Run<'a, '_> {
    pub(super) fn fold(&mut self, fold: &FoldNode) -> Outcome<'a> {
        let range = self.eval(&fold.range)?;
        let start = self.passing(&fold.start)?;
        debug_assert_eq!(self.slots.len(), fold.slot);
        self.slots.push(start);
        let walked = match range {
            Value::List(list) => self.walk(
                fold,
                list.iter().enumerate().map(|(at, item)| {
                    let index = i64::try_from(at).unwrap_or(i64::MAX);
                    if fold.pairs { (Value::Int(index), Some(item)) } else { (item, None) }
                }),
            ),
            Value::Map(map) => self.walk_map(fold, &map),
            _ => Err(EvaluationError::no_such_overload()),
        };
        let result = walked.and_then(|()| self.eval(&fold.result));
        self.slots.truncate(fold.slot);
        result
    }

    fn walk_map(&mut self, fold: &FoldNode, map: &Map<'a>) -> Result<(), EvaluationError> {
        let keys = map.keys();
        self.budget.work(keys.len() as u64)?;
        let mut elements = Vec::with_capacity(keys.len());
        for key in keys {
            let value = if fold.pairs { map.get(&key)? } else { None };
            elements.push((key, value));
        }
        self.walk(fold, elements.into_iter())
    }

    fn walk(
        &mut self,
        fold: &FoldNode,
        elements: impl Iterator<Item = (Value<'a>, Option<Value<'a>>)>,
    ) -> Result<(), EvaluationError> {
        for (first, second) in elements {
            // Even steps that cost nothing end.
            self.budget.work(1)?;
            self.slots.push(Ok(first));
            if let Some(second) = second {
                self.slots.push(Ok(second));
            }
            let more = self.passing(&fold.condition)?;
            if matches!(more, Ok(Value::Bool(false))) {
                self.slots.truncate(fold.slot + 1);
                break;
            }
            let next = self.passing(&fold.step)?;
            self.slots.truncate(fold.slot + 1);
            self.slots[fold.slot] = next;
        }
        Ok(())
    }

    /// The accumulator, taken out of its place: the step's result is put there next.
    fn taken(&mut self, slot: usize) -> Outcome<'a> {
        std::mem::replace(&mut self.slots[slot], Ok(Value::Null))
    }

    pub(super) fn append(&mut self, slot: usize, item: &Node, cost: u64) -> Outcome<'a> {
        // One for the accumulator, one for the addition.
        self.budget.charge(2 + cost)?;
        if let Err(error) = &self.slots[slot] {
            return Err(error.clone());
        }
        let item = self.eval(item)?;
        match self.taken(slot)? {
            Value::List(List::Values(mut items)) => {
                Arc::make_mut(&mut items).push(item);
                Ok(Value::List(List::Values(items)))
            }
            _ => Err(EvaluationError::no_such_overload()),
        }
    }

    pub(super) fn insert(&mut self, slot: usize, entry: &Entry) -> Outcome<'a> {
        self.budget.charge(2)?;
        if let Err(error) = &self.slots[slot] {
            return Err(error.clone());
        }
        let added = match entry {
            Entry::One(key, value) => vec![(self.eval(key)?, self.eval(value)?)],
            Entry::All(map) => match self.eval(map)? {
                Value::Map(map) => {
                    let mut added = Vec::new();
                    for key in map.keys() {
                        self.budget.work(1)?;
                        let value = map.get(&key)?.unwrap_or(Value::Null);
                        added.push((key, value));
                    }
                    added
                }
                _ => return Err(EvaluationError::no_such_overload()),
            },
        };
        let Value::Map(mut map) = self.taken(slot)? else { return Err(EvaluationError::no_such_overload()) };
        for (key, value) in added {
            map = map.insert(key, value)?;
        }
        Ok(Value::Map(map))
    }
}

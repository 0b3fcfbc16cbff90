//! Comprehensions: the types of their variables, and the steps that add to an accumulator in place.

use super::{Checked, Checker};
use crate::budget::LIST_COST;
use crate::node::{CallNode, Entry, FoldNode, Node};
use crate::syntax::ast::Fold;
use crate::typing::Type;
use crate::value::Value;

impl Checker<'_> {
    pub(super) fn fold(&mut self, fold: &Fold) -> Checked {
        let (range, range_type) = self.check(&fold.range);
        let known = self.inference.known(&range_type);
        let (first, second) = match &known {
            Type::List(item) => match fold.second {
                Some(_) => (Type::Int, (**item).clone()),
                None => ((**item).clone(), Type::Dyn),
            },
            Type::Map(pair) => (pair.0.clone(), pair.1.clone()),
            kind if kind.is_dyn() => (Type::Dyn, Type::Dyn),
            Type::Variable(_) => {
                self.inference.assignable(&Type::Dyn, &range_type);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let other = self.inference.finished(other);
                self.complain(
                    fold.range.at,
                    format!(
                        "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                    ),
                );
                (Type::Error, Type::Error)
            }
        };
        let (start, start_type) = self.check(&fold.start);
        let slot = self.scope.len();
        self.scope.push((fold.accumulator.clone(), start_type.clone()));
        self.scope.push((fold.variable.clone(), first));
        if let Some(name) = &fold.second {
            self.scope.push((name.clone(), second));
        }
        let (condition, condition_type) = self.check(&fold.condition);
        if !self.inference.assignable(&Type::Bool, &condition_type) {
            self.mismatch(fold.condition.at, &Type::Bool, &condition_type);
        }
        let (step, step_type) = self.check(&fold.step);
        if !self.inference.assignable(&start_type, &step_type) {
            self.mismatch(fold.step.at, &start_type, &step_type);
        }
        self.scope.truncate(slot + 1);
        let (result, result_type) = self.check(&fold.result);
        self.scope.truncate(slot);
        let step = self.in_place(step, slot);
        let pairs = fold.second.is_some();
        (Node::Fold(Box::new(FoldNode { range, start, condition, step, result, slot, pairs })), result_type)
    }

    /// Recognizes `accumulator + [item]` and the insertion into a map, also behind a filter.
    fn in_place(&self, step: Node, slot: usize) -> Node {
        match step {
            Node::Call(call) => self.addition(*call, slot),
            Node::Conditional(parts) => {
                let [condition, yes, no] = *parts;
                Node::Conditional(Box::new([condition, self.in_place(yes, slot), no]))
            }
            other => other,
        }
    }

    fn addition(&self, mut call: CallNode, slot: usize) -> Node {
        if !matches!(call.arguments.first(), Some(Node::Slot(s)) if *s == slot) {
            return Node::Call(Box::new(call));
        }
        let is = |name: &str| {
            let forms = self.declarations.functions.by_name.get(name);
            forms.is_some_and(|forms| call.overloads.iter().all(|o| forms.contains(o)))
        };
        if is("cel.@mapInsert") {
            let value = call.arguments.pop().expect("an insertion has two or three arguments");
            let entry = match call.arguments.len() {
                2 => Entry::One(call.arguments.pop().expect("there are two"), value),
                _ => Entry::All(value),
            };
            return Node::Insert { slot, entry: Box::new(entry) };
        }
        if is("_+_") {
            match call.arguments.last_mut() {
                Some(Node::List(items)) if items.len() == 1 && !items[0].1 => {
                    let (item, _) = items.pop().expect("there is one");
                    return Node::Append { slot, item: Box::new(item), cost: LIST_COST };
                }
                Some(Node::Constant(Value::List(list))) if list.len() == 1 => {
                    let item = list.get(0).unwrap_or(Value::Null);
                    return Node::Append { slot, item: Box::new(Node::Constant(item)), cost: 0 };
                }
                _ => {}
            }
        }
        Node::Call(Box::new(call))
    }
}

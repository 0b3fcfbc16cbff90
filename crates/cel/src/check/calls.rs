//! Calls: which forms of a function the types of the arguments allow.

use std::collections::HashMap;

use super::{Checked, Checker, Resolved};
use crate::budget::Budget;
use crate::error::Issue;
use crate::function::Call;
use crate::go_pattern::compile_pattern;
use crate::node::{CallNode, Node};
use crate::syntax::ast::Expr;
use crate::typing::Type;
use crate::value::Value;

/// Conversions of constants happen when the expression is compiled.
const CONVERSIONS: [&str; 9] = ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "uint"];

impl Checker<'_> {
    pub(super) fn no_overload(&mut self, at: usize, name: &str, arguments: &[Type], member: bool) -> Checked {
        let mut shown: Vec<String> = arguments.iter().map(|t| self.inference.finished(t).to_string()).collect();
        let receiver = if member { format!("{}.", shown.remove(0)) } else { String::new() };
        let shown = shown.join(", ");
        self.complain(at, format!("found no matching overload for '{name}' applied to '{receiver}({shown})'"))
    }

    pub(super) fn call(&mut self, at: usize, name: &str, target: Option<&Expr>, given: &[Expr]) -> Checked {
        match (name, given) {
            ("_&&_" | "_||_", terms) => return self.logic(at, name, terms),
            ("_?_:_", [condition, yes, no]) => return self.conditional(at, condition, yes, no),
            ("_[_]", [operand, index]) => return self.index(at, operand, index, false),
            ("_[?_]", [operand, index]) => return self.index(at, operand, index, true),
            _ => {}
        }
        let Some(target) = target else { return self.function(at, name, None, given) };
        // A dotted name in front may be the name's first part: `optional.of(x)`.
        if let Some(prefix) = target.qualified_name() {
            let whole = format!("{prefix}.{name}");
            let root = prefix.split('.').next().unwrap_or_default();
            if self.declarations.functions.has(&whole) && !self.in_scope(root) {
                return self.function(at, &whole, None, given);
            }
        }
        self.function(at, name, Some(target), given)
    }

    fn logic(&mut self, at: usize, name: &str, terms: &[Expr]) -> Checked {
        let (mut nodes, mut before) = (Vec::new(), None);
        for term in terms {
            let (node, kind) = self.check(term);
            let fits = self.inference.assignable(&Type::Bool, &kind);
            if let Some(left) = before.replace(if fits { Type::Bool } else { kind.clone() })
                && (!fits || left != Type::Bool)
            {
                return self.no_overload(at, name, &[left, kind], false);
            }
            nodes.push(node);
        }
        (if name == "_&&_" { Node::And(nodes) } else { Node::Or(nodes) }, Type::Bool)
    }

    fn conditional(&mut self, at: usize, condition: &Expr, yes: &Expr, no: &Expr) -> Checked {
        let (condition, condition_type) = self.check(condition);
        let (yes, yes_type) = self.check(yes);
        let (no, no_type) = self.check(no);
        let choice = self.inference.fresh();
        let wanted = [Type::Bool, choice.clone(), choice.clone()];
        let given = [condition_type, yes_type, no_type];
        if !self.inference.all_assignable(&wanted, &given) {
            return self.no_overload(at, "_?_:_", &given, false);
        }
        let [_, yes_type, no_type] = given;
        let kind = self.inference.more_general(yes_type, no_type);
        (Node::Conditional(Box::new([condition, yes, no])), kind)
    }

    fn function(&mut self, at: usize, name: &str, target: Option<&Expr>, given: &[Expr]) -> Checked {
        let (mut nodes, mut types, mut places) = (Vec::new(), Vec::new(), Vec::new());
        self.formats += usize::from(name == "format");
        for argument in target.into_iter().chain(given) {
            let (node, kind) = self.check(argument);
            nodes.push(node);
            types.push(kind);
            places.push(argument.at);
        }
        self.formats -= usize::from(name == "format");
        let declarations = self.declarations;
        let member = target.is_some();
        if let Some(found) = self.special(name, &nodes, &types) {
            let form = declarations.functions.by_name.get(name).and_then(|forms| forms.first());
            self.resolved = form.map(|form| Resolved { forms: vec![*form], member });
            return found;
        }
        let Some(forms) = declarations.functions.by_name.get(name) else {
            return self.complain(at, format!("undeclared reference to '{name}' (in container '')"));
        };
        let (mut overloads, mut result): (Vec<usize>, Option<Type>) = (Vec::new(), None);
        for form in forms {
            let overload = &declarations.functions.overloads[*form];
            if overload.member != member {
                continue;
            }
            let mut letters = HashMap::new();
            let wanted: Vec<Type> =
                overload.parameters.iter().map(|p| self.inference.instantiate(p, &mut letters)).collect();
            if !self.inference.all_assignable(&wanted, &types) {
                continue;
            }
            let returned = self.inference.instantiate(&overload.result, &mut letters);
            overloads.push(*form);
            result = Some(match result {
                None => returned,
                Some(before) if self.inference.finished(&before) == self.inference.finished(&returned) => before,
                Some(_) => Type::Dyn,
            });
        }
        let Some(result) = result else { return self.no_overload(at, name, &types, member) };
        let result = if name == "type" { Type::Type(std::sync::Arc::new(types.remove(0))) } else { result };
        let pattern = self.constant_pattern(&places, name, &nodes);
        self.resolved = Some(Resolved { forms: overloads.clone(), member });
        let call = CallNode { overloads, arguments: nodes, pattern };
        (self.folded(at, &places, name, call), result)
    }

    /// The calls that upstream's planner evaluates in ways of its own.
    fn special(&mut self, name: &str, nodes: &[Node], types: &[Type]) -> Option<Checked> {
        match (name, nodes, types) {
            ("_==_" | "_!=_", [a, b], [left, right]) => {
                let letter = self.inference.fresh();
                let fits = self.inference.all_assignable(&[letter.clone(), letter], &[left.clone(), right.clone()]);
                fits.then(|| (Node::Equal(Box::new([a.clone(), b.clone()]), name == "_==_"), Type::Bool))
            }
            ("@not_strictly_false", [a], _) => Some((Node::NotStrictlyFalse(Box::new(a.clone())), Type::Bool)),
            ("@in", [a, b], [left, right]) => {
                let Some(Value::List(list)) = b.constant() else { return None };
                let simple = |v: &Value<'_>| {
                    matches!(
                        v,
                        Value::Null
                            | Value::Bool(_)
                            | Value::Int(_)
                            | Value::Uint(_)
                            | Value::Double(_)
                            | Value::String(_)
                    )
                };
                let fits = self.inference.assignable(&Type::list(left.clone()), right);
                let values: Vec<Value<'static>> = list.iter().collect();
                (fits && values.iter().all(simple)).then(|| (Node::OneOf(Box::new(a.clone()), values), Type::Bool))
            }
            ("or" | "orValue", [a, b], [left, right]) => {
                let item = self.inference.fresh();
                let whole = Type::optional(item.clone());
                let second = if name == "or" { whole.clone() } else { item };
                let fits = self.inference.all_assignable(&[whole, second.clone()], &[left.clone(), right.clone()]);
                fits.then(|| (Node::Alternative(Box::new([a.clone(), b.clone()]), name == "orValue"), second))
            }
            _ => None,
        }
    }

    /// A constant pattern is compiled once, and complained about now.
    fn constant_pattern(&mut self, places: &[usize], name: &str, nodes: &[Node]) -> Option<regex::Regex> {
        if !matches!(name, "matches" | "find" | "findAll") {
            return None;
        }
        let text = nodes.get(1)?.constant()?.as_str()?;
        match compile_pattern(text) {
            Ok(pattern) => Some(pattern),
            Err(_) if name == "matches" => {
                self.late.push(Issue { at: places[1], message: "invalid matches argument".to_owned() });
                None
            }
            Err(why) => {
                self.no_program.get_or_insert(why);
                None
            }
        }
    }

    /// The conversion of a constant is a constant.
    fn folded(&mut self, at: usize, places: &[usize], name: &str, call: CallNode) -> Node {
        let constant = call.arguments.first().and_then(|a| a.constant().cloned());
        let (true, 1, Some(argument)) = (CONVERSIONS.contains(&name), call.arguments.len(), constant) else {
            return Node::Call(Box::new(call));
        };
        let mut budget = Budget::default();
        let mut running = Call { budget: &mut budget, pattern: None };
        let overloads = &self.declarations.functions.overloads;
        let form = call.overloads.iter().find(|o| argument.fits(&overloads[**o].parameters[0]));
        let Some(form) = form else { return Node::Call(Box::new(call)) };
        match (overloads[*form].run)(&mut running, &[argument]) {
            Ok(value) => Node::Constant(value),
            Err(_) if matches!(name, "duration" | "timestamp") => {
                self.late.push(Issue { at: places[0], message: format!("invalid {name} argument") });
                Node::Constant(Value::Null)
            }
            Err(error) => self.complain(at, error.to_string()).0,
        }
    }
}

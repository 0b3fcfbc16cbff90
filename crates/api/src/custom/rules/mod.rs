//! `x-kubernetes-validations`: the expressions of a schema, compiled once and evaluated on each object within a budget.
//! Upstream counterpart: apiextensions-apiserver/pkg/apiserver/schema/cel.

#[cfg(test)]
mod cost_tests;
mod sizes;
mod typed_value;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use cel::estimate::Declared;
use cel::{Budget, CompileError, Environment, EvaluationError, PER_CALL_LIMIT, Program, Type, Variables};
use json::Value;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::ValidationRule;

use super::field_path;
use super::structural::Structural;
use super::values::Before;
use crate::rules::cel::{environment, why};
use crate::validation::field::{Cause, Errors, FieldError, Path};
use sizes::Extent;
use typed_value::Objects;

/// The budget of all expressions of one write (`RuntimeCELCostBudget`).
const RUN_BUDGET: u64 = 10_000_000;
/// The longest message that an expression may make, in bytes.
const MESSAGE_MAX: usize = 5 * 1024;

const SELF: &str = "self";
const OLD: &str = "oldSelf";
static BASE: LazyLock<Environment> = LazyLock::new(|| environment().build());

/// One rule as it was compiled.
pub struct Compiled {
    /// The error is part of a message about the definition.
    pub rule: Result<Program, String>,
    pub message: Option<Result<Program, String>>,
    /// It is about a change, and has nothing to say without one.
    pub uses_old: bool,
    /// The most that evaluating the rule once, and making its message, costs. Zero from a compiler that does not estimate.
    pub cost: u64,
    pub message_cost: u64,
}

/// Compiles the rules of one place of a schema.
pub struct Compiler {
    /// With `self` alone, with `oldSelf`, and with an optional `oldSelf`.
    environments: [Environment; 3],
    /// The sizes that costs are estimated by.
    extent: Option<Extent>,
}

impl Compiler {
    /// `None` where expressions cannot see what the schema describes.
    pub fn of(schema: &Structural, whole: bool) -> Option<Compiler> {
        let mut objects = Objects::new();
        let ty = typed_value::type_of(schema, whole, "selfType", &mut objects)?;
        let mut builder = BASE.extend();
        for (name, fields) in objects {
            builder = builder.object(&name, fields);
        }
        let alone = builder.variable(SELF, ty.clone()).build();
        let with_old = alone.extend().variable(OLD, ty.clone()).build();
        let optional = alone.extend().variable(OLD, Type::optional(ty)).build();
        Some(Compiler { environments: [alone, with_old, optional], extent: None })
    }

    /// A compiler for rules that nobody has accepted yet: it says what they cost.
    pub fn estimating(schema: &Structural, whole: bool) -> Option<Compiler> {
        Some(Compiler { extent: Some(Extent::of(schema, whole)?), ..Compiler::of(schema, whole)? })
    }

    /// How often a rule of this place can be asked in one object, where no limit around it says that.
    pub fn cardinality(&self) -> u64 {
        self.extent.as_ref().map_or(1, Extent::cardinality)
    }

    fn program(&self, environment: &Environment, text: &str) -> Result<(Program, u64), CompileError> {
        let Some(extent) = &self.extent else { return environment.compile_any(text).map(|program| (program, 0)) };
        let declared = Declared { root: &extent.sizes, variable: None };
        environment.compile_estimated(text, declared).map(|(program, cost)| (program, cost.most))
    }

    pub fn compile(&self, rule: &ValidationRule) -> Compiled {
        let [alone, with_old, optional] = &self.environments;
        let whole = if rule.optional_old_self == Some(true) { optional } else { with_old };
        // A rule that compiles without `oldSelf` does not use it.
        let (uses_old, compiled) = match self.program(alone, &rule.rule) {
            Ok(program) => (false, Ok(program)),
            Err(_) => match self.program(whole, &rule.rule) {
                Ok(program) => (true, Ok(program)),
                Err(error) => (false, Err(why(&error))),
            },
        };
        let compiled = compiled.and_then(|(program, cost)| match program.result_type() {
            Type::Bool => Ok((program, cost)),
            _ => Err("cel expression must evaluate to a bool".to_owned()),
        });
        let (compiled, cost) = apart(compiled);
        let message = rule.message_expression.as_deref().filter(|text| !text.is_empty() && compiled.is_ok());
        let message = message.map(|text| {
            let stage = |why: &CompileError| if why.is_instantiation() { "instantiation" } else { "compilation" };
            let failed = |why| format!("messageExpression {} failed: {why}", stage(&why));
            let (program, cost) = self.program(whole, text).map_err(failed)?;
            match program.result_type() {
                Type::String => Ok((program, cost)),
                _ => Err("messageExpression must evaluate to a string".to_owned()),
            }
        });
        let (message, message_cost) = message.map(apart).unzip();
        Compiled { rule: compiled, message, uses_old, cost, message_cost: message_cost.unwrap_or(0) }
    }
}

/// A program apart from its cost. A rule that did not compile costs nothing.
fn apart(compiled: Result<(Program, u64), String>) -> (Result<Program, String>, u64) {
    let cost = compiled.as_ref().map_or(0, |(_, cost)| *cost);
    (compiled.map(|(program, _)| program), cost)
}

/// The rules of a schema, in its shape.
#[derive(Default)]
pub struct Rules {
    own: Vec<Rule>,
    properties: BTreeMap<Box<str>, Rules>,
    values: Option<Box<Rules>>,
    items: Option<Box<Rules>>,
}

struct Rule {
    source: ValidationRule,
    compiled: Compiled,
    field: Option<Path>,
}

impl Rules {
    /// `None` where there are none.
    pub fn of(schema: &Structural, whole: bool) -> Option<Rules> {
        let mut own = Vec::new();
        if !schema.rules.is_empty()
            && let Some(compiler) = Compiler::of(schema, whole)
        {
            own.extend(schema.rules.iter().map(|rule| {
                let field = rule.field_path.as_deref().filter(|path| !path.is_empty());
                let field = field.and_then(|path| field_path::resolve(path, schema, true).ok());
                Rule { source: rule.clone(), compiled: compiler.compile(rule), field: field.map(|(path, _)| path) }
            }));
        }
        let part = |of: &Structural| Rules::of(of, of.embedded);
        let rules = Rules {
            own,
            properties: schema
                .properties
                .iter()
                .filter_map(|(name, of)| Some((name.as_str().into(), part(of)?)))
                .collect(),
            values: schema.values().and_then(part).map(Box::new),
            items: schema.items.as_deref().and_then(part).map(Box::new),
        };
        let none =
            rules.own.is_empty() && rules.properties.is_empty() && rules.values.is_none() && rules.items.is_none();
        (!none).then_some(rules)
    }

    /// The errors that the rules find in an object, or in the change of one.
    pub fn check(&self, schema: &Structural, new: &Value, old: Option<&Value>, path: Option<&Path>) -> Errors {
        let mut run = Run { budget: RUN_BUDGET, errors: Errors::new(), over: false, ratchets: true };
        run.walk(self, schema, Place { new, old, pair: old.map(|old| (new, old)), path });
        run.errors
    }

    /// The errors that the rules find in a default, which may be what there was before, or come where there was nothing.
    pub fn check_default(&self, schema: &Structural, default: &Value, path: &Path) -> Errors {
        let errors = |old| {
            let mut run = Run { budget: RUN_BUDGET, errors: Errors::new(), over: false, ratchets: false };
            run.walk(self, schema, Place { new: default, old, pair: None, path: Some(path) });
            run.errors
        };
        let unchanged = errors(Some(default));
        if unchanged.is_empty() { errors(None) } else { unchanged }
    }
}

/// A value with what it was.
#[derive(Clone, Copy)]
struct Place<'v> {
    new: &'v Value,
    old: Option<&'v Value>,
    /// The innermost value around it, or itself, that can be told apart from others, as it is and as it was.
    pair: Option<(&'v Value, &'v Value)>,
    path: Option<&'v Path>,
}

impl<'v> Place<'v> {
    fn path(&self) -> Path {
        self.path.cloned().unwrap_or_else(|| Path::new("<nil>"))
    }

    fn child(&self, name: &str) -> Path {
        self.path.map_or_else(|| Path::new(name), |path| path.child(name))
    }

    fn at(&self, new: &'v Value, old: Option<&'v Value>, path: &'v Path) -> Place<'v> {
        Place { new, old, pair: old.map(|old| (new, old)).or(self.pair), path: Some(path) }
    }
}

struct Run {
    budget: u64,
    errors: Errors,
    /// Nothing more is evaluated.
    over: bool,
    /// Values that were wrong already may stay as they were.
    ratchets: bool,
}

impl Run {
    fn walk(&mut self, rules: &Rules, schema: &Structural, place: Place<'_>) {
        if place.new.is_null() || self.over {
            return;
        }
        self.own(rules, schema, place);
        match place.new {
            Value::Object(map) => {
                for (name, new) in map {
                    let of = schema.properties.get(name.as_str());
                    let (rules, path) = match (rules.properties.get(name.as_str()), &rules.values) {
                        (Some(rules), _) => (rules, place.child(name)),
                        (None, Some(values)) if of.is_none() => (&**values, place.path().key(name)),
                        _ => continue,
                    };
                    let Some(of) = of.or_else(|| schema.values()) else { continue };
                    let old = place.old.and_then(|old| old.get(name)).filter(|old| !old.is_null());
                    self.walk(rules, of, place.at(new, old, &path));
                }
            }
            Value::Array(list) => {
                let (Some(rules), Some(of)) = (&rules.items, &schema.items) else { return };
                let before = Before::of(schema, place.old);
                for (i, new) in list.iter().enumerate() {
                    let path = place.path().index(i);
                    self.walk(rules, of, place.at(new, before.find(new), &path));
                }
            }
            _ => {}
        }
    }

    fn own(&mut self, rules: &Rules, schema: &Structural, place: Place<'_>) {
        if rules.own.is_empty() {
            return;
        }
        let new = typed_value::value(place.new, schema);
        let old = place.old.map(|old| typed_value::value(old, schema));
        for rule in &rules.own {
            if self.over {
                return;
            }
            let optional = rule.source.optional_old_self == Some(true);
            if rule.compiled.uses_old && old.is_none() && !optional {
                continue;
            }
            let mut variables = Variables::new().with(SELF, new.clone());
            if optional {
                variables = variables.with(OLD, cel::Value::Optional(old.clone().map(Arc::new)));
            } else if let Some(old) = &old {
                variables = variables.with(OLD, old.clone());
            }
            self.evaluate(rule, schema, place, &variables);
        }
    }

    fn evaluate(&mut self, rule: &Rule, schema: &Structural, place: Place<'_>, variables: &Variables<'_>) {
        let about = |what: String| FieldError::invalid(&place.path(), &*schema.ty, &what);
        let program = match &rule.compiled.rule {
            Ok(program) => program,
            Err(why) => return self.errors.push(about(format!("rule compile error: {why}"))),
        };
        let mut budget = Budget::new(PER_CALL_LIMIT);
        let verdict = program.evaluate(variables, &mut budget);
        if budget.used() > self.budget {
            self.over = true;
            let what = "validation failed due to running out of cost budget, no further validation rules will be run";
            return self.errors.push(about(what.to_owned()));
        }
        self.budget -= budget.used();
        let shown = rule_text(&rule.source);
        let holds = match verdict {
            Ok(value) => value.as_bool() == Some(true),
            Err(why @ EvaluationError::CostLimitExceeded) => {
                self.over = true;
                let end = "no further validation rules will be run due to call cost exceeds limit for rule";
                return self.errors.push(about(format!("'{why}': {end}: {shown}")));
            }
            Err(EvaluationError::Failed(why)) if why.starts_with("no such overload") => {
                let what = "call arguments did not match a supported operator, function or macro signature for rule";
                return self.errors.push(about(format!("'{why}': {what}: {shown}")));
            }
            Err(EvaluationError::Failed(why)) => {
                return self.errors.push(about(format!("{why} evaluating rule: {shown}")));
            }
        };
        // A value that was wrong already and is as it was may stay so, unless the rule is about changes.
        let unchanged = || self.ratchets && place.pair.is_some_and(|(new, old)| new == old);
        if holds || !rule.compiled.uses_old && unchanged() {
            return;
        }
        let message = rule.compiled.message.as_ref().and_then(|message| message.as_ref().ok());
        let made = message.and_then(|program| self.message(program, variables));
        if self.over {
            let what = "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";
            return self.errors.push(about(what.to_owned()));
        }
        let usual = || match rule.source.message.as_deref().filter(|message| !message.is_empty()) {
            Some(message) => message.trim().to_owned(),
            None => format!("failed rule: {shown}"),
        };
        let path = match &rule.field {
            Some(field) => place.child(&field.to_string()),
            None => place.path(),
        };
        let detail = made.unwrap_or_else(usual);
        self.errors.push(error(&path, place.new, schema, rule.source.reason.as_deref(), &detail));
    }

    /// The message that an expression makes, if it is one.
    fn message(&mut self, program: &Program, variables: &Variables<'_>) -> Option<String> {
        let mut budget = Budget::new(PER_CALL_LIMIT);
        let made = program.evaluate(variables, &mut budget);
        self.over = budget.used() > self.budget || matches!(made, Err(EvaluationError::CostLimitExceeded));
        self.budget = self.budget.saturating_sub(budget.used());
        let made = made.ok()?;
        let text = made.as_str()?.trim();
        (!text.is_empty() && text.len() <= MESSAGE_MAX && !text.contains('\n')).then(|| text.to_owned())
    }
}

fn rule_text(rule: &ValidationRule) -> &str {
    rule.message.as_deref().filter(|message| !message.is_empty()).unwrap_or(&rule.rule).trim()
}

/// The error that a rule asks for. Objects and lists are not shown.
fn error(path: &Path, value: &Value, schema: &Structural, reason: Option<&str>, detail: &str) -> FieldError {
    let hidden = matches!(&*schema.ty, "object" | "array");
    match reason {
        Some("FieldValueForbidden") => FieldError::forbidden(path, detail),
        Some("FieldValueRequired") => FieldError::required(path, detail),
        Some("FieldValueDuplicate") if hidden => {
            FieldError { path: path.clone(), cause: Cause::Duplicate, detail: "Duplicate value".to_owned() }
        }
        Some("FieldValueDuplicate") => FieldError::duplicate(path, value),
        _ if hidden => FieldError::invalid_unshown(path, detail),
        _ => FieldError::invalid(path, value, detail),
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn errors(schema: &Value, new: &Value, old: Option<&Value>) -> Vec<String> {
        let schema = Structural::of(&json::from_value(schema.clone()).expect("a schema"));
        let rules = Rules::of(&schema, true).expect("rules");
        rules.check(&schema, new, old, None).iter().map(ToString::to_string).collect()
    }

    fn spec(rules: Value) -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": rules,
            "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}, "namespace": {"type": "string"},
                "ratio": {"type": "number"}, "when": {"type": "string", "format": "date-time"},
                "then": {"type": "string", "format": "date-time"},
                "wait": {"type": "string", "format": "duration"}, "port": {"x-kubernetes-int-or-string": true}}}}})
    }

    #[test]
    fn rules_see_typed_values() {
        let check = |rule: &str, holds: bool| {
            let new = json!({"spec": {"min": 1, "max": 2, "namespace": "n", "ratio": 1, "when": "2020-01-02T03:04:05Z",
                "then": "2011-08-18T19:03:37.01+01:00", "wait": "1m30s", "port": "80"}});
            let expected: Vec<String> =
                (!holds).then(|| format!("spec: Invalid value: failed rule: {rule}")).into_iter().collect();
            assert_eq!(errors(&spec(json!([{"rule": rule}])), &new, None), expected, "{rule}");
        };
        check("self.min <= self.max", true);
        check("self.min > self.max", false);
        check("self.__namespace__ == 'n' && self.namespace == 'n' && has(self.namespace)", true);
        check("self.?namespace.orValue('') == 'n'", true);
        check("'%s has %d'.format([self.namespace, self.min]) == 'n has 1'", true);
        check("self.ratio == 1.0", true);
        check("self.when < timestamp('2021-01-01T00:00:00Z')", true);
        check("self.wait == duration('90s')", true);
        check("string(self.then) == '2011-08-18T19:03:37.01+01:00'", true);
        check("self.then == timestamp('2011-08-18T18:03:37.01Z')", true);
        check("self.port == '80' && type(self.port) == string", true);
        check("has(self.min) && !has(self.max)", false);
    }

    #[test]
    fn a_null_field_is_absent_and_a_null_entry_is_not() {
        let text = json!({"type": "string", "nullable": true});
        let of = |rule: &str| {
            json!({"type": "object", "properties": {"o": {"type": "object", "x-kubernetes-validations": [{"rule": rule}],
                "properties": {"n": text, "port": {"x-kubernetes-int-or-string": true, "nullable": true},
                    "m": {"type": "object", "additionalProperties": text},
                    "l": {"type": "array", "items": text}}}}})
        };
        let new = json!({"o": {"n": null, "port": null, "m": {"k": null}, "l": [null]}});
        for rule in [
            "!has(self.n) || self.n == 'x'",
            "self.?n.orValue('zz') == 'zz' && !has(self.port)",
            "has(self.m.k) && 'k' in self.m && dyn(self.m.k) == null",
            "size(self.l) == 1 && dyn(self.l[0]) == null",
        ] {
            assert_eq!(errors(&of(rule), &new, None), [""; 0], "{rule}");
        }
    }

    #[test]
    fn an_object_with_a_null_field_equals_none() {
        let half = json!({"type": "object", "properties": {"n": {"type": "string", "nullable": true}, "m": {"type": "integer"}}});
        let check = |rule: &str, a: Value, b: Value, holds: bool| {
            let of = json!({"type": "object", "properties": {"o": {"type": "object",
                "x-kubernetes-validations": [{"rule": rule}], "properties": {"l": {"type": "array", "items": half}}}}});
            let new = json!({"o": {"l": [a, b]}});
            let found = errors(&of, &new, None);
            assert_eq!(found.is_empty(), holds, "{rule} {new}: {found:?}");
        };
        let (null, none, one) = (json!({"n": null}), json!({}), json!({"m": 1}));
        check("self.l[0] == self.l[1]", none.clone(), none.clone(), true);
        check("self.l[0] == self.l[1]", one.clone(), one.clone(), true);
        for (a, b) in [(&null, &none), (&none, &null), (&null, &null), (&one, &null), (&null, &one)] {
            check("self.l[0] == self.l[1]", a.clone(), b.clone(), false);
            check("self.l[0] != self.l[1]", a.clone(), b.clone(), true);
        }
    }

    #[test]
    fn sets_and_maps_have_no_order() {
        let item = json!({"type": "object", "properties": {"namespace": {"type": "string"}, "v": {"type": "integer"}}});
        let lists = json!({
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["namespace"], "items": item},
            "list": {"type": "array", "items": {"type": "string"}}});
        let at = |set: Value, map: Value| json!({"l": {"set": set, "map": map, "list": ["b", "a"]}});
        let entry = |name: &str, v: i64| json!({"namespace": name, "v": v});
        let old = at(json!(["a", "b"]), json!([entry("x", 1), entry("y", 2)]));
        let new = at(json!(["b", "a"]), json!([entry("y", 2), entry("x", 1)]));
        let check = |rule: &str, holds: bool| {
            let rules = json!([{"rule": rule}]);
            let of = json!({"type": "object", "properties": {"l": {"type": "object", "properties": lists,
                "x-kubernetes-validations": rules}}});
            assert_eq!(errors(&of, &new, Some(&old)).is_empty(), holds, "{rule}: {:?}", errors(&of, &new, Some(&old)));
        };
        check("self.set == oldSelf.set && self.map == oldSelf.map", true);
        check("self.set == ['a', 'b'] && self.set != ['a', 'c'] && self.set != ['a']", true);
        check("self.list == ['a', 'b'] || oldSelf == null", false);
        check("self.list == ['b', 'a'] && !(['a', 'b'] == self.set)", true);
        check("self.set + ['c', 'a'] == ['a', 'b', 'c'] && size(self.set + ['c', 'c']) == 3", true);
        check("self.set + ['c'] + ['d'] == ['d', 'c', 'b', 'a'] && 'a' in self.set", true);
        check("size(self.map + oldSelf.map) == 2 && (self.map + oldSelf.map)[0].v == 2", true);
        check("self.map.map(e, e.v) == [2, 1]", true);
        check("(self.map + self.map.filter(e, e.v == 1)) == oldSelf.map", true);
        let moved = at(json!(["b", "a"]), json!([entry("y", 3), entry("x", 1)]));
        let of = json!({"type": "object", "properties": {"l": {"type": "object", "properties": lists,
            "x-kubernetes-validations": [{"rule": "self.map == oldSelf.map"}]}}});
        assert_eq!(errors(&of, &moved, Some(&old)).len(), 1, "an item has changed");
    }

    #[test]
    fn messages_reasons_and_places() {
        let new = json!({"spec": {"min": 3, "max": 2}});
        let check = |rule: Value, expected: &str| {
            let mut rule = rule;
            rule["rule"] = json!("self.min <= self.max");
            assert_eq!(errors(&spec(json!([rule])), &new, None), [expected]);
        };
        check(json!({"message": " too low "}), "spec: Invalid value: too low");
        check(json!({"messageExpression": "'min ' + string(self.min)"}), "spec: Invalid value: min 3");
        check(json!({"message": "m", "messageExpression": "'a\\nb'"}), "spec: Invalid value: m");
        check(json!({"message": "m", "reason": "FieldValueForbidden"}), "spec: Forbidden: m");
        check(json!({"message": "m", "reason": "FieldValueRequired"}), "spec: Required value: m");
        check(json!({"message": "m", "reason": "FieldValueDuplicate"}), "spec: Duplicate value");
        check(json!({"message": "m", "fieldPath": ".max"}), "spec.max: Invalid value: m");
        let failing = errors(&spec(json!([{"rule": "self.wait == duration('1s')"}])), &new, None);
        assert_eq!(
            failing,
            ["spec: Invalid value: \"object\": no such key: wait evaluating rule: self.wait == duration('1s')"]
        );
        let root =
            json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.metadata.name.startsWith('a')"}]});
        let wrong = errors(&root, &json!({"metadata": {"name": "b"}}), None);
        assert_eq!(wrong, ["<nil>: Invalid value: failed rule: self.metadata.name.startsWith('a')"]);
    }

    #[test]
    fn rules_about_changes_need_one() {
        let of = spec(json!([{"rule": "self.min >= oldSelf.min", "message": "may not shrink"},
            {"rule": "!oldSelf.hasValue() || self.max != 7", "optionalOldSelf": true, "message": "seven"}]));
        let at = |min: i64, max: i64| json!({"spec": {"min": min, "max": max}});
        assert_eq!(errors(&of, &at(1, 7), None), [""; 0]);
        assert_eq!(errors(&of, &at(2, 2), Some(&at(1, 2))), [""; 0]);
        assert_eq!(errors(&of, &at(0, 2), Some(&at(1, 2))), ["spec: Invalid value: may not shrink"]);
        assert_eq!(errors(&of, &at(1, 7), Some(&at(1, 2))), ["spec: Invalid value: seven"]);
    }

    #[test]
    fn what_was_wrong_may_stay_as_it_was() {
        let of = json!({"type": "object", "properties": {"map": {"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "x-kubernetes-validations": [{"rule": "self.v < 5"}],
                "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}}}});
        let at = |a: i64, b: i64| json!({"map": [{"k": "a", "v": a}, {"k": "b", "v": b}]});
        assert_eq!(errors(&of, &at(9, 1), Some(&at(9, 2))), [""; 0]);
        assert_eq!(errors(&of, &at(8, 1), Some(&at(9, 1))), ["map[0]: Invalid value: failed rule: self.v < 5"]);
    }

    #[test]
    fn expensive_rules_are_stopped() {
        let items = json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [
            {"rule": "self.all(a, self.all(b, self.all(c, a + b + c != 'x')))"}, {"rule": "false"}]});
        let of = json!({"type": "object", "properties": {"l": items}});
        let many: Vec<String> = (0..500).map(|n| n.to_string()).collect();
        let found = errors(&of, &json!({"l": many}), None);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("no further validation rules will be run due to call cost exceeds limit"),
            "{found:?}"
        );
    }
}

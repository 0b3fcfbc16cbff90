//! Calls that are not functions: they become folds over a range, or tests for a field. The shape of what they become
//! decides what they cost, so it is cel-go's.

use super::ast::{ACCUMULATOR, Access, Expr, Fold, Kind, UNUSED};
use crate::error::Issue;
use crate::value::Value;

/// The expression that a call stands for.
pub(super) fn expand(at: usize, name: &str, target: Option<Expr>, mut given: Vec<Expr>) -> Result<Expr, Issue> {
    let Some(target) = target else {
        if name == "has" && given.len() == 1 {
            return has(at, given.remove(0));
        }
        return Ok(Expr::call(at, name, given));
    };
    let namespace = target.as_ident() == Some("cel");
    Ok(match (name, given.len()) {
        ("all" | "exists" | "exists_one" | "existsOne", 2 | 3) => quantifier(at, name, target, given)?,
        ("map", 2 | 3) => {
            let names = variable(at, &given[0], "argument is not an identifier")?;
            let filter = (given.len() == 3).then(|| given[1].clone());
            let item = given.pop().expect("there are two or three");
            collect(at, target, (names, None), filter, item)
        }
        ("filter", 2) => {
            let names = variable(at, &given[0], "argument is not an identifier")?;
            let filter = given.pop().expect("there are two");
            let item = given.pop().expect("there are two");
            collect(at, target, (names, None), Some(filter), item)
        }
        ("transformList", 3 | 4) => {
            let (first, second) = pair(at, &given)?;
            let item = given.pop().expect("there are three or four");
            collect(at, target, (first, Some(second)), given.get(2).cloned(), item)
        }
        ("transformMap" | "transformMapEntry", 3 | 4) => transform_map(at, name, target, given)?,
        ("sortBy", 2) => sort_by(at, target, given)?,
        ("bind", 3) if namespace => {
            let simple = "cel.bind() variable names must be simple identifiers";
            let name = given[0].as_ident().ok_or(Issue { at: given[0].at, message: simple.to_owned() })?.to_owned();
            let body = given.pop().expect("there are three");
            bind(at, &name, given.pop().expect("there are three"), body)
        }
        ("optMap" | "optFlatMap", 2) => optional(at, name, target, given)?,
        _ => Expr::member(at, name, target, given),
    })
}

fn has(at: usize, argument: Expr) -> Result<Expr, Issue> {
    match argument.kind {
        Kind::Select { operand, field, access: Access::Plain } => {
            Ok(Expr::select(argument.at, *operand, &field, Access::Presence))
        }
        _ => Err(Issue {
            at: if argument.at == 0 { at } else { argument.at },
            message: "invalid argument to has() macro".to_owned(),
        }),
    }
}

fn accumulator(at: usize) -> Expr {
    Expr::ident(at, ACCUMULATOR)
}

fn variable(_at: usize, argument: &Expr, complaint: &str) -> Result<String, Issue> {
    let wrong = |message: &str| Issue { at: argument.at, message: message.to_owned() };
    let name = argument.as_ident().ok_or_else(|| wrong(complaint))?;
    if name == ACCUMULATOR || name == "__result__" {
        return Err(wrong("iteration variable overwrites accumulator variable"));
    }
    Ok(name.to_owned())
}

fn pair(at: usize, given: &[Expr]) -> Result<(String, String), Issue> {
    let simple = "argument must be a simple name";
    let (first, second) = (variable(at, &given[0], simple)?, variable(at, &given[1], simple)?);
    if first == second {
        return Err(Issue { at: given[1].at, message: format!("duplicate variable name: {first}") });
    }
    Ok((first, second))
}

fn fold(at: usize, range: Expr, (variable, second): (String, Option<String>), parts: [Expr; 4]) -> Expr {
    let [start, condition, step, result] = parts;
    let accumulator = ACCUMULATOR.to_owned();
    Expr::fold(at, Fold { range, variable, second, accumulator, start, condition, step, result })
}

fn quantifier(at: usize, name: &str, range: Expr, mut given: Vec<Expr>) -> Result<Expr, Issue> {
    let predicate = given.pop().expect("there are two or three");
    let variables = match given.len() {
        1 => (variable(at, &given[0], "argument must be a simple name")?, None),
        _ => pair(at, &given).map(|(first, second)| (first, Some(second)))?,
    };
    let number = |n| Expr::literal(at, Value::Int(n));
    let truth = |b| Expr::literal(at, Value::Bool(b));
    let parts = match name {
        "all" => [
            truth(true),
            Expr::call(at, "@not_strictly_false", vec![accumulator(at)]),
            Expr::call(at, "_&&_", vec![accumulator(at), predicate]),
            accumulator(at),
        ],
        "exists" => [
            truth(false),
            Expr::call(at, "@not_strictly_false", vec![Expr::call(at, "!_", vec![accumulator(at)])]),
            Expr::call(at, "_||_", vec![accumulator(at), predicate]),
            accumulator(at),
        ],
        _ => {
            let more = Expr::call(at, "_+_", vec![accumulator(at), number(1)]);
            let step = Expr::call(at, "_?_:_", vec![predicate, more, accumulator(at)]);
            [number(0), truth(true), step, Expr::call(at, "_==_", vec![accumulator(at), number(1)])]
        }
    };
    Ok(fold(at, range, variables, parts))
}

fn if_passes(at: usize, filter: Option<Expr>, step: Expr) -> Expr {
    match filter {
        Some(filter) => Expr::call(at, "_?_:_", vec![filter, step, accumulator(at)]),
        None => step,
    }
}

/// A list of one item for each element that passes.
fn collect(at: usize, range: Expr, names: (String, Option<String>), filter: Option<Expr>, item: Expr) -> Expr {
    let one = Expr::list(at, vec![(item, false)]);
    let step = if_passes(at, filter, Expr::call(at, "_+_", vec![accumulator(at), one]));
    let parts = [Expr::list(at, Vec::new()), Expr::literal(at, Value::Bool(true)), step, accumulator(at)];
    fold(at, range, names, parts)
}

fn transform_map(at: usize, name: &str, range: Expr, mut given: Vec<Expr>) -> Result<Expr, Issue> {
    let (first, second) = pair(at, &given)?;
    let made = given.pop().expect("there are three or four");
    let mut arguments = vec![accumulator(at)];
    if name == "transformMap" {
        arguments.push(Expr::ident(at, &first));
    }
    arguments.push(made);
    let step = if_passes(at, given.get(2).cloned(), Expr::call(at, "cel.@mapInsert", arguments));
    let parts = [Expr::map(at, Vec::new()), Expr::literal(at, Value::Bool(true)), step, accumulator(at)];
    Ok(fold(at, range, (first, Some(second)), parts))
}

/// A name for a value: a fold over nothing, whose accumulator is the name.
fn bind(at: usize, name: &str, value: Expr, body: Expr) -> Expr {
    Expr::fold(
        at,
        Fold {
            range: Expr::list(at, Vec::new()),
            variable: UNUSED.to_owned(),
            second: None,
            accumulator: name.to_owned(),
            start: value,
            condition: Expr::literal(at, Value::Bool(false)),
            step: Expr::ident(at, name),
            result: body,
        },
    )
}

fn sort_by(at: usize, target: Expr, mut given: Vec<Expr>) -> Result<Expr, Issue> {
    if matches!(target.kind, Kind::Literal(_) | Kind::Map(_) | Kind::Object { .. }) {
        let message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
        return Err(Issue { at: target.at, message: message.to_owned() });
    }
    let input = "@__sortBy_input__";
    let name = variable(at, &given[0], "argument is not an identifier")?;
    let key = given.pop().expect("there are two");
    let keys = collect(at, Expr::ident(at, input), (name, None), None, key);
    let sorted = Expr::member(at, "@sortByAssociatedKeys", Expr::ident(at, input), vec![keys]);
    Ok(bind(at, input, target, sorted))
}

fn optional(at: usize, name: &str, target: Expr, mut given: Vec<Expr>) -> Result<Expr, Issue> {
    let simple = format!("{name}() variable name must be a simple identifier");
    let variable = given[0].as_ident().ok_or(Issue { at: given[0].at, message: simple })?.to_owned();
    let value = Expr::member(at, "value", target.clone(), Vec::new());
    let mut made = bind(at, &variable, value, given.pop().expect("there are two"));
    if name == "optMap" {
        made = Expr::call(at, "optional.of", vec![made]);
    }
    let present = Expr::member(at, "hasValue", target, Vec::new());
    Ok(Expr::call(at, "_?_:_", vec![present, made, Expr::call(at, "optional.none", Vec::new())]))
}

//! No text takes the process down or keeps it busy.

use super::{environment, input, run, variables};
use cel::{Budget, EvaluationError};
use proptest::prelude::*;

#[test]
fn deep_expressions_are_refused_before_the_stack_is_used_up() {
    let refused = "refused: expression recursion limit exceeded: 250";
    for (open, inner, close) in
        [("(", "1", ")"), ("[", "1", "]"), ("!(", "true", ")"), ("-(", "1", ")"), ("{1: ", "1", "}")]
    {
        let text = format!(
            "{}{inner}{}",
            open.repeat(100_000 / (open.len() + close.len()) - 1),
            close.repeat(100_000 / (open.len() + close.len()) - 1)
        );
        assert_eq!(run(&text).0, refused, "{open}");
        let deep = format!("{}{inner}{}", open.repeat(90), close.repeat(90));
        assert!(!run(&deep).0.starts_with("refused"), "{open}: {}", run(&deep).0);
    }
    for (start, step) in [("x", " + x"), ("object", ".a"), ("object", "[0]"), ("text", ".trim()"), ("true", " == true")]
    {
        assert_eq!(run(&format!("{start}{}", step.repeat(300))).0, refused, "{step}");
        assert!(!run(&format!("{start}{}", step.repeat(200))).0.starts_with("refused"), "{step}");
    }
    let nested = format!("{}true{}", "[1].all(i, ".repeat(90), ")".repeat(90));
    assert_eq!(run(&nested).0, "true");
    assert!(run(&format!("{}x", "true ? 1 : ".repeat(300))).0.starts_with("refused"));
    assert!(!run(&format!("true{}", " && true".repeat(5000))).0.starts_with("refused"));
}

#[test]
fn large_texts_are_refused() {
    let long = run(&format!("'{}'", "a".repeat(100_000))).0;
    assert_eq!(long, "refused: expression code point size exceeds limit: size: 100002, limit 100000");
    let doubling = format!("optional.of(1){}", ".optMap(i, i)".repeat(60));
    assert_eq!(run(&doubling).0, "refused: expression is too large");
}

#[test]
fn work_without_a_price_ends_too() {
    let exceeded = format!("error: {}", EvaluationError::CostLimitExceeded);
    // Joining lists costs one unit each time, however long they are.
    let doubled = (0..60).fold("list".to_owned(), |inner, n| format!("cel.bind(b{n}, {inner}, b{n} + b{n})"));
    assert_eq!(run(&doubled).0, exceeded);
    let texts = (0..60).fold("text".to_owned(), |inner, n| format!("cel.bind(b{n}, {inner}, b{n} + b{n})"));
    assert_eq!(run(&texts).0, exceeded);
    // A fold over constants has free steps.
    let range = "lists.range(100000)";
    assert_eq!(run(&format!("cel.bind(l, {range}, l.filter(a, l.filter(b, false).size() > 0))")).0, exceeded);
    assert_eq!(run("lists.range(1000000000)").0, exceeded);
    assert_eq!(run("lists.range(100000).map(i, string(i)).all(p, 'a'.matches(p + '{1000}') || true)").0, exceeded);
    let filled = "cel.bind(t, lists.range(90000).map(i, 'aaaaaaaaaa').join(), t.replace('', t))";
    assert_eq!(run(filled).0, exceeded);
    assert!(run("'a'.matches('((a{1000}){1000}){1000}')").0.starts_with("refused"));
    assert!(run("'a'.matches(text + '((a{1000}){1000}){1000}')").0.starts_with("error"));
}

#[test]
fn long_expressions_are_compiled_in_proportion_to_their_length() {
    let terms = vec!["[x] == [1]"; 7000].join(" && ");
    assert_eq!(run(&format!("{terms} || true")).0, "true");
    let listed = format!("[{}].size()", vec!["[[x]]"; 14000].join(", "));
    assert_eq!(run(&listed).0, "14000");
}

/// Pieces of expressions in any order: most make no sense, and some do.
fn expressions() -> impl Strategy<Value = String> {
    const PIECES: [&str; 62] = [
        "x",
        "text",
        "list",
        "object",
        "device",
        "unset",
        "i",
        "1",
        "2u",
        "1.5",
        "'a'",
        "b'a'",
        "true",
        "null",
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        ".",
        ",",
        ":",
        "?",
        "+",
        "-",
        "*",
        "/",
        "%",
        "==",
        "<",
        ">=",
        "&&",
        "||",
        "!",
        " in ",
        ".all(i, ",
        ".map(i, ",
        ".filter(i, ",
        ".exists(i, i, ",
        ".transformMap(k, v, ",
        "has(",
        ".?a",
        "[?",
        ".orValue(",
        "size(",
        "dyn(",
        ".matches(",
        "cel.bind(i, ",
        "optional.of(",
        ".optMap(i, ",
        "duration(",
        "timestamp(",
        "int(",
        "string(",
        ".sortBy(i, ",
        ".split(",
        ".replace(",
        "'\\",
        "\"",
        "9223372036854775807",
        "lists.range(",
    ];
    prop::collection::vec(prop::sample::select(&PIECES[..]), 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(text in expressions(), limit in 0u64..2000) {
        if let Ok(program) = environment().compile_any(&text) {
            let input = input();
            let mut budget = Budget::new(limit);
            let result = program.evaluate(&variables(&input), &mut budget);
            prop_assert!(budget.used() <= limit || result.is_err());
        }
    }

    #[test]
    fn no_characters_panic(text in "\\PC{0,40}") {
        let _ = environment().compile_any(&text);
    }

    #[test]
    fn well_formed_folds_end_within_their_budget(names in prop::collection::vec(0usize..5, 1..6), limit in 0u64..3000) {
        let text = names.iter().fold("i > 0".to_owned(), |inner, n| match n {
            0 => format!("list.all(i, {inner})"),
            1 => format!("list.exists(i, {inner})"),
            2 => format!("list.filter(i, {inner}).size() > 1"),
            3 => format!("list.map(i, {inner}).exists(i, i)"),
            _ => format!("cel.bind(i, list[0], {inner})"),
        });
        let program = environment().compile_any(&format!("cel.bind(i, 1, {text})")).expect("well formed");
        let input = input();
        let mut budget = Budget::new(limit);
        match program.evaluate(&variables(&input), &mut budget) {
            Ok(_) => prop_assert!(budget.used() <= limit),
            Err(error) => prop_assert_eq!(error, EvaluationError::CostLimitExceeded),
        }
    }
}

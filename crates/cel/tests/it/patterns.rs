//! Patterns mean what they mean to Go's regexp.

use cel::compile_pattern;
use proptest::prelude::*;

use super::check;

#[track_caller]
fn matches(pattern: &str, texts: &[&str], others: &[&str]) {
    let compiled = compile_pattern(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
    texts.iter().for_each(|text| assert!(compiled.is_match(text), "{pattern} on {text:?}"));
    others.iter().for_each(|text| assert!(!compiled.is_match(text), "{pattern} on {text:?}"));
}

#[track_caller]
fn refused(pattern: &str, why: &str) {
    let error = compile_pattern(pattern).expect_err(pattern);
    assert_eq!(error, format!("error parsing regexp: {why}"), "{pattern}");
}

/// The first match.
#[track_caller]
fn finds(pattern: &str, text: &str, expected: &str) {
    let compiled = compile_pattern(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
    assert_eq!(compiled.find(text).map(|found| found.as_str()), Some(expected), "{pattern} on {text:?}");
}

#[test]
fn expressions_use_gos_dialect() {
    check(r"'привет'.matches('^[\\w]+$')", "false");
    check(r"text.matches('^[\\w]+$')", "true");
    check(r"'١٢'.matches(r'^\d+$')", "false");
    check(r"'aé1'.find(r'\w+')", "\"a\"");
    check(r"'a é b'.findAll(r'\S+').size()", "3");
    check("'a'.matches('a**')", "refused: invalid matches argument");
    check("'a'.matches(['a**'][0])", "error: error parsing regexp: invalid nested repetition operator: `**`");
}

#[test]
fn classes_are_those_of_ascii() {
    matches(r"^\d+$", &["12"], &["١٢", ""]);
    matches(r"^\D$", &["a", "١"], &["1"]);
    matches(r"^\w+$", &["aZ_9"], &["é", "п"]);
    matches(r"^\W$", &["é", "-"], &["a"]);
    matches(r"^\s$", &[" ", "\t", "\n", "\x0c", "\r"], &["\x0b", "\u{a0}"]);
    matches(r"^[\S]$", &["\x0b", "é"], &[" "]);
    matches(r"^[^\s]+$", &["ab"], &["a b"]);
    matches(r"^[^\W]+$", &["ab"], &["é"]);
    matches(r"\bfoo\b", &["a foo b", "éfooé"], &["foob"]);
    matches(r"o\B", &["foo", "ob"], &["o", "oé"]);
    matches(r"(?i)^\w$", &["a", "\u{17f}", "\u{212a}"], &["é"]);
    matches(r"^\<a\>$", &["<a>"], &["a"]);
}

#[test]
fn marks_in_classes_are_themselves() {
    matches("^[[]$", &["["], &["]"]);
    matches("^[]a]+$", &["]a"], &["b"]);
    matches("^[^]a]$", &["b"], &["]", "a"]);
    matches("^[a&&b]+$", &["&ab"], &["c"]);
    matches("^[a~~b]+$", &["~ab"], &["c"]);
    matches("^[+--]+$", &["+,-"], &["."]);
    matches("^[a-z&&[^b]]$", &["a]", "b]", "&]", "^]"], &["a"]);
    matches("^[[a]b]$", &["[b]", "ab]"], &["a", "b"]);
    matches(r"^[\w.-]+$", &["a_b.c-1"], &["é", "/"]);
    matches(r"^[\w-.]+$", &["a-.", "_"], &["/", ","]);
    refused(r"[a-\d]", r"invalid escape sequence: `\d`");
    matches("^[[:alpha:]_]+$", &["ab_"], &["1", ":"]);
    matches("^[[:^alpha:]]+$", &["1é"], &["a"]);
    matches("^[[:a]+$", &["[:a"], &["b"]);
    matches("^[[:digit:][:a]+$", &["1[:a"], &["b"]);
    matches(r"^[\x{41}-\103\n]+$", &["ABC\n"], &["D"]);
    matches(r"^[\x{D800}]$", &[], &["a", "\u{FFFD}"]);
    matches(r"^[^\x{D800}-\x{DFFF}]$", &["a"], &[]);
    matches(r"^[\x{D7FE}-\x{DFFF}]$", &["\u{D7FF}"], &["\u{E000}"]);
}

#[test]
fn braces_without_counts_are_characters() {
    matches("^{$", &["{"], &[""]);
    matches("^a{,2}$", &["a{,2}"], &["aa"]);
    matches("^a{01}$", &["a{01}"], &["a"]);
    matches("^{}{2}$", &["{}}"], &["{}"]);
    matches(r"\b{start}a", &["x{start}a"], &["a"]);
    matches("^a{2}$", &["aa"], &["a", "aaa"]);
    matches("^a{2,}$", &["aaa"], &["a"]);
    matches("^a{1,2}?$", &["aa"], &["aaa"]);
    matches("^a{0}$", &[""], &["a"]);
}

#[test]
fn escapes() {
    matches(r"^\Qa.b\E+$", &["a.bb"], &["axb"]);
    matches(r"^\Q(\", &["(\\"], &["("]);
    matches(r"^\141\07\0$", &["a\x07\0"], &[]);
    matches(r"^\x41\x{1F600}\a\f\n\r\t\v$", &["A😀\x07\x0c\n\r\t\x0b"], &[]);
    matches(r"^\_\-\/\#\ \%$", &["_-/# %"], &[]);
    matches(r"\Aa\z", &["a"], &["a\n", "ba"]);
    matches(r"^\x{DFFF}$", &[], &["a", ""]);
}

#[test]
fn groups_and_flags() {
    matches("^(?P<n>a)(?<n1>b)(?P<1>c)(?P<n>d)$", &["abcd"], &[]);
    matches("^(a|(?i)b)c$", &["Bc", "ac"], &["BC", "Ac"]);
    matches("a(?i)b|c", &["aB", "C"], &["Ab"]);
    matches("^(?i:a)b(?-i)c$", &["Abc"], &["aBc"]);
    matches("(?m)^a$", &["b\na\nb"], &["ba"]);
    matches("^a.b$", &["axb", "a\rb"], &["a\nb"]);
    matches("(?s-i)^a.b$", &["a\nb"], &[]);
    matches("^(?)a()$", &["a"], &[]);
    finds("(?U)a+", "aaa", "a");
    finds("(?U)a+?", "aaa", "aaa");
    finds("(?U:a+)b*", "aabb", "a");
    finds("(?U)(a+)(?-U)b+", "aabb", "aabb");
    // Flags do not separate a repeat from what it repeats, but the repeats from each other.
    matches("^a(?i)*b$", &["aaB"], &["AB"]);
    finds("a*(?i)?", "aaa", "aaa");
    matches(r"^a*\Q\E{2}$", &["aaa", ""], &["b"]);
    finds("a|b||", "c", "");
    matches("(^)*a($){1,2}", &["ba"], &[]);
    matches(r"^*\b+a", &["a"], &[]);
}

#[test]
fn unicode_names() {
    matches(r"^\pL\p{Lu}\p{Greek}\PN$", &["éÉαx"], &["éÉα1"]);
    matches(r"^[\p{^Greek}\pN]$", &["a", "1"], &["α"]);
    matches(r"^\P{^Han}$", &["漢"], &["a"]);
    matches(r"^\p{Old_Italic}\p{Any}\p{ASCII}\p{Assigned}\p{LC}$", &["\u{10300}éaba"], &[]);
    matches(r"^\p{Uppercase_Letter}\p{punct}$", &["A!"], &["a!"]);
    matches(r"^\P{Cs}$", &["a"], &[]);
    matches(r"\p{Cs}|\p{Cn}", &["\u{378}"], &["a"]);
    refused(r"a\p{Alphabetic}", r"invalid character class range: `\p{Alphabetic}`");
    refused(r"\p{Script=Greek}", r"invalid character class range: `\p{Script=Greek}`");
    refused(r"\p{Grek}", r"invalid character class range: `\p{Grek}`");
    refused(r"[\pX]", r"invalid character class range: `\pX`");
    refused(r"\p{L", r"invalid character class range: `\p{L`");
    refused(r"\p", r"invalid character class range: `\p`");
    refused(r"\p{Garay}", r"invalid character class range: `\p{Garay}`");
}

#[test]
fn faults() {
    refused("a**", "invalid nested repetition operator: `**`");
    refused("a++b", "invalid nested repetition operator: `++`");
    refused("a*??", "invalid nested repetition operator: `*??`");
    refused("a{2}{3}", "invalid nested repetition operator: `{2}{3}`");
    refused("*", "missing argument to repetition operator: `*`");
    refused("a|*?", "missing argument to repetition operator: `*?`");
    refused("(?i)*", "missing argument to repetition operator: `*`");
    refused("(+)", "missing argument to repetition operator: `+`");
    refused("a{1001}", "invalid repeat count: `{1001}`");
    refused("a{99999999999}", "invalid repeat count: `{99999999999}`");
    refused("a{2,1}", "invalid repeat count: `{2,1}`");
    refused("((a{32}){2}b){16,}", "invalid repeat count: `{16,}`");
    matches("^((a{32}){2}b){15}((c{1000}){0,1}){1}(d{1000}){0}", &[], &["a"]);
    refused("(", "missing closing ): `(`");
    refused("a)", "unexpected ): `a)`");
    refused("x[a", "missing closing ]: `[a`");
    refused("[]", "missing closing ]: `[]`");
    refused("[b-a]", "invalid character class range: `b-a`");
    refused("[[:foo:]]", "invalid character class range: `[:foo:]`");
    refused(r"a\", "trailing backslash at end of expression: ``");
    refused(r"\1", r"invalid escape sequence: `\1`");
    refused(r"\8", r"invalid escape sequence: `\8`");
    refused(r"\u0041", r"invalid escape sequence: `\u`");
    refused(r"\C", r"invalid escape sequence: `\C`");
    refused(r"\Z", r"invalid escape sequence: `\Z`");
    refused(r"[\b]", r"invalid escape sequence: `\b`");
    refused(r"\é", r"invalid escape sequence: `\é`");
    refused(r"\x4", r"invalid escape sequence: `\x4`");
    refused(r"\xg1a", r"invalid escape sequence: `\xg1`");
    refused(r"\x{110000}", r"invalid escape sequence: `\x{110000`");
    refused(r"\x{}", r"invalid escape sequence: `\x{}`");
    for flags in ["(?x", "(?R", "(?u", "(?=", "(?!", "(?i--", "(?-)", "(?P"] {
        refused(&format!("{flags}:a)"), &format!("invalid or unsupported Perl syntax: `{flags}`"));
    }
    refused("(?<=a)", "invalid named capture: `(?<=a)`");
    refused("(?P<a b>c)", "invalid named capture: `(?P<a b>`");
    refused("(?P<a", "invalid named capture: `(?P<a`");
}

#[test]
fn work_is_bounded() {
    let deep = "(".repeat(50_000) + &")".repeat(50_000);
    refused(&deep, &format!("expression nests too deeply: `{deep}`"));
    let repeated = "a".to_owned() + &"*(?i)".repeat(50_000);
    refused(&repeated, &format!("expression nests too deeply: `{repeated}`"));
    matches("^[^/]{1,1000}$", &["é"], &["/"]);
    let unnamed = "[[:a]".repeat(100_000) + ")";
    refused(&unnamed, &format!("unexpected ): `{unnamed}`"));
    let large = r"\pL{1000}\pN{1000}";
    refused(large, &format!("expression too large: `{large}`"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The engine refuses nothing that Go's rules let through: short patterns are never too deep for it.
    #[test]
    fn translated_patterns_are_valid(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "a", "é", "(", ")", "|", "[", "]", "^", "-", "*", "+", "?", "{", "}", "2", ",", "{1,2}", "\\", "\\w", "\\b",
                "\\B", "\\pL", "\\P{Han}", "[:alpha:]", "&&", "~~", "(?i)", "(?U:", "(?P<n>", "<", ">", "\\Q", "\\E", "\\x{D800}",
                ":", "#", " ", "\n", "$", ".", "[^", "\\z", "\\01", "(?-s:",
            ]),
            0..14,
        )
    ) {
        let text: String = parts.concat();
        if let Err(why) = compile_pattern(&text) {
            prop_assert!(!why.contains("nests too deeply") && !why.contains("too large"), "{text:?}: {why}");
        }
    }
}

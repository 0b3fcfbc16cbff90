//! The estimated costs of expressions: upstream's tables (Kubernetes's `library/cost_test.go`, cel-go's
//! `cost_test.go`). Where these take texts of unknown size for twelve characters long, a variable declares that here.

use cel::estimate::{Declared, Range, Sizes};
use cel::{Environment, Type};

fn up_to(most: u64) -> Sizes {
    Sizes { most, ..Sizes::default() }
}

/// A list of five items of twelve, a map of five such texts, a text of twelve and a number.
fn sizes() -> Sizes {
    let texts = || Sizes { items: Some(Box::new(up_to(12))), ..up_to(5) };
    let map = Sizes { keys: Some(Box::new(up_to(12))), ..texts() };
    let fields = [("texts", texts()), ("map", map), ("text", up_to(12)), ("number", up_to(0)), ("any", up_to(40))];
    Sizes { fields: fields.map(|(name, sizes)| (name.into(), sizes)).into(), ..Sizes::default() }
}

fn estimated(text: &str) -> (u64, u64) {
    let fields = [
        ("texts".to_owned(), Type::list(Type::String)),
        ("map".to_owned(), Type::map(Type::String, Type::String)),
        ("text".to_owned(), Type::String),
        ("number".to_owned(), Type::Int),
        ("any".to_owned(), Type::Dyn),
    ];
    let environment = Environment::builder().object("test", fields).variable("self", Type::object("test")).build();
    let declared = Declared { root: &sizes(), variable: None };
    let (_, Range { least, most }) = environment.compile_estimated(text, declared).expect(text);
    (least, most)
}

fn check(text: &str, least: u64, most: u64) {
    assert_eq!(estimated(text), (least, most), "{text}");
}

fn exactly(text: &str, cost: u64) {
    check(text, cost, cost);
}

#[test]
fn operators() {
    exactly("'Hello World!'", 0);
    exactly("self.number", 2);
    exactly("self.map['a']", 3);
    exactly("has(self.text)", 1);
    exactly("[1, 2]", 10);
    exactly("{'a': 1}", 30);
    exactly("dyn(1)", 1);
    check("true && [1] == [1] && 2 > 1", 0, 22);
    check("2 > 1 || true", 1, 1);
    check("2 > 1 ? [1] : [1, [2].size()]", 11, 22);
    check("self.text == 'abc'", 3, 3);
    check("self.text < 'abcdefghijklmnopqrst'", 3, 4);
    check("self.text + self.text == 'a'", 5, 8);
    check("self.text in self.texts", 4, 9);
    check("self.text.matches('abcd')", 3, 4);
    exactly("self.any.field == 1", 3);
}

#[test]
fn folds() {
    check("self.texts.all(t, true)", 2 + 1, 2 + 1 + 5 * 3);
    check("self.texts.all(a, self.texts.all(b, true))", 3, 3 + 5 * (2 + 1 + 18));
    check("self.map.exists(k, k == 'a')", 3, 3 + 5 * (3 + 2 + 1));
    check("self.texts.map(t, t + 'abc').size() > 0", 10 + 2 + 1 + 1 + 1, 15 + 5 * (10 + 1 + 1 + 1 + 2));
    check("cel.bind(a, 'abcdefghijk', a == a)", 10 + 2 + 1, 10 + 2 + 2);
    check("{'a': 1, 'b': 2}.all(k, v, v > 0)", 37, 41);
    check("{'a': 1, 'b': 2}.exists(k, v, v > 0)", 39, 43);
    check("{'a': 1, 'b': 2}.existsOne(k, v, v > 0)", 38, 40);
    exactly("{'a': 1, 'b': 2}.transformMap(k, v, v + 1)", 71);
    check("{'a': 1, 'b': 2}.transformMap(k, v, v < 5, v + 1)", 67, 75);
    exactly("{'a': 1, 'b': 2}.transformMapEntry(k, v, {k: v + 1})", 131);
    check("{'a': 1, 'b': 2}.transformMapEntry(k, v, v < 5, {k: v + 1})", 67, 135);
    check("[1, 2].all(i, v, v > 0)", 17, 21);
    check("[1, 2].exists(i, v, v > 0)", 19, 23);
    check("[1, 2].existsOne(i, v, v > 0)", 18, 20);
    exactly("[1, 2].transformList(i, v, v + 1)", 49);
    check("[1, 2].transformList(i, v, v < 5, v + 1)", 27, 53);
}

#[test]
fn lists() {
    for call in ["sum()", "isSorted()", "max()", "min()", "indexOf(3)", "lastIndexOf(3)"] {
        exactly(&format!("[1, 2, 3, 4, 5].{call}"), 15);
    }
    exactly("[uint(1), uint(2), uint(3), uint(4), uint(5)].sum()", 20);
    exactly("[uint(1), uint(2), uint(3), uint(4), uint(5)].indexOf(uint(3))", 21);
    exactly("[duration('1s'), duration('2s'), duration('3s'), duration('4s'), duration('5s')].max()", 20);
    check("self.texts.isSorted()", 2, 2 + 5 * (1 + 2));
    check("self.texts.join(' ')", 2, 2 + 7);
    exactly("[1, 2, 3].slice(1, 3).size()", 10 + 11 + 2 + 1);
    exactly("lists.range(7).reverse()", 11 + 7 + 11 + 7);
    exactly("[1, 2, 3].distinct()", 10 + 11 + 18);
    exactly("['a', 'b', 'c'].sort()", 10 + 11 + 19);
}

#[test]
fn texts() {
    exactly("'01234567890123456789012345678901234567890123456789'.indexOf('123')", 5);
    exactly("'ABCDEFGHIJ abcdefghij'.lowerAscii()", 3);
    check("'ABCDEFGHIJ abcdefghij'.lowerAscii() == 'abcdefghij ABCDEFGHIJ'.lowerAscii()", 7, 9);
    exactly("strings.quote('ABCDEFGHIJ abcdefghij')", 3);
    check("strings.quote('ABCDEFGHIJ abcdefghij') == strings.quote('ABCDEFGHIJ abcdefghij')", 7, 11);
    for call in ["replace('123', '456')", "replace('', 'x')", "replace('123', '', 1)", "split(' ')", "split(' ', 1)"] {
        exactly(&format!("'abc 123 def 123'.{call}"), 3);
    }
    for call in ["substring(5)", "substring(5, 8)", "find('123')", "findAll('123')", "findAll('123', 1)"] {
        exactly(&format!("'abc 123 def 123'.{call}"), 2);
    }
    exactly("'  abc 123 def 123  '.trim()", 2);
}

/// The size of a replacement shows in the price of walking over it.
#[test]
fn replacements() {
    let check = |text: u64, old: &str, new: &str, least: u64, most: u64| {
        let text = "a".repeat(usize::try_from(text).expect("a small number"));
        let joined = format!("'{text}'.replace('{old}', '{new}').lowerAscii()");
        let walk = |size: u64| size.div_ceil(10);
        let traversals = (text.len() as u64 * 2).div_ceil(10);
        assert_eq!(estimated(&joined), (traversals + walk(least), traversals + walk(most)), "{joined}");
    };
    check(30, "", "_", 61, 61);
    check(30, "b", "", 0, 30);
    check(40, "bb", "cccc", 40, 80);
}

#[test]
fn types_of_libraries() {
    for call in ["getScheme()", "getHostname()", "getHost()", "getPort()", "getEscapedPath()", "getQuery()"] {
        exactly(&format!("url('https:://kubernetes.io/').{call}"), 4);
    }
    check("url('https:://kubernetes.io/') == url('https:://kubernetes.io/')", 7, 9);
    exactly("url('https:://kubernetes.io/') == url('http://x.b')", 5);
    exactly("semver('1234.56789012345.67890123456789')", 4);
    exactly("isSemver('1.0.0')", 1);
    exactly("semver('1.2.3').major()", 2);
    exactly("semver('1.0.0').isLessThan(semver('1.1.0'))", 3);
    exactly("sets.contains([], [])", 21);
    exactly("sets.contains([1, 2, 3, 4], [2, 3])", 29);
    exactly("sets.contains([[1], [2, 3]], [[2, 3]])", 53);
    exactly("!sets.contains([1], [1, 2])", 24);
    exactly("sets.equivalent([1, 2, 3], [3, 2, 1])", 39);
    exactly("sets.intersects([1], [1, 2])", 23);
}

#[test]
fn what_nothing_bounds_costs_the_most() {
    let most = |text: &str| estimated(text).1;
    assert_eq!(most("self.any.join()"), 2);
    assert!(most("self.map.missing.lowerAscii() == ''") > 1 << 60);
    assert!(most("self.texts.all(a, string(self.number).split('').all(b, a == b))") > 1 << 60);
    // Upstream takes the first step of any path for a variable, and the root is an object without a size.
    exactly("optional.of({'a': 'b'})[?'a'].orValue('c') == 'd'", 30 + 1 + 1 + 1 + 1);
}

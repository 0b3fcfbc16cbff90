//! The functions of the extensions: upstream's cases.

use super::check;

#[test]
fn texts() {
    check("'tacocat'.charAt(3)", "\"o\"");
    check("'tacocat'.charAt(7)", "\"\"");
    check("'tacocat'.charAt(30)", "error: index out of range: 30");
    check("'tacocat'.indexOf('')", "0");
    check("'tacocat'.indexOf('ac')", "1");
    check("'tacocat'.indexOf('none')", "-1");
    check("'tacocat'.indexOf('a', 3)", "5");
    check("'tacocat'.indexOf('a', 30)", "-1");
    check("'tacocat'.indexOf('a', -1)", "error: index out of range: -1");
    check("'ta©o©αT'.indexOf('©', 3)", "4");
    check("'tacocat'.lastIndexOf('at')", "5");
    check("'tacocat'.lastIndexOf('')", "7");
    check("'tacocat'.lastIndexOf('a', 4)", "1");
    check("'ta©o©αT'.lastIndexOf('©')", "4");
    check("'ta©o©αT'.lastIndexOf('©', 3)", "2");
    check("'TacoCÆt'.lowerAscii()", "\"tacocÆt\"");
    check("'tacoCαt'.upperAscii()", "\"TACOCαT\"");
    check("'12 days 12 hours'.replace('{0}', '2')", "\"12 days 12 hours\"");
    check("'1 2 1 2'.replace('1', 'x', 1)", "\"x 2 1 2\"");
    check("'ab'.replace('', '_')", "\"_a_b_\"");
    check("'hello world'.split(' ')", "[\"hello\", \"world\"]");
    check("'a,b,c'.split(',', 2)", "[\"a\", \"b,c\"]");
    check("'a,b,c'.split(',', 0)", "[]");
    check("'abc'.split('')", "[\"a\", \"b\", \"c\"]");
    check("'abc'.split('', 2)", "[\"a\", \"bc\"]");
    check("'tacocat'.substring(4)", "\"cat\"");
    check("'ta©o©αT'.substring(2, 6)", "\"©o©α\"");
    check("'tacocat'.substring(2, 1)", "error: invalid substring range. start: 2, end: 1");
    check("'tacocat'.substring(40)", "error: index out of range: 40");
    check("' \\t trim\\n '.trim()", "\"trim\"");
    check("['x', 'y'].join('-')", "\"x-y\"");
    check("strings.quote('a\\n\"b\"')", r#""\"a\\n\\\"b\\\"\"""#);
    check("'hello'.startsWith('he') && 'hello'.endsWith('lo') && 'hello'.contains('ell')", "true");
    check("'hello'.matches('^h.*o$')", "true");
    check("'abc 123'.find('[0-9]+')", "\"123\"");
    check("'abc'.find('[0-9]+')", "\"\"");
    check("'123 abc 456'.findAll('[0-9]+')", "[\"123\", \"456\"]");
    check("'123 abc 456'.findAll('[0-9]+', 1)", "[\"123\"]");
    check("'123 abc 456'.findAll('[0-9]+', -1).size()", "2");
    check("size('ta©o')", "4");
}

#[test]
fn lists() {
    check("[1, 2, 3].sum()", "6");
    check("[1.5, 2.5].sum()", "4.0");
    check("[duration('1m'), duration('1s')].sum() == duration('61s')", "true");
    check("dyn([1.0, 2.0]).sum() == 3.0 && dyn([1, 2]).sum() == 3 && dyn([]).sum() == 0", "true");
    check("dyn(['a']).sum()", "error: no such overload");
    check("['a', 'c', 'b'].max()", "\"c\"");
    check("[3, 1, 2].min()", "1");
    check("[1].filter(i, i > 1).max()", "error: max called on empty list");
    check("[1, 2, 2].isSorted()", "true");
    check("['b', 'a'].isSorted()", "false");
    check("[1, 2, 2, 3].indexOf(2)", "1");
    check("[1, 2, 2, 3].lastIndexOf(2)", "2");
    check("['a'].lastIndexOf('b')", "-1");
    check("[1, 2, 3, 4].slice(1, 3)", "[2, 3]");
    check("[1].slice(0, 2)", "error: cannot slice(0, 2), list is length 1");
    check("[[1, 2], [3]].flatten()", "[1, 2, 3]");
    check("dyn([1, [2, [3]]]).flatten(2)", "refused: expected type 'int' but found 'list(dyn)'");
    check("[[1], [2]].flatten(-1)", "error: level must be non-negative");
    check("[3, 1, 2].sort()", "[1, 2, 3]");
    check("['b', 'c', 'a'].sort()", "[\"a\", \"b\", \"c\"]");
    check("[{'n': 2}, {'n': 1}].sortBy(e, e.n)", "[{\"n\": 1}, {\"n\": 2}]");
    check("lists.range(4)", "[0, 1, 2, 3]");
    check("[1, 2, 3].reverse()", "[3, 2, 1]");
    check("[1, 2, 1, 3, 2].distinct()", "[1, 2, 3]");
    check("[[1], [1], [2]].distinct()", "[[1], [2]]");
    check("[1, 2] + [3]", "[1, 2, 3]");
    check("2 in [1, 2]", "true");
    check("x in list", "true");
}

#[test]
fn sets() {
    check("sets.contains([1, 2, 3, 4], [2, 3])", "true");
    check("sets.contains([1], [1, 2])", "false");
    check("sets.contains([], [])", "true");
    check("sets.equivalent([1, 1], [1])", "true");
    check("sets.equivalent([1, 2], [2])", "false");
    check("sets.intersects([1, 2], [2, 3])", "true");
    check("sets.intersects([], [])", "false");
}

#[test]
fn versions() {
    check("semver('1.2.3').major()", "1");
    check("semver('1.2.3').minor() + semver('1.2.3').patch()", "5");
    check("isSemver('1.2.3-beta.1+build.1')", "true");
    check("isSemver('1.2')", "false");
    check("isSemver('v1.0')", "false");
    check("semver('v1.0')", "error: No Major.Minor.Patch elements found");
    check("semver('')", "error: Version string empty");
    check("semver('v1.0.0')", "error: Invalid character(s) found in major number \"v1\"");
    check("semver('1.01.0')", "error: Minor number must not contain leading zeroes \"01\"");
    check("semver('1.0.0-a.01')", "error: Numeric PreRelease version must not contain leading zeroes \"01\"");
    check("semver('1.0.0-a+')", "error: Build meta data is empty");
    check("isSemver('v1.0', true)", "true");
    check("semver('01.01.01', true).compareTo(semver('1.1.1'))", "0");
    check("isSemver('v1.0-alpha.1', true)", "false");
    check("semver('1.2.3') == semver('1.2.3')", "true");
    check("semver('1.2.3+a') == semver('1.2.3+b')", "true");
    check("semver('1.0.0-alpha').isLessThan(semver('1.0.0'))", "true");
    check("semver('2.0.0').isGreaterThan(semver('10.0.0'))", "false");
    check("semver('1.2.3').compareTo(semver('2.0.0'))", "-1");
    check("type(semver('1.0.0')) == kubernetes.Semver", "true");
}

#[test]
fn formatted_texts() {
    check(
        "'%s has %d'.format(['web', 'x'])",
        "error: error during formatting: decimal clause can only be used on integers, was given string",
    );
    check("'%s is %s'.format(['web', string(3)])", "\"web is 3\"");
    check("'%d%% of %d'.format([50, 4])", "\"50% of 4\"");
    check("'%.2f'.format([2.71828])", "\"2.72\"");
    check("'%f'.format([2.71828])", "\"2.718280\"");
    check("'%.1f'.format([-1234567.25])", "\"-1,234,567.2\"");
    check("'%e'.format([2.71828]) == '2.718280\u{202f}×\u{202f}10⁰⁰'", "true");
    check("'%.6e'.format([1052.032911275]) == '1.052033\u{202f}×\u{202f}10⁰³'", "true");
    check("'%b %b'.format([5, -5])", "\"101 -101\"");
    check("'%x %X %o'.format([26, 26, 11])", "\"1a 1A 13\"");
    check("'%x'.format(['hello'])", "\"68656c6c6f\"");
    check("'%s'.format([[1.5, 2.0]])", "\"[1.500000, 2.000000]\"");
    check("'%s'.format([{'b': 'x', 'a': 'y'}])", "\"{\\\"a\\\":\\\"y\\\", \\\"b\\\":\\\"x\\\"}\"");
    check("'%s %s'.format([duration('90s'), duration('1m')])", "\"90s 60s\"");
    check("'%s'.format([object.spec.none])", "\"null\"");
    check("'%s %s'.format(['a'])", "error: index 1 out of range");
    check("'%a'.format(['a'])", "error: could not parse formatting clause: unrecognized formatting clause \"a\"");
    check("'%'.format(['a'])", "error: unexpected end of string");
}

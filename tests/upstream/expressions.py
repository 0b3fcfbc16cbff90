"""Expressions in CEL, each as the rule of a field: what compiles, what holds, and what goes wrong in evaluation."""

import itertools

from compare import BOTH, ask, definition, end, serve

TEXTS = ["''", "'abc'", "'aXbXc'", "'é日本'", "'  t '"]
NUMBERS = ["0", "1", "-1", "3", "9223372036854775807", "-9223372036854775808"]
LISTS = ["[]", "[1]", "[3,1,2]", "[1,1,2]", "['b','a']", "[1.5,2.5]", "[true,false]", "[[1],[2]]", "[duration('1s')]"]
URLS = ["https://a.b:80/p?x=1&x=2&y=%20#f", "http://u:p@h", "/rel", "a b", "https://[::1]:80/", "", "https://a.b/%zz"]
ADDRESSES = ["1.2.3.4", "::1", "fe80::1", "010.0.0.1", "::ffff:1.2.3.4", "1.2.3", "fe80::1%eth0", "ABCD::1", ""]
NETWORKS = ["10.0.0.0/8", "10.1.2.3/8", "::/0", "1.2.3.4", "1.2.3.4/33", "010.0.0.0/8", "1.2.3.0/024", ""]
QUANTITIES = ["1", "1.5", "100m", "1Ki", "1e3", "-1", "1K", "9223372036854775808", "1Ei", "1n", ".5", "", "x", "0x1"]
VERSIONS = ["1.2.3", "v1.2.3", "1.2", "01.2.3", "1.2.3-a.1", "1.2.3-a.01", "1.2.3+b", "1.2.3-", ""]
FORMATS = ["dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName", "labelValue", "uri", "uuid", "byte", "date", "datetime"]
MOMENTS = ["2020-01-01T00:00:00Z", "2020-02-30T00:00:00Z", "2020-01-01T00:00:00.123456789+02:00", "2020-01-01", "9999-12-31T23:59:59Z"]
SPANS = ["1s", "1h30m", "-1.5s", "1ms", "100000000h", "1", "", "1d", "1.5h"]
PARTS = ["FullYear", "Month", "Date", "DayOfWeek", "DayOfYear", "Hours", "Milliseconds"]
ODD = [
    "true || (1/0 == 1)", "(1/0==1) || false", "has({'a':1}.b)", "{'a':1}.b == 1", "type(1) == int", "dyn(1) == 'a'", "1 == '1'",
    "{1:1,1:2}.size() == 1", "int('0x10') == 16", "[0,1].exists(x, 1/x == 1)", "undeclared == 1", "self.size() > 3", "1 +",
    "'unterminated", "a.b.c()", "1 ? true : false", "self == 1", "'a'.foo()", "self.matches('(')", "in == 1", "self.if == 1",
    "optional.none().value() == 'a'", "{'a':'x'}[?'b'].orValue('z') == 'z'", "cel.bind(x, 'a', x + x) == 'aa'", "x.y[0]", "a[",
    "'%d'.format(['a']) == ''", "'%s'.format([1.5]) == '1.5'", "'%.2f'.format([1.555]) == '1.56'", "'%x'.format(['hi']) == '6869'",
]


def expressions():
    for text in TEXTS:
        for call in ("lowerAscii()", "upperAscii()", "trim()", "replace('','-')", "find('[A-Z]')", "find('[')"):
            yield f"{text}.{call} == 'no'"
        for number in NUMBERS[:4]:
            yield f"{text}.charAt({number}) == 'no'"
            yield f"{text}.substring({number}) == 'no'"
            yield f"{text}.indexOf('X', {number}) == 77"
            yield f"{text}.split('X', {number}).size() == 77"
        for kind, other in (("int", "77"), ("double", "77.0"), ("bool", "true"), ("uint", "77u")):
            yield f"{kind}({text}) == {other}"
    for left, right in itertools.product(NUMBERS, NUMBERS):
        for operation in "+-*/%":
            yield f"({left}) {operation} ({right}) == 77"
    for one in LISTS:
        for call in ("isSorted()", "all(x, x == x)", "exists_one(x, x == 1)", "all(i, x, i >= 0)"):
            yield f"{one}.{call}"
        for call in ("sum()", "min()", "max()"):
            yield f"string({one}.{call}) == 'no'"
        yield f"sets.contains({one}, [1])"
        yield f"{one}.transformList(i, x, i).size() == 77"
    for url in URLS:
        yield f"isURL('{url}')"
        for call in ("getScheme", "getHost", "getHostname", "getPort", "getEscapedPath"):
            yield f"url('{url}').{call}() == 'no'"
    for address in ADDRESSES:
        yield f"isIP('{address}')"
        yield f"ip('{address}').isLoopback()"
        yield f"cidr('10.0.0.0/8').containsIP('{address}')"
    for network in NETWORKS:
        yield f"isCIDR('{network}')"
        yield f"cidr('{network}').containsCIDR('10.1.0.0/16')"
        yield f"string(cidr('{network}').masked()) == 'no'"
    for quantity in QUANTITIES:
        yield f"isQuantity('{quantity}')"
        yield f"quantity('{quantity}').isGreaterThan(quantity('1'))"
        yield f"quantity('{quantity}').asInteger() == 77"
    for version in VERSIONS:
        yield f"isSemver('{version}')"
        yield f"semver('{version}').isLessThan(semver('1.2.3'))"
    for name, text in itertools.product(FORMATS, ["''", "'a-b'", "'A_b'", "'a/b'", "'2020-01-01'", f"'{'a' * 64}'"]):
        yield f"format.{name}().validate({text}).orValue(['ok']).join('|') == 'no'"
    for moment in MOMENTS:
        yield f"string(timestamp('{moment}') + duration('1h')) == 'no'"
        for part, zone in itertools.product(PARTS, ["", "'+02:00'", "'America/New_York'", "'Bad/Zone'"]):
            yield f"timestamp('{moment}').get{part}({zone}) == 77"
    for span in SPANS:
        yield f"string(duration('{span}')) == 'no'"
        yield f"duration('{span}').getMinutes() == 77"
    yield from ODD


def schema(rules):
    field = lambda rule: {"type": "string", "maxLength": 10, "x-kubernetes-validations": [{"rule": rule}]}
    fields = {f"f{i}": field(rule) for i, rule in rules}
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}


def refused(rules):
    """The numbers of the rules that a server refuses, both servers' together."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All"
    ask("POST", path, definition("checked", schema(rules)))
    causes = [cause for server in BOTH for cause in ((server.last or {}).get("details") or {}).get("causes", [])]
    return {i for i, _ in rules if any(f"[f{i}]" in cause.get("field", "") for cause in causes)}


rules = list(enumerate(dict.fromkeys(expressions())))
AT_ONCE = 100
for start in range(0, len(rules), AT_ONCE):
    some = rules[start : start + AT_ONCE]
    wrong = refused(some)
    some = [(i, rule) for i, rule in some if i not in wrong]
    name = f"rule{start // AT_ONCE}"
    if serve(definition(name, schema(some))):
        kind = {"apiVersion": "compared.example.com/v1", "kind": name.title(), "metadata": {"name": "x"}}
        path = f"/apis/compared.example.com/v1/namespaces/default/{name}s?dryRun=All"
        ask("POST", path, {**kind, "spec": {f"f{i}": "v" for i, _ in some}})
end()

"""Random schemas and objects for them: created, patched and applied. The first argument is a seed."""

import random
import sys

from compare import ask, definition, end, serve

R = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
DEFINITIONS = 25
OBJECTS = 14
FORMATS = ["date", "date-time", "ipv4", "ipv6", "uuid", "email", "uri", "byte", "duration", "cidr", "mac", "hostname", "unknown"]
TEXTS = ["a", "ab", "b", "", "abc", "2020-01-01", "2020-01-01T00:00:00Z", "1.2.3.4", "::1", "x@y.z", "https://a", "aGk=", "1h"]
ODD = [None, 1, "a", True, [], {}, 1.5, -3, "", [None], {"a": None}]


def maybe(chance, **words):
    return words if R.random() < chance else {}


def schema(depth=0):
    kinds = ["string", "integer", "number", "boolean", "object", "array", "object", "either", "string"]
    kind = "object" if depth == 0 else R.choice(kinds if depth < 3 else ["string", "integer", "boolean"])
    made = {"object": an_object, "array": a_list, "either": lambda _: {"x-kubernetes-int-or-string": True}}
    out = made.get(kind, lambda _: a_scalar(kind))(depth)
    if depth:
        out |= maybe(0.15, nullable=True)
    if 0 < depth < 3 and "type" in out and R.random() < 0.12:
        out["default"] = value(out, odd=0)
    return out


def an_object(depth):
    sort = R.random() if depth else 0.5
    if sort < 0.15:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if sort > 0.8:
        more = maybe(0.3, maxProperties=R.randint(0, 2)) | maybe(0.3, minProperties=R.randint(0, 2))
        return {"type": "object", "additionalProperties": schema(depth + 1)} | more
    fields = {name: schema(depth + 1) for name in R.sample("abcde", R.randint(1, 3))}
    names = sorted(fields)
    out = {"type": "object", "properties": fields} | maybe(0.4, required=[R.choice(names + ["zz"])])
    out |= maybe(0.15, **{"x-kubernetes-map-type": "atomic"}) | maybe(0.1, **{"not": {"required": [R.choice(names)]}})
    alternatives = [{"required": [R.choice(names)]} for _ in range(2)]
    return out | maybe(0.2, **{R.choice(["anyOf", "oneOf", "allOf"]): alternatives})


def a_list(depth):
    items = schema(depth + 1)
    out = {"type": "array", "items": items} | maybe(0.3, maxItems=R.randint(0, 3)) | maybe(0.3, minItems=R.randint(0, 2))
    if items.get("type") in ("string", "integer") and not items.get("nullable"):
        out |= maybe(0.4, **{"x-kubernetes-list-type": "set"})
    return out


def a_scalar(kind):
    out = {"type": kind}
    if kind == "string":
        out |= maybe(0.3, pattern=R.choice(["^a", "b$", "^[a-c]*$"])) | maybe(0.2, maxLength=R.randint(2, 3))
        out |= maybe(0.2, minLength=R.randint(0, 2)) | maybe(0.2, enum=R.sample(["a", "b", "ab", ""], 2))
        out |= maybe(0.15, format=R.choice(FORMATS))
    if kind in ("integer", "number"):
        out |= maybe(0.3, minimum=R.choice([0, 1, -1])) | maybe(0.3, maximum=R.choice([2, 3, 10])) | maybe(0.15, multipleOf=2)
        if "minimum" in out:
            out |= maybe(0.3, exclusiveMinimum=True)
    return out


def value(of, odd=0.12, depth=0):
    """A value that often fits the schema."""
    if depth and R.random() < odd:
        return R.choice(ODD)
    kind = of.get("type")
    if kind == "object":
        out = {}
        for name, inner in of.get("properties", {}).items():
            if name in of.get("required", []) or R.random() < 0.7:
                out[name] = value(inner, odd, depth + 1)
        if "additionalProperties" in of:
            out |= {name: value(of["additionalProperties"], odd, depth + 1) for name in R.sample("xyz", R.randint(0, 3))}
        return out | (maybe(0.2, unknown=R.choice([1, {"a": 1}, None])) if odd else {})
    if kind == "array":
        return [value(of["items"], odd, depth + 1) for _ in range(R.randint(0, 3))]
    if kind == "string":
        return R.choice(of["enum"] if "enum" in of and R.random() < 0.7 else TEXTS)
    numbers = {"integer": [0, 1, 2, 3, 4, 6, -1, 11, 2**31, 1.0], "number": [0, 1, 2.5, 0.5, 3, -1.5], "boolean": [True, False]}
    return R.choice(numbers.get(kind, [1, "a", -3]))


for i in range(DEFINITIONS):
    name, spec = f"thing{i}", schema()
    if not serve(definition(name, {"type": "object", "properties": {"spec": spec}})):
        continue
    path = f"/apis/compared.example.com/v1/namespaces/default/{name}s"
    for j in range(OBJECTS):
        def made():
            metadata = {"name": f"o{j}"}
            return {"apiVersion": "compared.example.com/v1", "kind": name.title(), "metadata": metadata, "spec": value(spec)}
        if ask("POST", path, made()) == (201, 201):
            ask("PATCH", f"{path}/o{j}", {"spec": value(spec)}, kind="application/merge-patch+json")
            ask("PATCH", f"{path}/o{j}?fieldManager=f&force=true", made(), kind="application/apply-patch+yaml")
end()

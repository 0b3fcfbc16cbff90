#!/usr/bin/env python3
"""Writes the tables of this folder from the reference tables.

Usage: generate.py schema REFERENCE_DIR > schema.tsv
       generate.py protobuf REFERENCE_DIR > protobuf.tsv

schema.tsv: the fields and types of the built-in API. A definition starts with a line `=NAME`, its fields follow in the order in which upstream declares and writes them, one a
line: JSON name, type, zero, patch, published (tab separated).
NAME is without the prefix `io.k8s.`; `=NAME!` is atomic for apply.
Types: s string, i int32, l int64, n number, b bool, y bytes, q quantity, t time, m microtime, x int-or-string,
j any JSON, r raw object, @NAME reference, @+NAME one that is not atomic for apply, {T map, {!T atomic map, [T atomic list, [=T set, [KEY,KEY:default;T keyed list.
The definitions behind those of OpenAPI, from `metrics.pkg` on, are written by hand: documents that OpenAPI does not describe.
Zero: d dropped when zero, f always written (a time as null), empty otherwise. Patch: strategies, then `:` and the merge key.
Published, what OpenAPI says besides: r required, d the zero value is the default, d=VALUE another default, in JSON.

protobuf.tsv: the fields of the same types as protobuf messages. A message starts with `=NAME` without `k8s.io.`; its
fields follow in ascending number: number, JSON name, type. Types: s string, i int32, l int64, b bool, d double, y bytes,
@NAME message, [T repeated, {T map from string, ^NAME message whose fields stand in the same JSON object. A field that is
written only when it is set ends with `?`.
"""
import csv
import glob
import json
import sys
import tarfile

SELF = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "q",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "t",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": "m",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "r",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Patch": "r",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "r",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "x",
}
ANY = ("JSON", "JSONSchemaPropsOrArray", "JSONSchemaPropsOrBool", "JSONSchemaPropsOrStringArray")


def read_tsv(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def definitions(folder):
    found = {}
    for path in sorted(glob.glob(f"{folder}/openapi-v3/*.json")):
        with open(path, encoding="utf-8") as file:
            for name, schema in json.load(file)["components"]["schemas"].items():
                found.setdefault(name, schema)
    return found


def messages(folder):
    """Message name in OpenAPI's words -> JSON name -> row, with inlined messages flattened."""
    rows = {}
    for row in read_tsv(f"{folder}/protobuf-fields.tsv"):
        name = row["message"].replace("k8s.io.", "io.k8s.", 1).replace("_", "-")
        rows.setdefault(name, []).append(row)

    def flat(name):
        fields = {}
        for row in rows.get(name, []):
            if row["json_shape"] == "inline":
                fields.update(flat(row["type"].replace("k8s.io.", "io.k8s.", 1).replace("_", "-")))
            else:
                fields[row["json_name"]] = row
        return fields

    return {name: flat(name) for name in rows}


def reference(schema):
    inner = schema["allOf"][0] if "allOf" in schema else schema
    return inner.get("$ref", "").rsplit("/", 1)[-1]


def list_mark(schema, defs):
    kind = schema.get("x-kubernetes-list-type", "atomic")
    if kind == "set":
        return "[="
    if kind != "map":
        return "["
    item = defs.get(reference(schema["items"]), {}).get("properties", {})
    keys = []
    for key in schema["x-kubernetes-list-map-keys"]:
        default = item.get(key, {}).get("default", "")
        keys.append(f"{key}:{default}" if default else key)
    return "[" + ",".join(keys) + ";"


def type_of(schema, defs):
    ref = reference(schema)
    if ref:
        if ref in SELF:
            return SELF[ref]
        mark = "@+" if schema.get("x-kubernetes-map-type") == "granular" else "@"
        return "j" if ref.rsplit(".", 1)[-1] in ANY else mark + ref.removeprefix("io.k8s.")
    form = schema.get("format", "")
    match schema.get("type"):
        case "string":
            return {"byte": "y"}.get(form, "s")
        case "integer":
            return "i" if form == "int32" else "l"
        case "number":
            return "n"
        case "boolean":
            return "b"
        case "array":
            return list_mark(schema, defs) + type_of(schema["items"], defs)
        case "object":
            mark = "{!" if schema.get("x-kubernetes-map-type") == "atomic" else "{"
            return mark + type_of(schema.get("additionalProperties", {}), defs)
    return "j"


def zero_of(row, kind, required):
    if row is None:
        return "d" if kind == "s" else ""
    omit = "omitempty" in row["json_omit"]
    if row["emit"] == "if_nonempty":
        return "d" if omit else "f"
    if row["emit"] != "always" or kind in "jr" or "omitzero" in row["json_omit"]:
        return ""
    if kind in "tm":
        # Where one is required, a client may refuse null.
        return "" if required else "f"
    if kind == "x":
        return "d"
    if kind[0] == "@" or kind == "q":
        return "f"
    return "d" if omit else "f"


def published(property_, required):
    flags = "r" if required else ""
    if "default" in property_:
        default = property_["default"]
        flags += "d" if default in ({}, "", 0) else "d=" + json.dumps(default)
    return flags


# Kinds without a fixture whose order is not that of their protobuf numbers.
DECLARED = {
    "io.k8s.apimachinery.pkg.apis.meta.v1.APIResource": [
        "name", "singularName", "namespaced", "group", "version", "kind", "verbs", "shortNames", "categories", "storageVersionHash",
    ],
}


def declared(folder, defs):
    """Definition -> its fields in the order of the fixtures, which upstream has written with every field set."""
    orders = dict(DECLARED)

    def visit(schema, value):
        if isinstance(value, list):
            for item in value:
                visit(schema.get("items", {}), item)
        elif isinstance(value, dict):
            name = reference(schema)
            known = defs.get(name, {}).get("properties", {})
            if name in defs and len(value) > len(orders.get(name, ())):
                orders[name] = list(value)
            for field, below in value.items():
                visit(known.get(field) or schema.get("additionalProperties", {}), below)

    kinds = {}
    for name, schema in defs.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            kinds.setdefault((kind["group"], kind["version"], kind["kind"]), name)
    with tarfile.open(f"{folder}/api-fixtures/json.tar.gz") as archive:
        for member in archive.getmembers():
            if not member.isfile():
                continue
            value = json.load(archive.extractfile(member))
            group, _, version = value.get("apiVersion", "").rpartition("/")
            name = kinds.get((group, version, value.get("kind")))
            if name:
                visit({"$ref": "/" + name}, value)
    return orders


def schema(folder):
    defs, fields = definitions(folder), messages(folder)
    orders = declared(folder, defs)
    for name in sorted(defs):
        schema = defs[name]
        if name in SELF or name.rsplit(".", 1)[-1] in ANY:
            continue
        atomic = "!" if schema.get("x-kubernetes-map-type") == "atomic" else ""
        print("=" + name.removeprefix("io.k8s.") + atomic)
        properties = schema.get("properties", {})
        order = {field: at for at, field in enumerate(orders.get(name, ()))}
        number = {field: int(row["number"]) for field, row in fields.get(name, {}).items()}
        number.update({"kind": -2, "apiVersion": -1})

        def place(field):
            """A field that no fixture has follows the one whose number is next below its own."""
            own = number.get(field, 1000)
            before = max((f for f in order if number.get(f, 1000) < own), key=number.get, default=None)
            return (order.get(field, order.get(before, -1)), field not in order, own, field)

        for field in sorted(properties, key=place):
            property_ = properties[field]
            kind = type_of(property_, defs)
            required = field in schema.get("required", [])
            zero = zero_of(fields.get(name, {}).get(field), kind, required)
            patch = property_.get("x-kubernetes-patch-strategy", "")
            if "x-kubernetes-patch-merge-key" in property_:
                patch += ":" + property_["x-kubernetes-patch-merge-key"]
            said = published(property_, required)
            print(f"{field}\t{kind}\t{zero}\t{patch}\t{said}".rstrip("\t"))



PROTOBUF = {"string": "s", "int32": "i", "int64": "l", "bool": "b", "double": "d", "bytes": "y"}


def protobuf(folder):
    current = None
    for row in read_tsv(f"{folder}/protobuf-fields.tsv"):
        if row["message"] != current:
            current = row["message"]
            print("=" + current.removeprefix("k8s.io."))
        base = row["type"]
        mark = ""
        if row["label"] == "map":
            mark, base = "{", base.removeprefix("map<string,").removesuffix(">")
        elif row["label"] == "repeated":
            mark = "["
        code = PROTOBUF.get(base) or "@" + base.removeprefix("k8s.io.")
        if row["json_shape"] == "inline":
            code = "^" + code[1:]
        optional = "?" if row["emit"] == "if_set" else ""
        print(f"{row['number']}\t{row['json_name']}\t{mark}{code}{optional}")


{"schema": schema, "protobuf": protobuf}[sys.argv[1]](sys.argv[2])

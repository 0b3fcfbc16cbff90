"""Requests for objects of one custom kind: right ones, wrong ones and odd ones."""

import urllib.parse

from compare import ask, definition, end, serve

GROUP = "/apis/compared.example.com/v1"
ALL = f"{GROUP}/namespaces/default/cases"
JSON, YAML, MERGE, APPLY = (
    "application/json", "application/yaml", "application/merge-patch+json", "application/apply-patch+yaml")
PATCH = "application/json-patch+json"
META = "g=meta.k8s.io;v=v1"

SPEC = {
    "type": "object", "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 10},
        "replicas": {"type": "integer", "minimum": 0, "maximum": 10, "default": 1},
        "port": {"x-kubernetes-int-or-string": True},
        "when": {"type": "string", "format": "date-time"},
        "sort": {"type": "string", "enum": ["A", "B"]},
        "none": {"type": "string", "nullable": True, "default": "d"},
        "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}, "maxItems": 5},
        "map": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "p"],
            "items": {
                "type": "object", "required": ["k"],
                "properties": {"k": {"type": "string"}, "p": {"type": "string", "default": "TCP"}, "v": {"type": "integer"}},
            },
        },
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
        "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "is immutable"}]},
    },
    "x-kubernetes-validations": [{"rule": "self.replicas < 9"}, {"rule": "!has(self.sort) || self.sort != 'B' || has(self.port)"}],
}
STATUS = {"type": "object", "properties": {
    "replicas": {"type": "integer"}, "selector": {"type": "string"}, "phase": {"type": "string"}}}
SCALE = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}
COLUMNS = [
    {"name": "Name", "type": "string", "jsonPath": ".spec.name"}, {"name": "When", "type": "date", "jsonPath": ".spec.when"},
    {"name": "Set", "type": "string", "jsonPath": ".spec.set"}, {"name": "First", "type": "string", "jsonPath": ".spec.set[0]"}]


def case(name, spec=None, **metadata):
    spec = {"name": "abc"} if spec is None else spec
    metadata = {"name": name, **metadata}
    return {"apiVersion": "compared.example.com/v1", "kind": "Case", "metadata": metadata, "spec": spec}


def creations():
    wrong = [
        {"name": "ABC"}, {"name": "abcdefghijklmn"}, {}, {"name": 1}, {"name": None}, {"replicas": 11}, {"replicas": "1"},
        {"replicas": 1.5}, {"replicas": 9}, {"port": 1.5}, {"port": []}, {"when": "yesterday"}, {"sort": "C"}, {"sort": "B"},
        {"set": ["a", "a"]}, {"set": list("abcdef")}, {"map": [{"k": "a"}, {"k": "a", "p": "TCP"}]}, {"map": [{"p": "x"}]},
        {"map": {}}, [], "x", None, 5]
    for i, spec in enumerate(wrong):
        spec = {"name": "abc", **spec} if isinstance(spec, dict) and spec and "name" not in spec else spec
        one = case(f"wrong{i}")
        one["spec"] = spec
        ask("POST", ALL, one)
    unknown = {**case("unknown", {"name": "abc", "unknown": 1, "map": [{"k": "z", "more": 2}]}), "extra": 1}
    twice = 'apiVersion: compared.example.com/v1\nkind: Case\nmetadata: {name: twice}\nspec: {name: abc, name: abd, foo: 1}\n'
    for directive in ("Strict", "Warn", "Ignore", "", "Foo"):
        ask("POST", f"{ALL}?dryRun=All&fieldValidation={directive}", unknown)
        ask("POST", f"{ALL}?dryRun=All&fieldValidation={directive}", twice, kind=YAML)
    head = '"apiVersion":"compared.example.com/v1","kind":"Case"'
    bodies = ["", "{", "[]", '"x"', "null", '{"apiVersion":"compared.example.com/v1"}', '{"kind":"Case"}']
    bodies += ['{"kind":"Other","apiVersion":"compared.example.com/v1","metadata":{"name":"q"}}', '{"kind":"Case","apiVersion":"x/v1"}']
    metadata = [
        '[]', 'null', '{"name":5}', '{"labels":{"a":1}}', '{"name":"Q"}', '{"name":"q","namespace":"other"}',
        '{"name":"q","finalizers":["x"]}', '{"name":"q","finalizers":["a b"]}', '{"name":"q","ownerReferences":[{"kind":"A"}]}',
        '{"name":"q","annotations":{"a b":"c"}}', '{"name":"q","managedFields":[{"manager":"x"}]}', '{"generateName":"Q_"}']
    bodies += [f'{{{head},"metadata":{one},"spec":{{"name":"abc"}}}}' for one in metadata]
    for body in bodies:
        ask("POST", f"{ALL}?dryRun=All", body)
    for kind in ("text/plain", "application/json; charset=utf-8", "", MERGE, APPLY):
        ask("POST", f"{ALL}?dryRun=All", case("typed"), kind=kind)


def reads():
    forms = ["*/*", "text/html", f"{JSON};as=Table;{META}", f"{JSON};as=Table;v=v2;g=meta.k8s.io", f"{JSON};as=Case"]
    forms += [f"{JSON};as=PartialObjectMetadata;{META}", f"{JSON};as=PartialObjectMetadataList;{META}", f"{JSON};stream=watch"]
    for accept in forms:
        for path in (ALL, f"{ALL}/a", f"{ALL}/none", f"{ALL}/a/status", f"{ALL}/a/scale", f"{ALL}?includeObject=None"):
            ask("GET", path, accept=accept)
    queries = [
        "limit=2", "limit=-1", "limit=x", "continue=abc", "resourceVersion=x", "resourceVersionMatch=NotOlderThan",
        "resourceVersion=0&resourceVersionMatch=Exact", "resourceVersion=1&resourceVersionMatch=Foo", "labelSelector=n in (1,2)",
        "labelSelector=!n", "labelSelector=n in", "labelSelector=n>x", "labelSelector=a b", "labelSelector=,", "labelSelector=n==1",
        "fieldSelector=metadata.name=a", "fieldSelector=spec.name=abc", "fieldSelector=spec.foo=1", "fieldSelector=x", "watch=x",
        "fieldSelector=metadata.name>a", "timeoutSeconds=x", "timeoutSeconds=-1", "sendInitialEvents=true", "pretty=x",
        "watch=1&timeoutSeconds=1&resourceVersion=0", "watch=1&timeoutSeconds=1&fieldSelector=spec.foo=1", "unknown=1"]
    for query in queries:
        ask("GET", f"{ALL}?{urllib.parse.quote(query, safe='=&')}")
    ask("GET", f"{GROUP}/cases?limit=1")

    def after(server):
        return f"{GROUP}/cases?limit=1&continue={urllib.parse.quote((server.last or {}).get('metadata', {}).get('continue', ''))}"
    ask("GET", after)


def updates():
    ask("PUT", f"{ALL}/a", case("a"))
    ask("GET", f"{ALL}/a")
    held = {}

    def seen(server):
        return held.setdefault(server.name, server.last)
    changes = [{"spec": {"name": "new", "replicas": 2}}, {"spec": {"name": "old"}}, {"metadata": {"name": "b"}}, {"kind": "Other"}]
    for change in changes:
        ask("PUT", f"{ALL}/a", lambda server, change=change: {**seen(server), **change})
    ask("GET", f"{ALL}/a/scale")
    scales = [{"spec": {"replicas": 5}}, {"spec": {"replicas": -5}}, {"spec": {"replicas": 50}}, {"metadata": {"name": "a"}}]
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": 3}}
    for change in scales:
        ask("PUT", f"{ALL}/a/scale", {**scale, **change})
    ask("PATCH", f"{ALL}/a/scale", {"spec": {"replicas": 6}}, kind=MERGE)
    patches = [
        {"spec": {"replicas": None}}, "[]", "{", "null", '"x"', {"metadata": {"name": "x"}}, {"metadata": {"resourceVersion": "1"}},
        {"kind": "X"}, {"apiVersion": "x/v1"}, {"spec": {"name": "BAD"}}, {"spec": None}, {"spec": {"unknown": 1}},
        {"metadata": None}, {"metadata": {"labels": {"q": "r"}}}]
    for patch in patches:
        ask("PATCH", f"{ALL}/a", patch, kind=MERGE)
    for query in ("dryRun=x", "fieldManager=" + "x" * 129, "force=true", "fieldValidation=x"):
        ask("PATCH", f"{ALL}/a?{query}", {"spec": {"replicas": 2}}, kind=MERGE)
    for patch in ([{"op": "replace", "path": "/spec/replicas", "value": 3}], [{"op": "test", "path": "/spec/name", "value": 9}], []):
        ask("PATCH", f"{ALL}/a", patch, kind=PATCH)


def applies():
    def apply(spec, query="fieldManager=m1", **more):
        ask("PATCH", f"{ALL}/s?{query}", {**case("s", spec), **more}, kind=APPLY)
    apply({"name": "abc", "map": [{"k": "a", "v": 1}], "set": ["x"]})
    apply({"name": "abc", "map": [{"k": "a", "v": 2}]})
    apply({"name": "xyz"}, "fieldManager=m2")
    apply({"name": "xyz", "map": [{"k": "b"}], "set": ["y"], "whole": {"a": "1"}}, "fieldManager=m2&force=true")
    apply({"name": "xyz"}, "")
    apply({"map": [{"k": "a"}, {"k": "a"}]})
    apply({"name": "abc", "unknown": 1}, "fieldManager=m1&force=true&fieldValidation=Strict")
    apply(None, "fieldManager=m4&force=true")
    for more in ({"metadata": {"name": "t"}}, {"metadata": {"name": "s", "managedFields": [{}]}}, {"kind": "X"}, {"apiVersion": "x"}):
        apply({"name": "abc"}, **more)
    ask("GET", f"{ALL}/s")


def deletions():
    options = [
        {"preconditions": {"uid": "x"}}, {"propagationPolicy": "X"}, {"orphanDependents": True, "propagationPolicy": "Orphan"},
        {"dryRun": ["X"]}, {"dryRun": ["All"]}, {"gracePeriodSeconds": "x"}, "{"]
    for body in options:
        ask("DELETE", f"{ALL}/a", body)
    ask("POST", ALL, case("kept", finalizers=["a.b/c"]))
    ask("DELETE", f"{ALL}/kept")
    ask("PATCH", f"{ALL}/kept", {"metadata": {"finalizers": ["a.b/c", "d.e/f"]}}, kind=MERGE)
    ask("PATCH", f"{ALL}/kept", {"metadata": {"finalizers": None}}, kind=MERGE)
    ask("GET", f"{ALL}/kept")
    ask("DELETE", f"{ALL}/a")
    ask("DELETE", ALL)


def everything():
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": SPEC, "status": STATUS}}
    version = {"subresources": {"status": {}, "scale": SCALE}, "additionalPrinterColumns": COLUMNS}
    if serve(definition("case", schema, **version, selectableFields=[{"jsonPath": ".spec.name"}])):
        ask("GET", "/apis/compared.example.com")
        ask("GET", GROUP)
        ask("POST", ALL, case("a"))
        ask("POST", ALL, case("a"))
        for part in (creations, reads, updates, applies, deletions):
            part()


if __name__ == "__main__":
    everything()
    end()

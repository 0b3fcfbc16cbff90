"""Conformance of fields: those that a request may not have, and those by which custom resources are selected."""

import json

from admission import served_by
from operations import Custom, selected
from world import check, conformance, equal, named, until


def deployment(meta="", spec=""):
    return (
        '{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "my-dep", %s "labels": {"app": "nginx"}},'
        ' "spec": {%s "selector": {"matchLabels": {"app": "nginx"}}, "template": {"metadata": {"labels": {"app": "nginx"}},'
        ' "spec": {"containers": [{"name": "nginx", "image": "nginx:latest"}]}}}}'
    ) % (meta, spec)


def refused_strictly(world, body, words):
    path = world.path("apps/v1", "deployments?fieldManager=field_validation_mgr&fieldValidation=Strict")
    message = world.api.refuses(400, "POST", path, body)["message"]
    check(words in message, message)


@conformance("[sig-api-machinery] FieldValidation should detect unknown and duplicate fields of a typed object [Conformance]")
def typed(world):
    words = 'strict decoding error: unknown field "spec.unknownField", duplicate field "spec.replicas"'
    refused_strictly(world, deployment(spec='"unknownField": "foo", "replicas": 2, "replicas": 3,'), words)


@conformance("[sig-api-machinery] FieldValidation should detect unknown metadata fields of a typed object [Conformance]")
def typed_metadata(world):
    refused_strictly(world, deployment(meta='"unknownMeta": "foo",'), 'strict decoding error: unknown field "metadata.unknownMeta"')


def string(**more):
    return {"type": "string", **more}


PORT = {
    "type": "object", "required": ["containerPort", "protocol"],
    "properties": {
        "containerPort": {"type": "integer", "format": "int32"}, "hostPort": {"type": "integer", "format": "int32"},
        "hostIP": string(), "name": string(), "protocol": string(),
    },
}
SPEC = {
    "foo": string(), "cronSpec": string(pattern=r"^(\d+|\*)(/\d+)?(\s+(\d+|\*)(/\d+)?){4}$"),
    "ports": {"type": "array", "x-kubernetes-list-map-keys": ["containerPort", "protocol"], "x-kubernetes-list-type": "map", "items": PORT},
}
PORTS = '  cronSpec: "* * * * */5"\n  ports:\n  - name: x\n    containerPort: 80\n    protocol: TCP'


def custom(world, open_=False, **more):
    spec = {"type": "object", "properties": {**SPEC, **more}, **({"x-kubernetes-preserve-unknown-fields": True} if open_ else {})}
    return Custom(world, ["v1beta1", "v1"], {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}, scope="Cluster")


def apply(kind, spec, meta="", root=""):
    """An object of the kind, with a finalizer that is taken from it again."""
    path = kind.path("v1beta1", "mytest")
    kind.world.later(lambda: kind.world.api.is_gone(path) or kind.world.api.patch(path, {"metadata": {"finalizers": None}}))
    text = f"metadata:\n  name: mytest\n{meta}  finalizers:\n  - test-finalizer\n{root}spec:\n{spec}{PORTS}"
    return kind.apply("mytest", text, "v1beta1")


@conformance("[sig-api-machinery] FieldValidation should create/apply a valid CR for CRD with validation schema [Conformance]")
def valid(world):
    code, text = apply(custom(world), "  foo: foo1\n")
    equal(code, 201, text)


@conformance("[sig-api-machinery] FieldValidation should create/apply a CR with unknown fields for CRD with no validation schema [Conformance]")
def without_schema(world):
    code, text = apply(Custom(world, ["v1beta1", "v1"], scope="Cluster"), "  unknown: uk1\n")
    equal(code, 201, text)


@conformance("[sig-api-machinery] FieldValidation should create/apply an invalid CR with extra properties for CRD with validation schema [Conformance]")
def extra(world):
    _, text = apply(custom(world), "  foo: foo1\n", root="unknownField: unknown\n")
    check(".unknownField: field not declared in schema" in text, text)


@conformance("[sig-api-machinery] FieldValidation should detect unknown metadata fields in both the root and embedded object of a CR [Conformance]")
def embedded(world):
    properties = {"metadata": {"type": "object", "properties": {"name": string()}}, "spec": {"type": "object"}}
    kind = custom(world, True, template={"type": "object", "x-kubernetes-embedded-resource": True, "properties": properties})
    inner = f"  template:\n    apiversion: foo/v1\n    kind: Sub\n    metadata:\n      unknownSubMeta: unknown\n      name: subobject\n      namespace: {world.ns}\n"
    _, text = apply(kind, inner + "  foo: foo1\n", meta="  unknownMeta: unknown\n")
    words = [".spec.template.metadata.unknownSubMeta", ".metadata.unknownMeta"]
    check(any(f"{one}: field not declared in schema" in text for one in words), text)


@conformance("[sig-api-machinery] FieldValidation should detect duplicates in a CR when preserving unknown fields [Conformance]")
def duplicates(world):
    # The lines are counted from the first of upstream's text, which is empty.
    kind = custom(world, True)
    path = kind.path("v1beta1", "mytest")
    text = f"\napiVersion: {kind.group}/v1beta1\nkind: {kind.kind}\nmetadata:\n  name: mytest\n  finalizers:\n  - test-finalizer\n"
    text += f"spec:\n  unknown: uk1\n  foo: foo1\n  foo: foo2\n{PORTS}"
    query = "?fieldManager=field_validation_mgr&fieldValidation=Strict"
    _, _, answer = world.api.answer("PATCH", path + query, text, kind="application/apply-patch+yaml")
    check('line 11: key \\"foo\\" already set in map' in answer.decode(), answer)


def convert(_, body):
    """Between v1, with `hostPort`, and v2, with `host` and `port`."""
    request = body["request"]

    def one(value):
        value = {**value, "apiVersion": request["desiredAPIVersion"]}
        if request["desiredAPIVersion"].endswith("/v2") and "hostPort" in value:
            value["host"], _, port = value.pop("hostPort").partition(":")
            value |= {"port": port} if port else {}
        elif request["desiredAPIVersion"].endswith("/v1") and ("host" in value or "port" in value):
            value["hostPort"] = value.pop("host", "") + ":" + value.pop("port", "")
        return value

    answer = {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": [one(value) for value in request["objects"]]}
    return {"apiVersion": body["apiVersion"], "kind": "ConversionReview", "response": answer}


def tells(watch, kind, names):
    """The watch tells of these objects in this way, in any order, and of nothing else before."""
    seen = set()
    while seen != set(names):
        event = watch.next()
        if event["type"] == "MODIFIED":
            continue
        equal(event["type"], kind, json.dumps(event))
        check(event["object"]["metadata"]["name"] in names, f"{event} is of {names}")
        seen.add(event["object"]["metadata"]["name"])


@conformance("[sig-api-machinery] CustomResourceFieldSelectors [Privileged:ClusterAdmin] CustomResourceFieldSelectors MUST list and watch custom resources matching the field selector [Conformance]")
def selectable(world):
    def version(name, *fields):
        schema = {"openAPIV3Schema": {"type": "object", "properties": {field: string() for field in fields}}}
        return {"name": name, "schema": schema, "selectableFields": [{"jsonPath": f".{field}"} for field in fields]}

    with served_by(world, "e2e-test-crd-conversion-webhook", convert) as client:
        client["service"]["path"] = "/crdconvert"
        conversion = {"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1", "v1beta1"]}}
        kind = Custom(world, [version("v1", "hostPort"), version("v2", "host", "port")], conversion=conversion)
        v1, v2 = kind.path("v1"), kind.path("v2")
        marker = {"apiVersion": f"{kind.group}/v1", "kind": kind.kind, "metadata": {"name": "marker"}, "hostPort": "marker:1"}
        world.api.create(v1, marker)
        until("the webhook converts", lambda: world.api.get(f"{v2}/marker")["host"] == "marker")
        world.api.delete(f"{v2}/marker")
        begun = world.api.get(v2)["metadata"]["resourceVersion"]
        host, both, joined = (selected(path, by, field=True) for path, by in
                              [(v2, "host=host1"), (v2, "host=host1,port=80"), (v1, "hostPort=host1:80")])
        with (world.api.watch(host, resourceVersion=begun) as of_host, world.api.watch(both, resourceVersion=begun) as of_both,
              world.api.watch(joined, resourceVersion=begun) as of_joined):
            for name, fields in (("a", {"host": "host1", "port": "80"}), ("b", {"host": "host1", "port": "8080"}), ("c", {"host": "host2"})):
                meta = {"apiVersion": f"{kind.group}/v2", "kind": kind.kind, "metadata": {"name": name}}
                world.api.create(v2, {**meta, **fields})
            equal(named(world.api.get(host)["items"]), ["a", "b"], "host=host1")
            equal(named(world.api.get(both)["items"]), ["a"], "host=host1,port=80")
            equal(named(world.api.get(joined)["items"]), ["a"], "hostPort=host1:80")
            equal(named(world.api.get(selected(v1, "hostPort=host1:8080", field=True))["items"]), ["b"], "hostPort=host1:8080")
            tells(of_host, "ADDED", ["a", "b"])
            tells(of_both, "ADDED", ["a"])
            tells(of_joined, "ADDED", ["a"])
            world.api.delete(both, {"gracePeriodSeconds": 0})
            world.api.change(f"{v2}/b", lambda value: value.update(host="host2"))
            equal(world.api.get(host)["items"], [], "host=host1")
            equal(world.api.get(both)["items"], [], "host=host1,port=80")
            tells(of_host, "DELETED", ["a", "b"])
            tells(of_both, "DELETED", ["a"])
            tells(of_joined, "DELETED", ["a"])

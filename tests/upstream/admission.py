"""Custom objects that policies and webhooks judge on both servers. All of them live in skiff's API, and each is about objects with
a label of its own, so that nothing has to be waited for but the last one."""

import sys
import time

from audit import compared
from compare import BOTH, OURS, Count, ask, definition, differences, end, plain, serve, show
from requests import MERGE
from webhooks import HOOKS, Webhooks

WARDS = "/apis/compared.example.com/v1/namespaces/default/wards"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RULE = {"apiGroups": ["compared.example.com"], "apiVersions": ["*"], "operations": ["*"], "resources": ["wards", "wards/*"]}
LONG = "object.spec.list.all(a, object.spec.list.all(b, object.spec.list.all(c, a + b + c != '')))"


def rules(*expressions, **more):
    return [{"expression": expression, **more} for expression in expressions]


def few(**more):
    return {"validations": rules("object.spec.replicas < 5", **more)}


def conditions(*expressions):
    return {"matchConditions": [{"name": f"c{i}", "expression": one} for i, one in enumerate(expressions)]}


def variables(**given):
    return {"variables": [{"name": name, "expression": text} for name, text in given.items()]}


def notes(**given):
    return {"auditAnnotations": [{"key": key, "valueExpression": text} for key, text in given.items()]}


CONFIGURED = {"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}} | {
    "validations": rules("string(object.spec.replicas) < params.data.most")}
WHO = ("request.operation + ' ' + request.userInfo.username + ' ' + request.name + ' ' + request.namespace + ' ' + request.kind.kind"
       " + ' ' + request.resource.resource + ' ' + string(request.dryRun) + ' ' + string(has(request.subResource))"
       " + ' ' + namespaceObject.metadata.name")
# The specification of each policy, and of its bindings.
POLICIES = {
    "plain": few(), "message": few(message="at most four"), "two": {"validations": rules("object.spec.replicas < 5", "1 == 2")},
    "expressed": few(messageExpression="'there are ' + string(object.spec.replicas)"),
    "expressed-wrong": few(message="fallback", messageExpression="string(object.spec.nothing)"),
    "expressed-blank": few(messageExpression="'  '"), "expressed-lines": few(messageExpression="'a\\nb'"),
    "expressed-long": few(messageExpression="object.spec.list.join('').size() > 0 ? object.spec.list.join('x') : 'y'"),
    **{f"reason-{reason.lower()}": few(reason=reason) for reason in ("Forbidden", "Invalid", "RequestEntityTooLarge")},
    "fails": {"validations": rules("object.spec.nothing == 1")},
    "ignored": {"validations": rules("object.spec.nothing == 1"), "failurePolicy": "Ignore"},
    "fails-second": {"validations": rules("object.spec.replicas < 5", "object.spec.nothing == 1")},
    "types": {"validations": rules("object.spec.replicas == 'a'")}, "zero": {"validations": rules("1 / (object.spec.replicas - 9) == 1")},
    "cost": {"validations": rules(LONG)},
    "cost-ignored": {"validations": rules(LONG), "failurePolicy": "Ignore"},
    "warned": few(message="be careful"), "audited": few(message="look at this"), "all": few(message="no \"more\""),
    "warn-fails": {"validations": rules("object.spec.nothing == 1")}, "audit-fails": {"validations": rules("object.spec.nothing == 1")},
    "configured": CONFIGURED, "configured-none": CONFIGURED, "configured-allowed": CONFIGURED, "configured-all": CONFIGURED,
    "matched": few() | conditions("true", "object.metadata.name != 'x'"), "unmatched": few() | conditions("false", "object.spec.no == 1"),
    "match-fails": few() | conditions("object.spec.nothing == 1"),
    "match-two": few() | conditions("object.spec.nothing == 1", "false"),
    "match-ignored": few() | conditions("object.spec.nothing == 1") | {"failurePolicy": "Ignore"},
    "variables": {"validations": rules("variables.b < 10")} | variables(a="object.spec.replicas", b="variables.a * 2"),
    "variable-fails": {"validations": rules("variables.b < 10")} | variables(b="object.spec.nothing"),
    "variable-unused": few() | variables(b="object.spec.nothing"),
    "variable-said": {"validations": rules("variables.a < 5", messageExpression="'not ' + string(variables.a)")} | variables(
        a="object.spec.replicas"),
    "notes": few() | notes(one="'replicas ' + string(object.spec.replicas)", none="null", short="object.spec.list.join('')"),
    "note-fails": notes(one="string(object.spec.nothing)", two="'two'"),
    "note-ignored": notes(one="string(object.spec.nothing)") | {"failurePolicy": "Ignore"},
    "note-alone": notes(one="'é\"x'"),
    "who": {"validations": rules("false", messageExpression=WHO)},
    "old": {"validations": rules("request.operation != 'UPDATE' || object.spec.replicas >= oldObject.spec.replicas",
                                 "request.operation != 'DELETE' || oldObject.spec.replicas < 4")},
    "old-none": {"validations": rules("oldObject == null", "object != null")},
    "options": {"validations": rules("false", messageExpression="request.options.kind + string(has(request.options.fieldManager))")},
    "authorized": {"validations": rules(
        "authorizer.requestResource.check('get').allowed() && !authorizer.path('/x').check('get').errored()",
        "authorizer.group('').resource('pods').namespace('default').check('list').reason() == 'x'",
        "authorizer.serviceAccount('default', 'nobody').group('').resource('pods').check('list').allowed()")},
    "twice": few(message="said by both"),
}
ACTIONS = {"warned": ["Warn"], "audited": ["Audit"], "all": ["Deny", "Audit"], "warn-fails": ["Warn"], "audit-fails": ["Audit", "Warn"]}
PARAMETERS = {
    "configured": {"name": "limit", "namespace": "default", "parameterNotFoundAction": "Deny"},
    "configured-none": {"name": "none", "parameterNotFoundAction": "Deny"},
    "configured-allowed": {"name": "none", "parameterNotFoundAction": "Allow"},
    "configured-all": {"selector": {"matchLabels": {"limits": "yes"}}, "parameterNotFoundAction": "Deny"},
}


def labelled(name):
    return {"objectSelector": {"matchLabels": {"case": name}}}


def made(path, kind, name, spec):
    kept = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, **spec}
    code, _, _, text = OURS.ask("POST", path, kept)
    if code != 201:
        print(f"{kind} {name} is not made: {text[:600]}")


def bound(name, number=""):
    spec = {"policyName": name, "validationActions": ACTIONS.get(name, ["Deny"])}
    spec |= {"paramRef": PARAMETERS[name]} if name in PARAMETERS else {}
    path = f"{ADMISSION}/validatingadmissionpolicybindings"
    made(path, "ValidatingAdmissionPolicyBinding", f"{name}{number}", {"spec": spec})


def ward(name, label, replicas=9, letters=1):
    spec = {"replicas": replicas, "list": ["abc"] * letters}
    metadata = {"name": name, "labels": {"case": label}}
    return {"apiVersion": "compared.example.com/v1", "kind": "Ward", "metadata": metadata, "spec": spec}


def policies():
    maps = "/api/v1/namespaces/default/configmaps"
    for name, most in (("limit", "5"), ("other", "3")):
        OURS.ask("POST", maps, {"metadata": {"name": name, "labels": {"limits": "yes"}}, "data": {"most": most}})
    for name, spec in {**POLICIES, "last": {"validations": rules("false")}}.items():
        constraints = {"resourceRules": [RULE], **labelled(name)}
        path = f"{ADMISSION}/validatingadmissionpolicies"
        made(path, "ValidatingAdmissionPolicy", name, {"spec": {"matchConstraints": constraints, **spec}})
        bound(name)
    bound("twice", "-again")


def wait():
    """Until what was made last refuses on both; what was made before has come, too, by then."""
    for kind in ("last", "last-webhook"):
        for server in BOTH:
            deadline = time.monotonic() + 60
            while server.ask("POST", f"{WARDS}?dryRun=All", ward("last", kind))[0] == 201:
                if time.monotonic() > deadline:
                    sys.exit(f"{server.name} does not ask {kind}")
                time.sleep(0.2)


def judged(*arguments, **how):
    """Asks both, and compares also what both have asked webhooks."""
    Webhooks.asked.clear()
    ask(*arguments, **how)
    asked = sorted(Webhooks.asked, key=lambda of: of[1]["path"])
    ours, theirs = ([plain(review) for name, review in asked if name == server.name] for server in BOTH)
    show(f"the reviews of {arguments[:2]}", list(differences(ours, theirs)))


def seen(path, one):
    """The object with the resourceVersion that each server has of it. It is asked once."""
    versions = {}
    for server in BOTH:
        server.ask("GET", path)
        versions[server.name] = (server.last or {}).get("metadata", {}).get("resourceVersion", "")
    return lambda server: {**one, "metadata": {**one["metadata"], "resourceVersion": versions[server.name]}}


def judge(name):
    judged("POST", f"{WARDS}?dryRun=All", ward("dry", name))
    judged("POST", f"{WARDS}?dryRun=All&fieldManager=me", ward("dry", name, 3, 300))
    judged("POST", f"{WARDS}?dryRun=All", {**ward("", name, 4), "metadata": {"generateName": "g-", "labels": {"case": name}}})
    one = f"{WARDS}/{name}"
    judged("POST", WARDS, ward(name, "none", 4))
    judged("PATCH", one, {"metadata": {"labels": {"case": name}}, "spec": {"replicas": 6}}, kind=MERGE)
    judged("PUT", one, seen(one, ward(name, name, 2)))
    judged("PATCH", f"{one}?fieldManager=m&force=true", ward(name, name, 7), kind="application/apply-patch+yaml")
    judged("PUT", f"{one}/status", seen(one, {**ward(name, name), "status": {"replicas": 1}}))
    judged("PATCH", f"{one}/scale", {"spec": {"replicas": 8}}, kind=MERGE)
    judged("DELETE", f"{one}?dryRun=All")
    judged("DELETE", f"{WARDS}?labelSelector=case%3D{name}", {"propagationPolicy": "Background"})
    for server in BOTH:
        server.ask("PATCH", one, {"metadata": {"labels": None}}, kind=MERGE)
        server.ask("DELETE", one)


TEXT = {"type": "string"}
properties = {"replicas": {"type": "integer", "maximum": 100}, "list": {"type": "array", "items": TEXT}, "mark": TEXT}
status = {"type": "object", "properties": {"replicas": {"type": "integer"}}}
schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}, "status": status}}
scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
Count.quiet = True
serve(definition("ward", schema, subresources={"status": {}, "scale": scale}))
Count.quiet = False
with Webhooks() as webhooks:
    policies()
    for kind, named in HOOKS.items():
        hooks = [{**webhooks.hook(name, **spec), "rules": [RULE], **labelled(spec.get("label", name))} for name, spec in named.items()]
        made(f"{ADMISSION}/{kind.lower()}s", kind, "compared", {"webhooks": hooks})
    wait()
    chosen = sys.argv[1:] or [*POLICIES, *sorted({spec.get("label", name) for named in HOOKS.values() for name, spec in named.items()})]
    for name in chosen:
        judge(name)
compared()
end()

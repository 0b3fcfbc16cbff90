"""Conformance of namespaces, of the quotas in them, and of events."""

import secrets

from operations import condition, selected
from world import check, conformance, equal, until


@conformance("[sig-api-machinery] Namespaces [Serial] should apply changes to a namespace status [Conformance]")
def status(world):
    path = f"/api/v1/namespaces/{world.ns}"
    equal(world.api.get(f"{path}/status")["status"]["phase"], "Active", "the phase")
    one = {"type": "StatusPatch", "status": "True", "reason": "E2E", "message": "Patched by an e2e test"}
    patched = world.api.patch(f"{path}/status", {"metadata": {"annotations": {"e2e-patched-ns-status": world.ns}}, "status": {"conditions": [one]}})
    equal(patched["metadata"]["annotations"].get("e2e-patched-ns-status"), world.ns, "the annotation")
    found = condition(patched, "StatusPatch")
    equal((found["reason"], found["message"]), ("E2E", "Patched by an e2e test"), "the patched condition")
    two = {"type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "Updated by an e2e test"}
    updated = world.api.change(path, lambda value: value["status"]["conditions"].append(two), at=f"{path}/status")
    equal([one["type"] for one in updated["status"]["conditions"]], ["StatusPatch", "StatusUpdate"], "conditions")
    found = condition(updated, "StatusUpdate")
    equal((found["reason"], found["message"]), ("E2E", "Updated by an e2e test"), "the updated condition")


@conformance("[sig-api-machinery] Namespaces [Serial] should apply an update to a Namespace [Conformance]")
def update(world):
    updated = world.api.change(f"/api/v1/namespaces/{world.ns}", lambda value: value["metadata"]["labels"].update({world.ns: "updated"}))
    equal(updated["metadata"]["labels"].get(world.ns), "updated", "the label")


@conformance("[sig-api-machinery] Namespaces [Serial] should apply a finalizer to a Namespace [Conformance]")
def finalizer(world):
    path, fake = f"/api/v1/namespaces/{world.namespace()}", "e2e.example.com/fakeFinalizer"
    updated = world.api.change(path, lambda value: value["spec"]["finalizers"].append(fake), at=f"{path}/finalize")
    check(fake in updated["spec"]["finalizers"], updated["spec"])
    updated = world.api.change(path, lambda value: value["spec"]["finalizers"].remove(fake), at=f"{path}/finalize")
    equal(updated["spec"]["finalizers"], ["kubernetes"], "finalizers")


@conformance("[sig-api-machinery] OrderedNamespaceDeletion namespace deletion should delete pod first [Conformance]")
def pods_first(world):
    ns = world.namespace()
    pod = world.pod("testpod")
    pod["metadata"]["finalizers"] = ["e2e.example.com/finalizer"]
    world.api.create(world.path("v1", "pods", ns=ns), pod)
    path, maps = world.path("v1", "pods", "testpod", ns=ns), world.path("v1", "configmaps", ns=ns)
    until("the Pod runs", lambda: world.api.get(path)["status"].get("phase") == "Running")
    world.api.create(maps, {"metadata": {"name": "test-configmap"}})
    world.api.delete(f"/api/v1/namespaces/{ns}")
    remains = "NamespaceFinalizersRemaining"
    until("the Pod is to go", lambda: world.api.get(path)["metadata"].get("deletionTimestamp"))
    until("its finalizer is told of", lambda: condition(world.api.get(f"/api/v1/namespaces/{ns}"), remains)["status"] == "True")
    check("deletionTimestamp" not in world.api.get(f"{maps}/test-configmap")["metadata"], "the ConfigMap stays until then")
    world.api.patch(path, {"metadata": {"finalizers": None}})
    until("the namespace is gone", lambda: world.api.is_gone(f"/api/v1/namespaces/{ns}"))


def quota(world, name):
    base, hard = world.path("v1", "resourcequotas"), {"cpu": "1", "memory": "500Mi"}
    created = world.api.create(base, {"metadata": {"name": name, "labels": {name: name}}, "spec": {"hard": hard}})
    equal(created["spec"]["hard"], hard, "created")
    return f"{base}/{name}", hard


@conformance("[sig-api-machinery] ResourceQuota should manage the lifecycle of a ResourceQuota [Conformance]")
def quota_lifecycle(world):
    name = f"e2e-quota-{secrets.token_hex(4)}"
    path, _ = quota(world, name)
    world.api.get(path)
    equal(len(world.api.get(selected("/api/v1/resourcequotas", f"{name}={name}"))["items"]), 1, "of all namespaces")
    patched = world.api.patch(path, {"metadata": {"labels": {name: "patched"}}, "spec": {"hard": {"memory": "750Mi"}}})
    equal((patched["metadata"]["labels"][name], patched["spec"]["hard"]["memory"]), ("patched", "750Mi"), "patched")
    world.api.delete(selected(world.path("v1", "resourcequotas"), f"{name}=patched"))
    until("it is gone", lambda: not world.api.get(selected("/api/v1/resourcequotas", f"{name}=patched"))["items"])


@conformance("[sig-api-machinery] ResourceQuota should apply changes to a resourcequota status [Conformance]")
def quota_status(world):
    name = f"e2e-rq-status-{secrets.token_hex(4)}"
    base = selected(world.path("v1", "resourcequotas"), f"{name}={name}")
    begun = world.api.get(base)["metadata"]["resourceVersion"]
    path, hard = quota(world, name)
    until("the controller's status", lambda: world.api.get(path)["status"].get("hard") == hard)
    with world.api.watch(base, resourceVersion=begun) as watch:
        updated = world.api.change(path, lambda value: value["status"].update(hard=hard), at=f"{path}/status")
        equal(updated["status"]["hard"], updated["spec"]["hard"], "the updated status")
        watch.until("MODIFIED", lambda one: one["status"].get("hard") == hard)
        more = {"cpu": "2", "memory": "1Gi"}
        equal(world.api.patch(path, {"spec": {"hard": more}})["spec"]["hard"], more, "the patched spec")
        watch.until("MODIFIED", lambda one: one["spec"]["hard"] == more and one["status"].get("hard") == more)
        patched = world.api.patch(f"{path}/status", {"metadata": {"labels": {"e2e": "status"}}, "status": {"hard": more}})
        equal(patched["status"]["hard"], patched["spec"]["hard"], "the patched status")
    equal(world.api.get(f"{path}/status")["status"]["hard"], more, "of /status")
    before = world.api.get(path)["metadata"]["resourceVersion"]
    with world.api.watch(base, resourceVersion=before) as watch:
        patched = world.api.patch(f"{path}/status", {"spec": {"hard": {"cpu": "4"}}, "status": {"hard": {"cpu": "1500m", "memory": "3Gi"}}})
        equal(patched["spec"]["hard"], more, "the spec is none of /status")
        equal(patched["status"]["hard"], {"cpu": "1500m", "memory": "3Gi"}, "the status is")
        watch.until("MODIFIED", lambda one: one["spec"]["hard"] == more and one["status"]["hard"] == more)


@conformance("[sig-instrumentation] Events should manage the lifecycle of an event [Conformance]")
def event(world):
    name, base, selector = "event-test", world.path("v1", "events"), f"testevent-constant={world.ns}"
    path = f"{base}/{name}"
    body = {
        "metadata": {"name": name, "labels": {"testevent-constant": world.ns}}, "message": "This is a test event", "reason": "Test",
        "type": "Normal", "count": 1, "involvedObject": {"namespace": world.ns},
    }
    world.api.create(base, body)

    def listed():
        return [one for one in world.api.get(selected("/api/v1/events", selector))["items"] if one["metadata"]["name"] == name]

    equal(len(listed()), 1, "of all namespaces")
    words = "This is a test event - patched"
    world.api.patch(path, {"message": words}, kind="application/strategic-merge-patch+json")
    equal(world.api.get(path)["message"], words, "the message")
    series = {"count": 100, "lastObservedTime": "2014-05-19T07:00:00.000000Z"}
    updated = world.api.change(path, lambda value: value.update(series=series))
    equal((updated["series"], updated["message"]), (series, words), "the series")
    equal(world.api.get(path)["series"], series, "the series")
    world.api.delete(path)
    equal(listed(), [], "of all namespaces")

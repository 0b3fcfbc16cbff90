"""Conformance of Deployments, ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets and ControllerRevisions."""

import json

from world import IMAGE, MERGE, STRATEGIC, check, conformance, equal, named, until

APPS = "apps/v1"


def workload(kind, name, replicas=1, labels=None, **spec):
    """A workload of Pods that sleep."""
    labels = labels or {"name": name}
    container = {"name": "main", "image": IMAGE, "command": ["sleep", "10000"]}
    template = {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}
    whole = {"selector": {"matchLabels": labels}, "template": template, **spec}
    if kind != "DaemonSet":
        whole["replicas"] = replicas
    if kind == "StatefulSet":
        whole["serviceName"] = "none"
    return {"apiVersion": APPS, "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": whole}


def made(world, value):
    """Creates it, and waits for its Pods."""
    resource, name = f"{value['kind'].lower()}s", value["metadata"]["name"]
    path = world.path(APPS, resource, name)
    world.api.create(world.path(APPS, resource), value)
    until(f"{name} is ready", lambda: is_ready(world.api.get(path)))
    return path


def is_ready(value):
    spec, status = value["spec"], value["status"]
    if value["kind"] == "DaemonSet":
        return 0 < status.get("desiredNumberScheduled", 0) == status.get("numberAvailable", 0)
    return status.get("readyReplicas", 0) == spec["replicas"] and status.get("observedGeneration", 0) >= value["metadata"]["generation"]


def own_condition(status="True", **more):
    return {"type": "StatusUpdate", "status": status, "reason": "E2E", "message": "Set from e2e test", **more}


def validate_status(world, value):
    """A condition of our own is put into the status, then another one by a patch: both are seen by who watches."""
    resource, label = f"{value['kind'].lower()}s", "name%3D" + value["metadata"]["labels"]["name"]
    version = world.api.get(f"/apis/{APPS}/{resource}?labelSelector={label}")["metadata"]["resourceVersion"]
    path = made(world, value)
    read = world.api.get(f"{path}/status")
    equal(read["metadata"]["uid"], world.api.get(path)["metadata"]["uid"], "the status is of the same object")

    def tell(it):
        it["status"].setdefault("conditions", []).append(own_condition())

    with world.api.watch(f"{world.path(APPS, resource)}?labelSelector={label}", resourceVersion=version) as watch:
        updated = world.api.change(f"{path}/status", tell)
        check([c for c in updated["status"]["conditions"] if c["type"] == "StatusUpdate"], "the update shows")
        watch.until("MODIFIED", lambda it: any(
            (c["type"], c["reason"], c["message"]) == ("StatusUpdate", "E2E", "Set from e2e test") for c in it["status"].get("conditions", [])))
        patch = {"status": {"conditions": [{"type": "StatusPatched", "status": "True"}]}}
        patched = world.api.patch(f"{path}/status", patch, MERGE)
        check([c for c in patched["status"]["conditions"] if c["type"] == "StatusPatched"], "the patch shows")
        watch.until("MODIFIED", lambda it: any(c["type"] == "StatusPatched" for c in it["status"].get("conditions", [])))


def scales(world, path, ready=True):
    """The scale is read, written and patched."""
    scale = world.api.get(f"{path}/scale")
    equal((scale["kind"], scale["apiVersion"], scale["spec"]["replicas"], scale["status"]["replicas"]),
          ("Scale", "autoscaling/v1", 1, 1), "the scale")
    scale["metadata"]["resourceVersion"] = ""
    scale["spec"]["replicas"] = 2
    equal(world.api.put(f"{path}/scale", scale)["spec"]["replicas"], 2, "what was written")
    equal(world.api.get(path)["spec"]["replicas"], 2, "what it has")
    patched = world.api.patch(f"{path}/scale", {"spec": {"replicas": 4}}, STRATEGIC)
    equal(patched["spec"]["replicas"], 4, "what was patched")
    equal(world.api.get(path)["spec"]["replicas"], 4, "what it has in the end")
    if ready:
        until("there are as many", lambda: world.api.get(path)["status"].get("readyReplicas") == 4)


def listed_and_deleted(world, kind, replicas):
    """One is found in all namespaces by its label, and deleted with its Pods as a collection."""
    resource, label = f"{kind.lower()}s", world.unique("e2e")
    path = made(world, workload(kind, "listed", replicas, {"name": "listed", "e2e": label}))
    found = world.api.get(f"/apis/{APPS}/{resource}?labelSelector=e2e%3D{label}")["items"]
    equal(named(found), ["listed"], "in all namespaces")
    return path, resource, label


def collection_goes(world, resource, label):
    world.api.delete(f"{world.path(APPS, resource)}?labelSelector=e2e%3D{label}")
    until("none is left", lambda: not world.api.get(f"/apis/{APPS}/{resource}?labelSelector=e2e%3D{label}")["items"])


@conformance("[sig-apps] Deployment Deployment should have a working scale subresource [Conformance]")
def deployment_scale(world):
    scales(world, made(world, workload("Deployment", "scaled")))


@conformance("[sig-apps] Deployment should validate Deployment Status endpoints [Conformance]")
def deployment_status(world):
    validate_status(world, workload("Deployment", "status"))


@conformance("[sig-apps] ReplicaSet Replicaset should have a working scale subresource [Conformance]")
def replica_set_scale(world):
    scales(world, made(world, workload("ReplicaSet", "scaled")))


@conformance("[sig-apps] ReplicaSet Replace and Patch tests [Conformance]")
def replica_set_patched(world):
    path = made(world, workload("ReplicaSet", "patched"))

    def two(value):
        value["spec"]["replicas"] = 2

    world.api.change(path, two)
    until("there are two", lambda: world.api.get(path)["status"].get("readyReplicas") == 2)
    label = world.unique("rs")
    template = {"metadata": {"labels": {"test-rs": "patched"}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": f"{IMAGE}"}]}}
    patch = {"metadata": {"labels": {"test-rs": label}}, "spec": {"replicas": 3, "template": template}}
    world.api.patch(path, patch, STRATEGIC)

    def shows():
        value = world.api.get(path)
        return (value["metadata"]["labels"]["test-rs"], value["status"].get("readyReplicas"),
                value["spec"]["template"]["metadata"]["labels"].get("test-rs")) == (label, 3, "patched")

    until("the patch shows, and three Pods are ready", shows)


@conformance("[sig-apps] ReplicaSet should list and delete a collection of ReplicaSets [Conformance]")
def replica_set_collection(world):
    _, resource, label = listed_and_deleted(world, "ReplicaSet", 3)
    collection_goes(world, resource, label)


@conformance("[sig-apps] ReplicaSet should validate Replicaset Status endpoints [Conformance]")
def replica_set_status(world):
    validate_status(world, workload("ReplicaSet", "status"))


@conformance("[sig-apps] ReplicationController should get and update a ReplicationController scale [Conformance]")
def controller_scale(world):
    value = workload("ReplicationController", "scaled")
    value.update(apiVersion="v1")
    value["spec"]["selector"] = value["spec"]["selector"]["matchLabels"]
    path = world.path("v1", "replicationcontrollers", "scaled")
    world.api.create(world.path("v1", "replicationcontrollers"), value)
    until("it is ready", lambda: is_ready(world.api.get(path)))
    scale = world.api.get(f"{path}/scale")
    equal((scale["metadata"]["name"], scale["spec"]["replicas"]), ("scaled", 1), "the scale")
    scale["spec"]["replicas"] = 2
    world.api.put(f"{path}/scale", scale)
    until("there are two", lambda: world.api.get(path)["status"].get("readyReplicas") == 2)
    equal(world.api.get(f"{path}/scale")["spec"]["replicas"], 2, "the scale in the end")


@conformance("[sig-apps] StatefulSet Basic StatefulSet functionality [StatefulSetBasic] should list, patch and delete a collection of StatefulSets [Conformance]")
def stateful_set_collection(world):
    path, resource, label = listed_and_deleted(world, "StatefulSet", 1)
    container = {"name": "main", "image": IMAGE, "command": ["sleep", "20000"]}
    patch = {"metadata": {"labels": {"test-ss": "patched"}}, "spec": {"replicas": 2, "template": {
        "metadata": {"labels": {"test-ss": "patched"}}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}}}
    world.api.patch(path, patch, STRATEGIC)
    value = world.api.get(path)
    equal((value["spec"]["replicas"], value["metadata"]["labels"]["test-ss"]), (2, "patched"), "the patch")
    until("both Pods are of the new template", lambda: world.api.get(path)["status"].get("updatedReplicas") == 2
          and world.api.get(path)["status"].get("readyReplicas") == 2)
    found = world.api.get(f"/apis/{APPS}/statefulsets?labelSelector=test-ss%3Dpatched,e2e%3D{label}")["items"]
    equal(named(found), ["listed"], "by the new label")
    equal(found[0]["spec"]["template"]["spec"]["containers"][0]["command"], ["sleep", "20000"], "the command")
    collection_goes(world, resource, label)


@conformance("[sig-apps] StatefulSet Basic StatefulSet functionality [StatefulSetBasic] should validate Statefulset Status endpoints [Conformance]")
def stateful_set_status(world):
    validate_status(world, workload("StatefulSet", "status"))


@conformance("[sig-apps] Daemon set [Serial] should list and delete a collection of DaemonSets [Conformance]", serial=True)
def daemon_set_collection(world):
    _, resource, label = listed_and_deleted(world, "DaemonSet", None)
    collection_goes(world, resource, label)


@conformance("[sig-apps] Daemon set [Serial] should verify changes to a daemon set status [Conformance]", serial=True)
def daemon_set_status(world):
    validate_status(world, workload("DaemonSet", "status"))


@conformance("[sig-apps] ControllerRevision [Serial] should manage the lifecycle of a ControllerRevision [Conformance]", serial=True)
def revisions(world):
    label = world.unique("daemons")
    set_path = made(world, workload("DaemonSet", "revised", labels={"name": "revised", "daemonset-name": label}))
    daemons = world.api.get(set_path)
    base, by_label = world.path(APPS, "controllerrevisions"), f"labelSelector=daemonset-name%3D{label}"
    everywhere = world.api.get(f"/apis/{APPS}/controllerrevisions?{by_label}")["items"]
    equal([it["metadata"]["ownerReferences"][0]["uid"] for it in everywhere], [daemons["metadata"]["uid"]], "the first revision")
    first = everywhere[0]
    name = first["metadata"]["name"]
    patched = world.api.patch(f"{base}/{name}", {"metadata": {"labels": {name: "patched"}}}, STRATEGIC)
    equal(patched["metadata"]["labels"][name], "patched", "the label")
    owner = {"apiVersion": APPS, "kind": "DaemonSet", "name": "revised", "uid": daemons["metadata"]["uid"], "controller": True,
             "blockOwnerDeletion": True}
    second = {"metadata": {"name": "revised-second", "ownerReferences": [owner], "labels": {
        **daemons["spec"]["template"]["metadata"]["labels"], "controller-revision-hash": "second"}},
        "data": first["data"], "revision": first["revision"] + 1}
    world.api.create(base, {"apiVersion": APPS, "kind": "ControllerRevision", **second})

    def there(count):
        until(f"there are {count}", lambda: len(world.api.get(f"{base}?{by_label}")["items"]) == count)

    there(2)
    world.api.delete(f"{base}/{name}")
    there(1)
    current = world.api.get(base)["items"][0]["metadata"]["name"]

    def mark(value):
        value["metadata"]["labels"][current] = "updated"

    updated = world.api.change(f"{base}/{current}", mark)
    equal(updated["metadata"]["labels"][current], "updated", "the second label")
    # A field that the set does not have is let be where the request does not ask for strictness.
    patch = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}, "updateStrategy": {"type": "RollingUpdate"}}
    world.api.patch(set_path, json.dumps(patch), STRATEGIC)
    there(2)
    world.api.delete(f"{base}?labelSelector={current}%3Dupdated")
    there(1)
    equal([it["revision"] for it in world.api.get(base)["items"]], [3], "the last revision")

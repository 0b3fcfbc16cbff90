"""Conformance of what Pods are configured with: ConfigMaps, Secrets, PodTemplates, LimitRanges."""

import base64

from world import STRATEGIC, check, conformance, equal, until

DATA = {"data-1": "value-1", "data-2": "value-2", "data-3": "value-3"}


def in_base64(value):
    return base64.b64encode(value.encode()).decode()


@conformance("[sig-node] ConfigMap should update ConfigMap successfully [NodeConformance] [Conformance]")
def update_config_map(world):
    path = world.path("v1", "configmaps")
    world.api.create(path, {"metadata": {"name": "configmap-test"}, "data": DATA})
    # Without a resourceVersion the update does not care for what came between.
    world.api.put(f"{path}/configmap-test", {"metadata": {"name": "configmap-test"}, "data": {"data": "value"}})
    equal(world.api.get(f"{path}/configmap-test")["data"], {"data": "value"}, "data")


def prefixed_environment(world, resource, reference, encode):
    """Each value of an object is there under each prefix, whatever printable it is made of."""
    world.api.create(world.path("v1", resource), {"metadata": {"name": "source"}, "data": {name: encode(DATA[name]) for name in DATA}})
    prefixes = ["", "1-", "$_-", "ABC_", "#@!"]
    sources = [{"prefix": prefix, reference: {"name": "source"}} for prefix in prefixes]
    # The shell forgets names that it cannot have itself, so that the environment is read from the kernel.
    pod = world.pod("env-test", ["cat", "/proc/self/environ"], container={"envFrom": sources}, spec={"restartPolicy": "Never"})
    world.run(pod, "Succeeded")
    found = world.logs("env-test").split("\0")
    for prefix in prefixes:
        for name, value in DATA.items():
            check(f"{prefix}{name}={value}" in found, f"{prefix}{name} in {found}")


@conformance("[sig-node] ConfigMap should be consumable as environment variable names with various prefixes [Conformance]")
def prefixes_of_config_maps(world):
    prefixed_environment(world, "configmaps", "configMapRef", str)


@conformance("[sig-node] Secrets should be consumable as environment variable names variable names with various prefixes [Conformance]")
def prefixes_of_secrets(world):
    prefixed_environment(world, "secrets", "secretRef", in_base64)


def is_immutable(world, resource, encode):
    """Data and the mark itself do not change any more, once it is set; metadata does, and the object may go."""
    path = world.path("v1", resource)
    current = world.api.create(path, {"metadata": {"name": "immutable"}, "data": {name: encode(value) for name, value in DATA.items()}})
    path = f"{path}/immutable"
    current["data"]["data-4"] = encode("value-4")
    current = world.api.put(path, current)
    equal(current["data"]["data-4"], encode("value-4"), "data that was added")
    current = world.api.put(path, {**current, "immutable": True})

    current["data"]["data-5"] = encode("value-5")
    equal(world.api.refuses(422, "PUT", path, current)["reason"], "Invalid", "reason for data")
    current = world.api.get(path)
    equal(current["immutable"], True, "the mark")
    check("data-5" not in current["data"], "data that was refused")
    equal(world.api.refuses(422, "PUT", path, {**current, "immutable": False})["reason"], "Invalid", "reason for the mark")

    current = world.api.get(path)
    current["metadata"]["labels"] = {"label1": "value1"}
    world.api.put(path, current)
    world.api.delete(path)


@conformance("[sig-storage] ConfigMap should be immutable if `immutable` field is set [Conformance]")
def immutable_config_map(world):
    is_immutable(world, "configmaps", str)


@conformance("[sig-storage] Secrets should be immutable if `immutable` field is set [Conformance]")
def immutable_secret(world):
    is_immutable(world, "secrets", in_base64)


@conformance("[sig-node] PodTemplates should replace a pod template [Conformance]")
def replace_pod_template(world):
    path = world.path("v1", "podtemplates")
    template = {"spec": {"containers": [{"name": "e2e-test", "image": "skiff.local/busybox:1"}]}}
    world.api.create(path, {"metadata": {"name": "podtemplate"}, "template": template})
    replaced = world.api.change(f"{path}/podtemplate", lambda it: it["metadata"].update(annotations={"updated": "true"}))
    equal(replaced["metadata"]["annotations"]["updated"], "true", "annotation")


def amounts(cpu, memory, storage):
    return {"cpu": cpu, "memory": memory, "ephemeral-storage": storage}


@conformance("[sig-scheduling] LimitRange should list, patch and delete a LimitRange by collection [Conformance]")
def limit_ranges(world):
    name = world.unique("e2e-limitrange")
    limits = {
        "type": "Container",
        "min": amounts("50m", "100Mi", "100Gi"),
        "max": amounts("500m", "500Mi", "500Gi"),
        "default": amounts("500m", "500Mi", "500Gi"),
        "defaultRequest": amounts("100m", "200Mi", "200Gi"),
    }
    wanted = {"metadata": {"name": name, "labels": {"e2e-test": name, name: "created"}}, "spec": {"limits": [limits]}}
    path = world.path("v1", "limitranges")
    created = world.api.create(path, wanted)
    check(int(created["metadata"]["resourceVersion"]) > 0, "a resourceVersion")
    world.api.create(world.path("v1", "limitranges", ns=world.namespace()), wanted)
    everywhere = f"/api/v1/limitranges?labelSelector=e2e-test%3D{name}"
    equal(len(world.api.get(everywhere)["items"]), 2, "LimitRanges of all namespaces")

    least = amounts("9m", "49Mi", "49Gi")
    changed = [{**created["spec"]["limits"][0], "min": least}]
    patch = {"metadata": {"creationTimestamp": created["metadata"]["creationTimestamp"], "labels": {name: "patched"}}, "spec": {"limits": changed}}
    patched = world.api.patch(f"{path}/{name}", patch, kind=STRATEGIC)
    equal(patched["metadata"]["labels"][name], "patched", "label")
    equal(patched["spec"]["limits"][0]["min"], least, "min")
    check(int(patched["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"]), "a later resourceVersion")

    ours = f"{path}?labelSelector={name}%3Dpatched"
    world.api.delete(ours)
    until("the LimitRange is gone", lambda: not world.api.get(ours)["items"] or None)
    equal(len(world.api.get(everywhere)["items"]), 1, "LimitRanges that stay")

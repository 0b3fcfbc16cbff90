"""Conformance of the objects of storage, as the API keeps them: no driver is there."""

import secrets

from operations import api_operations, condition, lifecycle, selected
from world import check, conformance, equal, until


def random(prefix):
    return f"{prefix}{secrets.token_hex(3)}"


@conformance("[sig-storage] StorageClasses CSI Conformance should run through the lifecycle of a StorageClass [Conformance]")
def storage_class(world):
    first, second = ({"metadata": {"generateName": name}, "provisioner": "e2e-fake-provisioner"} for name in ("e2e-", "e2e-v2-"))
    lifecycle(world, "storageclasses", first, second)


@conformance("[sig-storage] VolumeAttributesClass [FeatureGate:VolumeAttributesClass] should run through the lifecycle of a VolumeAttributesClass [Conformance]")
def attributes_class(world):
    body = {"driverName": "e2e-fake-csi-driver", "parameters": {"foo": "bar"}}
    first, second = ({"metadata": {"generateName": name}, **body} for name in ("e2e-", "e2e-v2-"))
    lifecycle(world, "volumeattributesclasses", first, second)


@conformance("[sig-storage] CSINodes CSI Conformance should run through the lifecycle of a csinode [Conformance]")
def csi_node(world):
    first, second = ({"metadata": {"name": random("e2e-csinode-")}, "spec": {"drivers": []}} for _ in range(2))
    lifecycle(world, "csinodes", first, second)


@conformance("[sig-storage] CSIStorageCapacity should support CSIStorageCapacities API operations [Conformance]")
def capacity(world):
    body = {"storageClassName": "e2e-class", "nodeTopology": {"matchLabels": {"a": "b"}}}
    named = {"metadata": {"name": "e2e-capacity"}, **body}
    base = world.path("storage.k8s.io/v1", "csistoragecapacities")
    world.api.create(base, named)
    equal(world.api.refuses(409, "POST", base, named)["reason"], "AlreadyExists", "a second one of the name")
    api_operations(world, "storage.k8s.io", "csistoragecapacities", body, {}, {}, namespaced=True)


ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"


def attachment(world):
    node = world.api.get("/api/v1/nodes")["items"][0]["metadata"]["name"]
    spec = {"attacher": "e2e-test.storage.k8s.io", "nodeName": node, "source": {"persistentVolumeName": random("pv-e2e-")}}
    name = random("va-e2e-")
    created = world.api.create(ATTACHMENTS, {"metadata": {"name": name, "uid": name}, "spec": spec, "status": {"attached": False}})
    world.later(lambda: world.api.is_gone(f"{ATTACHMENTS}/{name}") or world.api.delete(f"{ATTACHMENTS}/{name}"))
    equal(created["metadata"]["name"], name, "the name")
    return name, f"{ATTACHMENTS}/{name}"


def labelled(world, path, name):
    patched = world.api.patch(path, {"metadata": {"labels": {name: "patched"}}})
    equal(patched["metadata"]["labels"].get(name), "patched", "the label")


def detached(world, selector):
    until("the attachments are gone", lambda: not world.api.get(selected(ATTACHMENTS, selector))["items"])


@conformance("[sig-storage] VolumeAttachment Conformance should run through the lifecycle of a VolumeAttachment [Conformance]")
def attachments(world):
    name, path = attachment(world)
    equal(world.api.get(path)["metadata"]["name"], name, "the name")
    labelled(world, path, name)
    equal(len(world.api.get(selected(ATTACHMENTS, f"{name}=patched"))["items"]), 1, "the selected list")
    world.api.delete(path)
    detached(world, f"{name}=patched")
    label = f"va-e2e-{world.ns}"
    for _ in range(2):
        _, path = attachment(world)
        updated = world.api.change(path, lambda value: value["metadata"].update(labels={label: "updated"}))
        equal(updated["metadata"]["labels"], {label: "updated"}, "labels")
    world.api.delete(selected(ATTACHMENTS, f"{label}=updated"))
    detached(world, f"{label}=updated")


@conformance("[sig-storage] VolumeAttachment Conformance should apply changes to a volumeattachment status [Conformance]")
def attachment_status(world):
    name, path = attachment(world)
    labelled(world, path, name)
    equal(world.api.get(f"{path}/status")["status"]["attached"], False, "read")
    equal(world.api.patch(f"{path}/status", {"status": {"attached": True}})["status"]["attached"], True, "patched")
    updated = world.api.change(path, lambda value: value["status"].update(attached=False), at=f"{path}/status")
    equal(updated["status"]["attached"], False, "updated")
    world.api.delete(path)
    detached(world, f"{name}=patched")


VOLUMES = "/api/v1/persistentvolumes"


def volume_and_claim(world):
    """A PersistentVolume of a driver that is not there, and a claim of its class; their names."""
    pool, name = f"e2e-pv-pool={world.ns}", random("pv-e2e-")
    spec = {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}, "storageClassName": world.ns,
        "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": "e2e-driver-" + name, "volumeHandle": "e2e-" + name},
    }
    world.api.create(VOLUMES, {"metadata": {"name": name, "labels": {"e2e-pv-pool": world.ns}}, "spec": spec})
    world.later(lambda: world.api.is_gone(f"{VOLUMES}/{name}") or world.api.delete(f"{VOLUMES}/{name}"))
    claims, claim = world.path("v1", "persistentvolumeclaims"), random("pvc-")
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": world.ns}
    world.api.create(claims, {"metadata": {"name": claim}, "spec": wanted})
    equal(len(world.api.get(selected(VOLUMES, pool))["items"]), 1, "volumes")
    equal(len(world.api.get(claims)["items"]), 1, "claims")
    return f"{VOLUMES}/{name}", f"{claims}/{claim}"


def gone(world, paths):
    for path in paths:
        until(f"{path} is gone", lambda p=path: world.api.is_gone(p))


@conformance("[sig-storage] PersistentVolumes CSI Conformance should run through the lifecycle of a PV and a PVC [Conformance]")
def volumes(world):
    volume, claim = volume_and_claim(world)
    for path in (volume, claim):
        name = path.rpartition("/")[2]
        patched = world.api.patch(path, {"metadata": {"labels": {name: "patched"}}})
        equal(patched["metadata"]["labels"].get(name), "patched", "the label")
        equal(world.api.get(path)["metadata"]["uid"], patched["metadata"]["uid"], "uid")
    world.api.delete(claim)
    gone(world, [claim])
    world.api.delete(volume)
    gone(world, [volume])

    volume, claim = volume_and_claim(world)
    for path in (volume, claim):
        name = path.rpartition("/")[2]
        updated = world.api.change(path, lambda value, n=name: value["metadata"].setdefault("labels", {}).update({n: "updated"}))
        equal(updated["metadata"]["labels"].get(name), "updated", "the label")
    for path in (claim, volume):
        base, _, name = path.rpartition("/")
        equal(len(world.api.get(selected(base, f"{name}=updated"))["items"]), 1, "the selected list")
        world.api.delete(selected(base, f"{name}=updated"))
        gone(world, [path])


@conformance("[sig-storage] PersistentVolumes CSI Conformance should apply changes to a pv/pvc status [Conformance]")
def volume_status(world):
    volume, claim = volume_and_claim(world)
    phase = world.api.get(f"{claim}/status")["status"]["phase"]
    check(phase in ("Pending", "Bound"), f"the claim is {phase}")
    phase = world.api.get(f"{volume}/status")["status"]["phase"]
    check(phase in ("Pending", "Available", "Bound"), f"the volume is {phase}")

    def one(kind):
        return {"type": kind, "status": "True", "reason": f"E2E {kind}", "message": "Set from e2e test"}

    patched = world.api.patch(f"{claim}/status", {"status": {"conditions": [one("StatusPatched")]}})
    equal({**condition(patched, "StatusPatched"), **one("StatusPatched")}, condition(patched, "StatusPatched"), "the claim's condition")
    words = {"message": "StatusPatched", "reason": "E2E patchStatus"}
    patched = world.api.patch(f"{volume}/status", {"status": words})
    equal({name: patched["status"].get(name) for name in words}, words, "the volume's status")

    def append(value):
        value["status"].setdefault("conditions", []).append(one("StatusUpdated"))

    updated = world.api.change(claim, append, at=f"{claim}/status")
    equal({**condition(updated, "StatusUpdated"), **one("StatusUpdated")}, condition(updated, "StatusUpdated"), "the claim's condition")
    words = {"message": "StatusUpdated", "reason": "E2E updateStatus"}
    updated = world.api.change(volume, lambda value: value["status"].update(words), at=f"{volume}/status")
    equal({name: updated["status"].get(name) for name in words}, words, "the volume's status")

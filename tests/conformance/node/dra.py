"""Conformance of the kinds of dynamic resource allocation: each with every way to create, change, read, watch and delete it
(test/e2e/dra/dra.go, over test/e2e/framework/conformance)."""

import contextlib
import copy

from world import APPLY, JSON_PATCH, MERGE, STRATEGIC, check, conformance, equal, until

GROUP, VERSION = "resource.k8s.io", "resource.k8s.io/v1"
DRIVER = "dra.example.com"


def contains(wanted, found, where=""):
    """All that was sent is in what came back; more may be."""
    if isinstance(wanted, dict):
        check(isinstance(found, dict), f"{where} is {found!r}, wanted {wanted!r}")
        for key, value in wanted.items():
            check(key in found, f"no {where}.{key} in {found!r}")
            contains(value, found[key], f"{where}.{key}")
    elif isinstance(wanted, list):
        equal(len(found), len(wanted), f"length of {where}")
        for index, value in enumerate(wanted):
            contains(value, found[index], f"{where}[{index}]")
    else:
        equal(found, wanted, where)


class Follower:
    """A watch, each of whose events has to be of the one object, and none older than those before it."""

    def __init__(self, watch):
        self.watch, self.version = watch, 0

    def sees(self, kind, it):
        """Reads up to the event that leaves the object as it is. Components of the cluster may have changed it before."""
        while True:
            event = self.watch.next()
            metadata = event["object"]["metadata"]
            equal(metadata["uid"], it["metadata"]["uid"], f"uid of {event['type']}")
            version = int(metadata["resourceVersion"])
            check(version >= self.version, f"{event['type']} at {version} behind {self.version}")
            self.version = version
            if event["type"] == kind and (kind == "DELETED" or version >= int(it["metadata"]["resourceVersion"])):
                contains({"metadata": {"name": it["metadata"]["name"]}}, event["object"])
                return
            check(event["type"] == "MODIFIED" or kind == event["type"], f"{event['type']} before {kind}")


class Life:
    """Objects of one kind, one at a time under one name; whoever watches sees all of it."""

    def __init__(self, world, resource, initial, followers, namespaced):
        self.api, self.followers = world.api, followers
        self.all = f"/apis/{VERSION}/{resource}"
        self.home = world.path(VERSION, resource) if namespaced else self.all
        name = "test" if namespaced else f"test-{world.ns}"
        self.path = f"{self.home}/{name}"
        self.wanted = {**copy.deepcopy(initial), "metadata": {"name": name, "labels": {"e2e-test.kubernetes.io": world.ns}}}

    def is_as(self, wanted, found, kind=None):
        contains(wanted, found)
        check(int(found["metadata"]["resourceVersion"]) > 0, "a resourceVersion")
        if kind:
            for follower in self.followers:
                follower.sees(kind, found)
        return found

    def create(self):
        return self.is_as(self.wanted, self.api.create(f"{self.home}?fieldValidation=Strict", self.wanted), "ADDED")

    def change(self, change, part=""):
        """Changes it through an update, and gives what was wanted and what came of it."""
        wanted = {}

        def change_both(found):
            change(found)
            wanted.update(copy.deepcopy(self.wanted))
            change(wanted)

        found = self.api.change(f"{self.path}{part}", change_both)
        return wanted, self.is_as(wanted, found, "MODIFIED")

    def patch(self, kind, patch, wanted, part=""):
        query = "fieldValidation=Strict" + ("&fieldManager=test-apply&force=true" if kind == APPLY else "")
        return self.is_as(wanted, self.api.patch(f"{self.path}{part}?{query}", patch, kind=kind), "MODIFIED")

    def gone(self, last):
        until("the object is gone", lambda: self.api.is_gone(self.path))
        for follower in self.followers:
            follower.sees("DELETED", last)


def patches(found, body):
    """The same change in each form of a patch; `body` is the part of the object that it sets."""
    identity = {"name": found["metadata"]["name"], "uid": found["metadata"]["uid"]}
    whole = {"apiVersion": found["apiVersion"], "kind": found["kind"], **copy.deepcopy(body)}
    whole["metadata"] = {**identity, **body.get("metadata", {})}
    operations = []
    for part, fields in body.items():
        if part not in found:
            operations.append({"op": "add", "path": f"/{part}", "value": {}})
        for field, value in fields.items():
            # Labels are there already, and the test's own one has to stay.
            for deeper, each in value.items() if field == "labels" else [(None, value)]:
                operations.append({"op": "add", "path": f"/{part}/{field}" + (f"/{deeper}" if deeper else ""), "value": each})
    return [(STRATEGIC, whole), (APPLY, whole), (MERGE, whole), (JSON_PATCH, operations)]


def exercise(world, resource, initial, update, status=None):
    """`update` and `status` are what the object gets set: {part: {field: value}}."""
    namespaced = resource in ("resourceclaims", "resourceclaimtemplates")
    kinds = world.api.get(f"/apis/{VERSION}")["resources"]
    check(any(kind["name"] == resource for kind in kinds), f"{resource} in {kinds}")

    def setting(values):
        def change(it):
            for part, fields in values.items():
                for field, value in fields.items():
                    target = it.setdefault(part, {})
                    target[field] = {**target.get(field, {}), **value} if field == "labels" else copy.deepcopy(value)

        return change

    with contextlib.ExitStack() as stack:
        life = Life(world, resource, initial, [], namespaced)
        selector = f"e2e-test.kubernetes.io={world.ns}"
        if not namespaced:
            world.later(lambda: world.api.delete(life.path))
        for path in {life.all, life.home}:
            listed = world.api.get(f"{path}?labelSelector={selector}")
            equal(listed["items"], [], "the list at the start")
            begin = listed["metadata"]["resourceVersion"]
            life.followers.append(Follower(stack.enter_context(world.api.watch(path, labelSelector=selector, resourceVersion=begin))))

        created = life.create()
        life.is_as(life.wanted, world.api.get(life.path))
        wanted, last = life.change(setting(update))
        check(int(created["metadata"]["resourceVersion"]) < int(last["metadata"]["resourceVersion"]), "a later resourceVersion")
        updated = wanted
        if status:
            set_status = setting(status)
            _, last = life.change(set_status, "/status")
            with_status = copy.deepcopy(life.wanted)
            set_status(with_status)
            life.is_as(with_status, world.api.get(f"{life.path}/status"))

        for index in range(4):
            world.api.delete(life.path)
            life.gone(last)
            kind, patch = patches(life.create(), update)[index]
            last = life.patch(kind, patch, updated)
        for index in range(4 if status else 0):
            world.api.delete(life.path)
            life.gone(last)
            life.create()
            _, found = life.change(setting(update))
            kind, patch = patches(found, status)[index]
            updated_with_status = copy.deepcopy(updated)
            set_status(updated_with_status)
            last = life.patch(kind, patch, updated_with_status, "/status")

        for path in {life.all, life.home}:
            items = world.api.get(f"{path}?labelSelector={selector}")["items"]
            equal(len(items), 1, f"objects in {path}")
            life.is_as(updated, items[0])
        world.api.delete(f"{life.home}?labelSelector={selector}")
        life.gone(last)


CRUD = f"[sig-node] [DRA] CRUD Tests {VERSION}"
LABEL = {"metadata": {"labels": {"test.resource.k8s.io": "test"}}}


@conformance(f"{CRUD} DeviceClass [Conformance]")
def device_classes(world):
    config = [{"opaque": {"driver": DRIVER, "parameters": {"key": "value"}}}]
    initial = {"spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}}
    exercise(world, "deviceclasses", initial, {"spec": {"config": config}})


REQUESTS = [{"name": "req-0", "exactly": {"deviceClassName": "example", "allocationMode": "ExactCount", "count": 1}}]


@conformance(f"{CRUD} ResourceClaim [Conformance]")
def resource_claims(world):
    device = {"driver": DRIVER, "pool": "pool-0", "device": "device-0"}
    status = {
        "allocation": {"devices": {"results": [{"request": "req-0", **device}]}},
        "devices": [{**device, "data": {"key": "value"}, "networkData": {"interfaceName": "eth0", "ips": ["10.9.8.0/24"]}}],
    }
    exercise(world, "resourceclaims", {"spec": {"devices": {"requests": REQUESTS}}}, LABEL, {"status": status})


@conformance(f"{CRUD} ResourceClaimTemplate [Conformance]")
def resource_claim_templates(world):
    exercise(world, "resourceclaimtemplates", {"spec": {"spec": {"devices": {"requests": REQUESTS}}}}, LABEL)


@conformance(f"{CRUD} ResourceSlice [Conformance]")
def resource_slices(world):
    pool = {"name": world.ns, "generation": 1, "resourceSliceCount": 1}
    initial = {"spec": {"driver": DRIVER, "nodeName": f"no-such-node-{world.ns}", "pool": pool, "devices": [{"name": "device-0"}]}}
    devices = [{"name": "device-0", "attributes": {"model": {"string": "a"}}, "capacity": {"memory": {"value": "1Gi"}}}, {"name": "device-1"}]
    exercise(world, "resourceslices", initial, {"spec": {"devices": devices}})

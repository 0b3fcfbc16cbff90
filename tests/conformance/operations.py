"""What many conformance tests ask of a kind in the same words: it is discovered, and its objects live through all the verbs.

Holds no test itself.
"""

import contextlib
import secrets

from world import APPLY, STRATEGIC, check, equal, until


def revision(value):
    """The resourceVersion as the number that it must be."""
    text = value["metadata"]["resourceVersion"]
    check(text.isdecimal() and not text.startswith("0"), f"resourceVersion {text!r} is a decimal number")
    return int(text)


def newer(value, than):
    check(revision(value) > revision(than), f"{revision(value)} is newer than {revision(than)}")


def holds(value, wanted, what=""):
    """All that is wanted is there; other things may be."""
    if isinstance(wanted, dict):
        for name, part in wanted.items():
            check(isinstance(value, dict) and name in value, f"{what}.{name} is in {value!r}")
            holds(value[name], part, f"{what}.{name}")
    else:
        equal(value, wanted, what)


def merge(value, change):
    for name, part in change.items():
        if isinstance(part, dict) and isinstance(value.get(name), dict):
            merge(value[name], part)
        else:
            value[name] = part


def selected(path, selector, field=False):
    """The path of a list by labels, or by fields."""
    return f"{path}?{'fieldSelector' if field else 'labelSelector'}={selector.replace('=', '%3D').replace(',', '%2C')}"


def condition(value, kind):
    return next((one for one in value["status"].get("conditions") or [] if one["type"] == kind), None)


def discovered(world, group, version, *resources):
    """The group, its version and its resources are told of by each of the three documents."""
    groups = {one["name"]: one for one in world.api.get("/apis")["groups"]}
    check(version in [one["version"] for one in groups[group]["versions"]], f"{group}/{version} in /apis")
    versions = world.api.get(f"/apis/{group}")["versions"]
    check(version in [one["version"] for one in versions], f"{version} in /apis/{group}")
    found = {one["name"] for one in world.api.get(f"/apis/{group}/{version}")["resources"]}
    for resource in resources:
        check(resource in found, f"{resource} in /apis/{group}/{version}: {found}")


def statuses(world, path, created, group_version, kind, more):
    """The status is read, patched and updated at its own path."""
    read = world.api.get(f"{path}/status")
    equal((read["apiVersion"], read["kind"]), (group_version, kind), "of /status")
    equal(read["metadata"]["uid"], created["metadata"]["uid"], "uid of /status")
    patch = {"status": {"conditions": [{"type": "PatchStatusFailed", "status": "False", "reason": "e2e", **more}]}}
    check(condition(world.api.patch(f"{path}/status", patch), "PatchStatusFailed"), "the patched condition is there")

    def update(value):
        added = {"type": "StatusUpdateFailed", "status": "False", "reason": "E2E", "message": "Set from an e2e test", **more}
        value["status"].setdefault("conditions", []).append(added)

    updated = world.api.change(path, update, at=f"{path}/status")
    check(condition(updated, "StatusUpdateFailed"), "the updated condition is there")


def api_operations(world, group, resource, body, patch, update, status=None, namespaced=False, version="v1"):
    """Create, get, list, watch, patch, update, delete and delete a collection of objects like `body` (without a name).

    `patch` and `update` are merged into the object together with an annotation; `status` are the fields of a condition beside the
    usual ones, of a kind that has a status of conditions.
    """
    discovered(world, group, version, resource, *([f"{resource}/status"] if status is not None else []))
    group_version, label = f"{group}/{version}", f"e2e-operations={secrets.token_hex(4)}"
    everywhere = f"/apis/{group_version}/{resource}"
    base = world.path(group_version, resource) if namespaced else everywhere
    of_ours = selected(base, label)
    world.later(world.api.delete, of_ours)
    name, _, value = label.partition("=")
    meta = {"generateName": "e2e-example-", "labels": {name: value}}
    created = [world.api.create(base, {**body, "apiVersion": group_version, "metadata": dict(meta)}) for _ in range(3)][-1]
    path = f"{base}/{created['metadata']['name']}"

    read = world.api.get(path)
    equal(read["metadata"]["uid"], created["metadata"]["uid"], "uid")
    revision(read)
    listed = world.api.get(of_ours)
    equal(len(listed["items"]), 3, "the selected list")
    seen = [of_ours]
    if namespaced:
        equal(len(world.api.get(selected(everywhere, label))["items"]), 3, "the selected list of the whole cluster")
        seen.append(selected(everywhere, label))
    with contextlib.ExitStack() as watches:
        watches = [watches.enter_context(world.api.watch(one, resourceVersion=listed["metadata"]["resourceVersion"])) for one in seen]
        patched = world.api.patch(path, {"metadata": {"annotations": {"patched": "true"}}, **patch})
        holds(patched, {"metadata": {"annotations": {"patched": "true"}}, **patch}, "patched")
        newer(patched, created)
        change = {"metadata": {"annotations": {"updated": "true"}}, **update}
        holds(world.api.change(path, lambda value: merge(value, change)), change, "updated")
        for watch in watches:
            while True:
                event = watch.next()
                equal(event["type"], "MODIFIED", "the event")
                equal((event["object"]["apiVersion"], event["object"]["kind"]), (group_version, created["kind"]), "of the event")
                if event["object"]["metadata"].get("annotations", {}).get("patched") == "true":
                    break
    if status is not None:
        statuses(world, path, created, group_version, created["kind"], status)

    world.api.delete(path)
    world.api.refuses(404, "GET", path)
    names = [one["metadata"]["name"] for one in world.api.get(of_ours)["items"]]
    equal(len(names), 2, "what the delete left")
    check(created["metadata"]["name"] not in names, "the deleted one is not listed")
    world.api.delete(of_ours)
    equal(world.api.get(of_ours)["items"], [], "what the delete of the collection left")


def lifecycle(world, resource, first, second, kind=STRATEGIC):
    """Objects of storage.k8s.io/v1: one is patched, found by its label and deleted; another updated and deleted as a collection."""
    base = f"/apis/storage.k8s.io/v1/{resource}"

    def begin(body):
        created = world.api.create(base, body)
        path = f"{base}/{created['metadata']['name']}"
        world.later(lambda: world.api.is_gone(path) or world.api.delete(path))
        read = world.api.get(path)
        equal(read["metadata"]["name"], created["metadata"]["name"], "the name")
        return created["metadata"]["name"], path, read

    def gone(selector):
        until(f"{selector} is gone", lambda: not world.api.get(selected(base, selector))["items"])

    name, path, read = begin(first)
    patched = world.api.patch(path, {"metadata": {"labels": {name: "patched"}}}, kind=kind)
    equal(patched["metadata"]["labels"].get(name), "patched", "the label")
    newer(patched, read)
    equal(len(world.api.get(selected(base, f"{name}=patched"))["items"]), 1, "the selected list")
    world.api.delete(path)
    gone(f"{name}=patched")

    name, path, _ = begin(second)
    updated = world.api.change(path, lambda value: value["metadata"].update(labels={name: "updated"}))
    equal(updated["metadata"]["labels"].get(name), "updated", "the label")
    equal(len(world.api.get(selected(base, f"{name}=updated"))["items"]), 1, "the selected list")
    world.api.delete(selected(base, f"{name}=updated"))
    gone(f"{name}=updated")


ANYTHING = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}


class Custom:
    """A kind of the test's own, served when this is made and gone when the test ends."""

    def __init__(self, world, versions=("v1",), schema=None, scope="Namespaced", conversion=None):
        self.world, word = world, f"e2e{secrets.token_hex(4)}"
        self.group, self.plural, self.kind, self.namespaced = f"{word}.example.com", f"{word}s", word.capitalize(), scope == "Namespaced"
        listed = [one if isinstance(one, dict) else {"name": one, "schema": schema or ANYTHING} for one in versions]
        listed = [{"served": True, "storage": place == 0, **one} for place, one in enumerate(listed)]
        names = {"plural": self.plural, "singular": word, "kind": self.kind, "listKind": f"{self.kind}List"}
        spec = {"group": self.group, "scope": scope, "names": names, "versions": listed, **({"conversion": conversion} if conversion else {})}
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        world.api.create(definitions, {"metadata": {"name": f"{self.plural}.{self.group}"}, "spec": spec})
        world.forget(f"{definitions}/{self.plural}.{self.group}")
        for version in listed:
            until("the kind is served", lambda v=version["name"]: world.api.get(f"/apis/{self.group}/{v}/{self.plural}")["kind"])

    def path(self, version="v1", name=""):
        if self.namespaced:
            return self.world.path(f"{self.group}/{version}", self.plural, name)
        return f"/apis/{self.group}/{version}/{self.plural}" + (f"/{name}" if name else "")

    def apply(self, name, text, version="v1"):
        """Applies an object of this text (YAML without apiVersion and kind), strictly; its code and what came back."""
        whole = f"apiVersion: {self.group}/{version}\nkind: {self.kind}\n{text}"
        query = "?fieldManager=field_validation_mgr&fieldValidation=Strict"
        code, _, answer = self.world.api.answer("PATCH", self.path(version, name) + query, whole, kind=APPLY)
        return code, answer.decode()

"""Conformance of objects of the whole cluster: nodes, CSI drivers, and what the scheduler does on a node to make room."""

import contextlib

from world import MERGE, STRATEGIC, Refused, check, conformance, equal, until


def version(thing):
    number = int(thing["metadata"]["resourceVersion"])
    check(number > 0, "a resourceVersion")
    return number


# It runs alone since DaemonSets of other tests would want to be on this node, too.
@conformance("[sig-node] Node Lifecycle should run through the lifecycle of a node [Conformance]", serial=True)
def lifecycle_of_a_node(world):
    name = world.unique("e2e-fake-node")
    ready = {"type": "Ready", "status": "True", "reason": "E2E", "message": "Set from e2e test"}
    node = {"metadata": {"name": name}, "spec": {"unschedulable": True}, "status": {"phase": "Running", "conditions": [ready]}}
    path = f"/api/v1/nodes/{name}"
    created = world.api.create("/api/v1/nodes", node)
    world.forget(path)
    equal(created["metadata"]["name"], name, "name of the new node")
    version(created)
    equal(world.api.get(path)["metadata"]["name"], name, "name of the node")

    patched = world.api.patch(path, {"metadata": {"labels": {name: "patched"}}}, kind=STRATEGIC)
    equal(patched["metadata"]["labels"][name], "patched", "label")
    check(version(created) < version(patched), "a later resourceVersion")
    equal(len(world.api.get(f"/api/v1/nodes?labelSelector={name}%3Dpatched")["items"]), 1, "nodes with the label")

    updated = world.api.change(path, lambda node: node["metadata"]["labels"].update({name: "updated"}))
    equal(updated["metadata"]["labels"][name], "updated", "label")
    world.api.delete(path)
    until("the node is gone", lambda: world.api.is_gone(path))


INLINE = "[sig-storage] CSIInlineVolumes should"


def deleted_or_ends(api, path):
    """An object is gone, or marked as going."""
    try:
        check(api.get(path)["metadata"].get("deletionTimestamp"), f"{path} is neither gone nor going")
    except Refused as refused:
        equal(refused.code, 404, refused.message)


@conformance(f"{INLINE} support CSIVolumeSource in Pod API [Conformance]")
def csi_volume_of_a_pod(world):
    driver = "e2e.example.com"
    volumes = [
        {"name": "csi-inline-vol1", "csi": {"driver": driver}},
        {"name": "csi-inline-vol2", "csi": {"driver": driver, "fsType": "ext4", "readOnly": True}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/mnt/vol{index}"} for index, volume in enumerate(volumes, 1)]
    pod = world.pod("pod-csi-inline-volumes", ["sh", "-c", "ls /mnt/*"], {"volumes": volumes}, container={"volumeMounts": mounts})
    path = world.path("v1", "pods")
    created = world.api.create(path, pod)
    equal(world.api.refuses(409, "POST", path, pod)["reason"], "AlreadyExists", "reason")
    one = f"{path}/pod-csi-inline-volumes"
    found = world.api.get(one)
    equal(found["metadata"]["uid"], created["metadata"]["uid"], "uid")
    equal([volume for volume in found["spec"]["volumes"] if "csi" in volume], volumes, "volumes")
    equal(len(world.api.get(path)["items"]), 1, "Pods")
    patched = world.api.patch(one, {"metadata": {"annotations": {"patched": "true"}}}, kind=MERGE)
    equal(patched["metadata"]["annotations"]["patched"], "true", "annotation")
    world.api.delete(one)
    deleted_or_ends(world.api, one)


@conformance(f"{INLINE} run through the lifecycle of a CSIDriver [Conformance]")
def lifecycle_of_a_csi_driver(world):
    drivers, mine = "/apis/storage.k8s.io/v1/csidrivers", {"e2e-test": world.ns}

    def driver(*modes):
        spec = {"volumeLifecycleModes": list(modes), "fsGroupPolicy": "ReadWriteOnceWithFSType"}
        return {"metadata": {"name": world.unique("inline-driver"), "labels": mine}, "spec": spec}

    both = [driver("Ephemeral"), driver("Persistent", "Ephemeral")]
    created = [world.api.create(drivers, each) for each in both]
    first, second = (each["metadata"]["name"] for each in created)
    for name in (first, second):
        world.forget(f"{drivers}/{name}")
    equal(world.api.refuses(409, "POST", drivers, both[0])["reason"], "AlreadyExists", "reason")
    for each in created:
        name = each["metadata"]["name"]
        equal(world.api.get(f"{drivers}/{name}")["metadata"]["uid"], each["metadata"]["uid"], "uid")

    patched = world.api.patch(f"{drivers}/{second}", {"metadata": {"labels": {second: "patched"}}}, kind=STRATEGIC)
    equal(patched["metadata"]["labels"][second], "patched", "label")
    updated = world.api.change(f"{drivers}/{second}", lambda it: it["metadata"]["labels"].update({second: "updated"}))
    equal(updated["metadata"]["labels"][second], "updated", "label")
    equal(len(world.api.get(f"{drivers}?labelSelector=e2e-test%3D{world.ns}")["items"]), 2, "drivers with the label")

    world.api.delete(f"{drivers}/{first}")
    deleted_or_ends(world.api, f"{drivers}/{first}")
    world.api.delete(f"{drivers}?labelSelector={second}%3Dupdated")
    deleted_or_ends(world.api, f"{drivers}/{second}")


SCARCE, FINALIZER = "scheduling.k8s.io/foo", "example.com/test-finalizer"


PREEMPTION = "[sig-scheduling] SchedulerPreemption [Serial]"


@conformance(f"{PREEMPTION} validates pod disruption condition is added to the preempted pod [Conformance]", serial=True)
def preempted_pod_says_so(world):
    nodes = [node for node in world.api.get("/api/v1/nodes")["items"] if not node["spec"].get("unschedulable")]
    check(nodes, "there is a node")
    node = nodes[0]["metadata"]["name"]
    status = f"/api/v1/nodes/{node}/status"
    world.api.patch(status, {"status": {"capacity": {SCARCE: "1"}, "allocatable": {SCARCE: "1"}}}, kind=STRATEGIC)
    world.later(world.api.patch, status, {"status": {"capacity": {SCARCE: None}, "allocatable": {SCARCE: None}}}, kind=STRATEGIC)
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    low, high = world.unique("low"), world.unique("high")
    for name, value in ((low, 1), (high, 1000)):
        world.api.create(classes, {"metadata": {"name": name}, "value": value})
        world.forget(f"{classes}/{name}")

    def pod(name, priority, **metadata):
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
        one = {"requests": {SCARCE: "1"}, "limits": {SCARCE: "1"}}
        made = world.pod(name, spec={"priorityClassName": priority, "affinity": affinity}, container={"resources": one})
        made["metadata"].update(metadata)
        return made

    victim = world.path("v1", "pods", "victim-pod")
    world.run(pod("victim-pod", low, finalizers=[FINALIZER]))

    def let_go():
        with contextlib.suppress(Refused):
            world.api.patch(victim, {"metadata": {"finalizers": None}}, kind=MERGE)

    world.later(let_go)
    world.api.create(world.path("v1", "pods"), pod("preemptor-pod", high))
    until("the victim ends", lambda: world.api.get(victim)["metadata"].get("deletionTimestamp"))
    found = [each for each in world.api.get(victim)["status"]["conditions"] if each["type"] == "DisruptionTarget"]
    equal([each["reason"] for each in found], ["PreemptionByScheduler"], "the condition of the victim")
    equal(found[0]["status"], "True", "the condition of the victim")

"""Resizing where a node has no room now, or never: what waits is done when others go or shrink, the most important first
(test/e2e/node/pod_resize.go). These tests fill a node, so that they run alone."""

from resize import burstable, conditions, difference, quantity, resized, restricted
from world import STRATEGIC, conformance, equal, until

CLASS = "[sig-node] Pod InPlace Resize Container (scheduler-focused)"
IN = {"cpu": "m", "memory": "Mi"}


class Room:
    """A node, with what it has and what of that nobody asked for."""

    def __init__(self, world):
        self.world = world
        nodes = world.api.get("/api/v1/nodes")["items"]
        self.node = next(node for node in nodes if not node["spec"].get("unschedulable"))
        self.name = self.node["metadata"]["name"]
        until("what other tests had is gone", lambda: all(self.stays(pod) for pod in self.pods()))

    def pods(self):
        return self.world.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}")["items"]

    def stays(self, pod):
        namespace = pod["metadata"]["namespace"]
        return namespace == self.world.ns or not namespace.startswith("conformance-")

    def all(self, resource):
        return quantity(self.node["status"]["allocatable"][resource], IN[resource])

    def left(self, resource):
        taken = 0
        for pod in self.pods():
            if pod["status"]["phase"] not in ("Succeeded", "Failed"):
                for container in pod["spec"]["containers"]:
                    asked = container["resources"].get("requests", {}).get(resource, "0")
                    taken += quantity(asked, IN[resource])
        return self.all(resource) - taken

    def path(self, name):
        return self.world.path("v1", "pods", name)

    def get(self, name):
        return self.world.api.get(self.path(name))

    def create(self, name, wanted, **spec):
        pod = restricted(name, burstable(wanted))
        pod["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": self.node["metadata"]["labels"]["kubernetes.io/hostname"]}, **spec}
        self.world.api.create(self.world.path("v1", "pods"), pod)
        return name

    def run(self, name, wanted, **spec):
        self.create(name, wanted, **spec)
        pod = self.world.phase(name, "Running")
        equal(pod["metadata"]["generation"], 1, f"generation of {name}")
        return name

    def has_no_node(self, name):
        until(f"{name} fits nowhere", lambda: conditions(self.get(name))["PodScheduled"]["reason"] == "Unschedulable")
        pod = self.get(name)
        equal((pod["status"]["phase"], pod["metadata"]["generation"]), ("Pending", 1), name)

    def ask(self, name, wanted):
        """Asks for other resources; gives the Pod as it is then."""
        before = {"c1": self.get(name)["spec"]["containers"][0]["resources"]}
        return self.world.api.patch(f"{self.path(name)}/resize", difference(before, {"c1": wanted}), kind=STRATEGIC)

    def waits(self, name, reason="Deferred"):
        until(f"{name}'s resize is {reason}", lambda: conditions(self.get(name))["PodResizePending"]["reason"] == reason)

    def wait(self, name, wanted):
        self.ask(name, wanted)
        self.waits(name)

    def gets(self, asked, wanted):
        resized(self.world, asked, {"c1": wanted})

    def delete(self, *names):
        for name in names:
            self.world.api.delete(self.path(name))
        for name in names:
            until(f"{name} is gone", lambda name=name: self.world.api.is_gone(self.path(name)))


def processors(milli):
    """As the API shows it."""
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def memory(mebi):
    return f"{mebi}Mi" if mebi % 1024 else f"{mebi // 1024}Gi"


def cpu(milli):
    return {"requests": {"cpu": processors(milli)}, "limits": {"cpu": processors(milli)}}


@conformance(f"{CLASS} pod-resize-scheduler-tests", serial=True)
def scheduler(world):
    room = Room(world)
    half = room.left("cpu") // 2
    # A Pod that waits for a node is resized to fit.
    room.run("testpod1", cpu(half))
    room.create("testpod2", cpu(half * 2))
    room.has_no_node("testpod2")
    equal(room.ask("testpod2", cpu(half // 2))["metadata"]["generation"], 2, "generation of testpod2")
    world.phase("testpod2", "Running")
    # A Pod that runs is resized to make room for another.
    third = room.left("cpu") + half // 4
    room.create("testpod3", cpu(third))
    room.has_no_node("testpod3")
    equal(room.ask("testpod1", cpu(half // 3))["metadata"]["generation"], 2, "generation of testpod1")
    world.phase("testpod3", "Running")
    # A resize waits until others are gone, and one that never fits is not waited for.
    asked = room.ask("testpod1", cpu(half))
    equal(asked["metadata"]["generation"], 3, "generation of testpod1")
    room.waits("testpod1")
    room.delete("testpod2", "testpod3")
    room.gets(asked, cpu(half))
    room.ask("testpod1", cpu(room.all("cpu") * 2))
    room.waits("testpod1", "Infeasible")


@conformance(f"{CLASS} pod-resize-retry-deferred-test-1", serial=True)
def another_shrinks(world):
    room = Room(world)
    part = room.left("cpu") // 10
    room.run("testpod-a", cpu(part * 5))
    room.run("testpod-b", cpu(part * 3))
    asked = room.ask("testpod-b", cpu(part * 6))
    room.waits("testpod-b")
    equal(room.ask("testpod-a", cpu(part * 2))["metadata"]["generation"], 2, "generation of testpod-a")
    room.gets(asked, cpu(part * 6))


@conformance(f"{CLASS} pod-resize-retry-deferred-test-2", serial=True)
def most_important_first(world):
    room = Room(world)
    left = room.left("cpu")
    most, little = cpu(left * 2 // 3), cpu(left // 16)

    def with_memory(wanted):
        return {part: {**values, "memory": "100Mi"} for part, values in wanted.items()}

    name = world.unique("testpod2-priority-class")
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    world.api.create(classes, {"metadata": {"name": name}, "value": 1000})
    world.forget(f"{classes}/{name}")
    room.run("testpod1", most)
    room.run("testpod2", little, priorityClassName=name)
    room.run("testpod3", with_memory(little))
    room.run("testpod4", little)
    room.run("testpod5", little)
    # By the class of their priority, by their quality of service, and by how long they wait; whoever asks first.
    wanted = {"testpod2": most, "testpod3": with_memory(most), "testpod4": most, "testpod5": most}
    asked = {}
    for pod in ("testpod4", "testpod3", "testpod2", "testpod5"):
        asked[pod] = room.ask(pod, wanted[pod])
        room.waits(pod)
    goes, others = "testpod1", list(wanted)
    while others:
        room.delete(goes)
        goes = others.pop(0)
        room.gets(asked[goes], wanted[goes])
        for pod in others:
            room.waits(pod)


@conformance(f"{CLASS} pod-resize-retry-deferred-test-3", serial=True)
def one_makes_room_for_the_next(world):
    room = Room(world)
    milli, mebi = room.left("cpu"), room.left("memory")

    def requests(of_cpu, of_memory):
        return {"requests": {"cpu": processors(of_cpu), "memory": memory(of_memory)}}

    first = requests(milli // 4, mebi // 5)
    pods = ["testpod1", "testpod2", "testpod3", "testpod4"]
    for pod in pods:
        room.create(pod, first)
    for pod in pods:
        world.phase(pod, "Running")
    wanted = {
        "testpod2": requests(milli // 3, mebi // 24),
        "testpod3": requests(milli // 24, mebi * 2 // 3),
        "testpod4": requests(milli // 2 + milli // 8, mebi // 5),
    }
    asked = {}
    for pod, each in wanted.items():
        asked[pod] = room.ask(pod, each)
        room.waits(pod)
    room.delete("testpod1")
    for pod, each in wanted.items():
        room.gets(asked[pod], each)

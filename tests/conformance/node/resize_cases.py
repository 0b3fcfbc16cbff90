"""More of upstream's cases of resizing in place, which are no conformance yet: with restarts, sidecars and extended resources,
what is refused, and what quotas and limits say (test/e2e/common/node/pod_resize.go, test/e2e/node/pod_resize.go)."""

import re

from resize import CLASS, CPU, LESS_CPU, LESS_MEMORY, MEMORY, MORE_CPU, MORE_CPU_LIMIT, MORE_MEMORY, MORE_MEMORY_LIMIT
from resize import all_statuses, burstable, conditions, difference, patched, resources, restricted, resized, spec_has, started, status_shows
from world import JSON_PATCH, STRATEGIC, Refused, check, conformance, equal, until

CPU_LIMIT, MEMORY_LIMIT, LESS_MEMORY_LIMIT = 30, 45, 40
STAY, RESTART = "NotRequired", "RestartContainer"


def changes(before, after, policies):
    """The containers that restart: those of whose resources one changes that cannot be changed without."""
    again = set()
    for name, wanted in after.items():
        for resource, policy in policies:
            values = [{part: each.get(part, {}).get(resource) for part in ("requests", "limits")} for each in (before[name], wanted)]
            if policy == RESTART and values[0] != values[1]:
                again.add(name)
    return again


def each_there_and_back(world, before, cases, policies):
    """Upstream takes a Pod for each case; what restarts is counted from what was before either way."""
    started(world, before, policies)
    for after in cases:
        again = changes(before, after, policies)
        patched(world, before, after, again)
        patched(world, after, before, again)


def extended_resource(world):
    """A resource of this test's own on every node."""
    name = f"dummy.com/{world.ns}"
    for node in world.api.get("/api/v1/nodes")["items"]:
        path = f"/api/v1/nodes/{node['metadata']['name']}/status"
        operations = {"op": "add", "path": f"/status/capacity/{name.replace('/', '~1')}", "value": "123"}
        world.api.patch(path, [operations], kind=JSON_PATCH)
        world.later(world.api.patch, path, [{**operations, "op": "remove"}], kind=JSON_PATCH)
    return name


def guaranteed_with_policies(name, cpu_policy, memory_policy, with_sidecar):
    @conformance(f"{CLASS} guaranteed qos - 1 container with resize policy {name} resizing")
    def test(world):
        dummy = extended_resource(world)
        policies = [("cpu", cpu_policy), ("memory", memory_policy)]

        def both(cpu, memory):
            main = resources(cpu, memory, cpu, memory)
            for part in main.values():
                part[dummy] = "1"
            sidecar = (cpu, memory) if with_sidecar else (CPU, MEMORY)
            return {"c1": main, "c1-init": resources(*sidecar, *sidecar)}

        cases = [both(MORE_CPU, MEMORY), both(CPU, MORE_MEMORY), both(MORE_CPU, MORE_MEMORY), both(MORE_CPU, LESS_MEMORY)]
        each_there_and_back(world, both(CPU, MEMORY), cases, policies)


for case in (
    ("no restart", STAY, STAY, False),
    ("no restart + resize initContainers", STAY, STAY, True),
    ("mem restart", STAY, RESTART, False),
    ("cpu restart", RESTART, STAY, False),
    ("cpu & mem restart", RESTART, RESTART, False),
    ("cpu & mem restart + resize initContainers", RESTART, RESTART, True),
):
    guaranteed_with_policies(*case)


def burstable_with_policies(name, cpu_policy, memory_policy):
    @conformance(f"{CLASS} burstable pods - 1 container with all requests & limits set and resize policy {name} resizing")
    def test(world):
        # Requests and limits: of processors, of memory.
        amounts = [
            (MORE_CPU, CPU_LIMIT, MEMORY, MEMORY_LIMIT),
            (CPU, MORE_CPU_LIMIT, MEMORY, MEMORY_LIMIT),
            (CPU, CPU_LIMIT, MORE_MEMORY, MEMORY_LIMIT),
            (CPU, CPU_LIMIT, MEMORY, MORE_MEMORY_LIMIT),
            (MORE_CPU, MORE_CPU_LIMIT, MORE_MEMORY, MORE_MEMORY_LIMIT),
            (MORE_CPU, MORE_CPU_LIMIT, LESS_MEMORY, LESS_MEMORY_LIMIT),
            (LESS_CPU, MORE_CPU_LIMIT, MORE_MEMORY, LESS_MEMORY_LIMIT),
        ]
        cases = [burstable(resources(cpu, memory, cpu_limit, limit)) for cpu, cpu_limit, memory, limit in amounts]
        before = burstable(resources(CPU, MEMORY, CPU_LIMIT, MEMORY_LIMIT))
        each_there_and_back(world, before, cases, [("cpu", cpu_policy), ("memory", memory_policy)])


for case in (
    ("no restart", STAY, STAY),
    ("cpu restart", RESTART, STAY),
    ("mem restart", STAY, RESTART),
    ("cpu & mem restart", RESTART, RESTART),
):
    burstable_with_policies(*case)


WHOLE = resources(CPU, MEMORY, CPU, MEMORY)
LIMITED = resources(CPU, MEMORY, MORE_CPU_LIMIT, MORE_MEMORY_LIMIT)
QUALITY = "Pod QOS Class may not change as a result of resizing"
NAMES = ", ".join(
    f"spec.containers[{index}].name: Forbidden: containers may not be renamed or reordered on resize" for index in range(2)
)


def stored(amount):
    wanted = resources(CPU, MEMORY)
    wanted["requests"]["ephemeral-storage"] = amount
    return wanted


INVALID = {
    "best effort: memory": ({"c1": {}}, {"c1": resources(memory=MEMORY)}, QUALITY),
    "best effort: processors": ({"c1": {}}, {"c1": resources(CPU)}, QUALITY),
    "guaranteed: without limits": ({"c1": WHOLE}, {"c1": resources(CPU, MEMORY)}, "resource limits cannot be removed"),
    "without limits": ({"c1": LIMITED}, {"c1": resources(MORE_CPU, MORE_MEMORY)}, "resource limits cannot be removed"),
    "without memory": ({"c1": resources(memory=MEMORY)}, {"c1": {}}, "resource requests cannot be removed"),
    "without processors": ({"c1": resources(CPU)}, {"c1": {}}, "resource requests cannot be removed"),
    "another order": ({"c1": resources(CPU), "c2": resources(CPU)}, {"c2": resources(CPU), "c1": resources(CPU)}, NAMES),
    "other names": ({"c1-old": WHOLE, "c2-old": WHOLE}, {"c1-new": WHOLE, "c2-new": WHOLE}, NAMES),
    "requests are limits": (
        {"c1": LIMITED},
        {"c1": resources(MORE_CPU_LIMIT, MORE_MEMORY_LIMIT, MORE_CPU_LIMIT, MORE_MEMORY_LIMIT)},
        QUALITY,
    ),
    "ephemeral storage": ({"c1": stored("1")}, {"c1": stored("3")}, "only cpu and memory resources are mutable"),
    "an init container": (
        {"c1-init": resources(CPU, MEMORY), "c1": {}},
        {"c1-init": resources(MORE_CPU, MORE_MEMORY), "c1": {}},
        "resources for non-sidecar init containers are immutable",
    ),
}


def renamed(before, after):
    """What makes containers those of other names: the new ones whole, and the old ones gone."""
    new = restricted("any", after)["spec"]["containers"]
    old = [{"name": name, "$patch": "delete"} for name in before]
    return {"spec": {"$setElementOrder/containers": [{"name": name} for name in after], "containers": new + old}}


@conformance(f"{CLASS} apply invalid resize patch requests")
def invalid_requests(world):
    pods = {}
    for index, (what, (before, _, _)) in enumerate(INVALID.items()):
        pods[what] = f"invalid-{index}"
        world.api.create(world.path("v1", "pods"), restricted(pods[what], before, init_policy="Never"))
    for what, (before, after, message) in INVALID.items():
        path = world.path("v1", "pods", pods[what])
        # An init container that ends by itself only after a day: its Pod does not get further.
        starts = "c1-init" not in before
        if starts:
            pod = world.phase(pods[what], "Running")
            check(status_shows(pod, before), f"{what}: the status shows {all_statuses(pod)}")
        patch = renamed(before, after) if what == "other names" else difference(before, after)
        refused = world.api.refuses(422, "PATCH", f"{path}/resize", patch, kind=STRATEGIC)
        check(message in refused["message"], f"{what}: {refused['message']}")
        pod = world.api.get(path)
        spec_has(pod, before)
        if starts:
            check(status_shows(pod, before), f"{what}: the status shows {all_statuses(pod)}")


@conformance(f"{CLASS} decrease memory limit below usage")
def memory_below_usage(world):
    before, viable = burstable(resources(memory=MEMORY, memory_limit=MEMORY)), burstable(resources(memory=LESS_MEMORY, memory_limit=LESS_MEMORY))
    tiny = {"c1": {"requests": {"memory": "10Ki"}, "limits": {"memory": "10Ki"}}}
    started(world, before)
    patched(world, before, viable)
    path = world.path("v1", "pods", "resize-test")
    world.api.patch(f"{path}/resize", difference(viable, tiny), kind=STRATEGIC)

    def refused():
        pod = world.api.get(path)
        check(not status_shows(pod, tiny), "a resize that cannot be was made")
        known = conditions(pod)
        under_way = known.get("PodResizeInProgress", {})
        right = under_way.get("reason") == "Error" and re.search(r"memory limit \(\d+\) below current usage", under_way["message"])
        return pod if right and "PodResizePending" not in known else None

    check(status_shows(until("the resize fails", refused), viable), "the status shows what is")
    asked = world.api.patch(f"{path}/resize", difference(tiny, before), kind=STRATEGIC)
    spec_has(asked, before)
    resized(world, asked, before)


def alike(cpu, memory):
    return burstable(resources(cpu, memory, cpu, memory))


def two_pods(world):
    before = alike(300, 300)
    for name in ("testpod1", "testpod2"):
        world.api.create(world.path("v1", "pods"), restricted(name, before))
    for name in ("testpod1", "testpod2"):
        world.phase(name, "Running")
    return before


def refused_with(world, before, after, *messages):
    """It stays refused with these words, maybe after what asks has seen all that there is."""
    path = world.path("v1", "pods", "testpod1")

    def refused():
        try:
            world.api.patch(f"{path}/resize", difference(before, after), kind=STRATEGIC)
        except Refused as error:
            equal(error.code, 403, error.message)
            return all(message in error.message for message in messages) or error.message
        return None

    until(f"refused with {messages}", lambda: refused() is True)
    pod = world.api.get(path)
    spec_has(pod, before)
    check(status_shows(pod, before), f"the status shows {all_statuses(pod)}")


def let_in(world, before, *cases):
    for after in cases:
        patched(world, before, after, name="testpod1")
        patched(world, after, before, name="testpod1")


@conformance("[sig-node] Pod InPlace Resize Container (scheduler-focused) pod-resize-resource-quota-test")
def within_a_quota(world):
    path = world.path("v1", "resourcequotas")
    quota = {"metadata": {"name": "resize-resource-quota"}, "spec": {"hard": {"cpu": "800m", "memory": "800Mi"}}}
    world.api.create(path, quota)
    until("the quota is known", lambda: world.api.get(f"{path}/resize-resource-quota")["status"]["hard"])
    before = two_pods(world)
    exceeded = "exceeded quota: resize-resource-quota, requested: "
    refused_with(world, before, alike(600, 400), f"{exceeded}cpu=300m, used: cpu=600m, limited: cpu=800m")
    refused_with(world, before, alike(250, 750), f"{exceeded}memory=450Mi, used: memory=600Mi, limited: memory=800Mi")
    both = "cpu=300m,memory=450Mi, used: cpu=600m,memory=600Mi, limited: cpu=800m,memory=800Mi"
    refused_with(world, before, alike(600, 750), f"{exceeded}{both}")
    let_in(world, before, alike(350, 300), alike(350, 350), alike(400, 400))


@conformance("[sig-node] Pod InPlace Resize Container (scheduler-focused) pod-resize-limit-ranger-test")
def within_limits(world):
    limits = {"type": "Container", "max": {"cpu": "500m", "memory": "500Mi"}, "min": {"cpu": "50m", "memory": "50Mi"}}
    limits |= {"default": {"cpu": "100m", "memory": "100Mi"}, "defaultRequest": {"cpu": "50m", "memory": "50Mi"}}
    path = world.path("v1", "limitranges")
    world.api.create(path, {"metadata": {"name": "resize-limit-ranger"}, "spec": {"limits": [limits]}})
    equal(world.api.get(f"{path}/resize-limit-ranger")["spec"]["limits"], [limits], "limits")
    before = two_pods(world)

    def most(resource, limit, asked):
        return f"maximum {resource} usage per Container is {limit}, but limit is {asked}"

    def least(resource, limit, asked):
        return f"minimum {resource} usage per Container is {limit}, but request is {asked}"

    refused_with(world, before, alike(600, 250), f"forbidden: {most('cpu', '500m', '600m')}")
    refused_with(world, before, alike(250, 750), f"forbidden: {most('memory', '500Mi', '750Mi')}")
    refused_with(world, before, alike(600, 600), most("cpu", "500m", "600m"), most("memory", "500Mi", "600Mi"))
    refused_with(world, before, alike(10, 400), f"forbidden: {least('cpu', '50m', '10m')}")
    refused_with(world, before, alike(250, 10), f"forbidden: {least('memory', '50Mi', '10Mi')}")
    refused_with(world, before, alike(10, 10), least("cpu", "50m", "10m"), least("memory", "50Mi", "10Mi"))
    let_in(world, before, alike(350, 300), alike(350, 350), alike(400, 400))

"""Conformance of resizing the containers of a running Pod in place: test/e2e/common/node/pod_resize.go."""

import math

from world import IMAGE, STRATEGIC, check, conformance, equal, until

CLASS = "[sig-node] Pod InPlace Resize Container"
SINCE = "[MinimumKubeletVersion:1.34] [Conformance]"
# What upstream starts from, and what its cases ask for instead: thousandths of a processor and mebibytes.
CPU, LESS_CPU, MORE_CPU, MORE_CPU_LIMIT = 20, 15, 25, 35
MEMORY, LESS_MEMORY, MORE_MEMORY, MORE_MEMORY_LIMIT = 35, 30, 40, 50


def resources(cpu=None, memory=None, cpu_limit=None, memory_limit=None):
    """Requests and limits, as the API shows them."""
    both = {}
    for part, processors, bytes_ in (("requests", cpu, memory), ("limits", cpu_limit, memory_limit)):
        values = {}
        if processors is not None:
            values["cpu"] = f"{processors}m"
        if bytes_ is not None:
            values["memory"] = f"{bytes_}Mi"
        if values:
            both[part] = values
    return both


def guaranteed(*amounts):
    """Containers c1, c2… whose requests are their limits; each has a little more than the one before it."""
    wanted = {}
    for index, (cpu, memory) in enumerate(amounts):
        cpu, memory = cpu + 2 * index, memory + 2 * index
        wanted[f"c{index + 1}"] = resources(cpu, memory, cpu, memory)
    return wanted


def burstable(*all_of_them):
    return {f"c{index + 1}": each for index, each in enumerate(all_of_them)}


def is_init(name):
    """An init container, by upstream's way to name them; it is a sidecar."""
    return name.endswith("-init")


def policy_of(policies):
    return [{"resourceName": resource, "restartPolicy": policy} for resource, policy in policies]


def restricted(name, containers, policies=(), init_policy="Always"):
    """A Pod that the strictest Pod Security lets in."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    made = {"initContainers": [], "containers": []}
    for container, wanted in containers.items():
        it = {"name": container, "image": IMAGE, "command": ["/bin/sh"], "resources": wanted, "securityContext": security}
        it["args"] = ["-c", "grep Cpus_allowed_list /proc/self/status | cut -f2 && sleep 1d"]
        if policies:
            it["resizePolicy"] = policy_of(policies)
        if is_init(container):
            it["restartPolicy"] = init_policy
        made["initContainers" if is_init(container) else "containers"].append(it)
    spec = {"os": {"name": "linux"}, "restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 0, **made}
    spec["securityContext"] = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def difference(before, after):
    """The strategic merge patch that makes `before` `after`: what is gone is null, what is the same is left out."""
    changed = {"initContainers": [], "containers": []}
    for name, wanted in after.items():
        parts = {}
        for part in ("requests", "limits"):
            old, new = before[name].get(part, {}), wanted.get(part, {})
            values = {key: new.get(key) for key in sorted({*old, *new}) if old.get(key) != new.get(key)}
            if values:
                parts[part] = values if new else None
        if parts:
            changed["initContainers" if is_init(name) else "containers"].append({"name": name, "resources": parts})
    patch = {part: each for part, each in changed.items() if each}
    for part, names in (("initContainers", filter(is_init, after)), ("containers", (name for name in after if not is_init(name)))):
        order = [{"name": name} for name in names]
        if order:
            patch[f"$setElementOrder/{part}"] = order
    return {"spec": patch}


UNITS = {"m": 0.001, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 10**3, "M": 10**6, "G": 10**9, "": 1}


def quantity(text, unit):
    """A quantity in multiples of a unit (`m`, `Mi`, nothing…), rounded down."""
    digits = text.rstrip("KMGikm")
    return int(float(digits) * UNITS[text[len(digits) :]] / UNITS[unit] + 1e-6)


def number(wanted, part, resource):
    """Thousandths of a processor, or bytes; 0 where nothing is asked for."""
    return quantity(wanted.get(part, {}).get(resource, "0"), "m" if resource == "cpu" else "")


def shares(wanted):
    """cpu.shares: of the request, or of the limit where only that is set."""
    milli = number(wanted, "requests", "cpu") or number(wanted, "limits", "cpu")
    return max(2, milli * 1024 // 1000)


def quotas(wanted):
    """Microseconds in 100 milliseconds; runc with systemd rounds to whole hundredths of a processor."""
    milli = number(wanted, "limits", "cpu")
    if not milli:
        return []
    return [max(1000, each * 100) for each in {milli, -(-milli // 10) * 10}]


def weights(wanted):
    """cpu.weight of the unified hierarchy: as the kubelet counts, and as newer runtimes do."""
    value = shares(wanted)
    power = math.log2(value)
    return [1 + (value - 2) * 9999 // 262142, math.ceil(10 ** ((power * power + 125 * power) / 612 - 7 / 34))]


UNIFIED = ("memory.max", "cpu.max", "cpu.weight")
SEPARATE = ("memory/memory.limit_in_bytes", "cpu/cpu.cfs_quota_us", "cpu/cpu.shares")
# First lines of files in the container's own cgroup, by the shell alone: with so little of a processor each program takes its time.
READ = """
cd /sys/fs/cgroup
if [ -e cgroup.controllers ]; then echo unified; files=$1; else echo separate; files=$2; fi
for file in $files /proc/1/oom_score_adj; do read -r line <$file; echo "$line"; done
"""


def cgroup_has(world, pod, containers):
    """Each container's own view of its limits says what was asked for. Gives how much each is to be spared of the OOM killer."""
    scores = {}
    for name, wanted in containers.items():
        said = world.exec(pod, "/bin/sh", "-c", READ, "sh", " ".join(UNIFIED), " ".join(SEPARATE), container=name)
        sort, found_memory, found_quota, found_shares, score = said.splitlines()
        scores[name] = int(score)
        memory, quota = number(wanted, "limits", "memory"), quotas(wanted)
        if sort == "unified":
            equal(found_memory, str(memory) if memory else "max", f"{name}'s memory.max")
            allowed = [f"{each} 100000" for each in quota] or ["max 100000"]
            check(found_quota in allowed, f"{name}'s cpu.max is {found_quota}, not one of {allowed}")
            check(int(found_shares) in weights(wanted), f"{name}'s cpu.weight is {found_shares}")
            continue
        if memory:
            equal(found_memory, str(memory), f"{name}'s memory limit")
        check(int(found_quota) in (quota or [-1]), f"{name}'s quota is {found_quota}, not one of {quota}")
        equal(int(found_shares), shares(wanted), f"{name}'s shares")
    return scores


def least_oom_score():
    """The least oom_score_adj that may be had here: some machines let nobody ask for less than there was."""
    with open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:
        before = file.read()
        try:
            file.write(b"-1000")
            file.write(before)
        except PermissionError:
            return int(before)
    return -1000


def oom_score(world, pod, name):
    """oom_score_adj of a container, by the quality of service of its Pod."""
    if pod["status"]["qosClass"] != "Burstable":
        return max({"Guaranteed": -997, "BestEffort": 1000}[pod["status"]["qosClass"]], least_oom_score())
    wanted = next(each["resources"] for each in all_containers(pod) if each["name"] == name)
    capacity = world.api.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")["status"]["capacity"]["memory"]
    score = 1000 - 1000 * number(wanted, "requests", "memory") // quantity(capacity, "")
    return 999 if score == 1000 else max(3, score)


def conditions(pod):
    return {condition["type"]: condition for condition in pod["status"].get("conditions", [])}


def all_containers(pod):
    return pod["spec"]["containers"] + pod["spec"].get("initContainers", [])


def all_statuses(pod):
    return pod["status"]["containerStatuses"] + pod["status"].get("initContainerStatuses", [])


def spec_has(pod, containers):
    equal({each["name"]: each["resources"] for each in all_containers(pod)}, containers, "the spec's resources")


def status_shows(pod, containers):
    """The statuses are in the order of the containers."""
    return [(each["name"], each.get("resources", {})) for each in all_statuses(pod)] == list(containers.items())


def restarts(pod):
    return {each["name"]: each["restartCount"] for each in all_statuses(pod)}


def resized(world, asked, containers, again=()):
    """Waits until the node has done what was asked for, and looks at all of it. `again` are the containers that restart once."""
    name, path = asked["metadata"]["name"], world.path("v1", "pods", asked["metadata"]["name"])

    def done():
        pod = world.api.get(path)
        known = conditions(pod)
        if known.get("PodResizePending", {}).get("reason") == "Infeasible":
            return None
        under_way = "PodResizePending" in known or "PodResizeInProgress" in known
        ready = known["Ready"]["status"] == "True"
        return pod if status_shows(pod, containers) and ready and not under_way else None

    pod = until(f"{name} is resized", done)
    scores = cgroup_has(world, name, containers)
    pod = world.api.get(path)
    check(status_shows(pod, containers), f"the status shows {all_statuses(pod)}")
    equal(restarts(pod), {each: count + (each in again) for each, count in restarts(asked).items()}, "restarts")
    for each, count in restarts(pod).items():
        if count:
            equal(scores[each], oom_score(world, pod, each), f"{each}'s oom_score_adj")
    check(not {"PodResizePending", "PodResizeInProgress"} & set(conditions(pod)), "a resize is still told of")
    return pod


def started(world, containers, policies=(), name="resize-test"):
    """A running Pod that has what it asked for, in the spec, the status and the kernel."""
    pod = world.run(restricted(name, containers, policies))
    spec_has(pod, containers)
    for container in all_containers(pod):
        equal(container.get("resizePolicy", []), policy_of(policies), "resizePolicy")
    check(status_shows(pod, containers), f"the status shows {all_statuses(pod)}")
    cgroup_has(world, name, containers)
    return pod


def patched(world, before, after, again=(), name="resize-test"):
    asked = world.api.patch(f"{world.path('v1', 'pods', name)}/resize", difference(before, after), kind=STRATEGIC)
    spec_has(asked, after)
    return resized(world, asked, after, again)


def there_and_back(world, before, after, back=True):
    started(world, before)
    patched(world, before, after)
    if back:
        patched(world, after, before)
    path = world.path("v1", "pods", "resize-test")
    world.api.delete(path)
    until("the Pod is gone", lambda: world.api.is_gone(path))


THREE = f"{CLASS} guaranteed pods with multiple containers 3 containers - "
ORIGINAL = guaranteed((CPU, MEMORY), (CPU, MEMORY), (CPU, MEMORY))


@conformance(f"{THREE}increase cpu & mem on c1, c2, decrease cpu & mem on c3 - net increase {SINCE}")
def net_increase(world):
    there_and_back(world, ORIGINAL, guaranteed((MORE_CPU, MORE_MEMORY), (MORE_CPU, MORE_MEMORY), (LESS_CPU, LESS_MEMORY)))


@conformance(f"{THREE}increase cpu & mem on c1, decrease cpu & mem on c2, c3 - net decrease {SINCE}")
def net_decrease(world):
    there_and_back(world, ORIGINAL, guaranteed((MORE_CPU, MORE_MEMORY), (LESS_CPU, LESS_MEMORY), (LESS_CPU, LESS_MEMORY)))


@conformance(f"{THREE}increase: CPU (c1,c3), memory (c2, c3) ; decrease: CPU (c2) {SINCE}")
def in_both_directions(world):
    there_and_back(world, ORIGINAL, guaranteed((MORE_CPU, MEMORY), (LESS_CPU, MORE_MEMORY), (MORE_CPU, MORE_MEMORY)))


@conformance(f"{CLASS} burstable pods - extended 6 containers - various operations performed (including adding limits and requests) {SINCE}")
def various_operations(world):
    before = burstable(
        resources(CPU),
        resources(memory=MEMORY),
        resources(CPU, MEMORY),
        resources(CPU),
        resources(memory=MEMORY),
    )
    after = burstable(
        resources(MORE_CPU, cpu_limit=MORE_CPU_LIMIT),
        resources(memory=LESS_MEMORY, memory_limit=MORE_MEMORY_LIMIT),
        resources(CPU, LESS_MEMORY),
        resources(LESS_CPU, MEMORY),
        resources(CPU, MORE_MEMORY),
    )
    # What was added cannot be taken away again.
    there_and_back(world, before, after, back=False)


@conformance(f"{CLASS} burstable pods - extended resize with equivalents {SINCE}")
def equivalents(world):
    # The kernel has the same for both: two thousandths are its least.
    there_and_back(world, burstable(resources(2, cpu_limit=10)), burstable(resources(1, cpu_limit=5)))


@conformance(f"{CLASS} resize pod via the replace endpoint {SINCE}")
def through_replace(world):
    before, after = burstable(resources(CPU, MEMORY)), burstable(resources(MORE_CPU, MORE_MEMORY))
    pod = started(world, before)
    equal(pod["metadata"]["generation"], 1, "generation of the new Pod")
    path = world.path("v1", "pods", "resize-test")
    pod = world.api.get(path)
    pod["spec"]["containers"][0]["resources"] = after["c1"]
    world.api.put(f"{path}/resize", pod)
    pod = world.api.get(path)
    spec_has(pod, after)
    equal(pod["metadata"]["generation"], 2, "generation behind the resize")
    resized(world, pod, after)
    until("the subresource shows the same Pod", lambda: world.api.get(path) == world.api.get(f"{path}/resize"))

"""Upstream's tests of node features that are on in v1.35 and no conformance yet: generations in conditions, rules for restarts,
hooks that sleep, names of hosts, environment from files, resources of whole Pods."""

import datetime

from pods import changed, said
from resize import number, quotas, resources, shares, weights
from world import IMAGE, MERGE, check, conformance, equal, until

GENERATION = "[sig-node] Pods Extended (pod generation) Pod Generation"


def conditions(pod):
    return {condition["type"]: condition for condition in pod["status"].get("conditions", [])}


@conformance(f"{GENERATION} pod rejected by kubelet should have updated generation and observedGeneration")
def generation_of_a_rejected_pod(world):
    node = next(node for node in world.api.get("/api/v1/nodes")["items"] if not node["spec"].get("unschedulable"))
    pod = world.pod("pod-out-of-cpu", container={"resources": {"requests": {"cpu": "1000000000000"}}})
    created = world.api.create(world.path("v1", "pods"), pod)
    path = world.path("v1", "pods", "pod-out-of-cpu")

    def unschedulable():
        known = conditions(world.api.get(path))
        return known if known.get("PodScheduled", {}).get("reason") == "Unschedulable" else None

    known = until("no node takes it", unschedulable)
    equal(list(known), ["PodScheduled"], "conditions")
    equal(known["PodScheduled"]["observedGeneration"], 1, "observedGeneration of the condition")
    binding = {"metadata": {"name": "pod-out-of-cpu", "uid": created["metadata"]["uid"]}}
    binding["target"] = {"kind": "Node", "name": node["metadata"]["name"]}
    world.api.create(f"{path}/binding", binding)

    def rejected():
        pod = world.api.get(path)
        return pod if pod["status"]["phase"] == "Failed" else None

    pod = until("the kubelet rejects it", rejected)
    equal(pod["status"]["reason"], "OutOfcpu", "reason")
    equal(pod["metadata"]["generation"], 1, "generation")
    equal(pod["status"]["observedGeneration"], 1, "observedGeneration")


@conformance(f"{GENERATION} pod observedGeneration field set in pod conditions")
def generation_in_conditions(world):
    path = world.path("v1", "pods", "pod-generation")
    world.api.create(world.path("v1", "pods"), world.pod("pod-generation", container={"image": "localhost/some-image-that-doesnt-exist"}))

    def all_observed(generation):
        kinds = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]

        def there():
            known = conditions(world.api.get(path))
            return all(known[kind].get("observedGeneration") == generation for kind in kinds)

        until(f"conditions of generation {generation}", there)

    all_observed(1)
    reasons = ("ErrImagePull", "ImagePullBackOff")
    until("the image is not there", lambda: world.api.get(path)["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] in reasons)
    changed(world, "pod-generation", lambda pod: pod["spec"]["containers"][0].update(image=IMAGE))
    all_observed(2)


RULES = "[sig-node] Pod Extended (container restart policy) Container Restart Rules"
# The exit code that restarts a container.
ON_42 = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]


def exits(world, code, pod_policy, **container):
    pod = world.pod("restarts", ["/bin/sh", "-c", f"exit {code}"], {"restartPolicy": pod_policy}, container=container)
    world.api.create(world.path("v1", "pods"), pod)
    path = world.path("v1", "pods", "restarts")
    return lambda: world.api.get(path)


def restarts(pod):
    return pod["status"]["containerStatuses"][0]["restartCount"]


def is_restarted(world, *args, **container):
    get = exits(world, *args, **container)
    until("a restart", lambda: restarts(get()) > 0)


def is_left(world, *args, **container):
    get = exits(world, *args, **container)
    until("the Pod ends", lambda: get()["status"]["phase"] in ("Succeeded", "Failed"))
    equal(restarts(get()), 0, "restarts")


@conformance(f"{RULES} should restart container on rule match")
def rule_matches(world):
    is_restarted(world, 42, "Never", restartPolicy="Never", restartPolicyRules=ON_42)


@conformance(f"{RULES} should not restart container on rule mismatch, container restart policy Never")
def rule_does_not_match(world):
    is_left(world, 1, "Never", restartPolicy="Never", restartPolicyRules=ON_42)


@conformance(f"{RULES} should restart container on container-level restart policy Never")
def container_is_never_restarted(world):
    is_left(world, 1, "Always", restartPolicy="Never")


@conformance(f"{RULES} should restart container on container-level restart policy Always")
def container_is_always_restarted(world):
    is_restarted(world, 1, "Never", restartPolicy="Always")


@conformance(f"{RULES} should restart container on pod-level restart policy Always when no container-level restart policy")
def policy_of_the_pod(world):
    is_restarted(world, 1, "Always")


SLEEP = "[sig-node] Lifecycle Sleep Hook when create a pod with lifecycle hook using sleep action"


def moment(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def slept(world, sleeps, grace, deletion_grace=None):
    """Seconds from a Pod's deletion to the end of its container, whose hook sleeps; times are those of the API, in whole seconds."""
    # A container that ends as soon as it is asked to: only its hook takes time.
    hook = {"lifecycle": {"preStop": {"sleep": {"seconds": sleeps}}}}
    command = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"]
    pod = world.pod("sleeps", command, {"terminationGracePeriodSeconds": grace}, container=hook)
    pod["metadata"]["finalizers"] = ["test/finalizer"]
    world.run(pod)
    path = world.path("v1", "pods", "sleeps")
    world.later(world.api.patch, path, {"metadata": {"finalizers": None}}, kind=MERGE)
    world.api.delete(path if deletion_grace is None else f"{path}?gracePeriodSeconds={deletion_grace}")
    # It is that of the deletion and the grace.
    ends = moment(world.api.get(path)["metadata"]["deletionTimestamp"])
    state = until("the container ends", lambda: world.api.get(path)["status"]["containerStatuses"][0]["state"].get("terminated"))
    return (moment(state["finishedAt"]) - ends).total_seconds() + (grace if deletion_grace is None else deletion_grace)


@conformance(f"{SLEEP} valid prestop hook using sleep action")
def hook_sleeps(world):
    seconds = slept(world, 6, 60)
    check(6 <= seconds <= 60, f"it took {seconds}")


@conformance(f"{SLEEP} reduce GracePeriodSeconds during runtime")
def hook_sleeps_no_longer_than_grace(world):
    seconds = slept(world, 100, 200, 6)
    check(6 <= seconds <= 100, f"it took {seconds}")


@conformance(f"{SLEEP} ignore terminated container")
def hook_of_an_ended_container(world):
    hook = {"lifecycle": {"preStop": {"sleep": {"seconds": 100}}}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 200}
    world.run(world.pod("ends", ["true"], spec, container=hook), "Succeeded")
    state = world.api.get(world.path("v1", "pods", "ends"))["status"]["containerStatuses"][0]["state"]["terminated"]
    check((moment(state["finishedAt"]) - moment(state["startedAt"])).total_seconds() < 100, f"the hook was run: {state}")


@conformance(f"{SLEEP} with a duration of zero seconds prestop hook using sleep action with zero duration")
def hook_sleeps_not_at_all(world):
    check(0 <= slept(world, 0, 100) < 100, "it took no longer than its grace")


HOST = "[sig-node] Override hostname of Pod a pod"


def host_names(world, override, **spec):
    command = ["sh", "-c", "echo $(hostname)';'$(hostname -f)';'"]
    equal(said(world, world.pod("named", command, {"hostnameOverride": override, **spec})).strip(), f"{override};{override};", "names")


@conformance(f"{HOST} has hostnameOverride field with value that is a valid DNS subdomain.")
def host_name_of_several_labels(world):
    host_names(world, "override.example.host")


@conformance(f"{HOST} with hostname and hostnameOverride fields will have hostnameOverride as hostname")
def host_name_twice(world):
    host_names(world, "override-host", hostname="custom-host")


@conformance(f"{HOST} with only hostnameOverride field will have hostnameOverride as hostname")
def host_name_alone(world):
    host_names(world, "override-host")


@conformance(f"{HOST} with subdomain and hostnameOverride fields will have hostnameOverride as hostname")
def host_name_and_subdomain(world):
    host_names(world, "override-host", subdomain="t")


@conformance(f"{HOST} with setHostnameAsFQDN, hostNetwork or a non-RFC1123 subdomain string will fail to be created")
def host_names_that_cannot_be(world):
    for spec in ({"setHostnameAsFQDN": True}, {"hostNetwork": True}, {"hostnameOverride": "Not-RFC1123"}):
        pod = world.pod("refused", spec={"hostnameOverride": "override-host", **spec})
        world.api.refuses(422, "POST", world.path("v1", "pods"), pod)


FILES = "[sig-node] FileKeyRef should"


def from_file(name, volume="config", path="config.env", **more):
    return {"name": name, "valueFrom": {"fileKeyRef": {"volumeName": volume, "path": path, "key": name, **more}}}


def with_file(world, values, containers, **spec):
    """A Pod whose first container writes a file of environment for the others: values stand in single quotes there."""
    write = " && ".join(f"""echo "{name}='{value}'" >>/data/config.env""" for name, value in values.items())
    mount = [{"name": "config", "mountPath": "/data"}]
    init = {"name": "setup-envfile", "image": IMAGE, "command": ["sh", "-c", write], "volumeMounts": mount}
    volumes = [{"name": "config", "emptyDir": {}}]
    pod = world.pod("from-file", spec={"initContainers": [init], "volumes": volumes, "restartPolicy": "Never", **spec})
    pod["spec"]["containers"] = [{"image": IMAGE, **container} for container in containers]
    return pod


SHOW = ["sh", "-c", "env | grep -E '^(CONFIG|EXISTING|MISSING)_' | sort"]


@conformance(f"{FILES} be consumable via FileKeyRef")
def environment_from_a_file(world):
    env = [from_file("CONFIG_1"), from_file("CONFIG_2")]
    pod = with_file(world, {"CONFIG_1": "value1", "CONFIG_2": "value2"}, [{"name": "main", "command": SHOW, "env": env}])
    equal(said(world, pod).split(), ["CONFIG_1=value1", "CONFIG_2=value2"], "environment")


@conformance(f"{FILES} be consumable by multiple containers")
def environment_of_several_containers(world):
    numbers = (1, 2, 3)
    containers = [{"name": f"container-{n}", "command": SHOW, "env": [from_file(f"CONFIG_{n}")]} for n in numbers]
    pod = with_file(world, {f"CONFIG_{n}": f"value{n}" for n in numbers}, containers)
    said(world, pod, "container-1")
    for n in numbers:
        equal(world.logs("from-file", f"container-{n}").split(), [f"CONFIG_{n}=value{n}"], f"environment of container-{n}")


@conformance(f"{FILES} handle optional keys")
def optional_environment_from_a_file(world):
    env = [from_file("EXISTING_KEY"), from_file("MISSING_KEY", optional=True)]
    pod = with_file(world, {"EXISTING_KEY": "existing_value"}, [{"name": "main", "command": SHOW, "env": env}])
    equal(said(world, pod).split(), ["EXISTING_KEY=existing_value"], "environment")


@conformance(f"{FILES} be consumable in postStart lifecycle hooks")
def environment_of_a_first_hook(world):
    hook = {"postStart": {"exec": {"command": ["sh", "-c", "echo PostStart: $CONFIG_1 >/tmp/said"]}}}
    command = ["sh", "-c", "while [ ! -s /tmp/said ]; do usleep 100000; done; cat /tmp/said"]
    pod = with_file(world, {"CONFIG_1": "hook_value"}, [{"name": "main", "command": command, "lifecycle": hook, "env": [from_file("CONFIG_1")]}])
    check("PostStart: hook_value" in said(world, pod), "the hook knows it")


@conformance(f"{FILES} be consumable in preStop lifecycle hooks")
def environment_of_a_last_hook(world):
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo PreStop: $CONFIG_1 >>/proc/1/fd/1 && sleep 10"]}}}
    command = ["sh", "-c", "trap 'sleep 30' TERM; while true; do sleep 1; done"]
    main = {"name": "main", "command": command, "lifecycle": hook, "env": [from_file("CONFIG_1")]}
    world.run(with_file(world, {"CONFIG_1": "hook_value"}, [main], terminationGracePeriodSeconds=60))
    path = world.path("v1", "pods", "from-file")
    world.api.delete(path)
    until("the hook speaks", lambda: "PreStop: hook_value" in world.logs("from-file"))
    world.later(world.api.delete, f"{path}?gracePeriodSeconds=0")


@conformance(f"{FILES} fail when volumeName does not exist, or volume is not emptyDir")
def environment_from_no_file(world):
    for volume in ("nonexistent-volume", "secret"):
        main = {"name": "main", "command": SHOW, "env": [from_file("CONFIG_1", volume)]}
        pod = with_file(world, {"CONFIG_1": "value1"}, [main])
        pod["spec"]["volumes"].append({"name": "secret", "secret": {"secretName": "any"}})
        world.api.refuses(422, "POST", world.path("v1", "pods"), pod)


@conformance(f"{FILES} fail when key does not exist in file")
def environment_without_its_key(world):
    main = {"name": "main", "command": SHOW, "env": [from_file("MISSING_KEY")]}
    world.api.create(world.path("v1", "pods"), with_file(world, {"CONFIG_1": "value1"}, [main]))
    path = world.path("v1", "pods", "from-file")

    def waits():
        return world.api.get(path)["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"

    until("the container is not made", waits)


LEVEL = "[sig-node] Pod Level Resources"
HUNDRED, BETWEEN = resources(100, 100, 100, 100), resources(50, 50, 100, 100)
# What the Pod asks for, what its containers do, its quality of service, and what it has in all.
SUMS = {
    "Guaranteed QoS pod with container resources, none of the pod's own": (
        None, [resources(50, 70, 50, 70), resources(70, 50, 70, 50)], "Guaranteed", resources(120, 120, 120, 120),
    ),
    "Guaranteed QoS pod, no container resources": (HUNDRED, [{}, {}], "Guaranteed", HUNDRED),
    "Guaranteed QoS pod with container resources": (HUNDRED, [BETWEEN, BETWEEN], "Guaranteed", HUNDRED),
    "Guaranteed QoS pod, 1 container with resources": (HUNDRED, [BETWEEN, {}], "Guaranteed", HUNDRED),
    "Burstable QoS pod, no container resources": (BETWEEN, [{}, {}], "Burstable", BETWEEN),
    "Burstable QoS pod with container resources": (
        BETWEEN, [resources(20, 20, 100, 100), resources(30, 30, 100, 100)], "Burstable", BETWEEN,
    ),
    "Burstable QoS pod, 1 container with resources": (BETWEEN, [resources(20, 50, 100, 100), {}], "Burstable", BETWEEN),
}


def cgroup_of_pod_has(world, pod, wanted):
    """The Pod's own cgroup, through a mount of all of them."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    unified = world.exec(name, "sh", "-c", "[ ! -e /cgroups/cgroup.controllers ] || echo yes", container="c1").strip()

    def value(part, file):
        # Groups of other Pods may go while this looks.
        find = f"find /cgroups/{'' if unified else part} -name '*{uid}*' -o -name '*{uid.replace('-', '_')}*' 2>/dev/null | head -n 1"
        return world.exec(name, "sh", "-c", f"head -n 1 $({find})/{file}", container="c1").strip()

    memory, quota = str(number(wanted, "limits", "memory")), quotas(wanted)
    if unified:
        equal(value("", "memory.max"), memory, "the Pod's memory")
        check(value("", "cpu.max") in [f"{each} 100000" for each in quota], "the Pod's quota")
        check(int(value("", "cpu.weight")) in weights(wanted), "the Pod's weight")
    else:
        equal(value("memory", "memory.limit_in_bytes"), memory, "the Pod's memory")
        check(int(value("cpu", "cpu.cfs_quota_us")) in quota, "the Pod's quota")
        equal(int(value("cpu", "cpu.shares")), shares(wanted), "the Pod's shares")


def of_a_whole_pod(name, own, containers, quality, total):
    @conformance(f"{LEVEL} {name}")
    def test(world):
        mount = [{"name": "cgroups", "mountPath": "/cgroups", "readOnly": True}]
        spec = {"volumes": [{"name": "cgroups", "hostPath": {"path": "/sys/fs/cgroup"}}]}
        if own:
            spec["resources"] = own
        pod = world.pod("level", spec=spec)
        main = {"image": IMAGE, "command": ["/bin/sh", "-c", "sleep 1d"], "volumeMounts": mount}
        pod["spec"]["containers"] = [{"name": f"c{index}", "resources": each, **main} for index, each in enumerate(containers, 1)]
        pod = world.run(pod)
        equal(pod["spec"].get("resources"), total if own else None, "the Pod's resources")
        equal(pod["status"]["qosClass"], quality, "quality of service")
        cgroup_of_pod_has(world, pod, total)


for each, sums in SUMS.items():
    of_a_whole_pod(each, *sums)

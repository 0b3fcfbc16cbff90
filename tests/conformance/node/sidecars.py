"""Upstream's tests of the order in which sidecars start and end (test/e2e_node/container_lifecycle_test.go)."""

from world import IMAGE, check, conformance, equal, until

LIFE = "[sig-node] Containers Lifecycle should"
SIDECARS = ["restartable-init-1", "restartable-init-2", "restartable-init-3"]
MAIN = "regular-1"
# It takes a second to end, so that the order of ends shows in the times of logs.
SIDECAR = "trap 'sleep 1; echo ends; exit 0' TERM; echo starts; while :; do usleep 100000; done"
HOOK = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >/proc/1/fd/1; sleep 1"]}}}


def pod_of(world, name, before=(), lifecycle=None, main="echo starts; sleep 1; echo ends"):
    def container(name, script, **more):
        return {"name": name, "image": IMAGE, "command": ["/bin/sh", "-c", script], **more}

    pod = world.pod(name, spec={"restartPolicy": "Never", "terminationGracePeriodSeconds": 30})
    more = {"lifecycle": lifecycle} if lifecycle else {}
    sidecars = [container(each, SIDECAR, restartPolicy="Always", **more) for each in SIDECARS]
    pod["spec"]["initContainers"] = [*before, *sidecars]
    pod["spec"]["containers"] = [container(MAIN, main)]
    return pod


def times(world, name):
    """When each container said what, in the order of the API's text: all of it is in the same zone, with as many digits."""
    found = {}
    for container in [*SIDECARS, MAIN]:
        for line in world.logs(name, container, timestamps="true").splitlines():
            moment, _, word = line.partition(" ")
            seconds, _, parts = moment.rstrip("Z").partition(".")
            found[container, word] = f"{seconds}.{parts:0<9}"
    return found


def in_order(found, word, *containers):
    moments = [found[container, word] for container in containers]
    equal(moments, sorted(moments), f"the order of {word} of {containers}")


def serialized(world, name, **more):
    world.run(pod_of(world, name, **more), "Succeeded")
    found = times(world, name)
    in_order(found, "starts", *SIDECARS, MAIN)
    in_order(found, "ends", MAIN, *reversed(SIDECARS))
    return found


@conformance(f"{LIFE} terminate sidecars in reverse order after all main containers have exited")
def reverse_order(world):
    serialized(world, "serialize-termination")


@conformance(f"{LIFE} call sidecar container PreStop hook simultaneously")
def hooks_at_once(world):
    found = serialized(world, "serialize-termination-simul-prestop", lifecycle=HOOK)
    hooks = [found[sidecar, "hook"] for sidecar in SIDECARS]
    check(min(hooks) > found[MAIN, "ends"], "no hook before the container that is served ended")
    check(max(hooks) < min(found[sidecar, "ends"] for sidecar in SIDECARS), "all hooks before the first sidecar ended")


@conformance(f"{LIFE} not hang in termination if terminated during initialization")
def ends_while_it_starts(world):
    first = {"name": "start-init", "image": IMAGE, "command": ["/bin/sh", "-c", "sleep 300"]}
    world.api.create(world.path("v1", "pods"), pod_of(world, "dont-hang-if-terminated-in-init", [first], HOOK))
    path = world.path("v1", "pods", "dont-hang-if-terminated-in-init")

    def starts():
        pod = world.api.get(path)
        equal(pod["status"]["phase"], "Pending", "phase")
        first = pod["status"]["initContainerStatuses"][0]
        return first["started"] and "running" in first["state"]

    until("the first init container runs", starts)
    with world.api.watch(world.path("v1", "pods"), fieldSelector="metadata.name=dont-hang-if-terminated-in-init") as watch:
        world.api.delete(f"{path}?gracePeriodSeconds=3")
        while True:
            event = watch.next()
            # Sidecars that never started are not started for the end.
            for each in event["object"]["status"].get("initContainerStatuses", [])[1:]:
                check("running" not in each["state"] and not each.get("started"), f"{each['name']} was started")
            if event["type"] == "DELETED":
                break

"""Conformance of Pods: their status, their generation, containers added to them, probes, users, sysctls and environment."""

from world import IMAGE, MERGE, STRATEGIC, Refused, check, conformance, equal, until

SINCE = "[MinimumKubeletVersion:1.34] [Conformance]"
GENERATION = "[sig-node] Pods Extended (pod generation) Pod Generation"


def changed(world, name, change):
    return world.api.change(world.path("v1", "pods", name), change)


def observed(world, name, generation):
    """Waits until the kubelet says that it has seen this generation."""
    path = world.path("v1", "pods", name)
    until(f"generation {generation} is observed", lambda: world.api.get(path)["status"].get("observedGeneration") == generation)


def said(world, pod, container="main"):
    """What a Pod that runs once writes; it has to succeed."""
    pod["spec"]["restartPolicy"] = "Never"
    world.run(pod, "Succeeded")
    return world.logs(pod["metadata"]["name"], container)


@conformance("[sig-node] Pods should patch a pod status [Conformance]")
def patch_status(world):
    pod = world.pod("pod-patch", labels={"e2e": "pod-patch"}, spec={"terminationGracePeriodSeconds": 1})
    world.run(pod)
    patch = {"metadata": {"annotations": {"patchedstatus": "true"}}, "status": {"message": "Patched by e2e test", "reason": "E2E"}}
    pod = world.api.patch(f"{world.path('v1', 'pods', 'pod-patch')}/status", patch, kind=MERGE)
    equal(pod["status"]["message"], "Patched by e2e test", "message")
    equal(pod["status"]["reason"], "E2E", "reason")


@conformance(f"{GENERATION} pod generation should start at 1 and increment per update {SINCE}")
def generation_counts(world):
    init = [{"name": "init-container", "image": IMAGE, "command": ["true"]}]
    pod = world.run(world.pod("pod-generation", spec={"initContainers": init}))
    equal(pod["metadata"]["generation"], 1, "generation of the new Pod")

    def tolerate(pod):
        # Those that every Pod has are left out here, and set again by admission.
        pod["spec"]["tolerations"] = [{"key": "foo-1", "operator": "Equal", "value": "bar", "effect": "NoSchedule"}]

    def image(part):
        def change(pod):
            pod["spec"][part][0]["image"] = "skiff.local/another:1"

        return change

    # Each change, and whether it counts.
    changes = [
        (lambda pod: None, False),
        (tolerate, True),
        (lambda pod: pod["spec"].update(activeDeadlineSeconds=5000), True),
        (image("containers"), True),
        (image("initContainers"), True),
        (lambda pod: pod["metadata"].update(annotations={"key": "value"}), False),
        (lambda pod: pod["metadata"].update(generation=1), False),
    ]
    wanted = 1
    for change, counts in changes:
        changed(world, "pod-generation", change)
        wanted += counts
        equal(world.api.get(world.path("v1", "pods", "pod-generation"))["metadata"]["generation"], wanted, "generation")
        observed(world, "pod-generation", wanted)


@conformance(f"{GENERATION} custom-set generation on new pods and graceful delete [Conformance]")
def generation_of_a_deleted_pod(world):
    pod = world.pod("pod-generation")
    pod["metadata"]["generation"] = 100
    pod = world.run(pod)
    equal(pod["metadata"]["generation"], 1, "generation of the new Pod")
    path = world.path("v1", "pods", "pod-generation")
    code, _, _ = world.api.answer("DELETE", f"{path}?gracePeriodSeconds=60")
    equal(code, 200, "code of the deletion")
    pod = world.api.get(path)
    equal(pod["metadata"]["generation"], 2, "generation of the Pod that ends")
    world.later(world.api.delete, f"{path}?gracePeriodSeconds=0")


@conformance(f"{GENERATION} issue 500 podspec updates and verify generation and observedGeneration eventually converge {SINCE}")
def generation_after_many_updates(world):
    world.run(world.pod("pod-generation", spec={"activeDeadlineSeconds": 5000}))

    def less(pod):
        pod["spec"]["activeDeadlineSeconds"] -= 1

    for _ in range(499):
        changed(world, "pod-generation", less)
    observed(world, "pod-generation", 500)
    equal(world.api.get(world.path("v1", "pods", "pod-generation"))["metadata"]["generation"], 500, "generation")


def with_debugger(world):
    """A Pod with an ephemeral container that runs, speaks and can be entered."""
    target = world.pod("target", container={"name": "test-container-1", "command": ["/bin/sleep"], "args": ["10000"]})
    pod = world.run(target)
    equal(pod["metadata"]["generation"], 1, "generation of the new Pod")
    debugger = {"name": "debugger", "image": IMAGE, "stdin": True, "tty": True}
    debugger["command"] = ["/bin/sh", "-c", "while true; do echo polo; sleep 2; done"]
    path = world.path("v1", "pods", "target")
    world.api.patch(f"{path}/ephemeralcontainers", {"spec": {"ephemeralContainers": [debugger]}}, kind=STRATEGIC)

    def runs():
        statuses = world.api.get(path)["status"].get("ephemeralContainerStatuses", [])
        return [each for each in statuses if each["name"] == "debugger" and "running" in each["state"]]

    until("the debugger runs", runs)
    equal(world.api.get(path)["metadata"]["generation"], 2, "generation behind the debugger")
    check("marco" in world.exec("target", "/bin/echo", "marco", container="debugger"), "the debugger answers")
    # The Pod is asked for its log without waiting by upstream; the first word may take a moment to get there.
    until("the debugger's log", lambda: "polo" in world.logs("target", "debugger"))
    return path


@conformance("[sig-node] Ephemeral Containers [NodeConformance] will start an ephemeral container in an existing pod [Conformance]")
def ephemeral_container(world):
    with_debugger(world)


@conformance("[sig-node] Ephemeral Containers [NodeConformance] should update the ephemeral containers in an existing pod [Conformance]")
def ephemeral_containers_through_update(world):
    path = with_debugger(world)
    equal(len(world.api.get(f"{path}/ephemeralcontainers")["spec"]["ephemeralContainers"]), 1, "ephemeral containers")
    second = {"name": "debugger2", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "terminationMessagePolicy": "File"}
    while True:
        pod = world.api.get(path)
        pod["spec"]["ephemeralContainers"].append(second)
        try:
            world.api.put(f"{path}/ephemeralcontainers", pod)
            break
        except Refused as refused:
            equal(refused.code, 409, refused.message)
    equal(len(world.api.get(f"{path}/ephemeralcontainers")["spec"]["ephemeralContainers"]), 2, "ephemeral containers")


# A gRPC server of the health service that is healthy whatever it is asked: it reads HTTP/2 frames up to the one with the
# message (type 0), then sends its settings, headers (`:status: 200`, `content-type: application/grpc`), the message SERVING and
# `grpc-status: 0` on the stream of that frame. Each answer is one line in its log.
HEALTHY = r"""
take() { dd bs=1 count="$1" 2>/dev/null; }
take 24 >/dev/null
while head=$(take 9 | od -An -v -tu1) && set -- $head && [ $# = 9 ]; do
  take $(($1 * 65536 + $2 * 256 + $3)) >/dev/null
  [ "$4" = 0 ] || continue
  id=$(printf '\\%03o\\%03o\\%03o\\%03o' "$6" "$7" "$8" "$9")
  printf '\000\000\000\004\000\000\000\000\000'
  printf "\000\000\024\001\004$id\210\017\020\020application/grpc"
  printf "\000\000\007\000\000$id\000\000\000\000\002\010\001"
  printf "\000\000\017\001\005$id\000\013grpc-status\0010"
  echo served >&2
done
"""


def grpc_pod(world, name, port, delay):
    """A container with the health service on 5000, and a liveness probe of a port."""
    serve = ["/bin/sh", "-c", 'printf %s "$1" >/tmp/healthy; exec nc -ll -p 5000 -e /bin/sh /tmp/healthy', "sh", HEALTHY]
    probe = {"grpc": {"port": port}, "initialDelaySeconds": delay, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1}
    ports = [{"containerPort": 5000}, {"containerPort": 8080}]
    return world.run(world.pod(name, serve, container={"livenessProbe": probe, "ports": ports}))


def restart_count(world, name):
    return world.api.get(world.path("v1", "pods", name))["status"]["containerStatuses"][0]["restartCount"]


@conformance("[sig-node] Probing container should *not* be restarted with a GRPC liveness probe [NodeConformance] [Conformance]")
def grpc_probe_that_succeeds(world):
    pod = grpc_pod(world, "test-grpc-healthy", 5000, 2)
    equal(pod["status"]["containerStatuses"][0]["restartCount"], 0, "restarts at the start")
    until("the probe has asked often", lambda: world.logs("test-grpc-healthy").count("served") >= 10)
    equal(restart_count(world, "test-grpc-healthy"), 0, "restarts")


@conformance("[sig-node] Probing container should be restarted with a GRPC liveness probe [NodeConformance] [Conformance]")
def grpc_probe_of_the_wrong_port(world):
    pod = grpc_pod(world, "test-grpc-unhealthy", 2333, 2)
    equal(pod["status"]["containerStatuses"][0]["restartCount"], 0, "restarts at the start")
    until("a restart", lambda: restart_count(world, "test-grpc-unhealthy") >= 1)


SYSCTLS = "[sig-node] Sysctls [LinuxOnly] [NodeConformance]"


@conformance(f"{SYSCTLS} should support sysctls [Environment:NotInUserNS] [Conformance]")
def sysctls(world):
    pod = world.pod("sysctl", ["/bin/sysctl", "kernel.shm_rmid_forced"])
    pod["spec"]["securityContext"] = {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}
    check("kernel.shm_rmid_forced = 1" in said(world, pod), "the sysctl in the container")


@conformance(f"{SYSCTLS} should reject invalid sysctls [Conformance]")
def invalid_sysctls(world):
    asked = [("foo-", "bar"), ("kernel.shmmax", "100000000"), ("safe-and-unsafe", "100000000"), ("bar..", "42")]
    pod = world.pod("sysctl")
    pod["spec"]["securityContext"] = {"sysctls": [{"name": name, "value": value} for name, value in asked]}
    message = world.api.refuses(422, "POST", world.path("v1", "pods"), pod)["message"]
    for wrong in ("foo-", "bar.."):
        check(f'Invalid value: "{wrong}"' in message, f"{wrong} in {message}")
    for right in ("safe-and-unsafe", "kernel.shmmax"):
        check(right not in message, f"no {right} in {message}")


def identity(world, name, pod_level, container_level=None):
    """What `id` says in a container."""
    pod = world.pod(name, ["sh", "-c", "id"], spec={"securityContext": pod_level})
    if container_level:
        pod["spec"]["containers"][0]["securityContext"] = container_level
    return said(world, pod)


USERS = "[sig-node] Security Context should support"


@conformance(f"{USERS} pod.Spec.SecurityContext.RunAsUser And pod.Spec.SecurityContext.RunAsGroup [LinuxOnly] [Conformance]")
def user_and_group_of_a_pod(world):
    who = identity(world, "of-pod", {"runAsUser": 1001, "runAsGroup": 2002})
    check("uid=1001" in who and "gid=2002" in who, who)


@conformance(f"{USERS} container.SecurityContext.RunAsUser And container.SecurityContext.RunAsGroup [LinuxOnly] [Conformance]")
def user_and_group_of_a_container(world):
    who = identity(world, "of-container", {"runAsUser": 1001, "runAsGroup": 2001}, {"runAsUser": 1002, "runAsGroup": 2002})
    check("uid=1002" in who and "gid=2002" in who, who)


CONTAINERS = "[sig-node] Containers should"


@conformance(f"{CONTAINERS} use the image defaults if command and args are blank [NodeConformance] [Conformance]")
def image_defaults(world):
    # Upstream asks its own image for what it says by itself. The shell that is the default of ours waits for words that never come.
    pod = world.pod("defaults", container={"stdin": True})
    del pod["spec"]["containers"][0]["command"]
    world.run(pod)
    equal(world.exec("defaults", "sh", "-c", r"tr '\0' ' ' </proc/1/cmdline").strip(), "sh", "the process")


@conformance(f"{CONTAINERS} be able to override the image's default arguments (container cmd) [NodeConformance] [Conformance]")
def override_arguments(world):
    pod = world.pod("arguments", container={"args": ["echo", "override", "arguments"]})
    del pod["spec"]["containers"][0]["command"]
    equal(said(world, pod).strip(), "override arguments", "output")


@conformance(f"{CONTAINERS} be able to override the image's default command (container entrypoint) [NodeConformance] [Conformance]")
def override_command(world):
    equal(said(world, world.pod("command", ["/bin/echo", "other command"])).strip(), "other command", "output")


@conformance(f"{CONTAINERS} be able to override the image's default command and arguments [NodeConformance] [Conformance]")
def override_both(world):
    pod = world.pod("both", ["/bin/echo"], container={"args": ["override", "arguments"]})
    equal(said(world, pod).strip(), "override arguments", "output")


@conformance("[sig-node] Downward API should provide hostIPs as an env var [NodeConformance] [Conformance]")
def host_ips(world):
    of = {"HOST_IP": "status.hostIP", "HOST_IPS": "status.hostIPs"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}} for name, path in of.items()]
    lines = said(world, world.pod("downward", ["sh", "-c", "env"], container={"env": env})).splitlines()
    status = world.api.get(world.path("v1", "pods", "downward"))["status"]
    check(status["hostIPs"] and status["hostIPs"][0]["ip"] == status["hostIP"], "hostIPs begin with hostIP")
    check(f"HOST_IP={status['hostIP']}" in lines, f"hostIP in {lines}")
    check(f"HOST_IPS={','.join(each['ip'] for each in status['hostIPs'])}" in lines, f"hostIPs in {lines}")


CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
RUNTIME = "[sig-node] RuntimeClass should"


def runtime_class(world, name, handler="test-handler", **fields):
    name = world.unique(name)
    world.api.create(CLASSES, {"metadata": {"name": name}, "handler": handler, **fields})
    return name


def pod_of_class(world, name):
    spec = {"runtimeClassName": name, "restartPolicy": "Never", "automountServiceAccountToken": False}
    pod = world.pod("", ["true"], spec=spec)
    pod["metadata"] = {"generateName": f"test-runtimeclass-{name}-"}
    return pod


def is_rejected(world, name):
    try:
        world.api.create(f"{world.path('v1', 'pods')}?dryRun=All", pod_of_class(world, name))
    except Refused as refused:
        equal(refused.code, 403, refused.message)
        return True
    return False


@conformance(f"{RUNTIME} reject a Pod requesting a non-existent RuntimeClass [NodeConformance] [Conformance]")
def unknown_runtime_class(world):
    check(is_rejected(world, f"{world.ns}-nonexistent"), "the Pod is rejected")


@conformance(f"{RUNTIME} reject a Pod requesting a deleted RuntimeClass [NodeConformance] [Conformance]")
def deleted_runtime_class(world):
    name = runtime_class(world, "delete-me", "runc")
    world.api.delete(f"{CLASSES}/{name}")
    until("the class is gone", lambda: world.api.is_gone(f"{CLASSES}/{name}"))
    until("its Pods are rejected", lambda: is_rejected(world, name))


def scheduled_with(world, **fields):
    """The one Pod of the namespace, once a node is chosen for it."""
    name = runtime_class(world, "preconfigured-handler", **fields)
    world.forget(f"{CLASSES}/{name}")
    # Caches of admission may be behind what was just created.
    created = until("the Pod is let in", lambda: world.api.create(world.path("v1", "pods"), pod_of_class(world, name)))

    def there():
        pods = world.api.get(world.path("v1", "pods"))["items"]
        return pods if pods and all(pod["spec"].get("nodeName") for pod in pods) else None

    pods = until("a node is chosen", there)
    equal([pod["metadata"]["name"] for pod in pods], [created["metadata"]["name"]], "Pods")
    return pods[0]


@conformance(f"{RUNTIME} schedule a Pod requesting a RuntimeClass without PodOverhead [NodeConformance] [Conformance]")
def runtime_class_without_overhead(world):
    check(not scheduled_with(world)["spec"].get("overhead"), "no overhead")


@conformance(f"{RUNTIME} schedule a Pod requesting a RuntimeClass and initialize its Overhead [NodeConformance] [Conformance]")
def runtime_class_with_overhead(world):
    overhead = {"cpu": "10m", "memory": "1Mi"}
    equal(scheduled_with(world, overhead={"podFixed": overhead})["spec"]["overhead"], overhead, "overhead")

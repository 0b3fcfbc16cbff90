"""Conformance of Services, of the ranges of their addresses, and of the addresses themselves."""

import secrets
import sys

from operations import condition, newer, revision, selected
from world import STRATEGIC, check, conformance, equal, until


@conformance("[sig-network] Services should complete a service status lifecycle [Conformance]")
def status_lifecycle(world):
    name, base = f"test-service-{secrets.token_hex(3)}", world.path("v1", "services")
    path, selector = f"{base}/{name}", "test-service-static=true"
    begun = world.api.get(selected("/api/v1/services", selector))["metadata"]["resourceVersion"]
    ports = [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 80}]
    spec = {"type": "LoadBalancer", "ports": ports, "loadBalancerClass": "example.com/internal-load-balancer"}
    world.api.create(base, {"metadata": {"name": name, "labels": {"test-service-static": "true"}}, "spec": spec})
    with world.api.watch(selected(base, selector), resourceVersion=begun) as watch:
        added = watch.until("ADDED", lambda one: one["metadata"]["name"] == name)
        equal(added["metadata"]["labels"], {"test-service-static": "true"}, "labels")
        listed = world.api.get(selected("/api/v1/services", selector))["items"]
        check(any(one["metadata"]["name"] == name for one in listed), "the Service is listed")
        equal(world.api.get(f"{path}/status")["status"].get("loadBalancer") or {}, {}, "the load balancer")

        ingress = [{"ip": "203.0.113.1"}]
        patch = {"metadata": {"annotations": {"patchedstatus": "true"}}, "status": {"loadBalancer": {"ingress": ingress}}}
        patched = world.api.patch(f"{path}/status", patch)
        equal(patched["metadata"]["annotations"].get("patchedstatus"), "true", "the annotation")
        equal([one["ip"] for one in patched["status"]["loadBalancer"]["ingress"]], ["203.0.113.1"], "the patched status")
        watch.until("MODIFIED", lambda one: one["metadata"].get("annotations", {}).get("patchedstatus") == "true")

        def update(value):
            added = {"type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "Set from e2e test"}
            value["status"].setdefault("conditions", []).append({"lastTransitionTime": None, **added})

        updated = world.api.change(path, update, at=f"{path}/status")
        found = condition(updated, "StatusUpdate")
        equal((found["reason"], found["message"]), ("E2E", "Set from e2e test"), "the updated condition")
        watch.until("MODIFIED", lambda one: condition(one, "StatusUpdate") is not None)

        patched = world.api.patch(path, {"metadata": {"labels": {"test-service": "patched"}}}, kind=STRATEGIC)
        equal(patched["metadata"]["labels"]["test-service"], "patched", "the label")
        watch.until("MODIFIED", lambda one: one["metadata"]["labels"].get("test-service") == "patched")
        world.api.delete(path)
        watch.until("DELETED", lambda one: one["metadata"]["name"] == name)
    listed = world.api.get(selected("/api/v1/services", selector))["items"]
    check(not any(one["metadata"]["name"] == name for one in listed), "the Service is gone")


@conformance("[sig-network] Services should delete a collection of services [Conformance]")
def collection(world):
    base = world.path("v1", "services")
    for name, value, port in (("e2e-svc-a", "delete", 8001), ("e2e-svc-b", "delete", 8002), ("e2e-svc-c", "keep", 8003)):
        spec = {"type": "ClusterIP", "ports": [{"name": "http", "protocol": "TCP", "port": port, "targetPort": port}]}
        world.api.create(base, {"metadata": {"name": name, "labels": {"e2e-test-service": value}}, "spec": spec})
    equal(len(world.api.get(base)["items"]), 3, "Services")
    world.api.delete(selected(base, "e2e-test-service=delete"))
    until("one is left", lambda: [one["metadata"]["name"] for one in world.api.get(base)["items"]] == ["e2e-svc-c"])


# Answers with its name at a port of TCP and of UDP. busybox has no server of UDP: the node's Python runs in the Pod.
BOTH = """
import socket, socketserver
class Stream(socketserver.StreamRequestHandler):
    def handle(self): self.wfile.write(b"multiprotocol")
class Datagram(socketserver.BaseRequestHandler):
    def handle(self): self.request[1].sendto(b"multiprotocol", self.client_address)
import threading
threading.Thread(target=socketserver.ThreadingTCPServer(("", 8080), Stream).serve_forever).start()
socketserver.ThreadingUDPServer(("", 8080), Datagram).serve_forever()
"""
# Says of each protocol whether the address answers by it.
PROBE = """
import socket, sys
for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:
    try:
        with socket.socket(socket.AF_INET, kind) as one:
            one.settimeout(2)
            one.connect((sys.argv[1], 80))
            if kind == socket.SOCK_DGRAM: one.send(b"hostname")
            print(one.recv(99).decode() == "multiprotocol", end=" ")
    except OSError:
        print(False, end=" ")
"""


def of_the_node(world, name, script, *args, labels=None, **spec):
    """A Pod in which the Python of this test runs, in the Pod's network."""
    command = ["chroot", "/host", sys.executable, "-c", script, *args]
    volumes = [{"name": "host", "hostPath": {"path": "/"}}]
    mounts = {"volumeMounts": [{"name": "host", "mountPath": "/host", "readOnly": True}]}
    return world.pod(name, command, spec={"volumes": volumes, **spec}, labels=labels, container=mounts)


@conformance("[sig-network] Services should serve endpoints on same port and different protocols [Conformance]")
def protocols(world):
    labels, path = {"app": "multiprotocol"}, world.path("v1", "services", "multiprotocol-test")
    tcp, udp = ({"name": f"{word.lower()}-port", "port": 80, "protocol": word, "targetPort": 8080} for word in ("TCP", "UDP"))
    body = {"metadata": {"name": "multiprotocol-test"}, "spec": {"selector": labels, "ports": [tcp, udp]}}
    address = world.api.create(world.path("v1", "services"), body)["spec"]["clusterIP"]
    world.run(of_the_node(world, "pod1", BOTH, labels=labels))
    probes = iter(range(1000))

    def answers(wanted):
        def asked():
            name = f"probe-{next(probes)}"
            world.run(of_the_node(world, name, PROBE, address, restartPolicy="Never"), phase="Succeeded")
            return world.logs(name).split() == [str(one) for one in wanted]

        until(f"it answers by TCP and UDP: {wanted}", asked)

    answers([True, True])
    world.api.change(path, lambda value: value["spec"].update(ports=[tcp]))
    answers([True, False])
    world.api.change(path, lambda value: value["spec"].update(ports=[udp]))
    answers([False, True])


@conformance("[sig-network] ServiceCIDR and IPAddress API should support ServiceCIDR API operations [Conformance]")
def ranges(world):
    base = "/apis/networking.k8s.io/v1/servicecidrs"
    default = world.api.get(f"{base}/kubernetes")
    status = world.api.get(f"{base}/kubernetes/status")
    equal((status["apiVersion"], status["kind"]), ("networking.k8s.io/v1", "ServiceCIDR"), "of /status")
    equal(status["metadata"]["uid"], default["metadata"]["uid"], "uid")
    check("kubernetes" in [one["metadata"]["name"] for one in world.api.get(base)["items"]], "the default is listed")
    with world.api.watch(base) as watch:
        watch.until("ADDED", lambda one: one["metadata"]["name"] == "kubernetes")


@conformance("[sig-network] ServiceCIDR and IPAddress API should support IPAddress API operations [Conformance]")
def addresses(world):
    base = "/apis/networking.k8s.io/v1/ipaddresses"
    parent = {"group": "mygroup", "resource": "myresources", "namespace": "foo", "name": "bar"}

    def create(name, kind):
        world.later(lambda: world.api.is_gone(f"{base}/{name}") or world.api.delete(f"{base}/{name}"))
        return world.api.create(base, {"metadata": {"name": name, "labels": {"type": kind}}, "spec": {"parentRef": parent}})

    created = create("255.255.255.255", "broadcast")
    revision(created)
    create("fe80::42:1dff:fe84:f9e2", "link-local")
    path = f"{base}/255.255.255.255"
    patched = world.api.patch(path, {"metadata": {"annotations": {"patched": "true"}}})
    equal(patched["metadata"]["annotations"].get("patched"), "true", "the annotation")
    newer(patched, created)
    updated = world.api.change(path, lambda value: value["metadata"]["annotations"].update(updated="true"))
    equal(updated["metadata"]["annotations"].get("updated"), "true", "the annotation")
    world.api.get(path)
    equal(len(world.api.get(selected(base, "type=broadcast"))["items"]), 1, "the selected list")
    with world.api.watch(selected(base, "type=broadcast")) as watch:
        equal(watch.until("ADDED")["metadata"]["name"], "255.255.255.255", "the watched one")
    world.api.delete(path)
    world.api.delete(selected(base, "type=link-local"))
    equal(world.api.get(selected(base, "type=link-local"))["items"], [], "the selected list")

"""Conformance of Endpoints and EndpointSlices: what the controllers make of Services and Pods, and what the proxy makes of slices."""

from operations import api_operations, selected
from world import STRATEGIC, check, conformance, equal, until

HTTPD = "mkdir -p /www && hostname >/www/hostname && exec httpd -f -p {} -h /www"
READ = r"printf 'GET /hostname HTTP/1.0\r\n\r\n' | nc -w 2 {} {} | tail -n 1"


def service(world, name, ports, **spec):
    return world.api.create(world.path("v1", "services"), {"metadata": {"name": name}, "spec": {"ports": ports, **spec}})


def slices(world, name):
    return world.api.get(selected(world.path("discovery.k8s.io/v1", "endpointslices"), f"kubernetes.io/service-name={name}"))["items"]


def unmatched(world):
    """A Service whose selector matches no Pod."""
    selector = {"does-not-match-anything": "endpoints-and-endpoint-slices-should-still-be-created"}
    service(world, "example-empty-selector", [{"name": "example", "port": 80, "protocol": "TCP"}], selector=selector)
    return world.path("v1", "services", "example-empty-selector"), world.path("v1", "endpoints", "example-empty-selector")


@conformance("[sig-network] EndpointSlice should create and delete EndpointSlices for a Service with a selector that matches no pods [Conformance]")
def slices_of_no_pods(world):
    path, _ = unmatched(world)
    found = until("the slice is there", lambda: slices(world, "example-empty-selector"))[0]
    equal(found["metadata"]["labels"].get("endpointslice.kubernetes.io/managed-by"), "endpointslice-controller.k8s.io", "managed by")
    equal(found.get("endpoints") or [], [], "endpoints")
    world.api.delete(path)
    until("the slice is gone with its Service", lambda: not slices(world, "example-empty-selector"))


@conformance("[sig-network] EndpointsController should create and delete Endpoints for a Service with a selector that matches no pods [Conformance]")
def endpoints_of_no_pods(world):
    path, endpoints = unmatched(world)
    until("the Endpoints are there", lambda: world.api.get(endpoints))
    world.api.delete(path)
    until("the Endpoints are gone with their Service", lambda: world.api.is_gone(endpoints))


def two_pods(world):
    """Two Pods that share a label and the name of a port, and the Services of one and of both."""
    def create(name, ports):
        labels = {name: "on", "shared12": "on"}
        world.api.create(world.path("v1", "pods"), world.pod(name, labels=labels, container={"ports": ports}))

    create("pod1", [{"name": "example-name", "containerPort": 3000}])
    create("pod2", [{"name": "example-name", "containerPort": 3001}, {"name": "other-port", "containerPort": 3002}])
    one = {"name": "example", "port": 80, "targetPort": 3000, "protocol": "TCP"}
    both = {"name": "http", "port": 80, "targetPort": "example-name", "protocol": "TCP"}
    services = [
        service(world, "example-int-port", [one], selector={"pod1": "on"}, publishNotReadyAddresses=True),
        service(world, "example-named-port", [both], selector={"shared12": "on"}, publishNotReadyAddresses=True),
    ]

    def with_address(name):
        pod = world.api.get(world.path("v1", "pods", name))
        return pod if pod["status"].get("podIPs") else None

    return services, [until(f"{name} has an address", lambda n=name: with_address(n)) for name in ("pod1", "pod2")]


def target(pod, reference):
    wanted = {"kind": "Pod", "namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    equal({name: (reference or {}).get(name) for name in wanted}, wanted, "targetRef")


def right_ports(svc, ports, pods):
    """The ports are those of the Service, with the number that each Pod behind them gives to a name."""
    equal(len(ports), len(svc["spec"]["ports"]), "ports")
    for found, wanted in zip(ports, svc["spec"]["ports"]):
        equal(found.get("name"), wanted["name"], "the port's name")
        if isinstance(wanted["targetPort"], int):
            equal((found["protocol"], found["port"]), (wanted["protocol"], wanted["targetPort"]), "the port")
        for pod in pods if isinstance(wanted["targetPort"], str) else []:
            numbers = [port["containerPort"] for port in pod["spec"]["containers"][0]["ports"] if port["name"] == wanted["targetPort"]]
            equal([found["port"]], numbers, "the number of the named port")


def expect_slices(world, svc, pods, at_least):
    by_address = {pod["status"]["podIP"]: pod for pod in pods}

    def there():
        found = slices(world, svc["metadata"]["name"])
        enough = sum(len(one.get("endpoints") or []) for one in found) >= len(pods)
        return found if len(found) >= at_least and enough else None

    seen = set()
    for one in until("the slices of the Pods", there):
        behind = []
        for endpoint in one.get("endpoints") or []:
            check(endpoint["addresses"] and endpoint["addresses"][0] in by_address, f"{endpoint} is of a Pod")
            behind.append(by_address[endpoint["addresses"][0]])
            target(behind[-1], endpoint.get("targetRef"))
            seen.add(endpoint["addresses"][0])
        right_ports(svc, one["ports"], behind)
    equal(seen, set(by_address), "addresses")


@conformance("[sig-network] EndpointSlice should create Endpoints and EndpointSlices for Pods matching a Service [Conformance]")
def slices_of_pods(world):
    (one, both), (pod1, pod2) = two_pods(world)
    expect_slices(world, one, [pod1], 1)
    expect_slices(world, both, [pod1, pod2], 2)
    for found in slices(world, "example-named-port"):
        world.api.delete(world.path("discovery.k8s.io/v1", "endpointslices", found["metadata"]["name"]))
    expect_slices(world, both, [pod1, pod2], 2)


def expect_endpoints(world, svc, pods, subsets):
    by_address = {pod["status"]["podIP"]: pod for pod in pods}

    def addresses(subset):
        return (subset.get("addresses") or []) + (subset.get("notReadyAddresses") or [])

    def there():
        found = world.api.get(world.path("v1", "endpoints", svc["metadata"]["name"]))
        parts = found.get("subsets") or []
        right = len(parts) == subsets and sum(len(addresses(part)) for part in parts) == len(pods)
        return found if right else None

    found = until("the Endpoints of the Pods", there)
    equal(found["metadata"]["name"], svc["metadata"]["name"], "the name")
    for subset in found["subsets"]:
        behind = []
        for address in addresses(subset):
            check(address["ip"] in by_address, f"{address} is of a Pod")
            behind.append(by_address[address["ip"]])
            target(behind[-1], address.get("targetRef"))
        right_ports(svc, subset["ports"], behind)


@conformance("[sig-network] EndpointsController should create Endpoints for Pods matching a Service [Conformance]")
def endpoints_of_pods(world):
    (one, both), (pod1, pod2) = two_pods(world)
    expect_endpoints(world, one, [pod1], 1)
    expect_endpoints(world, both, [pod1, pod2], 2)


@conformance("[sig-network] EndpointSlice should support creating EndpointSlice API operations [Conformance]")
def slice_operations(world):
    endpoints = [{"addresses": ["1.2.3.4", "5.6.7.8"]}, {"addresses": ["2.2.3.4", "6.6.7.8"]}]
    body = {"addressType": "IPv4", "endpoints": endpoints}
    api_operations(world, "discovery.k8s.io", "endpointslices", body, {}, {}, namespaced=True)


def custom_slices(world, parts):
    """A Service of two ports without selector, and one slice for each: `parts` are (name of the port, address, port)."""
    ports = [{"name": "port80", "port": 80, "protocol": "TCP"}, {"name": "port81", "port": 81, "protocol": "TCP"}]
    svc = service(world, "example-custom-endpoints", ports)
    labels = {"kubernetes.io/service-name": "example-custom-endpoints", "endpointslice.kubernetes.io/managed-by": f"e2e-test{world.ns}"}
    for name, address, port in parts:
        body = {
            "metadata": {"generateName": "e2e-custom-slice", "labels": labels}, "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": name, "port": port, "protocol": "TCP"}],
        }
        world.api.create(world.path("discovery.k8s.io/v1", "endpointslices"), body)
    return svc["spec"]["clusterIP"]


def serving(world, name, ports):
    """A Pod that says its name over HTTP at each of the ports; its address."""
    main, *others = [
        {"name": f"at-{port}", "image": "skiff.local/busybox:1", "command": ["sh", "-c", HTTPD.format(port)], "ports": [{"containerPort": port}]}
        for port in ports
    ]
    return world.run(world.pod(name, spec={"containers": [main, *others]}))["status"]["podIP"]


def says(world, address, wanted):
    """A Pod of the cluster reads each name at its port of the Service, as soon as the proxy knows of it."""
    asks = " && ".join(f'until [ "$({READ.format(address, port)})" = {name} ]; do sleep 0.2; done' for port, name in wanted)
    world.run(world.pod("pause-pod-0", ["sh", "-c", asks], spec={"restartPolicy": "Never"}), phase="Succeeded")


@conformance("[sig-network] EndpointSlice should support a Service with multiple ports specified in multiple EndpointSlices [Conformance]")
def ports_in_slices(world):
    pod = serving(world, "pod-handle-http-request", [8090, 9090])
    address = custom_slices(world, [("port80", pod, 8090), ("port81", pod, 9090)])
    says(world, address, [(80, "pod-handle-http-request"), (81, "pod-handle-http-request")])


@conformance("[sig-network] EndpointSlice should support a Service with multiple endpoint IPs specified in multiple EndpointSlices [Conformance]")
def addresses_in_slices(world):
    first, second = (serving(world, f"pod{number}-handle-http-request", [8090]) for number in (1, 2))
    address = custom_slices(world, [("port80", first, 8090), ("port81", second, 8090)])
    says(world, address, [(80, "pod1-handle-http-request"), (81, "pod2-handle-http-request")])


@conformance("[sig-network] EndpointSliceMirroring should mirror a custom Endpoints resource through create update and delete [Conformance]")
def mirroring(world):
    name = "example-custom-endpoints"
    service(world, name, [{"name": "example", "port": 80, "protocol": "TCP"}])
    path = world.path("v1", "endpoints", name)

    def endpoints(address):
        return {"metadata": {"name": name}, "subsets": [{"ports": [{"port": 80}], "addresses": [{"ip": address}]}]}

    def shape(one):
        return [port["port"] for port in one["ports"]], [endpoint["addresses"] for endpoint in one["endpoints"]]

    world.api.create(world.path("v1", "endpoints"), endpoints("10.1.2.3"))
    for one in until("the mirrored slice", lambda: slices(world, name)):
        equal(shape(one), ([80], [["10.1.2.3"]]), "the mirrored slice")
    # Without a resourceVersion: as upstream's test does, whoever wrote between.
    world.api.put(path, endpoints("10.2.3.4"))
    until("the mirrored change", lambda: [shape(one) for one in slices(world, name)] == [([80], [["10.2.3.4"]])])
    world.api.delete(path)
    until("the mirrored slice is gone", lambda: not slices(world, name))


@conformance("[sig-network] API Server should have Endpoints and EndpointSlices pointing to API Server [Conformance]")
def of_the_server(world):
    world.api.get("/api/v1/namespaces/default/services/kubernetes")
    subsets = world.api.get("/api/v1/namespaces/default/endpoints/kubernetes").get("subsets") or []
    check(subsets, "the Endpoints have a subset")
    path = selected("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", "kubernetes.io/service-name=kubernetes")
    found = [one for one in world.api.get(path)["items"] if one["addressType"] == "IPv4"]
    check(found, "there is a slice")
    both = [address["ip"] for part in subsets for address in (part.get("addresses") or []) + (part.get("notReadyAddresses") or [])]
    equal({address for one in found for endpoint in one["endpoints"] for address in endpoint["addresses"]}, set(both), "addresses")
    ports = {port["port"] for part in subsets for port in part["ports"]}
    equal({port["port"] for one in found for port in one["ports"]}, ports, "ports")


@conformance("[sig-network] Endpoints should test the lifecycle of an Endpoint [Conformance]")
def endpoints_lifecycle(world):
    selector, everywhere, base = "test-endpoint-static=true", "/api/v1/endpoints", world.path("v1", "endpoints")
    begun = world.api.get(selected(everywhere, selector))["metadata"]["resourceVersion"]
    subsets = [{"addresses": [{"ip": "10.0.0.24"}], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}]
    labels = {"test-endpoint-static": "true"}
    created = world.api.create(base, {"metadata": {"name": "testservice", "labels": labels}, "subsets": subsets})
    with world.api.watch(selected(base, selector), resourceVersion=begun) as watch:
        watch.until("ADDED")
        found = [one for one in world.api.get(selected(everywhere, selector))["items"] if one["metadata"]["namespace"] == world.ns]
        equal([one["metadata"]["name"] for one in found], ["testservice"], "the list")
        found[0]["metadata"]["labels"]["test-service"] = "updated"
        world.api.put(f"{base}/testservice", found[0])
        watch.until("MODIFIED", lambda one: one["metadata"]["labels"].get("test-service") == "updated")
        equal(world.api.get(f"{base}/testservice")["metadata"]["labels"]["test-service"], "updated", "the label")
        subsets = [{"addresses": [{"ip": "10.0.0.25"}], "ports": [{"name": "http-test", "port": 8080}]}]
        patch = {"metadata": {"labels": {"test-service": "patched"}}, "subsets": subsets}
        patched = world.api.patch(f"{base}/testservice", patch, kind=STRATEGIC)
        check(int(patched["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"]), "it is newer")
        watch.until("MODIFIED", lambda one: one["metadata"]["labels"].get("test-service") == "patched")
        found = world.api.get(f"{base}/testservice")
        equal(found["metadata"]["labels"]["test-service"], "patched", "the label")
        first = found["subsets"][0]
        port = first["ports"][0]
        equal((first["addresses"][0]["ip"], port["name"], port["port"]), ("10.0.0.25", "http-test", 8080), "the subset")
        world.api.delete(selected(base, selector))
        watch.until("DELETED")
    world.api.refuses(404, "GET", f"{base}/testservice")

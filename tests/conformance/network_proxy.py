"""Conformance of the proxy of the API server: every method reaches a Pod and a Service, and a path without its slash is sent on."""

import json

from world import conformance, equal, until

# Answers every request with its method, as HTTP: busybox's httpd knows three methods only.
ECHO = r"""
cat >/echo <<'END'
read -r method path version
while read -r line && [ ${#line} -gt 1 ]; do :; done
body="{\"Method\":\"$method\",\"Body\":\"foo\"}"
printf 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n' ${#body}
[ "$method" = HEAD ] || printf %s "$body"
END
exec nc -ll -p 80 -e sh /echo
"""
ALL = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"]


def echo(world, service, label):
    """A Pod that says how it was asked, and its Service; the paths of their proxies."""
    world.run(world.pod("agnhost", ["sh", "-c", ECHO], spec={"restartPolicy": "Never"}, labels=label))
    ports = [{"port": 80, "targetPort": 80, "protocol": "TCP"}]
    body = {"metadata": {"name": service, "labels": label}, "spec": {"ports": ports, "selector": label}}
    world.api.create(world.path("v1", "services"), body)
    return [world.path("v1", "pods", "agnhost/proxy"), world.path("v1", "services", f"{service}/proxy")]


def answered(world, method, path):
    """The request reached the server as it was, at last."""

    def right():
        code, _, text = world.api.answer(method, path)
        if code != 200:
            return None
        return method == "HEAD" or json.loads(text) == {"Method": method, "Body": "foo"}

    until(f"{method} {path}", right)


@conformance("[sig-network] Proxy version v1 A set of valid responses are returned for both pod and service ProxyWithPath [Conformance]")
def with_path(world):
    for proxy in echo(world, "test-service", {"test": "response"}):
        for method in ALL:
            answered(world, method, f"{proxy}/some/path/with/{method}")


@conformance("[sig-network] Proxy version v1 A set of valid responses are returned for both pod and service Proxy [Conformance]")
def without_path(world):
    proxies = echo(world, "e2e-proxy-test-service", {"e2e-test": "proxy-endpoints"})
    for proxy in proxies:
        for method in ("DELETE", "OPTIONS", "PATCH", "POST", "PUT"):
            answered(world, method, f"{proxy}?method={method}")
    for proxy in proxies:
        for method in ("GET", "HEAD"):
            code, _, _ = world.api.answer(method, f"{proxy}?method={method}")
            equal(code, 301, f"{method} {proxy}")

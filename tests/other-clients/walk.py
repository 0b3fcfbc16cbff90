"""The usual ways of programs with Python's client: objects, watches, pages, apply, scale, and refusals with all their causes."""

import json
import threading

import websocket
from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException

TEXT = "<&>\u2028é"

config.load_kube_config()
core, apps = client.CoreV1Api(), client.AppsV1Api()
namespace = core.create_namespace({"metadata": {"generateName": "py-"}}).metadata.name


def equal(found, expected):
    assert found == expected, f"{found!r} instead of {expected!r}"


made = core.create_namespaced_config_map(namespace, {"metadata": {"name": "a"}, "data": {"k": TEXT}})
equal(made.data["k"], TEXT)

events, since = [], made.metadata.resource_version
stream = watch.Watch()


def follow():
    listed = core.list_namespaced_config_map
    for event in stream.stream(listed, namespace, resource_version=since, field_selector="metadata.name=a", timeout_seconds=60):
        events.append(event["type"])
        if event["type"] == "DELETED":
            stream.stop()


follower = threading.Thread(target=follow)
follower.start()
core.patch_namespaced_config_map("a", namespace, {"data": {"k": "2"}})
core.delete_namespaced_config_map("a", namespace)
follower.join()
equal(events, ["MODIFIED", "DELETED"])

# The same in messages, as browsers have it: one for each event, until the time is over.
settings = client.Configuration.get_default_copy()
tls = {"ca_certs": settings.ssl_ca_cert, "certfile": settings.cert_file, "keyfile": settings.key_file}
path = f"/api/v1/namespaces/{namespace}/configmaps?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Da&resourceVersion={since}"
connection = websocket.create_connection(settings.host.replace("https:", "wss:") + path, sslopt=tls, origin="https://a.example", timeout=60)
events = []
while (received := connection.recv_data())[0] == websocket.ABNF.OPCODE_TEXT:
    events.append(json.loads(received[1])["type"])
equal((events, received[0]), (["MODIFIED", "DELETED"], websocket.ABNF.OPCODE_CLOSE))
try:
    websocket.create_connection(settings.host.replace("https:", "wss:") + path, sslopt=tls, suppress_origin=True, timeout=60)
    raise AssertionError("a watch without an origin was begun")
except websocket.WebSocketBadStatusException as refusal:
    equal(refusal.status_code, 403)

try:
    container = {"name": "c", "ports": [{"containerPort": 0}]}
    core.create_namespaced_pod(namespace, {"metadata": {"name": "A_"}, "spec": {"containers": [container]}})
    raise AssertionError("a Pod that is none was taken")
except ApiException as refusal:
    status = json.loads(refusal.body)
    fields = [cause["field"] for cause in status["details"]["causes"]]
    equal((refusal.status, status["reason"]), (422, "Invalid"))
    equal(fields, ["metadata.name", "spec.containers[0].image", "spec.containers[0].ports[0].containerPort"])

maps = dynamic.DynamicClient(client.ApiClient()).resources.get(api_version="v1", kind="ConfigMap")
applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "data": {"x": "1"}}
answer = maps.server_side_apply(namespace=namespace, name="s", field_manager="me", body=applied)
equal([(entry.manager, entry.operation) for entry in answer.metadata.managedFields], [("me", "Apply")])

for number in range(5):
    core.create_namespaced_secret(namespace, {"metadata": {"name": f"s{number}"}, "stringData": {"a": "b"}})
names, token = [], None
while True:
    page = core.list_namespaced_secret(namespace, limit=2, _continue=token)
    names += [secret.metadata.name for secret in page.items]
    token = page.metadata._continue
    if not token:
        break
equal(names, [f"s{number}" for number in range(5)])

template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
apps.create_namespaced_deployment(namespace, {"metadata": {"name": "d"}, "spec": spec})
apps.patch_namespaced_deployment_scale("d", namespace, {"spec": {"replicas": 2}})
equal(apps.read_namespaced_deployment_scale("d", namespace).spec.replicas, 2)

core.delete_collection_namespaced_secret(namespace)
core.delete_namespace(namespace)

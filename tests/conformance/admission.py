"""Conformance of admission: policies of expressions, and the match conditions of webhooks."""

import base64
import contextlib
import http.server
import json
import pathlib
import secrets
import ssl
import subprocess
import tempfile
import threading

from operations import api_operations
from world import Refused, check, conformance, equal, until

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
RULES = [{"operations": ["CREATE", "UPDATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}]


def replicated(world, kind, name, replicas):
    """A Deployment or ReplicaSet is created, and deleted again."""
    labels = {"app": "nginx"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "nginx", "image": "nginx:latest"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    world.api.create(world.path("apps/v1", kind), {"metadata": {"name": name, "labels": labels}, "spec": spec})
    world.api.delete(world.path("apps/v1", kind, name))


def policy(world, **spec):
    """A policy about Deployments of this world's namespace, bound, and seen to refuse one replica."""
    name = f"e2e-{secrets.token_hex(4)}"
    world.api.patch(f"/api/v1/namespaces/{world.ns}", {"metadata": {"labels": {name: "true"}}})
    ours = {"namespaceSelector": {"matchLabels": {name: "true"}}}
    constraints = {**ours, "resourceRules": RULES}
    body = {"metadata": {"name": f"{name}.policy.example.com"}, "spec": {"matchConstraints": constraints, **spec}}
    world.api.create(POLICIES, body)
    world.forget(f"{POLICIES}/{name}.policy.example.com")
    binding = {"policyName": f"{name}.policy.example.com", "matchResources": ours, "validationActions": ["Deny"]}
    world.api.create(BINDINGS, {"metadata": {"name": f"{name}.binding.example.com"}, "spec": binding})
    world.forget(f"{BINDINGS}/{name}.binding.example.com")

    def denied():
        try:
            replicated(world, "deployments", "marker-deployment", 1)
        except Refused as refused:
            equal((refused.code, refused.reason), (422, "Invalid"), refused.message)
            return refused.message
        return None

    return until("the marker is denied", denied)


@conformance("[sig-api-machinery] ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should validate against a Deployment [Conformance]")
def against_a_deployment(world):
    words = "'wants replicas > 1, got ' + object.spec.replicas"
    policy(world, validations=[{"expression": "object.spec.replicas > 1", "messageExpression": words}])
    replicated(world, "deployments", "replicated", 2)
    replicated(world, "replicasets", "non-replicated", 1)


@conformance("[sig-api-machinery] ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should allow expressions to refer variables. [Conformance]")
def variables(world):
    named = [
        {"name": "replicas", "expression": "object.spec.replicas"},
        {"name": "oddReplicas", "expression": "variables.replicas % 2 == 1"},
    ]
    policy(world, variables=named, validations=[{"expression": "variables.replicas > 1"}, {"expression": "variables.oddReplicas"}])
    replicated(world, "deployments", "replicated", 3)
    replicated(world, "replicasets", "non-replicated", 1)


@conformance("[sig-api-machinery] ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should support ValidatingAdmissionPolicy API operations [Conformance]")
def policy_operations(world):
    rules = [{"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}]
    spec = {"validations": [{"expression": "object.spec.replicas <= 100"}], "matchConstraints": {"resourceRules": rules}}
    api_operations(
        world, "admissionregistration.k8s.io", "validatingadmissionpolicies", {"spec": spec},
        {"spec": {"failurePolicy": "Ignore"}}, {"spec": {"failurePolicy": "Fail"}},
        status={"message": "Set from an e2e test", "lastTransitionTime": "2024-01-01T00:00:00Z"},
    )


@conformance("[sig-api-machinery] ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should support ValidatingAdmissionPolicyBinding API operations [Conformance]")
def binding_operations(world):
    spec = {"policyName": "replicalimit-policy.example.com", "validationActions": ["Deny"]}
    api_operations(
        world, "admissionregistration.k8s.io", "validatingadmissionpolicybindings", {"spec": spec},
        {"spec": {"validationActions": ["Warn"]}}, {"spec": {"validationActions": ["Deny"]}},
    )


def matching(kind, match):
    """A configuration of one webhook with these conditions, which nobody asks; its collection and its body."""
    plural = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations"
    hook = {
        "name": "webhook-with-match-conditions.k8s.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "clientConfig": {"service": {"namespace": "default", "name": "e2e-test-webhook", "path": "/always-deny", "port": 8443}},
        "namespaceSelector": {"matchLabels": {secrets.token_hex(8): "true"}}, "matchConditions": match,
    }
    return plural, {"metadata": {"name": f"e2e-{secrets.token_hex(4)}"}, "webhooks": [hook]}


def conditions_are_kept(world, kind):
    first = [{"name": "expression-1", "expression": "object.metadata.namespace == 'production'"}]
    base, body = matching(kind, first)
    path = f"{base}/{body['metadata']['name']}"
    world.api.create(base, body)
    world.forget(path)
    found = world.api.get(path)
    equal(found["webhooks"][0]["matchConditions"], first, "created")
    both = first + [{"name": "expression-2", "expression": "object.metadata.namespace == 'staging'"}]
    found["webhooks"][0]["matchConditions"] = both
    world.api.put(path, found)
    equal(world.api.get(path)["webhooks"][0]["matchConditions"], both, "updated")


def conditions_are_refused(world, kind):
    base, body = matching(kind, [{"name": "invalid-expression-1", "expression": "... [] bad expression"}])
    refused = world.api.refuses(422, "POST", base, body)
    check("compilation failed" in refused["message"], refused["message"])


@conformance("[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should be able to create and update validating webhook configurations with match conditions [Conformance]")
def validating_conditions(world):
    conditions_are_kept(world, "Validating")


@conformance("[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should be able to create and update mutating webhook configurations with match conditions [Conformance]")
def mutating_conditions(world):
    conditions_are_kept(world, "Mutating")


@conformance("[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should reject validating webhook configurations with invalid match conditions [Conformance]")
def wrong_validating_conditions(world):
    conditions_are_refused(world, "Validating")


@conformance("[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should reject mutating webhook configurations with invalid match conditions [Conformance]")
def wrong_mutating_conditions(world):
    conditions_are_refused(world, "Mutating")


@contextlib.contextmanager
def https_server(answer, name):
    """Serves `answer(path, body)` as JSON at a port of this machine, with a certificate for the name that is its own authority.

    Gives the port, and the authority as a `caBundle`.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = json.dumps(answer(self.path.partition("?")[0], body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    with tempfile.TemporaryDirectory() as folder:
        pair = [f"{folder}/tls.crt", f"{folder}/tls.key"]
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"]
        subprocess.run([*make, "-addext", f"subjectAltName=DNS:{name}", "-out", pair[0], "-keyout", pair[1]], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        authority = base64.b64encode(pathlib.Path(pair[0]).read_bytes()).decode()
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, authority
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def served_by(world, name, answer):
    """A Service of this world's namespace that leads to `answer`; gives the clientConfig of it, without a path."""
    with https_server(answer, f"{name}.{world.ns}.svc") as (port, authority):
        world.api.create(world.path("v1", "services"), {"metadata": {"name": name}, "spec": {"ports": [{"port": 8443, "targetPort": port}]}})
        # The API server's own address is one of the machine that this runs on.
        address = world.api.get("/api/v1/namespaces/default/endpoints/kubernetes")["subsets"][0]["addresses"][0]["ip"]
        family = "IPv6" if ":" in address else "IPv4"
        body = {
            "metadata": {"generateName": name, "labels": {"kubernetes.io/service-name": name}}, "addressType": family,
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}], "ports": [{"port": port, "protocol": "TCP"}],
        }
        world.api.create(world.path("discovery.k8s.io/v1", "endpointslices"), body)
        yield {"service": {"namespace": world.ns, "name": name, "port": 8443}, "caBundle": authority}


@conformance("[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate everything except 'skip-me' configmaps [Conformance]")
def all_but_one(world):
    def review(_, body):
        request = body["request"]
        answer = {"uid": request["uid"], "allowed": True}
        if (request["object"].get("data") or {}).get("mutation-start") == "yes":
            patch = [{"op": "add", "path": "/data/mutation-stage-1", "value": "yes"}]
            answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        return {"apiVersion": body["apiVersion"], "kind": body["kind"], "response": answer}

    label = f"e2e-{secrets.token_hex(4)}"
    world.api.patch(f"/api/v1/namespaces/{world.ns}", {"metadata": {"labels": {label: "true"}}})
    maps = world.path("v1", "configmaps")

    def mutated(name):
        made = world.api.create(maps, {"metadata": {"name": name}, "data": {"mutation-start": "yes"}})
        return made["data"]

    with served_by(world, "e2e-test-webhook", review) as client:
        client["service"]["path"] = "/mutating-configmaps"
        hook = {
            "name": "adding-configmap-data-stage-1.k8s.io", "sideEffects": "None", "admissionReviewVersions": ["v1", "v1beta1"],
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "clientConfig": client, "namespaceSelector": {"matchLabels": {label: "true"}},
            "matchConditions": [{"name": "skip-me", "expression": "object.metadata.name != 'skip-me'"}],
        }
        base = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        world.api.create(base, {"metadata": {"name": label}, "webhooks": [hook]})
        try:
            until("the webhook is asked", lambda: "mutation-stage-1" in mutated(f"marker-{secrets.token_hex(4)}"))
            equal(mutated("random-name"), {"mutation-start": "yes", "mutation-stage-1": "yes"}, "a ConfigMap")
            equal(mutated("skip-me"), {"mutation-start": "yes"}, "the one that is left alone")
        finally:
            # While the server still answers: what is created after its end must not wait for it.
            world.api.delete(f"{base}/{label}")

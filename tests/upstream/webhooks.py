"""A server of webhooks, each of which answers reviews in a way of its own, and the webhooks that are registered."""

import base64
import http.server
import json
import os
import pathlib
import ssl
import threading
import time

from compare import Count


def patch(*operations, kind="JSONPatch"):
    text = operations[0] if isinstance(operations[0], str) else json.dumps(operations)
    return {"allowed": True, "patch": base64.b64encode(text.encode()).decode(), **({"patchType": kind} if kind else {})}


def add(path, value):
    return {"op": "add", "path": path, "value": value}


def refused(**status):
    return {"allowed": False, "status": status}


# The answer of each webhook; a number is an HTTP status, text is the whole body.
ANSWERS = {
    "allow": {"allowed": True}, "deny": {"allowed": False}, "deny-message": refused(message="not today"),
    "deny-code": refused(message="a teapot", code=418), "deny-reason": refused(reason="NotFound", message="gone"),
    "deny-reason-only": refused(reason="because"), "deny-low": refused(code=200, message="fine"),
    "deny-details": refused(code=422, reason="Invalid", message="m", details={"name": "n", "causes": [{"field": "f", "message": "m"}]}),
    "warn": {"allowed": True, "warnings": ["one", "two\nlines", "é\"q\"", "x" * 300, "one", ""]},
    "warn-deny": {**refused(message="no"), "warnings": ["because"]},
    "warn-much": {"allowed": True, "warnings": [f"{i}{'y' * 3000}" for i in range(3)]},
    "notes": {"allowed": True, "auditAnnotations": {"one": "1", "tw o": "2", "a/b": "3"}},
    "notes-deny": {**refused(message="no"), "auditAnnotations": {"one": "1"}},
    "other-uid": {"allowed": True, "uid": "other"}, "no-response": None, "text": "<html>", "empty": "", "list": "[]",
    "other-kind": '{"kind":"Other","apiVersion":"admission.k8s.io/v1","response":{"allowed":true}}',
    "other-version": '{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","response":{"allowed":true}}',
    "no-kind": '{"response":{"allowed":true}}',
    "typed": '{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"allowed":"x"}}',
    "fails": 500, "missing": 404, "moved": 302, "busy": 429, "slow": {"allowed": True},
    "mark": patch(add("/spec/mark", "a")), "mark-twice": patch(add("/metadata/labels/marked", "b")),
    "relabel": patch(add("/spec/replicas", 3)),
    "patch-text": patch("no patch"), "patch-object": patch('{"op":"add"}'), "patch-op": patch({"op": "move", "path": "/a", "from": "/b"}),
    "patch-test": patch({"op": "test", "path": "/spec/replicas", "value": 77}), "patch-untyped": patch(add("/spec/mark", "a"), kind=None),
    "patch-type": patch(add("/spec/mark", "a"), kind="MergePatch"), "patch-schema": patch(add("/spec/replicas", "many")),
    "patch-unknown": patch(add("/spec/unknown", 1)), "patch-name": patch(add("/metadata/name", "other")),
    "patch-much": patch(add("/spec/replicas", 1000)),
    "patch-kind": patch(add("/kind", "Other")), "patch-deny": {**patch(add("/spec/mark", "a")), "allowed": False},
    "patch-meta": patch(add("/metadata/annotations", {"a b": "c"})), "patch-whole": patch({"op": "replace", "path": "", "value": {}}),
    "last-webhook": {"allowed": False},
}
# Those that go wrong are registered a second time, to be ignored then.
WRONG = ["text", "fails", "slow", "other-uid", "other-kind"]
VALIDATING = [name for name in ANSWERS if not name.startswith(("patch", "mark", "relabel"))]
VALIDATING = [name for name in VALIDATING if name != "last-webhook"] + ["last-webhook"]
MANY = [{"name": "a", "expression": "object.spec.replicas > 5"}]
FAILING = [{"name": "a", "expression": "object.spec.nothing == 1"}]
HOOKS = {
    "MutatingWebhookConfiguration": {
        **{name: {} for name in ANSWERS if name.startswith("patch")},
        "mutating-warn": {"answer": "warn"}, "mutating-deny": {"answer": "deny-message"}, "mutating-notes": {"answer": "notes"},
        "mark": {"label": "again", "reinvocationPolicy": "IfNeeded"}, "mark-twice": {"label": "again"},
        "relabel": {"label": "again", "reinvocationPolicy": "IfNeeded"},
        "patch-ignored": {"answer": "patch-text", "failurePolicy": "Ignore"},
    },
    "ValidatingWebhookConfiguration": {
        **{f"{name}-ignored": {"answer": name, "failurePolicy": "Ignore"} for name in WRONG},
        "first": {"label": "several", "answer": "deny-message"}, "second": {"label": "several", "answer": "warn-deny"},
        "matched": {"label": "hook-matched", "answer": "deny", "matchConditions": MANY},
        "match-fails": {"label": "hook-match-fails", "answer": "deny", "matchConditions": FAILING},
        "match-ignored": {"label": "hook-match-ignored", "answer": "deny", "matchConditions": FAILING, "failurePolicy": "Ignore"},
        "dry": {"label": "hook-dry", "answer": "deny", "sideEffects": "NoneOnDryRun"},
        "unreachable": {"port": 1}, "unreachable-ignored": {"port": 1, "failurePolicy": "Ignore"},
        **{name: {} for name in VALIDATING},
    },
}


class Webhooks:
    """The running server. The reviews that it gets are kept, with the name of the server that is being asked."""
    asked = []

    def __enter__(self):
        folder = pathlib.Path(os.environ["CERTIFICATES"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "hook.crt", folder / "hook.key")
        self.authority = base64.b64encode((folder / "hook.crt").read_bytes()).decode()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["HOOKS"])), Answers)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()

    def hook(self, name, answer=None, port=None, label=None, **more):
        url = f"https://127.0.0.1:{port or os.environ['HOOKS']}/{answer or name}"
        usual = {"sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "timeoutSeconds": 1}
        return {"name": f"{name}.example.com", "clientConfig": {"url": url, "caBundle": self.authority}, **usual, **more}


class Answers(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.path.split("?")[0][1:]
        Webhooks.asked.append((Count.asking, {"path": self.path, "agent": self.headers["User-Agent"].split("/")[0], **review}))
        answer = ANSWERS[name]
        if name == "slow":
            time.sleep(2)
        if isinstance(answer, dict):
            answer = json.dumps({**review, "request": None, "response": {"uid": review["request"]["uid"], **answer}})
        elif answer is None:
            answer = json.dumps({"kind": review["kind"], "apiVersion": review["apiVersion"]})
        code, text = (answer, "it is out of order") if isinstance(answer, int) else (200, answer)
        try:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())
        except OSError:
            # The one that asked has not waited.
            pass

"""The world of a conformance test: an API server that is asked over HTTPS, and a namespace of the test's own.

A test is a function under the name that upstream gives it:

    @conformance("[sig-apps] … [Conformance]")
    def …(world): …

It fails by raising. Nothing here sleeps for a time: what takes some is waited for by its condition.
"""

import base64
import contextlib
import http.client
import json
import secrets
import ssl
import tempfile
import threading
import time
import traceback
import urllib.parse

IMAGE = "skiff.local/busybox:1"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
# No condition takes longer on a busy machine.
PATIENCE = 120

TESTS = []


def conformance(name, serial=False):
    """`serial` are those that change the whole cluster: they run alone, behind the others."""

    def add(test):
        TESTS.append((name, test, serial))
        return test

    return add


class Refused(Exception):
    """An answer that is an error: its code, and the Status that tells of it."""

    def __init__(self, method, path, code, status):
        super().__init__(f"{method} {path}: {code} {status}")
        self.code, self.status = code, status

    @property
    def reason(self):
        return self.status.get("reason") if isinstance(self.status, dict) else None

    @property
    def message(self):
        return self.status.get("message", "") if isinstance(self.status, dict) else str(self.status)


def equal(found, wanted, what=""):
    if found != wanted:
        raise AssertionError(f"{what}: found {found!r}, wanted {wanted!r}")


def check(truth, what):
    if not truth:
        raise AssertionError(what)


def named(items):
    return sorted(item["metadata"]["name"] for item in items)


class Api:
    """A server, asked with the credentials of a kubeconfig or a token."""

    def __init__(self, host, port, context, token=None):
        self.host, self.port, self.context, self.token = host, port, context, token
        # A connection of each thread is kept for its next request: handshakes are most of a busy machine's work.
        self.kept = threading.local()

    @staticmethod
    def of_kubeconfig(path):
        # A kubeconfig of skiff is JSON, or YAML of one line for each value that is asked for here.
        text, values = open(path, encoding="utf8").read(), {}
        for line in text.splitlines():
            name, _, value = line.strip().lstrip("- ").partition(":")
            values.setdefault(name.strip().strip('"'), value.strip().strip('",'))
        url = urllib.parse.urlparse(values["server"])
        context = ssl.create_default_context(cadata=base64.b64decode(values["certificate-authority-data"]).decode())
        with tempfile.NamedTemporaryFile() as pair:
            for part in ("client-certificate-data", "client-key-data"):
                pair.write(base64.b64decode(values[part]) + b"\n")
            pair.flush()
            context.load_cert_chain(pair.name)
        api = Api(url.hostname, url.port, context)
        api.authority = base64.b64decode(values["certificate-authority-data"]).decode()
        return api

    def as_token(self, token):
        """The same server, for somebody else."""
        api = Api(self.host, self.port, ssl.create_default_context(cadata=self.authority), token)
        api.authority = self.authority
        return api

    def connect(self, patience=PATIENCE):
        return http.client.HTTPSConnection(self.host, self.port, context=self.context, timeout=patience)

    def open(self, method, path, body=None, kind="application/json", accept="application/json", headers=(), patience=PATIENCE, over=None):
        connection = over or self.connect(patience)
        sent = {"Accept": accept, "User-Agent": "e2e.test", **dict(headers)}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            body = body if isinstance(body, (str, bytes)) else json.dumps(body)
            sent["Content-Type"] = kind
        connection.request(method, path, body=body, headers=sent)
        return connection, connection.getresponse()

    def answer(self, method, path, *args, **options):
        """The code, the headers, and the text."""
        kept, self.kept.connection = getattr(self.kept, "connection", None), None
        try:
            connection, answer = self.open(method, path, *args, over=kept, **options)
        except (http.client.HTTPException, OSError):
            if not kept:
                raise
            # The server was tired of it in between.
            kept.close()
            connection, answer = self.open(method, path, *args, **options)
        got = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        if answer.will_close:
            connection.close()
        else:
            self.kept.connection = connection
        return got

    def ask(self, method, path, *args, **options):
        """The object that comes back. An error is raised."""
        code, _, text = self.answer(method, path, *args, **options)
        value = read_value(text)
        if code >= 300:
            raise Refused(method, path, code, value)
        return value

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def create(self, path, body, **options):
        return self.ask("POST", path, body, **options)

    def put(self, path, body, **options):
        return self.ask("PUT", path, body, **options)

    def patch(self, path, body, kind=MERGE, **options):
        return self.ask("PATCH", path, body, kind=kind, **options)

    def delete(self, path, body=None, **options):
        return self.ask("DELETE", path, body, **options)

    def refuses(self, code, method, path, *args, **options):
        """The request is refused with this code; gives the Status."""
        try:
            answer = self.ask(method, path, *args, **options)
        except Refused as refused:
            equal(refused.code, code, f"{method} {path}: {refused.message}")
            return refused.status
        raise AssertionError(f"{method} {path} should have been refused: {answer}")

    def is_gone(self, path):
        try:
            self.get(path)
        except Refused as refused:
            return refused.code == 404
        return False

    def change(self, path, change, at=None):
        """Reads, changes and writes (`at` a subresource) until nobody came between."""
        while True:
            value = self.get(path)
            change(value)
            try:
                return self.put(at or path, value)
            except Refused as refused:
                if refused.code != 409:
                    raise

    def stream(self, path, **query):
        """A command in a container over a WebSocket: what came on each channel, up to its end."""
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key}
        upgrade["Sec-WebSocket-Protocol"] = "v5.channel.k8s.io"
        path = f"{path}?{urllib.parse.urlencode(query, doseq=True)}"
        connection, answer = self.open("GET", path, headers=upgrade)
        with contextlib.closing(connection):
            if answer.status != 101:
                raise Refused("GET", path, answer.status, read_value(answer.read()))
            channels = {}
            while message := next_message(answer.fp):
                channels[message[0]] = channels.get(message[0], b"") + message[1:]
            return channels

    @contextlib.contextmanager
    def watch(self, path, **query):
        """What happens from a resourceVersion on, for `with`."""
        query = urllib.parse.urlencode({"watch": "true", **query})
        connection, answer = self.open("GET", f"{path}{'&' if '?' in path else '?'}{query}")
        with contextlib.closing(connection):
            if answer.status != 200:
                raise Refused("GET", path, answer.status, json.loads(answer.read()))
            yield Watch(answer)


class Watch:
    """The events of a watch in their order."""

    def __init__(self, answer):
        self.answer, self.seen = answer, []

    def next(self):
        line = self.answer.readline()
        check(line, f"the watch ended behind {self.seen}")
        event = json.loads(line)
        self.seen.append((event["type"], event["object"].get("metadata", {}).get("name")))
        return event

    def until(self, kind, matches=lambda _: True):
        """The next event of this type whose object matches; others before it are passed over."""
        begun = time.monotonic()
        while time.monotonic() - begun < PATIENCE:
            event = self.next()
            if event["type"] == kind and matches(event["object"]):
                return event["object"]
        raise AssertionError(f"no {kind} in time, only {self.seen}")


def read_value(text):
    """A body: JSON, or text where it is none."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text.decode("utf8", "replace")


def next_message(stream):
    """The next message of a WebSocket whose server does not split them; nothing when it ends."""
    head = stream.read(2)
    if len(head) < 2:
        return None
    length = head[1] & 127
    if length > 125:
        length = int.from_bytes(stream.read(2 if length == 126 else 8), "big")
    message = stream.read(length)
    # Text and binary messages count; a close ends, and so does whatever was not asked for.
    return message if head[0] & 15 in (1, 2) else None


def until(what, condition, patience=PATIENCE):
    """Waits for a condition, and gives what it gave. Being refused, or not finding what is not there yet, is no end."""
    begun, last = time.monotonic(), None
    while time.monotonic() - begun < patience:
        try:
            value = condition()
            if value:
                return value
            last = value
        except (Refused, KeyError, IndexError, TypeError) as error:
            last = error
        threading.Event().wait(0.1)
    raise AssertionError(f"not in time: {what} (last: {last!r})")


class World:
    """One test's share of the cluster."""

    def __init__(self, api):
        self.api, self.namespaces, self.cleanups = api, [], []
        self.ns = self.namespace()

    def namespace(self, labels=None):
        name = f"conformance-{secrets.token_hex(4)}"
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}})
        self.namespaces.append(name)
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        until("the namespace's account", lambda: self.api.get(account))
        return name

    def path(self, group_version, resource, name="", ns=None):
        """`v1` or `apps/v1`; of this world's namespace."""
        base = f"/api/{group_version}" if "/" not in group_version else f"/apis/{group_version}"
        return f"{base}/namespaces/{ns or self.ns}/{resource}" + (f"/{name}" if name else "")

    @staticmethod
    def unique(name):
        """A name that no other test has, for what is in no namespace."""
        return f"{name}-{secrets.token_hex(4)}"

    def later(self, cleanup, *args, **options):
        """Done when the test ends, however it ends."""
        self.cleanups.append(lambda: cleanup(*args, **options))

    def forget(self, path):
        """Deletes an object outside the namespace when the test ends."""
        self.later(self.api.delete, path)

    def pod(self, name, command=None, spec=None, labels=None, container=None):
        """A Pod of one container that runs a command of busybox, or sleeps; not created yet."""
        main = {"name": "main", "image": IMAGE, "command": command or ["sleep", "10000"], **(container or {})}
        whole = {"terminationGracePeriodSeconds": 0, "containers": [main], **(spec or {})}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": whole}

    def run(self, pod, phase="Running"):
        """Creates a Pod and waits for its phase."""
        self.api.create(self.path("v1", "pods"), pod)
        return self.phase(pod["metadata"]["name"], phase)

    def phase(self, name, phase):
        path = self.path("v1", "pods", name)

        def there():
            pod = self.api.get(path)
            ready = all(status["ready"] for status in pod["status"].get("containerStatuses", []))
            return pod if pod["status"].get("phase") == phase and (phase != "Running" or ready) else None

        return until(f"{name} is {phase}", there)

    def logs(self, name, container="main", **query):
        query = urllib.parse.urlencode({"container": container, **query})
        return self.api.answer("GET", f"{self.path('v1', 'pods', name)}/log?{query}")[2].decode("utf8", "replace")

    def exec(self, name, *command, container="main"):
        """What a command in a container says; its failure is an error."""
        path = f"{self.path('v1', 'pods', name)}/exec"
        channels = self.api.stream(path, container=container, command=command, stdout="true", stderr="true")
        status = read_value(channels.get(3, b""))
        said = (channels.get(1, b"") + channels.get(2, b"")).decode("utf8", "replace")
        check(status and status["status"] == "Success", f"{command} in {name}: {status} {said}")
        return channels.get(1, b"").decode("utf8", "replace")

    def end(self):
        for cleanup in reversed(self.cleanups):
            with contextlib.suppress(Refused):
                cleanup()
        for name in self.namespaces:
            with contextlib.suppress(Refused):
                self.api.delete(f"/api/v1/namespaces/{name}")


def run_one(api, test):
    """The trace of what went wrong, or nothing."""
    world = None
    try:
        world = World(api)
        test(world)
        return None
    except Exception:  # pylint: disable=broad-except
        return traceback.format_exc()
    finally:
        if world:
            world.end()

"""Two servers that are asked the same, and the differences of their answers."""

import copy
import http.client
import json
import os
import re
import ssl
import time

# These differ between any two servers.
OWN = {"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "time", "lastTransitionTime", "continue"}
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
# The end of a name that a server made.
RANDOM = re.compile(r"\b(g-|Q_)[b-z2-9]{5}\b")
# The next complaint of a list of them: upstream tells them in no order.
NEXT = re.compile(r", (?=[<.a-z][\w.\[\]<>\"]*: )")


class Server:
    def __init__(self, name, port):
        self.name, self.port, self.last = name, port, None

    def ask(self, method, path, body=None, kind="application/json", accept="application/json", headers=()):
        """A header that is None is not sent."""
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=20)
        usual = {"Authorization": f"Bearer {os.environ['TOKEN']}", "Accept": accept, "User-Agent": "compare"}
        if body is not None:
            body = body if isinstance(body, str) else json.dumps(body)
            usual["Content-Type"] = kind
        headers = {name: value for name, value in {**usual, **dict(headers)}.items() if value is not None}
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode("utf8", "replace")
        warnings = sorted(value for name, value in answer.getheaders() if name.lower() == "warning")
        try:
            self.last = json.loads(text)
        except ValueError:
            self.last = None
        return answer.status, answer.getheader("Content-Type"), warnings, text


OURS = Server("skiff", int(os.environ["OURS"]))
THEIRS = Server("upstream", int(os.environ["THEIRS"]))
BOTH = (OURS, THEIRS)


def plain(value, name=""):
    """The value without what differs between any two servers, lists of complaints in order."""
    if isinstance(value, dict):
        out = {key: f"<{key}>" if key in OWN and item else plain(item, key) for key, item in value.items()}
        if isinstance(out.get("causes"), list):
            out["causes"].sort(key=lambda cause: (str(cause.get("field")), str(cause.get("message"))))
        return out
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, str):
        value = RANDOM.sub(r"\1<random>", MOMENT.sub("<moment>", UID.sub("<uid>", value)))
        if name == "message" and " is invalid: [" in value:
            head, tail = value.split(" is invalid: [", 1)
            value = f"{head} is invalid: [{', '.join(sorted(NEXT.split(tail.rstrip(']'))))}]"
        if name == "message" and "strict decoding error: " in value:
            head, tail = value.split("strict decoding error: ", 1)
            value = f"{head}strict decoding error: {', '.join(sorted(tail.split(', ')))}"
    return value


def content(text):
    try:
        return plain(json.loads(text))
    except ValueError:
        return plain(text)


def differences(ours, theirs, place=""):
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from differences(ours.get(key, "absent"), theirs.get(key, "absent"), f"{place}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (left, right) in enumerate(zip(ours, theirs)):
            yield from differences(left, right, f"{place}[{i}]")
    elif ours != theirs:
        yield place, ours, theirs


class Count:
    asked = differ = 0
    # The numbers of those that were answered in another way.
    other = set()
    # The answers are not compared, since something else about the requests is.
    quiet = False
    # The name of the server that is being asked.
    asking = None


# Each request in words, by the place that is its Audit-ID.
ASKED = []


def show(words, found):
    """Prints what was found to differ, if anything was."""
    if found:
        Count.differ += 1
        print(f"≠ {words}")
    for place, ours, theirs in found[:12]:
        print(f"    {place}\n        skiff:    {json.dumps(ours)[:500]}\n        upstream: {json.dumps(theirs)[:500]}")


def ask(method, path, body=None, headers=(), **how):
    """Asks both, prints where they differ, and returns both codes. A body may be made for each server."""
    shown = "" if body is None else json.dumps(body(OURS) if callable(body) else body)[:300]
    ASKED.append(f"{method} {path(OURS) if callable(path) else path} {how or ''} {headers or ''} {shown}")
    how["headers"] = {"Audit-ID": f"asked-{Count.asked}", **dict(headers)}
    answers = []
    for server in BOTH:
        Count.asking = server.name
        given = copy.deepcopy(body(server) if callable(body) else body)
        try:
            answers.append(server.ask(method, path(server) if callable(path) else path, given, **how))
        except (OSError, http.client.HTTPException) as error:
            answers.append((0, None, [], repr(error)))
    Count.asked += 1
    (code, kind, warnings, text), (their_code, their_kind, their_warnings, their_text) = answers
    found = list(differences([code, kind, warnings], [their_code, their_kind, their_warnings], "head"))
    found += differences(content(text), content(their_text))
    if found:
        Count.other.add(Count.asked - 1)
    if not Count.quiet:
        show(ASKED[-1], found)
    return code, their_code


def serve(definition):
    """Makes a definition on both servers and waits until they serve it; False where one refuses it."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    if ask("POST", path, definition) != (201, 201):
        return False
    spec = definition["spec"]
    served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    for server in BOTH:
        deadline = time.monotonic() + 30
        while server.ask("GET", served)[0] != 200 and time.monotonic() < deadline:
            time.sleep(0.05)
    return True


def definition(name, schema, **version):
    """A definition of the group `compared.example.com` with one version."""
    one = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}
    names = {"plural": f"{name}s", "singular": name, "kind": name.title(), "listKind": f"{name.title()}List"}
    spec = {"group": "compared.example.com", "scope": "Namespaced", "names": names, "versions": [one]}
    metadata = {"name": f"{name}s.compared.example.com"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec}


def end():
    print(f"{Count.asked} requests, {Count.differ} answered in another way")

"""The audit events of requests that both servers get: those of `requests.py`, and some more."""

import json
import os
import re
import sys
import time

import requests
from compare import ASKED, OURS, Count, ask, differences, end, plain, show
from requests import ALL, APPLY, GROUP, JSON, MERGE, case

STAGES = ["requestReceivedTimestamp", "stageTimestamp"]
# A request whose events are the last ones of a log.
LAST = "/apis/last.example.com"


def events(log):
    """The events of each request that was asked here, by its number."""
    found = {}
    for line in open(log):
        event = json.loads(line)
        number = event["auditID"].removeprefix("asked-")
        if number != event["auditID"]:
            event = {key: value for key, value in event.items() if key not in STAGES}
            # A slow request says where its time went.
            notes = event.get("annotations", {})
            event["annotations"] = {key: text for key, text in notes.items() if not key.startswith("apiserver.latency")}
            event["requestURI"] = re.sub("continue=[^&]*", "continue=<continue>", event["requestURI"])
            found.setdefault(int(number), []).append(plain(event))
    return found


def compared():
    ask("GET", LAST)
    logs = [os.environ["OUR_AUDIT"], os.environ["THEIR_AUDIT"]]
    deadline = time.monotonic() + 30
    while not all(len(events(log).get(Count.asked - 1, [])) == 2 for log in logs):
        if time.monotonic() > deadline:
            sys.exit("the last request is not in both logs")
        time.sleep(0.2)
    ours, theirs = map(events, logs)
    for number, words in enumerate(ASKED):
        left, right = ours.get(number, []), theirs.get(number, [])
        if number in Count.other:
            # These answers are for `requests.py` to compare.
            for event in left + right:
                event.pop("responseObject", None)
                event["responseStatus"] = event.get("responseStatus", {}).get("code")
        stages = [[event["stage"] for event in of] for of in (left, right)]
        found = [("stages", *stages)] if stages[0] != stages[1] else list(differences(left, right))
        show(words, found)


def users():
    jane = {"Impersonate-User": "jane", "Impersonate-Group": "dev", "Impersonate-Uid": "7", "Impersonate-Extra-Some%2fKey": "v"}
    for headers in (
        {"Authorization": "Bearer wrong"}, {"Authorization": None}, {"Authorization": "Basic YTpi"}, jane,
        {"Impersonate-Group": "dev"}, {"Impersonate-User": "quiet"}, {"Impersonate-User": "system:serviceaccount:default:x"},
        {"X-Forwarded-For": "10.1.1.1, x, 10.2.2.2", "X-Real-Ip": "10.3.3.3"}, {"User-Agent": "x" * 1100}, {"User-Agent": None}):
        for path in (f"{ALL}/a", "/version", f"{ALL}?watch=1&timeoutSeconds=1"):
            ask("GET", path, headers=headers)
        ask("POST", ALL, case("b"), headers=headers)


def paths():
    odd = ["/", "/api", "/apis", "/healthz", "/livez/ping", "/version", "/none", "/openapi/v3", "/metrics", "/readyz?verbose", "//apis",
        "/apis/none.example.com/v1", f"{GROUP}/nothings", f"{GROUP}/namespaces/default/nothings/a", f"{ALL}/a/none", f"{ALL}/a/status/x",
        "/apis/compared.example.com/v2/namespaces/default/cases", f"{GROUP}/watch/namespaces/default/cases?timeoutSeconds=1",
        f"{GROUP}/watch/namespaces/default/cases/a?timeoutSeconds=1", f"{GROUP}/proxy/namespaces/default/cases/a",
        f"{ALL}/%61", f"{ALL}/a%2Fb", f"{ALL}/A_B", f"{ALL}?fieldSelector=metadata.name%3Da", f"{ALL}/a?watch=1&timeoutSeconds=1",
        f"{ALL}?fieldSelector=metadata.name%3Da,metadata.namespace%3Ddefault&labelSelector=a", f"{ALL}?fieldSelector=metadata.name%3DA_B",
        f"{GROUP}/cases?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Da", f"{ALL}?watch=1&resourceVersion=x",
        f"{ALL}?watch=1&timeoutSeconds=1&labelSelector=a%20b", f"{ALL}?timeout=x", f"{ALL}?timeout=-1s", f"{ALL}?timeout=9h",
        f"{ALL}?timeout=0s", f"{ALL}?pretty=true", f"{GROUP}/namespaces/none/cases", "/apis/compared.example.com/v1/namespaces/default"]
    for path in odd:
        ask("GET", path)
        ask("HEAD", path)
    for method in ("OPTIONS", "TRACE", "FOO", "PUT", "PATCH", "POST"):
        for path in ("/version", "/none", ALL, f"{ALL}/a", f"{ALL}/a/status"):
            ask(method, path)
            ask(method, path, case("a"))
    kinds = ["application/vnd.kubernetes.protobuf", "application/yaml", "application/cbor", f"{JSON};as=Table;v=v1;g=meta.k8s.io"]
    kinds += [f"{kind};stream=watch" for kind in kinds] + [f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "text/plain"]
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for kind in kinds:
        for path in (definitions, f"{definitions}/cases.compared.example.com", ALL, f"{ALL}/none", f"{ALL}?watch=1&timeoutSeconds=1"):
            ask("GET", path, accept=kind)
        ask("POST", f"{ALL}?dryRun=All", case("q"), accept=kind)
        ask("DELETE", f"{ALL}/none", accept=kind)


def changes():
    for namespace in ("default", "meta", "asked", "bare"):
        of = f"{GROUP}/namespaces/{namespace}/cases"
        for query in ("", "?dryRun=All", "?fieldValidation=Strict"):
            ask("POST", f"{of}{query}", case("one", {"name": "abc", "unknown": 1}, labels={"a": "b"}))
            ask("POST", f"{of}{query}", {**case("", annotations={"a": "b"}), "metadata": {"generateName": "g-"}})
            ask("POST", f"{of}{query}", case("two", {"name": "BAD"}))
        ask("PUT", f"{of}/one", case("one", uid="x"))
        ask("PUT", f"{of}/one", lambda server: server.ask("GET", f"{of}/one") and server.last)
        ask("PUT", f"{of}/one/status", lambda server: {**(server.last or {}), "status": {"phase": "x"}})
        ask("PUT", f"{of}/new", case("new"))
        ask("PATCH", f"{of}/one", {"spec": {"replicas": 3}}, kind=MERGE)
        ask("PATCH", f"{of}/one/status", {"status": {"phase": "y"}}, kind=MERGE)
        ask("PATCH", f"{of}/one", json.dumps(case("one")), kind="application/apply-patch+json")
        ask("PATCH", f"{of}/one?fieldManager=m&force=true", json.dumps(case("one")), kind=APPLY)
        ask("PATCH", f"{of}/one?fieldManager=m", 'x: "', kind=APPLY)
        ask("PATCH", f"{of}/one", {"spec": {"replicas": 3}}, kind="application/strategic-merge-patch+json")
        ask("PATCH", f"{of}/one", {"spec": {"replicas": 3}}, kind="text/plain")
        ask("POST", of, case("three"), kind="text/plain")
        ask("POST", of, '{"a":"' + "x" * (4 << 20) + '"}')
        ask("PATCH", f"{of}/one", '{"a":"' + "x" * (4 << 20) + '"}', kind=MERGE)
        ask("GET", of)
        ask("GET", of, accept=f"{JSON};as=Table;v=v1;g=meta.k8s.io")
        ask("GET", f"{of}/one")
        options = {"kind": "DeleteOptions", "apiVersion": "v1"}
        for body in ({**options, "dryRun": ["All"]}, {**options, "preconditions": {"uid": "x"}}, {"propagationPolicy": "Foreground"},
                {**options, "apiVersion": "compared.example.com/v1"}, {"kind": "Other", "apiVersion": "v1"}, {"gracePeriodSeconds": 0}):
            ask("DELETE", f"{of}/one?dryRun=All", body)
            ask("DELETE", f"{of}?labelSelector=none", body)
        ask("DELETE", f"{of}?dryRun=All")
        ask("DELETE", f"{of}?fieldSelector=metadata.name%3Done")
        ask("DELETE", f"{of}/one?gracePeriodSeconds=5&propagationPolicy=Background")
        ask("DELETE", of)


if __name__ == "__main__":
    Count.quiet = True
    for namespace in ("meta", "asked", "bare"):
        OURS.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    requests.everything()
    ask("POST", ALL, case("a"))
    for part in (users, paths, changes):
        part()
    compared()
    end()

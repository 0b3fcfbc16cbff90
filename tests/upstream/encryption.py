"""Both servers with the same keys: each reads what the other has written, which is put into its etcd, and both write it in the
same form.

`encryption.py write PLUGIN` prints the configuration for `encryption.py written`, which runs under it; `rewrite` and `rewritten` are
the same after the keys were changed. `wrong FOLDER` writes configurations that no server takes."""

import base64
import json
import os
import pathlib
import re
import sys
import urllib.request

from compare import BOTH, OURS, THEIRS, Count, ask, definition, differences, end, serve, show
from requests import MERGE

GROUP = "/apis/compared.example.com/v1/namespaces/default"
KEY = "/registry/compared.example.com/{}s/default/{}"
FORM = re.compile(rb"k8s:enc:[a-z]+:v\d:[^:]+:|\{")
NAMES = [server.name for server in BOTH]
SECRETS = {"k1": b"1" * 32, "k2": b"2" * 32}
IDENTITY = {"identity": {}}


def keys(sort, *names):
    return {sort: {"keys": [{"name": name, "secret": base64.b64encode(SECRETS[name]).decode()} for name in names]}}


def providers(plugin):
    """The providers of each kind before and after the change."""
    kms = {"kms": {"apiVersion": "v2", "name": "turning", "endpoint": f"unix://{plugin}"}}
    found = {sort: ([keys(sort, "k1")], [keys(sort, "k2", "k1")]) for sort in ("aescbc", "aesgcm", "secretbox")}
    return {
        **found,
        "identity": ([IDENTITY], [keys("secretbox", "k1"), IDENTITY]),
        "mixed": ([IDENTITY, keys("aesgcm", "k1")], [keys("aesgcm", "k1"), IDENTITY]),
        "kms": ([kms], [keys("aescbc", "k1"), kms]),
        "lost": ([keys("aesgcm", "k1")], [keys("aesgcm", "k2")]),
        "none": ([keys("aesgcm", "k1")], [IDENTITY]),
    }


def configuration(rules):
    return {"kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1", "resources": rules}


def chosen(plugin, turn):
    of = providers(plugin).items()
    return configuration([{"resources": [f"{kind}s.compared.example.com"], "providers": turns[turn]} for kind, turns in of])


def etcd(server, method, **body):
    body = {key: base64.b64encode(part).decode() for key, part in body.items()}
    url = os.environ["OUR_ETCD" if server is OURS else "ETCD"]
    return json.load(urllib.request.urlopen(f"{url}/v3/kv/{method}", json.dumps(body).encode())).get("kvs", [])


def held(server, kind, name):
    """An object as it lies in a server's etcd."""
    found = etcd(server, "range", key=KEY.format(kind, name).encode())
    return base64.b64decode(found[0]["value"]) if found else b""


def stored(kind, name):
    """The form in which a server's etcd has the object that it made."""
    server = THEIRS if name == THEIRS.name else OURS
    form = FORM.match(held(server, kind, name))
    return form.group().decode() if form else repr(held(server, kind, name)[:40])


def carry(kind):
    """Puts what each server has written into the etcd of the other one."""
    for server, other in (BOTH, BOTH[::-1]):
        etcd(other, "put", key=KEY.format(kind, server.name).encode(), value=held(server, kind, server.name))


def read(kind):
    for name in NAMES:
        ask("GET", f"{GROUP}/{kind}s/{name}")
    ask("GET", f"{GROUP}/{kind}s")


def made(kind, name):
    metadata = {"name": name, "annotations": {"a": "é"}}
    return {"apiVersion": "compared.example.com/v1", "kind": kind.title(), "metadata": metadata, "spec": {"text": "secret " * 99}}


def same_form(kind):
    forms = [stored(kind, name) for name in NAMES]
    print(f"  {kind}: {forms[0]}")
    show(f"the form of {kind}", list(differences(*forms)))


def written():
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind in providers(""):
        Count.quiet = True
        serve(definition(kind, schema))
        Count.quiet = False
        for server in BOTH:
            code, _, _, text = server.ask("POST", f"{GROUP}/{kind}s", made(kind, server.name))
            if code != 201:
                print(f"{server.name} does not write {kind}: {text[:300]}")
        same_form(kind)
        carry(kind)
        read(kind)


def rewritten():
    for kind in providers(""):
        read(kind)
        for name in NAMES:
            ask("PATCH", f"{GROUP}/{kind}s/{name}", {"spec": {"more": 1}}, kind=MERGE)
        same_form(kind)
        carry(kind)
        read(kind)
        for name in NAMES:
            ask("DELETE", f"{GROUP}/{kind}s/{name}")


def wrong():
    """Configurations with a mistake each."""
    good = keys("aesgcm", "k1")

    def of(*providers, resources=("secrets",)):
        return configuration([{"resources": list(resources), "providers": list(providers)}])

    def kms(**change):
        return of({"kms": {"apiVersion": "v2", "name": "a", "endpoint": "unix:///tmp/none.sock", **change}})
    key = lambda **change: of({"aescbc": {"keys": [{"name": "k", "secret": "MTIz", **change}]}})
    yield "empty", ""
    yield "text", "a b"
    yield "kind", {**of(good), "kind": "Other"}
    yield "version", {**of(good), "apiVersion": "v1"}
    yield "field", {**of(good), "more": 1}
    yield "none", configuration([])
    yield "no-resources", of(good, resources=())
    yield "no-providers", of()
    yield "empty-provider", of({})
    yield "two-in-one", of({**good, **IDENTITY})
    yield "unknown-provider", of({"rot13": {}})
    yield "no-keys", of({"aescbc": {"keys": []}})
    yield "short-key", key()
    yield "no-base64", key(secret="***")
    yield "no-secret", key(secret="")
    yield "no-name", key(name="", secret=base64.b64encode(b"1" * 32).decode())
    for i, name in enumerate(("*", "Secrets", "*.", "a.*", "x.extensions", "events.events.k8s.io", "apiserveripinfo", "b.*.*")):
        yield f"resource-{i}", of(good, resources=[name, "*.*"] if name == "*." else [name])
    yield "twice", of(good, resources=["secrets", "secrets"])
    yield "masked", configuration([{"resources": [name], "providers": [good]} for name in ("*.*", "secrets")])
    yield "kms-v1", kms(apiVersion="v1")
    yield "kms-v3", kms(apiVersion="v3")
    yield "kms-name", kms(name="a:b")
    yield "kms-nameless", kms(name="")
    yield "kms-cache", kms(cachesize=5)
    yield "kms-timeout", kms(timeout="-1s")
    yield "kms-duration", kms(timeout="x")
    yield "kms-scheme", kms(endpoint="http:///a")
    yield "kms-nowhere", kms(endpoint="")
    yield "kms-path", kms(endpoint="unix://a")
    one = kms()["resources"][0]
    yield "kms-twice", configuration([one, {**one, "resources": ["configmaps"]}])


what = sys.argv[1]
if what in ("write", "rewrite"):
    print(json.dumps(chosen(sys.argv[2], what == "rewrite")))
elif what == "wrong":
    for name, text in wrong():
        pathlib.Path(sys.argv[2], name).write_text(text if isinstance(text, str) else json.dumps(text))
else:
    globals()[what]()
    end()

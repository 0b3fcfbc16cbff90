"""Conformance of ServiceAccounts, their tokens, and of what a user is told that they may."""

import base64
import hashlib
import json
import secrets

from world import Refused, check, conformance, equal, until


def account(world, **more):
    name = f"e2e-sa-{secrets.token_hex(3)}"
    world.api.create(world.path("v1", "serviceaccounts"), {"metadata": {"name": name}, **more})
    return name


@conformance("[sig-auth] ServiceAccounts should update a ServiceAccount [Conformance]")
def update(world):
    path = world.path("v1", "serviceaccounts", account(world, automountServiceAccountToken=False))
    updated = world.api.change(path, lambda value: value.update(automountServiceAccountToken=True))
    equal(updated["automountServiceAccountToken"], True, "the field")


@conformance("[sig-auth] ServiceAccounts should create a serviceAccountToken and ensure a successful TokenReview [Conformance]")
def review(world):
    name = account(world)
    token = world.api.create(world.path("v1", "serviceaccounts", f"{name}/token"), {"spec": {}})["status"]["token"]
    check(token, "the token")
    status = world.api.create("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}})["status"]
    equal((status["authenticated"], status.get("error", "")), (True, ""), "the review")
    equal(status["user"]["username"], f"system:serviceaccount:{world.ns}:{name}", "the user")


@conformance("[sig-auth] ServiceAccounts should guarantee kube-root-ca.crt exist in any namespace [Conformance]")
def root(world):
    path = world.path("v1", "configmaps", "kube-root-ca.crt")
    first = until("the ConfigMap is there", lambda: world.api.get(path))
    world.api.delete(path)
    until("it is there again", lambda: world.api.get(path)["metadata"]["uid"] != first["metadata"]["uid"])
    world.api.change(path, lambda value: value.update(data={"ca.crt": ""}))
    until("it is as it was", lambda: world.api.get(path)["data"] == first["data"])
    check("BEGIN CERTIFICATE" in first["data"]["ca.crt"], "the authority")


def decoded(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


# The curve P-256: its prime, its order and the point that generates it.
P = 2**256 - 2**224 + 2**192 + 2**96 - 1
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296, 0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5)


def added(a, b):
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % P == 0:
        return None
    slope = (3 * a[0] * a[0] - 3) * pow(2 * a[1], -1, P) if a == b else (b[1] - a[1]) * pow(b[0] - a[0], -1, P)
    x = (slope * slope - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def times(number, point):
    total = None
    while number:
        total, point, number = added(total, point) if number & 1 else total, added(point, point), number >> 1
    return total


def signed(key, signature, data):
    """Whether the signature of a token is that of this key (RS256 or ES256)."""
    digest = hashlib.sha256(data).digest()
    number = int.from_bytes
    if key["kty"] == "RSA":
        modulus, exponent = number(decoded(key["n"]), "big"), number(decoded(key["e"]), "big")
        plain = pow(number(signature, "big"), exponent, modulus).to_bytes(len(signature), "big")
        return plain.startswith(b"\x00\x01\xff\xff") and plain.endswith(bytes.fromhex("3031300d060960864801650304020105000420") + digest)
    r, s = number(signature[:32], "big"), number(signature[32:], "big")
    inverse = pow(s, -1, N)
    public = number(decoded(key["x"]), "big"), number(decoded(key["y"]), "big")
    point = added(times(number(digest, "big") * inverse % N, G), times(r * inverse % N, public))
    return point is not None and point[0] % N == r


@conformance("[sig-auth] ServiceAccounts ServiceAccountIssuerDiscovery should support OIDC discovery of service account issuer [Conformance]")
def issuer(world):
    volume = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "oidc-discovery-test", "expirationSeconds": 7200}}]}}
    mounts = {"volumeMounts": [{"name": "token", "mountPath": "/var/run/oidc"}]}
    command = ["sh", "-c", "cat /var/run/oidc/token; echo; cat /var/run/secrets/kubernetes.io/serviceaccount/token"]
    spec = {"restartPolicy": "Never", "volumes": [volume], "serviceAccountName": "default"}
    world.run(world.pod("oidc-discovery-validator", command, spec=spec, container=mounts), phase="Succeeded")
    token, own = world.logs("oidc-discovery-validator").split()
    # As the Pod asks: with what it was given.
    pod = world.api.as_token(own)
    configuration = pod.get("/.well-known/openid-configuration")
    head, claims, signature = token.split(".")
    told = json.loads(decoded(claims))
    equal(told["iss"], configuration["issuer"], "the issuer")
    equal(told["aud"], ["oidc-discovery-test"], "the audience")
    equal(told["sub"], f"system:serviceaccount:{world.ns}:default", "the subject")
    check(configuration["jwks_uri"].endswith("/openid/v1/jwks"), configuration)
    header = json.loads(decoded(head))
    check(header["alg"] in configuration["id_token_signing_alg_values_supported"], f"{header['alg']} is told of")
    keys = [key for key in pod.get("/openid/v1/jwks")["keys"] if key["kid"] == header["kid"]]
    equal(len(keys), 1, "keys of the token")
    check(signed(keys[0], decoded(signature), f"{head}.{claims}".encode()), "the token is signed by the key")
    check(not signed(keys[0], decoded(signature), b"another"), "another is not")


@conformance("[sig-auth] SubjectReview should support SubjectReview API operations [Conformance]")
def subject_review(world):
    user = f"system:serviceaccount:{world.ns}:{account(world)}"

    def may():
        headers = {"Impersonate-User": user, "Impersonate-Group": "system:authenticated"}
        try:
            world.api.get(world.path("v1", "configmaps"), headers=headers)
        except Refused as refused:
            equal((refused.code, refused.reason), (403, "Forbidden"), refused.message)
            return False
        return True

    attributes = {"namespace": world.ns, "verb": "list", "resource": "configmaps", "version": "v1"}
    spec = {"resourceAttributes": attributes, "user": user, "groups": ["system:authenticated"]}
    local = world.path("authorization.k8s.io/v1", "localsubjectaccessreviews")

    def agree(wanted):
        for path, meta in (("/apis/authorization.k8s.io/v1/subjectaccessreviews", {}), (local, {"namespace": world.ns})):
            answer = world.api.create(path, {"metadata": meta, "spec": spec})
            equal((answer["status"]["allowed"], may()), (wanted, wanted), path)

    agree(False)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    world.api.create(world.path("rbac.authorization.k8s.io/v1", "rolebindings"), {"metadata": {"name": "view"}, "roleRef": reference, "subjects": subjects})
    until("the binding is known", may)
    agree(True)

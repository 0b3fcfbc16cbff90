"""Streams with Python's client, whose WebSockets speak the fourth protocol: exec both ways with its exit code and port-forward;
and a log and a watch in messages, as browsers read them. The argument is a file that the Pod `web` serves as `/up`."""

import base64
import hashlib
import json
import sys

import websocket
from kubernetes import client, config
from kubernetes.stream import portforward, stream

with open(sys.argv[1], "rb") as file:
    data = file.read()
digest = hashlib.md5(data).hexdigest()

config.load_kube_config()
core = client.CoreV1Api()


def equal(found, expected):
    assert found == expected, f"{found!r} instead of {expected!r}"


def command(*args, stdin=b""):
    """Runs a command in the Pod; returns what it wrote and its exit code."""
    open_ = stream(
        core.connect_get_namespaced_pod_exec, "web", "default", command=list(args), stdin=bool(stdin), stdout=True, stderr=True,
        tty=False, _preload_content=False, binary=True,
    )
    for at in range(0, len(stdin), 1 << 16):
        open_.write_stdin(stdin[at : at + (1 << 16)])
    out = []
    while open_.is_open():
        open_.update(timeout=60)
        if open_.peek_stdout():
            out.append(open_.read_stdout())
    return b"".join(out), open_.returncode


# This protocol has no word for the end of the input, so the command knows its length.
summed, code = command("sh", "-c", f"head -c {len(data)} | md5sum", stdin=data)
equal((summed.split()[0].decode(), code), (digest, 0))
out, code = command("cat", "/www/up")
equal((hashlib.md5(out).hexdigest(), code), (digest, 0))
equal(command("sh", "-c", "exit 7")[1], 7)

forward = portforward(core.connect_get_namespaced_pod_portforward, "web", "default", ports="8080")
socket = forward.socket(8080)
socket.setblocking(True)
socket.sendall(b"GET /up HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
answer = b""
while piece := socket.recv(1 << 16):
    answer += piece
equal(forward.error(8080), None)
equal(hashlib.md5(answer.partition(b"\r\n\r\n")[2]).hexdigest(), digest)

settings = client.Configuration.get_default_copy()
tls = {"ca_certs": settings.ssl_ca_cert, "certfile": settings.cert_file, "keyfile": settings.key_file}


def messages(path, **more):
    """Yields the messages that a path tells over WebSocket, until the server ends it."""
    url = settings.host.replace("https:", "wss:") + "/api/v1/namespaces/default/" + path
    connection = websocket.create_connection(url, sslopt=tls, timeout=60, **more)
    while True:
        code, message = connection.recv_data()
        if code == websocket.ABNF.OPCODE_CLOSE:
            return
        yield message


log = core.read_namespaced_pod_log("lines", "default", _preload_content=False).data
for protocol, read in [("binary.k8s.io", bytes), ("base64.binary.k8s.io", base64.b64decode)]:
    told = b"".join(read(message) for message in messages("pods/lines/log", subprotocols=[protocol]))
    equal(hashlib.md5(told).hexdigest(), hashlib.md5(log).hexdigest())
watched = messages("pods?watch=1&fieldSelector=metadata.name%3Dweb&timeoutSeconds=1", origin="https://a.example")
events = [json.loads(message) for message in watched]
equal([(event["type"], event["object"]["metadata"]["name"]) for event in events[:1]], [("ADDED", "web")])

#!/usr/bin/env bash
# Cluster DNS on a real node: the Corefile in its ConfigMap is followed while the node runs, a wrong one is told and the
# last good one stays, and crowds of equal questions are one.
. "$(dirname "$0")/cluster.sh"
command -v python3 >/dev/null || { echo "SKIPPED: cluster DNS is asked with python3"; exit 0; }

# A server outside: it says 192.0.2.1 to everything after a moment, and writes down each name that it is asked for.
cat >"$WORK/outside.py" <<'PY'
import socket, sys, threading, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
lock = threading.Lock()
def answer(packet, peer):
    at, labels = 12, []
    while packet[at]:
        labels.append(packet[at + 1:at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    with lock:
        print(".".join(labels), flush=True)
    time.sleep(0.3)
    question = packet[12:at + 5]
    s.sendto(packet[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + question + b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xc0\0\2\1", peer)
while True:
    threading.Thread(target=answer, args=s.recvfrom(4096)).start()
PY
# A client: NAME KIND [TIMES]; says the codes and how many answers there were, with the first address.
cat >"$WORK/ask.py" <<'PY'
import socket, struct, sys
host, port, name, kind, times = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
question = b"".join(bytes([len(l)]) + l.encode() for l in name.split(".")) + b"\0" + struct.pack(">HH", kind, 1)
sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(times)]
for n, s in enumerate(sockets):
    s.settimeout(10)
    s.sendto(struct.pack(">HHHHHH", n, 0x100, 1, 0, 0, 0) + question, (host, port))
seen = {}
for s in sockets:
    packet = s.recv(4096)
    flags, _, answers = struct.unpack(">HHH", packet[2:8])
    code = ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"][flags & 15]
    last = ".".join(map(str, packet[-4:])) if answers and kind == 1 else ""
    words = f"{code} {answers}{' truncated' if flags & 0x200 else ''} {last}".strip()
    seen[words] = seen.get(words, 0) + 1
print("; ".join(f"{count}x {words}" for words, count in sorted(seen.items())))
PY

"$SKIFF" "${UP[@]}" >/dev/null
ADDRESS=$(k get node -o 'jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}')
ask() { python3 "$WORK/ask.py" "$ADDRESS" 20053 "$1" "${2:-1}" "${3:-1}"; }
answers() { # TEXT NAME [KIND]
    [ "$(ask "$2" "${3:-1}")" = "$1" ]
}
corefile() { k -n kube-system create configmap coredns --from-literal=Corefile="$1" --dry-run=client -o yaml | k apply -f - >/dev/null; }
started "$WORK/outside.log" python3 "$WORK/outside.py" 127.0.0.1 20771

step "the cluster's names are there without any Corefile"
until_true 30 answers "1x NOERROR 1 10.96.0.1" kubernetes.default.svc.cluster.local
answers "1x NOERROR 1 10.96.0.10" ns.dns.cluster.local || fail "the zone's server has an address"
answers "1x NXDOMAIN 0" 10-1-2-3.nowhere.pod.cluster.local || fail "Pods of no namespace have no names"
answers "1x NOERROR 1 10.1.2.3" 10-1-2-3.default.pod.cluster.local || fail "Pods have names by their address"

step "40 endpoints without an extension: as many as fit, and that there are more"
k create service clusterip many --clusterip=None >/dev/null
{
    echo 'apiVersion: discovery.k8s.io/v1'
    echo 'kind: EndpointSlice'
    echo 'metadata: {name: many-1, labels: {kubernetes.io/service-name: many}}'
    echo 'addressType: IPv4'
    echo 'endpoints:'
    for n in $(seq 40); do echo "- addresses: [10.1.1.$n]"; done
} | k apply -f - >/dev/null
many() { [[ $(ask many.default.svc.cluster.local) == "1x NOERROR 2"[0-9]" truncated"* ]]; }
until_true 30 many
answers "1x NOERROR 1 10.1.1.7" 10-1-1-7.many.default.svc.cluster.local || fail "endpoints have names by their address"

step "a Corefile is followed: stub domains, hosts, and 200 equal questions are one"
corefile '.:53 {
    errors
    ready localhost:20772
    prometheus localhost:20773
    hosts {
        10.9.9.9 printer.office
        fallthrough
    }
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods disabled
        fallthrough in-addr.arpa ip6.arpa
    }
    forward . 127.0.0.1:20779
    cache 30
}
corp.example {
    forward . 127.0.0.1:20771
    cache 60
}'
until_true 30 answers "1x NOERROR 1 10.9.9.9" printer.office
[ "$(ask db.corp.example 1 200)" = "200x NOERROR 1 192.0.2.1" ] || fail "equal questions are all answered"
answers "1x NOERROR 1 192.0.2.1" db.corp.example || fail "the answer is kept"
[ "$(grep -c '^db.corp.example$' "$WORK/outside.log")" = 1 ] || fail "and asked for once"
answers "1x SERVFAIL 0" somewhere.else || fail "nobody answers for the rest"
answers "1x NXDOMAIN 0" 10-1-2-3.default.pod.cluster.local || fail "Pods' names are off"
has OK curl -sf http://127.0.0.1:20772/ready
has 'coredns_cache_entries{type="success"}' curl -sf http://127.0.0.1:20773/metrics

step "a wrong Corefile is told, and the last good one stays"
corefile '. {
    kubernetes cluster.local
    etcd
}'
until_true 30 has "Unknown directive 'etcd'" k -n kube-system get events --field-selector reason=InvalidCorefile
answers "1x NOERROR 1 10.9.9.9" printer.office || fail "the Corefile of before counts"
corefile '. {
    kubernetes cluster.local
    rewrite name exact old.example kubernetes.default.svc.cluster.local
}'
until_true 30 answers "1x NOERROR 1 10.96.0.1" old.example
answers "1x SERVFAIL 0" printer.office || fail "what is gone is gone"
refused "" curl -sf http://127.0.0.1:20772/ready

step "without its ConfigMap, everything is as it was"
k -n kube-system delete configmap coredns >/dev/null
until_true 30 answers "1x NOERROR 1 10.1.2.3" 10-1-2-3.default.pod.cluster.local

step "Pods ask another DNS in its place, and are told all of its addresses that resolvers read"
"$SKIFF" down --data-dir "$DATA" >/dev/null
refused "invalid value 'x' for '--cluster-dns <IP>': Invalid clusterDNS IP" "$SKIFF" "${UP[@]}" --cluster-dns 10.96.0.10,x
"$SKIFF" "${UP[@]}" --disable dns --cluster-dns 10.96.0.10,10.96.0.11 --cluster-dns 10.96.0.12,10.96.0.13 >/dev/null
started "$WORK/own.log" python3 "$WORK/outside.py" "$ADDRESS" 20774
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Service
metadata: {name: own-dns, namespace: kube-system}
spec: {clusterIP: 10.96.0.10, ports: [{port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: own-dns, namespace: kube-system, labels: {kubernetes.io/service-name: own-dns}}
addressType: IPv4
ports: [{port: 20774, protocol: UDP}]
endpoints: [{addresses: ["$ADDRESS"]}]
YAML
k run asks --image=skiff.local/busybox:1 --command -- sleep 100000 >/dev/null
k wait --for=condition=Ready pod/asks --timeout=60s >/dev/null
servers() { k exec asks -- sed -n 's/^nameserver //p' /etc/resolv.conf | paste -sd' '; }
says "10.96.0.10 10.96.0.11 10.96.0.12" servers || fail "the Pod is told of $(servers)"
until_true 20 has "the applied nameserver line is: 10.96.0.10 10.96.0.11 10.96.0.12" k get events --field-selector reason=DNSConfigForming
until_true 20 has 192.0.2.1 k exec asks -- nslookup db.corp.example
grep -q '^db.corp.example$' "$WORK/own.log" || fail "another server has answered"

step "down leaves nothing"
"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"

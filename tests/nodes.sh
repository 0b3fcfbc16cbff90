#!/usr/bin/env bash
# Three nodes: two in network namespaces on one link and one behind a router, each with an engine of its own. Pods, Services,
# names, exec, logs and network policies across them, a node that comes back with another address, and one that goes.
. "$(dirname "$0")/cluster.sh"
IMAGE=skiff.local/busybox:1
BRIDGE=skiff-br$$
declare -A ADDRESSES=([one]=198.18.1.1 [two]=198.18.1.2 [far]=198.18.2.3) AGENTS=()

if ! ip link add "$BRIDGE" type bridge 2>/dev/null; then
    echo "SKIPPED: nodes in network namespaces need bridges and iproute2"
    exit 0
fi
forwarding=$(</proc/sys/net/ipv4/ip_forward)
inside() { nsenter --net="/run/netns/skiff-$1-$$" "${@:2}"; }

# Each node's own traces are in its namespace, so it is taken down there.
leave() {
    local code=$?
    for pid in "${STARTED[@]}"; do kill "$pid" 2>/dev/null || true; done
    for node in "${!ADDRESSES[@]}"; do
        [ "$code" = 0 ] || { echo "--- the end of $node.log" >&2; tail -15 "$WORK/$node.log" >&2 || true; }
        inside "$node" "$SKIFF" down --data-dir "$DATA-$node" >/dev/null 2>&1 || true
        ip netns delete "skiff-$node-$$" 2>/dev/null || true
    done
    ip link delete "$BRIDGE" 2>/dev/null || true
    nft delete table ip "skiff-test-$$" 2>/dev/null || true
    echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
    set +e
    (exit "$code")
    on_exit
}
trap leave EXIT

# wire NODE ADDRESS ROUTER: a namespace with a link to this machine, which is the router.
wire() {
    ip netns add "skiff-$1-$$"
    ip link add "vn$1$$" type veth peer name eth0 netns "skiff-$1-$$"
    ip link set "vn$1$$" up
    ip -n "skiff-$1-$$" link set lo up
    ip -n "skiff-$1-$$" link set eth0 up
    ip -n "skiff-$1-$$" address add "$2/24" dev eth0
    ip -n "skiff-$1-$$" route add default via "$3"
}

# agent NODE: its agent, with the address that it has now.
agent() {
    started "$WORK/$1.log" nsenter --net="/run/netns/skiff-$1-$$" \
        "$SKIFF" agent --data-dir "$DATA-$1" --node-name "$1" --node-ip "${ADDRESSES[$1]}" --eviction-hard= "${JOIN[@]}"
    AGENTS[$1]=$LAST
}

ready() { k wait --for=condition=Ready node "$@" --timeout=1s; }

# web NODE: a web server with the node's name.
web() {
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {app: web, node: $1}}
spec:
  nodeName: $1
  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: $IMAGE
      command: [sh, -c, 'echo hello from $1 >/tmp/index.html; exec httpd -f -v -p 8080 -h /tmp']
      readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
YAML
}

address() { k get pod "$1" -o jsonpath='{.status.podIP}'; }
reach() { k exec "$1" -- timeout 3 wget -qO- "http://$2/index.html"; }
reaches() { has "hello from" reach "$1" "$2"; }
silent() { refused "exit code 143" reach "$1" "$2"; }
route() { inside "$1" ip route get "$2"; }

echo 1 >/proc/sys/net/ipv4/ip_forward
ip address add 198.18.1.254/24 dev "$BRIDGE"
ip link set "$BRIDGE" up
for node in one two; do
    wire $node "${ADDRESSES[$node]}" 198.18.1.254
    ip link set "vn$node$$" master "$BRIDGE"
done
wire far "${ADDRESSES[far]}" 198.18.2.254
ip address add 198.18.2.254/24 dev "vnfar$$"
for node in "${!ADDRESSES[@]}"; do FOLDERS+=("$DATA-$node"); done

step "three nodes join a control plane"
started "$WORK/server.log" "$SKIFF" server --data-dir "$DATA" --secure-port "$PORT"
until_true 20 k get --raw /readyz
until_true 20 k get configmap -n kube-public cluster-info
read -ra JOIN < <("$SKIFF" token create --data-dir "$DATA" | sed 's/.*agent //')
for node in one two far; do
    until_true 20 inside $node curl -sk --max-time 1 -o /dev/null "${JOIN[1]}"
    agent $node
done
until_true 90 ready one two far
for node in one two far; do web $node; done
k wait --for=condition=Ready pod/one pod/two pod/far --timeout=60s >/dev/null
k expose pod far --port=80 --target-port=8080 --selector=node=far >/dev/null

step "each Pod reaches each other one: on one link without a tunnel, behind the router through it"
for from in one two far; do
    for to in one two far; do until_true 10 reaches $from "$(address $to):8080"; done
done
has "via 198.18.1.2 dev eth0" route one "$(address two)"
has "dev skf-vxlan" route one "$(address far)"
has "dev skf-vxlan" route far "$(address one)"

step "Services and names lead to Pods of other nodes, from Pods and from nodes"
service=$(k get service far -o jsonpath='{.spec.clusterIP}')
until_true 20 reaches one "$service"
until_true 20 reaches two far.default.svc.cluster.local
until_true 10 has "hello from far" inside one curl -s --max-time 3 "http://$service/index.html"

step "exec and logs on each node"
for node in one two far; do
    has "hello from $node" k exec $node -- cat /tmp/index.html
    has "response:200" k logs $node
done

step "a policy on one node counts for Pods of the others"
k apply -f - >/dev/null <<YAML
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-two}
spec:
  podSelector: {matchLabels: {node: far}}
  ingress: [{from: [{podSelector: {matchLabels: {node: two}}}]}]
YAML
until_true 20 silent one "$(address far):8080"
reaches two "$(address far):8080"
k delete networkpolicy only-two >/dev/null
until_true 20 reaches one "$(address far):8080"

step "a node comes back with another address"
ended "${AGENTS[far]}" || fail "the agent ends well"
ip -n "skiff-far-$$" address delete 198.18.2.3/24 dev eth0
ip -n "skiff-far-$$" address add 198.18.2.4/24 dev eth0
ip -n "skiff-far-$$" route add default via 198.18.2.254
ADDRESSES[far]=198.18.2.4
agent far
until_true 60 has 198.18.2.4 k get node far -o wide
until_true 60 reaches one "$(address far):8080"
until_true 30 reaches far "$(address two):8080"
has "dst 198.18.2.4" inside one bridge fdb show dev skf-vxlan

step "no other machine takes the name of a node that is at work"
ended "${AGENTS[two]}" || fail "the agent ends well"
thief() { timeout 60 nsenter --net="/run/netns/skiff-two-$$" "$SKIFF" agent --data-dir "$DATA-thief" --node-ip 198.18.1.2 "${JOIN[@]}" "$@"; }
FOLDERS+=("$DATA-thief")
refused 'a Node with name "one" and status "Ready" already exists in the cluster' thief --node-name one
[ -z "$(k get csr -o name --field-selector spec.signerName=kubernetes.io/kube-apiserver-client-kubelet | sed -n 4p)" ] || fail "a certificate was asked for"
agent two
until_true 30 has "hello from two" k exec two -- cat /tmp/index.html

step "a node goes, and nobody keeps a way to it"
range=$(k get node two -o jsonpath='{.spec.podCIDR}')
has "$range" inside one ip route
has "$range" inside far ip route
k delete pod two --wait=false >/dev/null
ended "${AGENTS[two]}" || fail "the agent ends well"
inside two "$SKIFF" down --data-dir "$DATA-two" >/dev/null
k delete node two >/dev/null
no_way() { ! inside "$1" ip route | grep -F "$range"; }
until_true 30 no_way one
until_true 30 no_way far
[ -z "$(inside two ip -br link | grep skf || true)" ] || fail "links of the Pod network stay"

#!/usr/bin/env bash
# Two families of addresses, then IPv6 alone: two nodes on one link and one behind a router, in network namespaces. Pods, Services
# and their ports on nodes, names, host ports, policies, the way out and what is put back, each in both families.
. "$(dirname "$0")/cluster.sh"
IMAGE=skiff.local/busybox:1
BRIDGE=skiff-br$$
declare -A FOUR=([one]=198.18.1.1 [two]=198.18.1.2 [far]=198.18.2.3) SIX=([one]=2001:db8:1::1 [two]=2001:db8:1::2 [far]=2001:db8:2::3)
declare -A AGENTS=() NAMES=([one]=one [two]=two [far]=far)

if ! ip link add "$BRIDGE" type bridge 2>/dev/null; then
    echo "SKIPPED: nodes in network namespaces need bridges and iproute2"
    exit 0
fi
forwarding=$(</proc/sys/net/ipv4/ip_forward)
forwarding6=$(</proc/sys/net/ipv6/conf/all/forwarding)
inside() { nsenter --net="/run/netns/skiff-$1-$$" "${@:2}"; }

nodes_end() {
    for node in "${!FOUR[@]}"; do
        inside "$node" "$SKIFF" down --data-dir "$DATA-$node" >/dev/null 2>&1 || true
    done
}
leave() {
    local code=$?
    for pid in "${STARTED[@]}"; do kill "$pid" 2>/dev/null || true; done
    for node in "${!FOUR[@]}"; do
        [ "$code" = 0 ] || { echo "--- the end of $node.log" >&2; tail -15 "$WORK/$node.log" >&2 || true; }
    done
    nodes_end
    for node in "${!FOUR[@]}"; do ip netns delete "skiff-$node-$$" 2>/dev/null || true; done
    ip link delete "$BRIDGE" 2>/dev/null || true
    echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
    echo "$forwarding6" >/proc/sys/net/ipv6/conf/all/forwarding
    set +e
    (exit "$code")
    on_exit
}
trap leave EXIT

# wire NODE NET: a namespace with a link to this machine, which is the router of that net.
wire() {
    ip netns add "skiff-$1-$$"
    ip link add "vn$1$$" type veth peer name eth0 netns "skiff-$1-$$"
    ip link set "vn$1$$" up
    ip -n "skiff-$1-$$" link set lo up
    ip -n "skiff-$1-$$" link set eth0 up
    ip -n "skiff-$1-$$" address add "${FOUR[$1]}/24" dev eth0
    ip -n "skiff-$1-$$" address add "${SIX[$1]}/64" dev eth0 nodad
    ip -n "skiff-$1-$$" route add default via "198.18.$2.254"
    ip -6 -n "skiff-$1-$$" route add default via "2001:db8:$2::fe"
}

# agent NODE: its agent, with the addresses that it finds by itself.
agent() {
    started "$WORK/$1.log" nsenter --net="/run/netns/skiff-$1-$$" \
        "$SKIFF" agent --data-dir "$DATA-$1" --node-name "$1" --eviction-hard= "${JOIN[@]}" "${@:2}"
    AGENTS[$1]=$LAST
}

ready() { k wait --for=condition=Ready node "$@" --timeout=1s; }
of() { k get "$1" "$2" -o jsonpath="{$3}"; }
family() { tr ' ' '\n' | { [ "$1" = 6 ] && grep : || grep -v :; }; }
# address POD FAMILY
address() { of pod "$1" '.status.podIPs[*].ip' | family "$2"; }
host() { case $1 in *:*) echo "[$1]" ;; *) echo "$1" ;; esac; }
# fetches FROM ADDRESS PORT: from a Pod.
fetch() { k exec "$1" -- timeout 3 wget -qO- "http://$(host "$2"):$3/index.html"; }
# curls NODE ADDRESS PORT: from a node.
curls() { inside "$1" curl -gsS --max-time 3 "http://$(host "$2"):$3/index.html"; }

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
      command: [sh, -c, 'echo hello from $1 >/tmp/index.html; exec httpd -f -v -p "[::]:8080" -h /tmp']
      ports: [{containerPort: 8080, hostPort: 18080}]
      readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
YAML
}

echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
ip address add 198.18.1.254/24 dev "$BRIDGE"
ip address add 2001:db8:1::fe/64 dev "$BRIDGE" nodad
ip link set "$BRIDGE" up
for node in one two; do
    wire $node 1
    ip link set "vn$node$$" master "$BRIDGE"
done
wire far 2
ip address add 198.18.2.254/24 dev "vnfar$$"
ip address add 2001:db8:2::fe/64 dev "vnfar$$" nodad
for node in "${!FOUR[@]}"; do FOLDERS+=("$DATA-$node"); done

step "what does not go together is said"
refused "one of IPv4 and one of IPv6" "$SKIFF" server --data-dir "$DATA" --cluster-cidr 10.244.0.0/16,10.245.0.0/16
refused "no range of its family" "$SKIFF" server --data-dir "$DATA" --service-cluster-ip-range 10.96.0.0/16,fd00:96::/112
refused "overlap" "$SKIFF" server --data-dir "$DATA" --cluster-cidr 10.244.0.0/16,fd00:96::/64 --service-cluster-ip-range 10.96.0.0/16,fd00:96::/112
refused "gives the nodes addresses of IPv4" "$SKIFF" "${UP[@]}" --nodes 2 --cluster-cidr 10.244.0.0/16,fd00:244::/56

# cluster PODS SERVICES SERVER: a control plane and its three nodes.
cluster() {
    started "$WORK/server.log" "$SKIFF" server --data-dir "$DATA" --secure-port "$PORT" --cluster-cidr "$1" --service-cluster-ip-range "$2" --advertise-address "$3"
    CONTROL=$LAST
    until_true 20 k get --raw /readyz
    until_true 20 k get configmap -n kube-public cluster-info
    read -ra JOIN < <("$SKIFF" token create --data-dir "$DATA" | sed 's/.*agent //')
    for node in one two far; do
        until_true 20 inside $node curl -gsk --max-time 1 -o /dev/null "${JOIN[1]}"
        agent $node
    done
    until_true 90 ready one two far
    for node in one two far; do web $node; done
    k wait --for=condition=Ready pod/one pod/two pod/far --timeout=60s >/dev/null
}

# all_ways FAMILIES...: everything that has to work in each of these families.
all_ways() {
    local f service port node
    step "Pods reach each other over one link and through the tunnel: IPv$*"
    for f in "$@"; do
        for from in one two far; do
            for to in one two far; do until_true 10 has "hello from $to" fetch $from "$(address $to "$f")" 8080; done
        done
    done

    step "Services by address, by name and at the nodes' ports"
    k expose pod far --port=80 --target-port=8080 --type=NodePort --selector=node=far --overrides='{"spec": {"ipFamilyPolicy": "PreferDualStack"}}' >/dev/null
    port=$(of service far '.spec.ports[0].nodePort')
    for f in "$@"; do
        service=$(of service far '.spec.clusterIPs[*]' | family "$f")
        until_true 20 has "hello from far" fetch one "$service" 80
        until_true 10 has "hello from far" curls two "$service" 80
        node=${FOUR[two]}
        [ "$f" = 4 ] || node=${SIX[two]}
        until_true 10 has "hello from far" curls one "$node" "$port"
        until_true 10 has "hello from far" curls two "$node" "$port"
        has "far.default.svc.cluster.local" k exec one -- nslookup "$service"
        has "$service" k exec one -- nslookup far.default.svc.cluster.local
    done
    until_true 20 has "hello from far" k exec two -- timeout 3 wget -qO- http://far.default.svc.cluster.local/index.html
    [ "$(k get endpointslices -l kubernetes.io/service-name=far -o jsonpath='{.items[*].addressType}' | wc -w)" = $# ] || fail "a slice for each family"

    step "host ports at the nodes' addresses"
    for f in "$@"; do
        node=${FOUR[one]}
        [ "$f" = 4 ] || node=${SIX[one]}
        until_true 10 has "hello from one" fetch two "$node" 18080
        until_true 10 has "hello from one" curls one "$node" 18080
        until_true 10 has "hello from one" curls far "$node" 18080
    done

    step "exec, logs and the addresses of a Pod on its node's network"
    has "hello from far" k exec far -- cat /tmp/index.html
    has "response:200" k logs far
    k run host --image=$IMAGE --overrides='{"spec": {"hostNetwork": true, "nodeName": "two", "terminationGracePeriodSeconds": 1}}' -- sleep 1000 >/dev/null
    k wait --for=condition=Ready pod/host --timeout=60s >/dev/null
    [ "$(of pod host '.status.podIPs')" = "$(of pod host '.status.hostIPs')" ] || fail "a Pod on its node's network has the node's addresses"
    [ "$(of pod host '.status.podIPs[*].ip' | wc -w)" = $# ] || fail "one of each family"

    step "what leaves the cluster has the node's address"
    for f in "$@"; do
        node=${FOUR[two]} far=198.18.1.254
        [ "$f" = 4 ] || { node=${SIX[two]} far=2001:db8:1::fe; }
        k exec two -- timeout 3 wget -qO- "http://$(host $far):20599/" >/dev/null
        has "$node " cat "$WORK/outside.log"
    done

    step "a policy counts in each family"
    k apply -f - >/dev/null <<YAML
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-two}
spec:
  podSelector: {matchLabels: {node: far}}
  ingress: [{from: [{podSelector: {matchLabels: {node: two}}}]}]
YAML
    for f in "$@"; do
        until_true 20 refused "exit code 143" fetch one "$(address far "$f")" 8080
        has "hello from far" fetch two "$(address far "$f")" 8080
    done
    blocks=
    for f in "$@"; do
        block=$(address one "$f")/32
        [ "$f" = 4 ] || block=$(address one "$f")/128
        blocks+="{ipBlock: {cidr: '$block'}},"
    done
    k patch networkpolicy only-two -p "{spec: {ingress: [{from: [$blocks]}]}}" >/dev/null
    for f in "$@"; do
        until_true 20 has "hello from far" fetch one "$(address far "$f")" 8080
        until_true 20 refused "exit code 143" fetch two "$(address far "$f")" 8080
    done
    k delete networkpolicy only-two >/dev/null

    step "what somebody takes by hand is back"
    for f in "$@"; do
        table=ip
        [ "$f" = 4 ] || table=ip6
        service=$(of service far '.spec.clusterIPs[*]' | family "$f")
        inside one nft flush table $table skiff-proxy
        until_true 20 has "hello from far" fetch one "$service" 80
        inside one nft delete table $table skiff-network
        until_true 20 has "hello from one" curls far "$([ "$f" = 4 ] && echo "${FOUR[one]}" || echo "${SIX[one]}")" 18080
        inside one ip "-$f" route flush proto 83
        until_true 20 has "hello from two" fetch one "$(address two "$f")" 8080
        inside one ip "-$f" route del "$(address one "$f")"
        until_true 20 has "hello from one" fetch two "$(address one "$f")" 8080
    done

    step "the proxy tells how it is"
    has '"nodeEligible":true,"healthy":true' inside one curl -gsS "http://127.0.0.1:10256/healthz"
    for f in "$@"; do has "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv$f\"}" inside one curl -gsS "http://127.0.0.1:10249/metrics"; done
    has nftables inside one curl -gsS "http://127.0.0.1:10249/proxyMode"
}

cat >"$WORK/outside.py" <<'PY'
# Answers and says who asked.
import http.server, socket, sys
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.client_address[0].removeprefix("::ffff:"), "asked", flush=True)
        self.send_response(200); self.end_headers(); self.wfile.write(b"outside\n")
    def log_message(self, *_): pass
Server(("::", 20599), Handler).serve_forever()
PY
started "$WORK/outside.log" python3 "$WORK/outside.py"

echo "  --- two families, IPv4 first"
cluster 10.244.0.0/16,fd00:10:244::/56 10.96.0.0/16,fd00:10:96::/112 198.18.1.254
[ "$(of node one '.spec.podCIDRs[*]' | wc -w)" = 2 ] || fail "a node has a range of each family"
[ "$(of node one '.status.addresses[?(@.type=="InternalIP")].address')" = "${FOUR[one]} ${SIX[one]}" ] || fail "and an address of each, not $(of node one .status.addresses)"
[ "$(of pod one .status.podIP)" = "$(address one 4)" ] || fail "the first address is of the first family"
all_ways 4 6
k create service clusterip six --tcp=80:8080 --dry-run=client -o yaml | sed 's/^spec:/spec:\n  ipFamilies: [IPv6]\n  externalIPs: ["2001:db8:99::9"]/; s/app: six/app: web/' | k apply -f - >/dev/null
[ "$(of service six '.spec.clusterIPs[*]' | wc -w)" = 1 ] || fail "a Service of one family"
until_true 20 has "hello from" fetch one "$(of service six .spec.clusterIP)" 80
until_true 20 has "hello from" fetch one 2001:db8:99::9 80

echo "  --- IPv6 alone"
for node in "${!AGENTS[@]}"; do ended "${AGENTS[$node]}" || fail "the agent ends well"; done
nodes_end
ended "$CONTROL" || fail "the server ends well"
rm -rf "$DATA"
for node in one two far; do
    ip -n "skiff-$node-$$" address delete "${FOUR[$node]}/24" dev eth0
    [ -z "$(inside $node ip -br link | grep skf || true)" ] || fail "links of the Pod network stay"
    [ -z "$(inside $node nft list tables | grep skiff || true)" ] || fail "rules stay"
done
cluster fd00:10:244::/56 fd00:10:96::/112 2001:db8:1::fe
[ "$(of node one '.spec.podCIDRs[*]' | wc -w)" = 1 ] || fail "a node has one range"
has "fd00:10:96::1" k get service kubernetes
has "fd00:10:96::a" k get service -n kube-system kube-dns
all_ways 6

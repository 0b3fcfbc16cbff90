#!/usr/bin/env bash
# Three nodes: two in network namespaces on one link and one behind a router, each with an engine of its own. Pods, Services,
# names, exec, logs, network policies and a StatefulSet with claims across them; a node whose cable is pulled, one that comes back with
# another address, one that comes back with another name, and one that goes.
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

# agent NODE [NAME]: its agent, with the address that it has now. A lease of eight seconds is renewed every two: the control plane
# notices within ten that a node is silent.
agent() {
    started "$WORK/$1.log" nsenter --net="/run/netns/skiff-$1-$$" \
        "$SKIFF" agent --data-dir "$DATA-$1" --node-name "${2:-$1}" --node-ip "${ADDRESSES[$1]}" --eviction-hard= \
        --kubelet-config "$WORK/kubelet.yaml" "${JOIN[@]}"
    AGENTS[$1]=$LAST
}
printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnodeLeaseDurationSeconds: 8\n' >"$WORK/kubelet.yaml"

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
value() { k get "$1" "$2" -o jsonpath="{$3}"; }
# The processes of a Pod, by its uid, wherever it runs.
processes() { grep -lF "pod$1" /proc/[0-9]*/cgroup 2>/dev/null | wc -l || true; }

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
started "$WORK/server.log" "$SKIFF" server --data-dir "$DATA" --secure-port "$PORT" --node-monitor-grace-period 10s
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

step "a StatefulSet with claims: an ordinal on each of two nodes with a volume there, and each sees the other by its name"
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists, effect: NoExecute, tolerationSeconds: 0}]
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [one, two]}]}]
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: db}}}
      containers:
        - name: c
          image: $IMAGE
          command: [sh, -c, 'echo "hello from \$HOSTNAME" >>/data/index.html; exec httpd -f -p 8080 -h /data']
          volumeMounts: [{name: data, mountPath: /data}]
          readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
YAML
k rollout status statefulset/db --timeout=60s >/dev/null
[ "$(value pod db-0 .spec.nodeName)" != "$(value pod db-1 .spec.nodeName)" ] || fail "both ordinals are on one node"
greetings() { # POD: how often it has begun, as its volume tells on its node
    grep -c "hello from $1" "$DATA-$(value pod "$1" .spec.nodeName)/local-volumes/$(value pvc "data-$1" .spec.volumeName)/index.html"
}
for pod in db-0 db-1; do says 1 greetings $pod || fail "the volume of $pod is on its node"; done
until_true 20 has "hello from db-1" reach db-0 db-1.db:8080
until_true 20 has "hello from db-0" reach db-1 db-0.db.default.svc.cluster.local:8080
home=$(value pod db-0 .spec.nodeName)
k delete pod db-0 >/dev/null
k rollout status statefulset/db --timeout=60s >/dev/null
says "$home" value pod db-0 .spec.nodeName || fail "it comes back to its volume"
until_true 10 says 2 greetings db-0
until_true 20 has "hello from db-0" reach db-1 db-0.db:8080

step "a node whose cable is pulled is lost: its Pods run on there, and other nodes get what may be there twice"
k apply -f - >/dev/null <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: moves}
spec:
  selector: {matchLabels: {app: moves}}
  template:
    metadata: {labels: {app: moves}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists, effect: NoExecute, tolerationSeconds: 0}]
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - {weight: 100, preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [two]}]}}
      containers:
        - name: c
          image: $IMAGE
          command: [sh, -c, 'echo hello from \$HOSTNAME >/tmp/index.html; exec httpd -f -p 8080 -h /tmp']
          readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: moves}
spec: {selector: {app: moves}, ports: [{port: 80, targetPort: 8080}]}
YAML
k rollout status deployment/moves --timeout=60s >/dev/null
old=$(k get pods -l app=moves -o jsonpath='{.items[0].metadata.name}')
says two value pod "$old" .spec.nodeName || fail "the Pod prefers the node"
uid=$(value pod "$old" .metadata.uid)
stuck=$(k get pods -l app=db --field-selector spec.nodeName=two -o jsonpath='{.items[0].metadata.name}')
stuck_uid=$(value pod "$stuck" .metadata.uid)
begun=$(greetings "$stuck")
stays=$(value pod two '.status.containerStatuses[0].containerID')
until_true 20 has "hello from $old" reach one moves
behind=$(address "$old")
ip link set "vntwo$$" down
until_true 40 k wait --for=condition=Ready=Unknown node two --timeout=1s
until_true 20 has "node.kubernetes.io/unreachable:NoExecute" k get node two -o jsonpath='{range .spec.taints[*]}{.key}:{.effect} {end}'
places() { k get endpointslices -l kubernetes.io/service-name=moves -o jsonpath='{.items[*].endpoints[?(@.conditions.ready==true)].targetRef.name}'; }
new() { k get pods -l app=moves -o name | grep -v "$old"; }
until_true 30 new
new=$(new)
k wait --for=condition=Ready "$new" --timeout=60s >/dev/null
until_true 20 says "${new#pod/}" places
for from in one far; do until_true 20 has "hello from ${new#pod/}" reach $from moves; done
for _ in 1 2 3 4 5 6; do has "hello from ${new#pod/}" reach one moves; done
has "hello from $old" inside two curl -s --max-time 3 "http://$behind:8080/index.html"
until_true 10 k wait --for=condition=Ready=False pod/two --timeout=1s
[ -n "$(value pod "$old" .metadata.deletionTimestamp)" ] || fail "the lost Pod is not asked to go"
[ -n "$(value pod "$stuck" .metadata.deletionTimestamp)" ] || fail "the lost ordinal is not asked to go"
says "$stuck_uid" value pod "$stuck" .metadata.uid || fail "there may be two Pods of one ordinal"
[ "$(processes "$uid")" -gt 0 ] && [ "$(processes "$stuck_uid")" -gt 0 ] || fail "the Pods behind the cut have ended"
refused "command terminated" reach one "$(address two):8080"

step "the cable is put in again: what moved has an end there, an ordinal begins anew, the rest was not touched"
ip link set "vntwo$$" up
until_true 60 ready two
until_true 30 refused "not found" k get pod "$old"
until_true 10 says 0 processes "$uid"
untainted() { [ -z "$(value node two .spec.taints)" ]; }
until_true 20 untainted
# The cluster has said that it is not, of a Pod that was all the time.
until_true 20 k wait --for=condition=Ready pod/two --timeout=1s
anew() {
    local now
    now=$(value pod "$stuck" .metadata.uid) && [ "$now" != "$stuck_uid" ]
}
until_true 30 anew
k rollout status statefulset/db --timeout=60s >/dev/null
says two value pod "$stuck" .spec.nodeName || fail "it comes back to its volume"
until_true 10 says $((begun + 1)) greetings "$stuck"
says "$stays" value pod two '.status.containerStatuses[0].containerID' || fail "a Pod that tolerates the cut was restarted"
for other in one far; do
    until_true 20 reaches $other "$(address two):8080"
    until_true 20 reaches two "$(address $other):8080"
done
until_true 20 has "hello from two" k exec two -- cat /tmp/index.html
k delete deployment moves --wait=false >/dev/null
k delete service moves db >/dev/null
k delete statefulset db >/dev/null
k delete pvc data-db-0 data-db-1 --timeout=60s >/dev/null

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
no_way() { ! inside "$1" ip route | grep -F "$range"; }

step "a node with another name is another one: it has certificates of its own, and nothing of the Pods of the old name runs on"
range=$(value node two .spec.podCIDR)
uid=$(value pod two .metadata.uid)
[ "$(processes "$uid")" -gt 0 ] || fail "Pods go on without their agent"
agent two second
until_true 60 ready second
has "CN = system:node:second" openssl x509 -noout -subject -in "$DATA-two/pki/node-client.crt"
until_true 20 says 0 processes "$uid"
[ "$(value node second .spec.podCIDR)" != "$range" ] || fail "two nodes have one range"
web second
k wait --for=condition=Ready pod/second --timeout=60s >/dev/null
for other in one far; do until_true 20 reaches $other "$(address second):8080"; done
until_true 40 k wait --for=condition=Ready=Unknown node two --timeout=1s
# As long as the old Node claims the address, nobody shows a certificate for it.
refused "certificate signed by unknown authority" k exec second -- true
k delete node two >/dev/null
until_true 20 has "hello from second" k exec second -- cat /tmp/index.html
for node in one far; do until_true 30 no_way $node; done
for other in one far; do
    reaches $other "$(address second):8080" || fail "the way went with that of the old name"
    until_true 20 reaches second "$(address $other):8080"
done
# The nodes share this machine's cgroups, and no agent that began ended anything in those of another.
says "0 0 0" k get pods one far second -o jsonpath='{.items[*].status.containerStatuses[*].restartCount}' || fail "Pods of other nodes were restarted"
k delete pod two --force >/dev/null 2>&1

step "a node goes, and nobody keeps a way to it"
range=$(value node second .spec.podCIDR)
has "$range" inside one ip route
has "$range" inside far ip route
k delete pod second --wait=false >/dev/null
ended "${AGENTS[two]}" || fail "the agent ends well"
inside two "$SKIFF" down --data-dir "$DATA-two" >/dev/null
k delete node second >/dev/null
until_true 30 no_way one
until_true 30 no_way far
[ -z "$(inside two ip -br link | grep skf || true)" ] || fail "links of the Pod network stay"

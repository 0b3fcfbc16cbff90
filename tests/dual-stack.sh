#!/usr/bin/env bash
# Two nodes of one machine with addresses of both families, and two with IPv6 alone: Pods, Services of each policy, names, node and
# host ports, exec, logs, port-forward and network policies, in each family that the cluster has.
. "$(dirname "$0")/cluster.sh"
IMAGE=skiff.local/busybox:1
NAME=one
if [ ! -e /proc/sys/net/ipv6/conf/all/forwarding ]; then
    echo "SKIPPED: this kernel has no IPv6"
    exit 0
fi
forwarding=$(</proc/sys/net/ipv4/ip_forward) forwarding_six=$(</proc/sys/net/ipv6/conf/all/forwarding)
leave() {
    local code=$?
    for log in "$DATA"/nodes/*/skiff.log; do
        [ "$code" = 0 ] || { echo "--- the end of $log" >&2; tail -15 "$log" >&2 || true; }
    done
    echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
    echo "$forwarding_six" >/proc/sys/net/ipv6/conf/all/forwarding
    set +e
    (exit "$code")
    on_exit
}
trap leave EXIT
before=$(all_traces)
[ -z "$before" ] || fail "an earlier cluster is there: $before"

# of FAMILY: those words of the input that are addresses or ranges of 4 or 6.
of() { tr ' ' '\n' | if [ "$1" = 6 ]; then grep ':' || true; else grep -v ':' | grep . || true; fi; }
# families: the families of the words of the input, in their order.
families() { tr ' ' '\n' | sed '/:/{s/.*/6/;b};s/..*/4/' | tr '\n' ' ' | sed 's/ $//'; }
# url ADDRESS PORT
url() { case $1 in *:*) echo "http://[$1]:$2/index.html" ;; *) echo "http://$1:$2/index.html" ;; esac; }
field() { k get "$1" "$2" -o "jsonpath={$3}"; }
pod_ips() { field pod "$1" '.status.podIPs[*].ip'; }
cluster_ips() { field service "$1" '.spec.clusterIPs[*]'; }
node_ips() { field node "$1" '.status.addresses[?(@.type=="InternalIP")].address'; }
# reaches POD ADDRESS PORT [TEXT]: a Pod gets the page; `machine` is this machine.
reach() { k exec "$1" -- timeout 3 wget -qO- "$(url "$2" "$3")"; }
reaches() {
    if [ "$1" = machine ]; then has "hello from ${4:-}" curl -gsS --max-time 3 "$(url "$2" "$3")"; else has "hello from ${4:-}" reach "$1" "$2" "$3"; fi
}
silent() { refused "exit code 143" reach "$1" "$2" "$3"; }

# web NAME NODE [HOSTPORT]
web() {
    local ports="{name: web, containerPort: 8080${3:+, hostPort: $3}}"
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {app: web, pod: $1}}
spec:
  nodeName: $2
  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: $IMAGE
      command: [sh, -c, 'echo hello from $1 >/tmp/index.html; exec httpd -f -v -p 8080 -h /tmp']
      ports: [$ports]
      readinessProbe: {httpGet: {port: web, path: /index.html}, periodSeconds: 1}
YAML
}
# service NAME FIELDS: in front of the Pod web-2, on the second node.
service() {
    k apply -f - <<YAML
apiVersion: v1
kind: Service
metadata: {name: $1}
spec: {selector: {pod: web-2}, ports: [{port: 80, targetPort: web}], $2}
YAML
}
policy() {
    k apply -f - >/dev/null <<YAML
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: $1}
spec: $2
YAML
}
# asked POD KIND NAME: the addresses that a name has.
asked() { k exec "$1" -- nslookup -type="$2" "$3" | sed -n '/^Name:/,$s/^Address[^:]*: *//p'; }
named() { [ "$(asked "$1" "$2" "$3" | sort | tr '\n' ' ' | sed 's/ $//')" = "$4" ]; }

# start FAMILIES: the cluster whose families these are, in this order.
start() {
    local pods=() services=() family
    for family in $1; do
        if [ "$family" = 4 ]; then pods+=(10.244.0.0/16) services+=(10.96.0.0/16); else pods+=(fd00:10:244::/56) services+=(fd00:10:96::/112); fi
    done
    "$SKIFF" "${UP[@]}" --node-name "$NAME" --nodes 2 --cluster-cidr "$(IFS=,; echo "${pods[*]}")" \
        --service-cluster-ip-range "$(IFS=,; echo "${services[*]}")" >"$WORK/up"
    has "node one-2 joined and ready" cat "$WORK/up"
}

nodes() {
    for node in one one-2; do
        [ "$(node_ips $node | families)" = "$1" ] || fail "addresses of $node: $(node_ips $node)"
        [ "$(field node $node '.spec.podCIDRs[*]' | families)" = "$1" ] || fail "ranges of $node"
    done
    web web-1 one
    web near one
    web web-2 one-2 18090
    web near-2 one-2
    k wait --for=condition=Ready pod/web-1 pod/near pod/web-2 pod/near-2 --timeout=60s >/dev/null
    for pod in web-1 web-2; do
        [ "$(pod_ips $pod | families)" = "$1" ] || fail "addresses of $pod: $(pod_ips $pod)"
        [ "$(field pod $pod '.status.hostIPs[*].ip' | families)" = "$1" ] || fail "addresses of the node of $pod"
    done
}

pods() {
    for from in near near-2 machine; do
        for to in web-1 web-2; do
            for ip in $(pod_ips $to); do until_true 15 reaches $from "$ip" 8080 $to; done
        done
    done
    # A Pod reaches the API server at its Service's address.
    until_true 15 has "ok" k exec near-2 -- sh -c 'timeout 5 nc $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && echo ok'
}

# served NAME FAMILIES: a Service has addresses of these families, and is reached at each.
served() {
    [ "$(cluster_ips "$1" | families)" = "$2" ] || fail "addresses of $1: $(cluster_ips "$1")"
    for from in near near-2 machine; do
        for ip in $(cluster_ips "$1"); do until_true 15 reaches $from "$ip" 80 web-2; done
    done
}

# names SERVICE: what DNS says are the addresses of the Service, and of the Pod behind a headless one.
names() {
    for from in near near-2; do
        until_true 20 named $from a "$1.default.svc.cluster.local" "$(cluster_ips "$1" | of 4)"
        until_true 20 named $from aaaa "$1.default.svc.cluster.local" "$(cluster_ips "$1" | of 6)"
        until_true 20 named $from a headless.default.svc.cluster.local "$(pod_ips web-2 | of 4)"
        until_true 20 named $from aaaa headless.default.svc.cluster.local "$(pod_ips web-2 | of 6)"
    done
    until_true 20 has "hello from web-2" k exec near -- timeout 3 wget -qO- "http://$1.default.svc.cluster.local/index.html"
}

ports() {
    local port
    port=$(field service ports '.spec.ports[0].nodePort')
    for ip in $(node_ips one) $(node_ips one-2); do
        for from in near near-2 machine; do until_true 15 reaches $from "$ip" "$port" web-2; done
    done
    for ip in $(node_ips one-2); do
        for from in near machine; do until_true 15 reaches $from "$ip" 18090 web-2; done
    done
}

streams() {
    for pod in web-1 web-2; do
        has "hello from $pod" k exec $pod -- cat /tmp/index.html
        has "response:200" k logs $pod
        started "$WORK/forward-$pod" env HOME="$WORK" "$KUBECTL" port-forward $pod 18080:8080
        until_true 20 has "hello from $pod" curl -s http://127.0.0.1:18080/index.html
        kill "$LAST"
        until_true 10 refused "" curl -s http://127.0.0.1:18080/index.html
    done
}

policies() {
    policy deny '{podSelector: {matchLabels: {pod: web-2}}, policyTypes: [Ingress]}'
    for ip in $(pod_ips web-2); do
        until_true 20 silent near "$ip" 8080
        until_true 20 silent near-2 "$ip" 8080
    done
    for ip in $(cluster_ips prefer); do silent near "$ip" 80; done
    policy allow '{podSelector: {matchLabels: {pod: web-2}}, ingress: [{from: [{podSelector: {matchLabels: {pod: near}}}], ports: [{port: web}]}]}'
    for ip in $(pod_ips web-2); do
        until_true 20 reaches near "$ip" 8080 web-2
        silent near-2 "$ip" 8080
    done
    for ip in $(cluster_ips prefer); do until_true 10 reaches near "$ip" 80 web-2; done
    # A block of one family opens nothing in the other one.
    local six
    six=$(pod_ips near-2 | of 6)
    policy allow "{podSelector: {matchLabels: {pod: web-2}}, ingress: [{from: [{ipBlock: {cidr: $six/128}}]}]}"
    until_true 20 reaches near-2 "$(pod_ips web-2 | of 6)" 8080 web-2
    for ip in $(pod_ips web-2); do until_true 20 silent near "$ip" 8080; done
    for ip in $(pod_ips web-2 | of 4); do silent near-2 "$ip" 8080; done
    k delete networkpolicy deny allow >/dev/null
    for ip in $(pod_ips web-2); do until_true 20 reaches near "$ip" 8080 web-2; done
}

gone() {
    has "nothing of it is left" "$SKIFF" down --data-dir "$DATA"
    local left
    left=$(all_traces)
    [ -z "$left" ] || fail "left behind: $left"
}

step "both families: two nodes, and their Pods, have addresses of each"
start "4 6"
nodes "4 6"

step "both families: Pods reach each other in each"
pods

step "both families: a Service has addresses by its policy"
service single 'ipFamilyPolicy: SingleStack' >/dev/null
service six 'ipFamilyPolicy: SingleStack, ipFamilies: [IPv6]' >/dev/null
service prefer 'ipFamilyPolicy: PreferDualStack' >/dev/null
service require 'ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv6, IPv4]' >/dev/null
service headless 'clusterIP: None, ipFamilyPolicy: RequireDualStack' >/dev/null
service ports 'type: NodePort, ipFamilyPolicy: RequireDualStack' >/dev/null
served single "4"
served six "6"
served prefer "4 6"
served require "6 4"

step "both families: names, A and AAAA"
names prefer

step "both families: node ports and host ports"
ports

step "both families: exec, logs and port-forward"
streams

step "both families: network policies"
policies

step "both families: down, and the machine is as before"
gone

step "IPv6 alone: two nodes, and their Pods"
start "6"
nodes "6"

step "IPv6 alone: Pods reach each other"
pods

step "IPv6 alone: a Service has one address, and two are refused"
service prefer 'ipFamilyPolicy: PreferDualStack' >/dev/null
service headless 'clusterIP: None' >/dev/null
service ports 'type: NodePort' >/dev/null
refused "dual-stack" service require 'ipFamilyPolicy: RequireDualStack'
served prefer "6"

step "IPv6 alone: names, ports, exec, logs, port-forward and network policies"
names prefer
ports
streams
policies

step "IPv6 alone: down, and the machine is as before"
gone

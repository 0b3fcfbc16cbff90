#!/usr/bin/env bash
# `skiff kube-proxy` in the place of the node's own proxy: with nftables, with iptables from a KubeProxyConfiguration, and back. Each
# mode leads packets, removes the rules of the other one, and is removed itself.
. "$(dirname "$0")/cluster.sh"
IMAGE=skiff.local/busybox:1
if ! command -v iptables-restore >/dev/null; then
    echo "SKIPPED: the proxy's mode iptables needs iptables (Debian: iptables)"
    exit 0
fi
if iptables-save 2>/dev/null | grep -q KUBE-; then
    echo "SKIPPED: another proxy's rules of iptables are on this machine"
    exit 0
fi
localnet=$(</proc/sys/net/ipv4/conf/all/route_localnet)
leave() {
    local code=$?
    for pid in "${STARTED[@]}"; do kill "$pid" 2>/dev/null || true; done
    [ "$code" = 0 ] || tail -20 "$WORK"/proxy-*.log >&2 || true
    "$SKIFF" kube-proxy --cleanup >/dev/null 2>&1 || true
    echo "$localnet" >/proc/sys/net/ipv4/conf/all/route_localnet
    set +e
    (exit "$code")
    on_exit
}
trap leave EXIT
none() { ! "$@"; }
iptables_rules() { iptables-save | grep KUBE-; }
nft_rules() { nft list tables | grep 'skiff-proxy'; }
page() { curl -sS --max-time 3 "http://$1/index.html"; }

"$SKIFF" "${UP[@]}" --disable proxy >/dev/null
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: $IMAGE
      command: [sh, -c, 'echo hello from the Pod >/tmp/index.html; exec httpd -f -p 8080 -h /tmp']
      readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {selector: {app: nobody}, ports: [{port: 80}]}
YAML
k wait --for=condition=Ready pod/web --timeout=60s >/dev/null
service=$(k get service web -o jsonpath='{.spec.clusterIP}')
empty=$(k get service empty -o jsonpath='{.spec.clusterIP}')
port=$(k get service web -o jsonpath='{.spec.ports[0].nodePort}')
node=$(k get nodes -o jsonpath='{.items[0].status.addresses[0].address}')
name=$(k get nodes -o jsonpath='{.items[0].metadata.name}')

# leads MODE: packets come to the Pod, from this machine and from Pods.
leads() {
    until_true 20 has "$1" curl -sS http://127.0.0.1:20249/proxyMode
    until_true 10 has "hello from the Pod" page "$service"
    until_true 10 has "hello from the Pod" page "$node:$port"
    until_true 10 has "hello from the Pod" k exec web -- timeout 3 wget -qO- "http://$service/index.html"
    until_true 10 has "connect to server" none page "$empty"
}

step "nftables, with flags"
started "$WORK/proxy-nftables.log" "$SKIFF" kube-proxy --kubeconfig "$DATA/admin.kubeconfig" --hostname-override "$name" \
    --cluster-cidr 10.244.0.0/16 --healthz-bind-address 127.0.0.1:20256 --metrics-bind-address 127.0.0.1:20249
leads nftables
until_true 10 has kube-proxy k get events --field-selector "reason=Starting,involvedObject.name=$name" -o "jsonpath={.items[*].reportingComponent}"
ended "$LAST"
nft_rules >/dev/null || fail "the rules go with the process"

step "iptables, with a KubeProxyConfiguration: the rules of nftables go, and node ports are at 127.0.0.1 too"
cat >"$WORK/config.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: $DATA/admin.kubeconfig}
clusterCIDR: 10.244.0.0/16
healthzBindAddress: 127.0.0.1:20256
metricsBindAddress: 127.0.0.1:20249
YAML
started "$WORK/proxy-iptables.log" "$SKIFF" kube-proxy --config "$WORK/config.yaml" --hostname-override "$name"
leads iptables
until_true 10 has "hello from the Pod" page "127.0.0.1:$port"
none nft_rules >/dev/null || fail "the rules of nftables stay"
has "default/web cluster IP" iptables-save -t nat

step "an endpoint that goes, and comes back"
k label pod web app=other --overwrite >/dev/null
until_true 10 has "connect to server" none page "$service"
k label pod web app=web --overwrite >/dev/null
until_true 10 has "hello from the Pod" page "$service"

step "nftables again: the rules of iptables go"
ended "$LAST"
started "$WORK/proxy-again.log" "$SKIFF" kube-proxy --kubeconfig "$DATA/admin.kubeconfig" --hostname-override "$name" \
    --cluster-cidr 10.244.0.0/16 --proxy-mode nftables --healthz-bind-address 127.0.0.1:20256 --metrics-bind-address 127.0.0.1:20249
leads nftables
none iptables_rules >/dev/null || fail "the rules of iptables stay"
ended "$LAST"

step "what is missing, and what is removed"
mkdir "$WORK/empty"
refused "install the package iptables" env PATH="$WORK/empty" "$SKIFF" kube-proxy --config "$WORK/config.yaml" --hostname-override "$name"
"$SKIFF" kube-proxy --cleanup
none nft_rules >/dev/null || fail "rules stay"

step "a whole node with iptables"
# `skiff down` must not take another proxy's chains: those of iptables go only where the node wrote them.
"$SKIFF" down --data-dir "$DATA" >/dev/null
"$SKIFF" "${UP[@]}" --proxy-mode iptables >/dev/null
api=$(k get service kubernetes -o jsonpath='{.spec.clusterIP}')
until_true 20 has '"major"' curl -sk --max-time 3 "https://$api/version"
has "default/kubernetes" iptables-save -t nat
none nft_rules >/dev/null || fail "the node writes rules of nftables too"

step "the same node killed, and with nftables again: its rules of iptables go, and another proxy's stay from then on"
kill -9 "$(cat "$DATA/skiff.pid")"
"$SKIFF" "${UP[@]}" >/dev/null
until_true 20 has '"major"' curl -sk --max-time 3 "https://$api/version"
until_true 10 none iptables_rules
until_true 10 none test -e "$DATA/proxy-iptables"
iptables -t nat -N KUBE-SERVICES
"$SKIFF" down --data-dir "$DATA" >/dev/null
has KUBE-SERVICES iptables-save -t nat
iptables -t nat -X KUBE-SERVICES

step "its end with iptables leaves no rule"
"$SKIFF" "${UP[@]}" --proxy-mode iptables >/dev/null
until_true 20 has "default/kubernetes" iptables-save -t nat
"$SKIFF" down --data-dir "$DATA" >/dev/null
none iptables_rules >/dev/null || fail "the node's rules of iptables stay"
refused "ipvs is not available" "$SKIFF" "${UP[@]}" --proxy-mode ipvs

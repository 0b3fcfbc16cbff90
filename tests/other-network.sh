#!/usr/bin/env bash
# Another Pod network instead of skiff's: the standard plugins bridge, host-local and portmap, with their configuration where every
# engine looks for it. Pods, Services, names and host ports, and everything gone afterwards.
. "$(dirname "$0")/cluster.sh"
IMAGE=skiff.local/busybox:1
CONFIG=/etc/cni/net.d/10-skiff-test.conflist
BRIDGE=skcni0
forwarding=$(</proc/sys/net/ipv4/ip_forward)

for folder in /opt/cni/bin /usr/lib/cni; do [ ! -x "$folder/loopback" ] || PLUGINS=${PLUGINS:-$folder}; done
if [ -z "${PLUGINS:-}" ] || ! command -v iptables >/dev/null; then
    echo "SKIPPED: another network needs the standard plugins and iptables (Debian: containernetworking-plugins, iptables)"
    exit 0
fi
if compgen -G "/etc/cni/net.d/*.conf*" >/dev/null; then
    echo "SKIPPED: this machine has a network configuration of its own in /etc/cni/net.d"
    exit 0
fi
leave() {
    local code=$?
    rm -f "$CONFIG"
    ip link delete "$BRIDGE" 2>/dev/null || true
    rm -rf /var/lib/cni/networks/skiff-test
    echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
    set +e
    (exit "$code")
    on_exit
}
trap leave EXIT

step "without a configuration the node says what it waits for"
mkdir -p /etc/cni/net.d
"$SKIFF" "${UP[@]}" --disable network --wait 15 >"$WORK/up" 2>&1 && fail "a node without a network is not ready"
"$SKIFF" down --data-dir "$DATA" >/dev/null

step "with one Pods run on that network"
cat >"$CONFIG" <<JSON
{"cniVersion": "0.4.0", "name": "skiff-test", "plugins": [
  {"type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.9.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
"$SKIFF" "${UP[@]}" --disable network >/dev/null
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: $IMAGE
      command: [sh, -c, 'echo hello from another network >/tmp/index.html; exec httpd -f -p 8080 -h /tmp']
      ports: [{containerPort: 8080, hostPort: 18081}]
      readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: $IMAGE, command: [sleep, "10000"]}]}
YAML
k wait --for=condition=Ready pod/web pod/client --timeout=60s >/dev/null
k expose pod web --port=80 --target-port=8080 >/dev/null
pod=$(k get pod web -o jsonpath='{.status.podIP}')
node=$(k get nodes -o jsonpath='{.items[0].status.addresses[0].address}')
[[ $pod == 10.244.9.* ]] || fail "the other network gives the addresses, not $pod"
has "$BRIDGE" ip route get "$pod"
[ -z "$(ip -br link | grep '^skf' || true)" ] || fail "skiff's own network is not there"
[ -z "$(nft list tables | grep skiff-network || true)" ] || fail "nor its rules"

step "Pods, Services, names and host ports"
until_true 10 has "another network" k exec client -- timeout 3 wget -qO- "http://$pod:8080/index.html"
service=$(k get service web -o jsonpath='{.spec.clusterIP}')
until_true 10 has "another network" curl -sS --max-time 3 "http://$service/index.html"
until_true 10 has "$service" k exec client -- nslookup web.default.svc.cluster.local
until_true 10 has "another network" curl -sS --max-time 3 "http://$node:18081/index.html"
until_true 10 has "another network" curl -sS --max-time 3 "http://127.0.0.1:18081/index.html"

step "its Pods go with the cluster"
"$SKIFF" down --data-dir "$DATA" >/dev/null
[ -z "$(ip -br link show master "$BRIDGE" || true)" ] || fail "links of Pods stay on the bridge"
[ -z "$(iptables-save -t nat | grep 18081 || true)" ] || fail "the host port stays open"

#!/usr/bin/env bash
# Devices on a real node: those of a device plugin and those that a driver prepares for claims, from their offer to their return,
# over a driver and a kubelet that go and come back. $TOYS names the driver, the example toy_driver of the crate kubelet.
if [ ! -x "${TOYS:-}" ]; then
    echo "SKIPPED: \$TOYS must name the driver of toys, which 'make unit' builds"
    exit 0
fi
. "$(dirname "$0")/cluster.sh"
DRIVER=toys.skiff.example
CDI=/var/run/cdi

"$SKIFF" "${UP[@]}" >/dev/null
NODE=$(k get node -o 'jsonpath={.items[0].metadata.name}')
drive() { # LOG
    started "$1" "$TOYS" "$DATA/kubelet" "$CDI" "$DRIVER"
    until_true 30 grep -q "registered true" "$1"
}
phase() { k get pod "$1" -o 'jsonpath={.status.phase}'; }
# A Pod that says what it was given, and stays: NAME RESOURCES [CLAIMS]
pod() {
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: m, image: 'skiff.local/busybox:1', command: [sh, -c, 'echo "toys=\$TOYS claim=\$TOY_CLAIM"; sleep 1000'], resources: $2}
  resourceClaims: ${3:-[]}
YAML
}
claim() { # NAME
    k apply -f - >/dev/null <<YAML
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: $1}
spec: {devices: {requests: [{name: toy, exactly: {deviceClassName: toys}}]}}
YAML
}
offer() {
    k apply -f - >/dev/null <<YAML
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: $NODE-toys}
spec:
  driver: $DRIVER
  nodeName: $NODE
  pool: {name: toys, generation: 1, resourceSliceCount: 1}
  devices: [{name: toy-0}]
YAML
}

step "a driver registers, and its devices are the node's"
drive "$WORK/first.log"
FIRST=$LAST
until_true 30 says 2 k get node "$NODE" -o "jsonpath={.status.allocatable['toys\.skiff\.example/toy']}"

step "a container gets the devices of a plugin, and nobody else does"
pod one "{limits: {$DRIVER/toy: 2}}"
until_true 60 says Running phase one
until_true 30 has "toys=toy-0 toy-1" k logs one
pod two "{limits: {$DRIVER/toy: 1}}"
until_true 30 has "Insufficient $DRIVER/toy" k describe pod two
k delete pod one --wait >/dev/null
until_true 60 says Running phase two
k delete pod two --wait >/dev/null

step "a claim is prepared by its driver before its Pod begins, and taken back after it"
k apply -f - >/dev/null <<YAML
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: toys}
spec: {selectors: [{cel: {expression: device.driver == "$DRIVER"}}]}
YAML
offer
claim mine
pod three "{claims: [{name: c}]}" '[{name: c, resourceClaimName: mine}]'
until_true 60 says Running phase three
grep -qx "prepare mine" "$WORK/first.log" || fail "the driver was not asked"
if [ "$(printf '%s\n' 1.7 "$(containerd --version | grep -oE 'v?[0-9]+\.[0-9]+\.[0-9]+' | head -1 | tr -d v)" | sort -V | head -1)" = 1.7 ]; then
    until_true 30 has "claim=mine" k logs three
else
    echo "SKIPPED: this containerd knows no CDI devices, so the container does not see its own"
fi

step "a Pod does not go before its driver has taken its devices back"
ended "$FIRST" || true
k delete pod three --wait=false >/dev/null
until_true 30 has "NodeUnprepareResources: rpc error: code = Unavailable" cat "$DATA/skiff.log"
k get pod three >/dev/null
drive "$WORK/second.log"
until_true 60 refused "not found" k get pod three
grep -qx "unprepare mine" "$WORK/second.log" || fail "the driver was not asked"

step "a kubelet that was killed knows what is prepared"
pod four "{claims: [{name: c}]}" '[{name: c, resourceClaimName: mine}]'
until_true 60 says Running phase four
kill -9 "$(cat "$DATA/skiff.pid")"
"$SKIFF" "${UP[@]}" >/dev/null
k delete pod four --wait >/dev/null
until_true 60 says 2 grep -cx "unprepare mine" "$WORK/second.log"

step "the devices of a driver that stays away are withdrawn"
offer
has "$NODE-toys" k get resourceslices
ended "$LAST" || true
until_true 90 refused "not found" k get resourceslice "$NODE-toys"

#!/usr/bin/env bash
# The tests on the real machine: the built binary, containerd, nftables and kubectl. Needs root; leaves the machine as
# it was, also when a test fails. $SKIFF names the binary, $KUBECTL a kubectl; a newer kubectl is tried besides.
set -euo pipefail
cd "$(dirname "$0")"
# $TOYS names a driver of devices, which `cargo test` builds among the examples, $WIREGUARD a test of the crate network, and
# $DEBUG_SKIFF a debug build of the binary.
if [ "$(id -u)" != 0 ]; then
    echo "SKIPPED: the cluster tests need root"
    exit 0
fi
: "${SKIFF:?SKIFF must name the skiff binary}"
export SKIFF

passed=0
failed=0
FAILURES=$(mktemp)
export FAILURES
trap 'rm -f "$FAILURES"' EXIT
run() { # run NAME COMMAND...
    local name=$1
    shift
    echo "=== $name"
    local begun=$SECONDS
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "--- FAILED: $name" | tee -a "$FAILURES"
    fi
    echo "    $((SECONDS - begun)) s, until $(date +%T)"
}

old=${KUBECTL:-$(command -v kubectl || true)}
new=$(./newer-kubectl.sh || true)
kubectl=${new:-$old}
if [ -z "$kubectl" ]; then
    echo "SKIPPED: the cluster tests need a kubectl (\$KUBECTL names one)"
    exit 0
fi
export KUBECTL=$kubectl
run "bad input" ./bad-input.sh
run "waypoints in gdb" ./waypoints.sh
[ -n "$old" ] && run "walk with $("$old" version --client | sed -n 1p)" env KUBECTL="$old" ./walk.sh
if [ -n "$new" ]; then
    run "walk with $("$new" version --client | sed -n 1p)" ./walk.sh
    run "helm" env HELM="$(dirname "$new")/helm" ./helm.sh
else
    echo "SKIPPED: a newer kubectl, and helm with it, could not be fetched"
fi
run "Go clients" ./go-client.sh
run "Python and JavaScript clients" ./other-clients.sh
run "features" ./features.sh
run "conformance tests of newer releases" ./newer-conformance.sh
run "workloads" ./workloads.sh
run "autoscaling" ./autoscaling.sh
run "cluster DNS" ./dns.sh
run "volumes" ./volumes.sh
run "local storage" ./local-storage.sh
run "devices" ./devices.sh
run "CSI drivers" ./csi.sh
run "certificates of Pods" ./certificates.sh
run "aggregated servers" ./aggregated.sh
run "streams" ./streams.sh
run "network policies" ./policies.sh
run "node" ./node.sh
run "resizes" ./resize.sh
run "agent" ./agent.sh
run "several nodes" ./nodes.sh
run "several nodes with one command" ./up-nodes.sh
run "a registry, and images that nodes share" ./registry.sh
run "both families of addresses, and IPv6 alone" ./dual-stack.sh
run "encrypted ways between nodes" ./wireguard.sh
run "labels of SELinux" ./selinux.sh
run "another machine" ./machine.sh
run "the end of a machine" ./poweroff.sh
run "power cuts" ./power-cut.sh
run "servers of volumes" ./servers.sh
run "another network" ./other-network.sh
run "the proxy alone" ./kube-proxy.sh
run "engines of today" ./engines.sh
run "restarts" ./restarts.sh
cat "$FAILURES"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

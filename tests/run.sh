#!/usr/bin/env bash
# The tests on the real machine: the built binary, containerd, nftables and kubectl. Needs root; leaves the machine as
# it was, also when a test fails. $SKIFF names the binary, $KUBECTL a kubectl; a newer kubectl is tried besides.
#
# Tests in virtual machines touch nothing of this one and mostly wait for one of its processors: they run one after the other beside all
# others, and what each said is told when it ends.
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

notes=$(mktemp -d)
export FAILURES=$notes/failures
touch "$FAILURES" "$notes/passed" "$notes/failed"
machines=
# A machine that is running ends with the shell that waits for it.
end() {
    [ -z "$machines" ] || kill -TERM -- "-$machines" 2>/dev/null || true
    rm -rf "$notes"
}
trap end EXIT
run() { # run NAME COMMAND...
    local name=$1
    shift
    echo "=== $name"
    local begun=$SECONDS
    if "$@"; then
        echo "$name" >>"$notes/passed"
    else
        echo "$name" >>"$notes/failed"
        echo "--- FAILED: $name" | tee -a "$FAILURES"
    fi
    echo "    $((SECONDS - begun)) s, until $(date +%T)"
}
beside() { # as run, but tells all at once when it has ended
    run "$@" >"$notes/said" 2>&1
    cat "$notes/said"
}

old=${KUBECTL:-$(command -v kubectl || true)}
new=$(./newer-kubectl.sh || true)
kubectl=${new:-$old}
if [ -z "$kubectl" ]; then
    echo "SKIPPED: the cluster tests need a kubectl (\$KUBECTL names one)"
    exit 0
fi
export KUBECTL=$kubectl
in_machines() {
    set +m
    beside "another machine" ./machine.sh
    beside "servers of volumes" ./servers.sh
    beside "power cuts" ./power-cut.sh
    beside "labels of SELinux" ./selinux.sh
    beside "profiles of AppArmor" ./apparmor.sh
    beside "encrypted ways between nodes" ./wireguard.sh
}
# In a process group of its own, so that it can be ended as a whole.
set -m
in_machines </dev/null &
machines=$!
set +m
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
run "volumes that CSI drivers make" ./csi-volumes.sh
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
run "another network" ./other-network.sh
run "the proxy alone" ./kube-proxy.sh
run "engines of today" ./engines.sh
run "restarts" ./restarts.sh
run "kills of a kubelet" env KILLS=25 ./kills.sh
wait "$machines"
machines=
# In this one Pods have to end in seconds that do not wait for a busy machine.
run "the end of a machine" ./poweroff.sh
cat "$FAILURES"
echo "$(wc -l <"$notes/passed") passed, $(wc -l <"$notes/failed") failed"
[ ! -s "$notes/failed" ]

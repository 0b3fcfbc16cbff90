#!/usr/bin/env bash
# Crashes: after kill -9 of skiff or of its container engine the Pods still run, and `skiff up` goes on with the same data.
. "$(dirname "$0")/cluster.sh"

started_at() { k get pod keeper -o jsonpath='{.status.containerStatuses[0].state.running.startedAt}/{.status.containerStatuses[0].restartCount}'; }

"$SKIFF" "${UP[@]}" >/dev/null
k run keeper --image=skiff.local/busybox:1 --restart=Always -- sleep 100000 >/dev/null
k wait --for=condition=Ready pod/keeper --timeout=60s >/dev/null
before=$(started_at)

step "kill -9 of skiff leaves the Pod alone"
kill -9 "$(cat "$DATA/skiff.pid")"
pgrep -f 'sleep 100000' >/dev/null || fail "the Pod's process is gone"
has "export KUBECONFIG" "$SKIFF" "${UP[@]}"
k wait --for=condition=Ready pod/keeper --timeout=60s >/dev/null
[ "$(started_at)" = "$before" ] || fail "the Pod was restarted: $before, now $(started_at)"
k exec keeper -- true

step "kill -9 of the container engine leaves the Pod alone"
kill -9 "$(cat "$DATA/containerd/containerd.pid")"
until_true 60 k exec keeper -- true
[ "$(started_at)" = "$before" ] || fail "the Pod was restarted: $before, now $(started_at)"

step "down --keep-data and up again: the objects are there"
k create configmap kept --from-literal=a=b >/dev/null
"$SKIFF" down --data-dir "$DATA" --keep-data >/dev/null
"$SKIFF" "${UP[@]}" >/dev/null
has "kept" k get configmap kept
k wait --for=condition=Ready pod/keeper --timeout=120s >/dev/null
"$SKIFF" store verify --data-dir "$DATA" 2>&1 | grep "in use" >/dev/null || fail "store verify says that the store is in use"

"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"

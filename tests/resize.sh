#!/usr/bin/env bash
# Containers whose resources change while they run: what kubectl asks for is what the kernel holds them to, with and without a
# restart; what does not fit waits for room, what never fits is refused, and memory in use is not taken away.
. "$(dirname "$0")/cluster.sh"

IMAGE=skiff.local/busybox:1
FOREVER='trap exit TERM; while :; do sleep 0.2; done'

# pod NAME CPU MEMORY MEMORY_POLICY: a Guaranteed Pod.
pod() {
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: "$IMAGE"
    command: [sh, -c, "$FOREVER"]
    resources: {requests: {cpu: $2, memory: $3}, limits: {cpu: $2, memory: $3}}
    resizePolicy: [{resourceName: memory, restartPolicy: $4}]
YAML
    k wait --for=condition=Ready "pod/$1" --timeout=30s >/dev/null
}

# resize NAME CPU MEMORY
resize() {
    local both="{\"cpu\": \"$2\", \"memory\": \"$3\"}"
    k patch pod "$1" --subresource resize -p "{\"spec\": {\"containers\": [{\"name\": \"c\", \"resources\": {\"requests\": $both, \"limits\": $both}}]}}" >/dev/null
}

# limit CONTROLLER FILE FILE_OF_VERSION_2 NAME container|pod: what the kernel holds a Pod, or its container, to.
limit() {
    local uid id folder
    uid=$(k get pod "$4" -o jsonpath='{.metadata.uid}')
    id=$(k get pod "$4" -o jsonpath='{.status.containerStatuses[0].containerID}')
    [ "$5" = pod ] && id="" || id="/${id#*://}"
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        folder=$(find /sys/fs/cgroup -type d -name "pod$uid")
        cut -d' ' -f1 "$folder$id/$3"
    else
        folder=$(find "/sys/fs/cgroup/$1/" -type d -name "pod$uid")
        cat "$folder$id/$2"
    fi
}
cpu() { limit cpu cpu.cfs_quota_us cpu.max "$@"; }
memory() { limit memory memory.limit_in_bytes memory.max "$@"; }
# held NAME QUOTA BYTES: the kernel holds the Pod and its container to these.
held() {
    [ "$(cpu "$1" container) $(memory "$1" container) $(cpu "$1" pod) $(memory "$1" pod)" = "$2 $3 $2 $3" ]
}
status() { k get pod "$1" -o jsonpath="{.status.containerStatuses[0].$2}"; }
condition() { k get pod "$1" -o jsonpath="{.status.conditions[?(@.type==\"$2\")].$3}"; }
settled() { [ -z "$(condition "$1" PodResizePending status)$(condition "$1" PodResizeInProgress status)" ]; }
restarts() { [ "$(status "$1" restartCount)" = "$2" ]; }

"$SKIFF" "${UP[@]}" >/dev/null
pod p 100m 64Mi NotRequired
held p 10000 67108864 || fail "the kernel holds the Pod to its limits"

step "a container grows and shrinks without a restart"
resize p 300m 128Mi
until_true 20 held p 30000 134217728
until_true 20 settled p
[ "$(status p resources.limits.cpu) $(status p resources.requests.memory) $(status p allocatedResources.memory)" = "300m 128Mi 128Mi" ] || fail "the status has it"
resize p 50m 32Mi
until_true 20 held p 5000 33554432
until_true 20 settled p
restarts p 0 || fail "the container was restarted"
until_true 10 has ResizeStarted k get events --field-selector involvedObject.name=p
until_true 10 has 'Pod resize completed: {"containers":[{"name":"c","resources":{"limits":{"cpu":"50m","memory":"32Mi"}' k describe pod p

step "a container restarts where its policy asks for it"
pod r 100m 64Mi RestartContainer
resize r 200m 64Mi
until_true 20 held r 20000 67108864
restarts r 0 || fail "processors need no restart"
resize r 200m 96Mi
until_true 20 restarts r 1
until_true 20 held r 20000 100663296
until_true 20 settled r
has "Container c resize requires restart" k describe pod r

step "what the node never has is infeasible, and can be taken back"
resize p 1000 32Mi
until_true 20 has "Node didn't have enough capacity: cpu, requested: 1000000, capacity: " condition p PodResizePending message
[ "$(condition p PodResizePending reason) $(status p resources.limits.cpu)" = "Infeasible 50m" ] || fail "nothing has changed"
held p 5000 33554432 || fail "the kernel holds it to what it had"
resize p 50m 32Mi
until_true 20 settled p

refused "resource limits cannot be removed" k patch pod p --subresource resize -p '{"spec": {"containers": [{"name": "c", "resources": {"limits": {"memory": null}}}]}}'

step "what does not fit now waits for room, also over a kubelet that starts again"
most=$(($(nproc) * 500 + 100))m
pod great "$most" 32Mi NotRequired
resize p "$most" 32Mi
until_true 20 has Deferred condition p PodResizePending reason
kill -9 "$(cat "$DATA/skiff.pid")"
"$SKIFF" "${UP[@]}" >/dev/null
held p 5000 33554432 || fail "the next kubelet gave what does not fit"
k delete pod great --timeout=30s >/dev/null
until_true 30 held p "$((${most%m} * 100))" 33554432
until_true 20 settled p

step "memory that is in use is not taken away"
resize p 50m 64Mi
until_true 20 held p 5000 67108864
k exec p -- sh -c 'dd if=/dev/zero of=/dev/shm/full bs=1M count=40 2>/dev/null'
resize p 50m 16Mi
until_true 30 has "cannot decrease memory limits: " condition p PodResizeInProgress message
[ "$(condition p PodResizeInProgress reason) $(memory p container)" = "Error 67108864" ] || fail "the limit stays"
k exec p -- rm /dev/shm/full
until_true 30 held p 5000 16777216
until_true 20 settled p
restarts p 0 || fail "the container was killed for its memory"

step "the resources of a whole Pod change where the feature is on"
whole() {
    local both="{\"cpu\": \"$1\", \"memory\": \"$2\"}"
    k patch pod whole --subresource resize -p "{\"spec\": {\"resources\": {\"requests\": $both, \"limits\": $both}}}"
}
has_whole() { says "$1 $2 $1 $2" k get pod whole -o jsonpath='{.status.resources.limits.cpu} {.status.resources.requests.memory} {.status.allocatedResources.cpu} {.status.allocatedResources.memory}'; }
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: whole}
spec:
  terminationGracePeriodSeconds: 1
  resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 100m, memory: 64Mi}}
  containers: [{name: c, image: "$IMAGE", command: [sh, -c, "$FOREVER"]}]
YAML
k wait --for=condition=Ready pod/whole --timeout=30s >/dev/null
refused "pods with pod-level resources cannot be resized" whole 300m 128Mi
kill -9 "$(cat "$DATA/skiff.pid")"
"$SKIFF" "${UP[@]}" --feature-gates=NodeDeclaredFeatures=true,InPlacePodLevelResourcesVerticalScaling=true >/dev/null
until_true 30 has InPlacePodLevelResourcesVerticalScaling k get nodes -o jsonpath='{.items[0].status.declaredFeatures}'
whole 300m 128Mi >/dev/null
until_true 20 held whole 30000 134217728
until_true 20 has_whole 300m 128Mi
whole 1000 128Mi >/dev/null
until_true 20 has Infeasible condition whole PodResizePending reason
has_whole 300m 128Mi || fail "nothing has changed"
whole 50m 32Mi >/dev/null
until_true 20 held whole 5000 33554432
until_true 20 has_whole 50m 32Mi
until_true 20 settled whole
restarts whole 0 || fail "the container was restarted"

"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"

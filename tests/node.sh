#!/usr/bin/env bash
# What a node does by itself: whom it lets in, what waits and what is tried again, containers to debug with, a sandbox that dies,
# manifests that break, and Pods that have to go when the node runs short.
. "$(dirname "$0")/cluster.sh"

IMAGE=skiff.local/busybox:1
FOREVER='trap exit TERM; while :; do sleep 0.2; done'

# pod NAME SPEC: a Pod with this part of its spec besides a container `c` (whose own fields come third).
pod() {
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec: {terminationGracePeriodSeconds: 1, $2 containers: [{name: c, image: "$IMAGE", command: [sh, -c, "$FOREVER"]${3:-}}]}
YAML
}

"$SKIFF" "${UP[@]}" >/dev/null
node=$(k get nodes -o jsonpath='{.items[0].metadata.name}')

step "a Pod that has no place on its node is refused for good"
pod big "nodeName: $node," ', resources: {requests: {cpu: "100"}}'
pod elsewhere "nodeName: $node, nodeSelector: {zone: mars},"
until_true 20 has "OutOfcpu Pod was rejected: Node didn't have enough resource: cpu, requested: 100000, used: 0, capacity: " \
    k get pod big -o jsonpath='{.status.reason} {.status.message}'
until_true 20 has "NodeAffinity Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector" \
    k get pod elsewhere -o jsonpath='{.status.reason} {.status.message}'

step "what a Pod asks for its protection is done or refused"
pod sysctl 'securityContext: {sysctls: [{name: net.core.somaxconn, value: "1"}]},'
until_true 20 has 'SysctlForbidden Pod was rejected: forbidden sysctl: "net.core.somaxconn" not allowlisted' \
    k get pod sysctl -o jsonpath='{.status.reason} {.status.message}'
pod users 'hostUsers: false,'
until_true 20 has "can't set \`spec.hostUsers: false\`, runtime does not support user namespaces" k describe pod users
MAKER="{name: i, image: \"$IMAGE\", command: [sh, -c, 'cd /v; mkdir in; echo mine > in/f; ln -s in good; ln -s /etc bad'], volumeMounts: [{name: v, mountPath: /v}]}"
pod parts "volumes: [{name: v, emptyDir: {}}], initContainers: [$MAKER]," ', volumeMounts: [{name: v, mountPath: /good, subPath: good}]'
k wait --for=condition=Ready pod/parts --timeout=20s >/dev/null
[ "$(k exec parts -- cat /good/f)" = mine ] || fail "a link inside the volume is followed"
pod out "volumes: [{name: v, emptyDir: {}}], initContainers: [$MAKER]," ', volumeMounts: [{name: v, mountPath: /bad, subPath: bad}]'
until_true 20 has 'failed to prepare subPath for volumeMount "v" of container "c"' k get pod out -o jsonpath='{..waiting.message}'
k delete pod sysctl users parts out --timeout=30s >/dev/null

step "system calls are those that the Pod's profiles let through"
mkdir -p "$DATA/kubelet/seccomp/own"
echo '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}' \
    >"$DATA/kubelet/seccomp/own/no-mkdir.json"
confined() { # NAME PROFILE: one more container
    echo "}, {name: $1, image: \"$IMAGE\", command: [sh, -c, \"mkdir /made 2>/said; $FOREVER\"], securityContext: {seccompProfile: {$2}}"
}
pod confined 'securityContext: {seccompProfile: {type: RuntimeDefault}},' \
    "$(confined open 'type: Unconfined')$(confined own 'type: Localhost, localhostProfile: own/no-mkdir.json')"
pod unknown 'securityContext: {seccompProfile: {type: Localhost, localhostProfile: none.json}},'
k wait --for=condition=Ready pod/confined --timeout=20s >/dev/null
mode() { k exec confined -c "$1" -- sed -n 's/^Seccomp:\t//p' /proc/1/status; }
for is in "c 2" "open 0" "own 2"; do says "${is#* }" mode "${is% *}" || fail "system calls of ${is% *}"; done
says "" k exec confined -c open -- cat /said || fail "an open container makes folders"
has "Operation not permitted" k exec confined -c own -- cat /said
until_true 20 has "none.json: no such file or directory" k get pod unknown -o jsonpath='{..waiting.message}'
has CreateContainerError k get pod unknown -o jsonpath='{..waiting.reason}'
k delete pod confined unknown --timeout=30s >/dev/null

step "skiff and its engine are spared when memory runs out, or it is said once that the kernel does not let them be"
score() { cat "/proc/$1/oom_score_adj"; }
engine=$(cat "$DATA/containerd/containerd.pid")
if ! grep -q "does not let this process ask to be spared" "$DATA/skiff.log"; then
    says "-999 -999" echo "$(score "$(cat "$DATA/skiff.pid")") $(score "$engine")" || fail "they are not spared"
else
    says 1 grep -c "does not let this process ask to be spared" "$DATA/skiff.log" || fail "it is said again and again"
fi

step "no local user reads what is in the data folder"
[ "$(stat -c %a "$DATA" "$DATA/kubelet" "$DATA/kubelet/pods" "$DATA/logs" | paste -sd' ')" = "711 750 750 750" ] || fail "the folders' modes"
open=$(find "$DATA/kubelet/pods" -mindepth 1 -maxdepth 1 -perm /007)
[ -z "$open" ] || fail "open to others: $open"
for folder in "$DATA" "$DATA/run" "$DATA/kubelet" "$DATA/pki" "$DATA/containerd" "$DATA/run/io.containerd.grpc.v1.cri"; do
    refused "Permission denied" setpriv --reuid 65534 --regid 65534 --clear-groups ls "$folder"
done

step "an image that cannot be pulled, and one that must not be"
k run nopull --image=localhost:1/none:1 >/dev/null
k run never --image=localhost:1/none:1 --image-pull-policy=Never >/dev/null
until_true 30 has "ImagePullBackOff" k get pod nopull
has 'Back-off pulling image "localhost:1/none:1": ErrImagePull: ' k get pod nopull -o jsonpath='{..waiting.message}'
refused "trying and failing to pull image" k logs nopull
until_true 20 has "ErrImageNeverPull" k get pod never

step "a Secret that is missing is waited for"
pod late "volumes: [{name: v, secret: {secretName: late}}]," ', volumeMounts: [{name: v, mountPath: /v}]'
until_true 20 has 'secret "late" not found' k describe pod late
k create secret generic late --from-literal=a=b >/dev/null
k wait --for=condition=Ready pod/late --timeout=20s >/dev/null
[ "$(k exec late -- cat /v/a)" = b ] || fail "the Secret is in its volume"

step "a container to debug with sees its target"
pod target ""
k wait --for=condition=Ready pod/target --timeout=20s >/dev/null
k debug target --image=$IMAGE --target=c -c look --profile=general -- sh -c 'ps; sleep 1' >/dev/null 2>&1
until_true 20 has "$FOREVER" k logs target -c look
until_true 20 has Completed k get pod target -o jsonpath='{.status.ephemeralContainerStatuses[0].state.terminated.reason}'

step "a sandbox that dies is made anew, with its containers"
uid=$(k get pod target -o jsonpath='{.metadata.uid}')
for proc in /proc/[0-9]*; do
    if grep -q "pod$uid" "$proc/cgroup" 2>/dev/null && grep -q '^/pause' "$proc/cmdline" 2>/dev/null; then
        kill -9 "${proc#/proc/}"
    fi
done
until_true 30 has "Pod sandbox changed, it will be killed and re-created." k describe pod target
until_true 30 has "1" k get pod target -o jsonpath='{.status.containerStatuses[0].restartCount}'
k wait --for=condition=Ready pod/target --timeout=20s >/dev/null

step "a manifest that breaks keeps its Pod and is read again when it is mended"
manifest() { printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: fixed}\nspec: {terminationGracePeriodSeconds: 1, containers: [{name: %s, image: "%s", command: [sleep, "1000"]}]}\n' "$1" $IMAGE; }
manifest first >"$DATA/manifests/fixed.yaml"
until_true 20 has Running k get pod "fixed-$node"
echo 'spec: [' >"$DATA/manifests/fixed.yaml"
until_true 10 has "a static Pod's manifest is not usable" cat "$DATA/skiff.log"
has Running k get pod "fixed-$node"
manifest second >"$DATA/manifests/fixed.yaml"
until_true 20 has second k get pod "fixed-$node" -o jsonpath='{.spec.containers[0].name}'
rm "$DATA/manifests/fixed.yaml"
until_true 20 refused "not found" k get pod "fixed-$node"

step "a static Pod's successor waits for it, and its mirror shows it until it has ended"
slow() { printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: slow}\nspec: {terminationGracePeriodSeconds: 6, containers: [{name: %s, image: "%s", command: [sleep, "1000"]}]}\n' "$1" $IMAGE >"$DATA/manifests/slow.yaml"; }
shown() { k get pod "slow-$node" -o jsonpath='{.spec.containers[0].name} {.status.phase}'; }
slow first
until_true 20 says "first Running" shown
slow second
sleep 3
says "first Running" shown
until_true 20 says "second Running" shown
rm "$DATA/manifests/slow.yaml"
sleep 3
says "second Running" shown
until_true 20 refused "not found" k get pod "slow-$node"

step "nobody makes the node seem to be a machine of another kind"
kind() { k get node "$node" -o 'jsonpath={.metadata.labels.kubernetes\.io/os} {.metadata.labels.kubernetes\.io/arch}'; }
before=$(kind)
k label node "$node" --overwrite kubernetes.io/os=dummyOS kubernetes.io/arch=dummyArch >/dev/null
until_true 30 says "$before" kind

step "others make room for a critical Pod"
pod filler "nodeName: $node," ", resources: {requests: {cpu: \"$(nproc)\"}}"
k wait --for=condition=Ready pod/filler --timeout=20s >/dev/null
pod critical "nodeName: $node, priorityClassName: system-node-critical," ', resources: {requests: {cpu: 500m}}'
k wait --for=condition=Ready pod/critical --timeout=40s >/dev/null
has "Failed Preempting Preempted in order to admit critical pod" k get pod filler -o jsonpath='{.status.phase} {.status.reason} {.status.message}'
has 'kubelet_preemptions{preemption_signal="cpu"} 1' k get --raw "/api/v1/nodes/$node/proxy/metrics"
k delete pod filler critical --timeout=30s >/dev/null

step "what somebody writes into the node's capacity is for Pods"
dongles() { k get node "$node" -o 'jsonpath={.status.allocatable.example\.com/dongle}'; }
k patch node "$node" --subresource=status --type=merge -p '{"status": {"capacity": {"example.com/dongle": "4"}}}' >/dev/null
until_true 30 has 4 dongles
pod dongle "" ', resources: {limits: {example.com/dongle: 4}}'
k wait --for=condition=Ready pod/dongle --timeout=20s >/dev/null
k delete pod dongle --timeout=30s >/dev/null
k patch node "$node" --subresource=status --type=merge -p '{"status": {"capacity": {"example.com/dongle": null}}}' >/dev/null
gone() { [ -z "$(dongles)" ]; }
until_true 30 gone

step "a Pod that runs out of time leaves no container that waits"
pod timed "activeDeadlineSeconds: 12, restartPolicy: Always," "}, {name: ends, image: \"$IMAGE\", command: [sh, -c, exit 3]"
until_true 40 has "DeadlineExceeded" k get pod timed -o jsonpath='{.status.reason}'
until_true 20 has "3" k get pod timed -o 'jsonpath={.status.containerStatuses[?(@.name=="ends")].state.terminated.exitCode}'
k delete pod timed --timeout=30s >/dev/null

step "a Pod that goes before it ran has failed, and its Job goes on"
k apply -f - >/dev/null <<YAML
apiVersion: batch/v1
kind: Job
metadata: {name: unlucky}
spec:
  podReplacementPolicy: Failed
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: "localhost:1/none:1"}]}}
YAML
until_true 30 has "ImagePullBackOff" k get pods -l job-name=unlucky
k delete pods -l job-name=unlucky --wait=false >/dev/null
until_true 30 says "1 1" k get job unlucky -o jsonpath='{.status.failed} {.status.active}'
k delete job unlucky --timeout=30s >/dev/null
pod waits "initContainers: [{name: first, image: \"$IMAGE\", command: [sh, -c, exit 3]}, {name: second, image: \"$IMAGE\"}],"
until_true 20 has "PodInitializing" k get pod waits -o jsonpath='{.status.initContainerStatuses[1].state.waiting.reason}'
k delete pod waits --timeout=30s >/dev/null

step "logs are where agents look for them, and those of containers that began elsewhere are still found"
talks() {
    k run "$1" --image=$IMAGE --command -- sh -c "echo said by $1; $FOREVER" >/dev/null
    k wait --for=condition=Ready "pod/$1" --timeout=40s >/dev/null
}
logs=$WORK/pods
mkdir -p "$logs/their_pod_u-9"
talks before
printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\npodLogsDir: %s\n' "$logs" >"$WORK/kubelet.yaml"
kill -9 "$(cat "$DATA/skiff.pid")"
"$SKIFF" "${UP[@]}" --kubelet-config "$WORK/kubelet.yaml" >/dev/null
talks after
for name in before after; do until_true 20 says "said by $name" k logs $name; done
links() { find /var/log/containers -name "*_default_$1-*.log"; }
log=$(echo "$logs"/default_after_*/after/0.log)
[ "$(readlink "$(links after)")" = "$log" ] || fail "the link to the log"
grep -q "said by after" "$(links after)" || fail "an agent reads the log"
[ -z "$(links before)" ] || fail "a link to a log in the data folder"
[ "$(stat -c %a "$logs"/default_after_* "$logs"/default_after_*/after | paste -sd' ')" = "755 755" ] || fail "the folders' modes"

step "a Pod that may write to the logs has nobody read through a link"
pod plants "volumes: [{name: v, hostPath: {path: $WORK}}]," ', volumeMounts: [{name: v, mountPath: /v}]'
k wait --for=condition=Ready pod/plants --timeout=40s >/dev/null
k exec plants -- sh -c 'cd /v/pods/default_after_*/after && mv 0.log kept && ln -s /etc/shadow 0.log'
[ -L "$log" ] || fail "the link is planted"
says "" k logs after || fail "a planted link is followed"
refused "could not find the requested resource" k get --raw "/api/v1/nodes/$node/proxy/logs/containers/$(basename "$(links after)")"
k delete pod before after plants --timeout=30s >/dev/null
no_logs() { [ "$(ls "$logs")" = their_pod_u-9 ] && [ -z "$(links after)$(links c)" ] && ! ls -d "$DATA"/logs/default_before_*; }
until_true 20 no_logs
[ -s /etc/shadow ] || fail "the planted link's target has gone"

step "a node that runs short lets nobody in and sends Pods away"
pod modest "" ', resources: {requests: {cpu: 1m}}'
k wait --for=condition=Ready pod/modest --timeout=20s >/dev/null
k delete pod big elsewhere nopull never late target --timeout=30s >/dev/null
kill -9 "$(cat "$DATA/skiff.pid")"
"$SKIFF" "${UP[@]/%--eviction-hard=/--eviction-hard=memory.available<100Ti}" >/dev/null
until_true 40 has True k get node "$node" -o jsonpath='{.status.conditions[?(@.type=="MemoryPressure")].status}'
until_true 40 has "Evicted The node was low on resource: memory." k get pod modest -o jsonpath='{.status.reason} {.status.message}'
has TerminationByKubelet k get pod modest -o jsonpath='{.status.conditions[?(@.type=="DisruptionTarget")].reason}'
pod late "nodeName: $node,"
until_true 20 has "Pod was rejected: The node had condition: [MemoryPressure]." k get pod late -o jsonpath='{.status.message}'

"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"
until_true 1 no_logs

#!/usr/bin/env bash
# A machine that this one is not, as a virtual one: cgroups of version 2 alone, two sockets with a NUMA node each, huge pages, swap. The
# kernel in it says what containers got of all that.
set -euo pipefail
cd "$(dirname "$0")"
: "${SKIFF:?}" "${KUBECTL:?}"
. ./vm.sh
step() { echo "  - $*"; }
skip() {
    echo "SKIPPED: another machine needs to be a virtual one, and this one cannot have one: $VM_LACKS"
    exit 0
}

vm_fetch || skip
vm_root=$(mktemp -d)
trap vm_end EXIT
vm_program ip nft mount umount containerd containerd-shim-runc-v2 ctr runc || skip
vm_file "$SKIFF" /usr/local/bin/skiff
vm_file "$KUBECTL" /usr/local/bin/kubectl
truncate -s 1G "$vm_root.swap"
vm_args=(-drive "file=$vm_root.swap,format=raw,if=virtio,cache=unsafe")
for node in 0 1; do
    vm_args+=(-object "memory-backend-ram,id=ram$node,size=1664M" -numa "node,nodeid=$node,memdev=ram$node,cpus=$((node * 2))-$((node * 2 + 1))")
done
vm_args+=(-numa "dist,src=0,dst=1,val=20")

VM_SMP=4,sockets=2,cores=2,threads=1 VM_MEMORY=3328 VM_APPEND="hugepages=32 psi=1" VM_MODULES='drivers/(block/virtio|virtio)' vm_run 600 <<'VM'
set -eu
modprobe -a virtio_pci virtio_blk
with_address
until_true 10 [ -b /dev/vda ]
mkswap /dev/vda >/dev/null && swapon /dev/vda
mkdir -p /dev/hugepages

trap tell_when_failed EXIT
cat >/root/kubelet.yaml <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
featureGates: {MemoryQoS: true}
cpuManagerPolicy: static
memoryManagerPolicy: Static
topologyManagerPolicy: single-numa-node
reservedSystemCPUs: "0"
systemReserved: {memory: 200Mi}
reservedMemory: [{numaNode: 0, limits: {memory: 200Mi}}]
failSwapOn: false
memorySwap: {swapBehavior: LimitedSwap}
memoryThrottlingFactor: 0.75
podPidsLimit: 100
YAML
begin() { skiff up --node-name one --eviction-hard= --wait 120 --kubelet-config /root/kubelet.yaml >/dev/null; }
step "a node with two sockets, huge pages and swap"
begin
of_node() { kubectl get node one -o jsonpath="{.status.$1}"; }
is "huge pages and processors" "$(of_node capacity.hugepages-2Mi) $(of_node allocatable.cpu)" "64Mi 3"
memory=$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) * 1024))
swap=$(($(sed -n 's/^SwapTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) * 1024))
is "swap" "$(of_node nodeInfo.swap.capacity)" "$swap"

# pod NAME RESOURCES SCRIPT [FIELDS [FIELDS_OF_CONTAINER]]
pod() {
    cat <<YAML
---
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers: [{name: c, image: 'skiff.local/busybox:1', command: [sh, -c, '$3'], resources: $2${5:+, $5}}]
  ${4:-}
YAML
}
FOREVER='exec sleep 3600'
both() { echo "{requests: {$1}, limits: {$1}}"; }
# ready POD...: waits for them. What runs is in /tmp/pods then: name, uid and container.
ready() {
    kubectl wait --for=condition=Ready pod "$@" --timeout=120s >/dev/null
    kubectl get pods -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.uid} {.status.containerStatuses[0].containerID}{"\n"}{end}' >/tmp/pods
}
# of NAME pod|container FILE...: the content of files of a Pod's cgroup, or of its container's, on one line
of() {
    local uid id folder
    read -r uid id <<LINE
$(sed -n "s/^$1 //p" /tmp/pods)
LINE
    folder=$(find /sys/fs/cgroup/kubepods -type d -name "pod$uid")
    [ "$2" = pod ] || folder=$folder/${id#*://}
    shift 2
    (cd "$folder" && cat "$@" | tr '\n' ' ' | sed 's/ $//')
}
mi() { echo $(($1 * 1048576)); }

step "what fits no NUMA node alone is refused"
{
    pod wide "$(both 'cpu: 3, memory: 32Mi')" "$FOREVER"
    pod deep "$(both 'cpu: 1, memory: 2Gi')" "$FOREVER"
} | kubectl apply -f - >/dev/null
refused() { kubectl get pods -o jsonpath='{range .items[*]}{.status.phase} {.status.reason}: {.status.message}{"\n"}{end}' | uniq; }
words="Failed TopologyAffinityError: Pod was rejected: Resources cannot be allocated with Topology locality"
until_true 90 says "$words" refused

step "what fits one has its processors and its memory"
{
    pod small "$(both 'cpu: 1, memory: 64Mi')" "$FOREVER"
    pod large "$(both 'cpu: 2, memory: 64Mi')" "$FOREVER"
} | kubectl apply -f - >/dev/null
ready small large
# A container with processors of its own needs no quota.
is "the small one's" "$(of small container cpuset.cpus cpuset.mems cpu.max)" "1 0 max 100000"
is "the large one's" "$(of large container cpuset.cpus cpuset.mems cpu.max)" "2-3 1 max 100000"

step "Pods with memory that is protected, swap, huge pages, limits of processes and of all their containers"
{
    # One process holds what the other says, until the end of it.
    pod burst '{requests: {memory: 24Mi}, limits: {memory: 32Mi}}' "(head -c 34m /dev/zero; $FOREVER) | tail"
    pod best '{}' "(for i in \$(seq 200); do sleep 3600 & done); $FOREVER"
    pod huge '{requests: {memory: 32Mi, hugepages-2Mi: 8Mi}, limits: {memory: 32Mi, hugepages-2Mi: 8Mi}}' \
        "fallocate -l 8m /huge/all; fallocate -l 2m /huge/more || echo refused >/dev/termination-log; $FOREVER" \
        'volumes: [{name: v, emptyDir: {medium: HugePages}}]' 'volumeMounts: [{name: v, mountPath: /huge}]'
    pod whole '{}' "$FOREVER" 'resources: {requests: {cpu: 0, memory: 48Mi}, limits: {cpu: 500m, memory: 80Mi}}'
} | kubectl apply -f - >/dev/null
ready burst best huge whole
is "processors that are left" "$(of burst container cpuset.cpus.effective cpuset.mems.effective)" "0 0-1"
is "the memory of the burstable one" "$(of burst container memory.min memory.high memory.max memory.oom.group)" "$(mi 24) $(mi 30) $(mi 32) 1"
share=$(awk "BEGIN {printf \"%d\", $(mi 24) / $memory * $swap / 4096}")
is "its swap" "$(of burst container memory.swap.max)" "$((share * 4096))"
is "its Pod's" "$(of burst pod memory.min memory.max pids.max)" "$(mi 24) $(mi 32) 100"
is "the memory of a Guaranteed one" "$(of small container memory.min memory.high memory.swap.max)" "$(mi 64) max 0"
is "the memory of a BestEffort one" "$(of best container memory.min memory.max memory.swap.max)" "0 max 0"
is "the container of a Pod with limits" "$(of whole container memory.max cpu.max)" "$(mi 80) 50000 100000"
is "a Pod with limits" "$(of whole pod memory.max memory.min cpu.max)" "$(mi 80) $(mi 48) 50000 100000"
is "memory of all Pods" "$(cd /sys/fs/cgroup/kubepods && cat memory.min burstable/memory.min | tr '\n' ' ')" "$(mi $((64 + 64 + 24 + 32 + 48))) $(mi $((24 + 32 + 48))) "

step "the kernel holds them to it"
# The shell is the first process: the kernel ends it together with the one that takes too much.
pod greedy "$(both 'memory: 16Mi')" 'head -c 100m /dev/zero | tail; sleep 3600' | kubectl apply -f - >/dev/null
until_true 30 has "can't fork: Resource temporarily unavailable" kubectl logs best
swaps() { [ "$(of burst container memory.swap.current)" -gt $(mi 2) ]; }
until_true 60 swaps
until_true 60 says "$(mi 8) $(mi 8)" of huge container hugetlb.2MB.max hugetlb.2MB.current
is "the huge pages of the Pod" "$(of huge pod hugetlb.2MB.max)" "$(mi 8)"
has refused kubectl exec huge -- cat /dev/termination-log || fail "more huge pages than the limit"
ended() { kubectl get pod greedy -o jsonpath='{.status.phase} {.status.containerStatuses[0].state.terminated.reason} {.status.containerStatuses[0].state.terminated.exitCode}'; }
until_true 60 has "Failed OOMKilled 137" ended

step "figures of swap and of waiting"
summary() { kubectl get --raw /api/v1/nodes/one/proxy/stats/summary; }
has '"swapUsageBytes":' summary || fail "swap in the summary"
has '"avg300":' summary || fail "waiting in the summary"
has 'container_swap_usage_bytes{container="c",namespace="default",pod="burst"}' kubectl get --raw /api/v1/nodes/one/proxy/metrics/resource || fail "metrics of swap"
has 'container_pressure_memory_waiting_seconds_total{container="c"' kubectl get --raw /api/v1/nodes/one/proxy/metrics/cadvisor || fail "metrics of waiting"

step "a container changes while it runs"
kubectl patch pod huge --subresource resize -p '{"spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "40Mi"}, "limits": {"memory": "80Mi"}}}]}}' >/dev/null
until_true 60 says "$(mi 40) $(mi 70) $(mi 80)" of huge container memory.min memory.high memory.max
until_true 60 says "$(mi 40) $(mi 80)" of huge pod memory.min memory.max

step "a kubelet that begins anew takes nothing from anybody"
kill -9 "$(cat $DATA/skiff.pid)"
begin
is "processors and memory" "$(of small container cpuset.cpus cpuset.mems) $(of large container cpuset.cpus cpuset.mems) $(of burst container cpuset.cpus)" "1 0 2-3 1 0"

step "a process is killed because the machine has no memory"
echo f >/proc/sysrq-trigger
until_true 30 has "System OOM encountered, victim process: " kubectl get events --field-selector reason=SystemOOM,involvedObject.name=one -o jsonpath='{.items[*].message}'
has 'container_oom_events_total{container="",id="/",image="",name="",namespace="",pod=""} 1' kubectl get --raw /api/v1/nodes/one/proxy/metrics/cadvisor || fail "counts of missing memory"
VM

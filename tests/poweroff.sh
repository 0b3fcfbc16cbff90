#!/usr/bin/env bash
# The end of a machine: Debian's systemd, logind and message bus in a virtual machine, with skiff as one of their services. `systemctl
# poweroff` waits until the node has ended its Pods, the less important ones first; from its disk the machine begins again as it was. systemd
# keeps the cgroups of Pods.
set -euo pipefail
cd "$(dirname "$0")"
: "${SKIFF:?}" "${KUBECTL:?}"
. ./vm.sh
step() { echo "  - $*"; }
skip() {
    echo "SKIPPED: the end of a machine needs a virtual one, and this one cannot have one: $VM_LACKS"
    exit 0
}

vm_fetch || skip
PATH="$PATH:/usr/sbin:/sbin" command -v mkfs.ext4 >/dev/null || { VM_LACKS="the program mkfs.ext4"; skip; }
[ -d "$vm_cache/systemd" ] || vm_unpack "$vm_cache/systemd" systemd systemd-sysv dbus dbus-bin dbus-daemon dbus-system-bus-common mount \
    libc6 libgcc-s1 libacl1 libapparmor1 libaudit1 libcap-ng0 libblkid1 libcap2 libcrypt1 libcryptsetup12 libargon2-1 libjson-c5 \
    libdevmapper1.02.1 libudev1 libuuid1 libfdisk1 libsmartcols1 libgcrypt20 libgpg-error0 libip4tc2 libkmod2 liblz4-1 liblzma5 libmount1 \
    libp11-kit0 libffi8 libpam0g libseccomp2 libselinux1 libpcre2-8-0 libsystemd0 libsystemd-shared libzstd1 libssl3 libdbus-1-3 \
    libexpat1 zlib1g || skip

step "a disk with Debian's systemd on it"
vm_root=$(mktemp -d)
trap vm_end EXIT
for folder in bin sbin lib lib64; do
    mkdir -p "$vm_root/usr/$folder"
    ln -s "usr/$folder" "$vm_root/$folder"
done
mkdir -p "$vm_root"/{dev,proc,sys,tmp,run,etc/systemd/system,root,var/out,usr/local/bin}
for folder in bin sbin lib lib64 usr etc var; do
    [ ! -d "$vm_cache/systemd/$folder" ] || cp -a "$vm_cache/systemd/$folder/." "$vm_root/$folder/"
done
ln -sfn ../run "$vm_root/var/run"
vm_program ip nft containerd containerd-shim-runc-v2 ctr runc || skip
vm_file "$SKIFF" /usr/local/bin/skiff
vm_file "$KUBECTL" /usr/local/bin/kubectl
cp -L "$(command -v busybox)" "$vm_root/usr/bin/busybox"
# Programs of busybox stand in for those that Debian's packages lack.
for program in $(busybox --list); do
    [ -e "$vm_root/usr/bin/$program" ] || [ -e "$vm_root/usr/sbin/$program" ] || ln -s busybox "$vm_root/usr/bin/$program"
done
vm_modules
printf 'root:x:0:0:root:/root:/bin/sh\nmessagebus:x:100:100::/:/bin/false\n' >"$vm_root/etc/passwd"
printf 'root:x:0:\nmessagebus:x:100:\n' >"$vm_root/etc/group"
echo 0123456789abcdef0123456789abcdef >"$vm_root/etc/machine-id"
echo 'PRETTY_NAME="Debian in a test"' >"$vm_root/etc/os-release"
echo vm >"$vm_root/etc/hostname"
echo '127.0.0.1 localhost' >"$vm_root/etc/hosts"
: >"$vm_root/etc/resolv.conf"

cat >"$vm_root/etc/systemd/system/skiff.service" <<'UNIT'
[Unit]
Description=A cluster of this machine alone
Wants=dbus.service systemd-logind.service
After=dbus.service systemd-logind.service
[Service]
Type=forking
PIDFile=/var/lib/skiff/skiff.pid
ExecStartPre=/bin/sh /root/prepare
ExecStart=/usr/local/bin/skiff up --node-name one --eviction-hard= --wait 200 --kubelet-config /root/kubelet.yaml
KillMode=process
TimeoutStartSec=300
UNIT
cat >"$vm_root/etc/systemd/system/drive.service" <<'UNIT'
[Unit]
Wants=skiff.service
After=skiff.service
[Service]
ExecStart=/bin/sh /root/drive
UNIT
mkdir -p "$vm_root/etc/systemd/system/multi-user.target.wants"
ln -s ../drive.service "$vm_root/etc/systemd/system/multi-user.target.wants/drive.service"
cp vm-words.sh "$vm_root/root/words"
cat >"$vm_root/root/prepare" <<'SH'
. /root/words
modprobe -a bridge veth vxlan overlay $(find /lib/modules -name 'nft_*.ko' | sed 's|.*/||; s|\.ko$||') 2>/dev/null
with_address
SH
cat >"$vm_root/root/kubelet.yaml" <<'YAML'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
shutdownGracePeriod: 36s
shutdownGracePeriodCriticalPods: 18s
cgroupDriver: systemd
YAML
cat >"$vm_root/root/drive" <<'SH'
exec >/dev/ttyS0 2>&1
export PATH=/usr/local/bin:/usr/sbin:/usr/bin HOME=/root
. /root/words
fail() {
    echo "FAILED: $*"
    kubectl get pods -o wide
    kubectl get events | tail -n 20
    tail -n 30 /var/lib/skiff/skiff.log
    cat /var/out/log
    done_with 1
}
done_with() {
    echo "$1" >/dev/ttyS1
    systemctl poweroff
    exit
}
. /root/boot
SH

# boot SECONDS <script
boot() {
    cat >"$vm_root.boot"
    PATH="$PATH:/usr/sbin:/sbin" debugfs -w -R "rm /root/boot" "$disk" >/dev/null 2>&1
    PATH="$PATH:/usr/sbin:/sbin" debugfs -w -R "write $vm_root.boot /root/boot" "$disk" >/dev/null 2>&1
    VM_MEMORY=2048 VM_APPEND="systemd.unit=multi-user.target systemd.mask=serial-getty@ttyS0.service systemd.show_status=no" \
        vm_boot "$1" "$vm_root.first"
}
disk=$vm_root.disk
vm_disk "$disk" 2G "$vm_root"
vm_first "$vm_root.first"
vm_args=(-drive "file=$disk,format=raw,if=virtio,cache=writeback")

boot 400 <<'SH'
step "logind waits for the node, as long as Pods may need"
until_true 60 has kubelet systemd-inhibit --list
manager="org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
until_true 20 has "t 36000000" busctl get-property $manager InhibitDelayMaxUSec

step "Pods, some more important than others, and one that does not want to end"
pod() { # NAME SCRIPT FIELDS
    cat <<YAML
---
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 10
  containers:
  - name: c
    image: skiff.local/busybox:1
    command: [sh, -c, '$2']
    volumeMounts: [{name: out, mountPath: /out}]
    lifecycle: {preStop: {exec: {command: [sh, -c, 'echo $1 is asked >>/out/log; sleep 2']}}}
  volumes: [{name: out, hostPath: {path: /var/out}}]
  ${3:-}
YAML
}
ends() { echo "trap \"echo $1 ends >>/out/log; exit 0\" TERM; while :; do sleep 1; done"; }
{
    pod early "$(ends early)" | sed "s/^    image: .*/&\n    resources: {limits: {cpu: 1, memory: 64Mi}}/"
    pod late "$(ends late)" 'priorityClassName: system-node-critical'
    pod stubborn 'trap "" TERM; while :; do sleep 1; done' | sed 's/PeriodSeconds: 10/PeriodSeconds: 600/'
    cat <<YAML
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: 'skiff.local/busybox:1', command: [sleep, '3600']}]}
YAML
} | kubectl apply -f - >/dev/null
kubectl wait --for=condition=Ready pod early late stubborn --timeout=120s >/dev/null || fail "the Pods"
kubectl rollout status deployment web --timeout=60s >/dev/null || fail "the Deployment"
kubectl create configmap kept --from-literal=a=b >/dev/null || fail "a ConfigMap"

step "systemd keeps the cgroups of Pods, with their limits"
uid() { kubectl get pod "$@" -o jsonpath='{..metadata.uid}' | tr - _; }
slice=kubepods-pod$(uid early).slice
limits() { systemctl show -p CPUQuotaPerSecUSec -p CPUWeight -p MemoryMax "$slice" | sort | tr '\n' ' '; }
is "limits of a slice" "$(limits)" "CPUQuotaPerSecUSec=1s CPUWeight=39 MemoryMax=67108864 "
container=$(kubectl get pod early -o jsonpath='{.status.containerStatuses[0].containerID}')
scope=cri-containerd-${container#containerd://}.scope
has "ControlGroup=/kubepods.slice/$slice/$scope" systemctl show -p ControlGroup "$scope" || fail "the container's scope"
systemctl daemon-reload || fail "systemd does not read its units again"
is "the kernel's limit" "$(cat "/sys/fs/cgroup/kubepods.slice/$slice/memory.max")" 67108864
counted() { kubectl get --raw /api/v1/nodes/one/proxy/metrics/cadvisor | grep ^container_memory_working_set_bytes; }
has "id=\"/kubepods.slice/$slice/$scope\"" counted || fail "what the container uses is not counted"
other=kubepods-besteffort-pod$(uid -l app=web).slice
has "ActiveState=active" systemctl show -p ActiveState "$other" || fail "the slice of another Pod"
kubectl scale deployment web --replicas=0 >/dev/null
until_true 60 has "ActiveState=inactive" systemctl show -p ActiveState "$other"
until_true 10 [ ! -e "/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/$other" ]
kubectl scale deployment web --replicas=1 >/dev/null
kubectl rollout status deployment web --timeout=60s >/dev/null || fail "the Deployment"
cut -d. -f1 /proc/uptime >/var/out/began
step "the end of the machine"
done_with 0
SH

boot 400 <<'SH'
step "the less important Pods ended first, each in its time"
log=$(grep -v stubborn /var/out/log | tr '\n' ',')
[ "$log" = "early is asked,early ends,late is asked,late ends," ] || fail "the order: $log"
grep -q "stubborn is asked" /var/out/log || fail "the stubborn Pod was not asked"
said() { kubectl get pod "$1" -o jsonpath='{.status.phase} {.status.reason}: {.status.message}'; }
for name in early late stubborn; do
    until_true 30 has "Failed Terminated: Pod was terminated in response to imminent node shutdown." said $name
done
grep -q '"endTime":"20' /var/lib/skiff/kubelet/graceful_node_shutdown_state || fail "the record: $(cat /var/lib/skiff/kubelet/graceful_node_shutdown_state)"

step "the cluster goes on"
kubectl wait --for=condition=Ready node one --timeout=60s >/dev/null || fail "the node"
kubectl get configmap kept >/dev/null || fail "the ConfigMap"
running() { kubectl get pods -l app=web --field-selector status.phase=Running; }
until_true 120 has web running
until_true 60 has "1/1" kubectl get deployment web
until_true 60 has kubelet systemd-inhibit --list
done_with 0
SH

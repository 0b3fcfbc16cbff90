#!/usr/bin/env bash
# Profiles of AppArmor on a kernel that has it, in a virtual machine: each sort of profile in force around a container, those of the
# annotations of before there were fields, and one that is not loaded.
set -euo pipefail
cd "$(dirname "$0")"
: "${SKIFF:?}" "${KUBECTL:?}"
. ./vm.sh
step() { echo "  - $*"; }
skip() {
    echo "SKIPPED: AppArmor needs a virtual machine, and this one cannot have one: $VM_LACKS"
    exit 0
}

vm_fetch || skip
parser=$(vm_tool apparmor sbin/apparmor_parser) || skip
vm_root=$(mktemp -d)
trap vm_end EXIT
vm_program ip nft mount umount containerd containerd-shim-runc-v2 ctr runc grep || skip
vm_file "$SKIFF" /usr/local/bin/skiff
vm_file "$KUBECTL" /usr/local/bin/kubectl
# Engines look for it here and nowhere else.
vm_file "$parser" /sbin/apparmor_parser
mkdir -p "$vm_root"/etc/apparmor "$vm_root"/etc/apparmor.d
# Without it the parser has more to say than its version, which engines do not understand.
echo "# nothing out of the ordinary" >"$vm_root/etc/apparmor/parser.conf"
cat >"$vm_root/etc/apparmor.d/guarded" <<'PROFILE'
profile guarded flags=(attach_disconnected) {
  file,
  network,
  capability,
  signal,
  ptrace,
  deny /forbidden/** w,
}
PROFILE

VM_MEMORY=3072 VM_APPEND="security=apparmor apparmor=1" vm_run 400 <<'VM'
set -eu
ip link add host0 type veth peer name out0 && ip address add 192.168.90.1/24 dev host0 && ip link set host0 up && ip link set out0 up
trap tell_when_failed EXIT
mount -t securityfs securityfs /sys/kernel/security

pod() { # NAME ANNOTATIONS SECURITY
    kubectl apply -f - 2>/dev/null >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, annotations: $2}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: skiff.local/busybox:1
    command: [sleep, '3600']
    securityContext: $3
    volumeMounts: [{name: e, mountPath: /forbidden}, {name: e, mountPath: /allowed}]
  volumes:
  - {name: e, emptyDir: {}}
YAML
}
# in_force POD PROFILE
in_force() {
    kubectl wait --for=condition=Ready "pod/$1" --timeout=60s >/dev/null
    is "the profile of $1" "$(kubectl exec "$1" -- cat /proc/1/attr/current | tr -d '\0\n')" "$2"
}
local='{appArmorProfile: {type: Localhost, localhostProfile: guarded}}'
skiff up --node-name one --eviction-hard= --wait 120

step "each sort of profile is in force, by the field"
pod usual '{}' '{}'
pod default '{}' '{appArmorProfile: {type: RuntimeDefault}}'
pod free '{}' '{appArmorProfile: {type: Unconfined}}'
in_force usual "cri-containerd.apparmor.d (enforce)"
in_force default "cri-containerd.apparmor.d (enforce)"
in_force free unconfined

step "a profile that is not loaded holds the container back, and its Pod tells why"
pod guarded '{}' "$local"
until_true 60 says CreateContainerError kubectl get pod guarded -o jsonpath='{.status.containerStatuses[0].state.waiting.reason}'
has guarded kubectl get pod guarded -o jsonpath='{.status.containerStatuses[0].state.waiting.message}' || fail "the message"

step "once it is loaded the container starts, and may do as much as the profile says"
apparmor_parser -r -K /etc/apparmor.d/guarded
in_force guarded "guarded (enforce)"
kubectl exec guarded -- touch /allowed/file || fail "a file that nobody forbids"
refused "Permission denied" kubectl exec guarded -- touch /forbidden/other || fail "a file was made that the profile forbids"
kubectl exec default -- touch /forbidden/other || fail "the profile is of one Pod alone"

step "annotations of before there were fields say the same"
pod annotated '{container.apparmor.security.beta.kubernetes.io/c: localhost/guarded}' '{}'
in_force annotated "guarded (enforce)"
is "the field" "$(kubectl get pod annotated -o jsonpath='{.spec.containers[0].securityContext.appArmorProfile.localhostProfile}')" guarded

step "down, and nothing is left"
skiff down --data-dir $DATA >/dev/null
VM

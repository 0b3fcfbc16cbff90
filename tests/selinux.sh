#!/usr/bin/env bash
# Labels of SELinux on a kernel that has it, in a virtual machine: `skiff up --selinux`, the labels of a container's process and of
# the files of its volumes, and what a node does without the flag. The policy is the test's own; it knows containers and forbids nothing.
set -euo pipefail
cd "$(dirname "$0")"
: "${SKIFF:?}" "${KUBECTL:?}"
. ./vm.sh
step() { echo "  - $*"; }
skip() {
    echo "SKIPPED: SELinux needs a virtual machine, and this one cannot have one: $VM_LACKS"
    exit 0
}

# policy FILE: the smallest policy that is one.
policy() {
    local sids="kernel security unlabeled fs file file_labels init any_socket port netif netmsg node igmp_packet icmp_socket
        tcp_socket sysctl_modprobe sysctl sysctl_fs sysctl_kernel sysctl_net sysctl_net_unix sysctl_vm sysctl_dev kmod policy
        scmp_packet devnull"
    local files="file dir lnk_file chr_file blk_file sock_file fifo_file"
    {
        echo '(handleunknown allow) (mls true) (class process (transition dyntransition))'
        # Files are relabelled only where the policy knows their classes.
        for class in $files; do echo "(class $class (unused))"; done
        echo "(classorder (process $files)) (policycap nnp_nosuid_transition)"
        for sid in $sids; do echo "(sid $sid)"; done
        # Engines choose two of these for whoever names none.
        for category in c{0..1023}; do echo "(category $category)"; done
        echo "(categoryorder ($(echo c{0..1023})))"
        echo "(sidorder ($(echo $sids)))"
        cat <<'CIL'
(sensitivity s0) (sensitivityorder (s0))
(sensitivitycategory s0 (range c0 c1023))
(level low (s0)) (level high (s0 (range c0 c1023))) (levelrange all (low high))
(role system_r) (role object_r) (user system_u)
(userrole system_u system_r) (userrole system_u object_r) (userlevel system_u low) (userrange system_u all)
(type kernel_t) (type container_t) (type container_file_t) (type container_ro_file_t)
(roletype system_r kernel_t) (roletype system_r container_t)
(roletype object_r kernel_t) (roletype object_r container_file_t) (roletype object_r container_ro_file_t)
(allow kernel_t container_t (process (transition)))
(context here (system_u system_r kernel_t (low high)))
(context files (system_u object_r kernel_t (low low)))
(sidcontext kernel here) (sidcontext init here)
(fsuse xattr ext4 files) (fsuse xattr overlay files) (fsuse trans tmpfs files) (fsuse trans devtmpfs files) (fsuse trans mqueue files)
(fsuse trans devpts files)
(fsuse task pipefs files) (fsuse task sockfs files)
CIL
        for sid in security unlabeled fs file any_socket port netif netmsg node devnull; do echo "(sidcontext $sid files)"; done
        for system in proc sysfs selinuxfs cgroup2 nsfs; do echo "(genfscon $system \"/\" files)"; done
    } >"$1.cil"
    "$secilc" -c 33 -o "$1" -f /dev/null "$1.cil" && rm "$1.cil"
}

vm_fetch || skip
secilc=$(vm_tool secilc usr/bin/secilc) || skip
vm_root=$(mktemp -d)
trap vm_end EXIT
vm_program ip nft mount umount containerd containerd-shim-runc-v2 ctr runc grep stat || skip
vm_file "$SKIFF" /usr/local/bin/skiff
vm_file "$KUBECTL" /usr/local/bin/kubectl
contexts=$vm_root/etc/selinux/test/contexts
mkdir -p "$contexts"
echo SELINUXTYPE=test >"$vm_root/etc/selinux/config"
for kind in process:system_r:container_t file:object_r:container_file_t ro_file:object_r:container_ro_file_t; do
    echo "${kind%%:*} = \"system_u:${kind#*:}:s0\""
done >"$contexts/lxc_contexts"
policy "$vm_root/etc/selinux/policy"

VM_MEMORY=3072 VM_APPEND="security=selinux selinux=1 enforcing=0" vm_run 400 <<'VM'
set -eu
ip link add host0 type veth peer name out0 && ip address add 192.168.90.1/24 dev host0 && ip link set host0 up && ip link set out0 up
trap tell_when_failed EXIT

step "without a policy the flag is refused, with the reason"
refused "SELinux is not at work on this machine; leave --selinux out" skiff up --selinux --wait 1 || fail "the flag was taken"
mount -t selinuxfs selinuxfs /sys/fs/selinux
cat /etc/selinux/policy >/sys/fs/selinux/load
mv /etc/selinux/test /etc/selinux/hidden
refused "knows no containers" skiff up --selinux --wait 1 || fail "the flag was taken without a policy for containers"
mv /etc/selinux/hidden /etc/selinux/test

pod() { # NAME LEVEL
    mkdir -p /of-the-host
    kubectl apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {seLinuxOptions: {level: "$2"}}
  containers:
  - name: c
    image: skiff.local/busybox:1
    command: [sleep, '3600']
    volumeMounts: [{name: e, mountPath: /e}, {name: h, mountPath: /h}, {name: s, mountPath: /s}]
  volumes:
  - {name: e, emptyDir: {}}
  - {name: h, hostPath: {path: /of-the-host}}
  - {name: s, configMap: {name: settings}}
YAML
}
start() {
    skiff up --node-name one --eviction-hard= --wait 120 "$@"
    kubectl create configmap settings --from-literal=key=value >/dev/null 2>&1 || true
}

step "without it a Pod that wants a label is refused, and told why"
start
pod refused s0:c1
kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/refused --timeout=60s >/dev/null
has "only with --selinux" kubectl get pod refused -o jsonpath='{.status.message}' || fail "the message"
skiff down --data-dir $DATA >/dev/null

step "with it the process and the Pod's own files have its label, and the node's files keep theirs"
start --selinux
pod labelled s0:c1,c2
kubectl wait --for=condition=Ready pod/labelled --timeout=60s >/dev/null
is "the process" "$(kubectl exec labelled -- cat /proc/1/attr/current | tr -d '\0\n')" system_u:system_r:container_t:s0:c1,c2
volumes=$DATA/kubelet/pods/$(kubectl get pod labelled -o jsonpath='{.metadata.uid}')/volumes
label() { /usr/local/bin/stat -c %C "$1"; }
file=system_u:object_r:container_file_t:s0:c1,c2
is "the emptyDir" "$(label "$volumes/kubernetes.io~empty-dir/e")" $file
is "the configMap" "$(label "$volumes/kubernetes.io~configmap/s")" $file
case $(label /of-the-host) in *container_file_t*) fail "the node's folder was relabelled" ;; esac

step "down, and nothing is left"
skiff down --data-dir $DATA >/dev/null
VM

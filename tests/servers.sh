#!/usr/bin/env bash
# Volumes on servers: the kernel's NFS server and its iSCSI target in a virtual machine, and in it a node with Debian's mount.nfs,
# iscsid and udev, which make a disk of what the target offers, and multipathd, which makes one of two ways to it.
set -euo pipefail
cd "$(dirname "$0")"
: "${SKIFF:?}" "${KUBECTL:?}"
. ./vm.sh
step() { echo "  - $*"; }
skip() {
    echo "SKIPPED: servers of volumes need a virtual machine, and this one cannot have one: $VM_LACKS"
    exit 0
}

vm_fetch || skip
if [ ! -d "$vm_cache/servers" ]; then
    # Their programs and libraries, without what only installing them needs.
    packages=$(apt-get -s -o Dir::State::status=/dev/null install --no-install-recommends nfs-kernel-server open-iscsi udev e2fsprogs mount util-linux 2>/dev/null |
        awk '/^Inst/ {print $2}' | grep -vE 'perl|python|dpkg|debconf|usrmerge|adduser|passwd|^tar$|init-system|gcc-12-base') || true
    vm_unpack "$vm_cache/servers" ${packages:-nfs-kernel-server open-iscsi} || skip
fi
if [ ! -d "$vm_cache/multipath" ]; then
    vm_unpack "$vm_cache/multipath" multipath-tools dmsetup libdevmapper1.02.1 libaio1 liburcu8 libjson-c5 || skip
fi
vm_root=$(mktemp -d)
trap vm_end EXIT
cp -a "$vm_cache/servers/." "$vm_cache/multipath/." "$vm_root/"
rm -rf "$vm_root"/usr/share/{doc,man,locale,zoneinfo}
vm_program ip nft containerd containerd-shim-runc-v2 ctr runc || skip
vm_file "$SKIFF" /usr/local/bin/skiff
vm_file "$KUBECTL" /usr/local/bin/kubectl

VM_MEMORY=2560 VM_MODULES='fs/(nfs|nfsd|lockd|nfs_common|configfs|fscache|netfs)|net/sunrpc|drivers/(scsi|target|md/dm-)' vm_run 600 <<'VM'
set -eu
none() { "$@" >/tmp/said 2>&1; [ ! -s /tmp/said ] || { cat /tmp/said; return 1; }; }
trap tell_when_failed EXIT
mkdir /etc/target
modprobe -a nfs nfsv4 nfsd target_core_mod target_core_file iscsi_target_mod iscsi_tcp sd_mod
with_address
ip addr add 192.168.7.2/24 dev eth0

step "an NFS server"
mkdir -p /srv/nfs /var/lib/nfs/rpc_pipefs /var/lib/nfs/v4recovery /run/lock /run/udev
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs pipes /var/lib/nfs/rpc_pipefs
echo '/srv/nfs *(rw,sync,no_subtree_check,no_root_squash,fsid=7)' >/etc/exports
serve() {
    rpc.nfsd -N 3 -V 4.2 --syslog 2
    echo Y >/proc/fs/nfsd/v4_end_grace
}
exportfs -ra
rpc.mountd -N 2 -N 3
serve

step "an iSCSI target that wants to know who asks"
/lib/systemd/systemd-udevd --daemon
mount -t configfs config /sys/kernel/config
CONFIG=/sys/kernel/config/target
DISK=$CONFIG/core/fileio_0/disk
TARGET=iqn.2026-01.test:one
GROUP=$CONFIG/iscsi/$TARGET/tpgt_1
mkdir -p $DISK
echo 0123456789abcdef >$DISK/wwn/vpd_unit_serial
echo "fd_dev_name=/srv/disk,fd_dev_size=67108864" >$DISK/control
echo 1 >$DISK/enable
mkdir -p $GROUP $GROUP/np/192.168.7.1:3260 $GROUP/np/192.168.7.2:3260 $GROUP/lun/lun_0
ln -s $DISK $GROUP/lun/lun_0/disk
for setting in generate_node_acls=1 demo_mode_write_protect=0 authentication=1; do echo "${setting#*=}" >$GROUP/attrib/"${setting%=*}"; done
echo -n me >$GROUP/auth/userid
echo -n 0123456789ab >$GROUP/auth/password
echo 1 >$GROUP/enable
mkdir -p /etc/iscsi /run/lock/iscsi
echo "InitiatorName=iqn.2026-01.test:node" >/etc/iscsi/initiatorname.iscsi
iscsid

step "a node"
begin() { skiff up --node-name one --eviction-hard= --wait 150 >/dev/null; }
begin
pod() { # NAME SCRIPT VOLUME
    cat <<YAML
---
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: 'skiff.local/busybox:1', command: [sh, -c, '$2; exec sleep 3600'], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, $3}]
YAML
}
# volume NAME SOURCE OPTIONS: a volume with a claim of its name
volume() {
    cat <<YAML
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: $1}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteMany], storageClassName: "", claimRef: {namespace: default, name: $1}, $2}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec: {accessModes: [ReadWriteMany], storageClassName: "", volumeName: $1, resources: {requests: {storage: 1Gi}}}
YAML
}
claim() { echo "persistentVolumeClaim: {claimName: $1}"; }
NFS="nfs: {server: 192.168.7.1, path: /srv/nfs"
ISCSI="iscsi: {targetPortal: '192.168.7.1:3260', iqn: '$TARGET', lun: 0, fsType: ext4, chapAuthSession: true, secretRef: {name: chap"
{
    cat <<YAML
apiVersion: v1
kind: Secret
metadata: {name: chap}
type: kubernetes.io/iscsi-chap
stringData: {node.session.auth.username: me, node.session.auth.password: 0123456789ab}
YAML
    volume shared "$NFS}, mountOptions: [nfsvers=4.2, soft, timeo=20, retrans=1]"
    volume disk "$ISCSI, namespace: default}}, mountOptions: [noatime]"
    pod writer 'echo written >/v/text' "$(claim shared)"
    pod reader 'until cat /v/text; do sleep 1; done' "$(claim shared)"
    pod looker 'touch /v/no || echo refused' "$NFS, readOnly: true}"
    pod first 'echo kept >/v/text; sync' "$(claim disk)"
} | kubectl apply -f - >/dev/null
kubectl wait --for=condition=Ready pod writer reader looker first --timeout=150s >/dev/null

step "what one Pod writes another reads, as its options say"
until_true 30 has written kubectl logs reader
until_true 30 has refused kubectl logs looker
has written cat /srv/nfs/text || fail "the server has it not"
[ "$(grep -c 'volumes/kubernetes.io~nfs/v nfs4 rw.*vers=4.2.*soft.*timeo=20' /proc/mounts)" = 2 ] || { grep nfs /proc/mounts; fail "options of NFS"; }
grep -q 'volumes/kubernetes.io~nfs/v nfs4 ro' /proc/mounts || fail "a volume that is only read"
grep -q '/dev/sda .*volumes/kubernetes.io~iscsi/v ext4 .*noatime' /proc/mounts || { grep sda /proc/mounts; fail "options of iSCSI"; }
has "$TARGET" iscsiadm -m session || fail "no session"
! grep -q 0123456789ab $DATA/skiff.log || fail "the secret is in the log"

step "a kubelet that begins anew knows its volumes"
kill -9 "$(cat $DATA/skiff.pid)"
begin
pod second 'cat /v/text' "$(claim disk)" | kubectl apply -f - >/dev/null
kubectl wait --for=condition=Ready pod second --timeout=90s >/dev/null
until_true 30 has kept kubectl logs second
! grep "a disk could not be checked" $DATA/skiff.log || fail "a disk that is mounted was checked"
kubectl delete pod first writer --timeout=60s >/dev/null
has "$TARGET" iscsiadm -m session || fail "another Pod still has the disk"
kubectl exec second -- cat /v/text | grep -q kept || fail "the other Pod lost its disk"
kubectl delete pod second --timeout=60s >/dev/null
sessions() { iscsiadm -m session 2>/dev/null || true; }
until_true 30 none sessions

step "a Pod with the wrong secret has no disk"
{
    kubectl create secret generic wrong --type=kubernetes.io/iscsi-chap --from-literal=node.session.auth.username=me \
        --from-literal=node.session.auth.password=not-the-secret -o yaml --dry-run=client
    pod stranger true "$(echo "$ISCSI}}" | sed 's/name: chap/name: wrong/')"
} | kubectl apply -f - >/dev/null
told() { kubectl get events --field-selector involvedObject.name=stranger -o jsonpath='{.items[*].message}'; }
until_true 90 has "iscsi: failed to attach disk" told
! told | grep not-the-secret || fail "the secret is in an event"
kubectl delete pod stranger --timeout=60s >/dev/null
none sessions || fail "a session is left"

step "a disk with two ways to it is one device, which goes on with one of them"
modprobe -a dm-mod dm-multipath dm-service-time dm-round-robin
printf 'defaults {\n find_multipaths yes\n user_friendly_names yes\n}\n' >/etc/multipath.conf
multipathd
{
    volume ways "$(echo "$ISCSI" | sed "s/iscsi: {/iscsi: {portals: ['192.168.7.2'], /"), namespace: default}}"
    pod ways 'cat /v/text' "$(claim ways)"
} | kubectl apply -f - >/dev/null
kubectl wait --for=condition=Ready pod ways --timeout=120s >/dev/null
until_true 30 has kept kubectl logs ways
grep -q '/mpatha .*volumes/kubernetes.io~iscsi/v ext4' /proc/mounts || { grep iscsi/v /proc/mounts; multipath -ll; fail "the device over both ways"; }
[ "$(iscsiadm -m session | grep -c $TARGET)" = 2 ] || fail "a session with each portal"
iscsiadm -m node -p 192.168.7.1 -T $TARGET --logout >/dev/null
kubectl exec ways -- sh -c 'echo more >>/v/text; sync; cat /v/text' >/tmp/text
grep -q more /tmp/text || { cat /tmp/text; fail "the other way"; }
kubectl delete pod ways --timeout=60s >/dev/null
until_true 30 none sessions
maps() { dmsetup ls --target multipath | grep -v '^No devices'; }
none maps || fail "the device is left"

step "a Pod leaves although its server has gone"
rpc.nfsd 0
kubectl delete pod reader looker --timeout=120s >/dev/null
mounts() { grep nfs4 /proc/mounts; }
until_true 60 none mounts
serve
pod again 'cat /v/text' "$(claim shared)" | kubectl apply -f - >/dev/null
kubectl wait --for=condition=Ready pod again --timeout=90s >/dev/null
until_true 30 has written kubectl logs again
VM

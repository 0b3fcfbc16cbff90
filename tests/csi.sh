#!/usr/bin/env bash
# Volumes of a CSI driver on a real node: a driver of the tests' own registers, kubectl plays the attacher, and Pods get what is
# in the volumes; the driver refuses, hangs, lies and goes, the kubelet is killed, and nothing is left mounted.
. "$(dirname "$0")/cluster.sh"

DRIVER=hostpath.csi.skiff.local
CSI=${CSI:-$(dirname "$SKIFF")/csi-hostpath}
IMAGE=skiff.local/busybox:1
FOREVER='trap exit TERM; while :; do sleep 0.2; done'
# The loop devices of a test that failed go as well.
release() {
    local image
    for image in "$WORK"/local.img "$WORK"/volumes/*.img; do
        losetup --noheadings --output NAME --associated "$image" 2>/dev/null | xargs -r -n 1 losetup --detach || true
    done
}
trap 'CODE=$?; set +e; release; (exit "$CODE"); on_exit' EXIT
[ -x "$CSI" ] || fail "no driver beside the binary: build csi-hostpath"

UP+=(--feature-gates=CSIVolumeHealth=true)
"$SKIFF" "${UP[@]}" >/dev/null
NODE=$(k get node -o 'jsonpath={.items[0].metadata.name}')
ROOT=$DATA/kubelet
OWN=$ROOT/plugins/kubernetes.io/csi
MOODS=$WORK/moods
LOG=$WORK/calls
touch "$MOODS" "$LOG"

driver() { started "$WORK/driver.log" "$CSI" --kubelet "$ROOT" --data "$WORK/volumes" --node-id "$NODE" --moods "$MOODS" --log "$LOG"; }
mood() { echo "$*" >>"$MOODS"; }
called() { grep -q -- "$1" "$LOG"; }
calls() { grep -c -- "$1" "$LOG" || true; }
mounts() { grep -c "$1" /proc/mounts || true; }
none() { [ "$("$@")" = 0 ]; }
phase() { k get pod "$1" -o 'jsonpath={.status.phase}'; }

# A volume and a claim for it: NAME MODE
volume() {
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-$1}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  volumeMode: $2
  storageClassName: csi
  claimRef: {namespace: default, name: $1}
  persistentVolumeReclaimPolicy: Retain
  csi: {driver: $DRIVER, volumeHandle: vol-$1}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: $2
  storageClassName: csi
  volumeName: pv-$1
  resources: {requests: {storage: 1Gi}}
YAML
}

# pod NAME COMMAND VOLUME [MOUNTS]
pod() {
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  securityContext: {fsGroup: 2000}
  containers:
  - {name: c, image: "$IMAGE", command: [sh, -c, "$2"], ${4:-volumeMounts: [{name: v, mountPath: /v\}]}}
  volumes: [{name: v, $3}]
YAML
}
claim() { echo "persistentVolumeClaim: {claimName: $1}"; }

# Marks what the controller asks for as attached, as the driver's attacher does.
attach() {
    local name
    for name in $(k get volumeattachments -o 'jsonpath={.items[?(@.status.attached!=true)].metadata.name}'); do
        k patch volumeattachment "$name" --subresource status --type merge \
            -p '{"status": {"attached": true, "attachmentMetadata": {"disk": "sdx"}}}' >/dev/null
    done
}
# attached POD: the Pod runs, or has run, once its volume is attached.
attached() {
    attach
    says Running phase "$1" || says Succeeded phase "$1"
}

step "a driver registers: the API hears of the node's id, its topology and its limit"
k apply -f - >/dev/null <<YAML
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: $DRIVER}
spec: {podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral], fsGroupPolicy: File}
YAML
driver
until_true 30 called Registered
says "$NODE 5" k get csinode "$NODE" -o 'jsonpath={.spec.drivers[0].nodeID} {.spec.drivers[0].allocatable.count}' || fail "the CSINode"
has "$NODE" k get node "$NODE" -o "jsonpath={.metadata.labels['hostpath\.csi\.skiff\.local/node']}"
has "$DRIVER" k get node "$NODE" -o "jsonpath={.metadata.annotations['csi\.volume\.kubernetes\.io/nodeid']}"

step "a Pod waits for its volume to be attached, then it is staged and published"
mood Stats abnormal the disk is going
volume data Filesystem
pod writer "echo written > /v/file; $FOREVER" "$(claim data)"
until_true 30 has "kubernetes.io/csi/$DRIVER^vol-data" k get node "$NODE" -o 'jsonpath={.status.volumesInUse}'
none calls Stage || fail "what is not attached is not staged"
until_true 60 attached writer
until_true 30 has written cat "$WORK/volumes/vol-data/file"
called "Publish vol-data writer" || fail "the driver hears of the Pod"
[ "$(stat -c %g "$WORK/volumes/vol-data/file")" = 2000 ] || fail "the Pod's group owns what it writes"

step "another Pod gets the same volume, and what the first one wrote"
pod reader "cat /v/file" "$(claim data)"
until_true 60 says Succeeded phase reader
has written k logs reader
says 1 calls "Stage vol-data" || fail "it is staged once"

step "a volume grows while it is in use"
k patch pv pv-data --type merge -p '{"spec": {"capacity": {"storage": "2Gi"}}}' >/dev/null
k patch pvc data --subresource status --type merge -p '{"status": {"allocatedResourceStatuses": {"storage": "NodeResizePending"}}}' >/dev/null
until_true 90 says 2Gi k get pvc data -o 'jsonpath={.status.capacity.storage}'
called "Expand vol-data 2147483648" || fail "the driver was asked for its new size"
says "" k get pvc data -o 'jsonpath={.status.allocatedResourceStatuses}' || fail "nothing is left to do"
has "MountVolume.NodeExpandVolume succeeded" k get events --field-selector reason=FileSystemResizeSuccessful

step "the node tells how full volumes are, and how healthy"
summary() { k get --raw "/api/v1/nodes/$NODE/proxy/stats/summary"; }
until_true 90 has '"pvcRef":{"name":"data","namespace":"default"}' summary
has '"usedBytes":8' summary
has 'kubelet_volume_stats_used_bytes{namespace="default",persistentvolumeclaim="data"} 8' \
    k get --raw "/api/v1/nodes/$NODE/proxy/metrics"
has '"volumeHealthStats":{"abnormal":true}' summary
has 'kubelet_volume_stats_health_status_abnormal{namespace="default",persistentvolumeclaim="data"} 1' \
    k get --raw "/api/v1/nodes/$NODE/proxy/metrics"
until_true 90 has "Volume v: the disk is going" k get events --field-selector reason=VolumeConditionAbnormal,involvedObject.name=writer
mood Stats ""

step "the kubelet is killed; what it has mounted it still knows"
kill -9 "$(cat "$DATA/skiff.pid")"
"$SKIFF" "${UP[@]}" >/dev/null
until_true 60 k get node "$NODE"
k delete pod reader writer --wait --timeout=60s >/dev/null
until_true 30 called "Unstage vol-data"
until_true 30 none mounts "$OWN"
until_true 30 says "" k get node "$NODE" -o 'jsonpath={.status.volumesInUse}'
[ -e "$WORK/volumes/vol-data/file" ] || fail "the data is still there"

step "a volume of the Pod's own comes and goes with it"
pod own "echo mine > /v/file; $FOREVER" "csi: {driver: $DRIVER}"
until_true 60 says Running phase own
says 1 mounts "kubernetes.io~csi/v/mount" || fail "it is mounted once"
k delete pod own --wait --timeout=60s >/dev/null
[ -z "$(ls "$WORK/volumes" | grep '^csi-' || true)" ] || fail "it is gone"

step "a block volume is a device of the container, kept open meanwhile"
held() { losetup --noheadings --output BACK-FILE | grep -c "$ROOT/pods/.*/devices/v" || true; }
volume disk Block
pod block "echo on the device > /dev/mine; sync; head -c 14 /dev/mine; $FOREVER" "$(claim disk)" \
    "volumeDevices: [{name: v, devicePath: /dev/mine}]"
until_true 60 attached block
until_true 30 has "on the device" k logs block
until_true 30 has "on the device" head -c 13 "$WORK/volumes/vol-disk.img"
says 1 held || fail "nothing keeps the device open"
k delete pod block --wait --timeout=60s >/dev/null
until_true 30 called "Unstage vol-disk"
[ -z "$(losetup --noheadings --associated "$WORK/volumes/vol-disk.img")" ] || fail "the loop device is given back"
says 0 held || fail "the device is still kept open"

step "a local PersistentVolume is a device as well"
truncate -s 1M "$WORK/local.img"
LOOP=$(losetup --find --show "$WORK/local.img")
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-loop}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  storageClassName: loop
  claimRef: {namespace: default, name: loop}
  local: {path: $LOOP}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: ["$NODE"]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: loop}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: loop, volumeName: pv-loop, resources: {requests: {storage: 1Mi}}}
YAML
pod loop "echo local device > /dev/mine" "$(claim loop)" "volumeDevices: [{name: v, devicePath: /dev/mine}]"
until_true 60 says Succeeded phase loop
has "local device" head -c 12 "$LOOP"
k delete pod loop --wait >/dev/null
says 0 held || fail "the local device is still kept open"
losetup --detach "$LOOP"

step "what the driver refuses, the Pod says; a Pod stays until its volume is given back"
mood Stage refuse no disk today
pod again "$FOREVER" "$(claim data)"
says_why() {
    attach
    has "rpc error: code = Internal desc = no disk today" k get events --field-selector reason=FailedMount
}
until_true 60 says_why
mood Stage ""
until_true 150 attached again
mood Unpublish refuse busy
k delete pod again --wait=false >/dev/null
until_true 30 called "Unpublish vol-data"
k get pod again >/dev/null || fail "the Pod stays"
mood Unpublish ""
k wait --for=delete pod/again --timeout=150s >/dev/null

step "a driver that hangs keeps nobody else waiting; when it has been killed and is there again, all goes on"
again() {
    kill -9 "$LAST"
    wait "$LAST" 2>/dev/null || true
    driver
}
# asked METHOD POD: the driver has been asked for the Pod's volume, which may have to be attached first.
asked() {
    attach
    called "$1 vol-$2"
}
for name in slow quick; do volume $name Filesystem; done
mood Stage hang
pod slow "$FOREVER" "$(claim slow)"
until_true 60 asked Stage slow
mood Stage ""
pod quick "$FOREVER" "$(claim quick)"
until_true 60 attached quick
says Pending phase slow || fail "the Pod waits for its volume"
again
lost() { k get events --field-selector reason=FailedMount,involvedObject.name=slow; }
until_true 30 has 'MountVolume.MountDevice failed for volume "pv-slow" : rpc error: code = Unavailable' lost
until_true 60 says Running phase slow
mood Unpublish hang
k delete pod slow --wait=false >/dev/null
until_true 30 called "Unpublish vol-slow"
mood Unpublish ""
k delete pod quick --timeout=60s >/dev/null
says 1 mounts "kubernetes.io~csi/pv-slow/mount" || fail "the Pod's volume is still there"
k get pod slow >/dev/null || fail "the Pod stays until its volume is given back"
again
k wait --for=delete pod/slow --timeout=60s >/dev/null
until_true 30 called "Unstage vol-slow"

step "a driver that died while it staged may have done it: it is asked to undo that, although its Pod has gone meanwhile"
volume gone Filesystem
mood Stage hang
pod gone "$FOREVER" "$(claim gone)"
until_true 60 asked Stage gone
mood Stage ""
kill -9 "$LAST"
wait "$LAST" 2>/dev/null || true
until_true 30 has "rpc error" k get events --field-selector reason=FailedMount,involvedObject.name=gone
k delete pod gone --timeout=60s >/dev/null
driver
until_true 30 called "Unstage vol-gone"

step "a driver that lies: what it says to have unmounted and has not, the kubelet unmounts, and touches nothing in it"
volume lied Filesystem
pod lied "echo kept > /v/file; $FOREVER" "$(claim lied)"
until_true 60 attached lied
until_true 20 has kept cat "$WORK/volumes/vol-lied/file"
mood Unpublish lie
mood Unstage lie
k delete pod lied --timeout=60s >/dev/null
until_true 30 called "Unstage vol-lied"
until_true 30 none mounts "$OWN"
none mounts "kubernetes.io~csi" || fail "a volume stays mounted"
until_true 30 says "" k get node "$NODE" -o 'jsonpath={.status.volumesInUse}'
has kept cat "$WORK/volumes/vol-lied/file"
mood Unpublish ""
mood Unstage ""

step "a driver that needs no attachments any more has them taken away, and its Pods keep their volumes"
# Nothing of it can be changed: it is made anew.
attachments() { k get volumeattachments -o name | wc -l; }
recreate() {
    k get csidriver $DRIVER -o json | sed "s/\"attachRequired\": [a-z]*/\"attachRequired\": $1/" >"$WORK/csidriver.json"
    k replace --force -f "$WORK/csidriver.json" >/dev/null
}
volume free Filesystem
pod free "$FOREVER" "$(claim free)"
until_true 60 attached free
says 1 attachments || fail "one volume is attached"
recreate false
until_true 30 none attachments
says "" k get node "$NODE" -o 'jsonpath={.status.volumesInUse}' || fail "the node uses nothing that is attached"
says Running phase free || fail "the Pod runs on"
k delete pod free --wait --timeout=60s >/dev/null
until_true 30 called "Unstage vol-free"
recreate true

step "a driver that goes is taken out of the API, and Pods wait for it"
ended "$LAST"
until_true 30 says "" k get csinode "$NODE" -o 'jsonpath={.spec.drivers[*].name}'
pod late "$FOREVER" "csi: {driver: $DRIVER}"
until_true 60 has "driver name $DRIVER not found in the list of registered CSI drivers" k get events
driver
until_true 150 says Running phase late
k delete pod late --wait --timeout=60s >/dev/null
none mounts "kubernetes.io~csi" || fail "nothing is left mounted"

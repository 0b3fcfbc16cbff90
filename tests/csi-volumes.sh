#!/usr/bin/env bash
# Volumes that a CSI driver makes, on two nodes: its sidecars follow the API as upstream's do. Claims get volumes, volumes grow while
# nobody has them, get the content of others and of snapshots, and are taken from a node that is dead.
. "$(dirname "$0")/cluster.sh"

DRIVER=hostpath.csi.skiff.local
CSI=${CSI:-$(dirname "$SKIFF")/csi-hostpath}
IMAGE=skiff.local/busybox:1
FOREVER='trap exit TERM; while :; do sleep 0.2; done'
# The loop devices of a test that failed go as well.
release() {
    local image
    for image in "$WORK"/volumes/*.img; do
        losetup --noheadings --output NAME --associated "$image" 2>/dev/null | xargs -r -n 1 losetup --detach || true
    done
}
forwarding=$(</proc/sys/net/ipv4/ip_forward)
trap 'CODE=$?; set +e; release; echo "$forwarding" >/proc/sys/net/ipv4/ip_forward; (exit "$CODE"); on_exit' EXIT
[ -x "$CSI" ] || fail "no driver beside the binary: build csi-hostpath"

UP+=(--node-name one --node-monitor-grace-period 20s --feature-gates=CrossNamespaceVolumeDataSource=true)
"$SKIFF" "${UP[@]}" --nodes 2 >/dev/null
MOODS=$WORK/moods
LOG=$WORK/calls
touch "$MOODS" "$LOG"

# drive NAME FLAG...: a process of the driver, in $LAST.
drive() { started "$WORK/$1.log" "$CSI" --data "$WORK/volumes" --moods "$MOODS" --log "$LOG" "${@:2}"; }
mood() { echo "$*" >>"$MOODS"; }
called() { grep -q -- "$1" "$LOG"; }
calls() { grep -c -- "$1" "$LOG" || true; }
mounts() { grep -c "$1" /proc/mounts || true; }
none() { [ "$("$@")" = 0 ]; }
phase() { k get pod "$1" -o 'jsonpath={.status.phase}'; }
# The line of the log that the last call of that kind has.
turn() { grep -n -- "$1" "$LOG" | tail -1 | cut -d: -f1; }
of() { k get "$1" "$2" -o "jsonpath={$3}"; }
finalizers() { of "$1" "$2" .metadata.finalizers; }
events() { k get events -A --field-selector "involvedObject.kind=$1,involvedObject.name=$2" -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}'; }
gone() { [ -z "$(k get "$@" --ignore-not-found -o name)" ]; }
volume_of() { of pvc "$1" .spec.volumeName; }

# claim NAME SIZE [SOURCE] [CLASS]
claim() {
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: ${1#*/}, namespace: $(case $1 in */*) echo "${1%/*}" ;; *) echo default ;; esac)}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ${4:-csi}
  resources: {requests: {storage: $2}}
  ${3:-}
YAML
}
bound() { says Bound of pvc "$1" .status.phase; }

# pod NAME COMMAND CLAIM [NODE]
pod() {
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  nodeSelector: {kubernetes.io/hostname: ${4:-one}}
  containers:
  - {name: c, image: "$IMAGE", command: [sh, -c, "$2"], volumeMounts: [{name: v, mountPath: /v}]}
  volumes: [{name: v, persistentVolumeClaim: {claimName: $3}}]
YAML
}
# The Pod's file system has more kilobytes than that.
roomy() { [ "$(k exec "$1" -- df -k /v | awk 'END {print $2}')" -gt "$2" ]; }
# holds CLAIM TEXT: a Pod finds this text in the claim's volume.
holds() {
    pod "reads-$1" "cat /v/file" "$1"
    until_true 60 says Succeeded phase "reads-$1"
    has "$2" k logs "reads-$1"
    k delete pod "reads-$1" --timeout=60s >/dev/null
}

step "the driver on both nodes, and its sidecars"
k apply -f - >/dev/null <<YAML
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: $DRIVER}
spec: {fsGroupPolicy: File}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: csi}
provisioner: $DRIVER
allowVolumeExpansion: true
---
apiVersion: v1
kind: Namespace
metadata: {name: other}
YAML
drive one --kubelet "$DATA/kubelet" --node-id one
second() {
    drive two --kubelet "$DATA/nodes/2/kubelet" --node-id one-2
    SECOND=$LAST
}
second
drive sidecars --kubeconfig "$KUBECONFIG"
for node in one one-2; do until_true 30 says $DRIVER k get csinode $node -o 'jsonpath={.spec.drivers[*].name}'; done

step "a claim gets a volume, which is attached before a node stages it"
claim data 32Mi
until_true 30 bound data
VOLUME=$(volume_of data)
says "$DRIVER" of pv "$VOLUME" '.metadata.annotations.pv\.kubernetes\.io/provisioned-by'
has "ExternalProvisioning: Waiting for a volume to be created either by the external provisioner '$DRIVER'" events PersistentVolumeClaim data
has "ProvisioningSucceeded: Successfully provisioned volume $VOLUME" events PersistentVolumeClaim data
pod writer "echo first > /v/file; sync; $FOREVER" data
until_true 60 says Running phase writer
[ "$(turn "ControllerPublish $VOLUME one")" -lt "$(turn "Stage $VOLUME")" ] || fail "staged before it was attached"
for finalizer in external-provisioner.volume.kubernetes.io/finalizer external-attacher/hostpath-csi-skiff-local kubernetes.io/pv-protection; do
    has "$finalizer" finalizers pv "$VOLUME"
done
roomy writer 20000 || fail "it has the room that was asked for"
roomy writer 40000 && fail "it has more room than was asked for"
k delete pod writer --timeout=60s >/dev/null
until_true 30 says "" k get volumeattachments -o name
called "ControllerUnpublish $VOLUME one" || fail "the driver takes it from the node"
[ "$(turn "Unstage $VOLUME")" -lt "$(turn "ControllerUnpublish $VOLUME")" ] || fail "taken away before the node gave it back"

step "a claim that grows while no Pod has it: the controller's half first, and what went wrong is said"
mood ControllerExpand refuse no room
k patch pvc data --type merge -p '{"spec": {"resources": {"requests": {"storage": "64Mi"}}}}' >/dev/null
until_true 30 has "failed to expand pvc with rpc error: code = Internal desc = no room" \
    of pvc data '.status.conditions[?(@.type=="ControllerResizeError")].message'
says ControllerResizeInProgress of pvc data .status.allocatedResourceStatuses.storage
has "ExternalExpanding: waiting for an external controller to expand this PVC" events PersistentVolumeClaim data
has "VolumeResizeFailed: resize volume" events PersistentVolumeClaim data
mood ControllerExpand ""
until_true 60 says NodeResizePending of pvc data .status.allocatedResourceStatuses.storage
has "Waiting for user to (re-)start a pod to finish file system resize of volume on node." \
    of pvc data '.status.conditions[?(@.type=="FileSystemResizePending")].message'
says "32Mi 64Mi 64Mi" k get pvc data -o 'jsonpath={.status.capacity.storage} {.status.allocatedResources.storage} {.spec.resources.requests.storage}'
says 64Mi of pv "$VOLUME" .spec.capacity.storage
until_true 20 has "FileSystemResizeRequired: Require file system resize of volume on node" events PersistentVolumeClaim data
none calls "^Expand" || fail "no node has it, and one was asked"

step "the next Pod's node lets the file system grow, and the Pod sees it and its data"
pod grown "$FOREVER" data
until_true 60 says Running phase grown
until_true 30 says 64Mi of pvc data .status.capacity.storage
called "Expand $VOLUME 67108864" || fail "the driver was asked on the node"
[ "$(turn "Stage $VOLUME")" -lt "$(turn "^Expand $VOLUME")" ] || fail "it grew before it was staged"
roomy grown 50000 || fail "the Pod sees the new size"
has first k exec grown -- cat /v/file
says "" of pvc data .status.conditions || fail "conditions stay"
says "" of pvc data .status.allocatedResourceStatuses || fail "there is nothing left to do"
until_true 20 has "FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume \"$VOLUME\"" events PersistentVolumeClaim data
has "FileSystemResizeSuccessful" events Pod grown
refused "field can not be less than status.capacity" k patch pvc data --type merge -p '{"spec": {"resources": {"requests": {"storage": "32Mi"}}}}'

step "a claim gets the content of another one, although a Pod writes to that"
claim copy 80Mi 'dataSource: {kind: PersistentVolumeClaim, name: data}'
until_true 60 bound copy
called "CreateVolume $(volume_of copy) 83886080 from volume $VOLUME" || fail "the driver was told the source"
says PersistentVolumeClaim/data k get pvc copy -o 'jsonpath={.spec.dataSourceRef.kind}/{.spec.dataSourceRef.name}'
has cloning-protection finalizers pvc data
k exec grown -- sh -c 'echo second > /v/file; sync'
pod copied "$FOREVER" copy one-2
until_true 60 says Running phase copied
has first k exec copied -- cat /v/file
roomy copied 65000 || fail "the copy is as large as it was asked for"

step "what cannot be a source is told"
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolume
metadata: {name: foreign}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: foreign
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: default, name: foreign}
  hostPath: {path: /nowhere}
YAML
claim foreign 1Mi "volumeName: foreign" foreign
until_true 20 bound foreign
why() { # why NAMESPACE/NAME SIZE SOURCE TEXT
    claim "$1" "$2" "dataSource: {kind: PersistentVolumeClaim, name: $3}"
    until_true 30 has "ProvisioningFailed: error getting handle for DataSource Type PersistentVolumeClaim by Name $3: $4" \
        events PersistentVolumeClaim "${1#*/}"
    says Pending k get pvc -n "${1%/*}" "${1#*/}" -o 'jsonpath={.status.phase}' || fail "$1 got a volume"
    k delete pvc -n "${1%/*}" "${1#*/}" >/dev/null
}
why other/elsewhere 64Mi data 'error getting PVC data (namespace "other") from api server'
why default/small 16Mi data 'error, new PVC request must be greater than or equal in size to the specified PVC data source, requested 16777216 but source is 67108864'
why default/foreigner 64Mi foreign "claim in dataSource not bound or invalid"
why default/orphan 64Mi nobody 'error getting PVC nobody (namespace "default") from api server'

step "a source that is deleted stays until nobody waits for its content"
mood CreateVolume refuse busy
claim again 80Mi 'dataSource: {kind: PersistentVolumeClaim, name: copy}'
until_true 30 has "ProvisioningFailed: rpc error: code = Internal desc = busy" events PersistentVolumeClaim again
k delete pod copied --timeout=60s >/dev/null
COPY=$(volume_of copy)
k delete pvc copy --wait=false >/dev/null
until_true 20 says '["provisioner.storage.kubernetes.io/cloning-protection"]' finalizers pvc copy
k delete pvc again >/dev/null
until_true 20 gone pvc copy
mood CreateVolume ""
until_true 60 gone pv "$COPY"
called "DeleteVolume $COPY" || fail "the driver removes it"
[ ! -e "$WORK/volumes/$COPY.img" ] || fail "the image stays"

step "a snapshot and its content find each other"
k apply -f "$(dirname "$0")/csi-snapshots.yaml" >/dev/null
until_true 20 k get volumesnapshots,volumesnapshotcontents,volumesnapshotclasses,referencegrants
k apply -f - >/dev/null <<YAML
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: usual, annotations: {snapshot.storage.kubernetes.io/is-default-class: "true"}}
driver: $DRIVER
deletionPolicy: Delete
YAML
snapshot() { # snapshot NAME SOURCE
    k apply -f - >/dev/null <<YAML
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: $1}
spec: {source: {$2}}
YAML
}
SNAPSHOT='apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot'
usable() { says true of vs "$1" .status.readyToUse; }
refused "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set" snapshot both "persistentVolumeClaimName: data, volumeSnapshotContentName: x"
snapshot one "persistentVolumeClaimName: data"
until_true 30 usable one
CONTENT=$(of vs one .status.boundVolumeSnapshotContentName)
says "snapcontent-$(of vs one .metadata.uid)" echo "$CONTENT"
says "$VOLUME" of vsc "$CONTENT" .spec.source.volumeHandle
says 64Mi of vs one .status.restoreSize
has "64Mi" k get vs one
has "volumesnapshotcontent-bound-protection" finalizers vsc "$CONTENT"
for finalizer in volumesnapshot-bound-protection volumesnapshot-as-source-protection; do has $finalizer finalizers vs one; done
until_true 20 has "SnapshotReady: Snapshot default/one is ready to use." events VolumeSnapshot one
has "CreatingSnapshot: Waiting for a snapshot default/one to be created by the CSI driver." events VolumeSnapshot one
held() { has pvc-as-source-protection finalizers pvc "$1"; }
until_true 20 refused "no 'pvc-as-source-protection'" held data
refused "persistentVolumeClaimName is immutable" k patch vs one --type merge -p '{"spec": {"source": {"persistentVolumeClaimName": "other"}}}'

step "volumes are made from it, whichever field names it"
k exec grown -- sh -c 'echo third > /v/file; sync'
claim restored 64Mi "dataSource: {$SNAPSHOT, name: one}"
claim referred 64Mi "dataSourceRef: {$SNAPSHOT, name: one}"
for name in restored referred; do
    until_true 60 bound $name
    says "VolumeSnapshot/one VolumeSnapshot/one" k get pvc $name \
        -o 'jsonpath={.spec.dataSource.kind}/{.spec.dataSource.name} {.spec.dataSourceRef.kind}/{.spec.dataSourceRef.name}'
    holds $name second
done
has third k exec grown -- cat /v/file
claim small 16Mi "dataSource: {$SNAPSHOT, name: one}"
until_true 30 has "requested volume size 16777216 is less than the size 67108864 for the source snapshot one" events PersistentVolumeClaim small
k delete pvc small restored referred >/dev/null

step "a kind that nobody here knows is left to its populator; only the newer field takes it"
claim populated 16Mi "dataSourceRef: {apiGroup: example.com, kind: Image, name: a}"
claim ignored 16Mi "dataSource: {apiGroup: example.com, kind: Image, name: a}"
until_true 30 has "Provisioning: Assuming an external populator will provision the volume" events PersistentVolumeClaim populated
until_true 30 bound ignored
says "" of pvc ignored .spec.dataSourceRef || fail "the older field took a kind that it does not know"
says Image/Pending k get pvc populated -o 'jsonpath={.spec.dataSource.kind}/{.status.phase}'
k delete pvc populated ignored >/dev/null

step "a snapshot of another namespace needs a grant"
claim other/granted 64Mi "dataSourceRef: {$SNAPSHOT, name: one, namespace: default}"
until_true 30 has "ProvisioningFailed: accessing default/one of VolumeSnapshot dataSource from other/granted isn't allowed" events PersistentVolumeClaim granted
says "/default" k get pvc -n other granted -o 'jsonpath={.spec.dataSource.kind}/{.spec.dataSourceRef.namespace}'
refused "may not be specified when dataSourceRef.namespace is specified" claim other/both 64Mi \
    "dataSource: {$SNAPSHOT, name: one}
  dataSourceRef: {$SNAPSHOT, name: one, namespace: default}"
k apply -f - >/dev/null <<YAML
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: for-other}
spec:
  from: [{group: "", kind: PersistentVolumeClaim, namespace: other}]
  to: [{group: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: one}]
YAML
until_true 60 says Bound k get pvc -n other granted -o 'jsonpath={.status.phase}'
k delete pvc -n other granted >/dev/null

step "a snapshot that was there before gets its objects"
HANDLE=$(of vsc "$CONTENT" .status.snapshotHandle)
k apply -f - >/dev/null <<YAML
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {name: old}
spec:
  driver: $DRIVER
  deletionPolicy: Retain
  source: {snapshotHandle: $HANDLE}
  volumeSnapshotRef: {namespace: default, name: old}
YAML
snapshot old "volumeSnapshotContentName: old"
until_true 30 usable old
says "$(of vs old .metadata.uid)" of vsc old .spec.volumeSnapshotRef.uid
k delete vs old --timeout=30s >/dev/null
says "$HANDLE" of vsc old .status.snapshotHandle || fail "what is to be kept went"
k delete vsc old --timeout=30s >/dev/null
none calls "DeleteSnapshot" || fail "what is to be kept was deleted"

step "the source of a snapshot, and the snapshot of a source, stay as long as they are needed"
claim short 16Mi
until_true 30 bound short
mood CreateSnapshot refuse no room
snapshot two "persistentVolumeClaimName: short"
until_true 30 has "no room" of vs two .status.error.message
k delete pvc short --wait=false >/dev/null
until_true 20 says '["snapshot.storage.kubernetes.io/pvc-as-source-protection"]' finalizers pvc short
mood CreateSnapshot ""
until_true 60 usable two
until_true 20 gone pvc short
mood CreateVolume refuse busy
claim late 64Mi "dataSource: {$SNAPSHOT, name: one}"
until_true 30 has "desc = busy" events PersistentVolumeClaim late
has "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection" finalizers vs one
k delete vs one --wait=false >/dev/null
until_true 30 has "SnapshotDeletePending: Snapshot is being used to restore a PVC" events VolumeSnapshot one
k get vs one >/dev/null
k delete pvc late >/dev/null
mood CreateVolume ""
until_true 60 gone vs one
until_true 30 gone vsc "$CONTENT"
called "DeleteSnapshot $HANDLE" || fail "the driver removes it"
k delete vs two --timeout=30s >/dev/null
k delete pod grown --timeout=60s >/dev/null

step "a node dies: as long as nobody says so, its volume stays there"
k cordon one >/dev/null
k apply -f - >/dev/null <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: db}
spec:
  replicas: 1
  strategy: {type: Recreate}
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: c, image: "$IMAGE", command: [sh, -c, "echo of \$HOSTNAME >> /v/log; sync; $FOREVER"], volumeMounts: [{name: v, mountPath: /v}]}
      volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
YAML
k rollout status deployment/db --timeout=60s >/dev/null
FIRST=$(k get pods -l app=db -o 'jsonpath={.items[0].metadata.name}')
says one-2 of pod "$FIRST" .spec.nodeName
k uncordon one >/dev/null
AGENT=$(cat "$DATA/nodes/2/skiff.pid")
kill -STOP "$AGENT"
ended "$SECOND"
until_true 60 k wait --for=condition=Ready=Unknown node one-2 --timeout=1s
k delete pod "$FIRST" --wait=false >/dev/null
waiting() { k get pods -l app=db --field-selector metadata.name!="$FIRST" -o 'jsonpath={.items[*].metadata.name}'; }
says one-2 k get volumeattachments -o 'jsonpath={.items[*].spec.nodeName}' || fail "the volume left a node that may use it"
forced() { has "attachdetach_controller_forced_detaches{reason=\"$1\"} $2" k get --raw /metrics; }
refused "no 'attach" forced out-of-service 1

step "somebody says that it is off: its Pods and its volumes are taken from it at once"
k taint node one-2 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute >/dev/null
until_true 30 gone pod "$FIRST"
until_true 30 called "ControllerUnpublish $VOLUME one-2"
until_true 60 k rollout status deployment/db --timeout=1s
NEXT=$(waiting)
says one of pod "$NEXT" .spec.nodeName
has "of $FIRST" k exec "$NEXT" -- cat /v/log
has "of $NEXT" k exec "$NEXT" -- cat /v/log
has third k exec "$NEXT" -- cat /v/file
says one k get volumeattachments -o 'jsonpath={.items[*].spec.nodeName}'
forced out-of-service 1
refused "no 'attach" forced timeout 1

step "the node comes back and gives up what it held, and the Pod that has it now keeps it"
kill -9 "$AGENT"
second
until_true 60 k wait --for=condition=Ready node one-2 --timeout=1s
k taint node one-2 node.kubernetes.io/out-of-service- >/dev/null
until_true 60 none mounts "$DATA/nodes/2/kubelet/.*csi"
until_true 30 says "" k get node one-2 -o 'jsonpath={.status.volumesInUse}'
has "of $NEXT" k exec "$NEXT" -- cat /v/log
k delete deployment db --timeout=60s >/dev/null
k delete pvc data >/dev/null
until_true 60 gone pv "$VOLUME"
none mounts "kubernetes.io~csi" || fail "nothing is left mounted"

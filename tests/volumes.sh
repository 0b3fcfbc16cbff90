#!/usr/bin/env bash
# Claims and volumes on a real node with the real kubectl: a StatefulSet whose data outlives its Pods, claims that go when
# they may, volumes that are released, and what is said while nothing is there yet.
. "$(dirname "$0")/cluster.sh"

# Its volumes are made by hand: the class of local volumes, which is the default otherwise, would give claims some.
"$SKIFF" "${UP[@]}" --disable local-storage >/dev/null
NODE=$(k get node -o 'jsonpath={.items[0].metadata.name}')
k apply -f "$(dirname "$0")/volumes.yaml" >/dev/null

phase() { k get "$1" "$2" -o 'jsonpath={.status.phase}'; }
# A volume of this node: NAME SIZE CLASS SOURCE POLICY [FOLDER]
volume() {
    local folder=${6:-$WORK/$1}
    mkdir -p "$folder"
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolume
metadata: {name: $1}
spec:
  capacity: {storage: $2}
  accessModes: [ReadWriteOnce]
  storageClassName: "$3"
  persistentVolumeReclaimPolicy: $5
  $4: {path: "$folder"}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: ["$NODE"]}]}]}}
YAML
}

step "claims without volumes wait, and it is said for what"
until_true 30 has "waiting for pod db-0 to be scheduled" k get events --field-selector reason=WaitForPodScheduled
until_true 30 has "no persistent volumes available for this claim and no storage class is set" k describe pvc plain
until_true 30 has "didn't find available persistent volumes to bind" k describe pod db-0
says Pending phase pvc plain || fail "an unbound claim is Pending"

step "a StatefulSet gets local volumes, each ordinal its own"
volume one 1Gi local local Retain
volume two 2Gi local local Retain
k rollout status statefulset/db --timeout=90s >/dev/null
says "one two" k get pvc -l app=db -o 'jsonpath={.items[*].spec.volumeName}' || fail "the smallest volume is the first claim's"
says Bound phase pv one || fail "the volume is bound"
has '"pv.kubernetes.io/bind-completed":"yes"' k get pvc data-db-0 -o 'jsonpath={.metadata.annotations}'
[ "$(stat -c %g "$WORK/one/log")" = 2000 ] || fail "the Pod's group owns what it writes"

step "its data survives the Pod"
k delete pod db-0 --wait >/dev/null
k rollout status statefulset/db --timeout=90s >/dev/null
until_true 30 says 2 grep -c started "$WORK/one/log"
says one k get pvc data-db-0 -o 'jsonpath={.spec.volumeName}' || fail "the claim keeps its volume"

step "a claim in use outlives its deletion; one that is scaled away goes, and its volume is released"
k scale statefulset db --replicas=1 >/dev/null
until_true 60 refused "not found" k get pvc data-db-1
until_true 30 says Released phase pv two
[ -e "$WORK/two/log" ] || fail "what is retained is still there"
k delete pvc data-db-0 --wait=false >/dev/null
until_true 30 has Terminating k get pvc data-db-0
says Bound phase pv one || fail "the volume is bound while a Pod uses it"
k delete statefulset db >/dev/null
until_true 60 refused "not found" k get pvc data-db-0
until_true 30 says Released phase pv one

step "a released volume is free again when its claim is cleared"
k patch pv two --type=merge -p '{"spec":{"claimRef":null}}' >/dev/null
until_true 30 says Available phase pv two

step "a hostPath volume is read; below /tmp it goes with its claim, elsewhere it stays and is Failed"
near=$(mktemp -d /tmp/skiff-volume.XXXXXX)
echo "from the node" >"$near/note"
volume host 1Gi "" hostPath Delete "$near"
until_true 30 says Succeeded phase pod reader
has "from the node" k logs reader
has "read-only" k logs reader
k delete pod reader --wait >/dev/null
k delete pvc plain >/dev/null
k wait --for=delete pv/host --timeout=30s >/dev/null
[ ! -e "$near" ] || fail "the folder goes with its volume"

volume far 1Gi "" hostPath Delete "$DATA/far"
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: far}
spec: {storageClassName: "", volumeName: far, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
YAML
until_true 30 says Bound phase pv far
k delete pvc far >/dev/null
until_true 30 says Failed phase pv far
has VolumeFailedDelete k describe pv far
[ -e "$DATA/far" ] || fail "nothing was deleted"

step "a volume of one Pod alone is not that of a Pod which names its node; what no container has is not waited for"
mkdir -p "$WORK/alone"
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolume
metadata: {name: alone}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOncePod]
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: "$WORK/alone"}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: alone}
spec: {storageClassName: "", volumeName: alone, accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Gi}}}
YAML
# A Pod of this node: NAME
pinned() {
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  nodeName: $NODE
  terminationGracePeriodSeconds: 0
  volumes:
    - {name: v, persistentVolumeClaim: {claimName: alone}}
    - {name: memory, emptyDir: {medium: Memory}}
    - {name: none, secret: {secretName: none}}
  containers:
    - name: c
      image: "skiff.local/busybox:1"
      command: [sleep, "10000"]
      volumeMounts: [{name: v, mountPath: /v}, {name: memory, mountPath: /memory}]
YAML
}
until_true 30 says Bound phase pvc alone
pinned first
until_true 30 says Running phase pod first
says 1777 k exec first -- stat -c %a /memory || fail "each user removes their own files alone"
pinned second
until_true 30 has "volume uses the ReadWriteOncePod access mode and is already in use by another pod" k describe pod second
says Pending phase pod second || fail "two Pods have a volume that is for one"
k delete pod first --wait >/dev/null
until_true 150 says Running phase pod second
until_true 10 has 'pv_collector_bound_pvc_count{namespace="default",storage_class="",volume_attributes_class=""} 1' k get --raw /metrics

"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"

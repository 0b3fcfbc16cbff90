#!/usr/bin/env bash
# The storage of a new cluster with the real kubectl: a StatefulSet that names no class gets folders of its node, which go with
# their claims; what does not fit is not promised; and the class is the user's.
. "$(dirname "$0")/cluster.sh"

"$SKIFF" "${UP[@]}" >/dev/null
NODE=$(k get node -o 'jsonpath={.items[0].metadata.name}')
FOLDER=$DATA/local-volumes

volume_of() { k get pvc "$1" -o 'jsonpath={.spec.volumeName}'; }
starts() { [ "$(grep -c started "$FOLDER/$FIRST/log")" -ge "$1" ]; }

step "a new cluster has a default class, and says how much room there is"
until_true 30 has "local (default)" k get storageclass
until_true 30 has "$NODE" k get csistoragecapacities -n kube-system -o 'jsonpath={.items[*].nodeTopology}'

step "a StatefulSet with claims works at once, for any user"
k apply -f - >/dev/null <<YAML
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      securityContext: {runAsUser: 1000}
      containers:
        - name: c
          image: "skiff.local/busybox:1"
          command: [sh, -c, 'echo started >>/data/log; exec sleep 10000']
          volumeMounts: [{name: data, mountPath: /data}]
YAML
k rollout status statefulset/db --timeout=90s >/dev/null
FIRST=$(volume_of data-db-0)
says started cat "$FOLDER/$FIRST/log" || fail "the volume is a folder of the node"
says 777 stat -c %a "$FOLDER/$FIRST" || fail "every user writes into a volume"
says 750 stat -c %a "$FOLDER" || fail "nobody else of the machine gets there"
for reason in ExternalProvisioning Provisioning ProvisioningSucceeded; do
    until_true 30 has data-db-0 k get events --field-selector "reason=$reason,involvedObject.name=data-db-0"
done
has "$NODE" k get pv "$FIRST" -o 'jsonpath={.spec.nodeAffinity}'

step "its data survives the Pod and the cluster's end with --keep-data"
k delete pod db-0 --wait >/dev/null
k rollout status statefulset/db --timeout=90s >/dev/null
until_true 30 starts 2
"$SKIFF" down --data-dir "$DATA" --keep-data >/dev/null
"$SKIFF" "${UP[@]}" >/dev/null
until_true 90 starts 3

step "what a node has no room for is not ordered there, and Pods wait"
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: huge}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 900Ti}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: huge}
spec:
  volumes: [{name: v, persistentVolumeClaim: {claimName: huge}}]
  containers: [{name: c, image: "skiff.local/busybox:1", volumeMounts: [{name: v, mountPath: /v}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: shared}
spec:
  volumes: [{name: v, persistentVolumeClaim: {claimName: shared}}]
  containers: [{name: c, image: "skiff.local/busybox:1", volumeMounts: [{name: v, mountPath: /v}]}]
YAML
until_true 30 has "did not have enough free storage" k describe pod huge
until_true 30 has "access mode ReadWriteMany" k describe pvc shared
k delete pod huge shared --wait >/dev/null
k delete pvc huge shared --wait >/dev/null

step "a node has no rights on volumes by it"
for verb in list create update patch delete; do
    answer=$(k auth can-i "$verb" persistentvolumes --as "system:node:$NODE" --as-group system:nodes 2>/dev/null) || true
    [[ $answer == no* ]] || fail "a node may $verb volumes: $answer"
done

step "folders go with their claims; one whose policy is Retain stays"
k patch pv "$FIRST" --type=merge -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}' >/dev/null
k delete statefulset db >/dev/null
k delete pvc data-db-0 data-db-1 --wait >/dev/null
until_true 60 says "$FIRST" ls "$FOLDER"
until_true 60 says "$FIRST" k get pv -o 'jsonpath={.items[*].metadata.name}'
k delete pv "$FIRST" --wait --timeout=60s >/dev/null
[ -e "$FOLDER/$FIRST/log" ] || fail "what is retained is still there"

step "the class is the user's: a deleted one does not come again"
k delete storageclass local >/dev/null
until_true 30 has "No resources found" k get csistoragecapacities -n kube-system
"$SKIFF" down --data-dir "$DATA" --keep-data >/dev/null
"$SKIFF" "${UP[@]}" >/dev/null
k get csidriver local.skiff.dev >/dev/null
has "No resources found" k get storageclass

step "a cluster may do without it"
"$SKIFF" down --data-dir "$DATA" >/dev/null
[ ! -e "$FOLDER" ] || fail "volumes go with the cluster"
"$SKIFF" "${UP[@]}" --disable local-storage >/dev/null
has "No resources found" k get storageclass,csidriver

"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"

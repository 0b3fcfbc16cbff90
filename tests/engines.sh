#!/usr/bin/env bash
# Engines of today, where the distribution's is older: containerd 2 with runc of Debian's unstable suite and of Ubuntu, only unpacked. Runtimes beside
# runc, Pods with users of their own, mounts that are read-only all the way down, images as volumes, groups that are kept away; an engine that is updated
# under running Pods, ends or hangs; and other tests over it.
. "$(dirname "$0")/cluster.sh"
. "$(dirname "$0")/vm.sh"
ENGINE=${SKIFF_TEST_CACHE:-/var/cache/skiff-ci}/engines
leave() {
    local code=$?
    umount "$WORK/host/below" 2>/dev/null || true
    set +e
    (exit "$code")
    on_exit
}
trap leave EXIT

# The packages of the suite, with the libraries that they were linked with: its runc and its crun find them, and nothing else does.
fetch() {
    [ ! -e "$ENGINE/ready" ] || return 0
    mkdir -p "$ENGINE"/{lists/partial,cache/archives/partial}
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main" >"$ENGINE/sources.list"
    cat >"$ENGINE/apt.conf" <<APT
Dir::Etc::SourceList "$ENGINE/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$ENGINE/lists";
Dir::Cache "$ENGINE/cache";
APT
    vm_unpack "$ENGINE/patchelf" patchelf || return 1
    APT_CONFIG=$ENGINE/apt.conf vm_unpack "$ENGINE/sid" containerd runc crun libc6 libseccomp2 libblake3-0 libcap2 libjson-c5 libsystemd0 || return 1
    rm -rf "$ENGINE/lists" "$ENGINE/cache"
    local libraries=$ENGINE/sid/usr/lib/x86_64-linux-gnu
    for program in sbin/runc bin/crun; do
        "$ENGINE/patchelf/usr/bin/patchelf" --set-interpreter "$libraries/ld-linux-x86-64.so.2" --set-rpath "$libraries" \
            "$ENGINE/sid/usr/$program" || return 1
        "$ENGINE/sid/usr/$program" --version >/dev/null || return 1
    done
    touch "$ENGINE/ready"
}
# The newest engine is Ubuntu's, whose keys are not Debian's: each of its packages is the one that was looked at.
newest() {
    local folder=$ENGINE/newest sum path file
    [ ! -e "$folder/ready" ] || return 0
    rm -rf "$folder"
    mkdir -p "$folder"
    while read -r sum path; do
        file=$folder/${path##*/}
        curl -sSf --retry 2 -o "$file" "http://archive.ubuntu.com/ubuntu/pool/main/$path" || return 1
        echo "$sum  $file" | sha256sum --quiet -c || return 1
        dpkg -x "$file" "$folder" && rm "$file" || return 1
    done <<'PACKAGES'
194075dfb15c151981de5a21df851d914d0d42765500beaea14dfe12ae512f3b c/containerd-app/containerd_2.3.4+dfsg1-0ubuntu2_amd64.deb
628ed851491d5f50091465630a8eaa18f5d73a7150bf6e7a119e1d706ba04d6c r/runc-app/runc_1.5.1-0ubuntu2_amd64.deb
e4871fc9d5bf5fe0f384c6b90f70e64e9c9bbcb84927aa97c7f70ec6bf05b8c0 g/glibc/libc6_2.44-1ubuntu2_amd64.deb
c6fab752e5fb9a007f50b784b292b5085e0d61ee91f52712b1208f107c5fcc7e libs/libseccomp/libseccomp2_2.6.1-1ubuntu1_amd64.deb
PACKAGES
    local libraries=$folder/usr/lib/x86_64-linux-gnu
    for program in bin/containerd bin/runc sbin/runc; do
        "$ENGINE/patchelf/usr/bin/patchelf" --set-interpreter "$libraries/ld-linux-x86-64.so.2" --set-rpath "$libraries" \
            "$folder/usr/$program" || return 1
        "$folder/usr/$program" --version >/dev/null || return 1
    done
    touch "$folder/ready"
}
if [ "$(uname -m)" != x86_64 ] || ! command -v apt-get >/dev/null || ! fetch; then
    echo "SKIPPED: engines of today cannot be had: ${VM_LACKS:-packages of Debian for x86_64}"
    exit 0
fi
# crun takes no cgroups of both versions beside each other, as this machine may have them: here one stands in for it, and tells that it was asked.
mkdir -p "$WORK/bin"
cat >"$WORK/bin/crun" <<SH
#!/bin/sh
echo "\$@" >>"$WORK/asked"
exec "$ENGINE/sid/usr/sbin/runc" "\$@"
SH
chmod +x "$WORK/bin/crun"
NEW=$WORK/bin:$ENGINE/sid/usr/bin:$ENGINE/sid/usr/sbin:$PATH
IMAGE=skiff.local/busybox:1
FOREVER='trap exit TERM; while :; do sleep 0.2; done'

# An image whose user is in a group of its own, and with a file to mount.
mkdir -p "$WORK/layer"/{bin,etc,data/part} "$WORK/archive"
cp "$(command -v busybox)" "$WORK/layer/bin/"
for name in sh id cat sleep ls; do ln -s busybox "$WORK/layer/bin/$name"; done
echo 'somebody:x:1000:1000::/:/bin/sh' >"$WORK/layer/etc/passwd"
printf 'somebody:x:1000:\nofimage:x:50000:somebody\n' >"$WORK/layer/etc/group"
echo "of the image" >"$WORK/layer/data/part/file"
tar -C "$WORK/layer" --owner=0 --group=0 -cf "$WORK/archive/layer.tar" .
layer=$(sha256sum "$WORK/archive/layer.tar" | cut -d' ' -f1)
printf '{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"config":{}}' "$layer" >"$WORK/archive/config.json"
echo '[{"Config":"config.json","RepoTags":["test.local/data:1"],"Layers":["layer.tar"]}]' >"$WORK/archive/manifest.json"
mkdir -p "$DATA/images"
tar -C "$WORK/archive" -cf "$DATA/images/data.tar" .

up() { # up PATH: with the engine that is found there
    PATH=$1 "$SKIFF" "${UP[@]}" >/dev/null
}
runs() { # runs: each Pod with its containers and how often they were restarted
    k get pods -o 'jsonpath={range .items[*]}{.metadata.name}{range .status.containerStatuses[*]} {.containerID} {.restartCount}{end}{"\n"}{end}'
}
same() { [ "$(runs)" = "$1" ]; }
engine() { k get node -o 'jsonpath={.items[0].status.nodeInfo.containerRuntimeVersion}'; }
ready() { [ "$(k get node -o 'jsonpath={.items[0].status.conditions[?(@.type=="Ready")].status}')" = "$1" ]; }
status() { k get pod "$1" -o "jsonpath={.status.containerStatuses[0].$2}"; }

step "an engine that is updated under running Pods: from $(containerd --version | awk '{print $3}') to $(PATH=$NEW containerd --version | awk '{print $3}')"
up "$PATH"
old=$(engine)
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: keeper}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: e, emptyDir: {}}]
  containers:
  - name: c
    image: $IMAGE
    command: [sh, -c, 'echo here >/e/f; httpd -p 8080 -h /e; i=0; trap exit TERM; while :; do i=\$((i + 1)); echo tick \$i; sleep 0.2; done']
    volumeMounts: [{name: e, mountPath: /e}]
    readinessProbe: {exec: {command: [cat, /e/f]}, periodSeconds: 1}
    livenessProbe: {httpGet: {port: 8080, path: /f}, periodSeconds: 1}
  - {name: d, image: $IMAGE, command: [sleep, '100000']}
---
apiVersion: v1
kind: Pod
metadata: {name: ended}
spec: {restartPolicy: Never, containers: [{name: c, image: $IMAGE, command: [sh, -c, 'echo last words; exit 3']}]}
YAML
k wait --for=condition=Ready pod/keeper --timeout=60s >/dev/null
until_true 30 says Failed k get pod ended -o 'jsonpath={.status.phase}'
before=$(runs)
kill -9 "$(cat "$DATA/skiff.pid")"
kill -9 "$(cat "$DATA/containerd/containerd.pid")"
up "$NEW"
until_true 30 says "containerd://$(PATH=$NEW containerd --version | awk '{print $3}')" engine
[ "$(engine)" != "$old" ] || echo "SKIPPED: this machine's own engine is no other one"
until_true 30 k exec keeper -c c -- true
ticks=$(k logs keeper -c c | wc -l)
more() { [ "$(k logs keeper -c c | wc -l)" -gt "$ticks" ]; }
until_true 20 more
same "$before" || fail "before: $before, now: $(runs)"
has "last words" k logs ended

step "an engine that ends, and one that hangs, lose nothing"
kill -9 "$(cat "$DATA/containerd/containerd.pid")"
until_true 60 k exec keeper -c c -- true
# The node may have looked while the engine was away, and may not have said yet that it is back.
until_true 60 ready True
hung=$(cat "$DATA/containerd/containerd.pid")
kill -STOP "$hung"
until_true 90 ready False
has "container runtime" k get node -o 'jsonpath={.items[0].status.conditions[?(@.type=="Ready")].message}'
has here curl -s --max-time 5 "http://$(k get pod keeper -o 'jsonpath={.status.podIP}'):8080/f"
kill -CONT "$hung"
until_true 60 ready True
until_true 30 k exec keeper -c c -- true
same "$before" || fail "before: $before, now: $(runs)"

step "the node tells what the engine can do"
handlers=$(k get node -o 'jsonpath={.items[0].status.runtimeHandlers}')
has '"userNamespaces":true' echo "$handlers"
has '"recursiveReadOnlyMounts":true' echo "$handlers"
says true k get node -o 'jsonpath={.items[0].status.features.supplementalGroupsPolicy}'

step "a runtime beside runc has a handler of its name"
has '"name":"crun"' echo "$handlers"
! grep create "$WORK/asked" || fail "crun made a container that nobody wanted from it"
k apply -f - >/dev/null <<YAML
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: other}
handler: crun
---
apiVersion: v1
kind: Pod
metadata: {name: other}
spec: {runtimeClassName: other, terminationGracePeriodSeconds: 0, containers: [{name: c, image: $IMAGE, command: [sleep, '100000']}]}
YAML
k wait --for=condition=Ready pod/other --timeout=60s >/dev/null
has create cat "$WORK/asked"
k delete pod other >/dev/null
k delete runtimeclass other >/dev/null

step "Pods with users of their own, and what they find in volumes"
mkdir -p "$WORK/host/below"
k create configmap text --from-literal=a=b >/dev/null
k create secret generic secret --from-literal=s=t >/dev/null
users() { # NAME MORE
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 1
  $2
  volumes:
  - {name: text, configMap: {name: text}}
  - {name: secret, secret: {secretName: secret}}
  - {name: disk, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: claim, persistentVolumeClaim: {claimName: $1}}
  - {name: mixed, projected: {sources: [{serviceAccountToken: {path: token}}, {configMap: {name: text}}]}}
  containers:
  - name: c
    image: $IMAGE
    command: [sh, -c, 'for v in disk memory claim; do echo here >/\$v/f; done; httpd -p 8080 -h /disk; $FOREVER']
    readinessProbe: {exec: {command: [cat, /disk/f]}, periodSeconds: 1}
    livenessProbe: {httpGet: {port: 8080, path: /f}, periodSeconds: 1}
    volumeMounts: [{name: text, mountPath: /text}, {name: secret, mountPath: /secret}, {name: disk, mountPath: /disk},
      {name: memory, mountPath: /memory}, {name: claim, mountPath: /claim}, {name: mixed, mountPath: /mixed},
      {name: text, mountPath: /one, subPath: a}]
YAML
}
users mine ''
users other 'securityContext: {runAsUser: 1000, fsGroup: 2000}'
k wait --for=condition=Ready pod/mine pod/other --timeout=60s >/dev/null
map() { k exec "$1" -- cat /proc/self/uid_map /proc/self/gid_map | tr -s ' ' | paste -sd';'; }
mine=$(map mine)
other=$(map other)
first=$(awk '{print $2}' <<<"$mine")
second=$(awk '{print $2}' <<<"$other")
[ "$mine" = " 0 $first 65536; 0 $first 65536" ] && [ "$other" = " 0 $second 65536; 0 $second 65536" ] || fail "the users are $mine and $other"
[ "$first" -ge 65536 ] && [ "$second" -ge 65536 ] && [ "$first" != "$second" ] || fail "the users are $mine and $other"
owners() { # POD FILE...: the numeric owners as the Pod sees them
    local pod=$1
    shift
    k exec "$pod" -- stat -L -c %u:%g "$@" | paste -sd' '
}
files=(/text/a /secret/s /disk/f /memory/f /claim/f /mixed/token /mixed/a /one /etc/hosts /dev/termination-log)
says "0:0 0:0 0:0 0:0 0:0 0:0 0:0 0:0 0:0 0:0" owners mine "${files[@]}"
says "0:2000 0:2000 1000:2000 1000:2000 1000:2000 1000:2000 0:2000 0:2000 0:0 0:0" owners other "${files[@]}"
# On the node they are not root's processes, and on its disk they are the Pod's users as it sees them.
uid=$(k get pod mine -o 'jsonpath={.metadata.uid}')
[ "$(stat -c %u "$DATA/kubelet/pods/$uid/volumes/kubernetes.io~empty-dir/disk/f")" = 0 ] || fail "the owner on the node's disk"
for id in "$first" $((second + 1000)); do
    ps -o uid= -C httpd | grep -qw "$id" || fail "no process has the user $id: $(ps -o uid= -C httpd | paste -sd' ')"
done
refused "Permission denied" k exec other -- sh -c 'echo x >/etc/hosts'
# The engine takes no more input of a command that has closed one of its outputs, as a shell that ends in `cat` would.
k exec -i mine -- sh -c 'cat >/disk/in; true' <"$KUBECONFIG"
says "$(wc -c <"$KUBECONFIG")" k exec mine -- sh -c 'wc -c </disk/in'

step "their users stay the same over restarts of the container, the kubelet and the engine"
k exec mine -- sh -c 'kill -9 $(pidof httpd); kill 1'
restarted() { [ "$(status mine restartCount)" -ge 1 ] && k wait --for=condition=Ready pod/mine --timeout=1s; }
until_true 60 restarted
[ "$(map mine)" = "$mine" ] || fail "the users were $mine and are $(map mine)"
kill -9 "$(cat "$DATA/skiff.pid")"
kill -9 "$(cat "$DATA/containerd/containerd.pid")"
up "$NEW"
users third ''
k wait --for=condition=Ready pod/mine pod/other pod/third --timeout=60s >/dev/null
[ "$(map mine) $(map other)" = "$mine $other" ] || fail "the users were $mine and $other and are $(map mine) and $(map other)"
[ "$(map third)" != "$mine" ] && [ "$(map third)" != "$other" ] || fail "the third has the users of another"

step "a mount that is read-only with all that is mounted below it, and one that is not"
mount -t tmpfs below "$WORK/host/below"
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, hostPath: {path: $WORK/host}}]
  containers:
  - name: c
    image: $IMAGE
    command: [sh, -c, '$FOREVER']
    volumeMounts: [{name: v, mountPath: /all, readOnly: true, recursiveReadOnly: Enabled}, {name: v, mountPath: /top, readOnly: true}]
YAML
k wait --for=condition=Ready pod/reader --timeout=60s >/dev/null
refused "Read-only file system" k exec reader -- touch /all/below/f
refused "Read-only file system" k exec reader -- touch /top/f
k exec reader -- touch /top/below/f
says "Enabled Disabled" k get pod reader -o 'jsonpath={.status.containerStatuses[0].volumeMounts[0,1].recursiveReadOnly}'

step "an image as a volume, also for users of a Pod's own"
image() { # NAME SPEC MOUNT
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  $2
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, image: {reference: 'test.local/${4:-data:1}'}}]
  containers: [{name: c, image: '$IMAGE', command: [sh, -c, '$FOREVER'], volumeMounts: [{name: v, mountPath: /v$3}]}]
YAML
}
image whole '' ''
image own 'hostUsers: false' ''
k wait --for=condition=Ready pod/whole pod/own --timeout=60s >/dev/null
for pod in whole own; do
    says "of the image" k exec $pod -- cat /v/data/part/file
    says 0 k exec $pod -- stat -c %u /v/data/part/file
    refused "Read-only file system" k exec $pod -- touch /v/f
done
image none '' '' nothing:1
until_true 60 has "ErrImagePull" k get events --field-selector involvedObject.name=none
image part '' ', subPath: data/part'
# containerd mounts parts from 2.2 on; before, it would mount the whole.
if [ "$(printf '%s\n' containerd://2.2 "$(engine)" | sort -V | head -1)" = containerd://2.2 ]; then
    k wait --for=condition=Ready pod/part --timeout=60s >/dev/null
    says "of the image" k exec part -- cat /v/file
else
    until_true 60 has "the container runtime cannot mount a subPath of an image" k get pod part -o 'jsonpath={..waiting.message}'
fi

step "groups that an image gives, and that a Pod does not want"
for policy in Merge Strict; do
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: ${policy,,}}
spec:
  securityContext: {runAsUser: 1000, runAsGroup: 3000, supplementalGroups: [4000], supplementalGroupsPolicy: $policy}
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: 'test.local/data:1', command: [/bin/sh, -c, '$FOREVER']}]
YAML
done
k wait --for=condition=Ready pod/merge pod/strict --timeout=60s >/dev/null
says "3000 4000 50000" k exec merge -- id -G
says "3000 4000" k exec strict -- id -G
for pod in merge strict; do
    says "1000 3000 $(k exec $pod -- id -G | tr ' ' , | sed 's/.*/[&]/')" \
        k get pod $pod -o 'jsonpath={.status.containerStatuses[0].user.linux.uid} {.status.containerStatuses[0].user.linux.gid} {.status.containerStatuses[0].user.linux.supplementalGroups}'
done

step "down, and nothing is left"
umount "$WORK/host/below"
PATH=$NEW "$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"

for test in devices resize restarts; do
    step "over this engine: $test"
    PATH=$NEW "./$test.sh" || fail "$test over this engine"
done

step "the newest engine: a container's own signal to end, and a part of an image"
if newest; then
    NEWEST=$ENGINE/newest/usr/bin:$ENGINE/newest/usr/sbin:$PATH
    mkdir -p "$DATA/images"
    tar -C "$WORK/archive" -cf "$DATA/images/data.tar" .
    PATH=$NEWEST "$SKIFF" "${UP[@]}" --feature-gates=ContainerStopSignals=true >/dev/null
    says "containerd://$(PATH=$NEWEST containerd --version | awk '{print $3}')" engine
    image part '' ', subPath: data/part'
    ENDS='trap "echo own; exit 7" USR1; trap "echo usual; exit 3" TERM; while :; do sleep 0.1; done'
    # The finalizer keeps what the containers ended with.
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: signals, finalizers: [test.local/looked-at]}
spec:
  os: {name: linux}
  restartPolicy: Never
  containers:
  - {name: own, image: $IMAGE, lifecycle: {stopSignal: SIGUSR1}, command: [sh, -c, '$ENDS']}
  - {name: usual, image: $IMAGE, command: [sh, -c, '$ENDS']}
YAML
    k wait --for=condition=Ready pod/part pod/signals --timeout=60s >/dev/null
    says "of the image" k exec part -- cat /v/file
    signals() { k get pod signals -o 'jsonpath={range .status.containerStatuses[*]}{.name} {.stopSignal} {.state.terminated.exitCode};{end}'; }
    says "own SIGUSR1 ;usual SIGTERM ;" signals
    k delete pod signals --wait=false >/dev/null
    until_true 30 says "own SIGUSR1 7;usual SIGTERM 3;" signals
    k patch pod signals -p '{"metadata":{"finalizers":null}}' >/dev/null
    PATH=$NEWEST "$SKIFF" down --data-dir "$DATA" >/dev/null
    left=$(traces)
    [ -z "$left" ] || fail "skiff down left: $left"
    PATH=$NEWEST ./restarts.sh || fail "restarts over this engine"
else
    echo "SKIPPED: the newest engine cannot be had"
fi

step "crun, where cgroups are those of version 2: in a virtual machine"
if ! vm_fetch; then
    echo "SKIPPED: crun needs cgroups of version 2, and no virtual machine can be had: $VM_LACKS"
    exit 0
fi
vm_root=$(mktemp -d)
leave_machine() {
    local code=$?
    vm_end
    (exit "$code")
    leave
}
trap leave_machine EXIT
vm_program ip nft mount umount grep
for program in containerd containerd-shim-runc-v2 ctr; do vm_file "$ENGINE/sid/usr/bin/$program" "/usr/local/bin/$program"; done
vm_file "$ENGINE/sid/usr/sbin/runc" /usr/local/bin/runc
vm_file "$ENGINE/sid/usr/bin/crun" /usr/local/bin/crun
vm_file "$SKIFF" /usr/local/bin/skiff
vm_file "$KUBECTL" /usr/local/bin/kubectl
VM_MEMORY=3072 vm_run 400 <<'VM'
set -eu
trap tell_when_failed EXIT
step "a Pod of a RuntimeClass with crun"
ip link add machine type bridge
ip address add 192.0.2.1/24 dev machine
ip link set machine up
skiff up --eviction-hard= --wait 120 >/dev/null
kubectl apply -f - >/dev/null <<YAML
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: c}
handler: crun
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  runtimeClassName: c
  terminationGracePeriodSeconds: 1
  volumes: [{name: e, emptyDir: {}}, {name: m, emptyDir: {medium: Memory}}]
  containers:
  - name: c
    image: skiff.local/busybox:1
    command: [sh, -c, 'echo begun; echo here >/e/f; trap exit TERM; while :; do sleep 0.5; done']
    resources: {limits: {memory: 64Mi, cpu: 500m}}
    resizePolicy: [{resourceName: memory, restartPolicy: NotRequired}]
    readinessProbe: {exec: {command: [cat, /e/f]}, timeoutSeconds: 10}
    volumeMounts: [{name: e, mountPath: /e}, {name: m, mountPath: /m}]
YAML
kubectl wait --for=condition=Ready pod/p --timeout=120s >/dev/null
[ "$(kubectl exec p -- cat /e/f)" = here ] || fail "an exec"
[ "$(kubectl logs p)" = begun ] || fail "its log"
id=$(kubectl get pod p -o 'jsonpath={.status.containerStatuses[0].containerID}' | sed 's|.*/||')
# Of each container runc keeps a state.json, crun a status.
[ -n "$(find /run $DATA/run -path "*/k8s.io/$id/status")" ] || fail "crun knows nothing of it"

step "the kernel holds it to what it may have, before and after a resize"
limit() { cat "$(find /sys/fs/cgroup -type d -name "$id")/memory.max"; }
[ "$(limit)" = 67108864 ] || fail "the limit is $(limit)"
kubectl patch pod p --subresource resize -p '{"spec":{"containers":[{"name":"c","resources":{"requests":{"memory":"96Mi"},"limits":{"memory":"96Mi"}}}]}}' >/dev/null
tries=0
until [ "$(limit)" = 100663296 ]; do tries=$((tries + 1)); [ $tries -lt 60 ] || fail "the limit is $(limit)"; sleep 0.5; done

step "down, and nothing is left"
skiff down --data-dir $DATA >/dev/null
[ -z "$(find /sys/fs/cgroup -type d -name '*kubepods*')" ] || fail "cgroups are left"
VM

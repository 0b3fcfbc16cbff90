#!/usr/bin/env bash
# A kubelet that is killed with -9 at random moments, while Pods of all sorts come and go over the real engine: no container that runs
# is ever touched or has a second one beside it, and when it is quiet the engine, the kernel and the disk hold what the API's Pods need,
# and nothing else. An engine gives up a start whose caller is gone, and that container is started again: nothing else is. $KILLS says how
# often, $SEED gives the moments and the changes of an earlier run.
#
# About once in thirty kills containerd goes on running a container whose start it has given up, and tells kubelets that it does not
# run: the kubelet ends that one with containerd's own word before another takes its place, or when it is removed.
. "$(dirname "$0")/cluster.sh"
command -v python3 >/dev/null || { echo "SKIPPED: the kills of a kubelet are judged with python3"; exit 0; }

KILLS=${KILLS:-200}
SEED=${SEED:-$RANDOM$RANDOM}
IMAGE=skiff.local/busybox:1
NODE=$DATA-node
FOLDERS+=("$NODE")
SAID=$WORK/said
mkdir "$SAID"
touch "$SAID/made" "$SAID/jobs"
FOREVER='trap exit TERM; while :; do sleep 0.1; done'
# Other clusters of this machine are no concern of this test.
before=$(traces)

# What the last lives of the agent said is told when the test fails.
leave() {
    local code=$?
    set +e
    if [ "$code" != 0 ]; then
        echo "--- the end of agent.log" >&2
        tail -15 "$WORK/agent.log" >&2
        echo "--- needed and not there (<), there and not needed (>)" >&2
        ! declare -F differences >/dev/null || differences >&2
    fi
    (exit "$code")
    on_exit
}
trap leave EXIT

# The agent's output of all its lives is one file. Ended lives must not stay among the processes that the end of the test kills.
agent() {
    "$SKIFF" agent --data-dir "$NODE" --kubelet-port 20250 --dns-port 20053 --eviction-hard= "${JOIN[@]}" >>"$WORK/agent.log" 2>&1 &
    AGENT=$!
    STARTED=("$server" "$churn" "$AGENT")
}

manifest() {
    cat <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes: [{name: e, emptyDir: {medium: Memory}}, {name: c, configMap: {name: kube-root-ca.crt}}]
      containers:
        - name: c
          image: "$IMAGE"
          command: [httpd, -f, -p, "7001"]
          volumeMounts: [{name: e, mountPath: /e, subPath: part}, {name: c, mountPath: /c}]
        - {name: d, image: "$IMAGE", command: [httpd, -f, -p, "7002"]}
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 1
  selector: {matchLabels: {app: db}}
  persistentVolumeClaimRetentionPolicy: {whenScaled: Delete, whenDeleted: Delete}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - name: c
          image: "$IMAGE"
          command: [httpd, -f, -p, "7001"]
          volumeMounts: [{name: data, mountPath: /data}]
YAML
}

# Two containers of one name in a Pod would want one port, here and above, and the second one fails.
# job NAME: four pieces of work, each of which writes a line.
job() {
    k apply -f - >/dev/null <<YAML
apiVersion: batch/v1
kind: Job
metadata: {name: $1, labels: {app: work}}
spec:
  completionMode: Indexed
  completions: 4
  parallelism: 2
  backoffLimit: 1000
  template:
    metadata: {labels: {app: work}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 0
      volumes: [{name: v, hostPath: {path: $SAID}}]
      containers:
        - name: c
          image: "$IMAGE"
          command: [sh, -c, 'httpd -p 7001 || exit 3; sleep 0.2; echo $1-\$JOB_COMPLETION_INDEX >>/v/jobs']
          volumeMounts: [{name: v, mountPath: /v}]
YAML
}

# alone NAME: a Pod that nobody keeps, with a container before the others and a hook.
alone() {
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {app: alone}}
spec:
  terminationGracePeriodSeconds: 2
  initContainers: [{name: i, image: "$IMAGE", command: ["true"]}]
  containers:
    - name: c
      image: "$IMAGE"
      command: [sh, -c, '$FOREVER']
      lifecycle: {preStop: {exec: {command: [sleep, "0.3"]}}}
      readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
YAML
}

pods_of() { k get pods -l "app=$1" -o name; }
finished() { says 4 k get job "$1" -o 'jsonpath={.status.succeeded}'; }

# Changes the cluster until the file `stop` is there.
changes() {
    RANDOM=$((SEED + 1))
    local round=0 pods job=
    while [ ! -e "$WORK/stop" ]; do
        round=$((round + 1))
        case $((RANDOM % 6)) in
            0) k scale deployment web --replicas=$((RANDOM % 5)) >/dev/null ;;
            1) k scale statefulset db --replicas=$((RANDOM % 3)) >/dev/null ;;
            2) alone "alone-$round" ;;
            3)
                mapfile -t pods < <(pods_of alone)
                [ ${#pods[@]} = 0 ] || k delete --ignore-not-found --wait=false "${pods[@]}" --grace-period=$((RANDOM % 3)) >/dev/null 2>&1
                ;;
            4)
                mapfile -t pods < <(pods_of web; pods_of db)
                [ ${#pods[@]} = 0 ] || k delete --ignore-not-found --wait=false "${pods[RANDOM % ${#pods[@]}]}" >/dev/null
                ;;
            5)
                # The next one begins when the last one has ended.
                if [ -z "$job" ] || finished "$job"; then
                    k delete job -l app=work >/dev/null
                    job=work-$round
                    job "$job"
                    echo "$job" >>"$SAID/made"
                fi
                ;;
        esac
        echo "$round" >"$SAID/rounds"
    done
}

step "a node with a Pod that nobody touches"
started "$WORK/server.log" "$SKIFF" server --data-dir "$DATA" --secure-port "$PORT"
server=$LAST churn=
until_true 20 k get --raw /readyz
until_true 20 k get configmap -n kube-public cluster-info
read -ra JOIN < <("$SKIFF" token create --data-dir "$DATA" | sed 's/.*agent //')
agent
until_true 60 k wait --for=condition=Ready node --all --timeout=2s
k run bystander --image=$IMAGE --restart=Always --command -- sleep 7654321 >/dev/null
k wait --for=condition=Ready pod/bystander --timeout=60s >/dev/null
PROCESS=$(pgrep -xf 'sleep 7654321')
# The process by its id and the moment that it began, and the container as the API has it.
process() { echo "$PROCESS $(cut -d' ' -f22 "/proc/$PROCESS/stat")"; }
container() { k get pod bystander -o 'jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}'; }
process=$(process) container=$(container)
# Pods with a container that ended, or began again, for another reason than a start that the engine gave up.
again() {
    k get pods -l app!=alone,app!=work -o json | python3 -c '
import json, sys
for pod in json.load(sys.stdin)["items"]:
    for status in pod["status"].get("containerStatuses", []):
        ended = status.get("lastState", {}).get("terminated") or {}
        if status["restartCount"] and ended.get("reason") != "StartError":
            print(pod["metadata"]["name"], status["name"], status["restartCount"], ended)'
}
clashes() { k get pods -l app=work -o 'jsonpath={.items[?(@.status.containerStatuses[0].state.terminated.exitCode==3)].metadata.name}'; }
unharmed() {
    says "$process" process || { fail "the bystander's process is another one"; return 1; }
    says "$container" container || { fail "the bystander's container: $container, now $(container)"; return 1; }
    says "" again || { fail "started again: $(again)"; return 1; }
    says "" clashes || { fail "done twice at once: $(clashes)"; return 1; }
}

step "$KILLS kills of the kubelet while Pods come and go, seed $SEED"
manifest | k apply -f - >/dev/null
changes &
churn=$!
RANDOM=$SEED
for ((kills = 1; kills <= KILLS; kills++)); do
    # From the first steps of its start to calls in the middle of its work.
    moment=$((RANDOM % 3000))
    read -rt "$(printf '%d.%03d' $((moment / 1000)) $((moment % 1000)))" <> <(:) || true
    [ -e "/proc/$AGENT" ] || fail "the agent ended by itself before kill $kills: $(tail -3 "$WORK/agent.log")"
    kill -9 "$AGENT"
    wait "$AGENT" 2>/dev/null || true
    unharmed || fail "after kill $kills, $moment ms after its start"
    agent
done
touch "$WORK/stop"
wait "$churn" || fail "the changes went wrong"
STARTED=("$server" "$AGENT")

step "all that was asked for is there, and each piece of work is done"
last=$(tail -1 "$SAID/made")
[ -z "$last" ] || until_true 60 finished "$last"
k delete job -l app=work >/dev/null
mapfile -t pods < <(pods_of alone)
[ ${#pods[@]} = 0 ] || k delete "${pods[@]}" --timeout=60s >/dev/null
k scale deployment web --replicas=3 >/dev/null
k scale statefulset db --replicas=2 >/dev/null
k rollout status deployment/web --timeout=60s >/dev/null
k rollout status statefulset/db --timeout=60s >/dev/null
[ "$(sort -u "$SAID/jobs" | wc -l)" = $((4 * $(wc -l <"$SAID/made"))) ] || fail "work that was not done: $(paste -sd' ' "$SAID/jobs")"
unharmed
echo "    $(cat "$SAID/rounds") changes, $(wc -l <"$SAID/jobs") pieces of work"

engine() { ctr -a "$NODE/run/containerd.sock" -n k8s.io "$@"; }
# What the API's Pods need, one thing a line.
wanted() {
    local uid address medium containers name
    while read -r uid address medium containers; do
        [ -n "$uid" ] || continue
        printf '%s\n' "folder $uid" "cgroup $uid" "token $uid" "logs $uid" "sandbox $uid" "address $address" link shm namespace shim rootfs
        [ "$medium" != Memory ] || echo "mounts $uid"
        for name in ${containers//,/ }; do printf '%s\n' "container $uid $name" rootfs; done
    done < <(k get pods -A --no-headers -o 'custom-columns=:.metadata.uid,:.status.podIP,:.spec.volumes[*].emptyDir.medium,:.spec.containers[*].name')
    k get pv -o name | sed 's/.*/volume/'
}
# What there is, in the same words.
found() {
    local id
    ls "$NODE/kubelet/pods" | sed 's/^/folder /'
    ls "$NODE/kubelet/volumes-in-memory" | sed 's/^/token /'
    find /sys/fs/cgroup/kubepods /sys/fs/cgroup/*/kubepods -name 'pod*' -printf '%f\n' 2>/dev/null | sort -u | sed 's/^pod/cgroup /'
    grep -o " $NODE/kubelet/pods/[^/]*" /proc/mounts | sort -u | sed 's|.*/|mounts |'
    ls "$NODE/logs" | sed 's/.*_/logs /'
    engine containers ls -q | while read -r id; do
        engine containers info "$id" | python3 -c '
import json, os, sys
labels, node, running = json.load(sys.stdin)["Labels"], sys.argv[1], sys.argv[2:]
kind, uid = labels["io.cri-containerd.kind"], labels["io.kubernetes.pod.uid"]
words = [kind, uid, labels.get("io.kubernetes.container.name", "")]
# The last run that has ended is kept for its log.
if kind == "sandbox" or running or not os.path.exists(f"{node}/kubelet/pods/{uid}"):
    print(" ".join(words).strip())' "$NODE" $(engine tasks ls | sed -n "s/^$id .*RUNNING.*/running/p")
    done
    ls "$NODE/cni/addresses" | sed '/^last$/d; s/^/address /'
    ip -br link | sed -n '/^skf-vxlan/d; s/^skf.*/link/p'
    sed -n "s|^[^ ]* $NODE/run/[^ ]*/netns/.*|namespace|p; s|^[^ ]* $NODE/run/[^ ]*/shm .*|shm|p; s|^[^ ]* $NODE/run/[^ ]*/rootfs .*|rootfs|p" /proc/mounts
    # One whose start was given up may be left, of a sandbox that the engine knows nothing of: nobody can ask for its end but `skiff down`.
    for id in $(engine containers ls -q); do pgrep -f "containerd-shim.* -id $id .*$NODE/" | sed 's/.*/shim/' || true; done
    ls "$NODE/local-volumes" | sed 's/.*/volume/'
}
differences() { diff <(wanted | sort) <(found | sort); }

step "the engine, the kernel and the disk hold what these Pods need, and nothing else"
until_true 60 differences
[ "$(wanted | grep -c '^sandbox')" = 6 ] || fail "there are other Pods: $(k get pods -o name | paste -sd' ')"

step "and nothing at all without Pods"
k delete deployment web >/dev/null
k delete statefulset db >/dev/null
k delete pod bystander --grace-period=0 --force >/dev/null 2>&1
until_true 60 says "" wanted
until_true 60 says "" found

"$SKIFF" down --data-dir "$NODE" >/dev/null
wait "$AGENT" 2>/dev/null || true
ended "$server"
"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ "$left" = "$before" ] || fail "left behind: $(diff <(echo "$before") <(echo "$left"))"

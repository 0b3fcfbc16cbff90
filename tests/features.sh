#!/usr/bin/env bash
# What a Pod can use, looked at from inside; what users read when a Pod cannot run; static Pods; a sticky Service.
. "$(dirname "$0")/cluster.sh"
HERE=$(dirname "$0")
HOST=/tmp/skiff-test-features

inside() { k exec feat -c main -- sh -c "$1"; }
is() { # is EXPECTED COMMAND-INSIDE
    local got
    got=$(inside "$2") || return 1
    [ "$got" = "$1" ] || { fail "'$2' gave '$got', not '$1'"; return 1; }
}

"$SKIFF" "${UP[@]}" >/dev/null
k apply -f "$HERE/features.yaml" >/dev/null
k wait --for=condition=Ready pod/feat --timeout=60s >/dev/null

step "environment, volumes, init and sidecar containers, hooks"
is "1 s3cret 100 b-1 hi" 'echo $A $PW $CPU $B $C_greeting'
is "$(k get pod feat -o jsonpath='{.status.podIP}')" 'echo $IP'
is hi 'cat /conf/greeting'
is hi 'cat /sub/greeting'
is 's3cret 400' 'echo $(cat /sec/pw) $(stat -Lc %a /sec/pw)'
is 'app="feat"' 'cat /down/labels'
is init 'cat /work/init'
until_true 10 is post 'cat /work/post'
is tmpfs 'df -T /mem | awk "NR==2 {print \$2}"'
is 'ca.crt namespace token' 'echo $(ls /var/run/secrets/kubernetes.io/serviceaccount)'
is 33554432 'cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max'
has "Burstable" k get pod feat -o jsonpath='{.status.qosClass}'

step "nobody writes to what the API gives"
for file in /conf/greeting /conf/new /sub/greeting /sec/pw /down/labels /var/run/secrets/kubernetes.io/serviceaccount/token; do
    refused "Read-only file system" inside "echo mine >$file"
done

step "logs are the bytes that were written"
inside "printf 'one \\377\\300\\200 two\\n' >/proc/1/fd/1"
bytes() { k logs feat -c main | od -An -tx1 | tr -d '\n'; }
until_true 10 has "6f 6e 65 20 ff c0 80 20 74 77 6f 0a" bytes

step "what a kubelet and a proxy answer"
name=$(k get nodes -o jsonpath='{.items[0].metadata.name}')
node=$(k get nodes -o jsonpath='{.items[0].status.addresses[?(@.type=="InternalIP")].address}')
kubelet() { k get --raw "/api/v1/nodes/$name/proxy$1"; }
magic() { kubelet "$1" >"$WORK/page" && od -An -tx1 -N2 "$WORK/page"; }
has '"kind":"PodList"' kubelet /pods
has '"name":"feat"' kubelet /pods
has '"name":"feat"' kubelet /runningpods/
has '"kubeletconfig":{' kubelet /configz
until_true 10 has 'prober_probe_total{container="main",namespace="default",pod="feat"' kubelet /metrics/probes
has 'debug/pprof/profile">profile</a>' kubelet /debug/pprof/
has "1f 8b" magic "/debug/pprof/profile?seconds=1"
note=$(mktemp /var/log/skiff-test.XXXXXX)
echo "said by the node" >"$note"
has "${note##*/}</a>" kubelet /logs/
has "said by the node" kubelet "/logs/${note##*/}"
rm "$note"
for page in healthz livez; do until_true 20 has '"healthy":true' curl -sf --max-time 3 "http://$node:10256/$page"; done

step "a changed ConfigMap reaches its volume; a host port leads to the Pod"
k patch configmap conf -p '{"data":{"greeting":"hello"}}' >/dev/null
until_true 90 is hello 'cat /conf/greeting'
until_true 10 has port curl -s --max-time 3 "http://$node:18099"

step "a sticky Service, and one without endpoints refuses at once"
k expose pod feat --name=sticky --port=80 --session-affinity=ClientIP >/dev/null
address=$(k get service sticky -o jsonpath='{.spec.clusterIP}')
until_true 10 has port curl -s --max-time 3 "http://$address"
k create service clusterip nobody --tcp=80 >/dev/null
address=$(k get service nobody -o jsonpath='{.spec.clusterIP}')
until_true 10 refused "Couldn't connect" curl -sS --max-time 3 "http://$address"

step "one host port for two Pods at different addresses and for a third with another protocol"
for pod in "loop 127.0.0.1 TCP" "node $node TCP" "udp $node UDP"; do
    read -r name address protocol <<<"$pod"
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: port-$name}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: skiff.local/busybox:1
      command: [sh, -c, 'echo port of $name >/tmp/index.html; exec httpd -f -p 8080 -h /tmp']
      ports: [{containerPort: 8080, hostPort: 18097, hostIP: $address, protocol: $protocol}]
YAML
done
k wait --for=condition=Ready pod/port-loop pod/port-node pod/port-udp --timeout=60s >/dev/null
until_true 10 has "port of loop" curl -sS --max-time 3 --interface "$node" http://127.0.0.1:18097
until_true 10 has "port of loop" curl -sS --max-time 3 http://127.0.0.1:18097
until_true 10 has "port of node" curl -sS --max-time 3 "http://$node:18097"
has "udp . 18097" nft list map ip skiff-network host-ports-at
until_true 10 has port curl -s --max-time 3 http://127.0.0.1:18099
k delete pod port-loop port-node port-udp --wait=true >/dev/null
refused "Couldn't connect" curl -sS --max-time 3 http://127.0.0.1:18097

step "what somebody takes from rules and routes by hand is back"
pod=$(k get pod feat -o jsonpath='{.status.podIP}')
sticky=$(k get service sticky -o jsonpath='{.spec.clusterIP}')
ip route del "$pod"
until_true 10 has port curl -s --max-time 3 "http://$pod"
nft flush table ip skiff-proxy
until_true 20 has port curl -s --max-time 3 "http://$sticky"
nft delete table ip skiff-proxy
until_true 20 has port curl -s --max-time 3 "http://$sticky"
nft delete table ip skiff-network
until_true 20 has port curl -s --max-time 3 "http://$node:18099"

step "what users read when a Pod cannot run"
until_true 60 has "CrashLoopBackOff" k get pod crash
until_true 10 has "dying" k logs crash --previous
has "Back-off restarting failed container" k describe pod crash
has "0/1 nodes are available: 1 Insufficient cpu" k describe pod toobig

step "a Pod that takes more of the disk than its volume may has to go"
hoards() { k get pod hoards -o jsonpath='{.status.phase} {.status.reason} {.status.message}'; }
until_true 40 has 'Failed Evicted Usage of EmptyDir volume "v" exceeds the limit "1Mi".' hoards

step "static Pods come and go with their files"
cat >"$DATA/manifests/fixed.yaml" <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: fixed}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: "skiff.local/busybox:1", command: [sleep, "10000"]}]}
YAML
until_true 30 has Running k get pods -o wide --field-selector metadata.name!=feat
mirror=$(k get pods -o name | sed -n '/fixed-/p')
uid=$(k get "$mirror" -o jsonpath='{.metadata.uid}')
kill -9 "$(cat "$DATA/skiff.pid")"
"$SKIFF" "${UP[@]}" >/dev/null
until_true 20 k get "$mirror"
[ "$(k get "$mirror" -o jsonpath='{.metadata.uid}')" = "$uid" ] || fail "the mirror Pod survives a restart"
rm "$DATA/manifests/fixed.yaml"
until_true 30 refused "not found" k get "$mirror"

step "a deletion runs the hook and leaves no folder"
rm -f $HOST/prestop
k delete pod feat --timeout=30s >/dev/null
[ "$(cat $HOST/prestop)" = stop ] || fail "the preStop hook ran"
k delete pod crash hoards toobig --timeout=30s >/dev/null
until_true 20 bash -c "[ -z \"\$(ls $DATA/kubelet/pods)\" ]"
rm -rf $HOST

"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"

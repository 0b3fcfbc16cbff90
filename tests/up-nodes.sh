#!/usr/bin/env bash
# `skiff up --nodes 3`: three nodes of one machine with one command. Pods on all of them, a Service across them by name, exec and
# logs on the third, a node that falls silent and comes back, a parent that is killed, fewer nodes, and the end of it all.
. "$(dirname "$0")/cluster.sh"
IMAGE=skiff.local/busybox:1
forwarding=$(</proc/sys/net/ipv4/ip_forward)
leave() {
    local code=$?
    for log in "$DATA"/nodes/*/skiff.log; do
        [ "$code" = 0 ] || { echo "--- the end of $log" >&2; tail -15 "$log" >&2 || true; }
    done
    echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
    set +e
    (exit "$code")
    on_exit
}
trap leave EXIT

agent_of() { cat "$DATA/nodes/$1/skiff.pid"; }
ready() { k wait --for=condition=Ready node "$@" --timeout=1s; }
others() { pgrep -f -- "agent --data-dir=$DATA/nodes/"; }
none() { ! "$@"; }
before=$(all_traces)
[ -z "$before" ] || fail "an earlier cluster is there: $before"

step "what does not go together is said in one sentence"
refused "leave --node-ip out" "$SKIFF" "${UP[@]}" --nodes 3 --node-ip 10.0.0.1
refused "leave --container-runtime-endpoint out" "$SKIFF" "${UP[@]}" --nodes 2 --container-runtime-endpoint unix:///dev/null
refused "cannot reach the API server at 127.0.0.1" "$SKIFF" "${UP[@]}" --nodes 2 --bind-address 127.0.0.1
refused "has room for 2 nodes, not for 3" "$SKIFF" "${UP[@]}" --nodes 3 --cluster-cidr 10.244.0.0/23
refused "0 is not in 1..=50" "$SKIFF" "${UP[@]}" --nodes 0
refused "needs root" setpriv --reuid 65534 --regid 65534 --clear-groups "$SKIFF" "${UP[@]}" --nodes 3
refused "Invalid argument" "$SKIFF" agent --network-namespace /dev/null --data-dir "$DATA-none" --server https://127.0.0.1:1 --token x

step "a start that fails takes everything back"
refused "choose another port with --dns-port" "$SKIFF" "${UP[@]/#20053/$PORT}" --nodes 2
# Its files stay: the next start finds them.
left=$(FOLDERS=(); all_traces)
[ -z "$left" ] || fail "left behind: $left"

step "three nodes with one command"
NAME=one
UP+=(--node-name "$NAME" --node-monitor-grace-period 20s)
"$SKIFF" "${UP[@]}" --nodes 3 >"$WORK/up"
has "node one-2 joined and ready" cat "$WORK/up"
has "node one-3 joined and ready" cat "$WORK/up"
ready one one-2 one-3 >/dev/null
[ -z "$(k get secrets -n kube-system --field-selector type=bootstrap.kubernetes.io/token -o name)" ] || fail "a token stays"

step "a Deployment spread over them, and its Service by name from each"
k apply -f - >/dev/null <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
        - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      containers:
        - name: c
          image: $IMAGE
          command: [sh, -c, 'echo hello from \$NODE >/tmp/index.html; exec httpd -f -v -p 8080 -h /tmp']
          env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
          readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
YAML
k rollout status deployment/web --timeout=90s >/dev/null
pod_on() { k get pods -l app=web --field-selector "spec.nodeName=$1" -o jsonpath='{.items[0].metadata.name}'; }
address() { k get pod "$1" -o jsonpath='{.status.podIP}'; }
for from in one one-2 one-3; do
    for to in one one-2 one-3; do
        until_true 10 has "hello from $to" k exec "$(pod_on $from)" -- timeout 3 wget -qO- "http://$(address "$(pod_on $to)"):8080/index.html"
    done
    until_true 20 has "hello from one" k exec "$(pod_on $from)" -- timeout 3 wget -qO- http://web.default.svc.cluster.local/index.html
done
until_true 10 has "hello from one" curl -s --max-time 3 "http://$(k get service web -o jsonpath='{.spec.clusterIP}')/index.html"

step "exec, logs and port-forward on the third"
has "hello from one-3" k exec "$(pod_on one-3)" -- cat /tmp/index.html
has "response:200" k logs "$(pod_on one-3)"
started "$WORK/forward" env HOME="$WORK" "$KUBECTL" port-forward "$(pod_on one-3)" 18080:8080
until_true 20 has "hello from one-3" curl -s http://127.0.0.1:18080/index.html
kill "$LAST"

step "Pods of the others reach what is outside, under the machine's address"
machine=$(k get endpointslice kubernetes -o jsonpath='{.endpoints[0].addresses[0]}')
until_true 10 has "ok" k exec "$(pod_on one-3)" -- sh -c "timeout 5 nc $machine $PORT </dev/null && echo ok"

step "a node falls silent, and comes back when its process is started again"
container=$(k get pod "$(pod_on one-3)" -o jsonpath='{.status.containerStatuses[0].containerID}')
silent=$(agent_of 3)
kill -STOP "$silent"
until_true 60 k wait --for=condition=Ready=Unknown node one-3 --timeout=1s
kill -9 "$silent"
until_true 60 ready one-3
[ "$(agent_of 3)" != "$silent" ] || fail "the agent is the one that was killed"
[ "$(k get pod "$(pod_on one-3)" -o jsonpath='{.status.containerStatuses[0].containerID}')" = "$container" ] || fail "the Pod was restarted"
until_true 30 has "hello from one-3" k exec "$(pod_on one-3)" -- cat /tmp/index.html

step "the parent is killed: nobody is left behind, and the next start goes on"
kill -9 "$(cat "$DATA/skiff.pid")"
until_true 20 none others
"$SKIFF" "${UP[@]}" --nodes 3 >/dev/null
until_true 60 ready one one-2 one-3
[ "$(k get pod "$(pod_on one-3)" -o jsonpath='{.status.containerStatuses[0].containerID}')" = "$container" ] || fail "the Pod was restarted"
until_true 30 has "hello from one-2" k exec "$(pod_on one-3)" -- timeout 3 wget -qO- "http://$(address "$(pod_on one-2)"):8080/index.html"

step "asked to end, all processes do, and two of the nodes are enough afterwards"
kill "$(cat "$DATA/skiff.pid")"
until_true 20 none others
"$SKIFF" "${UP[@]}" --nodes 2 >/dev/null
until_true 60 ready one one-2
refused "not found" k get node one-3
[ ! -e "$DATA/nodes/3" ] || fail "the folder of a node that is no more"

step "down, and the machine is as before"
has "nothing of it is left" "$SKIFF" down --data-dir "$DATA"
left=$(all_traces)
[ -z "$left" ] || fail "left behind: $left"

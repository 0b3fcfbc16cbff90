#!/usr/bin/env bash
# The main job, as a user does it: from nothing to a Deployment behind a Service, and back to nothing.
. "$(dirname "$0")/cluster.sh"
EXAMPLE=$(dirname "$0")/../examples/hello.yaml

step "skiff up shows its steps and ends with the kubeconfig"
has "export KUBECONFIG=$KUBECONFIG" "$SKIFF" "${UP[@]}"
has "runs already" "$SKIFF" "${UP[@]}"
k wait --for=condition=Ready node --all --timeout=60s >/dev/null
has " Ready " k get nodes

step "a Deployment, a Service and a ConfigMap"
k apply -f "$EXAMPLE"
k rollout status deployment/hello --timeout=120s
has "3/3" k get deployment hello
[ "$(k get pods -l app=hello -o wide --no-headers | grep -c ' Running ')" = 3 ] || fail "three Pods run"
pod=$(k get pods -l app=hello -o name | sed -n 1p)

step "logs, exec, cp, attach, port-forward, describe"
has "hello from ${pod#pod/}" k exec "$pod" -- wget -qO- http://127.0.0.1:8080
until_true 20 has "response:200" k logs "$pod"
has "tty" script -qec "HOME=$WORK $KUBECTL exec -it $pod -- sh -c 'test -t 0 && echo tty'" /dev/null
[ "$(echo over stdin | k exec -i "$pod" -- cat)" = "over stdin" ] || fail "exec passes standard input on"
refused "exit code 7" k exec "$pod" -- sh -c 'exit 7'
head -c 300000 /dev/urandom >"$WORK/sent"
k cp "$WORK/sent" "${pod#pod/}:/tmp/sent"
k cp "${pod#pod/}:/tmp/sent" "$WORK/received" >/dev/null
cmp "$WORK/sent" "$WORK/received"
k run talker --image=skiff.local/busybox:1 --restart=Never -- sh -c 'i=0; while [ $i -lt 600 ]; do echo tick $i; i=$((i+1)); sleep 0.1; done'
k wait --for=condition=Ready pod/talker --timeout=60s >/dev/null
timeout 3 env HOME="$WORK" "$KUBECTL" attach talker >"$WORK/attached" 2>&1 || true
grep -q "tick" "$WORK/attached" || fail "attach shows the output"
k delete pod talker --grace-period=1 >/dev/null
k port-forward "$pod" 18080:8080 >"$WORK/forward" 2>&1 &
forward=$!
until_true 20 has "hello from" curl -s http://127.0.0.1:18080
kill $forward
wait $forward 2>/dev/null || true
has "Started" k describe "$pod"
has "Successfully assigned" k describe "$pod"

step "the Service answers from all three Pods, by address and by name"
address=$(k get service hello -o jsonpath='{.spec.clusterIP}')
for _ in $(seq 40); do curl -s --max-time 5 "http://$address"; done | sort -u >"$WORK/answers"
[ "$(wc -l <"$WORK/answers")" = 3 ] || { cat "$WORK/answers" >&2; fail "all three Pods answer"; }
has "hello from" k run asker --image=skiff.local/busybox:1 --restart=Never --rm -i --quiet -- wget -qO- http://hello
has "hello from" k run asker2 --image=skiff.local/busybox:1 --restart=Never --rm -i --quiet -- wget -qO- http://hello.default.svc.cluster.local
k patch service hello -p '{"spec":{"type":"NodePort"}}' >/dev/null
port=$(k get service hello -o jsonpath='{.spec.ports[0].nodePort}')
node=$(k get nodes -o jsonpath='{.items[0].status.addresses[?(@.type=="InternalIP")].address}')
until_true 10 has "hello from" curl -s --max-time 5 "http://$node:$port"

step "scale, set image, undo, apply again, server-side apply, diff"
k scale deployment/hello --replicas=5 >/dev/null
until_true 60 has "5/5" k get deployment hello
k scale deployment/hello --replicas=3 >/dev/null
until_true 60 has "3/3" k get deployment hello
"$SKIFF" images build --tag skiff.local/busybox:2 --busybox --data-dir "$DATA" >/dev/null
k set image deployment/hello web=skiff.local/busybox:2 >/dev/null
until_true 60 has "skiff.local/busybox:2" k get pods -l app=hello -o wide -o jsonpath='{.items[*].spec.containers[*].image}'
k rollout undo deployment/hello >/dev/null
k rollout status deployment/hello --timeout=120s >/dev/null
has "REVISION" k rollout history deployment/hello
k apply -f "$EXAMPLE" >/dev/null
k apply --server-side --force-conflicts -f "$EXAMPLE" >/dev/null
sed 's/replicas: 3/replicas: 2/' "$EXAMPLE" >"$WORK/two.yaml"
refused "replicas: 2" k diff -f "$WORK/two.yaml"
k apply --server-side --force-conflicts -f "$WORK/two.yaml" >/dev/null
until_true 60 has "2/2" k get deployment hello

step "explain, auth can-i, api-resources, get -o, top-level errors"
has "replicas" k explain deployment.spec
has "yes" k auth can-i create pods
refused "no" k auth can-i create pods --as=nobody
has "deployments" k api-resources
has "apps/v1" k api-versions
has "[+]etcd ok" k get --raw '/readyz?verbose'
has "readyz check passed" k get --raw '/readyz?verbose&exclude=informer-sync'
has '"gitTreeState": "' k get --raw /version
refused 'unknown field "spec.replcas"' k apply -f <(sed 's/replicas:/replcas:/' "$EXAMPLE")
refused "not found" k get pod no-such-pod
refused "is forbidden" k get secrets --as=nobody
token=$(k create token default)
has "system:serviceaccount:default:default" curl -sk -H "Authorization: Bearer $token" "https://127.0.0.1:$PORT/api/v1/namespaces/default/pods"

step "delete, and nothing is left"
k delete -f "$EXAMPLE" --timeout=60s >/dev/null
until_true 60 bash -c "[ -z \"\$(HOME=$WORK $KUBECTL get pods -o name)\" ]"
has "ended" "$SKIFF" down --data-dir "$DATA"
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"

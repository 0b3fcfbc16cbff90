#!/usr/bin/env bash
# A control plane and a node as two processes: joining with a token and with a kubeconfig, what a user does through the
# API server on that node, restarts of the agent, and what those read who give something wrong.
. "$(dirname "$0")/cluster.sh"
EXAMPLE=$(dirname "$0")/../examples/hello.yaml
NODE=$DATA-node
FOLDERS+=("$NODE")
AGENT=(agent --data-dir "$NODE" --kubelet-port 20250 --dns-port 20053 --eviction-hard=)
URL=https://127.0.0.1:$PORT

node_is() { # node_is STATUS
    k wait --for="condition=Ready=$1" node --all --timeout=2s
}

step "a control plane alone"
started "$WORK/server.log" "$SKIFF" server --data-dir "$DATA" --secure-port "$PORT"
server=$LAST
until_true 20 k get --raw /readyz
until_true 20 k get configmap -n kube-public cluster-info

step "what is wrong is said in one sentence"
wrong() { # wrong TEXT FLAGS...
    local text=$1
    shift
    refused "$text" timeout 60 "$SKIFF" "${AGENT[@]}" "$@"
}
command=$("$SKIFF" token create --data-dir "$DATA")
token=$(sed 's/.*--token \([^ ]*\).*/\1/' <<<"$command")
pin=$(sed 's/.*--discovery-token-ca-cert-hash //' <<<"$command")
wrong "required" --token "$token"
wrong "--token" --server "$URL"
wrong "is not a URL" --server 127.0.0.1 --token "$token"
wrong "not of the form abcdef.0123456789abcdef" --server "$URL" --token hello
wrong "does not know the token abcdef" --server "$URL" --token abcdef.0123456789abcdef
wrong "does not know the token ${token%.*}" --server "$URL" --token "${token%.*}.0123456789abcdef"
wrong "this is another cluster" --server "$URL" --token "$token" --discovery-token-ca-cert-hash "sha256:$(printf '%064d' 0)"
wrong "64 hexadecimal digits" --server "$URL" --token "$token" --discovery-token-ca-cert-hash sha256:00
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=kubernetes -keyout /dev/null -out "$WORK/other.crt" 2>/dev/null
wrong "another authority" --server "$URL" --token "$token" --certificate-authority "$WORK/other.crt"
wrong "does not accept the credentials" --server "$URL" --token hello --certificate-authority "$DATA/pki/ca.crt"
wrong "'$WORK/none' for '--kubeconfig <FILE>': No such file or directory" --kubeconfig "$WORK/none"
echo hello >"$WORK/broken"
wrong "cannot use the kubeconfig $WORK/broken" --kubeconfig "$WORK/broken"
refused "there is no token" "$SKIFF" token delete zzzzzz --data-dir "$DATA"
refused "is not a duration" "$SKIFF" token create --ttl soon --data-dir "$DATA"

step "a server that is away is waited for, with a sentence"
away() { # away TEXT URL
    started "$WORK/away.log" "$SKIFF" "${AGENT[@]}" --server "$2" --token "$token"
    until_true 20 has "$1" cat "$WORK/away.log"
    until_true 20 has "trying again in 1 s" cat "$WORK/away.log"
    kill "$LAST"
    wait "$LAST" 2>/dev/null || true
}
away "nothing listens at https://127.0.0.1:1" https://127.0.0.1:1
away "is not known" https://no-such-host.invalid:6443

step "a node joins with the token and becomes ready, although its server comes later"
ended "$server"
started "$WORK/agent.log" "$SKIFF" "${AGENT[@]}" --server "$URL" --token "$token" --discovery-token-ca-cert-hash "$pin"
agent=$LAST
until_true 20 has "nothing listens at $URL" cat "$WORK/agent.log"
started "$WORK/server.log" "$SKIFF" server --data-dir "$DATA" --secure-port "$PORT"
server=$LAST
until_true 60 node_is True
node=$(k get nodes -o jsonpath='{.items[0].metadata.name}')
until_true 20 has "kubernetes.io/kubelet-serving" k get csr
has "Approved,Issued" k get csr
refused "in use by a running skiff" "$SKIFF" "${AGENT[@]}" --server "$URL" --token "$token"

step "Pods, logs, exec, port-forward, Services and names on that node"
k apply -f "$EXAMPLE" >/dev/null
k rollout status deployment/hello --timeout=120s >/dev/null
pod=$(k get pods -l app=hello -o name | sed -n 1p)
until_true 20 has "hello from ${pod#pod/}" k exec "$pod" -- wget -qO- http://127.0.0.1:8080
until_true 20 has "response:200" k logs "$pod"
started "$WORK/forward" env HOME="$WORK" "$KUBECTL" port-forward "$pod" 18080:8080
until_true 20 has "hello from" curl -s http://127.0.0.1:18080
kill "$LAST"
until_true 20 has "hello from" curl -s --max-time 5 "http://$(k get service hello -o jsonpath='{.spec.clusterIP}')"
until_true 20 has "hello from" k exec "$pod" -- wget -qO- http://hello.default.svc.cluster.local
has "ok" k get --raw "/api/v1/nodes/$node/proxy/healthz"

step "the node reads network policies with its own rights, and holds Pods to them"
other=$(k get pods -l app=hello -o jsonpath='{.items[1].status.podIP}')
has "hello from" k exec "$pod" -- wget -qO- "http://$other:8080"
echo '{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny}, spec: {podSelector: {}}}' | k apply -f - >/dev/null
until_true 20 refused "exit code 143" k exec "$pod" -- timeout 2 wget -qO- "http://$other:8080"
has "hello from" curl -s --max-time 5 "http://$other:8080"
k delete networkpolicy deny >/dev/null
until_true 20 has "hello from" k exec "$pod" -- timeout 2 wget -qO- "http://$other:8080"

step "containers are started again while the server is stopped, with the variables that they had, and it is told afterwards"
k create configmap said --from-literal=word=lasting >/dev/null
cat <<POD | k apply -f - >/dev/null
{apiVersion: v1, kind: Pod, metadata: {name: goes-on}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: main,
  image: "skiff.local/busybox:1", envFrom: [{configMapRef: {name: said}}], command: [sh, -c, 'echo "\$word"; sleep 123456']}]}}
POD
k wait --for=condition=Ready pod/goes-on --timeout=60s >/dev/null
logs=$(echo "$NODE"/logs/default_goes-on_*/main)
kill -STOP "$server"
kill -9 "$(pgrep -f '^sleep 123456')"
until_true 60 has lasting cat "$logs/1.log"
kill -CONT "$server"
until_true 60 says 1 k get pod goes-on -o jsonpath='{.status.containerStatuses[0].restartCount}'
until_true 60 node_is True
k delete pod goes-on >/dev/null
k delete configmap said >/dev/null

step "the kubelet's certificate is the cluster's, for this node"
kubelet=$(k get nodes -o jsonpath='{.items[0].status.addresses[?(@.type=="InternalIP")].address}')
has "Verification: OK" openssl s_client -connect "$kubelet:20250" -CAfile "$DATA/pki/ca.crt" -verify_ip "$kubelet" -brief </dev/null

step "the agent ends, its Pods go on; it comes back without the token"
"$SKIFF" token delete "$token" --data-dir "$DATA" >/dev/null
before=$(k get "$pod" -o jsonpath='{.status.containerStatuses[0].containerID}')
ended "$agent" || fail "the agent ends well"
grep -q "Pods keep running, .skiff down --data-dir $NODE. ends them" "$WORK/agent.log" || fail "the agent says what stays"
has "hello from" curl -s --max-time 5 "http://$(k get "$pod" -o jsonpath='{.status.podIP}'):8080"
started "$WORK/agent.log" "$SKIFF" "${AGENT[@]}" --server "$URL" --token "$token"
agent=$LAST
until_true 30 k exec "$pod" -- true
[ "$(k get "$pod" -o jsonpath='{.status.containerStatuses[0].containerID}')" = "$before" ] || fail "the Pod was restarted"
ended "$agent"

step "with the node's own kubeconfig, and with an administrator's"
cp "$NODE/agent.kubeconfig" "$WORK/node.kubeconfig"
wrong "credentials are those of the node $node" --kubeconfig "$WORK/node.kubeconfig" --node-name other
started "$WORK/agent.log" "$SKIFF" "${AGENT[@]}" --kubeconfig "$WORK/node.kubeconfig"
until_true 30 k exec "$pod" -- true
ended "$LAST"
"$SKIFF" down --data-dir "$NODE" >/dev/null
k delete node "$node" >/dev/null
started "$WORK/agent.log" "$SKIFF" "${AGENT[@]}" --kubeconfig "$DATA/admin.kubeconfig"
agent=$LAST
until_true 60 node_is True
k rollout status deployment/hello --timeout=120s >/dev/null
k delete -f "$EXAMPLE" --timeout=60s >/dev/null

step "down of the node, then of the control plane, and nothing is left"
until_true 60 bash -c "[ -z \"\$(HOME=$WORK $KUBECTL get pods -o name)\" ]"
has "ended" "$SKIFF" down --data-dir "$NODE"
wait "$agent" 2>/dev/null || true
ended "$server"
"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "left behind: $left"

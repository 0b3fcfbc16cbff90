#!/usr/bin/env bash
# Network policies on a real node: a Pod that nobody may reach, one label that may, probes that always pass, a policy that is
# there before its Pod, restarts that leave no gap, administrators who have the first word, and nothing that stays.
. "$(dirname "$0")/cluster.sh"

IMAGE=skiff.local/busybox:1

# server NAME: a Pod with a web server on port 8080, which is ready when the kubelet reaches it.
server() {
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {app: $1}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: $IMAGE
      command: [sh, -c, 'echo hello from $1 >/tmp/index.html; exec httpd -f -p 8080 -h /tmp']
      ports: [{name: web, containerPort: 8080}]
      readinessProbe: {httpGet: {port: web, path: /index.html}, periodSeconds: 1}
YAML
}

# policy NAME SPEC
policy() { echo "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: $1}, spec: $2}" | k apply -f - >/dev/null; }

address() { k get pod "$1" -o jsonpath='{.status.podIP}'; }
reach() { k exec "$1" -- timeout 2 wget -qO- "http://$2/index.html"; }
reaches() { has "hello from" reach "$1" "$2"; }
silent() { refused "exit code 143" reach "$1" "$2"; }

"$SKIFF" "${UP[@]}" >/dev/null
for pod in a b c; do server $pod; done
k wait --for=condition=Ready pod/a pod/b pod/c --timeout=60s >/dev/null
k expose pod a --port=80 --target-port=web >/dev/null
a=$(address a):8080
service=$(k get service a -o jsonpath='{.spec.clusterIP}')
until_true 20 reaches b "$service"

step "without a policy everybody is reached, and the kernel holds no rules"
reaches c "$a"
[ -z "$(nft list tables | grep skiff-policy || true)" ] || fail "rules without a policy"

step "nobody reaches a closed Pod, but for its node"
policy deny '{podSelector: {}, policyTypes: [Ingress]}'
until_true 20 silent b "$a"
silent c "$service"
has "hello from a" curl -s --max-time 5 "http://$a/index.html"
has "hello from a" reach a "$a"
has "hello from a" reach a "$service"

step "who has the label reaches it, at its address and through its Service"
policy allow '{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {matchLabels: {app: b}}}], ports: [{port: web}]}]}'
until_true 20 reaches b "$a"
reaches b "$service"
silent c "$a"
k label pod c app=b --overwrite >/dev/null
until_true 20 reaches c "$a"
k label pod c app=c --overwrite >/dev/null
until_true 20 silent c "$a"

step "rules that somebody removes are back"
nft delete table inet skiff-policy
until_true 20 silent c "$a"
reaches b "$a"

step "a restart of the node leaves no gap"
kill -9 "$(cat "$DATA/skiff.pid")"
until_true 10 refused "refused" k get --raw /readyz
has "drop" nft list table inet skiff-policy
"$SKIFF" "${UP[@]}" >/dev/null
until_true 20 reaches b "$a"
silent c "$a"

step "probes pass, and a Pod is closed before it begins"
k wait --for=condition=Ready pod/a --timeout=20s >/dev/null
policy open '{podSelector: {matchLabels: {app: b}}, ingress: [{}]}'
until_true 20 reaches c "$(address b):8080"
policy shut '{podSelector: {matchLabels: {app: d}}, policyTypes: [Egress]}'
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: d, labels: {app: d}}
spec:
  restartPolicy: Never
  containers: [{name: c, image: "$IMAGE", command: [sh, -c, "timeout 2 wget -qO- http://$(address b):8080/index.html; exit \$?"]}]
YAML
k wait --for=jsonpath='{.status.phase}'=Failed pod/d --timeout=30s >/dev/null
has 143 k get pod d -o jsonpath='{..terminated.exitCode}'

step "administrators have the first word, from when their kind is defined until it is not"
k apply -f - >/dev/null <<YAML
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: clusternetworkpolicies.policy.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/network-policy-api/pull/300"}
spec:
  group: policy.networking.k8s.io
  scope: Cluster
  names: {kind: ClusterNetworkPolicy, listKind: ClusterNetworkPolicyList, plural: clusternetworkpolicies, singular: clusternetworkpolicy}
  versions:
    - name: v1alpha2
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
YAML
k wait --for=condition=Established crd/clusternetworkpolicies.policy.networking.k8s.io --timeout=20s >/dev/null
# first NAME ACTION: what an administrator says of connections from c to the Pod of this name.
first() {
    k apply -f - >/dev/null <<YAML
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: $1}
spec:
  tier: Admin
  priority: 1
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: $1}}}}
  ingress: [{action: $2, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: c}}}}]}]
YAML
}
first a Accept
first b Deny
until_true 20 reaches c "$a"
until_true 20 silent c "$(address b):8080"
has "hello from b" curl -s --max-time 5 "http://$(address b):8080/index.html"
k delete crd clusternetworkpolicies.policy.networking.k8s.io >/dev/null
until_true 20 reaches c "$(address b):8080"
until_true 20 silent c "$a"

step "without policies everything is open again, and the rules are gone"
k delete networkpolicy --all >/dev/null
until_true 20 reaches c "$a"
until_true 10 bash -c '! nft list tables | grep -q skiff-policy'

policy deny '{podSelector: {}}'
until_true 20 silent b "$a"
"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"

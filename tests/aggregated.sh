#!/usr/bin/env bash
# Two control planes without nodes, one of which serves a group for the other: what kubectl, quotas, the garbage collector and
# a namespace's deletion see of objects that another API server keeps.
. "$(dirname "$0")/cluster.sh"
FRONT=$DATA BACK=$DATA-back BACK_PORT=$((PORT + 1))
FOLDERS=("$FRONT" "$BACK")

# serve FOLDER PORT: a control plane, whose process is in $LAST.
serve() {
    started "$WORK/$2.log" "$SKIFF" server --data-dir "$1" --secure-port "$2" --enable-aggregator-routing \
        --tls-san back.kube-system.svc
    until_true 30 answers "$1"
}
answers() { HOME=$WORK "$KUBECTL" --kubeconfig "$1/admin.kubeconfig" get --raw /readyz; }
back() { HOME=$WORK "$KUBECTL" --kubeconfig "$BACK/admin.kubeconfig" "$@"; }

# The authorities that this machine believes: they count where an APIService names none.
export SSL_CERT_FILE=$FRONT/pki/ca.crt
serve "$FRONT" "$PORT"
# The other one trusts what this one trusts, the front proxy's certificate among it.
serve "$BACK" "$BACK_PORT"
ended "$LAST"
rm -r "$BACK/pki"
cp -r "$FRONT/pki" "$BACK/pki"
serve "$BACK" "$BACK_PORT"
behind=$LAST
address=$(ip -4 -o addr show scope global | awk '{split($4, a, "/"); print a[1]; exit}')

step "the group of another API server is served, listed and explained"
back apply -f - >/dev/null <<'YAML'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.ext.example.com}
spec:
  group: ext.example.com
  names: {kind: Widget, plural: widgets, singular: widget}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, description: how large it is}}}}}}
YAML
back wait --for=condition=Established crd/widgets.ext.example.com --timeout=20s >/dev/null
# What is applied once more is a patch, of a sort that the kind's document names.
widget() { printf 'apiVersion: ext.example.com/v1\nkind: Widget\nmetadata: {name: twice}\nspec: {size: %s}\n' "$1"; }
for size in 1 2; do
    until_true 20 has widget.ext.example.com/twice back apply -f <(widget $size)
done
has 2 back get widget twice -o 'jsonpath={.spec.size}'
back delete widget twice >/dev/null
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Service
metadata: {name: back, namespace: kube-system}
spec: {ports: [{port: 443, targetPort: $BACK_PORT}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: back, namespace: kube-system, labels: {kubernetes.io/service-name: back}}
addressType: IPv4
ports: [{name: "", port: $BACK_PORT}]
endpoints: [{addresses: ["$address"]}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.ext.example.com}
spec:
  group: ext.example.com
  version: v1
  groupPriorityMinimum: 100
  versionPriority: 1
  service: {name: back, namespace: kube-system}
  caBundle: $(base64 -w0 "$BACK/pki/ca.crt")
YAML
k wait --for=condition=Available apiservice/v1.ext.example.com --timeout=30s >/dev/null
until_true 20 has "how large it is" k explain widgets.spec
has "ext.example.com/v1" k api-resources --api-group=ext.example.com

step "its APIService stands among those of local groups"
columns() { k get apiservices | sed -E 's/ +[^ ]+$//; s/ +/ /g'; }
for row in "v1. Local True" "v1.apps Local True" "v1.ext.example.com kube-system/back True"; do
    has "$row" columns
done
[ "$(k get apiservices v1. v1.apps -o jsonpath='{range .items[*]}{.spec.groupPriorityMinimum}/{.spec.versionPriority} {end}')" = "18000/1 17800/15 " ] ||
    fail "local groups have other priorities than upstream's"

step "without a bundle the machine's authorities are believed"
k patch apiservice v1.ext.example.com --type=merge -p '{"spec": {"caBundle": null}}' >/dev/null
k get widgets -A >/dev/null

step "a quota counts objects of the other server, and counts again when they go"
k create namespace shared >/dev/null
back create namespace shared >/dev/null
k -n shared create quota q --hard=count/widgets.ext.example.com=5 >/dev/null
used() { k -n shared get quota q -o 'jsonpath={.status.used.count/widgets\.ext\.example\.com}'; }
widget() { echo '{"apiVersion": "ext.example.com/v1", "kind": "Widget", "metadata": {"name": "'"$1"'"'"${2:-}"'}, "spec": {"size": 1}}'; }
until_true 30 has 0 used
started "$WORK/watch" env HOME="$WORK" "$KUBECTL" -n shared get widgets --watch --output-watch-events
for name in a b c; do widget $name | k -n shared create -f - >/dev/null; done
until_true 30 has 3 used
k -n shared delete widget b >/dev/null
until_true 30 has 2 used
until_true 30 grep -q 'DELETED *b' "$WORK/watch"
for name in a b c; do grep -q "ADDED *$name" "$WORK/watch" || fail "the watch did not tell of $name: $(cat "$WORK/watch")"; done

step "an owner on the other server, and a dependent on this one"
uid=$(k -n shared get widget a -o jsonpath='{.metadata.uid}')
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: ConfigMap
metadata:
  name: owned
  namespace: shared
  ownerReferences: [{apiVersion: ext.example.com/v1, kind: Widget, name: a, uid: $uid}]
YAML
k -n shared delete widget a >/dev/null
until_true 60 refused "not found" k -n shared get configmap owned
until_true 30 has 1 used

step "without the other server its group is unavailable, and everything else goes on"
ended "$behind"
until_true 30 has False k get apiservice v1.ext.example.com -o 'jsonpath={.status.conditions[?(@.type=="Available")].status}'
has "v1.ext.example.com kube-system/back False (" columns
refused "unable to handle the request" k -n shared get --raw /apis/ext.example.com/v1/namespaces/shared/widgets
k -n shared create configmap more >/dev/null
has 1 used

step "a namespace goes when what it holds elsewhere is gone"
k delete namespace shared --wait=false >/dev/null
until_true 30 has "ext.example.com" k get namespace shared -o jsonpath='{.status.conditions[?(@.type=="NamespaceDeletionDiscoveryFailure")].message}'
serve "$BACK" "$BACK_PORT"
until_true 90 refused "not found" k get namespace shared
[ -z "$(back -n shared get widgets -o name)" ] || fail "widgets are left on the other server"

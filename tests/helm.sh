#!/usr/bin/env bash
# helm, as a user of charts meets it: install, many upgrades, rollback, uninstall, and the namespace goes. helm is a Go
# program: its deletes carry their options in protobuf. Needs a control plane only, no engine and no root.
KUBECTL=${KUBECTL:-kubectl}
PORT=${PORT:-16543}
. "$(dirname "$0")/cluster.sh"
DATA=$WORK/data
FOLDERS=("$DATA")
export KUBECONFIG=$DATA/admin.kubeconfig
: "${HELM:?HELM must name a helm}"

helm() { HOME=$WORK "$HELM" --kubeconfig "$KUBECONFIG" --namespace shop "$@"; }

chart() { # chart VERSION: the chart with another content
    mkdir -p "$WORK/chart/templates"
    printf 'apiVersion: v2\nname: shop\nversion: 0.1.%s\n' "$1" >"$WORK/chart/Chart.yaml"
    printf 'color: red\n' >"$WORK/chart/values.yaml"
    cat >"$WORK/chart/templates/all.yaml" <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}-settings"}
data: {color: "{{ .Values.color }}", chart: "{{ .Chart.Version }}"}
---
apiVersion: v1
kind: Secret
metadata: {name: "{{ .Release.Name }}-secret"}
stringData: {word: open}
---
apiVersion: v1
kind: Service
metadata: {name: "{{ .Release.Name }}"}
spec: {selector: {app: shop}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ .Release.Name }}"}
spec:
  replicas: 0
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec: {containers: [{name: web, image: "skiff.local/shop:1"}]}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: "{{ .Release.Name }}-hook"
  annotations:
    helm.sh/hook: pre-install,pre-upgrade,post-delete
    helm.sh/hook-delete-policy: before-hook-creation
data: {revision: "{{ .Release.Revision }}"}
YAML
    cat >"$WORK/chart/templates/old.yaml" <<'YAML'
{{- if eq .Values.color "red" }}
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}-only-red"}
{{- end }}
YAML
}

step "a control plane alone"
started "$WORK/log" "$SKIFF" server --data-dir "$DATA" --bind-address 127.0.0.1 --secure-port "$PORT" --disable dns
until_true 60 k get --raw /readyz

step "install, twelve upgrades, history"
chart 0
has "STATUS: deployed" helm install web "$WORK/chart" --create-namespace --wait --timeout 60s
has "red" k -n shop get configmap web-settings -o 'jsonpath={.data.color}'
k -n shop get configmap web-only-red >/dev/null
for revision in $(seq 12); do
    chart "$revision"
    has "STATUS: deployed" helm upgrade web "$WORK/chart" --set color=blue --wait --timeout 60s
done
has "blue" k -n shop get configmap web-settings -o 'jsonpath={.data.color}'
refused "not found" k -n shop get configmap web-only-red
# helm keeps ten releases and deletes the older ones.
[ "$(k -n shop get secrets -l owner=helm --no-headers | wc -l)" = 10 ] || fail "ten releases are kept"
[ "$(helm history web -o json | grep -o '"revision"' | wc -l)" = 10 ] || fail "the history has ten revisions"

step "rollback, uninstall"
helm rollback web 5 --wait --timeout 60s >/dev/null
has "0.1.4" k -n shop get configmap web-settings -o 'jsonpath={.data.chart}'
has "uninstalled" helm uninstall web --wait --timeout 60s
for kind in deployment service secret configmap; do
    left=$(k -n shop get "$kind" -o name | grep web | grep -v hook || true)
    [ -z "$left" ] || fail "left behind: $left"
done

step "the namespace goes"
k -n shop create configmap more --from-literal=a=b >/dev/null
k delete namespace shop --timeout=60s >/dev/null
refused "not found" k get namespace shop

step "exported YAML comes back"
k create deployment again --image=i --replicas=0 >/dev/null
k get deployment again -o yaml >"$WORK/exported.yaml"
k delete deployment again >/dev/null
k create -f "$WORK/exported.yaml" >/dev/null
sed -i '/^  resourceVersion:/d; /^  uid:/d' "$WORK/exported.yaml"
k apply -f "$WORK/exported.yaml" >/dev/null 2>&1
k replace -f "$WORK/exported.yaml" >/dev/null

step "curl -I ends well on HTTP/2"
for part in certificate key; do
    k config view --raw -o "jsonpath={.users[0].user.client-$part-data}" | base64 -d >"$WORK/client.$part"
done
has "HTTP/2 200" curl -sSI --cacert "$DATA/pki/ca.crt" --cert "$WORK/client.certificate" --key "$WORK/client.key" \
    "https://127.0.0.1:$PORT/version"

#!/usr/bin/env bash
# Go's own clients, which speak protobuf and CBOR, walk through the API. Needs control planes only, no engine and no root.
# $GO and $GOPATH name a Go and its libraries, $WALK the program that is built of them.
KUBECTL=${KUBECTL:-kubectl}
PORT=${PORT:-16544}
: "${WALK:=}"
if [ -z "$WALK" ] && [ -z "${GO:-}" ]; then
    tools=$("$(dirname "$0")/go-tools.sh") || { echo "SKIPPED: Go and its Kubernetes clients could not be fetched"; exit 0; }
    eval "export $tools"
fi
. "$(dirname "$0")/cluster.sh"
FOLDERS=("$WORK/first" "$WORK/second" "$WORK/third")

if [ -z "$WALK" ]; then
    step "the program is built"
    WALK=$WORK/walk
    GO111MODULE=off GOCACHE=${GOCACHE:-$WORK/cache} "$GO" build -o "$WALK" "$(dirname "$0")"/go-client/*.go
fi
CBOR=CBORServingAndStorage=true
serve() { # serve FOLDER FLAG...: a control plane in the background, in $LAST
    export KUBECONFIG=$WORK/$1/admin.kubeconfig
    started "$WORK/$1.log" "$SKIFF" server --data-dir "$WORK/$1" --bind-address 127.0.0.1 --secure-port "$PORT" --disable dns "${@:2}"
    until_true 60 k get --raw /readyz
}

serve first
"$WALK"
ended "$LAST"
# From here on they prefer CBOR.
export KUBE_FEATURE_ClientsAllowCBOR=true KUBE_FEATURE_ClientsPreferCBOR=true
serve second --feature-gates "$CBOR"
"$WALK" corners
ended "$LAST"

command -v etcd >/dev/null || { echo "SKIPPED: etcd is not here"; exit 0; }
step "the same over etcd"
URL=http://127.0.0.1:$((PORT + 1))
started "$WORK/etcd.log" etcd --data-dir "$WORK/etcd" --listen-client-urls "$URL" --advertise-client-urls "$URL" \
    --listen-peer-urls "http://127.0.0.1:$((PORT + 2))" --initial-advertise-peer-urls "http://127.0.0.1:$((PORT + 2))" \
    --initial-cluster "default=http://127.0.0.1:$((PORT + 2))"
until_true 20 etcdctl --endpoints "$URL" endpoint health
serve third --etcd-servers "$URL" --feature-gates "$CBOR"
ETCD=$URL "$WALK" corners

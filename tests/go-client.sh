#!/usr/bin/env bash
# Go's own clients, which speak protobuf, walk through the API. Needs a control plane only, no engine and no root; Go and
# Debian's golang-k8s-client-go-dev, or $GO and $GOPATH that name others, build the program.
KUBECTL=${KUBECTL:-kubectl}
PORT=${PORT:-16544}
: "${WALK:=}"
if [ -z "$WALK" ]; then
    GO=${GO:-$(command -v go || true)}
    export GOPATH=${GOPATH:-/usr/share/gocode} GO111MODULE=off
    if [ -z "$GO" ] || [ ! -d "$GOPATH/src/k8s.io/client-go" ]; then
        echo "SKIPPED: Go and golang-k8s-client-go-dev are not here"
        exit 0
    fi
fi
. "$(dirname "$0")/cluster.sh"
DATA=$WORK/data
FOLDERS=("$DATA")
export KUBECONFIG=$DATA/admin.kubeconfig

if [ -z "$WALK" ]; then
    step "the program is built"
    WALK=$WORK/walk
    GOCACHE=${GOCACHE:-$WORK/cache} "$GO" build -o "$WALK" "$(dirname "$0")/go-client/main.go"
fi
started "$WORK/log" "$SKIFF" server --data-dir "$DATA" --bind-address 127.0.0.1 --secure-port "$PORT" --disable dns
until_true 60 k get --raw /readyz
"$WALK"

#!/usr/bin/env bash
# Asks skiff and upstream's own server of custom resources the same, and prints where the answers differ:
#   SKIFF=… tests/upstream.sh requests | schemas [SEED] | expressions
# Upstream's apiextensions-apiserver is built from Debian's packages of its source, which takes some ten minutes once, and asks this
# skiff about users and namespaces. It is a minor version newer, so a person judges what is printed; `run.sh` does not run this.
KUBECTL=${KUBECTL:-kubectl}
PORT=${PORT:-16560}
. "$(dirname "$0")/cluster.sh"
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE=${SKIFF_TEST_CACHE:-/var/cache/skiff-ci}
FOLDERS=("$WORK/data")
UPSTREAM=$CACHE/apiextensions-apiserver
THEIRS=$((PORT + 1))
ETCD=http://127.0.0.1:$((PORT + 2))
PEER=http://127.0.0.1:$((PORT + 3))

[ -x "$UPSTREAM" ] || (
    eval "$("$HERE/go-tools.sh" golang-k8s-apiextensions-apiserver-dev)"
    GO111MODULE=off GOPATH=$GOPATH GOCACHE=$GOCACHE "$GO" build -o "$UPSTREAM" k8s.io/apiextensions-apiserver
)

token=$(openssl rand -hex 16)
(umask 077 && echo "$token,admin,admin,\"system:masters\"" >"$WORK/tokens")
export KUBECONFIG=$WORK/data/admin.kubeconfig
started "$WORK/skiff.log" "$SKIFF" server --data-dir "$WORK/data" --bind-address 127.0.0.1 --secure-port "$PORT" --disable dns \
    --token-auth-file "$WORK/tokens"
until_true 60 k get --raw /readyz
started "$WORK/etcd.log" etcd --data-dir "$WORK/etcd" --listen-client-urls "$ETCD" --advertise-client-urls "$ETCD" \
    --listen-peer-urls "$PEER" --initial-advertise-peer-urls "$PEER" --initial-cluster "default=$PEER"
# What skiff does not serve by default would be waited for.
started "$WORK/upstream.log" "$UPSTREAM" --etcd-servers "$ETCD" --bind-address 127.0.0.1 --secure-port "$THEIRS" \
    --cert-dir "$WORK/certificates" --kubeconfig "$KUBECONFIG" --authentication-kubeconfig "$KUBECONFIG" \
    --authorization-kubeconfig "$KUBECONFIG" --authentication-skip-lookup --disable-admission-plugins MutatingAdmissionPolicy
until_true 120 curl -sfk -H "Authorization: Bearer $token" "https://127.0.0.1:$THEIRS/readyz"

what=${1:-requests}
[ $# = 0 ] || shift
TOKEN=$token OURS=$PORT THEIRS=$THEIRS python3 -B "$HERE/upstream/$what.py" "$@"

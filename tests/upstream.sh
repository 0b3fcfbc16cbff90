#!/usr/bin/env bash
# Asks skiff and upstream's own server of custom resources the same, and prints where the answers differ:
#   SKIFF=… tests/upstream.sh requests | schemas [SEED] | expressions | audit | encryption | admission [CASE…]
# Upstream's apiextensions-apiserver is built from Debian's packages of its source, which takes some ten minutes once, and asks this
# skiff about users, namespaces, policies and webhooks. It is a minor version newer, so a person judges what is printed; `run.sh` does
# not run this. A KMS plugin for `encryption` takes its gRPC from PyPI.
KUBECTL=${KUBECTL:-kubectl}
PORT=${PORT:-16560}
. "$(dirname "$0")/cluster.sh"
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE=${SKIFF_TEST_CACHE:-/var/cache/skiff-ci}
FOLDERS=("$WORK/data")
UPSTREAM=$CACHE/apiextensions-apiserver
THEIRS=$((PORT + 1))
ETCD=http://127.0.0.1:$((PORT + 2))

[ -x "$UPSTREAM" ] || (
    eval "$("$HERE/go-tools.sh" golang-k8s-apiextensions-apiserver-dev)"
    GO111MODULE=off GOPATH=$GOPATH GOCACHE=$GOCACHE "$GO" build -o "$UPSTREAM" k8s.io/apiextensions-apiserver
)

what=${1:-requests}
[ $# = 0 ] || shift
OUR_FLAGS=(--disable dns)
# What skiff does not serve by default would be waited for.
THEIR_FLAGS=(--disable-admission-plugins MutatingAdmissionPolicy)
token=$(openssl rand -hex 16)
(umask 077 && echo "$token,admin,admin,\"system:masters\"" >"$WORK/tokens")
export KUBECONFIG=$WORK/data/admin.kubeconfig TOKEN=$token OURS=$PORT THEIRS=$THEIRS ETCD

compare() { python3 -B "$HERE/upstream/$what.py" "$@"; }

# start_etcd NAME URL PEER
start_etcd() {
    started "$WORK/etcd-$1.log" etcd --data-dir "$WORK/etcd-$1" --listen-client-urls "$2" --advertise-client-urls "$2" \
        --listen-peer-urls "$3" --initial-advertise-peer-urls "$3" --initial-cluster "default=$3"
    until_true 20 curl -sf "$2/health"
}

# start_both: both servers with their flags, whose processes are OUR_PID and THEIR_PID.
start_both() {
    started "$WORK/skiff.log" "$SKIFF" server --data-dir "$WORK/data" --bind-address 127.0.0.1 --secure-port "$PORT" \
        --token-auth-file "$WORK/tokens" "${OUR_FLAGS[@]}"
    OUR_PID=$LAST
    until_true 60 k get --raw /readyz
    started "$WORK/upstream.log" "$UPSTREAM" --etcd-servers "$ETCD" --bind-address 127.0.0.1 --secure-port "$THEIRS" \
        --cert-dir "$WORK/certificates" --kubeconfig "$KUBECONFIG" --authentication-kubeconfig "$KUBECONFIG" \
        --authorization-kubeconfig "$KUBECONFIG" --authentication-skip-lookup "${THEIR_FLAGS[@]}"
    THEIR_PID=$LAST
    until_true 120 curl -sfk -H "Authorization: Bearer $token" "https://127.0.0.1:$THEIRS/readyz"
}

# both WORD VALUE: a flag of both.
both() {
    OUR_FLAGS+=("$1" "$2")
    THEIR_FLAGS+=("$1" "$2")
}

# audited POLICY: both tell of the requests in a log.
audited() {
    export OUR_AUDIT=$WORK/our-audit.log THEIR_AUDIT=$WORK/their-audit.log
    both --audit-policy-file "$1"
    OUR_FLAGS+=(--audit-log-path "$OUR_AUDIT")
    THEIR_FLAGS+=(--audit-log-path "$THEIR_AUDIT")
}

# Both servers, each over an etcd, before and after the keys were changed; then each with configurations that are wrong.
encryption() {
    local keys=$WORK/keys.yaml plugin=$WORK/kms.sock name flag=--encryption-provider-config
    [ -e "$CACHE/grpc" ] || pip install --quiet --root-user-action ignore --only-binary :all: --target "$CACHE/grpc" grpcio
    PYTHONPATH=$CACHE/grpc started "$WORK/kms.log" python3 -B "$HERE/upstream/kms.py" "$plugin"
    until_true 20 test -S "$plugin"
    export OUR_ETCD=http://127.0.0.1:$((PORT + 4))
    start_etcd ours "$OUR_ETCD" "http://127.0.0.1:$((PORT + 5))"
    OUR_FLAGS+=(--etcd-servers "$OUR_ETCD")
    THEIR_FLAGS+=(--etcd-prefix /registry)
    both $flag "$keys"
    compare write "$plugin" >"$keys"
    start_both
    compare written
    kill "$OUR_PID" "$THEIR_PID"
    wait "$OUR_PID" "$THEIR_PID" || true
    compare rewrite "$plugin" >"$keys"
    start_both
    compare rewritten
    mkdir "$WORK/wrong"
    compare wrong "$WORK/wrong"
    for name in "$WORK"/wrong/*; do
        echo "- ${name##*/}"
        { timeout 20 "$SKIFF" server --data-dir "$WORK/none" --secure-port "$THEIRS" $flag "$name" 2>&1 || true; } | tail -1 | cut -c1-600
        { timeout 20 "$UPSTREAM" --etcd-servers "$ETCD" --secure-port 1 --cert-dir "$WORK/certificates" --kubeconfig "$KUBECONFIG" \
            --authentication-kubeconfig "$KUBECONFIG" --authorization-kubeconfig "$KUBECONFIG" $flag "$name" 2>&1 || true; } |
            tail -1 | cut -c1-600
    done
}

start_etcd theirs "$ETCD" "http://127.0.0.1:$((PORT + 3))"
case $what in
encryption) encryption ;;
audit)
    audited "$HERE/upstream/audit.yaml"
    start_both
    compare
    ;;
admission)
    printf '%s\n' "apiVersion: audit.k8s.io/v1" "kind: Policy" "rules: [{level: RequestResponse}]" >"$WORK/audit.yaml"
    audited "$WORK/audit.yaml"
    export CERTIFICATES=$WORK/data HOOKS=$((PORT + 4))
    start_both
    openssl req -x509 -newkey rsa:2048 -nodes -keyout "$WORK/data/hook.key" -out "$WORK/data/hook.crt" -days 2 -subj /CN=hook \
        -addext subjectAltName=IP:127.0.0.1 2>/dev/null
    compare "$@"
    ;;
*)
    start_both
    compare "$@"
    ;;
esac

#!/usr/bin/env bash
# Python's and JavaScript's clients walk through the API. Needs a control plane only, no engine and no root.
KUBECTL=${KUBECTL:-kubectl}
PORT=${PORT:-16554}
. "$(dirname "$0")/cluster.sh"
HERE=$(cd "$(dirname "$0")" && pwd)/other-clients
CACHE=${SKIFF_TEST_CACHE:-/var/cache/skiff-ci}
FOLDERS=("$WORK/data")

# It is fetched once. Later versions need a newer Node.js than Debian's.
javascript() {
    [ -e "$CACHE/node-client/complete" ] || {
        mkdir -p "$CACHE/node-client"
        npm install --silent --no-audit --no-fund --prefix "$CACHE/node-client" @kubernetes/client-node@1.4.0 || return 1
        touch "$CACHE/node-client/complete"
    }
}

export KUBECONFIG=$WORK/data/admin.kubeconfig
started "$WORK/log" "$SKIFF" server --data-dir "$WORK/data" --bind-address 127.0.0.1 --secure-port "$PORT" --disable dns
until_true 60 k get --raw /readyz

step "Python"
if python=$("$(dirname "$0")/python-client.sh"); then
    "$python" "$HERE/walk.py"
else
    echo "SKIPPED: Python's client could not be fetched"
fi

step "JavaScript"
if command -v node >/dev/null && command -v npm >/dev/null && javascript; then
    # Imports are looked for beside the file.
    cp "$HERE/walk.mjs" "$CACHE/node-client/walk.mjs"
    (cd "$CACHE/node-client" && timeout 120 node walk.mjs)
else
    echo "SKIPPED: Node.js is not here, or its client could not be fetched"
fi
ended "$LAST"

# Sourced by the cluster tests: a cluster of their own, helpers to check things, and the certainty that it ends.
set -Eeuo pipefail
: "${SKIFF:?}" "${KUBECTL:?}"

DATA=${DATA:-/var/lib/skiff-test}
PORT=${PORT:-16443}
# Every data folder that the test uses, and the processes that it runs in the background.
FOLDERS=("$DATA")
STARTED=()
# Without thresholds: how full the machine's disk is says nothing about the product.
UP=(up --data-dir "$DATA" --secure-port "$PORT" --kubelet-port 20250 --dns-port 20053 --eviction-hard=)
export KUBECONFIG=$DATA/admin.kubeconfig
WORK=$(mktemp -d)

# kubectl without the user's own cache and settings.
k() { HOME=$WORK "$KUBECTL" "$@"; }

fail() {
    echo "FAILED: $*" >&2
    return 1
}

# until_true SECONDS COMMAND...: waits for a condition, not for a time.
until_true() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $deadline ]; then
            echo "not true in time: $*" >&2
            "$@" >&2 || true
            return 1
        fi
        read -rt 0.2 <> <(:) || true
    done
}

# has TEXT COMMAND...: the command's output contains the text.
has() {
    local text=$1 out
    shift
    out=$("$@" 2>&1) || { echo "$out" >&2; fail "exit status of: $*"; return 1; }
    grep -qF -- "$text" <<<"$out" || { echo "$out" >&2; fail "no '$text' in the output of: $*"; return 1; }
}

# says TEXT COMMAND...: the command says this and nothing else.
says() {
    local text=$1
    shift
    [ "$("$@")" = "$text" ]
}

# refused TEXT COMMAND...: the command fails, and its output contains the text.
refused() {
    local text=$1 out
    shift
    if out=$("$@" 2>&1); then
        echo "$out" >&2
        fail "should have failed: $*"
        return 1
    fi
    grep -qF -- "$text" <<<"$out" || { echo "$out" >&2; fail "no '$text' in the output of: $*"; return 1; }
}

# What a cluster may leave behind, as it is now.
traces() {
    ip -br link | grep -o '^skf[^@ ]*' || true
    nft list tables | grep skiff || true
    grep -o " $DATA[^ ]*" /proc/mounts || true
    pgrep -af -- "$DATA" | grep -v "$0" || true
    find /sys/fs/cgroup -type d -name '*kubepods*' 2>/dev/null || true
    for folder in "${FOLDERS[@]}"; do [ ! -e "$folder" ] || echo "$folder"; done
}

# All that several nodes may leave behind.
all_traces() {
    traces
    ip -br link | grep -o '^skiff-node[^ ]*' || true
    grep network-namespace /proc/mounts || true
    find /sys/fs/cgroup -type d -name 'skiff-node*' 2>/dev/null || true
}

# started LOG COMMAND...: runs it in the background, in $LAST, and ends it when the test ends.
started() {
    local log=$1
    shift
    # Nobody may read what an earlier one said.
    : >"$log"
    "$@" >"$log" 2>&1 &
    LAST=$!
    STARTED+=("$LAST")
}

# ended PID: asks a process that was started to end, and waits for it.
ended() {
    kill "$1"
    wait "$1"
}

on_exit() {
    local code=$?
    if [ $code != 0 ] && [ -e "$DATA/skiff.log" ]; then
        echo "--- pods and events" >&2
        k get pods -A -o wide >&2 || true
        k get events -A 2>/dev/null | tail -20 >&2 || true
        echo "--- the end of skiff.log" >&2
        tail -40 "$DATA/skiff.log" >&2
    fi
    for pid in "${STARTED[@]}"; do kill "$pid" 2>/dev/null || true; done
    for folder in "${FOLDERS[@]}"; do "$SKIFF" down --data-dir "$folder" >/dev/null 2>&1 || true; done
    rm -rf "$WORK"
    # `run.sh` says it once more at its end: of a run far away that is all that one may see.
    [ $code = 0 ] || echo "FAILED at: ${FAILED_AT:-the start}" | tee -a "${FAILURES:-/dev/null}" >&2
    exit $code
}
trap on_exit EXIT
STEP="before the first step"
step() {
    STEP=$*
    echo "  - $STEP"
}

# Keeps the place of the first command that failed: the line of the test itself, whichever helper it was in.
note_failure() {
    local line=${BASH_LINENO[-2]}
    [ -n "${FAILED_AT:-}" ] || FAILED_AT="$STEP: ${BASH_SOURCE[-1]##*/}:$line: $(sed -n "${line}p" "${BASH_SOURCE[-1]}" 2>/dev/null)"
}
trap note_failure ERR

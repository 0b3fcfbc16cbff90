# The words that scripts in a virtual machine are written with; each of them begins with this (`vm.sh`). Their shell is dash.
DATA=/var/lib/skiff
export KUBECONFIG=$DATA/admin.kubeconfig

step() { echo "  - $* ($(cut -d. -f1 /proc/uptime) s)"; }
fail() { echo "FAILED: $*" >&2; exit 1; }

# until_true SECONDS COMMAND...
until_true() {
    local deadline=$(($(date +%s) + $1))
    shift
    until "$@" >/tmp/tried 2>&1; do
        [ "$(date +%s)" -lt "$deadline" ] || { cat /tmp/tried; fail "not true in time: $*"; }
        sleep 0.2
    done
}

# has TEXT COMMAND...: the command succeeds, and says this among other things; refused TEXT COMMAND...: it says this, and fails.
has() { local text=$1; shift; "$@" >/tmp/said 2>&1 && grep -qF -- "$text" /tmp/said || { cat /tmp/said; return 1; }; }
refused() { local text=$1; shift; ! "$@" >/tmp/said 2>&1 && grep -qF -- "$text" /tmp/said || { cat /tmp/said; return 1; }; }
# says TEXT COMMAND...: the command says this and nothing else.
says() { local text=$1 got; shift; got=$("$@"); [ "$got" = "$text" ] || { echo "$got, not $text"; return 1; }; }
# is WHAT GOT EXPECTED
is() { [ "$2" = "$3" ] || fail "$1: $2, not $3"; }

# The machine's address on a network without anybody else.
with_address() {
    modprobe dummy
    ip link set dummy0 name eth0 up
    ip addr add 192.168.7.1/24 dev eth0
    ip route add default dev eth0
}

# A machine that failed leaves nothing behind but its words.
tell_when_failed() {
    local code=$?
    [ $code != 0 ] || return 0
    kubectl describe pods | tail -n 60
    kubectl get pods -A -o wide
    kubectl get events | tail -n 20
    tail -n 30 "$DATA/skiff.log" "$DATA/containerd/containerd.log"
}

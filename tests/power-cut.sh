#!/usr/bin/env bash
# A machine that loses its power: a control plane in a virtual machine, with its store on a disk; clients outside note what was
# acknowledged; the machine is killed in the midst of it, and nothing of that may be missing when it begins again.
set -euo pipefail
cd "$(dirname "$0")"
: "${SKIFF:?}" "${KUBECTL:?}"
. ./vm.sh
step() { echo "  - $*"; }
fail() { echo "FAILED: $*" >&2; tail -n 30 "$vm_root.log" >&2; exit 1; }
skip() {
    echo "SKIPPED: a power cut needs a virtual machine, and this one cannot have one: $VM_LACKS"
    exit 0
}

vm_fetch || skip
PATH="$PATH:/usr/sbin:/sbin" command -v mkfs.ext4 >/dev/null || { VM_LACKS="the program mkfs.ext4"; skip; }
vm_root=$(mktemp -d)
end() {
    [ ! -e "$vm_root.pid" ] || kill -9 "$(cat "$vm_root.pid")" 2>/dev/null || true
    wait
    vm_end
}
trap end EXIT
vm_program ip mount umount || skip
vm_file "$SKIFF" /usr/local/bin/skiff
mkdir -p "$vm_root/root" "$vm_root.notes" "$vm_root.empty"
echo 'secret,root,1,system:masters' >"$vm_root/root/tokens"
disk=$vm_root.disk
vm_disk "$disk" 1G "$vm_root.empty"
port=16644
# Without the host's cache: a write that the machine has not flushed is lost with it.
vm_args=(-drive "file=$disk,format=raw,if=virtio,cache=none" -pidfile "$vm_root.pid"
    -netdev "user,id=net,hostfwd=tcp:127.0.0.1:$port-:6443" -device virtio-net-pci,netdev=net,romfile=)
k() { HOME=$vm_root.notes "$KUBECTL" --server "https://127.0.0.1:$port" --token secret --insecure-skip-tls-verify "$@"; }
notes=$vm_root.notes
touch "$notes"/{acked,deleted,victims}

begin() {
    VM_MODULES='drivers/(block/virtio|virtio)' vm_run 300 >"$vm_root.log" 2>&1 <<'VM' &
modprobe -a virtio_pci virtio_blk virtio_net
for try in $(seq 50); do [ -b /dev/vda ] && [ -e /sys/class/net/eth0 ] && break; sleep 0.1; done
ip addr add 10.0.2.15/24 dev eth0 && ip link set eth0 up && ip route add default via 10.0.2.2
mkdir /data && mount -t ext4 /dev/vda /data
skiff server --data-dir /data/skiff --token-auth-file /root/tokens
VM
    machine=$!
    local deadline=$((SECONDS + 120))
    until [ "$(k get --raw /readyz 2>/dev/null)" = ok ]; do
        [ $SECONDS -lt $deadline ] || fail "the machine does not answer"
        kill -0 "$machine" 2>/dev/null || fail "the machine has ended"
        read -rt 0.3 <> <(:) || true
    done
    ! grep -E "the store (is broken|could not write)" "$vm_root.log" || fail "the store complains"
}
cut_power() {
    kill -9 "$(cat "$vm_root.pid")"
    wait
    rm -f "$vm_root.pid"
}

SHOWN='{.metadata.name} {.metadata.resourceVersion}{"\n"}'
# load ROUND: clients that write until the machine is gone, and note what they were told.
load() {
    local writer
    for writer in 1 2 3 4; do
        for number in $(seq 2000); do
            printf -- '---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: r%s-%s-%s}\ndata: {text: "%0200d"}\n' "$1" $writer "$number" "$number"
        done >"$notes/load-$writer.yaml"
        (k create -f "$notes/load-$writer.yaml" -o jsonpath="$SHOWN" >"$notes/told-$writer" 2>/dev/null || true) &
    done
    if [ -s "$notes/last" ]; then
        cat "$notes/last" >>"$notes/victims"
        (xargs -n 40 "$KUBECTL" --server "https://127.0.0.1:$port" --token secret --insecure-skip-tls-verify delete configmap --wait=false \
            -o name <"$notes/last" >"$notes/gone" 2>/dev/null || true) &
    fi
}
# A line without an end was not told as a whole.
whole() { sed -n '/[0-9]$/p' "$@"; }
gather() {
    whole "$notes"/told-* >"$notes/told"
    cat "$notes/told" >>"$notes/acked"
    cut -d' ' -f1 "$notes/told" >"$notes/last"
    if [ -e "$notes/gone" ]; then
        sed -n 's|^configmap/\(r[0-9]*-[0-9]*-[0-9]*\)$|\1|p' "$notes/gone" >>"$notes/deleted"
        rm "$notes/gone"
    fi
}
check() {
    k get configmaps -o jsonpath="{range .items[*]}$SHOWN{end}" | sort >"$notes/stored"
    cut -d' ' -f1 "$notes/stored" | sort >"$notes/names"
    sort "$notes/acked" | comm -23 - "$notes/stored" | cut -d' ' -f1 | sort >"$notes/missing"
    sort -u "$notes/victims" | comm -23 "$notes/missing" - >"$notes/lost"
    [ ! -s "$notes/lost" ] || fail "$(wc -l <"$notes/lost") acknowledged objects are lost or others: $(head -3 "$notes/lost" | xargs)"
    sort -u "$notes/deleted" | comm -12 - "$notes/names" >"$notes/back"
    [ ! -s "$notes/back" ] || fail "deleted objects are back: $(head -3 "$notes/back" | xargs)"
    # No number is given twice, and what is watched from the last one goes on.
    local most next
    most=$(cut -d' ' -f2 "$notes/acked" | sort -n | tail -1)
    next=$(k create configmap "probe-$most" -o jsonpath='{.metadata.resourceVersion}')
    [ "$next" -gt "$most" ] || fail "the revision $next after $most"
    k get --raw "/api/v1/namespaces/default/configmaps?watch=1&resourceVersion=$most&timeoutSeconds=1" >"$notes/events"
    grep -q "\"probe-$most\"" "$notes/events" || fail "no watch from $most: $(head -c 300 "$notes/events")"
}

begin
for round in 1 2 3; do
    load $round
    until [ -s "$notes/told-1" ]; do read -rt 0.1 <> <(:) || true; done
    read -rt "$((RANDOM % 3 + 1)).$((RANDOM % 10))" <> <(:) || true
    cut_power
    gather
    step "power cut $round: $(wc -l <"$notes/told") writes and $(wc -l <"$notes/deleted") deletions were acknowledged"
    begin
    check
done
grep -ho "cutting off an interrupted write.*" "$vm_root.log" || true

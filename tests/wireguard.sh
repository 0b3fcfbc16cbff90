#!/usr/bin/env bash
# Encrypted ways between nodes over the real WireGuard: in a virtual machine, because not every kernel has it. A cluster of two
# nodes with `--pod-network=wireguard`, and the network of three nodes alone ($WIREGUARD names the test of the crate network).
set -euo pipefail
cd "$(dirname "$0")"
: "${SKIFF:?}" "${KUBECTL:?}"
. ./vm.sh
step() { echo "  - $*"; }
skip() {
    echo "SKIPPED: WireGuard needs a virtual machine, and this one cannot have one: $VM_LACKS"
    exit 0
}

vm_fetch || skip
wg=$(vm_tool wireguard-tools usr/bin/wg) || skip
vm_root=$(mktemp -d)
trap vm_end EXIT
vm_program ip nft mount umount containerd containerd-shim-runc-v2 ctr runc grep || skip
vm_file "$wg" /usr/local/bin/wg
vm_file "$SKIFF" /usr/local/bin/skiff
vm_file "$KUBECTL" /usr/local/bin/kubectl
if [ -x "${WIREGUARD:-}" ]; then
    vm_file "$WIREGUARD" /usr/local/bin/ways
else
    echo "SKIPPED: \$WIREGUARD must name the test 'wireguard' of the crate network, which 'make unit' builds"
fi

VM_MEMORY=3072 vm_run 400 <<'VM'
set -eu

# The network alone waits more than it works, so it runs beside the rest.
if command -v ways >/dev/null; then
    ways >/tmp/ways 2>&1 &
    ways=$!
fi

step "a machine that is fit"
has "WireGuard          there" skiff check --pod-network wireguard || fail "skiff check"

step "two nodes with one command, in both families of addresses"
end_of_logs() { code=$?; [ $code = 0 ] || tail -n 30 $DATA/skiff.log $DATA/nodes/*/skiff.log; }
trap end_of_logs EXIT
skiff up --nodes 2 --node-name one --pod-network wireguard --eviction-hard= --wait 120 \
    --cluster-cidr=10.244.0.0/16,fd00:10:244::/56 --service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112
# What passes between the two: packets of WireGuard, and none with a Pod's address.
nft -f - <<NFT
table netdev wire {
    chain in {
        type filter hook ingress device skiff-node-2 priority 0
        udp dport { 51820, 51821 } counter comment "encrypted"
        ip saddr 10.244.0.0/16 counter comment "open"
        ip daddr 10.244.0.0/16 counter comment "open"
        ip6 saddr fd00:10:244::/56 counter comment "open"
        ip6 daddr fd00:10:244::/56 counter comment "open"
    }
}
NFT

step "a Pod on each, that reach each other at full size"
pod() { # NAME NODE
    kubectl apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  nodeName: $2
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: 'skiff.local/busybox:1', command: [sleep, '3600']}]
YAML
}
pod a one
pod b one-2
kubectl wait --for=condition=Ready pod a b --timeout=60s >/dev/null
set -- $(kubectl get pod b -o jsonpath='{.status.podIPs[*].ip}')
[ $# = 2 ] || fail "the Pod has the addresses $*"
# 1500 bytes less WireGuard's 80, and less those of IP and ICMP.
has "mtu 1420" kubectl exec a -- sh -ec "
    reach() { for try in 1 2 3 4 5 6 7 8 9; do ping -c1 -W2 -s \$1 \$2 && return; done; return 1; }
    reach 1392 $1; reach 1372 $2; ip link show eth0" || fail "from Pod to Pod"
counters() { nft list table netdev wire | grep "comment \"$1\"" | sed 's/.*packets \([0-9]*\) .*/\1/'; }
# The answers at least came through here.
[ "$(counters encrypted)" -gt 1 ] || fail "nothing was encrypted"
for count in $(counters open); do [ "$count" = 0 ] || { nft list table netdev wire; fail "a Pod's packets in the open"; }; done

step "a node says what its public key is, and its private key stays where it is"
key=$(cat $DATA/pki/wireguard.key)
public=$(echo "$key" | wg pubkey)
[ "$(stat -c %a $DATA/pki/wireguard.key)" = 600 ] || fail "the mode of the key"
told() { kubectl get node "$1" -o jsonpath='{.metadata.annotations.skiff\.dev/wireguard-public-key}'; }
[ "$(told one)" = "$public" ] || fail "the node tells $(told one)"
[ "$(told one-2)" = "$(wg show skf-wg peers)" ] || fail "the peers are $(wg show skf-wg peers)"
! grep -rqF "$key" $DATA/skiff.log $DATA/nodes/2/skiff.log || fail "the key is in a log"

step "no node speaks for another, and one that tells nonsense is put right"
other=$(kubectl annotate node one-2 --overwrite "skiff.dev/wireguard-public-key=$public" --as system:node:one --as-group system:nodes 2>&1) &&
    fail "a node wrote another's key"
case $other in *'"one-2" is forbidden'*) ;; *) fail "$other" ;; esac
kubectl annotate node one skiff.dev/wireguard-public-key- --as system:node:one --as-group system:nodes >/dev/null
until_true 20 says "$public" told one

if [ -n "${ways:-}" ]; then
    step "the ways alone: what is on the wire, lies, changes by hand, another process"
    wait "$ways" || { cat /tmp/ways; fail "the ways between three nodes"; }
    ! grep SKIPPED /tmp/ways || fail "a part was left out"
fi

step "down, and nothing is left"
skiff down --data-dir $DATA >/dev/null
left=$(ip -br link | grep skf || true; ip route show table all proto 83; ip -6 route show table all proto 83)
[ -z "$left" ] || fail "left behind: $left"
VM

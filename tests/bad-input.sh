#!/usr/bin/env bash
# Wrong input and broken surroundings: each gets one clear sentence and a non-zero exit, and nothing is half done: no
# process, mount, interface, rule or cgroup stays behind, and after `skiff down` no file.
KUBECTL=${KUBECTL:-kubectl}
. "$(dirname "$0")/cluster.sh"
mkdir "$WORK/bin"

nothing_left() { # nothing_left: but files in the data folder, which the next start goes on with
    local left
    left=$(traces)
    left=$(grep -vxF "$DATA" <<<"$left" || true)
    [ -z "$left" ] || fail "left behind: $left"
}
clean() {
    "$SKIFF" down --data-dir "$DATA" >/dev/null
    local left
    left=$(traces)
    [ -z "$left" ] || fail "skiff down left: $left"
}
replaced() { # replaced PROGRAM TEXT: from now on $BROKEN finds this instead of the program
    rm -f "$WORK"/bin/*
    printf '%s\n' "$2" >"$WORK/bin/$1"
    chmod +x "$WORK/bin/$1"
}
BROKEN=(env "PATH=$WORK/bin:$PATH")
busy() { # busy KIND PORT: something else has the port, until $LAST is killed
    rm -f "$WORK/port"
    started "$WORK/port" python3 -c '
import socket, sys, time
s = socket.socket(type=getattr(socket, sys.argv[1]))
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("0.0.0.0", int(sys.argv[2])))
sys.argv[1] == "SOCK_STREAM" and s.listen()
print("ready", flush=True)
time.sleep(120)' "$1" "$2"
    until_true 10 grep -q ready "$WORK/port"
}
free() {
    kill "$LAST"
    wait "$LAST" 2>/dev/null || true
}

step "commands and flags"
refused "Usage: skiff <COMMAND>" "$SKIFF"
refused "unrecognized subcommand 'frob'" "$SKIFF" frob
refused "unexpected argument '--no-such-flag'" "$SKIFF" up --no-such-flag
refused "unexpected argument 'extra'" "$SKIFF" up extra
refused "a value is required for '--data-dir" "$SKIFF" up --data-dir
has "(Kubernetes v1.35" "$SKIFF" --version
for command in up down server agent check images token store version; do has "Usage: skiff $command" "$SKIFF" "$command" --help; done

step "values"
value() { # value TEXT FLAG VALUE
    refused "$1" "$SKIFF" server --data-dir "$DATA" "$2=$3"
    refused "invalid value '$3' for '$2" "$SKIFF" server --data-dir "$DATA" "$2=$3"
}
value "from 1 to 65535" --secure-port 0
value "from 1 to 65535" --secure-port http
value "such as 10.96.0.0/12" --service-cluster-ip-range banana
value "/28 is the smallest" --service-cluster-ip-range 10.96.0.0/30
value "/30 is the smallest" --cluster-cidr 10.244.0.0/31
value "such as 30000-32767" --service-node-port-range 5
value "DNS name" --cluster-domain "bad domain"
value "a host name or an address" --tls-san "bad san!"
value "is not in the list of known controllers" --controllers nonsense
value "unknown tls version" --tls-min-version TLS1.3
value "not supported or doesn't exist" --tls-cipher-suites RC4
value "No such file" --token-auth-file /no/such/file
value "is a folder" --token-auth-file /
value "such as https://10.0.0.1:2379" --etcd-servers not-a-url
value "others cannot reach" --advertise-address 127.0.0.1
refused "each node gets a /24 of it" "$SKIFF" server --data-dir "$DATA" --cluster-cidr 10.244.0.0/25
refused "for clusters of one family" "$SKIFF" server --data-dir "$DATA" --cluster-cidr 10.244.0.0/16,fd00::/56 --node-cidr-mask-size 22
refused "overlap" "$SKIFF" server --data-dir "$DATA" --cluster-cidr 10.96.0.0/16
refused "--etcd-keyfile" "$SKIFF" server --data-dir "$DATA" --etcd-certfile /dev/null
refused "is not a filter" "$SKIFF" server --data-dir "$DATA" --log a=b=c
refused "invalid value '0' for '--max-pods" "$SKIFF" up --data-dir "$DATA" --max-pods 0
[ ! -e "$DATA" ] || fail "a wrong value made the data folder"

step "a broken configuration file"
config() { # config TEXT CONTENT
    echo "$2" >"$WORK/config.yaml"
    refused "$1" env SKIFF_CONFIG="$WORK/config.yaml" "$SKIFF" server --data-dir "$DATA"
    refused "$WORK/config.yaml" env SKIFF_CONFIG="$WORK/config.yaml" "$SKIFF" server --data-dir "$DATA"
}
config "which is no flag" 'secure_port: 1'
config "not valid YAML" ': : ['
config "must hold a map of flags" '- secure-port'
config "invalid value 'abc' for '--secure-port" 'secure-port: abc'
config "to a map" 'secure-port: {a: 1}'
refused "cannot read /no/such/file" env SKIFF_CONFIG=/no/such/file "$SKIFF" check

step "no root"
for command in up down agent; do
    refused "needs root" setpriv --reuid=65534 --clear-groups "$SKIFF" $command --data-dir /tmp $([ $command != agent ] || echo --kubeconfig /dev/null)
done
refused "Permission denied" setpriv --reuid=65534 --clear-groups "$SKIFF" server --data-dir /root/skiff
refused "not root" setpriv --reuid=65534 --clear-groups "$SKIFF" check

step "data folders that are not ours, of a newer version, not folders or not writable"
mkdir -p "$WORK/strange" "$WORK/newer" "$WORK/fixed"
echo precious >"$WORK/strange/file"
refused "not a data folder of skiff" "$SKIFF" up --data-dir "$WORK/strange"
refused "not a data folder of skiff" "$SKIFF" down --data-dir "$WORK/strange"
[ -e "$WORK/strange/file" ]
refused "is not a folder" "$SKIFF" server --data-dir "$WORK/strange/file"
echo 99 >"$WORK/newer/version"
refused "has format 99" "$SKIFF" up --data-dir "$WORK/newer"
refused "has format 99" "$SKIFF" down --data-dir "$WORK/newer"
mount -t tmpfs -o ro tmpfs "$WORK/fixed"
refused "choose another --data-dir" "$SKIFF" server --data-dir "$WORK/fixed"
refused "can only be read" "$SKIFF" check --data-dir "$WORK/fixed"
umount "$WORK/fixed"
has "nothing to do" "$SKIFF" down --data-dir "$WORK/none"

step "images, store and token without a cluster"
refused "no container engine runs" "$SKIFF" images list --data-dir "$WORK/none"
refused "would be empty" "$SKIFF" images build --tag a --output "$WORK/x"
refused "not the name of an image" "$SKIFF" images build --tag "BAD TAG" --busybox --output "$WORK/x"
refused "SOURCE=/PATH" "$SKIFF" images build --tag a --file /etc/passwd=relative --output "$WORK/x"
refused "cannot read /no/such" "$SKIFF" images build --tag a --file /no/such=/x --output "$WORK/x"
refused "holds no store" "$SKIFF" store status --data-dir "$WORK/none"
refused "cannot read $WORK/none" "$SKIFF" store restore "$WORK/none" --data-dir "$WORK/r"
[ ! -e "$WORK/r" ] || fail "a mistyped snapshot made the data folder"
refused "not that of a snapshot" "$SKIFF" store restore /etc/passwd --data-dir "$WORK/r"
refused "say where the etcd is" "$SKIFF" store to-etcd --data-dir "$WORK/none"
refused "holds no store" "$SKIFF" store to-etcd --data-dir "$WORK/none" --etcd-servers http://127.0.0.1:1
refused "does etcd run" "$SKIFF" store from-etcd --data-dir "$WORK/e" --etcd-servers http://127.0.0.1:1
[ ! -e "$WORK/e" ] || fail "an etcd that is not there made the data folder"
refused "no control plane runs" "$SKIFF" token create --data-dir "$WORK/none"

step "ports in use"
busy SOCK_STREAM "$PORT"
refused "choose another with --secure-port" "$SKIFF" "${UP[@]}"
refused "choose another port with --secure-port" "$SKIFF" server --data-dir "$DATA" --secure-port "$PORT"
free
refused "choose another with --bind-address" "$SKIFF" server --data-dir "$DATA" --secure-port "$PORT" --bind-address 203.0.113.7
busy SOCK_STREAM 20250
refused "choose another with --kubelet-port" "$SKIFF" "${UP[@]}"
free
nothing_left
busy SOCK_DGRAM 20053
refused "choose another port with --dns-port" "$SKIFF" "${UP[@]}"
free
nothing_left
clean

step "missing and broken programs"
refused "does not answer" "$SKIFF" "${UP[@]}" --container-runtime-endpoint unix:///no/such.sock
if grep -q "FAIL  WireGuard" <<<"$("$SKIFF" check --data-dir "$DATA" --pod-network wireguard || true)"; then
    refused "modprobe wireguard" "$SKIFF" "${UP[@]}" --pod-network wireguard
    nothing_left
fi
refused "install the package containerd" env PATH=/nowhere "$SKIFF" check --data-dir "$DATA"
replaced containerd $'#!/bin/sh\necho "I am broken" >&2; exit 3'
refused "containerd did not start: I am broken" "${BROKEN[@]}" "$SKIFF" "${UP[@]}"
nothing_left
replaced containerd garbage
refused "starting containerd: Exec format error" "${BROKEN[@]}" "$SKIFF" "${UP[@]}"
nothing_left
replaced nft $'#!/bin/sh\necho "no such luck" >&2; exit 3'
refused "nft: no such luck" "${BROKEN[@]}" "$SKIFF" "${UP[@]}"
nothing_left
refused "run \`skiff down\` again" "${BROKEN[@]}" "$SKIFF" down --data-dir "$DATA"
clean

step "a full disk"
mkdir -p "$DATA"
mount -t tmpfs -o size=64k tmpfs "$DATA"
refused "is full; make room there" "$SKIFF" server --data-dir "$DATA" --secure-port "$PORT"
refused "at least 100 MiB are needed" "$SKIFF" "${UP[@]}"
"$SKIFF" down --data-dir "$DATA" >/dev/null
mountpoint -q "$DATA" || fail "down unmounted the user's disk"
[ -z "$(ls -A "$DATA")" ] || fail "down left files on the user's disk"
umount "$DATA"
rmdir "$DATA"

step "a damaged store is left as it is; another node and a second server are refused"
"$SKIFF" "${UP[@]}" >/dev/null
refused "a node of skiff runs on this machine already (process $(cat "$DATA/skiff.pid"))" \
    "$SKIFF" up --data-dir "$WORK/second" --secure-port 16444 --kubelet-port 20251 --dns-port 20054
refused "in use by a running skiff (process $(cat "$DATA/skiff.pid"))" "$SKIFF" server --data-dir "$DATA" --secure-port 16444
k create configmap kept --from-literal=a=b >/dev/null
kill -9 "$(cat "$DATA/skiff.pid")"
log=$(ls "$DATA"/store/log-* | sed -n 1p)
cp "$log" "$WORK/log"
printf XXXXXXXX | dd of="$log" bs=1 seek=20000 conv=notrunc 2>/dev/null
cp "$log" "$WORK/damaged"
refused "is damaged at byte" "$SKIFF" "${UP[@]}"
for command in verify status; do refused "is damaged at byte" "$SKIFF" store $command --data-dir "$DATA"; done
cmp "$log" "$WORK/damaged" || fail "a damaged file was changed"
cp "$WORK/log" "$log"
"$SKIFF" "${UP[@]}" >/dev/null
has kept k get configmap kept
clean

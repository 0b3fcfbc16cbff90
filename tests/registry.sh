#!/usr/bin/env bash
# A real registry (Debian's docker-registry, only unpacked) with TLS and a password, and two nodes: pull secrets, and content of images
# that one node has from another (`--embedded-registry`). The registry's own log says who asked it for what.
. "$(dirname "$0")/cluster.sh"
. "$(dirname "$0")/vm.sh"
ADDRESS=192.168.254.1 # that of the first node, where the nodes of one machine meet
forwarding=$(</proc/sys/net/ipv4/ip_forward)
leave() {
    local code=$?
    [ "$code" = 0 ] || { echo "--- the end of registry.log" >&2; tail -20 "$WORK/registry.log" >&2 || true; }
    echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
    set +e
    (exit "$code")
    on_exit
}
trap leave EXIT
REPOSITORY=team/app

registry=$(vm_tool docker-registry usr/bin/docker-registry) || {
    echo "SKIPPED: a registry is needed, and cannot be had: ${VM_LACKS:-docker-registry}"
    exit 0
}

# A layer of its own, so that nothing of it is on any node: busybox, and what nobody else has.
mkdir -p "$WORK/layer/bin"
cp "$(command -v busybox)" "$WORK/layer/bin/"
head -c 4000000 /dev/urandom >"$WORK/layer/unique"
tar -C "$WORK/layer" --owner=0 --group=0 -cf "$WORK/layer.tar" .
digest() { echo "sha256:$(sha256sum "$1" | cut -d' ' -f1)"; }
LAYER=$(digest "$WORK/layer.tar")
printf '{"architecture":"%s","os":"linux","rootfs":{"type":"layers","diff_ids":["%s"]},"config":{}}' \
    "$(dpkg --print-architecture)" "$LAYER" >"$WORK/config.json"
CONFIG=$(digest "$WORK/config.json")
TYPE=application/vnd.oci.image
printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","config":{"mediaType":"%s.config.v1+json","digest":"%s","size":%d},"layers":[{"mediaType":"%s.layer.v1.tar","digest":"%s","size":%d}]}' \
    $TYPE $TYPE "$CONFIG" "$(stat -c %s "$WORK/config.json")" $TYPE "$LAYER" "$(stat -c %s "$WORK/layer.tar")" >"$WORK/manifest.json"

# The password is this run's own.
PASSWORD=$(head -c 12 /dev/urandom | base64 | tr -d '+/=')
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=registry \
    -addext "subjectAltName=IP:$ADDRESS,IP:127.0.0.1" -keyout "$WORK/key.pem" -out "$WORK/ca.pem" 2>/dev/null
python3 -c 'import crypt, sys; print("puller:" + crypt.crypt(sys.argv[1], crypt.mksalt(crypt.METHOD_BLOWFISH)))' "$PASSWORD" \
    2>/dev/null >"$WORK/htpasswd"
cat >"$WORK/registry.yml" <<YAML
version: 0.1
log: {accesslog: {disabled: false}, level: info}
storage: {filesystem: {rootdirectory: $WORK/images}}
http: {addr: ':443', secret: $PASSWORD, tls: {certificate: $WORK/ca.pem, key: $WORK/key.pem}}
auth: {htpasswd: {realm: test, path: $WORK/htpasswd}}
YAML
started "$WORK/registry.log" "$registry" serve "$WORK/registry.yml"
ask() { curl -sSf --cacert "$WORK/ca.pem" -u "puller:$PASSWORD" "$@"; }
here=https://127.0.0.1/v2
until_true 20 ask $here/
store() { # FILE DIGEST
    local to
    to=$(ask -X POST -D - -o /dev/null "$here/$REPOSITORY/blobs/uploads/" | tr -d '\r' | sed -n 's/^[Ll]ocation: //p')
    ask -X PUT -H 'Content-Type: application/octet-stream' --data-binary "@$1" "$to&digest=$2" >/dev/null
}
store "$WORK/layer.tar" "$LAYER"
store "$WORK/config.json" "$CONFIG"
ask -X PUT -H "Content-Type: $TYPE.manifest.v1+json" --data-binary "@$WORK/manifest.json" "$here/$REPOSITORY/manifests/1" >/dev/null

# sent PATH: how often the registry has sent what is there.
sent() { grep -c "\"GET /v2/$REPOSITORY/$1.* HTTP/[0-9.]*\" 200" "$WORK/registry.log" || true; }

step "two nodes that share images"
before=$(all_traces)
SSL_CERT_FILE=$WORK/ca.pem "$SKIFF" "${UP[@]}" --nodes 2 --node-name one --embedded-registry >/dev/null
k create secret docker-registry pull --docker-server=$ADDRESS --docker-username=puller --docker-password="$PASSWORD" >/dev/null
pod() { # NAME NODE SECRETS [POLICY]
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  nodeName: $2
  terminationGracePeriodSeconds: 0
  imagePullSecrets: [$3]
  containers:
    - {name: c, image: '$ADDRESS/$REPOSITORY:1', imagePullPolicy: ${4:-IfNotPresent}, command: [/bin/busybox, sleep, '3600']}
YAML
}

step "the first node pulls with the Pod's secret"
pod a one '{name: pull}'
k wait --for=condition=Ready pod/a --timeout=60s >/dev/null
[ "$(sent "blobs/$LAYER")" = 1 ] || fail "the registry has sent the layer $(sent "blobs/$LAYER") times"

step "the second one has the layer from the first, and asks the registry no more than whether it may"
until_true 60 has "$ADDRESS/$REPOSITORY" k get node one -o 'jsonpath={.status.images[*].names[*]}'
pod b one-2 '{name: pull}'
k wait --for=condition=Ready pod/b --timeout=60s >/dev/null
[ "$(sent "blobs/$LAYER")" = 1 ] || fail "the registry has sent the layer $(sent "blobs/$LAYER") times"
same() { k exec "$1" -- /bin/busybox sha256sum /unique | cut -d' ' -f1; }
[ "$(same a)" = "$(sha256sum "$WORK/layer/unique" | cut -d' ' -f1)" ] && [ "$(same b)" = "$(same a)" ] || fail "the content"

step "without the secret nobody has it: not from the registry, not from another node, and not from the own"
refuses() { k get events --field-selector "involvedObject.name=$1,reason=Failed" -o 'jsonpath={.items[*].message}' | grep -qi 'authoriz\|credential'; }
pod c one '' Always
pod d one-2 '' Always
pod e one-2 ''
for name in c d e; do
    until_true 60 refuses "$name"
    has '"reason":"' k get pod "$name" -o 'jsonpath={.status.containerStatuses[0].state.waiting}'
done

step "a Pod and a user are told nothing"
for path in v2/ "v2/$REPOSITORY/blobs/$LAYER?ns=$ADDRESS"; do
    refused Forbidden k get --raw "/api/v1/nodes/one/proxy/$path"
    [ "$(curl -sk -o /dev/null -w '%{http_code}' "https://$ADDRESS:20250/$path")" = 401 ] || fail "$path without a certificate"
done

step "down, and nothing is left"
"$SKIFF" down --data-dir "$DATA" >/dev/null
[ "$(all_traces)" = "$before" ] || fail "left behind: $(all_traces)"

#!/usr/bin/env bash
# Wrong input: each gets one clear sentence and a non-zero exit, and nothing is half done.
KUBECTL=${KUBECTL:-kubectl}
. "$(dirname "$0")/cluster.sh"

step "flags"
refused "unexpected argument '--no-such-flag'" "$SKIFF" up --no-such-flag
refused "invalid value" "$SKIFF" up --service-cluster-ip-range=banana

step "no root"
refused "root" setpriv --reuid=65534 --clear-groups "$SKIFF" up --data-dir "$WORK/d"

step "a port in use"
python3 -c 'import socket,time; s=socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("0.0.0.0", '"$PORT"')); s.listen(); print("ready", flush=True); time.sleep(60)' >"$WORK/port" &
holder=$!
until_true 10 grep -q ready "$WORK/port"
refused "--secure-port" "$SKIFF" "${UP[@]}"
kill $holder
wait $holder 2>/dev/null || true

step "an engine that is not there"
refused "does not answer" "$SKIFF" "${UP[@]}" --container-runtime-endpoint unix:///no/such.sock
refused "install the package containerd" env PATH=/nowhere "$SKIFF" check --data-dir "$DATA"

step "data folders that are not ours, or of a newer version"
mkdir -p "$WORK/strange" "$WORK/newer"
echo precious >"$WORK/strange/file"
refused "not a data folder of skiff" "$SKIFF" up --data-dir "$WORK/strange"
refused "not a data folder of skiff" "$SKIFF" down --data-dir "$WORK/strange"
[ -e "$WORK/strange/file" ]
echo 99 >"$WORK/newer/version"
refused "has format 99" "$SKIFF" up --data-dir "$WORK/newer"

step "a broken configuration file"
echo 'secure_port: 1' >"$WORK/config.yaml"
refused "which is no flag" env SKIFF_CONFIG="$WORK/config.yaml" "$SKIFF" check
echo ': : [' >"$WORK/config.yaml"
refused "not valid YAML" env SKIFF_CONFIG="$WORK/config.yaml" "$SKIFF" check

rm -rf "$DATA"

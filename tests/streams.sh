#!/usr/bin/env bash
# Sixteen megabytes through every stream, over WebSocket and over SPDY: what arrives is what was sent, and ends say so.
. "$(dirname "$0")/cluster.sh"
# Logs of more than ten megabytes are put aside now and then, and `kubectl logs` shows the last file.
printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerLogMaxSize: 100Mi\n' >"$WORK/kubelet.yaml"
"$SKIFF" "${UP[@]}" --kubelet-config "$WORK/kubelet.yaml" >/dev/null
SIZE=$((16 * 1024 * 1024))
head -c $SIZE /dev/urandom >"$WORK/data"
SUM=$(md5sum <"$WORK/data" | cut -d' ' -f1)
same() { # same WHAT FILE
    [ "$(md5sum <"$2" | cut -d' ' -f1)" = "$SUM" ] || fail "$1: $(stat -c %s "$2") bytes of $SIZE, or others"
}
over() { # over PROTOCOL COMMAND...: kubectl with that protocol
    local spdy=$1
    shift
    [ "$spdy" = SPDY ] && set -- env KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false KUBECTL_PORT_FORWARD_WEBSOCKETS=false "$@"
    HOME=$WORK "$@"
}

k apply -f - >/dev/null <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: skiff.local/busybox:1
    command:
    - sh
    - -c
    - |
      mkdir -p /www/cgi-bin
      printf '#!/bin/sh\nprintf "Content-Type: text/plain\\r\\n\\r\\n"; head -c "$CONTENT_LENGTH" | md5sum\n' >/www/cgi-bin/sum
      chmod +x /www/cgi-bin/sum
      exec httpd -f -p 8080 -h /www
YAML
k wait --for=condition=Ready pod/web --timeout=60s >/dev/null
k expose pod web --port=80 --target-port=8080 >/dev/null

for protocol in WebSocket SPDY; do
    step "exec over $protocol: through a command and back, up alone, down alone, exit codes"
    over $protocol "$KUBECTL" exec -i web -- cat <"$WORK/data" >"$WORK/got"
    same exec "$WORK/got"
    # The shell keeps its output open: containerd 1.6 takes no more input once a command has closed it.
    over $protocol "$KUBECTL" exec -i web -- sh -c 'cat >/www/up; true' <"$WORK/data"
    has "$SUM" k exec web -- md5sum /www/up
    over $protocol "$KUBECTL" exec web -- cat /www/up >"$WORK/got"
    same "exec without input" "$WORK/got"
    code=0
    over $protocol "$KUBECTL" exec -i web -- sh -c 'cat >/dev/null; exit 7' <"$WORK/data" 2>/dev/null || code=$?
    [ $code = 7 ] || fail "the exit code is $code"

    step "attach over $protocol"
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: "cat-${protocol,,}"}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: "skiff.local/busybox:1", stdin: true, stdinOnce: true, command: [sh, -c, "tee /tmp/in; md5sum </tmp/in >&2"]}]
YAML
    k wait --for=condition=Ready "pod/cat-${protocol,,}" --timeout=60s >/dev/null
    over $protocol "$KUBECTL" attach -i "cat-${protocol,,}" <"$WORK/data" >"$WORK/got" 2>"$WORK/said" || true
    same attach "$WORK/got"
    grep -q "$SUM" "$WORK/said" || fail "attach: what came up is not what was sent: $(cat "$WORK/said")"

    step "a terminal over $protocol follows its window"
    over $protocol python3 - "$KUBECTL" exec -it web -- sh -c 'while :; do stty size; sleep 0.1; done' <<'PYTHON'
import fcntl, os, pty, struct, sys, termios
def sized(terminal, rows, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
pid, terminal = pty.fork()
if pid == 0:
    sized(0, 41, 101)
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
def until(text):
    global seen
    while text not in seen:
        seen += os.read(terminal, 4096)
until(b"41 101")
sized(terminal, 50, 120)
until(b"50 120")
os.write(terminal, b"\x03")
try:
    while os.read(terminal, 4096):
        pass
except OSError:
    pass
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert code == 130, code
PYTHON

    step "port-forward over $protocol, both ways"
    started "$WORK/forward.log" env HOME="$WORK" KUBECTL_PORT_FORWARD_WEBSOCKETS="$([ $protocol = SPDY ] && echo false || echo true)" \
        "$KUBECTL" port-forward pod/web 18081:8080
    until_true 20 grep -q Forwarding "$WORK/forward.log"
    curl -s --max-time 60 http://127.0.0.1:18081/up >"$WORK/got"
    same "port-forward, down" "$WORK/got"
    has "$SUM" curl -s --max-time 60 --data-binary @"$WORK/data" -H 'Content-Type: a/b' http://127.0.0.1:18081/cgi-bin/sum
    ended "$LAST" || true
done

step "cp, both ways"
k cp "$WORK/data" web:/tmp/data
k cp web:/tmp/data "$WORK/got" >/dev/null
same cp "$WORK/got"

step "logs"
base64 -w 199 "$WORK/data" >"$WORK/lines"
k run lines --image=skiff.local/busybox:1 --restart=Never -- sh -c 'wget -qO- "http://web/up" | base64 -w 199' >/dev/null
k wait --for=jsonpath='{.status.phase}'=Succeeded pod/lines --timeout=90s >/dev/null
k logs lines >"$WORK/got"
cmp "$WORK/lines" "$WORK/got" || fail "logs: $(stat -c %s "$WORK/got") bytes of $(stat -c %s "$WORK/lines")"

step "Python's client: exec, port-forward, log and watch over its WebSockets"
if python=$("$(dirname "$0")/python-client.sh"); then
    "$python" "$(dirname "$0")/other-clients/streams.py" "$WORK/data"
else
    echo "SKIPPED: Python's client could not be fetched"
fi

step "proxies of Pods and Services, both ways"
started "$WORK/proxy.log" env HOME="$WORK" "$KUBECTL" proxy --port=18082
until_true 20 curl -s http://127.0.0.1:18082/version
for path in pods/web:8080 services/web:80; do
    at=http://127.0.0.1:18082/api/v1/namespaces/default/$path/proxy
    curl -s --max-time 60 "$at/up" >"$WORK/got"
    same "proxy of $path" "$WORK/got"
    has "$SUM" curl -s --max-time 60 --data-binary @"$WORK/data" -H 'Content-Type: a/b' "$at/cgi-bin/sum"
done

"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"

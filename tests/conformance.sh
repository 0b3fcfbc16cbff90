#!/usr/bin/env bash
# Runs upstream's own end-to-end tests against a cluster of skiff, and tells which failed:
#   SKIFF=… KUBECTL=… tests/conformance.sh [FOCUS [SKIP]]
# FOCUS and SKIP are patterns of names; without them the conformance tests run that may run beside each other. Those that may not, and want
# two nodes: CLUSTER=2 NODES=1 tests/conformance.sh '\[Serial\].*\[Conformance\]' ''. The tests are those of
# v1.20, the newest release whose whole source is in Debian, built with the Go of its time: half an hour once, on two cores. So a person judges
# what is printed: some tests ask for what upstream no longer does either (`KNOWN` below). `run.sh` does not run this.
. "$(dirname "$0")/cluster.sh"
. "$(dirname "$0")/vm.sh"
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE=${SKIFF_TEST_CACHE:-/var/cache/skiff-ci}/e2e
FOCUS=${1:-'\[Conformance\]'}
SKIP=${2-'\[Serial\]|\[Slow\]|\[Disruptive\]'}
SOURCE=http://deb.debian.org/debian/pool/main/k/kubernetes/kubernetes_1.20.5%2breally1.20.2.orig.tar.gz
SUM=b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc
# Clients and servers have other words by now: kubectl's version, who refuses an unknown field, the note of an event that nobody may change, tokens
# that are no Secrets, templates without a creationTimestamp of null. The images here have another shell, and no program that becomes root.
KNOWN='works for CRD with validation schema|Kubectl version should check|an event can be fetched, patched, deleted, and listed'
KNOWN+='|should mount an API token into pods|opting out of API token automount|update strategy is RollingUpdate'
KNOWN+='|should not write to root filesystem|should not allow privilege escalation when false'

build() {
    [ ! -e "$CACHE/ready" ] || return 0
    rm -rf "$CACHE"
    mkdir -p "$CACHE/path/src/k8s.io"
    vm_unpack "$CACHE/go" golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev
    local go=$CACHE/go/usr/lib/go-1.19 root=$CACHE/path/src/k8s.io/kubernetes link
    # Links of the packages lead where they are installed.
    for link in api misc src test; do ln -sfn "$CACHE/go/usr/share/go-1.19/$link" "$go/$link"; done
    curl -sSf -o "$CACHE/source.tar.gz" "$SOURCE"
    echo "$SUM  $CACHE/source.tar.gz" | sha256sum --check --quiet
    mkdir "$root"
    tar -C "$root" --strip-components 1 -xzf "$CACHE/source.tar.gz"
    # The library of that time crashes with a Go that is newer than it.
    local reflect=vendor/github.com/modern-go/reflect2
    rm -rf "${root:?}/$reflect"
    cp -r "$CACHE/go/usr/share/gocode/src/github.com/modern-go/reflect2" "$root/$reflect"
    rm -f "$root/$reflect/go.mod"
    # Files are read from the source instead of being built in.
    printf '%s\n' 'package generated' 'import "fmt"' \
        'func Asset(name string) ([]byte, error) { return nil, fmt.Errorf("no asset %s", name) }' \
        'func AssetNames() []string { return nil }' >"$root/test/e2e/generated/bindata.go"
    # Accounts have had no Secrets of their own since v1.24.
    sed -i '/^func serviceAccountHasSecrets/,/^}/s/len(t.Secrets) > 0/t != nil/' "$root/test/e2e/framework/util.go"
    (
        cd "$root"
        export GOROOT=$go GOPATH=$CACHE/path GOCACHE=$CACHE/build GO111MODULE=off CGO_ENABLED=0
        "$go/bin/go" test -c -o "$CACHE/e2e.test" k8s.io/kubernetes/test/e2e
        "$go/bin/go" build -o "$CACHE/agnhost" k8s.io/kubernetes/test/images/agnhost
        "$go/bin/go" build -o "$CACHE/sample-apiserver" k8s.io/kubernetes/vendor/k8s.io/sample-apiserver
        "$go/bin/go" build -o "$CACHE/ginkgo" k8s.io/kubernetes/vendor/github.com/onsi/ginkgo/ginkgo
    )
    images
    rm -rf "$CACHE/build" "$CACHE/go" "$CACHE/source.tar.gz" "$CACHE/layer" "$CACHE/tools"
    touch "$CACHE/ready"
}

# put PROGRAM...: programs with the libraries that they need.
put() {
    local program library
    for program in "$@"; do
        cp -L "$program" "$CACHE/layer/bin/"
        for library in $(LD_LIBRARY_PATH=$CACHE/tools/usr/lib/x86_64-linux-gnu ldd "$program" 2>/dev/null | grep -o '/[^ ]*'); do
            mkdir -p "$CACHE/layer/$(dirname "$library")"
            cp -Lf "$library" "$CACHE/layer/$library"
        done
    done
}

# image NAME CONFIG TAG...: an archive of the one layer.
image() {
    local name=$1 config=$2 work=$CACHE/archive tags
    shift 2
    tags=$(printf '"%s",' "$@")
    printf '{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"config":%s}' "$LAYER" "$config" >"$work/config.json"
    printf '[{"Config":"config.json","RepoTags":[%s],"Layers":["layer.tar"]}]' "${tags%,}" >"$work/manifest.json"
    tar -C "$work" -cf "$CACHE/images/$name.tar" .
}

# The images of the tests by their names, out of this machine's programs.
images() {
    local layer=$CACHE/layer path='"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]' applet
    vm_unpack "$CACHE/tools" bind9-dnsutils bind9-libs netcat-openbsd libbsd0 libmd0 libjemalloc2 libuv1 libmaxminddb0 liblmdb0 \
        libprotobuf-c1 libfstrm0 libxml2 libicu72 libnghttp2-14 libjson-c5 libedit2 libkrb5-3 libgssapi-krb5-2 libk5crypto3 libkrb5support0
    mkdir -p "$layer"/{bin,etc,lib/x86_64-linux-gnu,proc,root,sys,dev,tmp,uploads,usr/local/{apache2/htdocs,bin},var/run} "$CACHE/archive" "$CACHE/images"
    chmod 1777 "$layer/tmp"
    cp -L "$CACHE"/tools/usr/lib/x86_64-linux-gnu/*.so* "$layer/lib/x86_64-linux-gnu/"
    # The tests name these programs; a server ends when it is asked to, which httpd as the first process would not.
    put $(command -v busybox bash dash curl getent ss ip) "$CACHE/tools/usr/bin/dig" "$CACHE/tools/bin/nc.openbsd"
    for applet in $(busybox --list); do [ -e "$layer/bin/$applet" ] || ln -s busybox "$layer/bin/$applet"; done
    # A shell of busybox would take its own applets for the programs.
    ln -sf dash "$layer/bin/sh"
    ln -sf nc.openbsd "$layer/bin/nc"
    cp "$CACHE/agnhost" "$layer/agnhost"
    ln -s agnhost "$layer/agnhost-2"
    put "$CACHE/sample-apiserver" "$(command -v etcd)"
    ln -s /bin/etcd "$layer/usr/local/bin/etcd"
    cp "$CACHE"/path/src/k8s.io/kubernetes/test/images/agnhost/porter/localhost.* "$layer/"
    printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$layer/etc/passwd"
    echo 'root:x:0:' >"$layer/etc/group"
    echo ok >"$layer/usr/local/apache2/htdocs/index.html"
    cat >"$layer/bin/serve" <<'SH'
#!/bin/sh
cd /usr/local/apache2/htdocs
[ -z "$1" ] || echo "{\"image\": \"$1.jpg\"}" >data.json
busybox httpd -f -p 80 &
trap exit TERM
wait
SH
    # The one of a static busybox crashes beside another C library.
    rm "$layer/bin/wget"
    cat >"$layer/bin/wget" <<'SH'
#!/bin/sh
for url; do
    case $url in --post-data=*) data=${url#*=} ;; esac
done
exec curl -sS --max-time 5 ${data:+--data-binary "$data"} "$url"
SH
    chmod +x "$layer/bin/serve" "$layer/bin/wget"
    tar -C "$layer" --owner=0 --group=0 -cf "$CACHE/archive/layer.tar" .
    LAYER=$(sha256sum "$CACHE/archive/layer.tar" | cut -d' ' -f1)
    image agnhost "{$path,\"Entrypoint\":[\"/agnhost\"],\"Cmd\":[\"pause\"]}" k8s.gcr.io/e2e-test-images/agnhost:2.21 k8s.gcr.io/pause:3.2
    image busybox "{$path,\"Cmd\":[\"sh\"]}" docker.io/library/busybox:1.29 docker.io/library/perl:5.26 \
        gcr.io/kubernetes-e2e-test-images/jessie-dnsutils:1.0 gcr.io/kubernetes-e2e-test-images/ipc-utils:1.0
    image servers "{$path,\"Cmd\":[\"serve\"]}" docker.io/library/httpd:2.4.38-alpine docker.io/library/httpd:2.4.39-alpine \
        docker.io/library/nginx:1.14-alpine docker.io/library/nginx:1.15-alpine docker.io/library/redis:5.0.5-alpine
    for name in nautilus kitten; do
        image $name "{$path,\"Cmd\":[\"serve\",\"$name\"]}" "gcr.io/kubernetes-e2e-test-images/$name:1.0"
    done
    image apiserver "{\"Entrypoint\":[\"/bin/sample-apiserver\"]}" gcr.io/kubernetes-e2e-test-images/sample-apiserver:1.17 k8s.gcr.io/etcd:3.4.13-0
    image nonroot "{\"User\":\"1234\",\"Entrypoint\":[\"/bin/id\",\"-u\"]}" gcr.io/kubernetes-e2e-test-images/nonroot:1.0
    rm -r "$CACHE/archive"
}

build
mkdir -p "$DATA/images"
cp "$CACHE"/images/*.tar "$DATA/images/"
# The images are in no registry: a disk that fills up must not cost one of them.
cat >"$WORK/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
imageGCHighThresholdPercent: 100
YAML
"$SKIFF" "${UP[@]}" --nodes "${CLUSTER:-1}" --kubelet-config "$WORK/kubelet.yaml" >/dev/null
LOG=${LOG:-/tmp/skiff-conformance.log}
# How it ended is in the log, test by test.
"$CACHE/ginkgo" -nodes="${NODES:-6}" -noColor -stream=false "$CACHE/e2e.test" -- --kubeconfig="$KUBECONFIG" --provider=skeleton \
    --repo-root="$CACHE/path/src/k8s.io/kubernetes" --kubectl-path="$KUBECTL" --disable-log-dump=true \
    --ginkgo.focus="$FOCUS" --ginkgo.skip="$SKIP" >"$LOG" 2>&1 || true
ended() { grep -aoE "\"msg\":\"$1 .*\",\"total\"" "$LOG" | sed "s/\"msg\":\"$1 //; s/\",\"total\"//" | sort -u; }
ended FAILED | grep -Ev "$KNOWN" || true
echo "$(ended PASSED | wc -l) passed, $(ended FAILED | wc -l) failed, of which $(ended FAILED | grep -cE "$KNOWN" || true) ask for what upstream does no longer; all is told in $LOG"

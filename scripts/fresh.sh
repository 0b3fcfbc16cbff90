#!/usr/bin/env bash
# Tries the project on a new Debian: a bare root filesystem with nothing in it but make, the Rust toolchain and this
# checkout, in mounts that only these processes see.
#
#   scripts/fresh.sh check   installs what scripts/install.sh says and builds every crate that has a build script
#   scripts/fresh.sh readme  runs both commands of the README, `make run` and `make test`
#
# How this machine reaches package registries (apt's settings, certificates, proxies, cargo's configuration) counts
# there too. A root filesystem, packages and crates that were fetched before are used again; nothing depends on them.
set -euo pipefail
cd "$(dirname "$0")/.."
CACHE=${SKIFF_CI_CACHE:-/var/cache/skiff-ci}

skipped() {
    echo "SKIPPED: a new Debian is not tried here: $*"
    exit 0
}

# The settings of this machine that a command there is to have.
passed_on() {
    env | grep -iE '^((https?|ftp|all|no)_proxy|[A-Z0-9_]*(SSL|CERT|_CA_|CAINFO)[A-Z0-9_]*|CARGO_(HTTP|NET|REGISTR)[A-Z0-9_]*)=' || true
}

# make_root FILE: a tar file with the distribution's smallest system.
make_root() {
    command -v mmdebstrap >/dev/null || apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null; } || return 1
    local sources=() file suite
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        [ -s "$file" ] && sources+=("$file")
    done
    suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
    apt-config dump Acquire >"$WORK/apt.conf"
    mmdebstrap --quiet --variant=minbase --include=make,ca-certificates --aptopt="$WORK/apt.conf" \
        "$suite" "$1" "${sources[@]}"
}

# Copies files and folders to the same place in the new root.
take_along() {
    local path
    for path in "$@"; do
        [ -e "$path" ] || continue
        mkdir -p "$ROOT$(dirname "$path")"
        rm -rf "${ROOT:?}$path"
        cp -aL "$path" "$ROOT$path" 2>/dev/null || cp -rL "$path" "$ROOT$path" 2>/dev/null || true
    done
}

prepare_root() {
    local age
    mkdir -p "$CACHE/archives"
    local tar="$CACHE/root.tar"
    # An old one would have to fetch what changed since.
    age=$(find "$tar" -mtime -14 2>/dev/null || true)
    if [ -z "$age" ] || ! tar -xf "$tar" -C "$ROOT" 2>/dev/null; then
        rm -f "$tar"
        find "$ROOT" -mindepth 1 -delete
        make_root "$WORK/root.tar" || skipped "the root filesystem could not be made (is the package registry reached?)"
        tar -xf "$WORK/root.tar" -C "$ROOT"
        mv "$WORK/root.tar" "$tar"
    fi
    take_along /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/preferences.d /etc/apt/keyrings \
        /etc/apt/trusted.gpg.d /etc/apt/auth.conf.d /usr/share/keyrings /usr/local/share/ca-certificates \
        /etc/ssl/certs /etc/resolv.conf /etc/hosts
    apt-config dump Acquire >"$ROOT/etc/apt/apt.conf.d/99-as-outside"
    # The tests look for a kubectl there; no package of the distribution is new enough.
    take_along "${SKIFF_TEST_CACHE:-/var/cache/skiff-ci}/kubectl-1.35"
    local value
    while IFS= read -r value; do
        value=${value#*=}
        case $value in /*) [ -f "$value" ] && take_along "$value" ;; esac
    done < <(passed_on)
    mkdir -p "$ROOT"/{src,rust,cargo/registry,old}
    git ls-files -z --cached --others --exclude-standard | xargs -0 -r ls -d 2>/dev/null | tar -cf - -T - | tar -xf - -C "$ROOT/src"
    local config
    for config in config.toml config; do
        [ -f "${CARGO_HOME:-$HOME/.cargo}/$config" ] && cp "${CARGO_HOME:-$HOME/.cargo}/$config" "$ROOT/cargo/"
    done
    return 0
}

# Goes into the new root, which is a mount of its own: the container engine wants to leave it again in the same way.
enter() {
    local sysroot registry=${CARGO_HOME:-$HOME/.cargo}/registry
    sysroot=$(rustc --print sysroot)
    mount --make-rprivate /
    mount --bind "$ROOT" "$ROOT"
    mount --rbind /dev "$ROOT/dev"
    mount --rbind /sys "$ROOT/sys"
    mount -t proc proc "$ROOT/proc"
    mount -t tmpfs tmpfs "$ROOT/run"
    mount --bind "$sysroot" "$ROOT/rust"
    mount --bind "$CACHE/archives" "$ROOT/var/cache/apt/archives"
    [ -d "$registry" ] && mount --bind "$registry" "$ROOT/cargo/registry"
    local settings=()
    mapfile -t settings < <(passed_on)
    cd "$ROOT"
    pivot_root . old
    umount -l /old
    mount --make-rshared /
    exec env -i "${settings[@]}" HOME=/root CARGO_HOME=/cargo CARGO_TARGET_DIR=/target TERM=dumb \
        PATH=/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        /bin/bash -euo pipefail -c "cd /src; $1"
}

# The packages that have a build script, with all that they need: what these look for is what a new machine may lack.
CHECK='
scripts/install.sh
[ -z "$(scripts/install.sh)" ] || { echo "scripts/install.sh is not content with what it installed" >&2; exit 1; }
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0
host=$(rustc -vV | sed -n "s/^host: //p")
# In the metadata each package begins with name, version and id; its targets follow.
cargo metadata --format-version 1 --locked --filter-platform "$host" |
    grep -oE "\{\"name\":\"[^\"]+\",\"version\":\"[^\"]+\",\"id\":\"[^\"]+\"|\"kind\":\[\"custom-build\"\]" |
    awk -F\" "/custom-build/ { print package } { package = \$4 \"@\" \$8 }" | sort -u >/run/scripted
# Those that only macros and other build scripts need are built with these, and cannot be asked for.
cargo tree --workspace --locked -e normal,no-proc-macro --prefix none -f "{p}" | awk "{ print \$1 \"@\" substr(\$2, 2) }" |
    sort -u >/run/linked
mapfile -t packages < <(comm -12 /run/scripted /run/linked)
[ "${#packages[@]}" -gt 10 ] || { echo "only ${#packages[@]} packages with build scripts were found" >&2; exit 1; }
# Checked is as good as built: the scripts run, and what they and macros need is linked.
cargo check --locked --quiet "${packages[@]/#/-p=}"
echo "a new Debian: ${packages[*]} are there"
'
README='
make run
make down
make test
echo "a new Debian: both commands of the README work"
'

case ${1:-check} in
    check) what=$CHECK ;;
    readme) what=$README ;;
    *) sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2 ;;
esac
if [ -n "${SKIFF_FRESH_ROOT:-}" ]; then
    ROOT=$SKIFF_FRESH_ROOT
    enter "$what"
fi
[ "$(id -u)" = 0 ] || skipped "it needs root"
command -v apt-get >/dev/null || skipped "this is no Debian"
unshare --mount --pid --fork true 2>/dev/null || skipped "mounts of its own are not allowed"
mkdir -p "$CACHE"
# The same packages, scripts and compiler do the same again.
TRIED=$CACHE/fresh-$({ rustc -vV; cat Cargo.lock scripts/*.sh crates/*/build.rs; } | sha256sum | cut -c1-16)
if [ "${1:-check}" = check ] && [ -e "$TRIED" ]; then
    skipped "one was before, with the same packages, scripts and compiler ($TRIED)"
fi
WORK=$(mktemp -d "$CACHE/fresh.XXXXXX")
trap 'rm -rf --one-file-system "$WORK"' EXIT
ROOT=$WORK/root
mkdir "$ROOT"
prepare_root
# What is mounted and started in there ends with this process.
SKIFF_FRESH_ROOT=$ROOT unshare --mount --pid --fork --kill-child "$0" "${1:-check}"
[ "${1:-check}" != check ] || touch "$TRIED"

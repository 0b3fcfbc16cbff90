#!/bin/sh
# Installs the distribution's packages that building, running and testing need; does nothing when all are there. With `tests`
# those too that only tests of the real machine use: another Pod network, iptables, and a message bus.
set -eu
case ${1:-} in
    "" | tests) ;;
    *) sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2 ;;
esac

need() { # need PROGRAM PACKAGE
    PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1 || packages="$packages $2"
}

need_file() { # need_file FILE PACKAGE: among what compilers include
    for folder in "${PROTOC_INCLUDE:-/usr/include}" /usr/include /usr/local/include; do
        [ -e "$folder/$1" ] && return
    done
    packages="$packages $2"
}

packages=
need protoc protobuf-compiler
# The standard .proto files that build scripts import; Debian has them apart from the program.
need_file google/protobuf/descriptor.proto libprotobuf-dev
need cc gcc
# What C needs to be compiled and linked, which gcc only recommends.
need_file stdlib.h libc6-dev
need containerd containerd
need runc runc
need nft nftables
need ip iproute2
need busybox busybox-static
need gdb gdb
need etcd etcd-server
need etcdctl etcd-client
need curl curl
need python3 python3
need openssl openssl
need pgrep procps
if [ "${1:-}" = tests ]; then
    need iptables iptables
    need dbus-daemon dbus-daemon
    [ -x /opt/cni/bin/portmap ] || [ -x /usr/lib/cni/portmap ] || packages="$packages containernetworking-plugins"
fi
[ -z "$packages" ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "missing:$packages" >&2
    echo "install them with this system's package manager, then try again" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "missing:$packages; run 'sudo apt-get install -y$packages', then try again" >&2
    exit 1
fi
echo "installing:$packages"
apt-get update -qq
# A service manager must not start the machine's own containerd or etcd because of us.
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d.skiff
chmod +x /usr/sbin/policy-rc.d.skiff
if [ ! -e /usr/sbin/policy-rc.d ]; then
    mv /usr/sbin/policy-rc.d.skiff /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
else
    rm -f /usr/sbin/policy-rc.d.skiff
fi
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null

# Sourced by tests that need another kernel than this machine's: Debian's cloud kernel in a virtual machine, which has WireGuard and
# cgroup v2. Everything is fetched once into the cache folder and only unpacked there: nothing is installed on this machine. QEMU translates
# the machine's code itself, since /dev/kvm that is there need not work; it boots within a few seconds (VM_ACCEL=kvm where that works).
#
#   vm_fetch || skip              the kernel, its modules and QEMU; says in $VM_LACKS what cannot be had
#   vm_root=$(mktemp -d)          the files of the machine are collected in a folder:
#   vm_program PROGRAM...         programs of this machine, with the libraries that they need; they come before busybox'
#   vm_file FILE PLACE            a file, with its libraries if it is a program
#   vm_run SECONDS <script        boots, runs the script with sh as the machine's only process, and returns its exit status; the script has the words
#                                 of vm-words.sh
# VM_SMP and VM_MEMORY say how large the machine is, VM_APPEND what else its kernel is told, VM_MODULES (a pattern of paths) which more of
# its modules it has, and vm_args what else QEMU is told: disks, NUMA nodes.

vm_cache=${SKIFF_TEST_CACHE:-/var/cache/skiff-ci}/vm
vm_qemu=()
vm_args=()

# vm_unpack FOLDER PACKAGE...: the content of packages of the distribution.
vm_unpack() {
    local folder=$1 work
    shift
    work=$(mktemp -d)
    # Where nobody has looked for packages yet, there are no lists of them.
    if ! (cd "$work" && { apt-get download "$@" || { apt-get update -qq && apt-get download "$@"; }; }) >"$work/log" 2>&1; then
        VM_LACKS="the packages $* ($(tail -1 "$work/log"))"
        rm -rf "$work"
        return 1
    fi
    rm -rf "$folder.part"
    mkdir -p "$folder.part"
    for package in "$work"/*.deb; do dpkg -x "$package" "$folder.part"; done
    rm -rf "$work" "$folder"
    mv "$folder.part" "$folder"
}

vm_fetch() {
    VM_LACKS=
    if [ "$(uname -m)" != x86_64 ] || ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
        VM_LACKS="packages of Debian for x86_64"
        return 1
    fi
    if [ ! -d "$vm_cache/kernel" ]; then
        local kernel
        kernel=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
        if [ -z "$kernel" ]; then
            apt-get update -qq >/dev/null 2>&1 || true
            kernel=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
        fi
        vm_unpack "$vm_cache/kernel" "${kernel:-linux-image-cloud-amd64}" || return 1
        # Which module needs which is found out when a kernel is installed.
        busybox depmod -b "$vm_cache/kernel" "$(ls "$vm_cache/kernel/lib/modules")"
    fi
    if command -v qemu-system-x86_64 >/dev/null; then
        vm_qemu=(qemu-system-x86_64)
        return
    fi
    local folder=$vm_cache/qemu
    if [ ! -d "$folder" ]; then
        local packages
        packages=$(apt-get install --no-install-recommends -s qemu-system-x86 2>/dev/null | awk '/^Inst/ {print $2}')
        vm_unpack "$folder" ${packages:-qemu-system-x86} || return 1
    fi
    local libraries=usr/lib/x86_64-linux-gnu
    vm_qemu=(env "LD_LIBRARY_PATH=$folder/$libraries:$folder/lib/x86_64-linux-gnu"
        "$folder/usr/bin/qemu-system-x86_64" -L "$folder/usr/share/seabios" -L "$folder/usr/share/qemu")
}

# vm_tool PACKAGE PROGRAM: the path of a program that only the machine needs.
vm_tool() {
    [ -d "$vm_cache/$1" ] || vm_unpack "$vm_cache/$1" "$1" || return 1
    echo "$vm_cache/$1/$2"
}

vm_file() {
    local file=$1 place=$vm_root/$2 library
    mkdir -p "$(dirname "$place")"
    # A build for debugging is mostly what a debugger reads.
    if [ "$(stat -Lc %s "$file")" -lt 100000000 ] || ! strip --strip-debug -o "$place" "$file" 2>/dev/null; then
        cp -L "$file" "$place"
    fi
    for library in $(ldd "$file" 2>/dev/null | grep -o '/[^ ]*'); do
        [ -e "$vm_root/$library" ] || { mkdir -p "$vm_root/$(dirname "$library")" && cp -L "$library" "$vm_root/$library"; }
    done
}

vm_program() {
    local path
    for program in "$@"; do
        path=$(PATH="$PATH:/usr/sbin:/sbin" command -v "$program") || { VM_LACKS="the program $program"; return 1; }
        vm_file "$path" "/usr/local/bin/$program"
    done
}

# The modules of networks and what they need of others.
vm_modules() {
    local from=$vm_cache/kernel to=$vm_root release
    release=lib/modules/$(ls "$from/lib/modules")
    mkdir -p "$to/$release"
    cp "$from/$release"/modules.* "$to/$release/"
    (cd "$from" && find "$release/kernel" -name '*.ko' | grep -E "/kernel/(net|lib|crypto|arch/x86/crypto|fs/overlayfs|drivers/net/(wireguard|vxlan|[a-z0-9_]+\.ko)${VM_MODULES:+|$VM_MODULES})" |
        busybox cpio -o -H newc 2>/dev/null) | (cd "$to" && busybox cpio -id 2>/dev/null)
}

vm_run() {
    local seconds=$1
    mkdir -p "$vm_root"/{bin,dev,proc,sys,tmp,run,etc,root,sbin,usr/bin,usr/sbin,var/lib}
    ln -sfn ../run "$vm_root/var/run"
    cat "$(dirname "${BASH_SOURCE[0]}")/vm-words.sh" - >"$vm_root/script"
    vm_modules
    echo 'root:x:0:0:root:/root:/bin/sh' >"$vm_root/etc/passwd"
    echo '127.0.0.1 localhost' >"$vm_root/etc/hosts"
    : >"$vm_root/etc/resolv.conf"
    # The shell of busybox takes its own programs before those of the machine.
    vm_file /bin/sh /bin/sh
    [ -e "$vm_root/bin/busybox" ] || cp -L "$(command -v busybox)" "$vm_root/bin/busybox"
    cat >"$vm_root/init" <<'INIT'
#!/bin/busybox sh
# No root can be changed from the first filesystem, as engines do it; so all moves to another one.
if [ ! -e /moved ]; then
    /bin/busybox mkdir /new
    /bin/busybox mount -t tmpfs -o size=90%,mode=755 root /new
    for entry in /*; do
        case $entry in /new | /dev | /proc | /sys) /bin/busybox mkdir -p "/new$entry" ;; *) /bin/busybox cp -a "$entry" /new/ ;; esac
    done
    /new/bin/busybox touch /new/moved
    exec /new/bin/busybox switch_root /new /init
fi
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
/bin/busybox --install -s 2>/dev/null
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
ln -s /proc/self/fd /dev/fd && ln -s fd/0 /dev/stdin && ln -s fd/1 /dev/stdout && ln -s fd/2 /dev/stderr
mount -t devpts devpts /dev/pts
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup /sys/fs/cgroup
# Two that need a module at once are not both served by busybox: the second finds it half loaded and goes on.
modprobe -a bridge veth vxlan wireguard overlay $(find /lib/modules -name 'nft_*.ko' | sed 's|.*/||; s|\.ko$||') 2>/dev/null
# Two that name a first network namespace at once would take it from each other.
mkdir /run/netns && mount --bind /run/netns /run/netns && mount --make-shared /run/netns
ip link set lo up
hostname vm
/bin/sh /script
echo $? >/dev/ttyS1
poweroff -f
INIT
    chmod +x "$vm_root/init"
    vm_boot "$seconds" "$vm_root"
}

# vm_boot SECONDS FOLDER: boots with the folder as its first filesystem, and returns what the machine writes to its second serial line.
# The kernel does not try the timer, as none does that knows its hypervisor: on a machine with a lot to do it would be found broken.
vm_boot() {
    local seconds=$1 status=$vm_root.status
    (cd "$2" && find . | busybox cpio -o -H newc 2>/dev/null) >"$vm_root.initrd"
    rm -f "$status"
    timeout --foreground "$seconds" "${vm_qemu[@]}" -accel "${VM_ACCEL:-tcg,thread=multi}" -cpu max -smp "${VM_SMP:-2}" \
        -m "${VM_MEMORY:-2048}" "${vm_args[@]}" \
        -nodefaults -no-user-config -display none -no-reboot -serial stdio -serial "file:$status" \
        -kernel "$vm_cache"/kernel/boot/vmlinuz-* -initrd "$vm_root.initrd" \
        -append "console=ttyS0 ${VM_QUIET-quiet} no_timer_check panic=-1 rdinit=/init ${VM_APPEND:-}" </dev/null | tr -d '\r' || true
    local code
    code=$(tr -dc 0-9 <"$status" 2>/dev/null || true)
    if [ -z "$code" ]; then
        echo "the virtual machine ended without a word, or was not done within $seconds s" >&2
        return 1
    fi
    return "$code"
}

# vm_disk IMAGE SIZE FOLDER: a disk that a machine can boot from again and again, with the content of the folder.
vm_disk() {
    truncate -s "$2" "$1"
    PATH="$PATH:/usr/sbin:/sbin" mkfs.ext4 -q -E root_owner=0:0 -d "$3" "$1"
}

# vm_first FOLDER: a first filesystem that goes on to the first disk, and there to /sbin/init.
vm_first() {
    local module
    mkdir -p "$1"/{bin,dev,modules,root}
    cp -L "$(command -v busybox)" "$1/bin/busybox"
    for module in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk; do
        find "$vm_cache/kernel/lib/modules" -name "$module.ko" -exec cp {} "$1/modules/" \;
    done
    cat >"$1/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for module in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk; do
    [ ! -e /modules/$module.ko ] || /bin/busybox insmod /modules/$module.ko
done
for try in 1 2 3 4 5 6 7 8 9; do [ -b /dev/vda ] || /bin/busybox sleep 1; done
/bin/busybox mount -t ext4 /dev/vda /root && exec /bin/busybox switch_root /root /sbin/init
INIT
    chmod +x "$1/init"
}

# vm_end: removes the machine's files.
vm_end() { rm -rf "$vm_root" "$vm_root".*; }

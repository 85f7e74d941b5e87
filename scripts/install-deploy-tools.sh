#!/bin/sh
# Usage: install-deploy-tools.sh FOLDER LOCKFILE
# Installs what checks deploy/ (Helm, Kubernetes' and Compose's schemas, a linter for Dockerfiles) into an environment of
# its own: nothing of it gets into the one that breakloop is tested in. What is there already stays.
set -eu

folder=$1
lock=$2
python=${PYTHON:-python3}
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1

cmp -s "$lock" "$folder/.lock" && exit 0
printf 'install-deploy-tools: installing %s into %s (once, about half a minute, 110 MB)\n' "$lock" "$folder" >&2
rm -rf "$folder"
"$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --no-input --no-deps --require-hashes --no-compile -r "$lock"
cp "$lock" "$folder/.lock"

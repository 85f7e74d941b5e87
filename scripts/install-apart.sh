#!/bin/sh
# Usage: install-apart.sh FOLDER LOCKFILE
# Installs what checks deploy/ (Helm, Kubernetes' and Compose's schemas, a linter for Dockerfiles), the gateways that
# examples/ is tested with (Envoy, Traefik), the generator of the documentation site, or a framework that does not fit
# beside the others (CrewAI, LiteLLM) into an environment of its own: nothing of it gets into the one that breakloop is
# tested in. What is there already stays.
set -eu

folder=$1
lock=$2
python=${PYTHON:-python3}
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1

cmp -s "$lock" "$folder/.lock" && exit 0
printf 'install-apart: installing %s into %s (once, up to a minute and 900 MB)\n' "$lock" "$folder" >&2
rm -rf "$folder"
"$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --no-input --no-deps --require-hashes --no-compile -r "$lock"
cp "$lock" "$folder/.lock"

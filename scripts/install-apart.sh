#!/bin/sh
# Usage: install-apart.sh FOLDER LOCKFILE
# Installs what checks deploy/ (Helm, Kubernetes' and Compose's schemas, a linter for Dockerfiles), the gateways that
# examples/ is tested with (Envoy, Traefik), the generator of the documentation site, or frameworks that do not fit beside
# the others (CrewAI, LiteLLM) or are not imported here (smolagents, DSPy) into an environment of its own: nothing of it gets into the one that breakloop is
# tested in. What is there already stays. If VENV names an environment with pip, that one installs, which takes less time
# than to install pip first.
set -eu

folder=$1
lock=$2
python=${PYTHON:-python3}
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1

cmp -s "$lock" "$folder/.lock" && exit 0
printf 'install-apart: installing %s into %s (once, up to a minute and 900 MB)\n' "$lock" "$folder" >&2
rm -rf "$folder"
if [ -n "${VENV:-}" ]; then
    "$python" -m venv --without-pip "$folder"
    set -- "$VENV/bin/python" -m pip --python "$folder/bin/python"
else
    "$python" -m venv "$folder"
    set -- "$folder/bin/python" -m pip
fi
"$@" install --quiet --no-input --no-deps --require-hashes --no-compile -r "$lock"
cp "$lock" "$folder/.lock"

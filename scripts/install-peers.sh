#!/bin/sh
# Usage: install-peers.sh FOLDER
# Installs the gateways that `make bench-peers` measures, each into a place of its own below FOLDER; nothing of them gets
# into our own environment or lock file. What is there already in these versions stays.
set -eu

litellm=1.106.2
portkey=1.15.2
# Portkey cannot stream with a later one (its issue 1389).
hono_server=1.14.1

folder=$1
python=${PYTHON:-python3}
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p "$folder"

place=$folder/litellm
if [ "$(cat "$place/.version" 2>/dev/null)" != "$litellm" ]; then
    printf 'install-peers: LiteLLM %s (once, about two minutes, 750 MB)\n' "$litellm" >&2
    rm -rf "$place"
    "$python" -m venv "$place"
    "$place/bin/python" -m pip install --quiet --no-input "litellm[proxy]==$litellm"
    echo "$litellm" >"$place/.version"
fi

place=$folder/portkey
if ! command -v npm >/dev/null 2>&1; then
    echo 'install-peers: there is no npm here, so Portkey is left out; it needs Node.js 18 or newer' >&2
elif [ "$(cat "$place/.version" 2>/dev/null)" != "$portkey $hono_server" ]; then
    printf 'install-peers: Portkey %s (once)\n' "$portkey" >&2
    rm -rf "$place"
    mkdir -p "$place"
    printf '{"private": true, "dependencies": {"@portkey-ai/gateway": "%s"}, "overrides": {"@hono/node-server": "%s"}}\n' \
        "$portkey" "$hono_server" >"$place/package.json"
    npm install --prefix "$place" --silent --no-audit --no-fund --ignore-scripts
    echo "$portkey $hono_server" >"$place/.version"
fi

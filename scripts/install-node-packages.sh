#!/bin/sh
# Usage: install-node-packages.sh FOLDER SOURCE [NODE]
# Installs the npm packages of SOURCE (package.json and its lock) into FOLDER, with the npm below NODE or the system's. Only
# the TypeScript of the documentation, packages/js, agents in JavaScript and Codex are tested with them.
set -eu

folder=$1
source=$2
node=${3:-}
npm=npm
[ -z "$node" ] || npm="$node/bin/node $node/lib/node_modules/npm/bin/npm-cli.js"

# Node trusts a list of its own; what this system trusts beside it, as behind a proxy of a company, is trusted here, too.
system=/etc/ssl/certs/ca-certificates.crt
[ -n "${NODE_EXTRA_CA_CERTS:-}" ] || [ ! -r "$system" ] || export NODE_EXTRA_CA_CERTS="$system"

cmp -s "$source/package-lock.json" "$folder/.lock" && exit 0
# shellcheck disable=SC2086  # program and its first argument
if ! $npm --version >/dev/null 2>&1; then
    echo 'install-node-packages: there is no npm here; what needs its packages is not tested' >&2
    exit 0
fi
printf 'install-node-packages: installing %s into %s (once, about 25 seconds, up to 400 MB)\n' "$source" "$folder" >&2
rm -rf "$folder"
mkdir -p "$folder"
cp "$source/package.json" "$source/package-lock.json" "$folder/"
# shellcheck disable=SC2086
if $npm ci --prefix "$folder" --silent --no-audit --no-fund --ignore-scripts; then
    cp "$source/package-lock.json" "$folder/.lock"
else
    echo 'install-node-packages: npm could not; what needs these packages is not tested' >&2
fi

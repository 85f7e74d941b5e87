#!/bin/sh
# Usage: setup.sh VENV LOCKFILE
# Brings a virtual environment to exactly what the lock file says, then installs breakloop into it, editable.
set -eu

venv=$1
lock=$2
python=${PYTHON:-python3}
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 || fail "no $python here; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old; breakloop needs 3.11 or newer (make PYTHON=/path/to/python3)"

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "Python's venv module is missing; on Debian and Ubuntu: apt-get install python3-venv"
    "$python" -m venv "$venv"
fi

printf 'setup: installing %s into %s (once, a minute or two)\n' "$lock" "$venv" >&2
"$venv/bin/python" -m pip install --quiet --no-input --no-deps --require-hashes -r "$lock" ||
    fail "the packages in $lock could not be installed; is a package index reachable (pip config list)?"
# An environment may hold what an older lock file wanted: whatever is not in this one goes.
extra=$("$venv/bin/python" scripts/lockfile.py extra "$lock")
# shellcheck disable=SC2086  # one name a word
[ -z "$extra" ] || "$venv/bin/python" -m pip uninstall --quiet --yes $extra
"$venv/bin/python" -m pip install --quiet --no-input --no-deps --no-build-isolation --no-index --editable .

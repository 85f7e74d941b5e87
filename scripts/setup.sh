#!/bin/sh
# Usage: setup.sh [--exact] VENV LOCKFILE
# Installs the packages of a lock file into a virtual environment, which it creates if there is none, and then breakloop
# itself, editable. With --exact, packages that the lock file does not name are removed.
set -eu

exact=no
if [ "$1" = --exact ]; then
    exact=yes
    shift
fi
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

printf 'setup: installing %s packages of %s into %s (once)\n' "$(grep -c '^[^ #].*==' "$lock")" "$lock" "$venv" >&2
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "Python's venv module is missing; on Debian and Ubuntu: apt-get install python3-venv"
    "$python" -m venv "$venv"
fi

# Python compiles a module when it is first imported: most of the modules of these packages never are.
"$venv/bin/python" -m pip install --quiet --no-input --no-deps --no-compile --require-hashes -r "$lock" ||
    fail "the packages in $lock could not be installed; is a package index reachable (pip config list)?"
if [ "$exact" = yes ]; then
    extra=$("$venv/bin/python" scripts/lockfile.py extra "$lock")
    # shellcheck disable=SC2086  # one name a word
    [ -z "$extra" ] || "$venv/bin/python" -m pip uninstall --quiet --yes $extra
fi
"$venv/bin/python" -m pip install --quiet --no-input --no-deps --no-build-isolation --no-index --editable .

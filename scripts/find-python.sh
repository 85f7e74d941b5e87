#!/bin/sh
# Usage: find-python.sh VERSION
# Prints the path of a Python of this version, for example 3.13: $PYTHON or pythonVERSION if there is one, else the one that
# it unpacks from a newer Debian into .cache/python-VERSION. That one runs beside the programs of this system, with the C
# library that it needs.
set -eu

version=${1:?give the version, for example 3.13: make test-python VERSION=3.13}
root=$(cd "$(dirname "$0")/.." && pwd)

fail() {
    printf 'find-python: %s\n' "$*" >&2
    exit 1
}

for python in "${PYTHON:-python3}" "python$version"; do
    if [ "$("$python" -c 'import ensurepip, sys, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$version" ]; then
        command -v "$python"
        exit 0
    fi
done

folder=$root/.cache/python-$version
python=$folder/usr/bin/python$version
works() { "$python" -c 'import ctypes, ensurepip, readline, sqlite3, ssl, venv' 2>/dev/null; }

if ! works; then
    by_hand="install Python $version with its venv module and name it: make test-python VERSION=$version PYTHON=/path/to/python$version"
    case $version in
        3.13) suite=trixie ;;
        3.14) suite=sid ;;
        *) fail "there is no Python $version here; $by_hand" ;;
    esac
    sh "$root/scripts/unpack-debian.sh" --with-dependencies "$suite" "$folder" "python$version-venv" patchelf ||
        fail "there is no Python $version here, and it cannot be unpacked from Debian; $by_hand"
    # Its own loader and libraries, by absolute path, so that programs that it starts use those of this system. Without
    # --no-sort, patchelf writes programs that crash.
    loader=$(echo "$folder"/usr/lib/*/ld-linux-*.so.*)
    libraries=$(dirname "$loader")
    "$loader" --library-path "$libraries" "$folder/usr/bin/patchelf" --no-sort \
        --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$python"
    # Where ensurepip looks for the wheel of pip.
    sed -i "s#'/usr/share/python-wheels/'#'$folder/usr/share/python-wheels/'#" "$folder/usr/lib/python$version"/_sysconfigdata_*.py
    works || fail "the Python $version of Debian $suite does not run here; $by_hand"
fi
echo "$python"

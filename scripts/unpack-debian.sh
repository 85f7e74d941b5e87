#!/bin/sh
# Usage: unpack-debian.sh [--with-dependencies] SUITE FOLDER PACKAGE...
# Unpacks packages of another suite of Debian below FOLDER: apt downloads and verifies them with a configuration of its own.
# It needs no root. Packages, configuration and services of the system stay as they are.
set -eu

how='download'
if [ "$1" = --with-dependencies ]; then
    how='install --yes --download-only --no-install-recommends'
    shift
fi
suite=$1
folder=$2
shift 2

fail() {
    printf 'unpack-debian: %s\n' "$*" >&2
    exit 1
}

. "${OS_RELEASE:-/etc/os-release}"
[ "$ID" = debian ] || fail "this system is not Debian"
# The mirror that this system uses.
mirror=$(apt-get update --print-uris | sed -n "s#^'\(.*\)/dists/$VERSION_CODENAME/InRelease'.*#\1#p" | head -n 1)
[ -n "$mirror" ] || fail "apt-get has no source for $VERSION_CODENAME"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/tree"
: >"$work/status" # no package counts as installed
echo "deb $mirror $suite main" >"$work/sources.list"
cat >"$work/apt.conf" <<END
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$work/lists";
Dir::State::Status "$work/status";
Dir::Cache "$work/cache";
Acquire::Languages "none";
Acquire::Retries "3";
APT::Sandbox::User "$(id -un)";
Debug::NoLocking "true";
END
export APT_CONFIG="$work/apt.conf"

printf 'unpack-debian: unpacking %s of %s into %s\n' "$*" "$suite" "$folder" >&2
# shellcheck disable=SC2086  # a command and its options
(cd "$work/cache/archives" && apt-get update && apt-get $how "$@") >"$work/log" 2>&1 || {
    tail -n 5 "$work/log" >&2
    fail "apt-get could not download the packages"
}
for package in "$work"/cache/archives/*.deb; do
    dpkg-deb --extract "$package" "$work/tree"
done
rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
mv "$work/tree" "$folder"

#!/bin/sh
# Usage: install-system.sh PROGRAM...
# Makes sure that the named system programs are there. Installs them with apt-get when that is possible, else says what to do.
set -eu

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
for folder in /usr/lib/postgresql/*/bin; do # Debian keeps them off the PATH, a folder for each version
    PATH=$PATH:$folder
done

package_of() {
    case $1 in
        nginx) echo nginx-light ;;
        caddy) echo caddy ;;
        haproxy) echo haproxy ;;
        wrk) echo wrk ;;
        curl) echo curl ;;
        redis-server) echo redis-server ;;
        postgres) echo postgresql ;;
        valkey-server) echo valkey-server ;;
        systemd-analyze) echo systemd ;;
        chromium) echo chromium ;;
        *)
            echo "install-system: unknown program $1" >&2
            exit 3
            ;;
    esac
}

missing=
packages=
for program in "$@"; do
    package=$(package_of "$program")
    if ! command -v "$program" >/dev/null 2>&1; then
        missing="$missing $program"
        packages="$packages $package"
    fi
done
[ -n "$missing" ] || exit 0

by_hand() {
    printf 'install-system: %s\n' "$1" >&2
    printf 'install-system: missing:%s. Install by hand, for example: apt-get install%s\n' "$missing" "$packages" >&2
    exit 1
}

command -v apt-get >/dev/null 2>&1 || by_hand "there is no apt-get here."
[ "$(id -u)" -eq 0 ] || by_hand "only root can install programs."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
try() { DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1; }
# shellcheck disable=SC2086  # one package a word
install() { try apt-get install -y -q --no-install-recommends $packages; }

printf 'install-system: installing%s\n' "$packages"
# The lists may be absent or old; fetching them is slow, so only when the first attempt fails, and once more after that.
install || { try apt-get update -q && install; } || { sleep 5 && try apt-get update -q && install; } || {
    tail -n 5 "$log" >&2
    by_hand "apt-get could not install it."
}

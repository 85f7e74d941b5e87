#!/bin/sh
# Usage: install-system.sh [--check] PROGRAM...
# Makes sure that the named system programs are there. Root gets them from apt-get, and their services are neither started
# nor enabled: tests run the programs on free ports and stop them. Where that is not possible, it lists all that is missing
# and fails. With --check it installs nothing, and only fails where it could not.
# Debian 12 has Valkey only in its backports: there it is unpacked into .cache/valkey, which changes nothing in the system
# and needs no root. Its libraries are those of redis-server.
set -eu

check=no
if [ "${1:-}" = --check ]; then
    check=yes
    shift
fi

here=$(cd "${0%/*}" && pwd)
valkey=${VALKEY_FOLDER:-${here%/*}/.cache/valkey}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$valkey/usr/bin
for folder in /usr/lib/postgresql/*/bin; do # Debian keeps them off the PATH, a folder for each version
    PATH=$PATH:$folder
done

package_of() {
    case $1 in
        nginx) echo nginx-light ;;
        caddy) echo caddy ;;
        haproxy) echo haproxy ;;
        wrk) echo wrk ;;
        valgrind) echo valgrind ;;
        curl) echo curl ;;
        openssl) echo openssl ;;
        redis-server) echo redis-server ;;
        postgres) echo postgresql ;;
        valkey-server) echo valkey-server ;;
        systemd-analyze) echo systemd ;;
        chromium) echo chromium ;;
        faketime) echo faketime ;;
        *)
            echo "install-system: unknown program $1" >&2
            exit 3
            ;;
    esac
}

# The service that comes with a program, if any.
service_of() {
    case $1 in
        nginx | caddy | haproxy | redis-server | valkey-server) echo "$1" ;;
        postgres) echo postgresql ;;
    esac
}

is_debian_12() {
    command -v apt-get >/dev/null 2>&1 &&
        (. "${OS_RELEASE:-/etc/os-release}" && [ "${VERSION_CODENAME:-}" = bookworm ]) 2>/dev/null
}

missing=
packages=
services=
unpack=
for program in "$@"; do
    package=$(package_of "$program")
    if command -v "$program" >/dev/null 2>&1; then
        continue
    elif [ "$program" = valkey-server ] && is_debian_12; then
        unpack=$program
    else
        missing="$missing $program"
        packages="$packages $package"
        services="$services $(service_of "$program")"
    fi
done

by_hand() {
    printf 'install-system: %s\n' "$1" >&2
    printf 'install-system: missing programs:%s\n' "$missing" >&2
    printf 'install-system: install all of them %s\n' "$2" >&2
    exit 1
}

if [ -n "$missing" ]; then
    command -v apt-get >/dev/null 2>&1 ||
        by_hand "there is no apt-get here." "with your package manager; the packages of Debian are:$packages"
    [ "$(id -u)" -eq 0 ] ||
        by_hand "only root can install programs." "with: sudo sh scripts/install-system.sh$missing"
fi
[ "$check" = no ] || exit 0

log=$(mktemp)
policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
ours=
clean_up() { rm -f "$log" $ours; }
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

try() { DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1; }
# shellcheck disable=SC2086  # one package a word
install() { try apt-get install -y -q --no-install-recommends $packages; }

if [ -n "$missing" ]; then
    # Debian asks this program before a package may start its service; 101 forbids it. A policy of this machine's own stays.
    if [ ! -e "$policy" ]; then
        ours=$policy
        printf '#!/bin/sh\n# Made by scripts/install-system.sh while it installs packages.\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    printf 'install-system: installing%s\n' "$packages"
    # The lists may be absent or old; fetching them is slow, so only when the first attempt fails, and once more after that.
    install || { try apt-get update -q && install; } || { sleep 5 && try apt-get update -q && install; } || {
        tail -n 5 "$log" >&2
        by_hand "apt-get could not install it." "by hand, for example: apt-get install$packages; of a program that apt-get does not have, it is enough that it is on the PATH"
    }
    # Nor does a service start with the machine.
    if command -v systemctl >/dev/null 2>&1; then
        for service in $services; do
            try systemctl disable "$service" || true
        done
    fi
fi
if [ -n "$unpack" ]; then
    sh "$here/unpack-debian.sh" bookworm-backports "$valkey" valkey-server valkey-tools && try valkey-server --version || {
        cat "$log" >&2
        missing=" valkey-server"
        by_hand "Valkey could not be unpacked from bookworm-backports." "by hand, so that they are on the PATH"
    }
fi

#!/bin/sh
# Usage: try-image.sh IMAGE
# Starts a container without rights, waits until its health check passes, and requests /readyz from outside. The container
# and its volume are removed at the end.
set -eu

container=$(docker run -d --read-only --tmpfs /tmp --cap-drop ALL -p 127.0.0.1::8787 "$1")
trap 'docker rm -f -v "$container" >/dev/null' EXIT
trap 'exit 1' HUP INT TERM

state=starting
tries=60
while [ "$state" = starting ] && [ "$tries" -gt 0 ]; do
    sleep 1
    tries=$((tries - 1))
    state=$(docker inspect -f '{{.State.Health.Status}}' "$container")
done
if [ "$state" != healthy ]; then
    docker logs "$container" >&2
    printf 'try-image: the container is %s\n' "$state" >&2
    exit 1
fi
docker exec "$container" breakloop --version
curl -fsS "http://$(docker port "$container" 8787/tcp)/readyz"
echo

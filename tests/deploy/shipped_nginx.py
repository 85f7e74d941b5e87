"""A real nginx with deploy/nginx/two-instances.conf: only addresses and temporary paths are other than shipped."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.deadlines import DEADLINE_S
from tests.programs import program
from tests.redis_servers import free_port

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "nginx"
_PORTS = (8787, 8789)  # of the instances, in instances.conf
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def configure(folder: Path, ports: Sequence[int], listen: int) -> list[str]:
    """Copy the configuration into a folder; returns how to run nginx with it, without its last arguments."""
    shutil.copytree(SHIPPED, folder, dirs_exist_ok=True)
    paths = "".join(f"    {kind}_temp_path {folder / kind};\n" for kind in _TEMPORARY)
    _replace(
        folder / "two-instances.conf", {"http {\n": f"http {{\n{paths}", "listen 8080;": f"listen 127.0.0.1:{listen};"}
    )
    addresses = {f"127.0.0.1:{old} ": f"127.0.0.1:{new} " for old, new in zip(_PORTS, ports, strict=True)}
    _replace(folder / "instances.conf", addresses)
    main = f"pid {folder / 'nginx.pid'};" + (" user root;" if os.geteuid() == 0 else "")  # workers write beside it
    command = [program("nginx"), "-p", str(folder), "-c", str(folder / "two-instances.conf")]
    return [*command, "-e", str(folder / "error.log"), "-g", main]


def _replace(file: Path, changes: dict[str, str]) -> None:
    text = file.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, f"{file.name} does not have {old!r} once"
        text = text.replace(old, new)
    file.write_text(text)


@contextmanager
def shipped_nginx(folder: Path, ports: Sequence[int]) -> Iterator[int]:
    """Run it in front of these two; the port that it listens on."""
    listen = free_port()
    *command, main = configure(folder / "nginx", ports, listen)
    nginx = subprocess.Popen([*command, f"daemon off; {main}"], stderr=subprocess.DEVNULL)
    try:
        _wait_for(listen, nginx)
        yield listen
    finally:
        nginx.terminate()
        nginx.wait(DEADLINE_S)


def _wait_for(port: int, nginx: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end and nginx.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        with suppress(OSError):
            connection.connect()
            connection.close()
            return
        time.sleep(0.02)
    raise AssertionError("nginx did not start")

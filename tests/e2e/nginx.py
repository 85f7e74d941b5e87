"""A real nginx with the shipped configuration, between a client and what `behind` puts around a gateway."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.behind import ROOT, Stack, breakloop_and_application, gateway_process

EXAMPLE = ROOT / "examples" / "nginx"


@contextmanager
def running_stack(nginx: str, folder: Path, policy: Path, changes: dict[str, str]) -> Iterator[Stack]:
    """Start all three. `changes` replaces text of the shipped configuration, see `configure`."""
    with breakloop_and_application(folder, policy) as stack:
        place = folder / "nginx"
        addresses = {
            "127.0.0.1:8080": f"127.0.0.1:{stack.port}",
            "127.0.0.1:8787": f"127.0.0.1:{stack.relay.port}",
            "127.0.0.1:9000": f"127.0.0.1:{stack.application.server_address[1]}",
        }
        configure(place, addresses | changes)
        # One process: no master that would want to change its user, and no worker that cannot enter the folder.
        main = f"daemon off; master_process off; pid {place / 'nginx.pid'};"
        command = [nginx, "-p", str(place), "-c", "nginx.conf", "-e", str(place / "error.log"), "-g", main]
        with gateway_process(command, place, stack.port, place / "error.log", {}):
            yield stack


def configure(folder: Path, changes: dict[str, str]) -> Path:
    """Copy the shipped configuration with other addresses, and with temporary files where anybody may write."""
    shutil.copytree(EXAMPLE, folder)
    paths = "".join(
        f"    {kind}_temp_path {folder / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    texts = {file: file.read_text() for file in sorted(folder.glob("*.conf"))}
    for old, new in {"http {\n": f"http {{\n    access_log off;\n{paths}", **changes}.items():
        assert any(old in text for text in texts.values()), f"the shipped configuration has no {old!r}"
        texts = {file: text.replace(old, new) for file, text in texts.items()}
    for file, text in texts.items():
        file.write_text(text)
    return folder / "nginx.conf"

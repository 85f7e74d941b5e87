"""Real gateways with the configurations in examples/, each asking the real `breakloop serve`: how each of them is
started, and which texts of its files are replaced so that it listens and asks on free ports."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.deadlines import DEADLINE_S
from tests.e2e.behind import ROOT, Stack, breakloop_and_application, free_port, gateway_process
from tests.programs import found, missing, program

EXAMPLES = ROOT / "examples"
_PROBE = "/is-traefik-ready"
BIN = ROOT / ".cache" / "gateways" / "bin"


@dataclass(frozen=True, slots=True)
class Gateway:
    """One kind of gateway."""

    name: str
    folder: str  # below examples/
    file: str
    command: Callable[[str, int], list[str]]  # with the path of its program and the port, in a copy of the folder
    address: Callable[[int], str]  # how its file spells an address
    fail_closed: dict[str, str] | None  # what to change so that nothing passes unjudged; None: it cannot fail open
    closed_status: int  # that a client gets then
    sees_bodies: bool
    large: tuple[dict[str, str], int]  # what makes 150 KB too large to be judged, and the status that is answered
    tells_allowed: bool  # an allowed answer carries breakloop's fields
    grpc: bool = False
    env: dict[str, str] = field(default_factory=dict)


def _plain(port: int) -> str:
    return f"127.0.0.1:{port}"


def _envoy_port(port: int) -> str:
    return f"port_value: {port} "


CADDY = Gateway(
    name="caddy",
    folder="caddy",
    file="Caddyfile",
    command=lambda caddy, _: [caddy, "run", "--config", "Caddyfile", "--adapter", "caddyfile"],
    address=_plain,
    fail_closed={"expression {err.status_code} in [502, 504]": "expression false"},
    closed_status=502,
    sees_bodies=False,
    large=({}, 200),
    tells_allowed=False,
    env={"CADDY_ADMIN": "unix//admin.sock", "XDG_DATA_HOME": ".", "XDG_CONFIG_HOME": "."},
)
HAPROXY = Gateway(
    name="haproxy",
    folder="haproxy",
    file="haproxy.cfg",
    command=lambda haproxy, _: [haproxy, "-f", "haproxy.cfg"],
    address=_plain,
    fail_closed={"# http-request deny deny_status 503": "http-request deny deny_status 503"},
    closed_status=503,
    sees_bodies=True,
    large=({}, 200),  # tune.bufsize
    tells_allowed=False,
)
ENVOY_HTTP = Gateway(
    name="envoy",
    folder="envoy",
    file="envoy.yaml",
    command=lambda envoy, _: [envoy, "-c", "envoy.yaml", "--concurrency", "1", "--disable-hot-restart"],
    address=_envoy_port,
    fail_closed={"failure_mode_allow: true": "failure_mode_allow: false"},
    closed_status=403,
    sees_bodies=True,
    large=({"max_request_bytes: 10485760": "max_request_bytes: 100000"}, 413),
    tells_allowed=True,
)
ENVOY_GRPC = replace(
    ENVOY_HTTP,
    name="envoy-grpc",
    file="envoy-grpc.yaml",
    command=lambda envoy, _: [envoy, "-c", "envoy-grpc.yaml", "--concurrency", "1", "--disable-hot-restart"],
    grpc=True,
)
ENVOY_PROCESSOR = replace(
    ENVOY_GRPC,
    name="envoy-ext-proc",
    file="envoy-ext-proc.yaml",
    command=lambda envoy, _: [envoy, "-c", "envoy-ext-proc.yaml", "--concurrency", "1", "--disable-hot-restart"],
    closed_status=500,
    large=({"per_connection_buffer_limit_bytes: 10485760": "per_connection_buffer_limit_bytes: 100000"}, 413),
)
TRAEFIK = Gateway(
    name="traefik",
    folder="traefik",
    file="dynamic.yaml",
    command=lambda traefik, port: [
        traefik,
        f"--entrypoints.web.address=127.0.0.1:{port}",
        "--providers.file.filename=dynamic.yaml",
        "--global.checknewversion=false",
    ],
    address=_plain,
    fail_closed=None,
    closed_status=500,
    sees_bodies=True,
    large=({"maxBodySize: 10485760": "maxBodySize: 100000"}, 401),
    tells_allowed=False,
)
ALL = [CADDY, HAPROXY, ENVOY_HTTP, ENVOY_GRPC, ENVOY_PROCESSOR, TRAEFIK]


def path_of(gateway: Gateway) -> str:
    """Where its program is; absent, the test is skipped, or fails where every program is required."""
    if gateway.folder not in {"envoy", "traefik"}:
        return program(gateway.folder)
    own = BIN / gateway.folder
    if own.is_file():
        return str(own)
    return found(gateway.folder) or missing("`make apart-gateways` installs what is missing")


def configure(gateway: Gateway, folder: Path, changes: dict[str, str]) -> None:
    """Copy the shipped folder with other texts."""
    shutil.copytree(EXAMPLES / gateway.folder, folder)
    files = [file for file in folder.iterdir() if file.suffix != ".md" and file.name != "policy.yaml"]
    for old, new in changes.items():
        texts = {file: file.read_text() for file in files}
        assert any(old in text for text in texts.values()), f"the shipped configuration has no {old!r}"
        for file, text in texts.items():
            file.write_text(text.replace(old, new))


@contextmanager
def running(gateway: Gateway, folder: Path, policy: Path, changes: dict[str, str]) -> Iterator[Stack]:
    """Start breakloop, the application and the gateway; `changes` replaces text of the shipped configuration."""
    path = path_of(gateway)
    grpc_port = free_port()
    env = {"BREAKLOOP_ENVOY_GRPC_PORT": str(grpc_port)} if gateway.grpc else {}
    with breakloop_and_application(folder, policy, env) as stack:
        place = folder / "gateway"
        asked = grpc_port if gateway.grpc else stack.relay.port
        own = 8789 if gateway.grpc else 8787
        ports = {8080: stack.port, own: asked, 9000: stack.application.server_address[1]}
        addresses = {gateway.address(old): gateway.address(new) for old, new in ports.items()}
        if gateway is CADDY:
            addresses = {old.replace("127.0.0.1:8080", ":8080"): new for old, new in addresses.items()}
            addresses[":8080"] = f":{stack.port}"
        if gateway is TRAEFIK:
            del addresses["127.0.0.1:8080"]  # said on its command line
            addresses["  routers:\n"] = f"  routers:\n    probe: {{rule: Path(`{_PROBE}`), service: noop@internal}}\n"
        configure(gateway, place, addresses | changes)
        with gateway_process(gateway.command(path, stack.port), place, stack.port, place / "gateway.out", gateway.env):
            if gateway is TRAEFIK:
                _wait_until_routed(stack)
            yield stack


def _wait_until_routed(stack: Stack) -> None:
    """Traefik listens before it has read its routes."""
    deadline = time.monotonic() + DEADLINE_S
    while stack.ask(_PROBE).status == 404:
        assert time.monotonic() < deadline
        time.sleep(0.02)

"""Every example works as it is shipped: its policy is valid, and its configuration is what the gateway accepts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from breakloop.gateway.decision import original_call
from breakloop.gateway.http_request import Request
from tests.e2e import gateways
from tests.e2e.behind import ROOT
from tests.e2e.nginx import configure

pytestmark = pytest.mark.e2e

EXAMPLES = ROOT / "examples"
SCHEMA_LINE = "# yaml-language-server: $schema="
GATEWAYS = ["caddy", "envoy", "haproxy", "nginx", "traefik"]


def test_every_gateway_has_its_folder() -> None:
    """A snippet, a policy and a page for each gateway (P-4)."""
    for name in GATEWAYS:
        files = {path.name for path in (EXAMPLES / name).iterdir()}
        assert {"README.md", "policy.yaml"} < files, name


@pytest.mark.parametrize("policy", sorted(EXAMPLES.rglob("policy.yaml")), ids=lambda path: path.parent.name)
def test_policies_are_valid(policy: Path) -> None:
    """`breakloop validate` finds nothing, and editors find the schema (B-2)."""
    first, _, _ = policy.read_text().partition("\n")
    assert first.startswith(SCHEMA_LINE)
    assert (policy.parent / first.removeprefix(SCHEMA_LINE)).is_file()
    command = [sys.executable, "-m", "breakloop", "validate", str(policy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nginx_accepts_its_configuration(nginx_path: str, tmp_path: Path) -> None:
    """`nginx -t` on the shipped files; only temporary paths are moved (P-4)."""
    file = configure(tmp_path / "nginx", {})
    main = f"pid {tmp_path / 'nginx.pid'};"
    command = [nginx_path, "-t", "-p", str(file.parent), "-c", str(file), "-e", str(tmp_path / "error.log"), "-g", main]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("gateway", "arguments"),
    [
        (gateways.CADDY, ["validate", "--config", "Caddyfile", "--adapter", "caddyfile"]),
        (gateways.HAPROXY, ["-c", "-f", "haproxy.cfg"]),
        (gateways.ENVOY_HTTP, ["--mode", "validate", "-c", "envoy.yaml"]),
        (gateways.ENVOY_GRPC, ["--mode", "validate", "-c", "envoy-grpc.yaml"]),
        (gateways.ENVOY_PROCESSOR, ["--mode", "validate", "-c", "envoy-ext-proc.yaml"]),
    ],
    ids=lambda one: one.name if isinstance(one, gateways.Gateway) else "",
)
def test_gateways_accept_their_configuration(gateway: gateways.Gateway, arguments: list[str]) -> None:
    """The shipped files, as they are (P-4)."""
    command = [gateways.path_of(gateway), *arguments]
    done = subprocess.run(command, cwd=EXAMPLES / gateway.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_caddy_says_that_it_keeps_the_body_back() -> None:
    """As Caddy asks about two POSTs with different bodies, they are not taken for the same request (P-4, LD-1)."""
    said = {"{breakloop_body_length}": b"5", "{uri}": b"/a"}
    headers = {"x-forwarded-uri": b"/a", "x-forwarded-method": b"POST"}  # what forward_auth sets by itself
    for line in (EXAMPLES / "caddy" / "Caddyfile").read_text().splitlines():
        words = line.split()
        if words[:1] == ["header_up"] and len(words) == 3:
            headers[words[1].lower()] = said[words[2]]
    assert original_call(Request("GET", b"/v1/decision", headers), "").body_unseen

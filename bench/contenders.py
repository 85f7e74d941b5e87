"""The proxies that are compared, started side by side in front of one upstream."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import programs, traffic
from bench.measure import SERVER_CORE

DIRECT = "no proxy"
NGINX = "nginx"
NO_POLICIES = "breakloop, no policies"
GUARD = "breakloop, loop guard"
LIMITS = "breakloop, tail + 3 limits"


@dataclass(frozen=True, slots=True)
class Setup:
    """How breakloop is started."""

    policy: dict[str, Any] | None = None
    env: dict[str, str] = field(default_factory=dict)


OURS = {
    NO_POLICIES: Setup(env={"LOOP_GUARD_MAX_HITS": "0"}),
    GUARD: Setup(),
    LIMITS: Setup(traffic.proxy_policy()),
}


def start(
    stack: ExitStack, folder: Path, upstream: programs.Upstream, *, tls: bool = False, buffering: bool = True
) -> dict[str, programs.Program]:
    """nginx and ours, by name, in the order of a round. They stop with the stack."""
    folder.mkdir()
    nginx = programs.nginx_proxy(folder / "nginx", SERVER_CORE, upstream, tls=tls, buffering=buffering)
    started = {NGINX: stack.enter_context(nginx)}
    url = f"https://localhost:{upstream.tls_port}" if tls else f"http://127.0.0.1:{upstream.port}"
    for number, (name, setup) in enumerate(OURS.items()):
        env = {**setup.env, "SSL_CERT_FILE": str(upstream.certificate)}
        ours = programs.breakloop_proxy(folder / str(number), SERVER_CORE, url, setup.policy, env)
        started[name] = stack.enter_context(ours)
    return started

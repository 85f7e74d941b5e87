"""What sending needs from outside."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from breakloop.alerts.transport import no_log, random_fraction, tls_context
from tests.alert_world import means
from tests.e2e.certificates import Authority


def test_chance_is_between_nothing_and_all() -> None:
    found = {random_fraction() for _ in range(50)}
    assert len(found) > 40
    assert min(found) >= 0
    assert max(found) <= 1


def test_servers_are_verified(tmp_path: Path) -> None:
    """By the system's authorities and those of a file, never not at all (Y-4)."""
    context = tls_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    names = [one["subject"] for one in tls_context(str(Authority(tmp_path, "own").file)).get_ca_certs()]
    assert any("own" in str(name) for name in names)


def test_a_warning_goes_to_the_log() -> None:
    said: list[object] = []
    means(log=lambda *line: said.append(line)).warn("alerts.given_up", target="wh_1")
    assert said == [(logging.WARNING, "alerts.given_up", {"target": "wh_1"})]
    no_log(logging.WARNING, "x", {})

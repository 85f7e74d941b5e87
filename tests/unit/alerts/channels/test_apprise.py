"""The long tail, by apprise: a local service of its own form stands in."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest

from breakloop.alerts.channels.base import Delivery
from breakloop.alerts.channels.services import apprise_target
from breakloop.errors import AlertError
from tests.alert_world import CANARY, loop, means, notice_body, receiver, released

pytest.importorskip("apprise")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the library's own


def test_a_service_gets_it() -> None:
    """Everything else through one library (G-4)."""
    with receiver() as server:
        port = server.server_address[1]
        target = apprise_target(means(), [f"json://127.0.0.1:{port}/{CANARY}"], "https://ops.example")
        for body in (notice_body(loop()), notice_body(released(), about=loop())):
            assert asyncio.run(target.send(Delivery("m", "loop.detected", body))).delivered
        alert, over = (got.json for got in server.got)
    assert (alert["title"], alert["type"]) == ("Agent summariser loops (tail), stopped", "failure")
    assert "Evidence: the same last 3 messages 6 times" in alert["message"]
    assert (over["title"], over["type"]) == ("Agent summariser is released", "success")
    assert CANARY not in repr(target)


def test_what_it_refuses_is_a_failure() -> None:
    """And its log, which names URLs, is not ours (Y-1)."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        with receiver() as server:
            server.status = 500
            target = apprise_target(means(), [f"json://127.0.0.1:{server.server_address[1]}/{CANARY}"])
            outcome = asyncio.run(target.send(Delivery("m", "loop.detected", notice_body(loop()))))
    finally:
        logging.getLogger().removeHandler(handler)
    assert (outcome.delivered, outcome.error) == (False, "a service did not accept it")
    assert lines == []


@pytest.mark.parametrize("urls", [[], [CANARY], ["nonsense://" + CANARY]])
def test_unknown_services(urls: list[str]) -> None:
    """Refused without being repeated (Y-1)."""
    with pytest.raises(AlertError) as raised:
        apprise_target(means(), urls)
    assert CANARY not in str(raised.value)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(AlertError, match=r'pip install "breakloop\[alerts\]"'):
        apprise_target(means(), ["json://localhost"])

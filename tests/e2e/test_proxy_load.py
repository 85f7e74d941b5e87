"""A thousand streams at once through the real server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e import streams_load
from tests.e2e.streams_process import Part

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STREAMS = 1000
SECONDS = float(os.environ.get("BREAKLOOP_TESTS_STREAM_SECONDS", "5"))


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[list[Part]]:
    started: list[Part] = []
    yield started
    for part in started:
        part.end()


@pytest.mark.timeout(SECONDS + 120)
def test_a_thousand_streams(
    parts: list[Part],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """1,000 streams of 10 chunks a second each, every byte of them (D-1). How late the loop is, is printed and not
    judged: it depends on what else the machine does."""
    chunks = int(SECONDS / streams_load.INTERVAL_S)
    parts.append(upstream := Part(tmp_path, "upstream", str(chunks)))
    parts.append(gateway := Part(tmp_path, "gateway", str(upstream.line()["port"]), str(tmp_path)))
    parts.append(clients := Part(tmp_path, "clients", str(gateway.line()["port"]), str(chunks), str(STREAMS)))
    assert clients.line() == {"streams": STREAMS}
    gateway.process.send_signal(signal.SIGUSR1)  # from here on they are only held
    read = clients.line()
    served, sent = gateway.stop(), upstream.stop()
    with capsys.disabled():
        print(f"\nclients {read}\ngateway {served}\nupstream {sent}")  # noqa: T201 - the figures are the result
    record_property("streams", {"clients": read, "gateway": served, "upstream": sent})
    assert (read["complete"], read["faults"]) == (STREAMS, {})
    assert (sent["requests"], sent["aborted"], sent["malformed"]) == (STREAMS, 0, [])
    assert len(served["lag"]) == 2, "while they were opened, and while they were held"
    assert [line for line in gateway.log if line["level"] in {"error", "critical"}] == []

"""What a `Guard` says about its faults."""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
import ssl
from typing import Any

import pytest

from breakloop.clock import FakeClock
from breakloop.errors import SettingsError
from breakloop.exceptions import error_for
from breakloop.sdk.core import Core, describe_fault
from breakloop.sdk.remote_backend import RemoteBackend, UnreadableAnswerError
from tests.unit.sdk.backends import DENIED, ScriptedBackend

REFUSED = ConnectionRefusedError(111, "Connection refused")


def fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["fields"] for record in caplog.records]


def test_once_a_minute_with_where_and_why(caplog: pytest.LogCaptureFixture, clock: FakeClock) -> None:
    """A service that stays away is told again, with a count (LD-7)."""
    caplog.set_level(logging.INFO, "breakloop")
    core = Core(RemoteBackend("http://127.0.0.1:9"), clock)
    for _ in range(4):
        core.fault(REFUSED)
    error = "ConnectionRefusedError: Connection refused; the request was allowed"
    assert fields(caplog) == [{"error": error, "url": "http://127.0.0.1:9"}]
    clock.advance(60)
    core.fault(REFUSED)
    assert fields(caplog)[1:] == [{"error": error, "url": "http://127.0.0.1:9", "left_out": 3}]
    assert caplog.messages == ["guard.fault"] * 2


def test_without_a_service_there_is_no_url(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "breakloop")
    Core(ScriptedBackend()).fault(RuntimeError("canary"))
    assert fields(caplog) == [{"error": "RuntimeError; the request was allowed"}]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (REFUSED, "ConnectionRefusedError: Connection refused"),
        (TimeoutError("timed out"), "TimeoutError: no response in time"),
        (socket.gaierror(-2, "canary"), "gaierror: the host name cannot be resolved"),
        (UnreadableAnswerError("got status 404 instead of a decision"), "got status 404 instead of a decision (is that the traffic port of breakloop?)"),
        (SettingsError("url: is wrong"), "url: is wrong"),
        (http.client.BadStatusLine("canary"), "BadStatusLine"),
        (http.client.RemoteDisconnected("canary"), "RemoteDisconnected"),
        (KeyError("canary"), "KeyError"),
    ],
)  # fmt: skip
def test_causes(error: Exception, said: str) -> None:
    """Nothing of what was asked about, or answered, is in it (Y-1)."""
    assert describe_fault(error) == said


def test_a_certificate_is_named() -> None:
    error = ssl.SSLCertVerificationError(1, "canary")
    error.verify_message = "self-signed certificate"
    assert describe_fault(error) == "SSLCertVerificationError: self-signed certificate"


def test_faults_pass_and_denials_do_not() -> None:
    """An error of ours is counted and the program goes on; a denial, an interrupt and the end of a task are none
    (D-4)."""
    core = Core(ScriptedBackend())
    with core.fail_open():
        raise RuntimeError("canary")
    assert core.faults == 1
    for error in (error_for(DENIED), KeyboardInterrupt(), asyncio.CancelledError()):
        with pytest.raises(type(error)), core.fail_open():
            raise error
    with core.fail_open():
        pass
    assert core.faults == 1

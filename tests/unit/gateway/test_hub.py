"""What connections share: here, what is said about a handler's failure."""

from __future__ import annotations

import json

import pytest

from breakloop.gateway.hub import Phase
from tests.unit.gateway.fake_client import Client


def test_a_failure_is_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    """Y-1: the text of an exception may quote the request."""
    with Client() as client:
        with pytest.raises(ValueError) as caught:
            raise ValueError("secret prompt")
        reply = client.server.handler_failed(caught.value)
        assert (reply.status, json.loads(reply.body)["detail"]["error"]) == (500, "internal_error")
        assert client.server.handler_errors == 1
    (record,) = caplog.records
    assert record.name == "breakloop.gateway"
    assert "ValueError in test_a_failure_is_logged_without_its_text" in record.getMessage()
    assert "secret" not in caplog.text


def test_phases_from_waiting_on_do_not_look_at_input() -> None:
    assert [phase for phase in Phase if phase < Phase.WAITING] == [Phase.IDLE, Phase.HEAD, Phase.BODY]

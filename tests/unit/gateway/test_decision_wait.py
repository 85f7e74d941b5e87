"""Who asks may wait by himself: `/v1/decision?wait=client`."""

from __future__ import annotations

import pytest

from breakloop.gateway.http_request import Reply
from tests.builders import bundle, exact, policy, request, world

THROTTLED = bundle(policy("p", loop=exact(2, action="throttle")))


@pytest.mark.parametrize(
    ("target", "delay_s"),
    [
        ("/v1/decision", 0.2),
        ("/v1/decision?wait=client", 0.0),
        ("/v1/decision?wait=no", 0.2),
        ("/v1/decision/envoy/x?wait=client", 0.2),  # what follows Envoy's prefix is the client's own
    ],
)
def test_a_throttle_is_told_and_not_carried_out(target: str, delay_s: float) -> None:
    """The delay stands in its header field, and the answer comes at once (D-3, D-4)."""
    door = world(THROTTLED).door
    headers = {"X-Original-URI": "/x", "X-Original-Method": "GET"}
    replies = [door(request(target, headers)) for _ in range(2)]
    assert isinstance(replies[1], Reply)
    assert replies[1].delay_s == delay_s
    assert b"X-Breakloop-Loop-Delay: 200\r\n" in replies[1].head


def test_a_client_cannot_ask_for_it() -> None:
    """Only the URL that a gateway sets says so, not what it passes on of the client's (Y-3)."""
    door = world(THROTTLED).door
    headers = {"X-Original-URI": "/x?wait=client", "X-Original-Method": "GET", "wait": "client"}
    replies = [door(request("/v1/decision", headers)) for _ in range(2)]
    assert isinstance(replies[1], Reply)
    assert replies[1].delay_s == 0.2

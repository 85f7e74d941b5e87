"""Whoever an exchange talks to has what it needs, with the same parameters."""

from __future__ import annotations

import inspect

import pytest

from breakloop.gateway.connection import Connection
from breakloop.gateway.proxy import ProxyHandler
from breakloop.gateway.stream_guard import ExchangeClient, ExchangeHandler


@pytest.mark.parametrize(("wanted", "given"), [(ExchangeClient, Connection), (ExchangeHandler, ProxyHandler)])
def test_both_sides_offer_what_is_needed(wanted: type, given: type) -> None:
    names = [name for name, member in vars(wanted).items() if inspect.isfunction(member) and name[0] != "_"]
    assert len(names) >= 3
    for name in names:
        parameters = [list(inspect.signature(getattr(side, name)).parameters) for side in (wanted, given)]
        assert parameters[0] == parameters[1], name

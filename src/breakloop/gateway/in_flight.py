"""Calls in flight that an order stops: an operator's hold, or a kill switch of an operator or of the bundle.

Nothing is registered for this. When an order arrives, the calls that the server forwards at that moment are looked at
once, and once more when calls whose decision was under way have been decided. What was stopped is counted by order, so
that the operator who gave it can be told (`engine.operator`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from breakloop.engine.engine import Engine
from breakloop.engine.operator import NOTHING_STOPPED, StoppedCalls
from breakloop.gateway.exchange import StoppedCall
from breakloop.gateway.server import Server
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.observe.log import log
from breakloop.policy.descriptors import Descriptors

_AGAIN_S: Final = 0.25  # longer than a decision may take
_ORDERS_MAX: Final = 10_000  # whose counts are kept
_AGENTS_MAX: Final = 100  # names that are kept for each


class CallStopper:
    """Stops calls in flight, and counts them. `order_changed` may be called in any thread."""

    def __init__(self, server: Server, engine: Engine, descriptors: Descriptors) -> None:
        self._server = server
        self._engine = engine
        self._descriptors = descriptors
        self._due = False
        self._by_order: dict[str, StoppedCalls] = {}
        self._order = ""  # of the call that is being looked at

    def order_changed(self) -> None:
        """An order was given: look at the calls in flight in the next turn of the event loop."""
        self._server.loop.call_soon_threadsafe(self._schedule)

    def stopped(self, orders: Sequence[str]) -> StoppedCalls:
        """Return what these orders have stopped in this process."""
        self._sweep()  # an order that has arrived in this turn of the loop is in force, too
        found = NOTHING_STOPPED
        for order in orders:
            found = found.plus(self._by_order.get(order, NOTHING_STOPPED), _AGENTS_MAX)
        return found

    def _schedule(self) -> None:
        if not self._due:  # the orders of a whole tree arrive together
            self._due = True
            self._server.loop.call_soon(self._sweep)
            self._server.loop.call_later(_AGAIN_S, self._sweep)

    def _sweep(self) -> None:
        self._due = False
        stopped = StoppedCalls()
        for connection in list(self._server.live):
            try:
                found = connection.stop_call(self._verdict)
            except Exception as error:  # noqa: BLE001 - fail-safe edge: the other calls have to be stopped
                self._server.handler_failed(error)
                continue
            if found is not None:
                stopped = stopped.plus(self._count(found), _AGENTS_MAX)
        if stopped.calls:
            log(logging.WARNING, "calls.stopped", {"calls": stopped.calls, "streams": stopped.streams})

    def _verdict(self, call: Call) -> Verdict | None:
        found = self._engine.stopped(call)
        if found is None:
            return None
        self._order = found[1]
        return found[0]

    def _count(self, found: StoppedCall) -> StoppedCalls:
        one = StoppedCalls(1, int(found.stream), frozenset((self._descriptors.agent(found.call),)))
        known = self._by_order.pop(self._order, NOTHING_STOPPED)
        self._by_order[self._order] = known.plus(one, _AGENTS_MAX)
        if len(self._by_order) > _ORDERS_MAX:
            del self._by_order[next(iter(self._by_order))]
        return one

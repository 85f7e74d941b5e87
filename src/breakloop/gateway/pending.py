"""`Pending`: what a door returns when its decision has to be waited for. Made when the decision is there; where the
client has left meanwhile, it ends what would have begun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from breakloop.gateway.exchange import Exchange
from breakloop.gateway.head import Reply

Made = Callable[[], "Reply | Exchange"]


class Pending:
    """One reply to be. It may be there before anybody waits for it."""

    __slots__ = ("_deliver", "_left", "make")

    def __init__(self) -> None:
        self.make: Made | None = None  # what is decided, once it is
        self._deliver: Callable[[Made], Any] | None = None
        self._left = False

    def resolve(self, make: Made) -> None:
        """It is decided. Whoever waits calls `make`, for that may fail."""
        if self._left:
            result = make()
            if isinstance(result, Exchange):
                result.cancel()  # it was charged for and will have no answer
        elif self._deliver is None:
            self.make = make
        else:
            self._deliver(make)

    def wait(self, deliver: Callable[[Made], Any]) -> None:
        """Call `deliver` when it is decided."""
        self._deliver = deliver

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._left = True

"""What a worker has in place of operations: it tells the control process, which has them, what agents did here and what
there is to show as metrics. When that is sent is `outbox`'s business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from breakloop.fleet.outbox import Outbox
from breakloop.model.figures import Figures
from breakloop.observe.bounded import Bounded
from breakloop.observe.figures import gather
from breakloop.seating import Nobody, Process, sources_of

if TYPE_CHECKING:
    from breakloop.shared_state import SharedState


class Reporting(Nobody):
    """Lets the outbox know what to ask for."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._bounded = Bounded()

    def seat(self, process: Process, shared: SharedState | None) -> None:
        """Take what the process has; from now on what agents do is summed."""
        started_at = process.clock.now()

        def figures() -> Figures:
            # The source of bundles is the control process's: what it refuses would be counted once a worker.
            sources = replace(sources_of(process, shared, started_at, self._dropped), bundles=None)
            return self._bounded.figures(gather(sources))

        process.activity()
        self._outbox.activity = process.activity
        self._outbox.figures = figures

    def _dropped(self) -> Mapping[str, int]:
        return {"worker": self._outbox.dropped}

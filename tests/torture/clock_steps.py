"""A wall clock that is set while a gateway runs, or between two runs. Its monotonic clock goes on."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.e2e.served import eventually
from tests.torture.gateway import Gateway, Rig, chat, expect_alive, send, started
from tests.torture.limits import Limits, SetClock
from tests.torture.table import Row
from tests.torture.upstream import upstream

_HOUR, _DAY = 3600, 86_400
_RATE: Final = 10
_COOLDOWN_S: Final = 1
_PATIENCE_S: Final = 30  # far more than a refill or a cooldown takes, far less than a step
POLICY: Final = f"""
bundle_version: 1
policies:
  - id: rate
    spec:
      selector: {{pathPrefix: /rate}}
      rules:
        - name: bucket
          limit_keys: ["header:x-team"]
          algorithm: token_bucket
          algorithm_config: {{tokens_per_second: {_RATE}, burst: {_RATE}}}
  - id: loop
    spec:
      selector: {{pathPrefix: /v1/chat}}
      loop_detection:
        {{similarity: tail, max_hits: 2, window_seconds: 60, cooldown_seconds: {_COOLDOWN_S}, cooldown_growth: 1}}
"""


def _empty(gate: Gateway, team: str) -> None:
    """Use up the bucket of a client, which takes more requests the slower this is."""
    assert any(gate.decide("/rate", X_Team=team)[0] == 429 for _ in range(10_000))


def _judge(row: Row, gate: Gateway, when: str, *teams: str) -> None:
    """An empty bucket is refilled at its rate."""
    began = time.monotonic()
    with suppress(AssertionError):
        for team in teams:
            eventually(lambda team=team: gate.decide("/rate", X_Team=team)[0] == 200, "", _PATIENCE_S)  # type: ignore[misc]
    took_s = time.monotonic() - began
    seen = f"after {took_s:.1f} s" if took_s < _PATIENCE_S else f"not within {_PATIENCE_S} s"
    row.expect(f"an empty bucket is refilled {when}", took_s < _PATIENCE_S, seen)


def _cooldown_ends(gate: Gateway) -> tuple[bool, str]:
    # Requests during a cooldown may prolong it, so that this can take several of them.
    try:
        eventually(lambda: send(gate.port, chat("again")) == 200, "the end of a cooldown", _PATIENCE_S)
    except AssertionError:
        return False, f"not within {_PATIENCE_S} s"
    return True, "it does"


def back(rig: Rig, row: Row) -> None:
    row.done = (
        f"the clock is set back by an hour while buckets of {_RATE} requests a second are empty and a loop is blocked"
    )
    with upstream() as url, tempfile.TemporaryDirectory(prefix="torture-") as name:
        clock = SetClock(Path(name))
        with started(Path(name), url, limits=clock.apply(Limits()), policy=POLICY) as gate:
            _empty(gate, "old")
            eventually(lambda: send(gate.port, chat("again")) == 429, "a blocked loop")
            clock.step(-_HOUR)
            _empty(gate, "new")
            _judge(row, gate, "after the step", "old", "new")
            if rig.long:
                row.expect(f"a cooldown of {_COOLDOWN_S} s ends", *_cooldown_ends(gate))
            expect_alive(row, gate)


def forward_and_back(_rig: Rig, row: Row) -> None:
    row.done = "the clock is a day ahead for a few requests, then right again; then the gateway is restarted"
    with upstream() as url, tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name)
        clock = SetClock(folder)
        with started(folder, url, limits=clock.apply(Limits()), policy=POLICY) as gate:
            _empty(gate, "old")
            clock.step(_DAY)
            _judge(row, gate, "while it is ahead", "old")
            _empty(gate, "old")
            clock.step(0)
            _empty(gate, "new")
            _judge(row, gate, "when it is right again", "old", "new")
            _empty(gate, "old")
        with started(folder, url, limits=clock.apply(Limits()), policy=POLICY) as gate:
            _judge(row, gate, "after a restart", "old")
            expect_alive(row, gate)


def saved_ahead(_rig: Rig, row: Row) -> None:
    row.done = "counters are saved while the clock is a day ahead; the gateway is started again with the right time"
    with upstream() as url, tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name)
        clock = SetClock(folder)
        clock.step(_DAY)
        with started(folder, url, limits=clock.apply(Limits()), policy=POLICY) as gate:
            _empty(gate, "old")
        clock.step(0)
        with started(folder, url, limits=clock.apply(Limits()), policy=POLICY) as gate:
            _empty(gate, "new")
            _judge(row, gate, "after the start", "old", "new")
            expect_alive(row, gate)


SCENARIOS: Final[dict[str, Callable[[Rig, Row], None]]] = {
    "clock-set-back": back,
    "clock-ahead-for-a-moment": forward_and_back,
    "clock-ahead-before-a-restart": saved_ahead,
}

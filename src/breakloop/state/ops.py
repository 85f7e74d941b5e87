"""Operations on shared state, as data: detectors and limiters plan them, a store carries them out in one commit.

An operation belongs to a `group`: 0 is what is enforced; each shadow policy is a group of its own, so that what it
would have denied keeps its own limits from being charged and nobody else's. What an operation may cost or deny is in
its spec, made once when a bundle is compiled; only key and cost are made per request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

ENFORCED = 0
FLIGHT_S: Final = 1.0  # so long after its start others may join a request that has no answer yet
JOINED: Final = -1  # `Repeated.flight` of a request that joined another

# Whoever planned an operation reads its result. It lives in a higher layer, so its type is not known here.
Owner = Any


@dataclass(frozen=True, slots=True)
class RepeatSpec:
    """How often one fingerprint may come: `limit` pass within `window_s`, the next trips."""

    window_s: float
    limit: int
    sliding: bool = False  # False: the count lives for `window_s` after the last hit
    denies: bool = True  # False: warn and throttle, which never end evaluation
    cooldown_s: float = 0.0  # 0: no cooldown; the count itself keeps blocking
    growth: float = 1.0
    cooldown_max_s: float = 0.0
    concurrent_free: int = 0  # so many tracked ones join one that is in flight, and are not counted
    retry_free: int = 0  # so many counts a window are taken back because the answer failed
    at_once: bool = False  # the first one trips: `limit` is for those after a cooldown


class Repeat:
    """Count a fingerprint. Always done, whatever else the request meets (SPEC E-4).

    `tracked`: its end will be told (`Settle`), so it may join one that is in flight, or lead a flight itself.
    """

    __slots__ = ("group", "key", "limit", "owner", "spec", "tracked")

    def __init__(
        self,
        spec: RepeatSpec,
        key: str,
        owner: Owner,
        group: int = ENFORCED,
        limit: int = -1,
        tracked: bool = False,  # noqa: FBT001, FBT002 - made per request: names cost
    ) -> None:
        self.spec = spec
        self.key = key
        self.owner = owner
        self.group = group
        self.limit = spec.limit if limit < 0 else limit
        self.tracked = tracked


class Repeated(NamedTuple):
    """How often it has come. `wait_s` is how long it stays blocked from now (0 unless it tripped)."""

    hits: int
    tripped: bool = False
    fresh: bool = False  # tripped just now, and not while cooling down
    wait_s: float = 0.0
    span_s: float = 0.0  # the count was reached within this many seconds
    flight: int = 0  # > 0: it leads a flight, the how-manieth of its time; JOINED: it joined one, and `hits` is its


class Settle:
    """Say that a counted request has ended: its flight is over, and if it failed its count is taken back (SPEC LD-6).

    `at` is when it was counted, by the store's time (`Committed.at`); `flight` as its `Repeated` says.
    """

    __slots__ = ("at", "flight", "key", "spec")

    def __init__(self, spec: RepeatSpec, key: str, at: float, flight: int = 0) -> None:
        self.spec = spec
        self.key = key
        self.at = at
        self.flight = flight


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """A token bucket: holds `burst`, refills `rate` a second."""

    rate: float
    burst: float


class Bucket:
    """Take `cost` tokens, if every limit of the commit allows it.

    Its result is what is left after the charge; less than nothing means denied, and by how much it fell short.
    """

    __slots__ = ("cost", "group", "key", "owner", "spec")

    def __init__(self, spec: BucketSpec, key: str, cost: float, owner: Owner, group: int = ENFORCED) -> None:
        self.spec = spec
        self.key = key
        self.cost = cost
        self.owner = owner
        self.group = group


class Noted:
    """Something that was seen and denies nothing; holds its place in the order."""

    __slots__ = ("group", "owner")

    def __init__(self, owner: Owner, group: int = ENFORCED) -> None:
        self.owner = owner
        self.group = group


class Refuse:
    """A denial known before any state is looked at (a missing descriptor); holds its place in the order."""

    __slots__ = ("group", "owner")

    def __init__(self, owner: Owner, group: int = ENFORCED) -> None:
        self.owner = owner
        self.group = group


Op = Repeat | Bucket | Refuse | Noted
Result = Repeated | float | None  # None: not looked at, because its group was denied before


class Window(NamedTuple):
    """A packed session window and the version it was read at. Version 0: there is none yet."""

    version: int
    data: bytes


class WindowWrite(NamedTuple):
    """Write `data` if the window still has `version`; otherwise the whole commit changes nothing."""

    key: str
    version: int
    data: bytes
    ttl_s: float


@dataclass(slots=True)
class Committed:
    """What a commit did. `denied_at` is the index of the first enforced denial, or -1."""

    results: list[Result]
    denied_at: int = -1
    conflict: Window | None = None  # a newer window; nothing was changed
    at: float = field(default=0.0, compare=False)  # when, by the store's time: for `Settle`

"""What blocks with a memory have in common: whose window they keep, whom they leave alone, and what follows from what
they find. What they look for is each one's own.

`Seen`: a loop that a detector with a memory saw in one call, and what is to be done about it. Stands as the owner of
its operation, as `LoopDetector` does for the detectors that count.

Detectors that remember: each keeps a section of somebody's window (a session's, an agent's, a caller's), looks at a
call with it, and says what follows. Reading and writing windows is `windows`' work, packing them `sections`'.

The parts of one session window: each detector keeps its own, under a tag of eight bytes. A window is one value in
the store, because one commit changes all of it or nothing (SPEC E-5).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol

from breakloop.detect.counting import DELAY_MAX_MS, DELAY_STEP_MS, DetectorConfig, DetectorIdentity
from breakloop.model.call import Answer, Call, Step
from breakloop.model.verdict import LoopFinding
from breakloop.store.ops import ENFORCED, CountFingerprint, FingerprintCount, FingerprintSpec, Observation, Op, part

TAG_BYTES: Final = 8
_SIZE_BYTES: Final = 2
_HEAD: Final = TAG_BYTES + _SIZE_BYTES
SECTION_MAX: Final = 2 ** (8 * _SIZE_BYTES) - 1


def unpack_sections(data: bytes) -> dict[bytes, bytes]:
    """Return the sections by tag; what cannot be read counts as new."""
    if int.from_bytes(data[TAG_BYTES:_HEAD]) == len(data) - _HEAD > 0:  # only one, as nearly always
        return {data[:TAG_BYTES]: data[_HEAD:]}
    sections: dict[bytes, bytes] = {}
    at = 0
    while at + _HEAD <= len(data):
        size = int.from_bytes(data[at + TAG_BYTES : at + _HEAD])
        stop = at + _HEAD + size
        if stop > len(data):
            return {}
        sections[data[at : at + TAG_BYTES]] = data[at + _HEAD : stop]
        at = stop
    return sections if at == len(data) else {}


def pack_sections(sections: dict[bytes, bytes]) -> bytes:
    """Return the sections as one value; one that is too long is left out, which makes it new the next time."""
    pieces: list[bytes] = []
    for tag, content in sections.items():
        size = len(content)
        if 0 < size <= SECTION_MAX:
            pieces += (tag, size.to_bytes(_SIZE_BYTES), content)
    return b"".join(pieces)


CALLER_OWNER: Final = "c:"  # how an owner begins that may have several agents: a caller


class WindowDetector(Protocol):
    """A detector with a memory."""

    config: DetectorConfig
    tags: tuple[bytes, bytes]  # of its section: enforced, and in shadow

    def owner(self, call: Call) -> str:
        """Return whose window it is, as keys hold it; "" where it has nothing to say about the call."""
        ...

    def evaluate(self, call: Call, window: bytes, now: float) -> Evaluation | None:
        """Judge the call with what is window_keys (b"": nothing yet); None to leave all as it is."""
        ...

    def operation(self, call: Call, looked: Any, project: str, group: int) -> Op | None:
        """Return what is to be done about it, or None."""
        ...

    def awaits_answer(self, call: Call, looked: Any) -> bool:
        """Tell whether the answer to this call can change what is window_keys."""
        ...

    def answered(self, window: bytes, answer: Answer) -> bytes:
        """Return the memory after the answer to a call that was looked at; the same object where nothing changes."""
        ...


class Evaluation(Protocol):
    """What a look came to: the section to keep, the same object where nothing changes, and whatever was found."""

    @property
    def window(self) -> bytes:
        """The memory after the call."""
        ...


class DetectorSlot:
    """Stands among the operations where a finding may follow; no store ever sees it."""

    __slots__ = ("detector", "group")

    def __init__(self, detector: WindowDetector, group: int) -> None:
        self.detector = detector
        self.group = group


def window_shard(owner: str, shard: str, project: str) -> str:
    """Return where the window of an owner is kept, as keys hold it: what several agents share is in the project's."""
    return shard if shard is project or not owner.startswith(CALLER_OWNER) else project


def window_key(owner: str) -> str:
    """Return the key of somebody's window, project included; the end tells it from keys that begin alike."""
    return f"win:{owner}:"


def section_tags(config: DetectorConfig, what: str = "") -> tuple[bytes, bytes]:
    """Return the names of a detector's section; what a shadow policy remembers stands apart."""
    name = f"{what}{block_key(config)}"
    return _tag(name), _tag(f"shadow:{name}")


def block_key(config: DetectorConfig) -> str:
    """Return which block of which policy this is, as keys hold it."""
    return f"{config.key_prefix}{part(config.policy)}:{config.index}"


def _tag(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "replace"), digest_size=TAG_BYTES).digest()


NOTICE, BLOCK, STOP = 1, 2, 3
DENYING: Final = frozenset({"reject", "kill"})


class DetectorFinding(Protocol):
    """What a detector found."""

    @property
    def window(self) -> bytes:
        """The memory after the call; the same object where nothing changes."""
        ...

    @property
    def level(self) -> int:
        """0 nothing, 1 notice, 2 block, 3 stop."""
        ...

    @property
    def kind(self) -> str:
        """What kind of loop it is."""
        ...

    @property
    def evidence(self) -> str:
        """What was seen, in numbers and names of tools."""
        ...

    @property
    def identity(self) -> str:
        """Tells this loop from others: 16 hex digits."""
        ...

    @property
    def fresh(self) -> bool:
        """Whether it was not told before."""
        ...


class Detection:
    """One loop in one call."""

    __slots__ = ("action", "config", "evaluation", "evidence", "kind", "owner", "who")

    def __init__(
        self,
        config: DetectorConfig,
        action: str,
        finding: DetectorFinding,
        who: DetectorIdentity,
        owner: str = "",
        aside: str = "",
    ) -> None:
        self.config = config
        self.action = action
        self.evaluation = finding
        self.kind = finding.kind
        self.evidence = f"{finding.evidence}; {aside}" if aside else finding.evidence
        self.who = who
        self.owner = owner  # whose loop it is, project included

    @property
    def window_keys(self) -> tuple[str, ...]:
        """Keys of what is window_keys against whoever loops, beside its count."""
        return (window_key(self.owner),)

    @property
    def hits(self) -> int:
        """How far the loop has come, as a whole number; 1 where its detector does not count."""
        return max(1, int(getattr(self.evaluation, "hits", 1)))

    def finding(self, _op: Op, result: FingerprintCount) -> LoopFinding:
        """Return what it means."""
        wait_s = math.ceil(result.wait_s)
        return LoopFinding(
            kind=self.kind,
            fingerprint=self.evaluation.identity,
            hit_count=result.hits,
            window_s=0,
            cooldown_s=wait_s,
            action=self.action,
            fresh=result.fresh if wait_s else self.evaluation.fresh,
            message=(
                f"Blocked: {self.evidence}. Do something else, or finish with what you have. "
                f"The same again stays blocked for {wait_s} seconds; a different step passes at once."
            ),
            evidence=self.evidence,
        )

    def note(self, _loop: LoopFinding) -> str:
        """Return the sentence for a model that is steered and not stopped."""
        return f"You repeat yourself: {self.evidence}. Change course, or finish with what you have."

    def delay_ms(self, count: int) -> int:
        """Return how long a throttled request waits."""
        return min(count * DELAY_STEP_MS, DELAY_MAX_MS)

    def sender(self, call: Call) -> tuple[str, str]:
        """Return caller and agent as events name them."""
        return self.who.caller(call), self.who.agent(call)


class SeverityActions:
    """What a block does at each level, and how long what it blocks stays blocked."""

    __slots__ = ("_actions", "_config", "_key", "_spec", "_who")

    def __init__(
        self, config: DetectorConfig, actions: tuple[str, str, str], spec: FingerprintSpec, who: DetectorIdentity
    ) -> None:
        self._config = config
        self._actions = actions  # of notice, block and stop
        self._spec = spec
        self._who = who
        self._key = f":{block_key(config)}:"

    def operation(
        self, finding: DetectorFinding, level: int, owner: str, group: int, aside: str = ""
    ) -> CountFingerprint | Observation | None:
        """Return what follows: a block that cools down, or a mere note. `aside` goes to its evidence.

        `owner` is whose loop it is, project included: nobody cools down for somebody else's.
        """
        if level < NOTICE:
            return None
        action = self._actions[min(level, STOP) - 1]
        seen = Detection(self._config, action, finding, self._who, owner, aside)
        if action not in DENYING:
            return Observation(seen, group)
        shadow = "shadow:" if group else ""
        return CountFingerprint(self._spec, f"{shadow}cnt:{owner}{self._key}{finding.identity}", seen, group)


class CallReaders(NamedTuple):
    """How a block reads a call."""

    step: Callable[[Call], Step | None]
    owner: Callable[[Call], str]  # whose window; "" where the block has nothing to say
    who: DetectorIdentity


class StatefulDetector:
    """A `WindowDetector` without eyes: `look` is for those who inherit."""

    __slots__ = ("_ladder", "_reads", "_watch", "config", "tags")

    def __init__(self, config: DetectorConfig, ladder: SeverityActions, reads: CallReaders, what: str = "") -> None:
        self.config = config
        self.tags = section_tags(config, what)
        self._ladder = ladder
        self._reads = reads
        self._watch = DetectorSlot(self, ENFORCED)  # the same for every call

    def plan(self, _call: Call, _project: str, group: int, _now: float) -> DetectorSlot | None:
        """Return what stands in the place of a finding until the window is read."""
        return DetectorSlot(self, group) if group else self._watch

    def owner(self, call: Call) -> str:
        """Return whose window it is."""
        return self._reads.owner(call)

    def evaluate(self, _call: Call, _window: bytes, _now: float) -> DetectorFinding | None:
        """Judge the call with what is window_keys."""
        raise NotImplementedError

    def awaits_answer(self, _call: Call, _looked: Any) -> bool:
        """Tell whether the answer to a call can change what is window_keys."""
        return False

    def answered(self, window: bytes, _answer: Answer) -> bytes:
        """Return the memory after an answer: the same, where `hears` does not say otherwise."""
        return window

    def operation(self, call: Call, looked: DetectorFinding, project: str, group: int) -> Op | None:
        """Return what is to be done about it."""
        return self.follow(call, looked, looked.level, project, group) if looked.level else None

    def follow(
        self, call: Call, looked: DetectorFinding, level: int, project: str, group: int, aside: str = ""
    ) -> Op | None:
        """Return what follows from a finding of this level."""
        return self._ladder.operation(looked, level, f"{project}:{self.owner(call)}", group, aside)

    def newest(self, call: Call, now: float) -> Step | None:
        """Return the call's newest step; None when it has none, or is none of this block's business."""
        step = self._reads.step(call)
        return None if step is None or self._is_allowed(call, now) else step

    def _is_allowed(self, call: Call, now: float) -> bool:
        allow = self.config.allow
        return allow is not None and allow.covers(call, "", self._reads.who, now)

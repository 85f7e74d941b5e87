"""Detectors that keep state between requests: their base class, the result of one evaluation, and what follows from it.

The state of a session, an agent or a caller is a *window*: one value in the store, so that one commit changes all of
it or nothing. Each detector has a section of the window, under a tag of eight bytes. The engine plans (`plan`), reads
the windows that the detectors own (`owner`), calls `evaluate`, and commits the new sections with the operations that
follow (`operation`). Where an answer can change the state (`awaits_answer`), the engine calls `answered` with it.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import ClassVar, Final, final

import msgspec

from breakloop.detect.advice import GENERAL, Advice, advice_for, landing_note
from breakloop.detect.counting import DELAY_MAX_MS, DELAY_STEP_MS, CallReader, DetectorConfig
from breakloop.model.call import TOOL_DIALECTS, Answer, Call, Chat
from breakloop.model.verdict import LoopFinding
from breakloop.store.keys import escape, join_values, prefix, window_key
from breakloop.store.ops import ENFORCED, CountFingerprint, FingerprintCount, FingerprintSpec, Observation, Op

TAG_BYTES: Final = 8
_SIZE_BYTES: Final = 2
_HEAD: Final = TAG_BYTES + _SIZE_BYTES
SECTION_MAX: Final = 2 ** (8 * _SIZE_BYTES) - 1


def unpack_sections(data: bytes) -> dict[bytes, bytes]:
    """Return the sections of a window by tag; none if the data cannot be read, so that detection starts afresh."""
    length = len(data)
    if length > _HEAD and data[TAG_BYTES] << 8 | data[TAG_BYTES + 1] == length - _HEAD:  # one section, the usual case
        return {data[:TAG_BYTES]: data[_HEAD:]}
    sections: dict[bytes, bytes] = {}
    at = 0
    while at + _HEAD <= length:
        size = int.from_bytes(data[at + TAG_BYTES : at + _HEAD])
        stop = at + _HEAD + size
        if stop > length:
            return {}
        sections[data[at : at + TAG_BYTES]] = data[at + _HEAD : stop]
        at = stop
    return sections if at == length else {}


def pack_sections(sections: dict[bytes, bytes]) -> bytes:
    """Return the sections as one value. A section that is empty or too long is dropped."""
    packed = b""
    for tag, content in sections.items():
        size = len(content)
        if 0 < size <= SECTION_MAX:
            packed += tag + size.to_bytes(_SIZE_BYTES) + content  # one section, usually: nothing is copied twice
    return packed


CALLER_OWNER: Final = "c:"  # prefix of an owner that can have several agents: a caller


def session_owner(read: CallReader, call: Call) -> str:
    """Return the owner of a session's window; "" if the call has no session."""
    session = read.window(call)
    return f"s:{escape(session)}" if session else ""


def agent_owner(read: CallReader, call: Call) -> str:
    """Return the owner of the window of one caller and agent."""
    return f"a:{join_values([read.caller(call), read.agent(call)])}"


def caller_owner(read: CallReader, call: Call) -> str:
    """Return the owner of the window of one caller."""
    return f"{CALLER_OWNER}{escape(read.caller(call))}"


def window_shard(owner: str, shard: str, project: str) -> str:
    """Return the project part of a window's key. Windows that several agents share are not kept by shard."""
    return shard if shard is project or not owner.startswith(CALLER_OWNER) else project


def section_tags(config: DetectorConfig, section: str = "") -> tuple[bytes, bytes]:
    """Return the tags of a detector's section: enforced, and in shadow."""
    name = f"{section}{block_key(config)}"
    return _tag(name), _tag(f"shadow:{name}")


def block_key(config: DetectorConfig) -> str:
    """Return the part of a key that identifies a block: its policy and its index."""
    return f"{config.key_prefix}{escape(config.policy)}:{config.index}"


def _tag(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "replace"), digest_size=TAG_BYTES).digest()


NOTHING, NOTICE, BLOCK, STOP = 0, 1, 2, 3  # levels, persisted in every window: never renumber them
RUN_IDLE_S: Final = 600.0  # a run of an agent ends after this much inactivity
DENYING: Final = frozenset({"land", "pause", "reject", "kill"})  # `land` and `pause` deny in the end


# To let a tool call of these kinds pass would do what they are to prevent. In a request to an LLM it has been made.
_EFFECTS: Final = frozenset({"tool_limit", "side_effect"})


def _is_tool_call(call: Call) -> bool:
    chat = call.parsed.chat
    return isinstance(chat, Chat) and chat.dialect in TOOL_DIALECTS


class Evaluation(msgspec.Struct, frozen=True, gc=False):
    """What a detector found in one call, and its section of the window after the call."""

    window: bytes  # the object that was passed in, if nothing changed
    level: int = NOTHING
    kind: str = ""
    evidence: str = ""  # tool names, counts and sizes; never what was asked or answered
    identity: str = ""  # of the loop: 16 hex digits
    fresh: bool = False  # not reported before at this level, nor at half the count
    hits: float = 0.0  # 0: the detector does not count
    ambiguous: bool = False  # unnamed conversations overlap, so the counts may belong to several of them


class Detection:
    """A loop that a stateful detector found in one call, with its action: the `owner` of an operation."""

    __slots__ = ("_advice", "_read", "action", "config", "evaluation", "evidence", "kind", "owner")

    def __init__(
        self,
        config: DetectorConfig,
        action: str,
        evaluation: Evaluation,
        read: CallReader,
        owner: str,
        remark: str,
        advice: Advice = GENERAL,
    ) -> None:
        self.config = config
        self.action = action
        self.evaluation = evaluation
        self.kind = evaluation.kind
        self.evidence = f"{evaluation.evidence}; {remark}" if remark else evaluation.evidence
        self.owner = owner  # of the window, project included
        self._read = read
        self._advice = advice

    @property
    def window_keys(self) -> tuple[str, ...]:
        """Keys to clear when an operator releases the agent, besides the key of the count."""
        return (window_key(self.owner),)

    @property
    def hits(self) -> int:
        """The count as a whole number; 1 if the detector does not count."""
        return max(1, int(self.evaluation.hits))

    def finding(self, _op: Op, result: FingerprintCount) -> LoopFinding:
        """Return the loop as verdicts and events describe it."""
        wait_s = math.ceil(result.wait_s)
        return LoopFinding(
            kind=self.kind,
            fingerprint=self.evaluation.identity,
            hit_count=result.hits,
            window_s=0,
            cooldown_s=wait_s,
            action=self.action if self.action != "land" or result.landed else "reject",
            fresh=result.fresh if wait_s else self.evaluation.fresh,
            message=(
                f"Blocked: {self.evidence}. {self._advice.instead} "
                f"The same again stays blocked for {wait_s} seconds; a different step passes at once."
            ),
            evidence=self.evidence,
        )

    def note(self, loop: LoopFinding) -> str:
        """Return the sentence that is added to the conversation of a model that is steered or landed."""
        why = f"You repeat yourself: {self.evidence}."
        return landing_note(why, self._advice) if loop.action == "land" else f"{why} {self._advice.instead}"

    def delay_ms(self, count: int) -> int:
        """Return how long a throttled request waits."""
        return min(count * DELAY_STEP_MS, DELAY_MAX_MS)

    def sender(self, call: Call) -> tuple[str, str]:
        """Return caller and agent as events name them."""
        return self._read.caller(call), self._read.agent(call)


@final
class DetectorSlot:
    """Marks the position of a detector among the planned operations; the engine replaces it with what the detector
    found. Stores never see it."""

    __slots__ = ("detector", "group")

    def __init__(self, detector: StatefulDetector, group: int) -> None:
        self.detector = detector
        self.group = group


class StatefulDetector:
    """Base class. A subclass implements `owner` and `evaluate`."""

    __slots__ = ("_cooldown_key", "_exempts", "_read", "_slot", "config", "of_unnamed", "tags")

    # It has `locate` instead of `evaluate`, and the windows of other detectors depend on what that finds. Its own
    # window begins with an answer.
    locates: ClassVar[bool] = False
    detection: ClassVar[type[Detection]] = Detection  # describes what it found

    def __init__(self, config: DetectorConfig, read: CallReader, section: str = "") -> None:
        self.config = config
        self.tags = section_tags(config, section)
        self._read = read
        self._slot = DetectorSlot(self, ENFORCED)  # the same for every call
        self._exempts = config.allow is not None
        self.of_unnamed = False  # it is only planned for calls whose session has no name
        self._cooldown_key = f":{block_key(config)}:"

    def plan(self, call: Call, _project: str, group: int, now: float) -> DetectorSlot | None:
        """Return the slot for this call; None if it is on the allow list. `now` is the time of day."""
        if self._exempts and self.config.allow is not None and self.config.allow.covers(call, "", self._read, now):
            return None
        return DetectorSlot(self, group) if group else self._slot

    def owner(self, call: Call) -> str:
        """Return the owner of the window, without the project; "" if the detector does not apply to the call."""
        raise NotImplementedError

    def locate(self, _call: Call, _window: bytes, _now: float) -> bool:
        """Find out, before calls are evaluated, whose windows the call belongs to. Returns whether the owners of other
        detectors have changed.
        """
        return False

    def evaluate(self, call: Call, window: bytes, now: float) -> Evaluation | None:
        """Evaluate a call against the section (b"" if it is new); None to leave everything unchanged. `now` is the time
        by which windows age, not the time of day.
        """
        raise NotImplementedError

    def is_advisory(self, _call: Call) -> bool:
        """Tell whether the window may be outdated or not written, if others write it at the same time."""
        return False

    def operation(self, call: Call, evaluation: Evaluation, project: str, group: int) -> Op | None:
        """Return the operation that an evaluation leads to, if any."""
        return self._act(call, evaluation, evaluation.level, project, group) if evaluation.level else None

    def awaits_answer(self, _call: Call, _evaluation: Evaluation) -> bool:
        """Tell whether the answer to this call can change the section."""
        return False

    def reads_answer(self, _call: Call, _answer: Answer) -> bool:
        """Tell whether this answer may change the section, now that it is known. This is fast."""
        return True

    def answered(self, window: bytes, _answer: Answer) -> bytes:
        """Return the section after the answer to an evaluated call; the same object if nothing changed."""
        return window

    def answered_call(self, window: bytes, answer: Answer, _call: Call) -> bytes:
        """The same, for a detector to which it matters which call was answered."""
        return self.answered(window, answer)

    def _advised(self, _call: Call, evaluation: Evaluation) -> str:
        """Return the kind whose advice fits the loop."""
        return evaluation.kind

    def _act(
        self, call: Call, evaluation: Evaluation, level: int, project: str, group: int, remark: str = ""
    ) -> Op | None:
        """Return the operation for a level: a denial with a cooldown, or an observation. The owner is in the key of the
        cooldown, so it blocks no one else. `remark` is appended to the evidence."""
        config = self.config
        action = config.actions[min(level, STOP) - 1]
        owner = f"{project}:{self.owner(call)}"
        if action == "land" and not self._can_land(call, evaluation):
            action = "reject"
        elif action == "pause" and call.decision.granted:
            action = "warn"
        advice = advice_for(self._advised(call, evaluation), config.advice)
        detection = self.detection(config, action, evaluation, self._read, owner, remark, advice)
        if action not in DENYING:
            return Observation(detection, group)
        shadow = prefix(group)
        key = f"{shadow}cnt:{owner}{self._cooldown_key}{evaluation.identity}"
        if action != "land" or config.landing is None:
            return CountFingerprint(self._cooldown(evaluation), key, detection, group)
        landed = f"{shadow}land:{project}{self._cooldown_key}{self.owner(call)}"
        return CountFingerprint(config.landing, key, detection, group).landing(landed)

    def _can_land(self, call: Call, evaluation: Evaluation) -> bool:
        """Tell whether a call may pass without tools. A tool call with an effect cannot."""
        return evaluation.kind not in _EFFECTS or not _is_tool_call(call)

    def _cooldown(self, _evaluation: Evaluation) -> FingerprintSpec:
        """Return how long a denial lasts."""
        return self.config.cooldown

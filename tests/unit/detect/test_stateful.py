"""Detectors with state: sections of a window, what follows from an evaluation, and the base class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.stateful import (
    NOTHING,
    TAG_BYTES,
    Detection,
    DetectorSlot,
    Evaluation,
    StatefulDetector,
    agent_owner,
    block_key,
    caller_owner,
    pack_sections,
    section_tags,
    session_owner,
    unpack_sections,
    window_shard,
)
from breakloop.engine.decision_state import GrantedState
from breakloop.model.call import Answer, Call, Chat, Step
from breakloop.store.ops import CountFingerprint, FingerprintCount, Observation, Op
from tests.builders import bundle, call, chat, user, world
from tests.unit.detect.reading import CONFIG, SPEC, STEP, Reader, allowing

TAGS = st.binary(min_size=8, max_size=8)
ACTIONS = replace(CONFIG, actions=("steer", "reject", "kill"))
FOUND = Evaluation(b"new", 2, "repeat", "`read` returned the same 9 bytes 5 times", "ab" * 8, fresh=True)
KEY = {"authorization": "Bearer k"}


class Detector(StatefulDetector):
    """Has a session's window, and finds nothing by itself."""

    __slots__ = ()

    def owner(self, call: Call) -> str:
        return session_owner(self._read, call)


def detector(config: DetectorConfig = CONFIG, step: Step | None = STEP) -> Detector:
    return Detector(config, Reader(step), "part:")


def operation(level: int, *, group: int = 0, remark: str = "", **values: Any) -> Op | None:
    made = detector(ACTIONS)
    return made._act(call(), changed(FOUND, level=level, **values), level, "project", group, remark)


# --- sections


@given(st.dictionaries(TAGS, st.binary(min_size=1, max_size=100), max_size=5))
def test_what_is_packed_comes_back(sections: dict[bytes, bytes]) -> None:
    assert unpack_sections(pack_sections(sections)) == sections


@given(st.binary(max_size=200))
def test_nothing_makes_reading_fail(data: bytes) -> None:
    """Whatever is in the store: it counts as new."""
    assert isinstance(unpack_sections(data), dict)


@pytest.mark.parametrize("content", [b"", b"x" * 0x10000])
def test_what_cannot_be_kept_is_dropped(content: bytes) -> None:
    assert unpack_sections(pack_sections({b"12345678": content, b"abcdefgh": b"y"})) == {b"abcdefgh": b"y"}


def test_the_largest_section() -> None:
    """Its length has two bytes."""
    sections = {b"12345678": b"x" * 0xFFFF, b"abcdefgh": b"y"}
    assert unpack_sections(pack_sections(sections)) == sections


def test_a_cut_window_is_new() -> None:
    packed = pack_sections({b"12345678": b"content"})
    for stop in range(1, len(packed)):
        assert unpack_sections(packed[:stop]) == {}


def window_of(*contents: bytes) -> bytes:
    """A window with these sections, as it is stored."""
    return b"".join(b"section%d" % at + len(one).to_bytes(2) + one for at, one in enumerate(contents))


@pytest.mark.parametrize(
    "contents",
    [
        (b"\x0c", b"y"),  # the first byte of the content is no length, although it could be that of the rest
        (b"x" * 19, b"y" * 19),  # nor is the last byte of the tag, which is 48
        (b"x" * 256, b"y" * 246),  # 512 bytes after the first head
        (b"x" * 20 * 256, b"y" * 10),
        (b"x" * 300, b"y" * 300, b"z"),
        (b"x" * 255,),
        (b"x" * 256,),
        (b"x" * 257,),
    ],
)
def test_one_section_and_several(contents: tuple[bytes, ...]) -> None:
    """Whatever their lengths are, each is read as it was written (S-1)."""
    sections = {b"section%d" % at: one for at, one in enumerate(contents)}
    assert pack_sections(sections) == window_of(*contents)
    assert unpack_sections(window_of(*contents)) == sections


@pytest.mark.parametrize("size", [1, 5, 128, 133, 241, 255, 260, 261])
def test_a_section_that_is_shorter_than_its_length_is_not_read(size: int) -> None:
    """Wherever it was cut; nor is one with something behind it (S-1)."""
    whole = window_of(b"x" * 261)
    assert unpack_sections(whole[: 10 + size]) == ({b"section0": b"x" * 261} if size == 261 else {})
    assert unpack_sections(whole + b"y" * size) == {}


def test_an_empty_section_is_read() -> None:
    """Although none is written (S-1)."""
    assert unpack_sections(window_of(b"")) == {b"section0": b""}
    assert unpack_sections(window_of(b"x", b"")) == {b"section0": b"x", b"section1": b""}


def config(policy: str = "p", index: int = 0, prefix: str = "") -> DetectorConfig:
    return DetectorConfig("steps", policy, index, ("warn", "reject", "reject"), 429, key_prefix=prefix)


def test_each_block_has_a_section_of_its_own() -> None:
    """By policy, prefix, number and section; the state of a shadow policy is separate (E-1)."""
    blocks = (config(), config("q"), config(index=1), config(prefix="|"))
    made = [*[section_tags(one) for one in blocks], section_tags(config(), "lanes:")]
    names = [tag for pair in made for tag in pair]
    assert len(set(names)) == len(names) == 10
    assert {len(tag) for tag in names} == {TAG_BYTES}
    assert section_tags(config()) == section_tags(config())


def test_names_of_policies_cannot_collide() -> None:
    assert block_key(config("a:1", 0)) != block_key(config("a", 1))
    assert block_key(config("|x")) != block_key(config("x", prefix="|"))


def test_persisted_tags() -> None:
    """Windows contain these tags; a detector finds its section again under another version of this program (S-1)."""
    assert [tag.hex() for tag in section_tags(config())] == ["aae853e1e7a271e3", "5ed8f06a3064c3c1"]
    assert [tag.hex() for tag in section_tags(config(), "lanes:")] == ["9c5002ce0d88c0f2", "918b84a7d78d5c65"]
    assert [tag.hex() for tag in section_tags(config(), "run:")] == ["9258cdfc7310315f", "dc74724099efd6ee"]
    assert [tag.hex() for tag in section_tags(config(), "score:")] == ["8b1431406c06289d", "f523f4a7a9164408"]
    assert [tag.hex() for tag in section_tags(config(), "spawn:")] == ["42d18e4787f520c5", "8f7c5448ca8220a0"]


# --- owners


def asked(text: str = "hello", **headers: str) -> Call:
    return chat(user(text), headers={**KEY, **{name.replace("_", "-"): value for name, value in headers.items()}})


def test_a_session_belongs_to_its_caller() -> None:
    """Whoever picks another caller's id gets a session of his own (C-7)."""
    read = world(bundle()).descriptors
    mine, other = asked(x_agent_session="s"), asked(x_agent_session="s", authorization="Bearer other")
    assert session_owner(read, mine).startswith("s:")
    assert session_owner(read, mine) != session_owner(read, other)
    assert session_owner(read, asked(x_agent_session="s:1")) != session_owner(read, asked(x_agent_session="s"))
    assert session_owner(Reader(session_id=""), call()) == ""


def test_agents_and_callers_have_owners_of_their_own() -> None:
    read = world(bundle()).descriptors
    assert agent_owner(read, asked(x_agent_id="a")) != agent_owner(read, asked(x_agent_id="b"))
    assert agent_owner(read, asked("one")) == agent_owner(read, asked("two"))
    assert caller_owner(read, asked(x_agent_id="a")) == caller_owner(read, asked())
    assert caller_owner(read, asked()).startswith("c:")


def test_windows_that_several_agents_share_are_not_kept_by_shard() -> None:
    """A caller may have several agents; a session or an agent has one (S-2)."""
    owners = ("s:me", "a:me", "c:me")
    assert [window_shard(owner, "project@2", "project") for owner in owners] == ["project@2", "project@2", "project"]
    assert [window_shard(owner, "project", "project") for owner in owners] == ["project"] * 3


# --- from an evaluation to an operation


@pytest.mark.parametrize(("level", "action"), [(1, "steer"), (2, "reject"), (3, "kill"), (4, "kill")])
def test_each_level_has_an_action(level: int, action: str) -> None:
    """What denies cools down, what does not is an observation (LD-5)."""
    op = operation(level)
    assert isinstance(op, Observation if level == 1 else CountFingerprint)
    assert isinstance(op.owner, Detection)
    assert op.owner.action == action
    if isinstance(op, CountFingerprint):
        assert (op.key, op.spec) == ("cnt:project:s:me:p:0:" + "ab" * 8, SPEC)


def test_a_run_that_a_person_lets_go_on_is_not_paused_again() -> None:
    made, asked = detector(replace(CONFIG, actions=("steer", "pause", "pause"))), call()
    paused = made._act(asked, FOUND, 2, "project", 0)
    assert isinstance(paused, CountFingerprint)
    assert isinstance(paused.owner, Detection)
    assert paused.owner.action == "pause"
    asked.decision = GrantedState()
    granted = made._act(asked, FOUND, 2, "project", 0)
    assert isinstance(granted, Observation)
    assert isinstance(granted.owner, Detection)
    assert granted.owner.action == "warn"


def test_shadow_counts_apart() -> None:
    """In its own name space (E-1)."""
    op = operation(2, group=2)
    assert isinstance(op, CountFingerprint)
    assert op.key.startswith("shadow:cnt:project:")


def test_what_the_client_is_told() -> None:
    """Short and exact, with how long and what to do (A-3)."""
    op = operation(2)
    assert isinstance(op, CountFingerprint)
    detection = op.owner
    loop = detection.finding(op, FingerprintCount(3, True, True, 29.2))
    assert (loop.kind, loop.fingerprint, loop.cooldown_s, loop.fresh) == ("repeat", "ab" * 8, 30, True)
    assert loop.window_s == 0  # steps are counted, whatever time they take
    assert loop.message.startswith(
        "Blocked: `read` returned the same 9 bytes 5 times. Use the result you have, or call"
    )
    assert "stays blocked for 30 seconds; a different step passes at once" in loop.message
    assert detection.note(loop).startswith("You repeat yourself: `read` returned the same 9 bytes 5 times. Use the")
    delays = detection.delay_ms(3), detection.delay_ms(10_000)
    assert (delays, detection.sender(call())) == ((300, 30_000), ("caller", "agent"))


def test_landing_is_counted_by_session() -> None:
    """Beside the count of the loop itself, in the same place; what is not landed is rejected (LD-10)."""
    config = replace(ACTIONS, actions=("steer", "land", "kill"), landing=replace(ACTIONS.cooldown, land_calls=2))
    for group, shadow in ((0, ""), (1, "shadow:")):
        op = detector(config)._act(call(), FOUND, 2, "project", group)
        assert isinstance(op, CountFingerprint)
        assert (op.key, op.landed_key) == (
            f"{shadow}cnt:project:s:me:{block_key(config)}:{'ab' * 8}",
            f"{shadow}land:project:{block_key(config)}:s:me",
        )
        assert op.spec.land_calls == 2
        landed = op.owner.finding(op, FingerprintCount(3, True, True, landed=1))
        assert (landed.action, op.owner.finding(op, FingerprintCount(3, True, True, 30.0)).action) == ("land", "reject")
        assert op.owner.note(landed) == (
            "You repeat yourself: `read` returned the same 9 bytes 5 times. For this turn, tools are switched off: give "
            "your final answer now, with what you have. Say what is missing."
        )
    stop = detector(config)._act(call(), FOUND, 3, "project", 0)
    assert isinstance(stop, CountFingerprint)
    assert stop.spec.land_calls == 0


@pytest.mark.parametrize(("kind", "lands"), [("side_effect", False), ("tool_limit", False), ("repeat", True)])
def test_a_tool_call_with_an_effect_is_not_landed(kind: str, lands: bool) -> None:
    """A call over MCP would be made; in a request to an LLM it has been made (LD-10)."""
    config = replace(ACTIONS, actions=("warn", "land", "land"), landing=replace(ACTIONS.cooldown, land_calls=2))
    made, asked = call(), chat()
    made.parsed.chat = Chat("mcp", "", (), 1)
    asked.parsed.chat = Chat("openai_chat", "m", (), 1)
    for sent, landed in ((made, lands), (asked, True)):
        op = detector(config)._act(sent, changed(FOUND, kind=kind), 2, "project", 0)
        assert isinstance(op, CountFingerprint)
        assert bool(op.spec.land_calls) is landed


def test_an_observation_is_fresh_if_it_was_not_reported() -> None:
    """One loop is notified once (LD-4)."""
    for fresh in (True, False):
        op = operation(1, fresh=fresh)
        assert isinstance(op, Observation)
        assert op.owner.finding(op, FingerprintCount(1)).fresh is fresh


def test_a_release_clears_the_window() -> None:
    """And nothing of others whose names begin alike (G-1)."""
    op = operation(2)
    assert isinstance(op, CountFingerprint)
    assert op.owner.window_keys == ("win:project:s:me:",)


def test_a_throttle_grows_with_the_loop() -> None:
    """Count x 100 ms; a detector that does not count has 1 (LD-5)."""
    for hits, counted in ((7.5, 7), (0.0, 1)):
        op = operation(1, hits=hits)
        assert isinstance(op, Observation)
        assert op.owner.hits == counted


def test_a_remark_is_part_of_the_evidence() -> None:
    op = operation(1, remark="only noted")
    assert isinstance(op, Observation)
    assert isinstance(op.owner, Detection)
    assert op.owner.evidence == "`read` returned the same 9 bytes 5 times; only noted"


# --- the base class


def test_a_slot_names_its_detector_and_group() -> None:
    made = detector()
    slot = made.plan(call(), "project", 3, 7.0)
    assert isinstance(slot, DetectorSlot)
    assert (slot.detector, slot.group) == (made, 3)
    assert made.plan(call(), "project", 0, 7.0) is made.plan(call(), "project", 0, 7.0)
    assert made.tags == section_tags(made.config, "part:")


def test_allow_lists_hold() -> None:
    """A snoozed agent is left alone until its time (LD-6)."""
    made = detector(allowing(CONFIG))
    assert made.plan(call(), "project", 0, 7.0) is None
    assert isinstance(made.plan(call(), "project", 0, 10.0), DetectorSlot)


def test_an_evaluation_that_found_nothing() -> None:
    """It is neither new nor counted, and the session is known (LD-4)."""
    found = Evaluation(b"window")
    assert (found.level, found.hits, found.fresh, found.ambiguous) == (NOTHING, 0.0, False, False)
    assert detector().operation(call(), found, "project", 0) is None


def test_an_evaluation_leads_to_an_operation() -> None:
    """The owner is in the key of its cooldown, so that it blocks no other session (LD-6)."""
    op = detector().operation(call(), FOUND, "project", 0)
    assert isinstance(op, CountFingerprint)
    assert op.key == "cnt:project:s:me:p:0:" + "ab" * 8
    assert detector().operation(call(), changed(FOUND, level=0), "project", 0) is None


def test_by_default_answers_change_nothing() -> None:
    window = b"memory"
    assert detector().answered(window, Answer(200)) is window
    assert not detector().awaits_answer(call(), FOUND)


def test_by_default_a_detector_depends_on_its_own_window_only() -> None:
    """It changes no owners, its window has to be up to date, and it reads each answer that it awaits."""
    made = detector()
    assert not made.locates
    assert not made.of_unnamed
    assert not made.locate(call(), b"window", 7.0)
    assert not made.is_advisory(call())
    assert made.reads_answer(call(), Answer(200))


def test_subclasses_evaluate() -> None:
    base = StatefulDetector(CONFIG, Reader())
    with pytest.raises(NotImplementedError):
        base.evaluate(call(), b"", 7.0)
    with pytest.raises(NotImplementedError):
        base.owner(call())

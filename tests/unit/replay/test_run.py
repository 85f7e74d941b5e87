"""Recorded sessions through the real engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakloop.model.call import CHARS_A_TOKEN, Answer, ToolCall, Usage
from breakloop.model.verdict import LoopFinding, Verdict
from breakloop.replay.report import session_json, totals_json
from breakloop.replay.run import ReplayGateway, SessionOutcome, SessionRun, replay
from breakloop.replay.sessions import Delta, ModelPricing, RecordedBody, RecordedSession, RecordedTurn, SessionSlice
from breakloop.replay.timeline import AGAIN, BLOCK, NEW, TimelineRecorder
from tests.unit.replay.recorded import TAIL, WARN, asks, busy, rig, session, stuck


def outcome(turns: list[RecordedTurn], block: str = TAIL) -> SessionOutcome:
    ((found,),) = replay([SessionSlice(session(), turns, whole=True)], rig(block))
    return found


def test_a_loop_is_blocked_where_a_gateway_would_block_it() -> None:
    """The sixth identical request within a minute; the recording goes on and is counted on (X-5, LD-2)."""
    found = outcome(stuck(8))
    assert (found.turns, found.first_notice, found.first_block) == (8, None, 6)
    assert (found.kind, found.blocks) == ("tail", 3)
    assert "6 times" in found.evidence


def test_healthy_work_is_left_alone() -> None:
    """Nothing is said, nothing is saved (X-5)."""
    found = outcome(busy(7))
    assert (found.turns, found.first_notice, found.first_block, found.kind, found.saved_tokens) == (
        7,
        None,
        None,
        None,
        0,
    )


def test_a_warning_is_a_notice() -> None:
    """`first_notice` is the first turn that was allowed with a warning (X-5, LD-5)."""
    found = outcome(stuck(5), WARN)
    assert (found.first_notice, found.first_block, found.kind, found.notices) == (3, None, "tail", 3)


def test_recorded_times_are_kept() -> None:
    """Twenty seconds apart, no minute holds six of them (X-5, LD-2)."""
    assert outcome([asks("Is it done?", at_s=20.0 * number) for number in range(12)]).first_block is None
    assert outcome([asks("Is it done?", at_s=1e9 + 10.0 * number) for number in range(12)]).first_block == 6


def test_turns_without_times_are_three_seconds_apart() -> None:
    """Twenty of other things in between take a minute (X-5)."""
    other = [asks(f"Question {number}") for number in range(20)]
    assert outcome([*stuck(5), *other, *stuck(1)]).first_block is None
    assert outcome([*stuck(5), *other[:1], *stuck(1)]).first_block == 7


def test_a_clock_that_steps_back_stands_still() -> None:
    """Answers of sub-agents are recorded in any order."""
    gateway = ReplayGateway(rig())
    for at_s, elapsed in ((100.0, 0.0), (105.0, 5.0), (101.0, 5.0), (None, 8.0), (107.0, 8.0), (109.0, 9.0)):
        gateway.move(at_s, first=at_s == 100.0)
        assert gateway._elapsed_s == elapsed
        assert gateway.clock.now() == rig().start + elapsed


def test_what_is_saved_is_a_quarter_of_the_bytes() -> None:
    """The request that was blocked and the answer that it had, four bytes a token (X-5)."""
    turn = asks("Is it done?", answer="No" * 50)
    found = outcome([turn] * 6)
    body = len(b'{"model":"m","messages":[{"role":"user","content":"Is it done?"}]}')
    assert (found.saved_tokens, found.saved_estimated) == (body // 4 + 25, True)


def test_what_is_saved_is_what_was_recorded() -> None:
    """Tokens and money are of the same calls, counted the same way (X-5, L-5)."""
    turn = asks("Is it done?")
    turn = replace(turn, answer=turn.answer._replace(usage=Usage(1000, 200)))
    ((found,),) = replay(
        [SessionSlice(session(), [turn] * 7, whole=True)], replace(rig(TAIL), pricing=ModelPricing(1.0, 10.0))
    )
    assert (found.blocks, found.saved_tokens, found.saved_estimated) == (2, 2400, False)
    assert found.saved_usd == pytest.approx(2 * (1000 + 10 * 200) / 1e6)


def test_failed_answers_are_settled_as_such() -> None:
    """Repeats after an upstream's 500 are free, as they would be live (X-5, LD-6)."""
    assert outcome([RecordedTurn(one.request, Answer(500)) for one in stuck(8)]).first_block is None


def test_sessions_do_not_mix() -> None:
    """The same questions in another session are another agent's (X-5)."""
    pieces = [SessionSlice(session(name), stuck(5), whole=True) for name in ("a", "b", "c")]
    assert [found.first_block for (found,) in replay(pieces, rig())] == [None] * 3


def test_sessions_of_one_gateway_share_its_state() -> None:
    """Requests without ids are told apart, or not, as a gateway does it (X-5)."""
    one, other = (RecordedSession(name, named=False, gateway="log") for name in ("a", "b"))
    pieces = [SessionSlice(one if number % 2 else other, stuck(1), whole=False) for number in range(6)]
    (first,), (second,) = replay(pieces, rig())
    assert (first.session.id, first.turns, first.first_block) == ("b", 3, None)
    assert (second.session.id, second.turns, second.first_block) == ("a", 3, 3)


def test_two_bundles_side_by_side() -> None:
    """`--against` sees the same traffic (X-5)."""
    ((here, there),) = replay([SessionSlice(session(), stuck(6), whole=True)], rig(), rig(WARN))
    assert (here.first_block, there.first_block) == (6, None)
    assert (here.first_notice, there.first_notice) == (None, 3)
    assert here.session is there.session


def test_the_call_is_what_a_gateway_sees() -> None:
    """Session, agent (the turn's own first), path and body (X-5, C-7)."""
    run = SessionRun(session("sé"), ReplayGateway(rig()))
    call = run._call(asks("Hello.", agent="critic"))
    assert (call.method, call.path, call.tracked) == ("POST", "/v1/chat/completions", True)
    assert call.headers["x-agent-session"] == "sé".encode()
    assert call.headers["x-agent-id"] == b"critic"
    assert run._call(asks("Hello.")).headers["x-agent-id"] == b"worker"
    sent = RecordedTurn(
        RecordedBody("/v1/messages", b"{}"), Answer(200), headers={"x-team": b"t", "x-agent-session": b"other"}
    )
    call = run._call(sent)
    assert (call.path, call.body, call.headers["x-team"]) == ("/v1/messages", b"{}", b"t")
    assert call.headers["x-agent-session"] == "sé".encode()
    unnamed = SessionRun(RecordedSession("derived", named=False), ReplayGateway(rig()))
    assert "x-agent-session" not in unnamed._call(asks("Hello.")).headers


def test_tool_steps_reach_the_engine_with_their_history() -> None:
    """The second request holds the call and its result (X-5)."""
    run = SessionRun(session(), ReplayGateway(rig()))
    run.take(RecordedTurn(Delta("0", 0, [{"role": "user", "content": "Go."}]), Answer(200, "", (ToolCall("f", "{}"),))))
    call = run._call(RecordedTurn(Delta("0", 2, [{"role": "tool", "content": "done"}]), Answer(200, "Fine.")))
    chat = run._gateway.engine.bundle is not None and rig().descriptors.chat(call)
    assert chat
    assert [message.role for message in chat.tail] == ["user", "assistant", "tool"]
    assert chat.tail[1].calls == (ToolCall("f", "{}"),)


def test_steps_are_judged_by_the_window_of_their_session() -> None:
    """The same call with the same result, five times in a row; each has an id of its own, as on the wire
    (X-5, LD-4)."""
    act = Answer(200, "", (ToolCall("look", "{}"),), complete=True)
    opening = RecordedTurn(Delta("0", 0, [{"role": "user", "content": "Find the lamp."}]), act)
    again = [RecordedTurn(Delta("0", 99, [{"role": "tool", "content": "There is no lamp in the hall."}]), act)] * 6
    found = outcome([opening, *again], "{similarity: steps}")
    assert found.first_notice is not None
    assert found.first_notice < 6
    assert found.first_block == 6


LIMITED = """policies:
  - id: slow
    spec:
      selector: {pathPrefix: /v1/}
      rules: [{name: each, limit_keys: [agent:id], algorithm: token_bucket, algorithm_config: {tokens_per_second: 0.01, burst: 2}}]
"""


def test_other_denials_are_no_loops() -> None:
    """A limit that runs out is told apart from a loop (X-5)."""
    ((found,),) = replay([SessionSlice(session(), busy(5), whole=True)], rig("off", LIMITED))
    assert (found.first_block, found.denied) == (None, {"token_bucket_exceeded": 3})
    assert found.saved_tokens > 0


def test_shadow_policies_block_nothing() -> None:
    """What they would have said is counted apart (X-5, E-1)."""
    more = "policies:\n  - {id: s, spec: {mode: shadow, selector: {pathPrefix: /v1/}, loop_detection: " + TAIL + "}}\n"
    ((found,),) = replay([SessionSlice(session(), stuck(8), whole=True)], rig("off", more))
    assert (found.first_block, found.shadowed) == (None, 3)


@pytest.mark.parametrize(("order", "kind"), [((True, False), "near"), ((False, True), "near"), ((True, True), "dry")])
def test_the_kind_is_that_of_the_first_block(order: tuple[bool, bool], kind: str) -> None:
    """Else of the first notice; a notice after a block changes nothing (X-5)."""
    found = SessionOutcome(session())
    for allowed, name in zip(order, ("dry", "near"), strict=True):
        verdict = Verdict(allowed=allowed, reason="loop_detected")
        verdict.warning = "loop_detected" if allowed else ""
        verdict.loop = LoopFinding(name, "f", 1, 1, 1, "reject", fresh=True, message="", evidence="e")
        found.take(verdict)
    if order == (False, True):
        assert (found.kind, found.first_notice, found.first_block) == ("dry", 2, 1)
    else:
        assert found.kind == kind


def test_timelines_are_recorded_where_they_are_wanted() -> None:
    """As that bundle judges the turns, by session and gateway; copies of one id in two gateways are kept apart (X-6)."""
    here = replace(rig(), recorder=TimelineRecorder)
    pieces = [SessionSlice(session(), stuck(7), whole=True)]
    ((first, second),) = replay(pieces, here, rig(WARN), file="log")
    assert first.timeline is not None
    assert (first.timeline.file, [cell.level for cell in first.timeline.cells]) == (
        "log",
        [NEW] + [AGAIN] * 4 + [BLOCK] * 2,
    )
    body = len(b'{"model":"m","messages":[{"role":"user","content":"Is it done?"}]}')
    assert first.spent.input_tokens == 7 * (body // CHARS_A_TOKEN)
    assert (second.timeline, second.spent.tokens) == (None, 0)
    slices = [
        SessionSlice(replace(session(), gateway=name), stuck(count), whole=False)
        for name, count in (("a", 2), ("b", 7))
    ]
    assert [found.timeline is not None for (found,) in replay([*slices, *slices], here)] == [False, True]


def test_what_would_have_been_landed() -> None:
    """The turn where the agent would have answered; the recording goes on, and is blocked later (X-5, LD-10)."""
    lands = rig("{similarity: tail, max_hits: 4, action: land}")
    ((found,),) = replay([SessionSlice(session(), stuck(9), whole=True)], lands)
    assert (found.first_land, found.lands, found.first_block, found.first_end) == (5, 2, 7, 5)
    assert (found.first_notice, found.kind is not None) == (None, True)
    assert session_json(found)["first_land"] == 5
    assert session_json(found)["landed_turns"] == 2
    totals = totals_json([found])["totals"]
    assert (totals["landed"], totals["blocked"]) == (1, 1)
    ((plain,),) = replay([SessionSlice(session(), stuck(9), whole=True)], rig())
    assert not {"first_land", "landed_turns"} & set(session_json(plain))
    assert "landed" not in totals_json([plain])["totals"]


def test_where_a_person_would_have_been_asked() -> None:
    """The run is held from there on, for the loop that was found (X-5, K-6)."""
    pauses = replace(rig("{similarity: tail, max_hits: 4, action: pause}"), recorder=TimelineRecorder)
    ((found,),) = replay([SessionSlice(session(), stuck(7), whole=True)], pauses)
    assert (found.first_pause, found.first_block, found.first_end, found.kind) == (5, None, 5, "tail")
    assert (session_json(found)["first_pause"], found.denied) == (5, {"run_paused": 3})
    assert totals_json([found])["totals"]["paused"] == 1
    assert found.timeline is not None
    assert [(one.kind, one.block) for one in found.timeline.loops] == [("tail", 5)]
    ((plain,),) = replay([SessionSlice(session(), stuck(7), whole=True)], rig())
    assert "first_pause" not in session_json(plain)

"""Conversations that go on from an answer which another instance has seen."""

from __future__ import annotations

import json
from typing import Any

from breakloop.errors import StateError
from breakloop.model.call import Answer, Call, ToolCall
from breakloop.store.memory import MemoryStore
from tests.builders import Json, bundle, call, policy
from tests.fake_remote import RemoteWorld, run

STEPS: Json = {"similarity": "steps"}


def turn(number: int, **more: Any) -> Call:
    """A stuck agent on the Responses API: each request goes on from the answer before, and has the same result."""
    result = {"type": "function_call_output", "call_id": f"call_{number}", "output": "Error: no such file"}
    body: Json = {"model": "m", "input": [result], "tools": [], **more}
    if number:
        body["previous_response_id"] = f"resp_{number - 1}"
    asked = call("/v1/responses", "POST", {"authorization": "Bearer k"}, body=json.dumps(body).encode())
    asked.tracked = True
    return asked


def played(pair: list[RemoteWorld], turns: int) -> list[str]:
    sessions = []
    for number in range(turns):
        there = pair[number % len(pair)]
        asked = turn(number)
        there.decide(asked)
        sessions.append(asked.identity.session or "")
        there.settle(asked, Answer(200, response_id=f"resp_{number}", complete=True))
    return sessions


def fleet(*, shares: bool) -> list[RemoteWorld]:
    kept, notes = MemoryStore(), dict[str, str]()
    pair = [RemoteWorld(bundle(policy("p", loop=STEPS)), kept) for _ in range(2)]
    for one in pair:
        if shares:
            one.share_names(notes)
    return pair


def test_a_chain_is_one_session_wherever_its_requests_arrive() -> None:
    """One more round trip where the answer passed elsewhere, none where it is known (C-7, S-2)."""

    def test() -> None:
        pair = fleet(shares=True)
        sessions = played(pair, 6)
        assert len(set(sessions[1:])) == 1
        assert [one.store.asked["recall"] for one in pair] == [2, 3]
        alone = fleet(shares=True)[:1]
        played(alone, 6)
        assert alone[0].store.asked["recall"] == 1  # the first answer belonged to no session yet

    run(test)


def test_without_sharing_it_would_fall_apart() -> None:
    """The test above would be worth nothing otherwise."""

    def test() -> None:
        assert len(set(played(fleet(shares=False), 6)[1:])) > 1

    run(test)


def test_a_chain_that_nobody_knows_goes_by_the_id_that_is_seen() -> None:
    """As on one instance after a restart (C-7)."""

    def test() -> None:
        there = fleet(shares=True)[0]
        asked = turn(5)
        assert there.decide(asked).allowed
        assert asked.identity.session == "resp_4"

    run(test)


def test_a_store_that_fails_holds_nobody_up() -> None:
    """Decided with what is known (S-3)."""

    def test() -> None:
        there = fleet(shares=True)[0]
        there.store.error = StateError("gone")
        verdict = there.decide(turn(3))
        assert (verdict.allowed, verdict.degraded) == (True, True)
        there.decide(turn(4))
        assert there.store.asked["recall"] == 1  # it is known to be gone
        there.remote.close()

    run(test)


def test_other_calls_are_not_asked_about() -> None:
    """A session of the client's own, another dialect, no body (S-2)."""

    def test() -> None:
        there = fleet(shares=True)[0]
        named = turn(3)
        named.headers = {**named.headers, "x-agent-session": b"mine"}
        for asked in (named, call("/x"), turn(0)):
            there.decide(asked)
        assert there.store.asked["recall"] == 0

    run(test)


def test_late_is_too_late() -> None:
    """What comes after the time budget changes nothing (S-3)."""

    def test() -> None:
        there = fleet(shares=True)[0]
        there.store.holds = True
        asked = there.ask(turn(3))
        there.remote.close()
        assert len(asked) == 1
        there.store.deliver()
        assert len(asked) == 1

    run(test)


def test_calls_of_answers_that_another_instance_has_seen() -> None:
    """The result belongs to the call of an answer, wherever that passed; without sharing nobody knows the call (LD-4)."""

    def denied_at(pair: list[RemoteWorld]) -> int | None:
        for number in range(12):
            there, asked = pair[number % len(pair)], short(number)
            if not there.decide(asked).allowed:
                return number
            there.settle(asked, listing(number))
        return None

    def test() -> None:
        assert denied_at(fleet(shares=True)) == 5
        assert denied_at(fleet(shares=False)) is None

    run(test)


def short(number: int) -> Call:
    """The task, and then results that are no errors and too short to tell anything by themselves."""
    if not number:
        opening = {"model": "m", "input": "Wait for the orders."}
        asked = call("/v1/responses", "POST", {"authorization": "Bearer k"}, body=json.dumps(opening).encode())
        asked.tracked = True
        return asked
    result = {"type": "function_call_output", "call_id": f"call_{number - 1:08}", "output": "2 orders"}
    return turn(number, input=[result])


def listing(number: int) -> Answer:
    made, ids = (ToolCall("list_orders", "{}"),), (f"call_{number:08}",)
    return Answer(200, "", made, response_id=f"resp_{number}", complete=True, call_ids=ids)


def child(number: int) -> Call:
    """The first request of an agent that the one before it has started."""
    who = {
        "authorization": "Bearer k",
        "x-agent-session": f"agent-{number}",
        "x-agent-parent": f"agent-{number - 1}",
    }
    body: Json = {"model": "m", "messages": [{"role": "user", "content": f"part {number}"}]}
    return call("/v1/chat/completions", "POST", who, body=json.dumps(body).encode())


def test_a_tree_is_one_wherever_its_agents_arrive() -> None:
    """One more round trip for the first request of an agent whose parent is not known here, none for those after it
    (C-7, S-2)."""

    def test() -> None:
        pair = fleet(shares=True)
        places = []
        for number in range(1, 7):
            for _ in range(2):
                asked = child(number)
                there = pair[number % len(pair)]
                there.decide(asked)
                places.append(there.here.descriptors.tree(asked))
        assert [(place.root, place.depth) for place in places[::2]] == [("agent-0", n + 1) for n in range(1, 7)]
        assert places[::2] == places[1::2]
        assert sum(one.store.asked["recall"] for one in pair) == 6
        assert sum(one.store.asked["note"] for one in pair) == 6

    run(test)


def test_a_call_may_need_two_names() -> None:
    """A sub-agent that continues an answer of another instance is decided when both are known (C-7, S-2)."""

    def test() -> None:
        pair = fleet(shares=True)
        first = child(1)
        pair[0].decide(first)
        assert pair[0].here.descriptors.tree(first).root == "agent-0"
        asked = turn(3)
        asked.headers = {**asked.headers, "x-agent-parent": b"agent-1"}
        pair[1].decide(asked)
        assert pair[1].store.asked["recall"] == 2
        tree = pair[1].here.descriptors.tree(asked)
        assert (tree.root, tree.depth) == ("agent-0", 3)

    run(test)

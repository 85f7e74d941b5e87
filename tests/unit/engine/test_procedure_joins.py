"""Teams without session names, through the engine: in this process, and over a store that instances share (LD-4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from breakloop.model.call import Answer, Call
from breakloop.model.verdict import Verdict
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import WindowWrite
from tests.builders import Json, bundle, chat, policy, user, world
from tests.fake_remote import RemoteWorld, run

STEPS: Json = bundle(policy("p", loop={"similarity": "steps"}))
WAYS = ("Could you please check the calendar", "Please do check the calendar again", "Kindly check that calendar now")
Decide = Callable[[Call], Verdict]
Settle = Callable[[Call, Answer], None]


def said(text: str) -> Json:
    return {"role": "assistant", "content": text}


class Team:
    """Two agents, each with its own conversation. Each tells the other the same in other words."""

    def __init__(self, name: str = "") -> None:
        self.turns = 0
        opening = {"role": "system", "content": f"You are the clerk{name}."}
        self.clerk: list[Json] = [opening, user("Find out when the hall is free.")]
        self.auditor: list[Json] = [{"role": "system", "content": f"You are the auditor{name}."}]

    def turn(self, decide: Decide, settle: Settle, key: str = "k", headers: dict[str, str] | None = None) -> Verdict:
        """Let one of them speak to the other."""
        speaks, listens = (self.clerk, self.auditor) if self.turns % 2 == 0 else (self.auditor, self.clerk)
        call = chat(*speaks, headers={"authorization": f"Bearer {key}", **(headers or {})})
        call.tracked = True
        verdict = decide(call)
        text = f"{WAYS[self.turns % 3]}, dear {('colleague', 'friend')[self.turns % 2]}{'!' * (self.turns % 4)}"
        if verdict.allowed:
            settle(call, Answer(200, text, complete=True))
        speaks.append(said(text))
        listens.append(user(text))
        self.turns += 1
        return verdict


def denied_at(turns: Iterator[Verdict]) -> int | None:
    return next((number for number, one in enumerate(turns, 1) if not one.allowed), None)


def test_a_team_without_names_is_one_session() -> None:
    """Each conversation alone repeats nothing; together they do."""
    here, team = world(STEPS), Team()
    verdicts: list[Verdict] = []
    for _ in range(16):
        here.clock.advance(3)
        verdicts.append(team.turn(here.engine.decide, here.engine.settle))
    assert denied_at(iter(verdicts)) == 8
    loop = next(one.loop for one in verdicts if not one.allowed)
    assert loop is not None
    assert loop.kind == "reword"
    assert "only reported" not in loop.evidence


def test_callers_are_never_joined() -> None:
    """Whatever they tell each other."""
    here, team = world(STEPS), Team()
    for number in range(16):
        here.clock.advance(3)
        assert team.turn(here.engine.decide, here.engine.settle, key="ab"[number % 2]).allowed


def test_named_sessions_are_not_looked_at() -> None:
    """Nothing is kept for a client that names its session."""
    here, team = world(STEPS), Team()
    for _ in range(4):
        team.turn(here.engine.decide, here.engine.settle, headers={"x-agent-session": "s"})
    assert not any(":j:" in key for key in here.store._windows)  # type: ignore[attr-defined]


def test_instances_share_a_team() -> None:
    """Each agent is connected to another instance. A decision is still one commit (S-2, E-5)."""

    def test() -> None:
        memory = MemoryStore()
        first, second = (RemoteWorld(STEPS, memory) for _ in range(2))
        team = Team()
        verdicts: list[Verdict] = []
        for number in range(16):
            for one in (first, second):
                one.here.clock.advance(3)
            there = (first, second)[number % 2]
            verdicts.append(team.turn(there.decide, there.settle))
        assert denied_at(iter(verdicts)) == 8
        assert not first.faults + second.faults
        ops, keys = next(one for one in reversed(first.store.committed) if one[0])
        assert len(ops) == 1
        assert [key.split(":")[2] for key in keys].count("s") == 2

    run(test)


def test_others_of_a_busy_caller_delay_nobody() -> None:
    """Many conversations write the answers of one caller at the same time. A request that finds them changed looks once
    more, and does not wait for a quiet moment (E-5)."""

    def test() -> None:
        there, team = RemoteWorld(STEPS), Team()
        team.turn(there.decide, there.settle)
        key = next(key for key in there.remote.windows._windows if ":j:" in key)

        def write() -> None:
            now = there.here.clock.now()
            version, data = there.store.memory.read_window(key, now)
            there.store.memory.commit((), now, [WindowWrite(key, version, data, 60.0)])

        there.store.before_commit = write
        before = there.store.asked["commit"]
        assert team.turn(there.decide, lambda _call, _answer: None).allowed
        assert there.store.asked["commit"] == before + 2
        assert not there.here.engine.tally.conflicts

    run(test)

"""Trajectories of SWE-agent and mini-swe-agent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from breakloop.model.call import Usage
from breakloop.replay.formats.swe_agent import SweAgentReader
from breakloop.replay.sessions import RecordedBody, RecordedTurn, SessionSlice
from tests.unit.replay.transcripts import FINE, trajectory

Record = dict[str, Any]


def read(records: Iterable[Record], name: str = "django__django-1.traj") -> list[SessionSlice]:
    reader = SweAgentReader(name)
    pieces = [piece for record in records for piece in reader.take(record)]
    return [*pieces, *reader.end()]


def turns(record: Record) -> list[RecordedTurn]:
    return [turn for piece in read([record]) for turn in piece.turns]


def messages(turn: RecordedTurn) -> list[Any]:
    assert isinstance(turn.request, RecordedBody)
    found = json.loads(turn.request.body)["messages"]
    assert isinstance(found, list)
    return found


def test_history() -> None:
    """Each answer is a turn; results have the ids of their calls (X-6)."""
    made = turns(trajectory(FINE))
    assert len(made) == len(FINE)
    assert [one["role"] for one in messages(made[1])] == ["system", "user", "assistant", "tool"]
    assert messages(made[1])[3]["tool_call_id"] == "call_0"
    assert [call.name for call in made[0].answer.calls] == ["bash"]
    (session,) = {piece.session for piece in read([trajectory(FINE)])}
    assert (session.id, session.agent, session.model) == ("django__django-1", "swe-agent", "gpt-5")


def test_demonstrations_are_no_turns() -> None:
    """Somebody else's answers stand in the prompt (X-6)."""
    record = trajectory(FINE)
    for message in record["history"][2:6]:
        message["is_demo"] = True
    made = turns(record)
    assert len(made) == len(FINE) - 2
    assert len(messages(made[0])) == 6


def test_agents_have_their_own_conversations() -> None:
    """A planner and a worker (X-6)."""
    record = trajectory(FINE[:2])
    for message in record["history"][4:]:
        message["agent"] = "second"
    made = turns(record)
    assert [len(messages(turn)) for turn in made] == [2, 0]


def test_steps_alone() -> None:
    """Where the history was left out (X-6)."""
    steps = [{"action": action, "observation": seen, "response": f"```\n{action}\n```"} for action, seen in FINE]
    made = turns({"trajectory": steps, "info": {}})
    assert len(made) == len(FINE)
    assert messages(made[1])[1:] == [
        {"role": "assistant", "content": "```\nls\n```"},
        {"role": "user", "content": FINE[0][1]},
    ]


def test_times_from_how_long_commands_took() -> None:
    """So that a slow poll weighs little, as it would have live (X-6)."""
    record = trajectory(FINE)
    record["trajectory"] = [{"action": one, "observation": "", "execution_time": 30.0} for one, _ in FINE]
    assert [turn.at_s for turn in turns(record)] == [33.0 * number for number in range(len(FINE))]
    assert [turn.at_s for turn in turns(trajectory(FINE))] == [None] * len(FINE)


def test_mini_swe_agent() -> None:
    """Tokens and times stand in `extra`; how it ended is no message (X-6)."""
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 80}}
    record = {
        "trajectory_format": "mini-swe-agent-1.1",
        "info": {"config": {"model": {"model_name": "m"}}},
        "messages": [
            {"role": "system", "content": "You program."},
            {"role": "user", "content": "Go.", "extra": {"timestamp": 1_800_000_000.0}},
            {"role": "assistant", "content": "```bash\nls\n```", "extra": {"response": {"usage": usage}}},
            {"role": "exit", "content": "Submitted"},
        ],
    }
    assert SweAgentReader.fits(record)
    (piece, last) = read([record], "a.traj.json")
    assert (piece.session.id, piece.session.agent, piece.session.model) == ("a", "mini-swe-agent", "m")
    (turn,) = piece.turns
    assert (turn.answer.usage, turn.at_s, last.whole) == (Usage(100, 5, 80), 1_800_000_000.0, True)


def test_several_in_one_file() -> None:
    """Several in one file: told apart (X-6)."""
    names = [piece.session.id for piece in read([trajectory(FINE)] * 2, "all.jsonl") if piece.whole]
    assert len(set(names)) == 2


@pytest.mark.parametrize(
    "record", [{}, {"history": []}, {"history": ["x"]}, {"trajectory": [{"x": 1}]}, {"messages": [{"role": "user"}]}]
)
def test_what_is_no_trajectory(record: Record) -> None:
    """What is no trajectory (X-6)."""
    assert not SweAgentReader.fits(record)


def test_an_empty_one() -> None:
    """Named, not fatal (X-6)."""
    with pytest.raises(ValueError, match="neither messages nor steps"):
        read([{"history": [], "trajectory": []}])

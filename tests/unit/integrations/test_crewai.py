"""The hooks for CrewAI, without CrewAI: its registry of hooks and its error are put in their places. Real crews run in
`tests/e2e/test_crewai.py`."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from breakloop import DeniedError, Guard, LoopDetectedError
from breakloop.clock import FakeClock
from breakloop.model.decision import Decision
from breakloop.sdk.context import agent as named
from breakloop.sdk.requests import STEPS_ONLY
from tests.unit.sdk.backends import ScriptedBackend

KINDS = ("before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call")
AGENT = SimpleNamespace(id="a1", role=" Support ", llm=None)
TASK = SimpleNamespace(id="t1")


class Executor:
    """Runs the loop of an agent."""

    def __init__(self) -> None:
        self.max_iter = 25
        self.iterations = 0
        self.llm = object()


EXECUTOR = Executor()


class HookAborted(Exception):  # noqa: N818 - its name
    def __init__(self, reason: str, source: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.source = source


@pytest.fixture
def registry() -> dict[str, list[Any]]:
    return {kind: [] for kind in KINDS}


@pytest.fixture
def crewai(monkeypatch: pytest.MonkeyPatch, registry: dict[str, list[Any]]) -> Iterator[Any]:
    """The module, imported with the stubs in place, and gone again."""
    package, hooks = ModuleType("crewai"), ModuleType("crewai.hooks")
    vars(hooks)["HookAborted"] = HookAborted
    for kind, held in registry.items():
        vars(hooks)[f"register_{kind}_hook"] = held.append
        vars(hooks)[f"unregister_{kind}_hook"] = held.remove
    vars(package)["hooks"] = hooks
    monkeypatch.setitem(sys.modules, "crewai", package)
    monkeypatch.setitem(sys.modules, "crewai.hooks", hooks)
    yield importlib.import_module("breakloop.integrations.crewai")
    del sys.modules["breakloop.integrations.crewai"]


class Crew:
    """Calls the hooks as CrewAI does."""

    def __init__(self, registry: dict[str, list[Any]], agent: Any = AGENT, task: Any = TASK) -> None:
        self.registry = registry
        self.messages: list[Any] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Go."}]
        self.context = partial(SimpleNamespace, agent=agent, task=task, crew=None)

    def model(self, said: str = "", executor: object = EXECUTOR, llm: Any = None) -> None:
        """A model call; with words in its answer, they are told."""
        context = self.context(executor=executor, messages=self.messages, llm=llm, response=None)
        for hook in self.registry["before_llm_call"]:
            assert hook(context) is None
        if said:
            context.response = said
            for hook in self.registry["after_llm_call"]:
                assert hook(context) is None

    def tool(self, result: str = "nothing", query: str = "x") -> str:
        """A call of a tool: returns what the model reads."""
        context = self.context(tool_name="search", tool_input={"q": query}, tool_result=None)
        blocked = [hook(context) for hook in self.registry["before_tool_call"]]
        context.tool_result = "Tool execution blocked by hook." if False in blocked else result
        for hook in self.registry["after_tool_call"]:
            context.tool_result = hook(context) or context.tool_result
        self.messages.append({"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]})
        self.messages.append({"role": "tool", "content": context.tool_result})
        return str(context.tool_result)


def test_a_loop_is_told_then_stopped(crewai: Any, registry: dict[str, list[Any]], clock: FakeClock) -> None:
    """In the tool's result; then an error of both kinds (P-3, LD-4)."""
    crew = Crew(registry)
    with crewai.GuardCrewHooks(Guard(STEPS_ONLY, clock=clock)) as hooks:
        read = []
        for _ in range(4):
            crew.model()
            read.append(crew.tool())
        assert read[:2] == ["nothing", "nothing"]
        assert read[2].startswith(
            "nothing\n\n[breakloop] You repeat yourself: `search` returned the same 7 bytes 3 times"
        )
        assert read[3].endswith(" [/breakloop]")
        crew.model()
        with pytest.raises(HookAborted) as caught:
            crew.tool()
    error: Any = caught.value
    assert (error.reason, error.kind, error.source) == ("loop_detected", "repeat", "breakloop")
    assert isinstance(error, LoopDetectedError)
    assert "(recursive_loop_detected)" in str(error)
    assert hooks.guard.faults == 0


def test_each_model_call_is_judged_once(crewai: Any, registry: dict[str, list[Any]]) -> None:
    """The first by its opening, one after a tool with its result, one after words with these (P-3)."""
    backend = ScriptedBackend()
    crew = Crew(registry)
    llm = SimpleNamespace(model="gpt-5", get_token_usage_summary=None)
    with crewai.GuardCrewHooks(Guard(_backend=backend)):
        crew.model(llm=llm)
        assert len(backend.calls) == 1
        crew.tool()
        assert len(backend.calls) == 2
        crew.model("It is 30 days.")
        assert len(backend.calls) == 2
        crew.messages += [{"role": "assistant", "content": "It is 30 days."}, {"role": "user", "content": "Sure?"}]
        crew.model()
        assert len(backend.calls) == 3
    assert [len(json.loads(call.body)["messages"]) for call in backend.calls] == [1, 3, 5]
    assert b"It is 30 days." in backend.calls[2].body
    assert b"Sure?" in backend.calls[2].body
    assert {call.headers["x-agent-id"] for call in backend.calls} == {b"Support"}
    assert len({call.headers["x-agent-session"] for call in backend.calls}) == 1
    assert [(one.text, [made.name for made in one.calls]) for one in backend.answers] == [
        ("", ["search"]),
        ("It is 30 days.", []),
    ]


def test_a_loop_in_words(crewai: Any, registry: dict[str, list[Any]], clock: FakeClock) -> None:
    """An agent that is asked back, and says the same again: the note stands at the end of what it reads (LD-4)."""
    crew = Crew(registry)

    def go() -> None:
        for _ in range(20):
            crew.model("I cannot do that.")
            back = {"role": "user", "content": "Try."}
            crew.messages += [{"role": "assistant", "content": "I cannot do that."}, back]

    with crewai.GuardCrewHooks(Guard(STEPS_ONLY, clock=clock)), pytest.raises(LoopDetectedError):
        go()
    noted = [one["content"] for one in crew.messages if "[breakloop]" in str(one["content"])]
    assert noted
    assert all(one.startswith("Try.\n\n[breakloop] You repeat yourself: ") for one in noted)


def test_a_note_after_other_things_is_a_message(crewai: Any) -> None:
    """Nothing of a conversation's own is changed that is not a text of the user's (LD-5)."""
    for last in ({"role": "tool", "content": "x"}, {"role": "user", "content": [{"type": "text"}]}):
        messages = [last]
        crewai._append(messages, "N")
        assert messages == [last, {"role": "user", "content": "N"}]
    nothing: list[Any] = []
    crewai._append(nothing, "N")
    assert nothing == [{"role": "user", "content": "N"}]


def test_a_block_may_be_a_result(crewai: Any, registry: dict[str, list[Any]], clock: FakeClock) -> None:
    """The tool is not run again while it is blocked; after the cooldown it is, and a new result is read (P-3)."""
    crew = Crew(registry)
    with crewai.GuardCrewHooks(Guard(STEPS_ONLY, clock=clock), on_block="return") as hooks:
        read = [crew.tool() for _ in range(5)]
        assert read[4].startswith("Blocked: `search` returned the same 7 bytes 5 times")
        assert crew.tool("something new").startswith("Blocked: ")
        assert crew.tool("found", query="y") == "found"
        clock.advance(10_000)
        assert crew.tool("something new") == "something new"
        assert [dict(task.run._blocked) for task in hooks._tasks.values()] == [{}]
    with pytest.raises(ValueError, match="on_block"):
        crewai.GuardCrewHooks(on_block="shout")


def test_limits_are_denials(crewai: Any, registry: dict[str, list[Any]]) -> None:
    """Before the model is asked, or after a tool (P-3)."""
    denied = Decision(allowed=False, reason="budget_exceeded", status=429, message="Spent.")
    for first in (Crew(registry).model, Crew(registry).tool):
        with crewai.GuardCrewHooks(Guard(_backend=ScriptedBackend(denied))), pytest.raises(HookAborted) as caught:
            first()
        error: Any = caught.value
        assert (error.reason, error.source) == ("budget_exceeded", "breakloop")
        assert isinstance(error, DeniedError)
        assert not isinstance(error, LoopDetectedError)


def test_a_new_conversation_is_a_new_run(crewai: Any, registry: dict[str, list[Any]]) -> None:
    """A crew that is started again begins anew; tasks and agents are told apart; a name from outside holds (LD-4)."""
    backend = ScriptedBackend()
    other = SimpleNamespace(id="a2", role="Sales", llm=None)
    with crewai.GuardCrewHooks(Guard(_backend=backend)):
        for crew in (Crew(registry), Crew(registry), Crew(registry, agent=other), Crew(registry, task=None)):
            crew.model()
            crew.tool()
        with named(session="ticket-7"):
            Crew(registry).model()
    sessions = [call.headers["x-agent-session"].decode() for call in backend.calls]
    assert len(set(sessions)) == 5
    assert [sessions.count(one) for one in sessions] == [2] * 8 + [1]
    assert sessions[-1] == "ticket-7"


def test_models_that_are_asked_outside_of_an_agent(
    crewai: Any, registry: dict[str, list[Any]], clock: FakeClock
) -> None:
    """Planners, guardrails and programs ask directly; these are requests like any other (P-3, LD-2)."""
    crew = Crew(registry, agent=None, task=None)
    with crewai.GuardCrewHooks(Guard(clock=clock)) as hooks:
        for _ in range(5):
            crew.model(said="hm", executor=None)
        with pytest.raises(LoopDetectedError):
            crew.model(executor=None)
    assert hooks.guard.faults == 0
    assert len(crew.messages) == 2


def test_tokens_are_told_once(crewai: Any, registry: dict[str, list[Any]]) -> None:
    """What a model object has used since it was asked last, though several agents share it (D-6)."""
    used = SimpleNamespace(prompt_tokens=100, completion_tokens=10)
    llm = SimpleNamespace(model="gpt-5", get_token_usage_summary=lambda: used)
    backend = ScriptedBackend()
    crew = Crew(registry, agent=SimpleNamespace(id="a1", role="R", llm=llm))
    with crewai.GuardCrewHooks(Guard(_backend=backend)):
        crew.model(llm=llm)
        used.prompt_tokens, used.completion_tokens = 130, 12
        crew.tool()
        used.prompt_tokens, used.completion_tokens = 135, 13
        crew.model("Done.", llm=llm)
    told = [(one.usage.input_tokens, one.usage.output_tokens) if one.usage else None for one in backend.answers]
    assert told[-1] == (35, 3)
    assert b'"model":"gpt-5"' in backend.calls[0].body


def test_faults_stop_nobody(crewai: Any, registry: dict[str, list[Any]]) -> None:
    """Fail open, counted; CrewAI sees nothing of it (D-4)."""
    with crewai.GuardCrewHooks() as hooks:
        for held in registry.values():
            assert held[0](SimpleNamespace()) is None
        assert hooks.guard.faults == 4


def test_installed_once_and_gone_again(crewai: Any, registry: dict[str, list[Any]]) -> None:
    """Hooks are global in CrewAI: nothing stays behind, and what agents have kept of them is idle."""
    hooks = crewai.GuardCrewHooks(Guard(_backend=ScriptedBackend()))
    with hooks:
        kept = registry["after_tool_call"][0]
        with hooks:
            assert [len(held) for held in registry.values()] == [1] * 4
        assert [len(held) for held in registry.values()] == [1] * 4
    assert [len(held) for held in registry.values()] == [0] * 4
    assert kept(SimpleNamespace()) is None
    hooks.remove()
    hooks.install()
    assert [len(held) for held in registry.values()] == [1] * 4
    assert hooks.guard.faults == 0


def test_what_is_remembered_is_bounded(crewai: Any) -> None:
    """What is remembered is bounded (Y-2)."""
    hooks = crewai.GuardCrewHooks(Guard(_backend=ScriptedBackend()))
    used = SimpleNamespace(prompt_tokens=1, completion_tokens=1)
    models = [SimpleNamespace(get_token_usage_summary=lambda: used) for _ in range(1005)]
    for number, llm in enumerate(models):
        hooks._task(SimpleNamespace(agent=AGENT, task=SimpleNamespace(id=number)))
        hooks._usage(llm)
    assert (len(hooks._tasks), len(hooks._used)) == (1000, 1000)


def test_it_lands(crewai: Any, registry: dict[str, list[Any]]) -> None:
    """The loop of the agent is at its end, and the answer that CrewAI then asks for is no check of its own: it settles
    the last one (LD-10, P-3)."""
    landed = Decision(warning="loop_detected", note="Finish now.", landed=True, request_id="r2")
    backend = ScriptedBackend(Decision(request_id="r1"), landed)
    executor, crew = Executor(), Crew(registry)
    with crewai.GuardCrewHooks(Guard(_backend=backend)):
        crew.model(executor=executor)
        assert "Finish now." in crew.tool()
        assert (executor.iterations, len(backend.calls)) == (25, 2)
        crew.model("What I have.", executor=None, llm=executor.llm)
        assert (len(backend.calls), backend.answers[-1].text) == (2, "What I have.")
        crew.model(executor=None, llm=executor.llm)  # a call by itself, later
        assert len(backend.calls) == 3


def test_a_model_call_without_a_tool_lands(crewai: Any, registry: dict[str, list[Any]]) -> None:
    """It has the note, and the agent's loop ends after it (LD-10, P-3)."""
    landed = Decision(warning="loop_detected", note="Finish now.", landed=True, request_id="r1")
    executor, crew = Executor(), Crew(registry)
    with crewai.GuardCrewHooks(Guard(_backend=ScriptedBackend(landed))):
        crew.model("Let me think.", executor=executor)
    assert executor.iterations == 25
    assert "Finish now." in crew.messages[-1]["content"]

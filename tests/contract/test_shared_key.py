"""Many people, searches and health checks behind one key, through the whole engine with the built-in protection: none of
them is denied for what the others sent. A caller that sends little else than equal requests is."""

from __future__ import annotations

import pytest

from breakloop.model.events import LOOP_DETECTED
from breakloop.model.verdict import Verdict
from tests.builders import CHAT, Json, World, bundle, call, chat_body, policy, user, world

KEY = {"authorization": "Bearer sk-of-the-product"}
HI = chat_body(user("hi"))


def asks(here: World, body: bytes, path: str = CHAT) -> Verdict:
    here.clock.advance(1.0)
    return here.decide(call(path, "POST", KEY, body=body))


def talk(number: int) -> bytes:
    """A question that nobody else asks."""
    return chat_body(user("hi"), {"role": "assistant", "content": "Hello!"}, user(f"What is number {number}?"))


def test_equal_openings_between_other_talk() -> None:
    """The sixth "hi" is reported once and answered, and so are those after it (LD-2)."""
    here = world()
    greetings = []
    for number in range(20):
        greetings.append(asks(here, HI))
        assert asks(here, talk(number)).warning == ""
    assert all(one.allowed for one in greetings)
    assert [one.warning for one in greetings[:6]] == [""] * 5 + ["loop_detected"]
    (event,) = [one for one in here.events if one.name == LOOP_DETECTED]
    assert (event.data["kind"], event.data["hit_count"], event.data["action"]) == ("tail", 6, "warn")


@pytest.mark.parametrize("opening", ["hi", "Hello, what can you do for me today?"])
def test_equal_openings_between_questions(opening: str) -> None:
    """The same where nobody goes on with a conversation; a storm is a sequence without other requests (LD-2, LD-4)."""
    here = world()
    for number in range(40):
        assert asks(here, chat_body(user(opening))).allowed
        assert asks(here, chat_body(user(f"What is the capital of country {number * 7919 % 997}?"))).warning == ""


def test_equal_openings_in_a_row() -> None:
    """A caller that sends nothing else is stopped at the sixth, also after other requests (LD-2)."""
    for before in (0, 1, 5, 30):
        here = world()
        for number in range(before):
            assert asks(here, talk(number)).allowed
        assert [asks(here, HI).allowed for _ in range(6)] == [True] * 5 + [False]
        assert asks(here, talk(99)).allowed


def test_equal_work_between_other_requests() -> None:
    """An agent that repeats its work is stopped among the people who share its key (LD-2)."""
    here = world()
    stuck = chat_body(user("go"), {"role": "assistant", "content": "I wait."}, user("Go on."))
    verdicts = []
    for number in range(6):
        verdicts.append(asks(here, stuck).allowed)
        asks(here, talk(number))
    assert verdicts == [True] * 5 + [False]


def read_file(path: str, number: int) -> list[Json]:
    """A call of an agent and its result, with an id of its own."""
    function = {"name": "read_file", "arguments": f'{{"path": "{path}"}}'}
    made: Json = {"id": f"call_{number}", "type": "function", "function": function}
    result: Json = {"role": "tool", "tool_call_id": made["id"], "content": f"what {path} contains"}
    return [{"role": "assistant", "content": None, "tool_calls": [made]}, result]


def test_tasks_that_begin_with_the_same_steps() -> None:
    """Twelve tasks of one program read the same two files first, at the same time, and then files of their own: their
    last messages are equal, and their conversations are not (LD-2)."""
    here = world()
    tasks = [[user(f"Fix issue {number * 37}.")] for number in range(12)]
    for step in range(10):
        for number, messages in enumerate(tasks):
            assert asks(here, chat_body(*messages)).allowed, (number, step)
            path = f"common-{step}.md" if step < 2 else f"own-{number}-{step}.md"
            messages.extend(read_file(path, 100 * number + step))


def test_tasks_after_each_other_that_begin_with_the_same_steps() -> None:
    """The same with one task at a time (LD-2)."""
    here = world()
    for number in range(12):
        messages = [user(f"Fix issue {number * 37}.")]
        for step in range(6):
            assert asks(here, chat_body(*messages)).allowed, (number, step)
            messages += read_file(f"common-{step}.md" if step < 2 else f"own-{number}-{step}.md", 100 * number + step)


def test_a_task_that_differs_in_a_time_only() -> None:
    """A harness that puts the time into its first message has one task, and its repeats count (LD-2)."""
    here = world()
    verdicts = []
    for second in range(6):
        opening = user(f"It is 2026-11-18 09:07:{10 + second}. Fix issue 1.")
        verdicts.append(asks(here, chat_body(opening, *read_file("a.md", 2 * second), *read_file("b.md", 1))).allowed)
    assert verdicts == [True] * 5 + [False]


def test_one_task_that_is_sent_again_between_others() -> None:
    """The same conversation again and again is a loop, whatever the other tasks do (LD-2)."""
    here = world()
    stuck = [user("Fix issue 1."), *read_file("common.md", 1)]
    verdicts = []
    for number in range(6):
        verdicts.append(asks(here, chat_body(*stuck)).allowed)
        asks(here, chat_body(user(f"Fix issue {number + 2}."), *read_file(f"own-{number}.md", number)))
    assert verdicts == [True] * 5 + [False]


def test_the_same_embedding() -> None:
    """Searches embed the same text again and again (LD-2)."""
    here = world()
    body = b'{"model": "e", "input": "opening hours"}'
    verdicts = [asks(here, body, "/v1/embeddings") for _ in range(30)]
    assert all(one.allowed for one in verdicts)
    assert [one.warning for one in verdicts[:6]] == [""] * 5 + ["loop_detected"]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_pings(field: str) -> None:
    """A health check asks for a token each second; with a longer answer it is a request like any other (LD-2, LD-4)."""
    here = world()
    one: Json = {field: 1}
    many: Json = {field: 100}
    assert all(asks(here, chat_body(user("ping"), **one)).allowed for _ in range(40))
    here.clock.advance(60)
    assert [asks(here, chat_body(user("ping"), **many)).allowed for _ in range(6)] == [True] * 5 + [False]


def test_health_paths() -> None:
    """Only LLM requests are judged by default (B-6)."""
    here = world()
    assert all(here.decide(call("/healthz", method, KEY)).allowed for method in ("GET", "HEAD") for _ in range(20))


def test_nobody_is_held_for_a_greeting() -> None:
    """`kill` holds agents, not the people behind a key (LD-2, LD-5)."""
    here = world(bundle(policy("p", loop={"similarity": "tail", "action": "kill"})))
    for number in range(12):
        assert asks(here, HI).allowed
        assert asks(here, talk(number)).allowed

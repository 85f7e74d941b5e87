"""What is never flagged (docs/explanation/detection-study.md): batches over distinct items, where much of each request
is the same: examples before each item, a list of questions about each. Through the whole engine, with and without a
session's name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from typing import Any

import pytest

from breakloop.model.call import Answer
from tests.builders import CHAT, Json, World, call, user, world
from tests.contract.agents import guarded

ITEMS = 40
SYSTEM = {"role": "system", "content": "You sort what people write to us."}
GEMINI = "/v1beta/models/m:generateContent"


@pytest.fixture(params=["steps", "builtin"])
def here(request: pytest.FixtureRequest) -> World:
    return guarded() if request.param == "steps" else world(None)


@pytest.fixture(params=["", "job-7"], ids=["unnamed", "named"])
def session(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def said(text: str) -> Json:
    return {"role": "assistant", "content": text}


def texts() -> Iterator[str]:
    """Sentences that nobody has written before."""
    for number in count():
        digits = sha256(str(number).encode()).hexdigest()
        letters = "".join("bdfklmnprstaeiou"[int(one, 16)] for one in digits)
        yield " ".join(letters[at : at + 5] for at in range(0, 60, 5))[: 30 + int(digits[:2], 16) % 40]


def sent(here: World, session: str, bodies: Iterator[tuple[str, Json]], answer: str = "") -> list[str]:
    """Send so many, a second apart, and return what came of those that did not simply pass."""
    headers = {"authorization": "Bearer sk-one"} | ({"x-agent-session": session} if session else {})
    found, answers = [], texts()
    for _, (path, body) in zip(range(ITEMS), bodies, strict=False):
        asked = call(path, "POST", headers, body=json.dumps(body).encode())
        asked.tracked = True
        verdict = here.engine.decide(asked)
        if verdict.loop is not None or not verdict.allowed:
            found.append(f"{verdict.allowed} {verdict.loop}")
        here.engine.settle(asked, Answer(200, text=answer or next(answers), complete=True))
        here.clock.advance(1.0)
    return found


def chats(*before: Json, items: Iterator[str]) -> Iterator[tuple[str, Json]]:
    for text in items:
        yield CHAT, {"model": "gpt-x", "messages": [SYSTEM, *before, user(text)]}


def test_examples_before_each_item(here: World, session: str) -> None:
    """The last thing that the model said is the same each time, because it is shown and not said (C10)."""
    shots = [user("My parcel is late."), said("delivery"), user("It is broken."), said("complaint")]
    assert sent(here, session, chats(*shots, items=texts()), answer="delivery") == []


def test_a_beginning_that_the_model_is_given(here: World, session: str) -> None:
    """The answer begins as the client wants it to (C10)."""
    bodies = ((CHAT, {"model": "m", "messages": [SYSTEM, user(text), said("{")]}) for text in texts())
    assert sent(here, session, bodies) == []


def test_examples_with_calls(here: World, session: str) -> None:
    """Also where calls have no ids, or the same ones (C10)."""

    def bodies() -> Iterator[tuple[str, Any]]:
        shown = [
            {"role": "user", "parts": [{"text": "My parcel is late."}]},
            {"role": "model", "parts": [{"functionCall": {"name": "sort", "args": {"into": "delivery"}}}]},
        ]
        done = {"functionResponse": {"name": "sort", "response": {"result": "ok"}}}
        for text in texts():
            yield GEMINI, {"contents": [*shown, {"role": "user", "parts": [done, {"text": text}]}]}

    assert sent(here, session, bodies()) == []


def test_the_same_questions_about_each_document(here: World, session: str) -> None:
    """Three questions to each, the second and third always the same (C10)."""

    def bodies() -> Iterator[tuple[str, Json]]:
        made = texts()
        for text in made:
            messages = [SYSTEM, user(f"Sum this up: {text}")]
            for question in ("Now list what has to be done.", "Translate all of it to German."):
                yield CHAT, {"model": "m", "messages": list(messages)}
                messages += [said(next(made)), user(question)]
            yield CHAT, {"model": "m", "messages": messages}

    assert sent(here, session, bodies()) == []


def test_a_judge_that_is_asked_in_two_steps(here: World, session: str) -> None:
    """What differs is before the last words of the model (C10)."""
    steps = [said("I have read it."), user("Give the score, and nothing else.")]
    bodies = ((CHAT, {"model": "m", "messages": [SYSTEM, user(f"Judge: {text}"), *steps]}) for text in texts())
    assert sent(here, session, bodies) == []


def test_somebody_who_is_always_answered_the_same(here: World, session: str) -> None:
    """A run ends with fresh text of a person: new questions are no loop because the model knows no answer."""

    def bodies() -> Iterator[tuple[str, Json]]:
        messages = [SYSTEM]
        for text in texts():
            messages.append(user(f"{text}?"))
            yield CHAT, {"model": "m", "messages": list(messages)}
            messages.append(said("I do not have that information."))

    assert sent(here, session, bodies(), answer="I do not have that information.") == []


def test_a_model_that_really_says_the_same(here: World, session: str) -> None:
    """Told to go on, in words that bring nothing, it says the same again: that is a loop still (C21)."""

    def bodies() -> Iterator[tuple[str, Json]]:
        messages = [SYSTEM, user("Repair the build.")]
        while True:
            yield CHAT, {"model": "m", "messages": list(messages)}
            messages += [said("I will look at the build now."), user("Go on.")]

    found = sent(here, session, bodies(), answer="I will look at the build now.")
    assert any(one.startswith("False") for one in found[:8])

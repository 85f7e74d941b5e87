"""`Step`: what the model did last and what came of it, as the tail of a request shows it (DETECTION: the unit of
observation). Read by `wire` from everything behind the last answer of the model; judged by `detect.steps`."""

from __future__ import annotations

from typing import NamedTuple

from breakloop.model.call import ToolCall


class Result(NamedTuple):
    """What one call returned, or an answer to an action that was written as text."""

    text: str
    error: bool = False  # by flag or exit status, never by words
    call_id: str = ""
    media: tuple[str, ...] = ()  # images and the like, as type and size class


class Step(NamedTuple):
    """One step. Without an answer of the model in it (`said` and `calls` empty) a conversation begins."""

    said: str  # the text of the model's last answer
    calls: tuple[ToolCall, ...]  # the calls that it made, or the action that its text spells out
    call_ids: tuple[str, ...]  # of the calls; empty where they have none
    results: tuple[Result, ...]  # in the order in which they stand
    users: tuple[str, ...]  # what else came after the answer: texts of the user or of the harness
    tools: tuple[str, ...]  # names of the tools that the request declares; empty: none are declared
    messages: int  # how many the whole conversation has
    size: int  # bytes of the request
    as_text: bool = False  # the calls are spelled out in text

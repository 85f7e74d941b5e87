"""Reads a stream as `answer` does, and tells a listener piece by piece what is said and thought in it, and which of its
answers have ended. Keeps what ending the stream needs. Who listens, and what follows, is not known here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from breakloop.model.answer import Usage
from breakloop.model.prompt import CHARS_A_TOKEN
from breakloop.wire import anthropic_messages, gemini, openai_chat, openai_completions, openai_responses
from breakloop.wire.answer import StreamReader
from breakloop.wire.anthropic_answer import AnthropicAnswer
from breakloop.wire.content import arguments
from breakloop.wire.gathered import Gathered, PartOfCall
from breakloop.wire.gemini_answer import GeminiAnswer
from breakloop.wire.openai_chat_answer import ChatAnswer
from breakloop.wire.openai_completions_answer import CompletionsAnswer
from breakloop.wire.openai_responses_answer import ResponsesAnswer
from breakloop.wire.stream_end import Passed, final_event
from breakloop.wire.thoughts import reader_of_thoughts


class Listener(Protocol):
    """Whoever wants to know."""

    def said(self, choice: int, part: int, piece: str) -> None:
        """Take the next piece of a text: which of the answers in the stream it belongs to, and which part of that."""
        ...

    def thought(self, choice: int, part: int, piece: str) -> None:
        """Take the next piece of what a model thinks aloud."""
        ...

    def argued(self, choice: int, piece: str) -> None:
        """Take the next piece of a call's arguments; only who asks for `calls` is told."""
        ...

    def ended(self, choice: int) -> None:
        """One of the answers has come to its end."""
        ...


class _Told(Gathered):
    """One of the readers, which also tells what it reads. Its texts are answers of their own, unless `ONE` says no."""

    ONE: bool = False  # the stream is one answer, whose texts follow each other
    listener: Listener  # mixed in with classes that have slots, so this one has none
    spoke = False  # in the event that is being read

    def say(self, number: int, piece: str) -> None:
        """Tell before keeping it, because what is kept is bounded."""
        self.spoke = True
        self.listener.said(number, 0, piece)
        Gathered.say(self, number, piece)

    def current(self) -> str:
        """Return the text that is being written."""
        text = None if self._text is None else self._texts.get(self._text)
        return "" if text is None else text.text()


class _ToldAsOne(_Told):
    ONE = True

    def say(self, number: int, piece: str) -> None:
        self.spoke = True
        self.listener.said(0, number, piece)
        Gathered.say(self, number, piece)


class _Chat(_Told, ChatAnswer):
    def say(self, number: int, piece: str) -> None:
        self.spoke = True
        self.listener.said(number >> 1, number & 1, piece)  # a choice, and what it refuses
        Gathered.say(self, number, piece)

    def _finished(self, index: int, reason: object) -> None:
        if reason:
            self.listener.ended(index)
        super()._finished(index, reason)


class _Completions(_Told, CompletionsAnswer):
    def _finished(self, index: int, reason: object) -> None:
        if reason:
            self.listener.ended(index)
        super()._finished(index, reason)


class _Gemini(_Told, GeminiAnswer):
    def _finished(self, index: int, reason: object) -> None:
        if reason:
            self.listener.ended(index)
        super()._finished(index, reason)


class _Anthropic(_ToldAsOne, AnthropicAnswer):
    """Blocks, one after the other."""


class _Responses(_ToldAsOne, ResponsesAnswer):
    """Parts of items, one after the other."""


class _Argued(_Told):
    """Tells of calls too."""

    choice = 0  # whose calls are being read

    def argue(self, call: PartOfCall, piece: str) -> None:
        self.listener.argued(self.choice, piece)
        Gathered.argue(self, call, piece)


class _ArguedAtOnce(_Argued):
    """Values may come whole, and are not repeated at the end."""

    def settle(self, call: PartOfCall, value: object) -> None:
        if value is not None:
            self.listener.argued(self.choice, arguments(value))
        Gathered.settle(self, call, value)


class _ArguedChat(_ArguedAtOnce, _Chat):
    def _calls_of(self, choice: int, items: object) -> None:
        self.choice = choice
        super()._calls_of(choice, items)


class _ArguedGemini(_ArguedAtOnce, _Gemini):
    """Calls of any candidate count, and are taken for the first one's."""


class _ArguedAnthropic(_Argued, _Anthropic):
    """Arguments come in pieces."""


class _ArguedResponses(_Argued, _Responses):
    """Arguments come in pieces, and again whole."""


_WITH_CALLS: Final[dict[str, Callable[[], _Told]]] = {
    openai_chat.DIALECT: _ArguedChat,
    openai_responses.DIALECT: _ArguedResponses,
    anthropic_messages.DIALECT: _ArguedAnthropic,
    gemini.DIALECT: _ArguedGemini,
}
_DIALECTS: Final[dict[str, Callable[[], _Told]]] = {
    openai_chat.DIALECT: _Chat,
    openai_completions.DIALECT: _Completions,
    openai_responses.DIALECT: _Responses,
    anthropic_messages.DIALECT: _Anthropic,
    gemini.DIALECT: _Gemini,
}


class Overheard(StreamReader):
    """Reads events as they come, of a dialect that `stream_end.can_end` knows."""

    __slots__ = ("_dialect", "_event", "_listener", "_mark", "_passed", "_stopped", "_thoughts", "_told")

    def __init__(self, dialect: str, listener: Listener, *, calls: bool = False) -> None:
        told = (_WITH_CALLS.get(dialect, _DIALECTS[dialect]) if calls else _DIALECTS[dialect])()
        told.listener = listener
        super().__init__(told)
        self._dialect = dialect
        self._listener = listener
        self._told = told
        self._passed = Passed()
        self._event = told.event
        self._mark, self._thoughts = reader_of_thoughts(dialect)
        self._read = self._hear
        self._stopped = False

    def _hear(self, payload: bytes) -> None:
        told = self._told
        told.spoke = False
        self._event(payload)
        if told.spoke:  # as in most events; then there is hardly anything else in it, and searching costs
            self._passed.last = payload
            return
        self._passed.note(payload)
        if self._mark in payload:
            for number, piece in self._thoughts(payload):
                choice, part = (0, number) if told.ONE else (number, 0)
                self._listener.thought(choice, part, piece)

    def _stop(self) -> None:
        super()._stop()
        self._stopped = True

    def ending(self, choices: Sequence[int], chars: int) -> bytes:
        """Return what would end the stream now; nothing where that cannot be done, or it has ended.

        `choices` are the answers that are still open, `chars` the length of all that was said and thought.
        """
        told = self._told
        if self._stopped or told.ended or told.error or not choices or (told.ONE and told.finish):
            return b""
        usage = None if told.usage is None else told.tokens(told.usage)
        if self._dialect == anthropic_messages.DIALECT:  # which has counted no more than the prompt so far
            known = usage or Usage()
            usage = known._replace(output_tokens=max(known.output_tokens, chars // CHARS_A_TOKEN))
        return final_event(self._dialect, self._passed, told.current(), usage=usage, choices=choices)

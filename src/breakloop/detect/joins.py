"""Which unnamed conversations of a caller belong together, by copies of answers.

Without a name, each agent of a team is a session of its own, because each conversation opens differently. Seen alone,
nothing repeats: what one agent says is news to the other. That they are a team shows when an answer to one conversation
arrives in another: as a text of the user, whole or as a part that is handed on (a field of a JSON answer, an argument
of a call), or whole as the result of a tool that may be an agent. `JoinedStepsDetector` evaluates the steps of a team
in one window, in order of arrival.

The last answers of a caller and agent are kept in a window, as digests, 2,699 bytes at most, newest first:

    head 11 · texts 192 x 14: digest, group of conversations, number of the answer, flags

A request belongs to the group of the answer that it continues, or else of its session's last answer, and of the answers
that are copied in it; or else to a new group. Agents of a team take turns: each request has one of the two newest
answers of the group. Workers that run at the same time do not, and may all read the same file; a request out of turn
gives the group another id, so that the counts of the team begin again. A text that two groups have answered, or with
which a conversation begins, joins nobody.

Most requests are of agents that work alone and call tools, so these cost little: their group is only looked up when
there is a text to keep, and an answer that hands nothing on is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import ClassVar, Final, NamedTuple, TypeVar

import msgspec

from breakloop.detect.counting import CallReader, DetectorConfig, announced
from breakloop.detect.stateful import RUN_IDLE_S, DetectorSlot, Evaluation, StatefulDetector
from breakloop.detect.steps.detector import RequestContext, StepEvaluator, StepsDetector
from breakloop.detect.steps.fingerprints import Digest, StepFingerprinter, canonical, compact, own
from breakloop.detect.steps.novelty import TEXT_MIN, handed_on
from breakloop.model.call import Answer, Call, Step, ToolCall
from breakloop.store.keys import escape, join_values
from breakloop.store.ops import Op

TEXTS: Final = 192
READ_MAX: Final = 32  # texts of a request that are compared: the newest ones
OPENING_MAX: Final = 4  # texts of a request that begins a conversation

_VERSION: Final = 1
_HEAD: Final = Struct("<BdH")  # version, time of the last answer, number of texts that follow
_HEAD_SIZE: Final = _HEAD.size
_unpack_head: Final = _HEAD.unpack_from
_TEXT: Final = Struct("<8s4sBB")
_pack_text: Final = _TEXT.pack
_SIZE: Final = _TEXT.size
_PREFIX: Final = 4  # bytes of an answer's digest that stand for the session
_COMMON: Final = bytes(4)  # instead of a group: the text joins nobody
# Flags of a text: a whole answer; an answer as the next request of its own conversation has it; the group is a team.
_WHOLE, _SAID, _TEAM = 1, 2, 4
_ANY_WHOLE: Final = re.compile(rb"[\x01\x03\x05\x07]").search  # among the flags of all texts
_ANY_TEAM: Final = re.compile(rb"[\x04-\x07]").search
_KEPT_MAX: Final = 1024  # owners, and digests of sessions and texts
_new: Final = tuple.__new__  # creates a named tuple in half the time of calling its class


K = TypeVar("K")
V = TypeVar("V")


class Conversation(msgspec.Struct, frozen=True, gc=False):
    """What a request shows about its conversation, kept until its answer is there."""

    session: bytes
    at: float  # when the request arrived
    group: bytes  # b"": it is looked up when the answer is kept
    merged: tuple[bytes, ...]  # groups that turn out to be the same one
    is_team: bool
    copied: bool  # it contains an answer to another conversation
    alone: bool  # it continues an answer, and no other conversation opens alike
    begins: bool
    texts: tuple[bytes, ...]  # of the user: an answer that quotes them is not their origin
    said: str  # the answer that the request continues; "" if the group is known
    calls: tuple[ToolCall, ...]
    has_ids: bool  # the client identifies calls


class JoinDetector(StatefulDetector):
    """Finds the group of each request without a named session, and keeps the answers. It does not find loops itself."""

    __slots__ = ("_fingerprints", "_owners", "_sessions", "_texts")

    locates: ClassVar[bool] = True

    def __init__(self, config: DetectorConfig, read: CallReader, digest: Digest) -> None:
        super().__init__(config, read, "joins:")  # names its section in stored windows: never change it
        self.of_unnamed = True
        self._fingerprints = StepFingerprinter(digest)
        self._owners: dict[tuple[str, str], str] = {}  # by caller and agent
        self._sessions: dict[str, bytes] = {}  # digests of sessions
        self._texts: dict[int, bytes] = {}  # digests of texts, by their hash: an answer comes back in the next request

    def plan(self, call: Call, project: str, group: int, now: float) -> DetectorSlot | None:
        """Return the slot for a call whose answer will be known."""
        if not call.tracked:
            return None
        return StatefulDetector.plan(self, call, project, group, now) if group or self._exempts else self._slot

    def owner(self, call: Call) -> str:
        """Return caller and agent; "" if the session has a name, or if the answer will not be known."""
        read = self._read
        if not call.tracked or not read.derived(call) or not (call.parsed.step or read.step(call)):
            return ""
        sender = call.identity
        names = sender.caller or read.caller(call), sender.agent or read.agent(call)
        return self._owners.get(names) or self._remember(self._owners, names, f"j:{join_values([*names])}")

    def _remember(self, known: dict[K, V], key: K, value: V) -> V:
        """Keep what is the same in all requests of a sender or a session."""
        if len(known) >= _KEPT_MAX:
            known.clear()
        known[key] = value
        return value

    def is_advisory(self, _call: Call) -> bool:
        return True

    def locate(self, call: Call, window: bytes, now: float) -> bool:
        """Set `conversation`, `joined`, `copied` and `alone` of the call's decision."""
        step = call.parsed.step or self._read.step(call)
        if step is None:
            return False
        name = call.identity.session or ""
        session = self._sessions.get(name)
        if session is None:
            digest = self._fingerprints.plain(name.encode("utf-8", "surrogatepass"))
            session = self._remember(self._sessions, name, digest)
        state = call.decision
        before = state.joined
        found, joined = self.find(window, session, step, now)
        state.conversation, state.joined = found, joined
        state.copied, state.alone = found.copied, found.alone
        return joined != before

    def reads_answer(self, call: Call, answer: Answer) -> bool:
        """Tell whether an answer is kept. One that only calls the agent's own tools hands nothing on; the request that
        continues it is known by the ids of the calls.
        """
        conversation = call.decision.conversation
        if not isinstance(conversation, Conversation):
            return False
        hands_on = conversation.is_team or not conversation.has_ids or answer.text or self._hands_on(answer.calls)
        return bool(hands_on) and not answer.failed

    def _hands_on(self, calls: tuple[ToolCall, ...]) -> bool:
        """Tell whether one of these tools may be another agent, or tell it something."""
        tool = self._fingerprints.tool
        for made in calls:  # noqa: SIM110 - a generator takes three times as long for one call
            if tool(made.name).hands_on:
                return True
        return False

    def answered_call(self, window: bytes, answer: Answer, call: Call) -> bytes:
        conversation = call.decision.conversation
        return self.keep(window, conversation, answer) if isinstance(conversation, Conversation) else window

    def find(self, window: bytes, session: bytes, step: Step, now: float) -> tuple[Conversation, str]:
        """Return the conversation of a step, and the id of the team that it is counted with, or ""."""
        rows = _load(window, now) if window else b""
        said, calls, ids, results, users = step[:5]
        is_first = not (said or calls or results)
        texts: tuple[bytes, ...] = ()
        copies: list[_Place] = []
        if users:
            texts = tuple([self._text(text) for text in users[-READ_MAX:] if len(text) >= TEXT_MIN])
            if texts and rows:
                copies = _all(rows, texts, 0)
        has_team = False
        if rows:
            flags = rows[13::_SIZE]
            if results and _ANY_WHOLE(flags) and (not calls or self._hands_on(calls)):
                copies += _all(
                    rows, [self._text(one.text) for one in results[-READ_MAX:] if len(one.text) >= TEXT_MIN], _WHOLE
                )
            has_team = _ANY_TEAM(flags) is not None
        if step.as_text:
            calls = ()
        if not copies and (is_first or not rows or (ids and not has_team)):
            has_ids = bool(ids)
            return Conversation(session, now, b"", (), False, False, False, is_first, texts, said, calls, has_ids), ""
        return self._join(rows, session, step, now, (copies, texts, is_first))

    def _join(
        self,
        rows: bytes,
        session: bytes,
        step: Step,
        now: float,
        found: tuple[list[_Place], tuple[bytes, ...], bool],
    ) -> tuple[Conversation, str]:
        """Return the same for a step that may belong to a team, or to one of several conversations that open alike."""
        copies, texts, is_first = found
        said, alone, places = None, False, copies
        if not is_first:
            key = self._said(session, step.said, () if step.as_text else step.calls)
            said = _continued(rows, key)
            # Ids of calls distinguish conversations, whoever else is there.
            alone = said is not None and not step.call_ids and _is_alone(rows, key)
            if said is not None:
                places = [said, *copies]
        groups = {one.group: _newest(rows, one.group) for one in places}
        is_team = bool(copies) or (said is not None and _is_team(rows, said.group))
        group = b""
        for one in places:
            if one.number in groups[one.group]:
                group = places[0].group
                break
        if not group:
            group = self._new_group(session, texts, now)
        joined = group.hex() if is_team and group in groups else ""
        merged = _without(groups, group)
        alone = alone and not is_team
        has_ids = bool(step.call_ids)
        return Conversation(
            session, now, group, merged, is_team, bool(copies), alone, is_first, texts, "", (), has_ids
        ), joined

    def _new_group(self, session: bytes, texts: tuple[bytes, ...], now: float) -> bytes:
        return self._fingerprints.of(b"group", session, *texts, repr(now).encode())[:4]

    def _look_up(self, rows: bytes, one: Conversation) -> tuple[bytes, tuple[bytes, ...]]:
        """Return the group of a conversation that belongs to no team, and the group that it had before."""
        before: tuple[bytes, ...] = ()
        if rows and not one.begins:
            place = _continued(rows, self._said(one.session, one.said, one.calls))
            if place is not None:
                group, number = place
                # Usually it is the newest of all answers.
                if number == rows[12] or number in _newest(rows, group):
                    return group, ()
                before = (group,)
        return self._new_group(one.session, one.texts, one.at), before

    def keep(self, window: bytes, conversation: Conversation, answer: Answer) -> bytes:
        """Return the window with the texts of an answer."""
        session, at_s, texts = conversation.session, conversation.at, conversation.texts
        group, merged = conversation.group, conversation.merged
        rows = _load(window, at_s)
        if not group:
            group, merged = self._look_up(rows, conversation)
        if merged:
            rows = _merge(rows, merged, group)
        number = rows[12] + 1 & 0xFF if rows else 0
        added: list[bytes] = []
        if conversation.begins:
            unknown = [key for key in texts[:OPENING_MAX] if _position(rows, key, 0) < 0]
            added += [_pack_text(key, _COMMON, number, 0) for key in unknown]
        flags = _TEAM if conversation.is_team else 0
        for key, kind in self._texts_of(answer, session, texts):
            of = group
            at = _position(rows, key, kind & _SAID)
            if at >= 0:
                of = group if rows[at + 8 : at + 12] == group else _COMMON
                rows = rows[:at] + rows[at + _SIZE :]
            added.append(_pack_text(key, of, number, kind | flags))
        return _pack(at_s, (b"".join(added) + rows)[: TEXTS * _SIZE])

    def _texts_of(self, answer: Answer, session: bytes, quoted: tuple[bytes, ...]) -> Iterable[tuple[bytes, int]]:
        """Return the digests of an answer and of its parts, with their flags. `quoted` are texts of the user."""
        text, calls = answer[1:3]
        if not calls and len(text) >= TEXT_MIN and "}" not in text:  # a plain text, as most answers without calls
            key = self._text(text)
            said = session[:_PREFIX] + key[_PREFIX:], _SAID
            return (said,) if key in quoted else ((key, _WHOLE), said)
        found: dict[bytes, int] = {}
        tool = self._fingerprints.tool
        for handed in handed_on(text, [call for call in calls if tool(call.name).hands_on] if calls else ()):
            key = self._text(handed)
            if key not in quoted:
                found[key] = 0
        if len(text) >= TEXT_MIN:
            key = self._text(text)
            if key not in quoted:
                found[key] = _WHOLE
        if text or calls:
            found[self._said(session, text, calls)] = _SAID
        return found.items()

    def _text(self, text: str) -> bytes:
        texts, key = self._texts, hash(text)
        known = texts.get(key)
        if known is None:
            known = self._fingerprints.plain(compact(own(text.encode("utf-8", "surrogatepass"))))
            if len(texts) >= _KEPT_MAX:
                texts.clear()
            texts[key] = known
        return known

    def _said(self, session: bytes, text: str, calls: tuple[ToolCall, ...]) -> bytes:
        if not calls:
            return session[:_PREFIX] + self._text(text)[_PREFIX:]
        parts = [self._text(text)] if text else []
        for call in calls:
            parts += (call.name.encode("utf-8", "surrogatepass"), canonical(call.arguments))
        return session[:_PREFIX] + self._fingerprints.plain(b"\0".join(parts))[_PREFIX:]


class JoinedStepsDetector(StepsDetector):
    """Evaluates the steps of a team like those of a named session. Each conversation has its own window besides, so
    only kinds that compare what agents tell each other are evaluated here (`StepsSettings.of_teams`).
    """

    __slots__ = ()

    def __init__(self, config: DetectorConfig, read: CallReader, evaluator: StepEvaluator) -> None:
        super().__init__(config, read, evaluator)
        self.of_unnamed = True

    def plan(self, call: Call, project: str, group: int, now: float) -> DetectorSlot | None:
        """Return the slot for a call that may belong to a team, which `JoinDetector` finds out later."""
        if not call.tracked:
            return None
        return StatefulDetector.plan(self, call, project, group, now) if group or self._exempts else self._slot

    def owner(self, call: Call) -> str:
        joined = call.decision.joined
        return f"s:{escape(f'{self._read.caller(call)}|joined:{joined}')}" if joined else ""

    def evaluate(self, call: Call, window: bytes, now: float) -> Evaluation | None:
        read = self._read
        step = call.parsed.step or read.step(call)
        if step is None:
            return None
        # Repeats of an agent's own tools count in its own window. Here it only matters that what they return is new.
        weight = 1.0 if call.decision.copied or not step.results else 0.0
        context = RequestContext(call.tracked, system=lambda: read.model_and_system(call), weight=weight)
        return self._evaluator.evaluate(window, step, now, context)

    def awaits_answer(self, _call: Call, _evaluation: Evaluation) -> bool:
        return True

    def operation(self, call: Call, evaluation: Evaluation, project: str, group: int) -> Op | None:
        """Return the operation for an evaluation, if any. It is known whose steps were counted, so conversations at the
        same time do not turn a block into a notice.
        """
        if evaluation.hits <= announced(call, self.config, self._read):
            return None
        return StatefulDetector.operation(self, call, evaluation, project, group)


# -- the texts ---------------------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    group: bytes
    number: int  # of the answer


def _pack(at: float, rows: bytes) -> bytes:
    return _HEAD.pack(_VERSION, at, len(rows) // _SIZE) + rows


def _load(window: bytes, now: float) -> bytes:
    """Return the texts; none if the last answer was long ago, or if the data cannot be read."""
    if len(window) < _HEAD_SIZE:
        return b""
    version, last_at, count = _unpack_head(window)
    if version != _VERSION or count > TEXTS or len(window) != _HEAD_SIZE + count * _SIZE:
        return b""
    return window[_HEAD_SIZE:] if abs(now - last_at) < RUN_IDLE_S else b""


def _position(rows: bytes, key: bytes, said: int) -> int:
    """Return the position of a text; -1 if it is not there. `said`: of those with this flag, or of the others."""
    at = rows.find(key)
    while at >= 0 and (at % _SIZE or rows[at + 13] & _SAID != said):
        at = rows.find(key, at + 1)
    return at


def _rows_with(rows: bytes, part: bytes, offset: int) -> Iterator[int]:
    """Yield the positions of the texts that have `part` at an offset, newest first. There are few, and looking at each
    of the others would take longer than all the rest."""
    at = rows.find(part)
    while at >= 0:
        if at % _SIZE == offset:
            yield at - offset
            at = rows.find(part, at + _SIZE)
        else:
            at = rows.find(part, at + 1)


def _continued(rows: bytes, key: bytes) -> _Place | None:
    """Return where the answer comes from that a request continues. Some clients change it, or it is too old: then it is
    the last answer in a session that opens alike."""
    at = _position(rows, key, _SAID)
    if at >= 0:
        return None if rows[at + 8 : at + 12] == _COMMON else _new(_Place, (rows[at + 8 : at + 12], rows[at + 12]))
    for at in _rows_with(rows, key[:_PREFIX], 0):
        if rows[at + 13] & _SAID and rows[at + 8 : at + 12] != _COMMON:
            return _Place(rows[at + 8 : at + 12], rows[at + 12])
    return None


def _is_alone(rows: bytes, key: bytes) -> bool:
    """Tell whether an answer is known, and all answers in sessions that open alike are of one conversation."""
    group = b""
    for at in _rows_with(rows, key[:_PREFIX], 0):
        if rows[at + 13] & _SAID:
            of = rows[at + 8 : at + 12]
            if of == _COMMON or (group and of != group):
                return False
            group = of
    return bool(group) and _position(rows, key, _SAID) >= 0


def _find(rows: bytes, key: bytes, flag: int) -> _Place | None:
    """Return where a text with this flag comes from; None if it is not known, or joins nobody."""
    at = _position(rows, key, flag & _SAID)
    if at < 0 or rows[at + 13] & flag != flag or rows[at + 8 : at + 12] == _COMMON:
        return None
    return _Place(rows[at + 8 : at + 12], rows[at + 12])


def _all(rows: bytes, keys: Iterable[bytes], flag: int) -> list[_Place]:
    return [one for key in keys if (one := _find(rows, key, flag)) is not None]


def _newest(rows: bytes, group: bytes) -> list[int]:
    """Return the numbers of the two newest answers of a group."""
    numbers: list[int] = []
    for at in _rows_with(rows, group, 8):
        if rows[at + 12] not in numbers:
            numbers.append(rows[at + 12])
            if len(numbers) == 2:
                break
    return numbers


def _is_team(rows: bytes, group: bytes) -> bool:
    return _ANY_TEAM(rows[13::_SIZE]) is not None and any(rows[at + 13] & _TEAM for at in _rows_with(rows, group, 8))


def _without(groups: Iterable[bytes], group: bytes) -> tuple[bytes, ...]:
    return tuple([one for one in groups if one != group])


def _merge(rows: bytes, merged: tuple[bytes, ...], group: bytes) -> bytes:
    texts = _TEXT.iter_unpack(rows)
    return b"".join([_pack_text(key, group if one in merged else one, *rest) for key, one, *rest in texts])

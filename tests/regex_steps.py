"""How many steps a regular expression takes: a backtracking matcher over the parse tree of `re`, which counts.

It tries what the matcher of `re` tries, in the same order, so that its count grows as the time of `re` does. Unlike a time,
the count is the same on every machine and on every run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final

# Private modules, which have no types.
op: Any = import_module("re._constants")
parser: Any = import_module("re._parser")

NO: Final = -1
_CATEGORIES: Final = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}

Rest = Callable[[int], int]
Node = Callable[[int, Rest], int]


class TooManyStepsError(Exception):
    """The limit is reached: the whole count would be larger, or never come."""


def _here(place: int) -> int:
    return place


class Class(dict[str, bool]):
    """The characters that one element of a pattern accepts, looked up once each."""

    def __init__(self, kind: Any, value: Any, flags: int) -> None:
        super().__init__()
        self._kind, self._value, self._flags = kind, value, flags

    def __missing__(self, char: str) -> bool:
        ways = (char, char.lower(), char.upper()) if self._flags & re.IGNORECASE else (char,)
        self[char] = found = any(self._accepts(one) for one in ways if len(one) == 1)
        return found

    def _accepts(self, char: str) -> bool:
        kind, value = self._kind, self._value
        if kind is op.ANY:
            return bool(self._flags & re.DOTALL) or char != "\n"
        if kind is op.LITERAL:
            return bool(ord(char) == value)
        if kind is op.NOT_LITERAL:
            return bool(ord(char) != value)
        negated = value[0][0] is op.NEGATE
        return negated != any(self._is(char, *one) for one in value)

    def _is(self, char: str, kind: Any, value: Any) -> bool:
        if kind is op.LITERAL:
            return bool(ord(char) == value)
        if kind is op.RANGE:
            return bool(value[0] <= ord(char) <= value[1])
        if kind is not op.CATEGORY:
            return False
        *_, name = str(value).split("_")
        flags = re.ASCII if self._flags & re.ASCII else 0
        return (re.fullmatch(_CATEGORIES[name], char, flags) is not None) != ("_NOT_" in str(value))


_SINGLE: Final = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)
_REPEATS: Final = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)


def _first(items: Any, flags: int) -> Class | None:
    """What the first character must be, where that is plain."""
    if not len(items):
        return None
    kind, value = items[0]
    if kind is op.SUBPATTERN:
        return _first(value[3], (flags | value[1]) & ~value[2])
    return Class(kind, value, flags) if kind in _SINGLE else None


class Steps:
    """A pattern of `re` that counts. `count` runs one of its methods and returns the steps."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        flags = pattern.flags | (re.ASCII if isinstance(pattern.pattern, bytes) else 0)
        self.classes: dict[str, Class] = {}
        self._text, self._end = "", 0
        self._taken, self._limit = 0, 0
        self._groups: dict[int, tuple[int, int]] = {}
        parsed = parser.parse(pattern.pattern, pattern.flags)
        self._begins, self._whole = _first(parsed, flags), self._sequence(list(parsed), flags)

    def count(self, method: str, text: str, limit: int = 1 << 60) -> int:
        """Steps of `method` over `text`; raises `TooManyStepsError` above the limit."""
        for _ in self.spans(method, text, limit):
            pass
        return self._taken

    def spans(self, method: str, text: str, limit: int = 1 << 60) -> Iterator[tuple[int, int]]:
        """Where it matches."""
        self._text, self._end, self._taken, self._limit = text, len(text), 0, limit
        if method in {"match", "fullmatch"}:
            end = self._at(0, self._at_the_end if method == "fullmatch" else _here)
            if end != NO:
                yield 0, end
            return
        start = 0
        while start <= self._end:
            end = self._at(start, _here)
            if end != NO:
                yield start, end
                if method == "search":
                    return
            start = max(start + 1, end)

    def _at_the_end(self, place: int) -> int:
        return place if place == self._end else NO

    def _at(self, start: int, rest: Rest) -> int:
        self._groups.clear()
        self._step(1)
        begins = self._begins
        if begins is not None and (start == self._end or not begins[self._text[start]]):
            return NO
        return self._whole(start, rest)

    def _step(self, number: int) -> None:
        self._taken += number
        if self._taken > self._limit:
            raise TooManyStepsError

    def _class(self, kind: Any, value: Any, flags: int) -> Class:
        return self.classes.setdefault(f"{kind} {value} {flags}", Class(kind, value, flags))

    def _sequence(self, items: list[Any], flags: int) -> Node:
        if not items:
            return lambda place, rest: rest(place)
        (kind, value), then = items[0], self._sequence(items[1:], flags)
        if kind in _SINGLE:
            return self._one(self._class(kind, value, flags), then)
        if kind in _REPEATS:
            least, most, inner = value
            if len(inner) == 1 and inner[0][0] in _SINGLE:
                return self._repeated_class(kind, least, most, self._class(inner[0][0], inner[0][1], flags), then)
            return self._repeated(kind, least, most, self._sequence(list(inner), flags), then)
        if kind is op.BRANCH:
            return self._branch([(_first(way, flags), self._sequence(list(way), flags)) for way in value[1]], then)
        if kind is op.SUBPATTERN:
            group, added, removed, inner = value
            return self._group(group, self._sequence(list(inner), (flags | added) & ~removed), then)
        if kind is op.ATOMIC_GROUP:
            return self._atomic(self._sequence(list(value), flags), then)
        if kind in {op.ASSERT, op.ASSERT_NOT}:
            direction, inner = value
            back = inner.getwidth()[0] if direction < 0 else 0
            return self._looked(self._sequence(list(inner), flags), kind is op.ASSERT, back, then)
        if kind is op.GROUPREF:
            return self._again(value, then)
        assert kind is op.AT, kind
        return self._place(str(value), flags, then)

    def _one(self, accepted: Class, then: Node) -> Node:
        def run(place: int, rest: Rest) -> int:
            self._taken += 1
            return then(place + 1, rest) if place < self._end and accepted[self._text[place]] else NO

        return run

    def _repeated_class(self, kind: Any, least: int, most: int, accepted: Class, then: Node) -> Node:
        def reach(place: int, most: int) -> int:
            text, stop = self._text, min(self._end, place + int(most))
            start = place
            while place < stop and accepted[text[place]]:
                place += 1
            self._step(1 + place - start)
            return place

        def greedy(place: int, rest: Rest) -> int:
            for end in range(reach(place, most), place + least - 1, -1):
                found = then(end, rest)
                if found != NO:
                    return found
            return NO

        def lazy(place: int, rest: Rest) -> int:
            end = reach(place, least)
            while end >= place + least:
                found = then(end, rest)
                if found != NO:
                    return found
                if end - place >= int(most) or reach(end, 1) == end:
                    return NO
                end += 1
            return NO

        def possessive(place: int, rest: Rest) -> int:
            end = reach(place, most)
            return then(end, rest) if end - place >= least else NO

        return {op.MAX_REPEAT: greedy, op.MIN_REPEAT: lazy, op.POSSESSIVE_REPEAT: possessive}[kind]

    def _repeated(self, kind: Any, least: int, most: int, body: Node, then: Node) -> Node:
        def another(place: int, number: int, rest: Rest) -> int:
            if number >= int(most):
                return NO
            return body(place, lambda end: turn(end, number + 1, rest) if end > place or number < least else NO)

        def turn(place: int, number: int, rest: Rest) -> int:
            self._step(1)
            if number < least:
                return another(place, number, rest)
            if kind is op.MIN_REPEAT:
                found = then(place, rest)
                return found if found != NO else another(place, number, rest)
            found = another(place, number, rest)
            return found if found != NO else then(place, rest)

        def possessive(place: int, rest: Rest) -> int:
            number = 0
            while number < int(most):
                self._step(1)
                end = body(place, _here)
                if end in {NO, place}:
                    break
                place, number = end, number + 1
            return then(place, rest) if number >= least else NO

        return possessive if kind is op.POSSESSIVE_REPEAT else lambda place, rest: turn(place, 0, rest)

    def _branch(self, ways: list[tuple[Class | None, Node]], then: Node) -> Node:
        """As `re` does, it only tries ways that may begin with the next character."""
        possible: dict[str, list[Node]] = {}

        def begin(char: str) -> list[Node]:
            possible[char] = found = [way for first, way in ways if first is None or (char and first[char])]
            return found

        def run(place: int, rest: Rest) -> int:
            self._taken += 1
            char = self._text[place : place + 1]
            for way in possible.get(char) or begin(char):
                found = way(place, lambda end: then(end, rest))
                if found != NO:
                    return found
            return NO

        return run

    def _group(self, group: int | None, body: Node, then: Node) -> Node:
        def run(place: int, rest: Rest) -> int:
            def after(end: int) -> int:
                if group is None:
                    return then(end, rest)
                before = self._groups.get(group)
                self._groups[group] = place, end
                found = then(end, rest)
                if found == NO and before is not None:
                    self._groups[group] = before
                return found

            return body(place, after)

        return run

    def _atomic(self, body: Node, then: Node) -> Node:
        def run(place: int, rest: Rest) -> int:
            end = body(place, _here)
            return NO if end == NO else then(end, rest)

        return run

    def _looked(self, body: Node, wanted: bool, back: int, then: Node) -> Node:
        def run(place: int, rest: Rest) -> int:
            self._taken += 1
            found = place >= back and body(place - back, _here) != NO
            return then(place, rest) if found is wanted else NO

        return run

    def _again(self, group: int, then: Node) -> Node:
        def run(place: int, rest: Rest) -> int:
            start, end = self._groups.get(group, (NO, NO))
            text = self._text[start:end]
            self._step(1 + len(text))
            return then(place + len(text), rest) if start != NO and self._text.startswith(text, place) else NO

        return run

    def _place(self, name: str, flags: int, then: Node) -> Node:
        words = Class(op.IN, [(op.CATEGORY, op.CATEGORY_WORD)], flags & re.ASCII)
        is_there = self._places(bool(flags & re.MULTILINE), words)[name]

        def run(place: int, rest: Rest) -> int:
            self._taken += 1
            return then(place, rest) if is_there(place) else NO

        return run

    def _places(self, lines: bool, words: Class) -> dict[str, Callable[[int], bool]]:
        def at_a_boundary(place: int) -> bool:
            before = place > 0 and words[self._text[place - 1]]
            return before != (place < self._end and words[self._text[place]])

        return {
            "AT_BEGINNING": lambda place: place == 0 or (lines and self._text[place - 1] == "\n"),
            "AT_BEGINNING_STRING": lambda place: place == 0,
            "AT_END": lambda place: (
                place == self._end or (self._text[place] == "\n" and (lines or place == self._end - 1))
            ),
            "AT_END_STRING": lambda place: place == self._end,
            "AT_BOUNDARY": at_a_boundary,
            "AT_NON_BOUNDARY": lambda place: not at_a_boundary(place),
        }

"""No regular expression takes the square of a text's length (Y-2): one client's odd text would hold up all the others.

Every pattern of every module is attacked with texts made from its own parts: what leads up to each of its elements,
and behind that a long run of one character, or the same beginning again and again. What is judged is how the number of
steps grows (`tests/regex_steps.py`).
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import breakloop
from tests.apart import APART
from tests.growth import HOSTILE_TEXTS
from tests.regex_steps import Class, Steps, TooManyStepsError, op, parser

METHODS = ("search", "match", "fullmatch", "findall", "finditer", "sub", "split")
# How often a text is repeated. Long ones are above every bounded repetition, which looks like the square below its bound.
SHORT, LONG = 6, 256
STEPS_MAX = 400  # for each character: what takes more is not linear
CHARS = " \t\naA0\xe9-_.:;,/=<>()[]{}\"'`*#\\&|%"
MORE = ("", " ", "  ", "\n", "\n\n", "a", "0", "-", " -", "a ", ".", ":", '"', "'", "(", "<")
MEMBERS = CHARS + "bxz!$@~^+?Z59"
BEGINNINGS_MAX = 100
VARIANTS_MAX = 2
PARTS = 8  # all patterns in one test would come near the time limit of a test on a busy machine
ELSE = "\ud800"  # of a class that none of these belongs to


def beginnings(pattern: re.Pattern[Any]) -> list[str]:
    """What leads up to each element of a pattern, by every alternative."""
    found: dict[str, None] = {"": None}
    _lead(parser.parse(pattern.pattern, pattern.flags), [""], found)
    every = list(found)
    return every[:: -(-len(every) // BEGINNINGS_MAX)]


def _lead(items: Any, before: list[str], found: dict[str, None]) -> list[str]:
    """Note what leads up to each item, words taken as one, and return what leads past the last."""
    following = [kind for kind, _ in items[1:]]
    for (kind, value), behind in zip_longest(items, following):
        before = list(dict.fromkeys(_past(kind, value, before, found)))
        before = [*before[:VARIANTS_MAX], *before[VARIANTS_MAX:][-1:]]  # the last: without all that may be missing
        if behind is not op.LITERAL:
            found.update(dict.fromkeys(before))
    return before


def _past(kind: Any, value: Any, before: list[str], found: dict[str, None]) -> list[str]:
    if kind is op.LITERAL:
        return [text + chr(value) for text in before]
    if kind is op.BRANCH:
        return [_lead(way, [text], found)[0] for way in value[1] for text in (before[0], before[-1])]
    if kind is op.SUBPATTERN:
        return _lead(value[3], before, found)
    if kind is op.ATOMIC_GROUP:
        return _lead(value, before, found)
    if kind in {op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT}:
        least, _, inner = value
        ends = before
        for turn in range(min(max(least, 1), 40)):
            ends = _lead(inner, ends, {} if turn else found)
        return ends if least else [ends[0], *before]
    if kind in {op.ANY, op.NOT_LITERAL, op.IN}:
        return [text + char for text in before[:2] for char in _members(kind, value)]
    return before  # places, and what is only looked at


def _members(kind: Any, value: Any) -> list[str]:
    """Some characters of a class, a letter before others."""
    accepted = Class(kind, value, 0)
    found = [char for char in MEMBERS if accepted[char]]
    letters = [char for char in found if char.isalpha()]
    return [*letters[:1], *[char for char in found if not char.isalpha()][:1]] or [ELSE]


def attacks(pattern: re.Pattern[Any], steps: Steps) -> Iterator[tuple[str, str, str]]:
    """A beginning, what is repeated behind it, and an end that the pattern does not expect."""
    yield from HOSTILE_TEXTS
    known = beginnings(pattern)
    chars = _unlike(CHARS + "".join(sorted({text[-1] for text in known if text})), steps)
    for text in known:
        for char in chars:
            yield text, char, "\x00"
    for again in _unlike([text + more for text in known if text for more in MORE], steps):
        yield "", again, "\x00"


def _unlike(texts: str | list[str], steps: Steps) -> list[str]:
    """Those that the pattern can tell apart."""

    @cache
    def looks(char: str) -> tuple[bool, ...]:
        return char == "\n", char.isalnum() or char == "_", *(accepted[char] for accepted in steps.classes.values())

    return list({tuple(map(looks, text)): text for text in reversed(texts)}.values())


def grows(steps: Steps, method: str, attack: tuple[str, str, str], size: int) -> bool:
    """Whether twice the growth of a text takes clearly more than twice the steps."""
    begin, again, end = attack
    texts = [begin + again * size * times + end for times in (1, 2, 4)]
    try:
        some, more, most = (steps.count(method, text, STEPS_MAX * len(text)) for text in texts)
    except TooManyStepsError:
        return True
    return most - more > 2.5 * (more - some) + size  # 2 of what is linear, 4 of the square


def slow(pattern: re.Pattern[Any], method: str) -> str:
    """The first attack whose steps grow faster than its length, as a sentence; "" where none does."""
    steps = Steps(pattern)
    for attack in attacks(pattern, steps):
        if grows(steps, method, attack, SHORT) and grows(steps, method, attack, LONG):
            return f"{attack!r}: more steps for each character of a longer text"
    return ""


@pytest.fixture(autouse=True)
def _deep() -> Iterator[None]:
    """The matcher calls itself for each turn of a repetition."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    yield
    sys.setrecursionlimit(before)


def modules() -> dict[str, Any]:
    found = {}
    for one in pkgutil.walk_packages(breakloop.__path__, "breakloop."):
        if not one.name.endswith("__main__") and one.name not in APART:
            found[one.name] = importlib.import_module(one.name)
    return found


def used() -> dict[tuple[str, str], set[str]]:
    """How the patterns that are kept whole are applied, by their module, if they are private, and name:
    `NAME.search(...)`, or `NAME().search(...)` where it is compiled on first use."""
    found: dict[tuple[str, str], set[str]] = {}
    root = Path(breakloop.__path__[0])
    for path in root.rglob("*.py"):
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Attribute) or node.attr not in METHODS:
                continue
            of = node.value.func if isinstance(node.value, ast.Call) else node.value
            if isinstance(of, ast.Name):
                found.setdefault((module * of.id.startswith("_"), of.id), set()).add(node.attr)
    return found


@cache
def patterns() -> dict[str, tuple[re.Pattern[Any], str]]:
    """Every pattern at the top of a module, with each way in which it is applied."""
    found: dict[str, tuple[re.Pattern[Any], str]] = {}
    methods = used()
    for module, name, value in [(module, *each) for module, made in modules().items() for each in vars(made).items()]:
        made_by = getattr(getattr(value, "__wrapped__", None), "func", None)  # of `lazy_pattern`
        if made_by is re.compile:
            value = value()  # noqa: PLW2901 - the pattern itself
        whole = isinstance(value, re.Pattern)
        pattern = value if whole else getattr(value, "__self__", None)
        if isinstance(pattern, re.Pattern):
            for method in methods.get((module * name.startswith("_"), name), ()) if whole else (value.__name__,):
                found[f"{module.removeprefix('breakloop.')}.{name}.{method}"] = pattern, method
    return found


def test_the_patterns_are_found() -> None:
    """Kept whole, or as the method that is called (Y-2)."""
    assert len(patterns()) > 80
    assert {
        "dialects.text_actions._FENCED.search",
        "detect.steps.fingerprints._OPENS_FOR_WRITING.search",
        "dialects.steps._DATA_URL.sub",
    } <= set(patterns())


@pytest.mark.parametrize("module", sorted(APART))
def test_what_cannot_be_imported_here_has_no_patterns(module: str) -> None:
    """Nobody would attack them (Y-2)."""
    path = Path(breakloop.__path__[0]).parent.joinpath(*module.split(".")).with_suffix(".py")
    assert "import re\n" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("part", range(PARTS))
def test_every_pattern_is_linear(part: int) -> None:
    """Whatever a text is made of, reading twice as much takes twice the steps (Y-2)."""
    found = {name: slow(*applied) for name, applied in sorted(patterns().items())[part::PARTS]}
    assert {name: attack for name, attack in found.items() if attack} == {}


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"a*a*b", r"\s+$", r"(?:x\w*)*y"])
def test_a_pattern_that_is_not_linear_is_found(pattern: str) -> None:
    """The check can fail."""
    assert slow(re.compile(pattern), "search")


def test_the_steps_are_those_of_re() -> None:
    """The matcher that counts finds what `re` finds, in texts that are nearly what the pattern expects."""
    unlike = []
    for name, (pattern, method) in patterns().items():
        steps = Steps(pattern)
        for text in beginnings(pattern):
            given = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
            real = getattr(pattern, method if method in {"match", "fullmatch"} else "search")(given)
            counted = next(steps.spans(method, str(given, "latin-1") if isinstance(given, bytes) else given), None)
            if counted != (real and real.span()):
                unlike.append((name, text, counted, real))
    assert unlike == []

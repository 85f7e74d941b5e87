"""No regular expression takes the square of a text's length (Y-2): one client's odd text would hold up all the others.

Every pattern of every module is attacked with texts made from its own parts: what leads up to each of its elements,
and behind that a long run of one character, or the same beginning again and again. Time is the process's own, and what
is judged is how it grows, so that a busy machine fails nothing.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from re import _constants as op
from re import _parser as parser
from typing import Any

import pytest

import breakloop
from tests.apart import APART
from tests.growth import GROWTH_MAX, cpu_ns, growth

Run = Callable[[Any], object]

METHODS = ("search", "match", "fullmatch", "findall", "finditer", "sub", "split")
# Short ones first: what grows faster than the square would not come to an end on the long one.
SIZES = (16, 128, 4096)
LONG = 64 * 1024
# Where to look closer. A character costs an honest pattern 5 to 50 ns; one that takes the square 2,000 to 20,000 ns in
# 4 KB. What decides is how the cost grows, so that neither the machine nor its other work matters.
SUSPECT_NS = 150
START_NS = 50_000
CHARS = " \t\naA0\xe9-_.:;,/=<>()[]{}\"'`*#\\&|%"
MORE = ("", " ", "  ", "\n", "\n\n", "a", "0", "-", " -", "a ", ".", ":", '"', "'", "(", "<")
MEMBERS = CHARS + "bxz!$@~^+?Z59"
BEGINNINGS_MAX = 100
VARIANTS_MAX = 2
ELSE = "\ud800"  # of a class that none of these belongs to
CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}


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
    if kind is op.ANY:
        return ["a"]
    ranges = [(op.NEGATE, None), (op.LITERAL, value)] if kind is op.NOT_LITERAL else value
    negated = ranges[0][0] is op.NEGATE
    found = [char for char in MEMBERS if negated != any(_is(char, *each) for each in ranges)]
    letters = [char for char in found if char.isalpha()]
    return [*letters[:1], *[char for char in found if not char.isalpha()][:1]] or [ELSE]


def _is(char: str, kind: Any, value: Any) -> bool:
    if kind is op.LITERAL:
        return bool(ord(char) == value)
    if kind is op.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if kind is not op.CATEGORY:
        return False
    *_, name = str(value).split("_")
    return (re.fullmatch(CATEGORIES[name], char) is not None) != ("_NOT_" in str(value))


def attacks(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """A beginning, what is repeated behind it, and an end that the pattern does not expect."""
    known = beginnings(pattern)
    chars = dict.fromkeys(CHARS + "".join(sorted({text[-1] for text in known if text})))
    for text in known:
        for char in chars:
            yield text, char, "\x00"
        for more in MORE if text else ():
            yield "", text + more, "\x00"


def spelled(attack: tuple[str, str, str], size: int, *, as_bytes: bool) -> str | bytes:
    begin, again, end = attack
    text = begin + again * max(1, (size - len(begin)) // len(again)) + end
    return text.encode("latin-1", "replace") if as_bytes else text


def slow(run: Run, pattern: re.Pattern[Any]) -> str:
    """The first attack whose cost grows faster than its length, as a sentence; "" where none does."""
    as_bytes = isinstance(pattern.pattern, bytes)

    def cost_ns(attack: tuple[str, str, str], size: int, times: int = 3) -> int:
        text = spelled(attack, size, as_bytes=as_bytes)
        return cpu_ns(lambda: run(text), times)

    def grows(attack: tuple[str, str, str], size: int) -> bool:
        return all(cost_ns(attack, size) > GROWTH_MAX * cost_ns(attack, size // 4) for _ in range(3))

    for attack in attacks(pattern):
        for size in SIZES:
            suspect = START_NS + SUSPECT_NS * size
            if cost_ns(attack, size, 1) <= suspect or cost_ns(attack, size) <= suspect:
                continue
            if grows(attack, size) or (size == SIZES[-1] and grows(attack, LONG)):
                return f"{attack!r}: four times the length takes more than {GROWTH_MAX:g} times as long"
    return ""


@cache
def modules() -> dict[str, Any]:
    found = {}
    for one in pkgutil.walk_packages(breakloop.__path__, "breakloop."):
        if not one.name.endswith("__main__") and one.name not in APART:
            found[one.name] = importlib.import_module(one.name)
    return found


@cache
def used() -> dict[str, set[str]]:
    """How the patterns that are kept whole are applied, by their name: `NAME.search(...)`."""
    found: dict[str, set[str]] = {}
    for path in Path(breakloop.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in METHODS:
                found.setdefault(node.value.id, set()).add(node.attr)
    return found


def patterns() -> dict[str, tuple[Run, re.Pattern[Any]]]:
    """Every pattern at the top of a module, with each way in which it is applied."""
    found: dict[str, tuple[Run, re.Pattern[Any]]] = {}
    for module, name, value in [(module, *each) for module, made in modules().items() for each in vars(made).items()]:
        whole = isinstance(value, re.Pattern)
        pattern = value if whole else getattr(value, "__self__", None)
        if isinstance(pattern, re.Pattern):
            for method in used().get(name, ()) if whole else (value.__name__,):
                run = getattr(pattern, method)
                nothing = b"" if isinstance(pattern.pattern, bytes) else ""
                run = partial(run, nothing) if method == "sub" else run
                found[f"{module.removeprefix('breakloop.')}.{name}.{method}"] = run, pattern
    return found


PATTERNS = patterns()


def test_the_patterns_are_found() -> None:
    """Kept whole, or as the method that is called (Y-2)."""
    assert len(PATTERNS) > 80
    assert {
        "dialects.text_actions._FENCED.search",
        "detect.steps.fingerprints._OPENS_FOR_WRITING.search",
        "dialects.steps._DATA_URL.sub",
    } <= set(PATTERNS)


@pytest.mark.parametrize("module", sorted(APART))
def test_what_cannot_be_imported_here_has_no_patterns(module: str) -> None:
    """Nobody would attack them (Y-2)."""
    path = Path(breakloop.__path__[0]).parent.joinpath(*module.split(".")).with_suffix(".py")
    assert "import re\n" not in path.read_text(encoding="utf-8")


@pytest.mark.timeout(600)
def test_every_pattern_is_linear() -> None:
    """Whatever a text is made of, reading twice as much takes twice as long (Y-2)."""
    found = {name: slow(*PATTERNS[name]) for name in sorted(PATTERNS)}
    assert {name: attack for name, attack in found.items() if attack} == {}


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"a*a*b", r"\s+$", r"(?:x\w*)*y"])
def test_a_pattern_that_is_not_linear_is_found(pattern: str) -> None:
    """The check can fail."""
    made = re.compile(pattern)
    assert slow(made.search, made)


def test_growth_tells_the_square_from_the_line() -> None:
    """The measure itself (Y-2)."""
    assert growth(lambda size: re.search(r"\s+$", " " * size + "x"), 1000) > GROWTH_MAX
    assert growth(lambda size: re.search(r"\d", " " * size), 400_000) <= GROWTH_MAX

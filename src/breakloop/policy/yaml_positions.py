"""YAML text -> plain data and the position of every key and value, from the parser's events (the only user of ruamel).
YAML 1.2: `no` and `off` are texts. Refuses duplicate keys, odd keys and tags, and documents that blow up."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
)

from breakloop.errors import BundleError, Problem
from breakloop.policy.json_positions import MAX_DEPTH, duplicate_key
from breakloop.policy.places import Path, Place, readable
from breakloop.policy.yaml_syntax import explain

MAX_NODES = 2_000_000  # with aliases counted as often as they are used
_LONGEST_NUMBER = 400
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_ENDLESS = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_MERGE = "\0<<"  # a name that no file can hold
_CORE = "tag:yaml.org,2002:"
_SCALAR_TAGS = {_CORE + name for name in ("int", "float", "bool", "null")}


class _Key(NamedTuple):
    name: str
    place: Place


class _Node:
    """A value and where it stands; a map or list also knows its parts."""

    __slots__ = ("done", "items", "key", "keys", "merges", "place", "value", "weight")

    def __init__(self, value: Any, place: Place) -> None:
        self.value = value
        self.place = place
        self.keys: dict[str, Place] = {}  # of a map
        self.items: dict[str | int, _Node] = {}
        self.key: _Key | None = None  # the key whose value comes next
        self.merges: list[_Node] = []
        self.weight = 1
        self.done = True


class YamlPlaces:
    """Finds parts of a document that was read."""

    def __init__(self, root: _Node) -> None:
        self._root = root

    def locate(self, path: Path, *, key: bool = False) -> Place:
        """Return where a part stands; for what is not there, the key of the nearest part around it."""
        node, key_place = self._root, self._root.place
        for part in path:
            below = node.items.get(part)
            if below is None:
                return key_place
            key_place = node.keys.get(str(part), below.place)
            node = below
        return key_place if key else node.place


def read_yaml(text: str, file: str) -> tuple[Any, YamlPlaces]:
    """Return the data and its places, or raise `BundleError` with everything found."""
    builder = _Builder(file)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            builder.take(event)
    except MarkedYAMLError as error:
        raise BundleError([*builder.problems, explain(error, text, file)]) from None
    except (YAMLError, ValueError, IndexError, OverflowError) as error:
        # Characters that YAML forbids, and escapes like \UFFFFFFFF that the scanner trips over.
        raise BundleError([*builder.problems, explain(error, text, file)]) from None
    if builder.root is None:
        raise BundleError([Problem(file, 1, 1, "", "is empty")])
    if builder.problems:
        raise BundleError(builder.problems)
    return builder.root.value, YamlPlaces(builder.root)


class _Builder:
    """Builds data and places from events, without recursion."""

    def __init__(self, file: str) -> None:
        self.root: _Node | None = None
        self.problems: list[Problem] = []
        self._file = file
        self._open: list[_Node] = []
        self._anchors: dict[str, _Node] = {}
        self._count = 0
        self._documents = 0

    def take(self, event: Any) -> None:
        """Take the next event of the parser."""
        if isinstance(event, CollectionEndEvent):
            self._close(self._open.pop())
        elif isinstance(event, NodeEvent):
            self._take_node(event)
        elif isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self._refuse(self._place(event), "a second document begins here", 'take out the "---"')

    def _take_node(self, event: NodeEvent) -> None:
        place = self._place(event)
        self._count += 1
        if isinstance(event, AliasEvent):
            node = self._alias(event, place)
        elif isinstance(event, ScalarEvent):
            node = _Node(self._scalar(event, place), place)
        else:
            node = self._collection(event, place)
        if self._count > MAX_NODES:
            self._refuse(place, f"has more than {MAX_NODES} parts, aliases counted as often as used")
        if event.anchor and not isinstance(event, AliasEvent):
            self._anchors[event.anchor] = node
        self._add(node, event, place)
        if not node.done and not isinstance(event, AliasEvent):
            self._open.append(node)
            if len(self._open) > MAX_DEPTH:
                self._refuse(place, f"is nested more than {MAX_DEPTH} deep")

    def _alias(self, event: AliasEvent, place: Place) -> _Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            self._refuse(place, f'"*{event.anchor}" names no anchor that stands before it', "a text is put in quotes")
        if not node.done:
            self._refuse(place, f'"*{event.anchor}" stands inside what it repeats')
        self._count += node.weight
        return node

    def _collection(self, event: Any, place: Place) -> _Node:
        kind = "map" if isinstance(event, MappingStartEvent) else "seq"
        if event.tag not in (None, "!", _CORE + kind):
            self._problem(place, f'tag "{_short(event.tag)}" is not supported', "take it out")
        node = _Node({} if kind == "map" else [], place)
        node.done = False
        node.weight = -self._count
        return node

    def _add(self, node: _Node, event: NodeEvent, place: Place) -> None:
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if isinstance(parent.value, list):
            parent.items[len(parent.value)] = node
            parent.value.append(node.value)
        elif parent.key is None:
            parent.key = self._key(parent, node, event, place)
        else:
            self._add_value(parent, parent.key, node)

    def _key(self, parent: _Node, node: _Node, event: NodeEvent, place: Place) -> _Key:
        if isinstance(event, (MappingStartEvent, SequenceStartEvent)) or not node.done or node.items:
            self._refuse(place, "a map or list cannot be a key", "a text with braces or brackets is put in quotes")
        name = node.value
        if not isinstance(name, str):
            written = event.value if isinstance(event, ScalarEvent) else str(name)
            self._problem(place, f"the key {written or 'null'} is not text", f'put it in quotes: "{written}"')
            name = str(written)
        plain = isinstance(event, ScalarEvent) and event.style is None
        if name in parent.keys and not (plain and name == "<<"):
            self.problems.append(duplicate_key(name, place, parent.keys[name].line))
        return _Key(_MERGE if plain and name == "<<" else name, place)

    def _add_value(self, parent: _Node, key: _Key, node: _Node) -> None:
        parent.key = None
        if key.name == _MERGE:
            parent.merges.append(node)
            return
        parent.keys.setdefault(key.name, key.place)
        parent.items.setdefault(key.name, node)
        parent.value.setdefault(key.name, node.value)

    def _close(self, node: _Node) -> None:
        # Only now are the values of its `<<` keys whole; and its own keys win, wherever they stand.
        for merged in node.merges:
            for source in merged.items.values() if isinstance(merged.value, list) else [merged]:
                self._merge(node, source)
        node.done = True
        node.weight += self._count + 1

    def _merge(self, node: _Node, source: _Node) -> None:
        if not isinstance(source.value, dict):
            self._refuse(source.place, '"<<" takes an alias of a map, or a list of such aliases', "write <<: *name")
        for name, item in source.items.items():
            if name not in node.items:
                node.keys[str(name)] = source.keys[str(name)]
                node.items[name] = item
                node.value[name] = item.value

    def _scalar(self, event: ScalarEvent, place: Place) -> Any:
        text: str = event.value
        tag = event.tag
        if tag is not None and tag not in ("!", _CORE + "str") and tag not in _SCALAR_TAGS:
            self._problem(place, f'tag "{_short(tag)}" is not supported', "take it out; a text is put in quotes")
        if tag not in _SCALAR_TAGS and (tag is not None or event.style is not None):
            return text
        value = plain_value(text)
        if isinstance(value, float) and not math.isfinite(value):
            self._problem(place, f"{text} is not a number that can be used")
        return value

    def _place(self, event: Any) -> Place:
        mark = event.start_mark
        return Place(self._file, mark.line + 1, mark.column + 1)

    def _problem(self, place: Place, message: str, hint: str = "") -> None:
        self.problems.append(Problem(*place, path="", message=readable(message), hint=readable(hint)))

    def _refuse(self, place: Place, message: str, hint: str = "") -> NoReturn:
        """Report what makes reading on pointless."""
        self._problem(place, message, hint)
        raise BundleError(self.problems)


def _short(tag: str) -> str:
    return tag.replace(_CORE, "!!", 1)


def plain_value(text: str) -> str | int | float | bool | None:
    """Return what a text without quotes stands for (YAML 1.2 core schema).

    Digits with zeros in front stay text: whether `007` is seven, or a name, only its author knows.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789" or len(text) > _LONGEST_NUMBER:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return math.nan if _ENDLESS.fullmatch(text) else text

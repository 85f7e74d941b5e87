"""Policies as the dashboard shows them, each with what it would have blocked (SPEC X-2). What a bundle says comes in
words already; a form that is not known is shown as it is rather than left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakloop.admin.dashboard.views import words
from breakloop.model.reason import REASONS
from breakloop.model.records import EventRecord


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, in words."""

    name: str
    algorithm: str
    keys: tuple[str, ...]
    said: str


@dataclass(frozen=True, slots=True)
class WouldBlock:
    """What a policy in shadow mode would have denied."""

    total: int
    parts: tuple[tuple[str, str, str, int], ...]  # rule, reason, what the reason means, how often
    events: tuple[EventRecord, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy."""

    id: str
    mode: str
    selector: str
    rules: tuple[Rule, ...]
    loops: tuple[str, ...]
    shadow: WouldBlock

    @property
    def in_shadow(self) -> bool:
        """Whether it only watches."""
        return self.mode == "shadow"


Counts = Sequence[tuple[str, str, str, int]]


def policies(given: Sequence[Mapping[str, Any]], counts: Counts, events: Sequence[EventRecord]) -> list[Policy]:
    """Return the policies, those in shadow mode first: they wait for a decision."""
    made = [_policy(one, counts, events) for one in given]
    return sorted(made, key=lambda one: not one.in_shadow)


def _policy(given: Mapping[str, Any], counts: Counts, events: Sequence[EventRecord]) -> Policy:
    name = str(given.get("id", ""))
    return Policy(
        id=name,
        mode=str(given.get("mode", "enforce")),
        selector=said(given.get("selector")) or "everything",
        rules=tuple(_rule(one) for one in given.get("rules") or ()),
        loops=_loops(given.get("loop_detection")),
        shadow=_would_block(name, counts, events),
    )


def _would_block(policy: str, counts: Counts, events: Sequence[EventRecord]) -> WouldBlock:
    mine = sorted((row for row in counts if row[0] == policy), key=lambda row: -row[3])
    parts = tuple((rule, reason, _meaning(reason), times) for _, rule, reason, times in mine)
    seen = tuple(one for one in events if one.data.get("policy") == policy)
    return WouldBlock(sum(times for _, _, _, times in mine), parts, seen)


def _meaning(reason: str) -> str:
    known = REASONS.get(reason)
    return known.meaning.replace("`", "") if known is not None else ""


def _rule(given: Any) -> Rule:
    if not isinstance(given, Mapping):
        return Rule(said(given), "", (), "")
    keys = given.get("keys") or ()
    return Rule(
        name=str(given.get("name", "")),
        algorithm=str(given.get("algorithm", "")).replace("_", " "),
        keys=tuple(map(str, keys)) if isinstance(keys, Sequence) and not isinstance(keys, str) else (str(keys),),
        said=said(given.get("words")) or said(_rest(given)),
    )


def _rest(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in {"name", "algorithm", "keys", "words"}}


def _loops(given: Any) -> tuple[str, ...]:
    if isinstance(given, Sequence) and not isinstance(given, str):
        return tuple(filter(None, map(said, given)))
    text = said(given)
    return (text,) if text else ()


def said(given: Any) -> str:
    """Return a value of a bundle for people: words as they are, mappings as `name value, name value`."""
    if given is None or given in ("", {}, []):
        return ""
    if isinstance(given, Mapping):
        return ", ".join(f"{str(name).replace('_', ' ')} {said(value)}" for name, value in given.items() if said(value))
    if isinstance(given, list | tuple):
        return ", ".join(map(said, given))
    if isinstance(given, bool):
        return "yes" if given else "no"
    return words.shortened(given, 300)

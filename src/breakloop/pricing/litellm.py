"""Import of price files in LiteLLM's format (`model_prices_and_context_window.json`): US dollars per token.

Amounts are read as exact decimals. An invalid entry is skipped and reported with its line, model and field. Entries
without a price for tokens (images, seconds, pages) are skipped and counted. Unknown fields are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

from breakloop.errors import Problem, SettingsError
from breakloop.pricing.prices import MILLION, Price, Tier, from_dollars_a_token

_NOT_MODELS: Final = frozenset({"fallback_generalizations", "sample_spec"})
_INPUT: Final = "input_cost_per_token"
_OUTPUT: Final = "output_cost_per_token"
_KINDS: Final = {  # kind of `Price` -> its fields, in order of precedence
    "input": (_INPUT,),
    "output": (_OUTPUT, "output_cost_per_image_token"),  # for models whose output is images
    "cached": ("cache_read_input_token_cost", "input_cost_per_token_cache_hit"),
    "cache_write": ("cache_creation_input_token_cost",),
    "reasoning": ("output_cost_per_reasoning_token",),
}
_FIELDS: Final = frozenset(field for fields in _KINDS.values() for field in fields)
_ABOVE: Final = re.compile(r"(.+)_above_(\d+)(k?)_tokens")
_PER_CALL: Final = "input_cost_per_request"
_SUFFIXES: Final = {"batch": "_batches", "flex": "_flex", "priority": "_priority"}
_WRITTEN: Final = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?")
_DEAREST_USD: Final = Decimal(1)  # per token: more than a million dollars per million tokens is a wrong unit
_HINT: Final = "US dollars for one token, such as 2.5e-06"

Entry = Mapping[str, Any]


class Imported(NamedTuple):
    prices: dict[str, Price]
    problems: tuple[Problem, ...]  # invalid entries
    others: int  # entries without a price for tokens


class _EntryError(Exception):
    def __init__(self, field: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.field, self.message, self.hint = field, message, hint


def read_litellm(path: Path, service_tier: str = "standard") -> Imported:
    """Read a price file. Raises `SettingsError` if it cannot be read or is not in LiteLLM's format."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"prices.file: {path}: cannot be read: {why}") from None
    return parse_litellm(text, str(path), service_tier)


def parse_litellm(text: str, file: str, service_tier: str = "standard") -> Imported:
    """Parse the text of a price file. Raises `SettingsError` if it is not a map of models."""
    twice: list[str] = []
    try:
        data = json.loads(text, parse_float=Decimal, object_pairs_hook=lambda pairs: _unique(pairs, twice))
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        why = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deep, or a number is too long"
        raise SettingsError(f"prices.file: {file}:{line}: is not JSON: {why}") from None
    if not isinstance(data, dict):
        raise SettingsError(f"prices.file: {file}: must be a map of models (LiteLLM's model_prices_and_context_window)")
    prices: dict[str, Price] = {}
    problems = [_problem(text, file, name, _EntryError("", "is defined twice; the last one is used")) for name in twice]
    others = 0
    for name, entry in data.items():
        if name in _NOT_MODELS:
            continue
        try:
            price = _price(entry, _SUFFIXES.get(service_tier, ""))
        except _EntryError as error:
            problems.append(_problem(text, file, name, error))
            continue
        if price is None:
            others += 1
        else:
            prices[name] = price
    if not prices and not problems:
        raise SettingsError(f"prices.file: {file}: contains no prices (no entry has {_INPUT})")
    return Imported(prices, tuple(problems), others)


def _unique(pairs: list[tuple[str, Any]], twice: list[str]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs) and any(isinstance(value, dict) for value in made.values()):
        names = [name for name, _ in pairs]
        twice += [name for name in made if names.count(name) > 1]
    return made


def _problem(text: str, file: str, name: str, error: _EntryError) -> Problem:
    at = max(text.find(f"{json.dumps(name)}:"), text.find(f"{json.dumps(name, ensure_ascii=False)}:"))
    line = text.count("\n", 0, at) + 1 if at >= 0 else 1
    column = at - text.rfind("\n", 0, at) if at >= 0 else 1
    return Problem(file, line, column, f"{name}.{error.field}" if error.field else name, error.message, error.hint)


def _price(entry: object, suffix: str) -> Price | None:
    """Return the price of one entry, or None if it has none for tokens. Fields with the suffix take precedence."""
    if not isinstance(entry, Mapping):
        raise _EntryError("", "must be a map", f'write {{"{_INPUT}": 2.5e-06, "{_OUTPUT}": 1e-05}}')
    if suffix:
        special = {name.removesuffix(suffix): value for name, value in entry.items() if name.endswith(suffix)}
        entry = {**entry, **special}
    if entry.get("tiered_pricing") is not None and _is_by_tokens(entry["tiered_pricing"]):
        return _ranges(entry)
    if entry.get(_INPUT) is None and entry.get(_OUTPUT) is None:
        return None
    base = _flat(entry)
    if not any(base[:2]) and _is_paid_otherwise(entry):
        return None
    above = _above(entry)
    return base._replace(tiers=tuple(Tier(tokens, _over(base, above, tokens)) for tokens in sorted(above)))


def _is_paid_otherwise(entry: Entry) -> bool:
    """Return whether the entry is charged by the second, image or page. Token prices are then 0, but not free."""
    others = [
        field
        for field in entry
        if "_cost_per_" in field and field not in _FIELDS and field != _PER_CALL and not _ABOVE.match(field)
    ]
    return any(isinstance(entry[field], int | Decimal) and entry[field] > 0 for field in others)


def _flat(entry: Entry, where: str = "") -> Price:
    kinds = {kind: _first(entry, fields, where) for kind, fields in _KINDS.items()}
    price = Price(kinds["input"] or 0, kinds["output"] or 0, kinds["cached"], kinds["cache_write"], kinds["reasoning"])
    per_call = entry.get(_PER_CALL)
    return price if per_call is None else price._replace(call=_amount(per_call, where + _PER_CALL) // MILLION)


def _first(entry: Entry, fields: tuple[str, ...], where: str) -> int | None:
    return next((_amount(entry[field], where + field) for field in fields if entry.get(field) is not None), None)


def _above(entry: Entry) -> dict[int, dict[str, int]]:
    """Return the prices that apply above a number of input tokens: tokens -> field -> price."""
    found: dict[int, dict[str, int]] = {}
    for field, value in entry.items():
        match = _ABOVE.fullmatch(field)
        if match is None or match[1] not in _FIELDS or value is None:
            continue
        tokens = int(match[2]) * (1000 if match[3] else 1)
        found.setdefault(tokens, {})[match[1]] = _amount(value, field)
    return found


def _over(base: Price, above: Mapping[int, Mapping[str, int]], tokens: int) -> Price:
    """Return the price of the tier from `tokens` on: for each kind, the highest tier with a price, or the base."""
    said: dict[str, int] = {}
    for start in sorted(above):
        if start <= tokens:
            said |= above[start]
    for kind, fields in _KINDS.items():
        amounts = [said[field] for field in fields if field in said]
        if amounts:
            base = base._replace(**{kind: amounts[0]})  # type: ignore[arg-type]  # the kinds are numbers
    return base


def _is_by_tokens(tiers: object) -> bool:
    """Return whether tiers depend on input tokens; those of search engines depend on the number of results."""
    return not isinstance(tiers, list) or any(not isinstance(tier, Mapping) or "range" in tier for tier in tiers)


def _ranges(entry: Entry) -> Price:
    """Return the price of an entry with a list of ranges: the first is the base price, the others are its tiers."""
    tiers = entry["tiered_pricing"]
    if not isinstance(tiers, list) or not tiers:
        raise _EntryError("tiered_pricing", "must be a list of ranges")
    output = _first(entry, _KINDS["output"], "")
    found = sorted(_range(tier, at, output) for at, tier in enumerate(tiers))
    return found[0].price._replace(tiers=tuple(found[1:]))


def _range(tier: object, at: int, output: int | None) -> Tier:
    where = f"tiered_pricing[{at}]"
    if not isinstance(tier, Mapping):
        raise _EntryError(where, "must be a map")
    span = tier.get("range")
    if not isinstance(span, list) or not span or not _is_count(span[0]):
        raise _EntryError(f"{where}.range", "must be two numbers of tokens", "such as [0, 200000]")
    if tier.get(_INPUT) is None:
        raise _EntryError(f"{where}.{_INPUT}", "is missing", _HINT)
    price = _flat(tier, f"{where}.")
    if tier.get(_OUTPUT) is None and output is not None:  # otherwise output would be free
        price = price._replace(output=output)
    return Tier(int(span[0]), price)


def _is_count(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool) and value >= 0


def _amount(value: object, field: str) -> int:
    if isinstance(value, str) and _WRITTEN.fullmatch(value):  # files written by hand may quote numbers
        value = Decimal(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _EntryError(field, f"must be a number, got {value!r:.40}", _HINT)
    if value < 0:
        raise _EntryError(field, f"must not be negative, got {value}", _HINT)
    if value > _DEAREST_USD:
        raise _EntryError(field, f"{value} is not the price of a single token", _HINT)
    return from_dollars_a_token(Decimal(value))

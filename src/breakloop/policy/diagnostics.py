"""Turns pydantic's validation errors into findings in plain words with hints; none of pydantic's terms reach the user.
Locations in the file are added later (`policy.documents`).

Hints come from the types of the schema: which fields a block has, which block a misplaced field belongs to, and
which known word is nearest to a misspelled one.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from breakloop.policy.documents import DocumentFinding, DocumentPath

_NEAR = 0.75
_CAMEL = re.compile("(?<=[a-z0-9])(?=[A-Z])")


def nearest(typed: str, known: Iterable[str]) -> str | None:
    """Return the known word that `typed` most likely means, even if only its first words were typed."""
    folded = _fold(typed)
    scored = [(_score(folded, _fold(word)), word) for word in known]
    best, word = max(scored, key=lambda pair: pair[0], default=(0.0, ""))
    return word if best >= _NEAR else None


def _score(typed: str, word: str) -> float:
    """Return the similarity from 0 to 1, or 0 if it is too low. A part of a word scores slightly less than the whole
    word.
    """
    return max([_ratio(typed, word, _NEAR), *(0.9 * _ratio(typed, part, _NEAR / 0.9) for part in _parts(word))])


def _ratio(typed: str, word: str, least: float) -> float:
    from difflib import SequenceMatcher  # noqa: PLC0415 - for a mistake only

    matcher = SequenceMatcher(None, typed, word)  # its quick ratios are upper bounds
    near = matcher.real_quick_ratio() >= least and matcher.quick_ratio() >= least
    return matcher.ratio() if near else 0.0


def did_you_mean(typed: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean "x"?`, or an empty string if no known word is similar."""
    word = nearest(typed, known)
    return f'; did you mean "{prefix}{word}"?' if word is not None else ""


def _fold(word: str) -> str:
    """Normalize spelling: `pathPrefix`, `path-prefix` and `path_prefix` are the same word."""
    return _CAMEL.sub("_", word).replace("-", "_").lower()


def _parts(word: str) -> Iterator[str]:
    """Return the leading and the trailing words: `threshold` of `threshold_identical_requests`."""
    words = word.split("_")
    for cut in range(1, len(words)):
        yield "_".join(words[:cut])
        yield "_".join(words[cut:])


_SPELLINGS = {"tokens_per_second": "rps"}  # the other spelling of a field that has two
_KINDS = ("similarity", "algorithm")  # the fields that choose between kinds of blocks


def where_it_belongs(root: Any, loc: DocumentPath, name: str) -> str:
    """Return a suggestion for an unknown field. `loc` is the location of the block, including the kinds of unions."""
    block = _walk(root, loc)
    if not _is_block(block):
        return ""
    for inner, field in block.model_fields.items():
        if any(name in _names(one) for one in blocks_in(field.annotation)):
            return f'; it belongs in "{field.alias or inner}"'
    return _other_kind(root, loc, name) or _further_out(root, loc, name) or did_you_mean(name, _names(block))


def _other_kind(root: Any, loc: DocumentPath, name: str) -> str:
    for at, part in enumerate(loc):
        for tag, block in _kinds(_walk(root, loc[:at])):
            if (
                tag != part
                and name in _names(_walk(block, loc[at + 1 :]))
                and part in dict(_kinds(_walk(root, loc[:at])))
            ):
                chooser = next((kind for kind in _KINDS if kind in _names(block)), "kind")
                return f'; it belongs to {chooser} "{tag}"'
    return ""


def _further_out(root: Any, loc: DocumentPath, name: str) -> str:
    for end in range(len(loc) - 1, 0, -1):
        block, label = _walk(root, loc[:end]), loc[end - 1]
        if _is_block(block) and name in _names(block) and isinstance(label, str):
            return f'; it belongs in "{label}"'
    return ""


def _is_block(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_fields")


def _names(block: Any) -> list[str]:
    if not _is_block(block):
        return []
    return [field.alias or name for name, field in block.model_fields.items()]


def blocks_in(kind: Any) -> Iterator[Any]:
    """Yield the models in a type: of a list, a map or a union, those of its parts."""
    if _is_block(kind):
        yield kind
    else:
        for part in get_args(kind):
            yield from blocks_in(part)


def _walk(kind: Any, loc: DocumentPath) -> Any:
    for part in loc:
        kind = _step(_bare(kind), part)
    return _bare(kind)


def _step(kind: Any, part: str | int) -> Any:
    if _is_block(kind):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        return fields[part].annotation if part in fields else kind
    if get_origin(kind) in (list, dict):
        return get_args(kind)[-1]
    tagged = dict(_kinds(kind))
    return tagged.get(str(part), kind)


def _kinds(kind: Any) -> list[tuple[str, Any]]:
    """Return the tagged alternatives of a union."""
    if not _is_union(kind):
        return []
    return [(note.tag, _bare(arm)) for arm in get_args(kind) for note in _notes(arm) if hasattr(note, "tag")]


def _notes(kind: Any) -> tuple[Any, ...]:
    return kind.__metadata__ if get_origin(kind) is Annotated else ()


def _bare(kind: Any) -> Any:
    """Strip `Annotated` and `| None` from a type."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
            continue
        arms = [arm for arm in get_args(kind) if arm is not type(None)] if _is_union(kind) else []
        if len(arms) != 1:
            return kind
        kind = arms[0]


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


_LONGEST_VALUE = 60
_NUMBER = re.compile(r"[-+]?[0-9][0-9_,.]*")
# The reason for a bound, by field and kind of error.
_WHY = {
    (
        "threshold_identical_requests",
        "greater_than_equal",
    ): "the Nth identical request trips; 1 would stop every request",
    ("budget_usd_per_day", "greater_than"): "to stop an agent, set active: false",
    ("max_hits", "greater_than_equal"): "0 switches the detector off",
    ("loop_detection", "list_type"): "a block, or a list of blocks; for none, leave it out or set enabled: false",
    ("loop_detection", "literal_error"): "or a block, or a list of blocks",
    ("loop_detection", "too_short"): "leave loop_detection out instead",
    ("deny_status", "greater_than_equal"): "a denial is an HTTP status from 400 to 599",
    ("deny_status", "less_than_equal"): "a denial is an HTTP status from 400 to 599",
    ("hosts", "too_short"): "leave hosts out to match every host",
    ("methods", "too_short"): "leave methods out to match every method",
    ("hosts", "list_type"): "write [example.com]",
    ("methods", "list_type"): "write [GET, POST]",
    ("limit_keys", "list_type"): "write [jwt:org_id], or [] for one counter for all",
}
# What a value must be, by kind of error.
KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "datetime_type": "a timestamp",
    "finite_number": "a finite number",
    "int_parsing_size": "a smaller number",
}

Words = Callable[[Any, dict[str, Any]], str]


def describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        short = value if len(value) <= _LONGEST_VALUE else value[:_LONGEST_VALUE] + "..."
        return f'the text "{short}"'
    if isinstance(value, (int, float)):
        return f"{value}"[:_LONGEST_VALUE]
    return "a map" if isinstance(value, dict) else "a list"


def _bound(word: str, name: str) -> Words:
    return lambda value, ctx: f"must be {word} {_number(ctx[name])}, got {describe(value)}"


def _choice(value: Any, ctx: dict[str, Any]) -> str:
    words = re.findall(r"'([^']*)'", str(ctx.get("expected") or ctx.get("expected_tags")))
    names = ", ".join(f'"{word}"' for word in words)
    guess = did_you_mean(value, words) if isinstance(value, str) and len(words) > 1 else ""
    said = f'"{value[:_LONGEST_VALUE]}"' if isinstance(value, str) else describe(value)
    return f"must be {'one of ' if len(words) > 1 else ''}{names}, got {said}{guess}"


def _number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:g}"


_WORDS: dict[str, Words] = {
    "missing": lambda _, __: "is required",
    "greater_than": _bound("more than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
    "too_short": lambda _, __: "must not be empty",
    "string_too_long": lambda value, ctx: f"must be at most {ctx['max_length']} characters, got {len(value)}",
    "literal_error": _choice,
    "union_tag_invalid": _choice,
    "union_tag_not_found": lambda value, _: "is required" if value is None else f"must be text, got {describe(value)}",
}


def findings(errors: list[Any], data: Any, model: Any) -> list[DocumentFinding]:
    """Convert pydantic's `errors()` for `data` against `model` to findings, one for each error."""
    return [_finding(error, data, model) for error in errors]


def _finding(error: dict[str, Any], data: Any, model: Any) -> DocumentFinding:
    kind, loc, ctx = error["type"], tuple(error["loc"]), error.get("ctx") or {}
    path, value, is_key = in_document(loc, data)
    if kind == "breakloop":
        # A check may refer to a missing field; then `value` is the enclosing block.
        whole = isinstance(value, (dict, list)) or value is None
        return DocumentFinding(path, ctx["message"], ctx["hint"], at_key=is_key or whole)
    if kind == "extra_forbidden":
        message = f'unknown field "{loc[-1]}"{where_it_belongs(model, loc[:-1], str(loc[-1]))}'
        return DocumentFinding(path[:-1], message, at_key=True, place=path)
    if kind == "missing":
        return DocumentFinding(path, "is required", _WHY.get((str(path[-1]), kind), ""), at_key=True)
    if kind.startswith("union_tag") and isinstance(value, dict):
        chooser = "algorithm" if "_rule_kind" in str(ctx.get("discriminator")) else "similarity"
        path, value = (*path, chooser), value.get(chooser)
    words = _WORDS.get(kind)
    must = f"must be {KINDS[kind]}" if kind in KINDS else "is not valid"
    message = words(value, ctx) if words else f"{must}, got {describe(value)}"
    return DocumentFinding(
        path, message, _hint(kind, path, value), at_key=value is None or isinstance(value, (dict, list))
    )


def in_document(loc: DocumentPath, data: Any) -> tuple[DocumentPath, Any, bool]:
    """Convert a location in the schema to (path in the document, value there, whether the key is meant). The document
    has neither the kinds of unions nor the list that a single block is converted to.
    """
    path: list[str | int] = []
    here, is_key = data, False
    for at, part in enumerate(loc):
        is_key = is_key or part == "[key]"
        if isinstance(here, dict):
            name = _as_spelled(here, part)
            if name in here:
                here = here[name]
                path.append(name)
            elif at == len(loc) - 1 and isinstance(part, str) and part != "[key]":
                path.append(part)  # a missing field
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
            path.append(part)
    return tuple(path), here, is_key


def _as_spelled(block: dict[str, Any], part: str | int) -> str | int:
    other = _SPELLINGS.get(part, part) if isinstance(part, str) and part not in block else part
    return other if other in block else part


def _hint(kind: str, path: DocumentPath, value: Any) -> str:
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    why = _WHY.get((name, kind), "") if path and path[-1] == name else ""
    if why:
        return why
    if kind in ("int_type", "float_type") and isinstance(value, str) and _NUMBER.fullmatch(value):
        return "write the number without quotes" if value.isdigit() else "write digits only, without quotes"
    if kind == "bool_type" and isinstance(value, str):
        return "write true or false, without quotes"
    if kind == "string_type" and isinstance(value, (int, float)):
        return "put it in quotes"
    return ""

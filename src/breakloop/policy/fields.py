"""Which fields a block of the schema has, found by walking the models' types along a path; and where a field belongs
that stands in the wrong block. Works on the types alone and so needs no pydantic."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from breakloop.policy.places import Path
from breakloop.policy.suggest import did_you_mean

_SPELLINGS = {"tokens_per_second": "rps"}
_KINDS = ("similarity", "algorithm")  # the fields that choose between blocks


def spelled(name: str) -> str | None:
    """Return the other spelling of a field that has two."""
    return _SPELLINGS.get(name)


def where_it_belongs(root: Any, loc: Path, name: str) -> str:
    """Say what the author of an unknown field may have meant; `loc` is where the block stands, kinds included."""
    block = _walk(root, loc)
    if not is_block(block):
        return ""
    own = _names(block)
    for field, inner in _inner_blocks(block):
        if name in _names(inner):
            return f'; it belongs in "{field}"'
    return _other_kind(root, loc, name) or _further_out(root, loc, name) or did_you_mean(name, own)


def _other_kind(root: Any, loc: Path, name: str) -> str:
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


def _further_out(root: Any, loc: Path, name: str) -> str:
    for end in range(len(loc) - 1, 0, -1):
        block, label = _walk(root, loc[:end]), loc[end - 1]
        if is_block(block) and name in _names(block) and isinstance(label, str):
            return f'; it belongs in "{label}"'
    return ""


def is_block(kind: Any) -> bool:
    """Tell whether a type is a model."""
    return isinstance(kind, type) and hasattr(kind, "model_fields")


def _names(block: Any) -> list[str]:
    if not is_block(block):
        return []
    return [field.alias or name for name, field in block.model_fields.items()]


def _inner_blocks(block: Any) -> Iterator[tuple[str, Any]]:
    for name, field in block.model_fields.items():
        for kind in _alternatives(field.annotation):
            inner = _bare(get_args(kind)[-1]) if get_origin(kind) in (list, dict) else kind
            for one in _alternatives(inner):
                if is_block(one):
                    yield field.alias or name, one


def _walk(kind: Any, loc: Path) -> Any:
    for part in loc:
        kind = _step(_bare(kind), part)
    return _bare(kind)


def _step(kind: Any, part: str | int) -> Any:
    if is_block(kind):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        return fields[part].annotation if part in fields else kind
    if get_origin(kind) in (list, dict):
        return get_args(kind)[-1]
    tagged = dict(_kinds(kind))
    return tagged.get(str(part), kind)


def _kinds(kind: Any) -> list[tuple[str, Any]]:
    """The tagged alternatives of a union."""
    if not _is_union(kind):
        return []
    return [(note.tag, _bare(arm)) for arm in get_args(kind) for note in _notes(arm) if hasattr(note, "tag")]


def _notes(kind: Any) -> tuple[Any, ...]:
    return kind.__metadata__ if get_origin(kind) is Annotated else ()


def _alternatives(kind: Any) -> list[Any]:
    bare = _bare(kind)
    return [_bare(arm) for arm in get_args(bare)] if _is_union(bare) else [bare]


def _bare(kind: Any) -> Any:
    """Take off `Annotated` and `| None`."""
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

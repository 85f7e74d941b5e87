"""Values of settings as text: read out of a variable by the type of its field, shown to people with secrets masked, and
what is said of one that is of the wrong kind. Which sources there are is `settings`' business."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from breakloop.policy.schema_types import Model

Name = tuple[str, ...]  # ("jwt", "secret")

KINDS: Final = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_sub_type": "must be text",
    "string_too_short": "must not be empty",
    "list_type": "must be a list",
    "model_type": "must be a map",
    "dict_type": "must be a map",
    "missing": "is missing",
}
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})
_USER_INFO: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def fields_of(model: type[Model], above: Name = ()) -> Iterator[tuple[Name, FieldInfo]]:
    """Every single setting; a block is not one, its fields are."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Model):
            yield from fields_of(field.annotation, (*above, name))
        else:
            yield (*above, name), field


def blocks_of(field: FieldInfo) -> list[type[Model]]:
    """Return the blocks that a list or a map is made of, each kind of them."""
    found, waiting = [], list(get_args(field.annotation)[-1:]) if get_origin(field.annotation) in (list, dict) else []
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, Model):
            found.append(kind)
        else:
            waiting += get_args(kind)
    return found


def shown(value: Any) -> str:
    """Return a value for people; of a map its names."""
    if isinstance(value, SecretStr):
        return "********" if value.get_secret_value() else "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "-"
    if isinstance(value, list):
        value = [getattr(one, "name", "?") if isinstance(one, Model) else one for one in value]
    text = ", ".join(value) if isinstance(value, list | dict) else f"{value:g}" if isinstance(value, float) else value
    return _USER_INFO.sub("***", str(text)) or "-"


def shown_settings(settings: Model) -> list[tuple[str, str, str]]:
    """Return every setting with its value for people, and where it came from."""
    origins: dict[str, str] = getattr(settings, "origins", {})
    found: list[tuple[str, str, str]] = []
    for name, _ in fields_of(type(settings)):
        value: Any = settings
        for step in name:
            value = getattr(value, step)
        dotted = ".".join(name)
        found.append((dotted, shown(value), origins.get(dotted, "default")))
    return found


def parse(text: str, field: FieldInfo) -> Any:
    """Read a variable's text as the field's type; what does not fit stays text, and validation says so."""
    kind = field.annotation
    if get_origin(kind) is list and not blocks_of(field):
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind is bool:
        low = text.lower()
        return True if low in _TRUE else False if low in _FALSE else text
    if kind in (int, float) or get_origin(kind) in (dict, list):
        try:
            return kind(text) if kind in (int, float) else json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text.lower() if get_origin(kind) is Literal and text.lower() in get_args(kind) else text

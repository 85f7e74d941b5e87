"""Bytes -> plain data and the place of every part of it, for bundles and settings alike. JSON by its name or by its
first character, otherwise YAML; what the data means is the schema's matter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from breakloop.errors import BundleError, Problem
from breakloop.policy.json_positions import read_json
from breakloop.policy.places import Finding, Path, Places
from breakloop.policy.yaml_positions import read_yaml

MAX_BYTES = 64 * 1024 * 1024
MAX_YAML_LENGTH = 8 * 1024 * 1024  # read at about 0.4 MB a second; JSON is read a hundred times as fast
_SURROGATE_ESCAPE = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_document(text: bytes, name: str, kind: str = "") -> tuple[Any, Places]:
    """Return the data of a JSON or YAML text and its places, or raise `BundleError` with located problems. `kind` is
    "json" or "yaml" where somebody said so, which counts more than the name."""
    if len(text) > MAX_BYTES:
        _refuse(name, f"has {len(text)} bytes, more than the {MAX_BYTES} allowed")
    decoded = _decode(text, name)
    if not decoded.strip():
        _refuse(name, "is empty")
    data, places = _read(decoded, name, kind)
    if _SURROGATE_ESCAPE.search(decoded):
        halves = [finding.located(places) for finding in _half_characters(data)]
        if halves:
            raise BundleError(halves)
    return data, places


def _read(text: str, name: str, kind: str) -> tuple[Any, Places]:
    if kind == "json" or (not kind and name.endswith(".json")) or _is_json(text):
        return read_json(text, name)
    if len(text) > MAX_YAML_LENGTH:
        _refuse(name, f"has more than the {MAX_YAML_LENGTH} characters allowed for YAML", "write it as JSON")
    return read_yaml(text, name)


def _half_characters(data: Any) -> Iterator[Finding]:
    """Find texts with a lone surrogate, which cannot be stored, sent or printed."""
    todo: list[tuple[Path, Any]] = [((), data)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, str) and _SURROGATE.search(value):
            yield Finding(path, "has half a character in it", "escapes from \\ud800 to \\udfff come in pairs")
        elif isinstance(value, dict):
            for key, item in value.items():
                if _SURROGATE.search(key):
                    yield Finding(path, "has a key with half a character in it", at_key=True, place=(*path, key))
                todo.append(((*path, key), item))
        elif isinstance(value, list):
            todo += [((*path, index), item) for index, item in enumerate(value)]


def _is_json(text: str) -> bool:
    """Tell whether a text without a telling name is JSON; braces alone may also be YAML."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):
        return True  # JSON, with something in it that the reader refuses with its place
    return True


def _decode(text: bytes, name: str) -> str:
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = text[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8-sig", "replace")) + 1
        raise BundleError([Problem(name, line, column, "", "is not UTF-8 text", "save it as UTF-8")]) from None


def _refuse(name: str, message: str, hint: str = "") -> NoReturn:
    raise BundleError([Problem(name, 1, 1, "", message, hint)])

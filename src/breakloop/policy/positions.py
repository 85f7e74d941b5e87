"""Bytes -> plain data and the place of every part of it, for bundles and settings alike. JSON by its name or by its
first character, otherwise YAML; what the data means is the schema's matter."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from breakloop.errors import BundleError, Problem
from breakloop.policy.json_positions import read_json
from breakloop.policy.places import Places
from breakloop.policy.yaml_positions import read_yaml

MAX_BYTES = 64 * 1024 * 1024
MAX_YAML_BYTES = 8 * 1024 * 1024  # read at about 0.4 MB a second; JSON is read a hundred times as fast


def read_document(text: bytes, name: str) -> tuple[Any, Places]:
    """Return the data of a JSON or YAML text and its places, or raise `BundleError` with located problems."""
    if len(text) > MAX_BYTES:
        _refuse(name, f"has {len(text)} bytes, more than the {MAX_BYTES} allowed")
    decoded = _decode(text, name)
    if not decoded.strip():
        _refuse(name, "is empty")
    if name.endswith(".json") or _is_json(decoded):
        return read_json(decoded, name)
    if len(text) > MAX_YAML_BYTES:
        _refuse(name, f"has {len(text)} bytes, more than the {MAX_YAML_BYTES} allowed for YAML", "write it as JSON")
    return read_yaml(decoded, name)


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

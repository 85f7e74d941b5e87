"""Small changes in a bundle's text that leave everything else as its author wrote it, comments and layout too: single
values are replaced where they stand, in YAML and JSON alike. What comes out is read again, and must say what was meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from breakloop.errors import BundleError, Problem
from breakloop.policy.places import Path, path_text
from breakloop.policy.positions import read_document

SHADOW: Final = "shadow"
ENFORCE: Final = "enforce"
_TOKEN: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\n]|\'\')*\'|[^\s,\]}#]+')


def promoted(text: bytes, name: str, policy: str) -> bytes:
    """Return a bundle in which a policy enforces that was in shadow mode, with the next version. Raises `BundleError`.

    `name` stands in messages, and its ending may tell JSON from YAML.
    """
    data, _ = read_document(text, name)
    found = [(index, one) for index, one in enumerate(data["policies"]) if one["id"] == policy]
    if not found:
        raise BundleError([Problem(name, 1, 1, "policies", f'there is no policy "{policy}"')])
    index, one = found[0]
    if one["spec"].get("mode") != SHADOW:
        raise BundleError([Problem(name, 1, 1, f"policies[{index}].spec.mode", f'"{policy}" enforces already')])
    mode: Path = ("policies", index, "spec", "mode")
    return replaced(text, name, {mode: ENFORCE, ("bundle_version",): data["bundle_version"] + 1})


def replaced(text: bytes, name: str, values: Mapping[Path, str | int]) -> bytes:
    """Return the text with single values replaced. Raises `BundleError` where that would change more, or less."""
    data, places = read_document(text, name)
    wanted = json.loads(json.dumps(data))  # a copy in which what is written once and used twice is two
    lines = text.decode("utf-8-sig").split("\n")
    # From the end on: what stands before a place keeps its own.
    spots = sorted(((places.locate(path), path) for path in values), key=lambda spot: spot[0], reverse=True)
    for place, path in spots:
        _set(wanted, path, values[path])
        line = lines[place.line - 1]
        found = _TOKEN.match(line, place.column - 1)
        if found is not None:
            new = _written(found[0], values[path])
            lines[place.line - 1] = line[: found.start()] + new + line[found.end() :]
    made = "\n".join(lines).encode()
    if _data(made, name) != wanted:
        place, path = spots[-1]
        message = "cannot be changed here without changing something else (an anchor, an alias or a tag stands there)"
        raise BundleError([Problem(*place, path_text(path), message, "change it by hand")])
    return made


def _data(text: bytes, name: str) -> Any:
    try:
        return read_document(text, name)[0]
    except BundleError:
        return None


def _set(data: Any, path: Path, value: str | int) -> None:
    for step in path[:-1]:
        data = data[step]
    data[path[-1]] = value


def _written(old: str, value: str | int) -> str:
    """Return a value in the quotes of the one it replaces."""
    quote = old[0] if old[0] in "\"'" and isinstance(value, str) else ""
    return f"{quote}{value}{quote}"

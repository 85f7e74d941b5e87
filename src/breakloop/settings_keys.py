"""Reads the provider keys that the setting `upstream_keys` names (SPEC Y-6). What such an entry may look like is
`settings_checks`' business, what a key is used for `gateway.forwarding`'s. A key is never part of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from breakloop.errors import SettingsError


def read_keys(entries: Sequence[str], env: Mapping[str, str]) -> dict[str, bytes]:
    """Return the keys by name of their upstream; raises `SettingsError` for one that is not there or cannot be sent."""
    keys = {}
    for entry in entries:
        name, _, source = entry.partition("=")
        kind, _, place = source.partition(":")
        key = (env.get(place, "") if kind == "env" else _read(name, place)).strip()
        where = f"environment variable {place}" if kind == "env" else place
        if not key:
            raise SettingsError(f"upstream_keys: {name}: {where} is {'not set' if kind == 'env' else 'empty'}")
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise SettingsError(f"upstream_keys: {name}: {where} holds more than a key (a space, or several lines)")
        keys[name] = key.encode("ascii")
    return keys


def _read(name: str, file: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"upstream_keys: {name}: {file} cannot be read: {why}") from None

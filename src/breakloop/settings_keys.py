"""Reads the secrets that settings name: provider keys (`upstream_keys`, SPEC Y-6), and those of alert targets. What
such an entry may look like is `settings_checks`' and `settings_alerts`' business. A secret is never part of a
message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from breakloop.errors import SettingsError


def read_keys(entries: Sequence[str], env: Mapping[str, str]) -> dict[str, bytes]:
    """Return the keys by name of their upstream; raises `SettingsError` for one that is not there or cannot be sent."""
    keys = {}
    for entry in entries:
        name, _, source = entry.partition("=")
        kind, _, place = source.partition(":")
        key = (env.get(place, "") if kind == "env" else _read(f"upstream_keys: {name}", place)).strip()
        where = f"environment variable {place}" if kind == "env" else place
        if not key:
            raise SettingsError(f"upstream_keys: {name}: {where} is {'not set' if kind == 'env' else 'empty'}")
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise SettingsError(f"upstream_keys: {name}: {where} holds more than a key (a space, or several lines)")
        keys[name] = key.encode("ascii")
    return keys


def read_references(named: Iterable[tuple[str, str]], env: Mapping[str, str]) -> dict[str, str]:
    """Return secrets by how they are named (`env:VARIABLE`, `file:/PATH`); `named` has the setting of each. Raises
    `SettingsError` for one that is not there, or is more than a line of ASCII."""
    found = {}
    for setting, reference in named:
        kind, _, place = reference.partition(":")
        text = (env.get(place, "") if kind == "env" else _read(setting, place)).strip()
        where = f"environment variable {place}" if kind == "env" else place
        if not text:
            raise SettingsError(f"{setting}: {where} is {'not set' if kind == 'env' else 'empty'}")
        if not (text.isascii() and text.isprintable()):
            raise SettingsError(f"{setting}: {where} holds more than a secret (several lines, or signs beyond ASCII)")
        found[reference] = text
    return found


def _read(setting: str, file: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"{setting}: {file} cannot be read: {why}") from None

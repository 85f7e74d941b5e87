"""Several files as one bundle (SPEC B-3, directory): lists are joined in the order of the files, maps are merged, any
other field may stand in one file only; and every part still knows its file."""

from __future__ import annotations

from typing import Any

from breakloop.errors import Problem
from breakloop.policy.hints import describe
from breakloop.policy.places import Finding, Path, Place, Places

_LISTS = ("policies", "kill_switches")
_MAPS = ("agents", "projects")


class Merged:
    """The merged data, and the places of its parts."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.problems: list[Problem] = []
        self._documents: list[tuple[str, Places]] = []
        self._origin: dict[Path, tuple[Places, Path]] = {}

    def add(self, data: Any, places: Places, file: str) -> None:
        """Add the next file."""
        self._documents.append((file, places))
        if not isinstance(data, dict):
            self._problem(places, (), f"must be a map, got {describe(data)}")
            return
        for name, value in data.items():
            if name in _LISTS and isinstance(value, list) and isinstance(self.data.get(name, []), list):
                self._join(name, value, places)
            elif name in _MAPS and isinstance(value, dict) and isinstance(self.data.get(name, {}), dict):
                self._merge(name, value, places)
            elif name not in self.data:
                self.data[name] = value
                self._origin[(name,)] = (places, (name,))
            elif name != "$schema":
                first = self._origin[(name,)][0].locate((name,), key=True)
                message = f'"{name}" may stand in one file only; it is already in {first.file} on line {first.line}'
                self._problem(places, (name,), message)

    def locate(self, path: Path, *, key: bool = False) -> Place:
        """Return where a part stands, in its own file; what is missing is missed in the first one."""
        for length in (2, 1):
            origin = self._origin.get(path[:length])
            if origin is not None:
                places, start = origin
                return places.locate((*start, *path[length:]), key=key)
        return self._documents[0][1].locate(())

    def _join(self, name: str, items: list[Any], places: Places) -> None:
        joined = self.data.setdefault(name, [])
        self._origin.setdefault((name,), (places, (name,)))
        for index, item in enumerate(items):
            self._origin[name, len(joined)] = (places, (name, index))
            joined.append(item)

    def _merge(self, name: str, items: dict[str, Any], places: Places) -> None:
        merged = self.data.setdefault(name, {})
        self._origin.setdefault((name,), (places, (name,)))
        for key, item in items.items():
            if key in merged:
                first = self.locate((name, key), key=True)
                message = f'"{key}" is already in {first.file} on line {first.line}'
                self._problem(places, (name, key), message)
                continue
            self._origin[name, key] = (places, (name, key))
            merged[key] = item

    def _problem(self, places: Places, path: Path, message: str) -> None:
        self.problems.append(Finding(path, message, at_key=True).located(places))

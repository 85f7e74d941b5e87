"""Loads a bundle: reads and parses its files, validates them against the schema, and returns it, or raises
`BundleError` with every problem and its location.

The signature of a file is stored beside it (`policy.yaml.sig`), that of a directory inside it (`bundle.sig`). The files
of a directory form one bundle: lists are joined in the order of the files, maps are merged, and any other field may
appear in one file only. A bundle that needs an extra of the package which is not installed is rejected. Notes report
what is valid but may surprise the author, such as expired overrides or kill switches that can never match; they do not
prevent a bundle from loading.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from breakloop.errors import BundleError, Problem, UnreadableError
from breakloop.policy.diagnostics import describe, findings, in_document
from breakloop.policy.documents import (
    MAX_BYTES,
    DocumentFinding,
    DocumentPath,
    DocumentPlace,
    DocumentPlaces,
    in_order,
    read_document,
)
from breakloop.policy.schema import bundle as schema
from breakloop.policy.schema.bundle import Bundle
from breakloop.policy.schema.limits import CostBasedConfig, LlmTokensConfig
from breakloop.policy.schema.types import validate
from breakloop.pricing.prices import has_table
from breakloop.pricing.tokens import is_installed

Stamp = tuple[object, ...]  # a value that changes whenever the bundle does
SIGNATURE_SUFFIX: Final = ".sig"
SIGNATURE_MAX_BYTES: Final = 16 * 1024
_DIRECTORY_SIGNATURE: Final = "bundle.sig"
_EXPLAINED: Final = 100  # errors of a bundle: explaining and locating one takes much longer than finding it
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_MERGED: Final[dict[str, Any]] = {"policies": list, "kill_switches": list, "agents": dict, "projects": dict}


@dataclass(frozen=True, slots=True)
class BundleDocument:
    """One text of a bundle. `name` is used in messages; `kind` is "json" or "yaml" if known, or else empty."""

    name: str
    data: bytes
    kind: str = ""
    unread: Problem | None = None  # why there is no data


@dataclass(frozen=True, slots=True)
class BundleBytes:
    """What a source holds now: one document, or those of a directory in order, and the detached signature."""

    documents: tuple[BundleDocument, ...]
    stamp: Stamp = ()
    signature: str = ""
    directory: bool = False
    forced: bool = False  # it was stored with a request to accept a lower version


def read_path(path: Path, *, signed: bool = False, stamp: Stamp = ()) -> BundleBytes:
    """Read a file, or the files of a directory in the order of their names."""
    signature = read_signature(path) if signed else ""
    if not path.is_dir():
        return BundleBytes((_read_file(path),), stamp, signature)
    files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and not file.name.startswith("."))
    if not files:
        raise BundleError([Problem(str(path), 1, 1, "", "contains no policy file", "expected *.yaml, *.yml or *.json")])
    return BundleBytes(tuple(_read_file(file) for file in files), stamp, signature, directory=True)


def signature_path(path: Path) -> Path:
    return path / _DIRECTORY_SIGNATURE if path.is_dir() else path.with_name(path.name + SIGNATURE_SUFFIX)


def read_signature(path: Path) -> str:
    """Return the signature of a bundle, or an empty string if there is none. Raises `OSError` if it cannot be read."""
    try:
        with signature_path(path).open("rb") as file:
            return file.read(SIGNATURE_MAX_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        return ""


def _read_file(path: Path) -> BundleDocument:
    try:
        with path.open("rb") as file:
            return BundleDocument(str(path), file.read(MAX_BYTES + 1))
    except OSError as error:
        return BundleDocument(str(path), b"", unread=Problem(str(path), 1, 1, "", f"cannot be read: {error.strerror}"))


class BundleDirectory:
    """The merged data of several files, and the locations of its parts."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.problems: list[Problem] = []
        self._first: DocumentPlaces | None = None  # of the first file
        self._origin: dict[DocumentPath, tuple[DocumentPlaces, DocumentPath]] = {}

    def add(self, data: Any, places: DocumentPlaces) -> None:
        self._first = self._first or places
        if not isinstance(data, dict):
            self._problem(places, (), f"must be a map, got {describe(data)}")
            return
        for name, value in data.items():
            kind = _MERGED.get(name)
            if kind is not None and isinstance(value, kind) and isinstance(self.data.get(name, value), kind):
                self._merge(name, value, places)
            elif name not in self.data:
                self.data[name] = value
                self._origin[(name,)] = (places, (name,))
            elif name != "$schema":
                first = self._origin[(name,)][0].locate((name,), key=True)
                message = f'"{name}" is allowed in only one file; it is already in {first.file} on line {first.line}'
                self._problem(places, (name,), message)

    def locate(self, path: DocumentPath, *, key: bool = False) -> DocumentPlace:
        """Return the location of a part in its own file. A missing part is located in the first file."""
        for length in (2, 1):
            origin = self._origin.get(path[:length])
            if origin is not None:
                places, start = origin
                return places.locate((*start, *path[length:]), key=key)
        assert self._first is not None  # noqa: S101 - a directory without files is rejected before
        return self._first.locate(())

    def _merge(self, name: str, items: list[Any] | dict[str, Any], places: DocumentPlaces) -> None:
        """Append to a list, or add to a map, in which a key may occur in only one file."""
        merged = self.data.setdefault(name, type(items)())
        self._origin.setdefault((name,), (places, (name,)))
        for key, item in items.items() if isinstance(items, dict) else enumerate(items):
            if isinstance(merged, list):
                self._origin[name, len(merged)] = (places, (name, key))
                merged.append(item)
            elif key in merged:
                first = self.locate((name, key), key=True)
                self._problem(places, (name, key), f'"{key}" is already in {first.file} on line {first.line}')
            else:
                self._origin[name, key] = (places, (name, key))
                merged[key] = item

    def _problem(self, places: DocumentPlaces, path: DocumentPath, message: str) -> None:
        self.problems.append(DocumentFinding(path, message, at_key=True).located(places))


def notes_for(bundle: schema.Bundle, now: float | None = None) -> list[DocumentFinding]:
    """Return the notes on a bundle, with similar ones combined. Expired parts are only reported if `now` is given."""
    notes = [*_doubtful(bundle)]
    if now is not None:
        notes += _expired(bundle, now)
    groups: dict[tuple[str, object], list[DocumentFinding]] = {}
    for note in notes:
        groups.setdefault((note.message, note.path[-1] if note.path else ""), []).append(note)
    return [_with_count(*group) for group in groups.values()]


def _with_count(first: DocumentFinding, *more: DocumentFinding) -> DocumentFinding:
    """Return one note for similar ones, because thousands of policies may use the same feature."""
    hint = f"{first.hint}; " if first.hint else ""
    return replace(first, hint=f"{hint}and {len(more)} more like it") if more else first


def _doubtful(bundle: schema.Bundle) -> Iterator[DocumentFinding]:
    if bundle.defaults.loop_detection is not None:
        for name, project in bundle.projects.items():
            if project.loop_guard is not None:
                message = "has no effect: defaults.loop_detection replaces the built-in block that it configures"
                yield DocumentFinding(("projects", name, "loop_guard"), message, at_key=True)
    for index, policy in enumerate(bundle.policies):
        if not policy.spec.selector.model_fields_set:
            path = ("policies", index, "spec", "selector")
            yield DocumentFinding(path, "is empty, so the policy applies to every request", at_key=True)
    seen: dict[tuple[str, str], list[tuple[int, schema.KillSwitch]]] = {}
    for index, switch in enumerate(bundle.kill_switches):
        earlier = seen.setdefault((switch.scope_key, switch.scope_value), [])
        covering = next((other for other, before in earlier if _covers(before, switch)), None)
        if covering is not None:
            yield DocumentFinding(
                ("kill_switches", index), f"can never match: kill_switches[{covering}] already covers it"
            )
        earlier.append((index, switch))


def _covers(first: schema.KillSwitch, second: schema.KillSwitch) -> bool:
    if first.expires_at is not None and (second.expires_at is None or first.expires_at < second.expires_at):
        return False
    if first.route is None or first.route == second.route:
        return True
    return first.route.endswith("*") and (second.route or "").startswith(first.route[:-1])


def _expired(bundle: schema.Bundle, now: float) -> Iterator[DocumentFinding]:
    if bundle.expires_at is not None and bundle.expires_at.timestamp() <= now:
        yield DocumentFinding(("expires_at",), "has passed; the bundle stays in force")
    overrides = {"global_shadow": bundle.global_shadow, "kill_switch_override": bundle.kill_switch_override}
    for name, override in overrides.items():
        if override and override.enabled and override.expires_at and override.expires_at.timestamp() <= now:
            yield DocumentFinding((name, "expires_at"), f"has passed, so {name} is not active")
    for index, switch in enumerate(bundle.kill_switches):
        if switch.expires_at is not None and switch.expires_at.timestamp() <= now:
            yield DocumentFinding(
                ("kill_switches", index, "expires_at"), "has passed, so the kill switch is not active"
            )


def missing_extras(bundle: schema.Bundle) -> list[DocumentFinding]:
    """Return a problem for each feature that needs an extra which is not installed."""
    counted, priced = [], list(_priced_agents(bundle))
    for index, policy in enumerate(bundle.policies):
        spec: DocumentPath = ("policies", index, "spec")
        places: list[DocumentPath] = [*(("rules", at) for at in range(len(policy.spec.rules))), ("fallback_limit",)]
        for place, rule in zip(places, policy.spec.all_rules, strict=False):
            config, at = rule.algorithm_config, (*spec, *place, "algorithm_config")
            if isinstance(config, LlmTokensConfig) and config.token_source.estimator == "tokenizer":
                counted.append((*at, "token_source", "estimator"))
            if isinstance(config, CostBasedConfig) and config.cost_key == "usage:usd":
                priced.append((*at, "cost_key"))
        if policy.spec.circuit_breaker is not None and policy.spec.circuit_breaker.spend_source is not None:
            priced.append((*spec, "circuit_breaker", "spend_source"))
    found = _needing("tokenizer", counted, ", or use simple_word") if counted and not is_installed() else []
    return found + (_needing("prices", priced) if priced and not has_table() else [])


def _priced_agents(bundle: schema.Bundle) -> Iterator[DocumentPath]:
    for name, agent in bundle.agents.items():
        for field in ("budget_usd_per_day", "max_usd_per_run", "max_usd_per_tree"):
            if getattr(agent, field) is not None:
                yield "agents", name, field


def _needing(extra: str, places: list[DocumentPath], otherwise: str = "") -> list[DocumentFinding]:
    message = f'needs the extra "{extra}", which is not installed'
    return [DocumentFinding(place, message, f'pip install "breakloop[{extra}]"{otherwise}') for place in places]


@dataclass(frozen=True, slots=True)
class LoadedBundle:
    bundle: Bundle
    digest: str
    notes: list[Problem]


def load_bundle(path: Path, *, now: float | None = None) -> LoadedBundle:
    """Load a file, or the files of a directory by name. With `now`, the notes also report what has expired."""
    return load_fetched(read_path(path), now=now)


def load_text(text: bytes, name: str, *, now: float | None = None) -> LoadedBundle:
    """Load a bundle from its text. `name` is used in messages, and its suffix may distinguish JSON from YAML."""
    return load_fetched(BundleBytes((BundleDocument(name, text),)), now=now)


def load_fetched(fetched: BundleBytes, *, now: float | None = None) -> LoadedBundle:
    found: list[tuple[Any, DocumentPlaces]] = []
    problems: list[Problem] = []
    kind = BundleError
    for document in fetched.documents:
        try:
            found.append(_read(document))
        except BundleError as error:
            problems += error.problems
            kind = UnreadableError if isinstance(error, UnreadableError) else kind
    if fetched.directory:
        merged = BundleDirectory()
        for data, places in found:
            merged.add(data, places)
        problems += merged.problems
        found = [(merged.data, merged)]
    if problems:
        # The other files cannot be validated without the one that cannot be read.
        raise kind(in_order(problems))
    ((data, places),) = found
    return _validated(data, places, now)


def _read(document: BundleDocument) -> tuple[Any, DocumentPlaces]:
    if document.unread is not None:
        raise UnreadableError([document.unread])
    return read_document(document.data, document.name, document.kind)


def _validated(data: Any, places: DocumentPlaces, now: float | None) -> LoadedBundle:
    if not isinstance(data, dict):
        message = f"must be a map with bundle_version and policies, got {describe(data)}"
        raise BundleError([DocumentFinding((), message).located(places)])
    bundle, errors = validate(Bundle, data)
    repeated = duplicates(data)
    found = findings(errors[:_EXPLAINED], data, Bundle) + repeated[:_EXPLAINED]
    more = len(errors) + len(repeated) - len(found)
    if bundle is not None:
        found += missing_extras(bundle)
    if bundle is None or found:
        raise BundleError(in_order((finding.located(places) for finding in found), more))
    notes = [replace(note, path=in_document(note.path, data)[0]) for note in notes_for(bundle, now)]
    return LoadedBundle(bundle, digest(data), in_order(note.located(places) for note in notes))


def digest(data: Any) -> str:
    """Return the SHA-256 of the content. It does not depend on layout, comments or the order of keys."""
    return hashlib.sha256(canonical(data).encode("ascii")).hexdigest()


def canonical(data: Any) -> str:
    """Return the JSON text of a bundle in its one form: without spaces, with sorted keys."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def duplicates(data: dict[str, Any]) -> list[DocumentFinding]:
    """Find duplicate policy ids and rule names in the plain data, to report them together with all other problems."""
    policies = data.get("policies")
    found = [
        DocumentFinding(
            ("policies", index, "id"),
            f'policy id "{name}" is already used by policies[{first}]',
            "ids identify counters, so each must be unique",
        )
        for index, name, first in _repeated(policies, "id")
    ]
    for policy, one in enumerate(policies if isinstance(policies, list) else []):
        spec = one.get("spec") if isinstance(one, dict) else None
        for index, name, first in _repeated(spec.get("rules") if isinstance(spec, dict) else None, "name"):
            path = ("policies", policy, "spec", "rules", index, "name")
            message = f'rule name "{name}" is already used by rules[{first}]'
            found.append(DocumentFinding(path, message, "names separate counters within a policy"))
    return found


def _repeated(items: Any, field: str) -> Iterator[tuple[int, str, int]]:
    """Yield the index and the name of each item whose name an earlier one has, and the index of that one."""
    seen: dict[str, int] = {}
    for index, item in enumerate(items if isinstance(items, list) else []):
        name = item.get(field) if isinstance(item, dict) else None
        if isinstance(name, str) and name and seen.setdefault(name, index) != index:
            yield index, name, seen[name]

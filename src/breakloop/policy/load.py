"""A bundle's text or texts -> validated `schema.Bundle`, or `BundleError` with every problem found and its place (SPEC
B-1, B-2). Where texts come from is `source_file`'s and its neighbours', keeping the last good one `policy.source`'s."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from breakloop.errors import BundleError, Problem, UnreadableError
from breakloop.policy.extras import missing_extras
from breakloop.policy.fetched import Document, Fetched
from breakloop.policy.hints import describe, findings, in_document
from breakloop.policy.merge import Merged
from breakloop.policy.notes import notes_for
from breakloop.policy.places import Finding, Places, in_order
from breakloop.policy.positions import read_document
from breakloop.policy.schema import Bundle
from breakloop.policy.schema_types import validate
from breakloop.policy.source_file import read_path

__all__ = ["LoadedBundle", "load_bundle", "load_fetched", "load_text", "read_document"]


@dataclass(frozen=True, slots=True)
class LoadedBundle:
    """A valid bundle, the digest of its content, and what its author may want to know."""

    bundle: Bundle
    digest: str
    notes: list[Problem]


def load_bundle(path: Path, *, now: float | None = None) -> LoadedBundle:
    """Load a file, or the files of a directory in the order of their names.

    With `now`, the notes also tell what has expired.
    """
    return load_fetched(read_path(path), now=now)


def load_fetched(fetched: Fetched, *, now: float | None = None) -> LoadedBundle:
    """Load what a source holds."""
    if fetched.directory:
        return _load_directory(fetched.documents, now)
    (document,) = fetched.documents
    return _load_document(document, now)


def _load_directory(documents: tuple[Document, ...], now: float | None) -> LoadedBundle:
    merged = Merged()
    problems: list[Problem] = []
    kind = BundleError
    for document in documents:
        try:
            merged.add(*_read(document), document.name)
        except BundleError as error:
            problems += error.problems
            kind = UnreadableError if isinstance(error, UnreadableError) else kind
    problems += merged.problems
    if problems:
        # What other files say cannot be judged without the one that cannot be read.
        raise kind(in_order(problems))
    return _validated(merged.data, merged, now)


def load_text(text: bytes, name: str, *, now: float | None = None) -> LoadedBundle:
    """Load a bundle from its text; `name` stands in messages and its ending may tell JSON from YAML."""
    return _load_document(Document(name, text), now)


def _load_document(document: Document, now: float | None) -> LoadedBundle:
    try:
        data, places = _read(document)
    except UnreadableError:
        raise
    except BundleError as error:
        raise BundleError(in_order(error.problems)) from None
    return _validated(data, places, now)


def _read(document: Document) -> tuple[Any, Places]:
    if document.unread is not None:
        raise UnreadableError([document.unread])
    return read_document(document.data, document.name, document.kind)


def _validated(data: Any, places: Places, now: float | None) -> LoadedBundle:
    if not isinstance(data, dict):
        message = f"must be a map with bundle_version and policies, got {describe(data)}"
        raise BundleError([Finding((), message).located(places)])
    bundle, errors = validate(Bundle, data)
    found = findings(errors, data, Bundle) + duplicates(data)
    if bundle is not None:
        found += missing_extras(bundle)
    if bundle is None or found:
        raise BundleError(in_order(finding.located(places) for finding in found))
    notes = [replace(note, path=in_document(note.path, data)[0]) for note in notes_for(bundle, now)]
    return LoadedBundle(bundle, digest(data), in_order(note.located(places) for note in notes))


def digest(data: Any) -> str:
    """Return the SHA-256 of the content, the same whatever its layout, comments and order of keys."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def duplicates(data: dict[str, Any]) -> list[Finding]:
    """Find policy ids and rule names that are used twice.

    On the plain data, so that they are reported together with everything else that is wrong.
    """
    policies = data.get("policies")
    found: list[Finding] = []
    ids: dict[str, int] = {}
    for index, policy in enumerate(policies if isinstance(policies, list) else []):
        if not isinstance(policy, dict):
            continue
        name, spec = policy.get("id"), policy.get("spec")
        if isinstance(name, str) and name and ids.setdefault(name, index) != index:
            message = f'policy id "{name}" is already used by policies[{ids[name]}]'
            found.append(Finding(("policies", index, "id"), message, "ids name counters, so each must be its own"))
        if isinstance(spec, dict) and isinstance(spec.get("rules"), list):
            found += _duplicate_rules(spec["rules"], index)
    return found


def _duplicate_rules(rules: list[Any], policy: int) -> list[Finding]:
    found: list[Finding] = []
    names: dict[str, int] = {}
    for index, rule in enumerate(rules):
        name = rule.get("name") if isinstance(rule, dict) else None
        if isinstance(name, str) and name and names.setdefault(name, index) != index:
            message = f'rule name "{name}" is already used by rules[{names[name]}]'
            path = ("policies", policy, "spec", "rules", index, "name")
            found.append(Finding(path, message, "names separate counters within a policy"))
    return found

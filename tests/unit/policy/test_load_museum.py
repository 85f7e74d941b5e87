"""The museum: broken bundles under tests/policies/bad, one mistake each, with the complete message beside each one.

`name.txt` holds the expected output, an empty line, and `here:` with the text that stands where the message points;
that text occurs once in the file (nothing at all stands there when the message points at the end of the file).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from breakloop.errors import BundleError, Problem
from breakloop.policy.load import load_bundle
from breakloop.policy.schema.limits import TokenBucketConfig
from breakloop.policy.schema.loops import ExactLoop
from breakloop.policy.schema.types import Model
from tests.each import each

POLICIES = Path(__file__).parents[2] / "policies"
BAD = POLICIES / "bad"
EXHIBITS = sorted(path.stem for path in BAD.glob("*.txt"))
GOOD = sorted(path.name for path in (POLICIES / "good").iterdir())
JARGON = re.compile(
    r"pydantic|[Ii]nput should|validation|discriminator|Extra inputs|tag:yaml|NoneType|\bdict\b|\bstr\b"
)


def exhibit(name: str) -> Path:
    (path,) = [path for path in BAD.glob(f"{name}*") if path.suffix != ".txt" and path.stem == name]
    return path


def problems_of(name: str) -> list[Problem]:
    with pytest.raises(BundleError) as caught:
        load_bundle(exhibit(name))
    return caught.value.problems


def expected(name: str) -> tuple[str, str | None]:
    output, _, here = (BAD / f"{name}.txt").read_text("utf-8").rpartition("\nhere: ")
    return output, json.loads(here)


def test_there_are_enough_exhibits() -> None:
    """At least 40 broken bundles, and each file belongs to an exhibit (B-2)."""
    assert len(EXHIBITS) >= 45
    assert {path.stem for path in BAD.iterdir()} == set(EXHIBITS)


@each("name", EXHIBITS)
def test_a_broken_bundle_gets_exactly_this_message(name: str) -> None:
    """Refused whole, with file, line, column, path and hint (B-2)."""
    output = "".join(f"{problem}\n" for problem in problems_of(name))
    assert output.replace(f"{BAD}/", "") == expected(name)[0]


@each("name", EXHIBITS)
def test_the_message_points_at_the_mistake(name: str) -> None:
    """What stands at line and column is what the exhibit says is wrong (B-2)."""
    first, here = problems_of(name)[0], expected(name)[1]
    assert first.line > 0
    assert first.column > 0
    if here is None:  # a directory without a file to point into
        assert Path(first.file) == exhibit(name)
        return
    text = Path(first.file).read_bytes().decode("utf-8", "replace")
    lines = text.split("\n")
    offset = sum(len(line) + 1 for line in lines[: first.line - 1]) + first.column - 1
    assert text[offset:].startswith(here)
    assert text.count(here) == 1 if here else offset == len(text)


@each("name", EXHIBITS)
def test_messages_are_in_plain_words(name: str) -> None:
    assert not JARGON.search(expected(name)[0])


@each("name", GOOD)
def test_a_good_bundle_loads(name: str) -> None:
    """What is right is not refused (B-1)."""
    assert load_bundle(POLICIES / "good" / name).bundle.bundle_version > 0


def test_the_loop_pages_example_loads() -> None:
    """The documented example policy, `rps` alias included (B-1)."""
    (policy,) = load_bundle(POLICIES / "good" / "loop-page-example.json").bundle.policies
    (block,) = policy.spec.loops
    assert isinstance(block, ExactLoop)
    assert (block.window_seconds, block.threshold_identical_requests, block.action) == (45, 4, "throttle")
    (rule,) = policy.spec.rules
    assert isinstance(rule.algorithm_config, TokenBucketConfig)
    assert (rule.algorithm_config.tokens_per_second, rule.algorithm_config.burst) == (20, 40)
    assert rule.limit_keys == ["jwt:org_id", "header:x-tool-name"]


def test_the_every_field_bundle_has_every_field() -> None:
    """Each field of each block is written at least once, so each is known to load (B-1)."""
    seen: dict[type[Model], set[str]] = {}
    todo: list[object] = [load_bundle(POLICIES / "good" / "every-field.yaml").bundle]
    while todo:
        part = todo.pop()
        if isinstance(part, Model):
            seen.setdefault(type(part), set()).update(part.model_fields_set)
            todo += [getattr(part, name) for name in type(part).model_fields]
        elif isinstance(part, (list, dict)):
            todo += part.values() if isinstance(part, dict) else part
    missing = {kind.__name__: set(kind.model_fields) - names for kind, names in seen.items()}
    assert {kind: names for kind, names in missing.items() if names} == {}
    assert len(seen) >= 28

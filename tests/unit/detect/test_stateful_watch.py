"""Names of detectors' sections, and what stands for a finding until a window is read."""

from __future__ import annotations

from typing import Any

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.stateful import TAG_BYTES, DetectorSlot, block_key, section_tags


def config(policy: str = "p", index: int = 0, where: str = "") -> DetectorConfig:
    return DetectorConfig("steps", policy, index, "reject", 429, frozenset(), None, key_prefix=where)


def test_each_block_has_a_section_of_its_own() -> None:
    """By policy, place, number and part; what a shadow policy remembers stands apart (E-1)."""
    made = [
        section_tags(config()),
        section_tags(config("q")),
        section_tags(config(index=1)),
        section_tags(config(where="|")),
        section_tags(config(), "lanes:"),
    ]
    names = [tag for pair in made for tag in pair]
    assert len(set(names)) == len(names) == 10
    assert {len(tag) for tag in names} == {TAG_BYTES}
    assert section_tags(config()) == section_tags(config())


def test_a_policys_name_cannot_be_anothers_place() -> None:
    assert block_key(config("a:1", 0)) != block_key(config("a", 1))
    assert block_key(config("|x")) != block_key(config("x", where="|"))


def test_a_watch_names_its_detector_and_group() -> None:
    detector: Any = object()
    watch = DetectorSlot(detector, 3)
    assert (watch.detector, watch.group) == (detector, 3)


def test_persisted_tags() -> None:
    """Windows hold these tags; a detector finds its section again under another version of this program (S-1)."""
    assert [tag.hex() for tag in section_tags(config())] == ["aae853e1e7a271e3", "5ed8f06a3064c3c1"]
    assert [tag.hex() for tag in section_tags(config(), "lanes:")] == ["9c5002ce0d88c0f2", "918b84a7d78d5c65"]
    assert [tag.hex() for tag in section_tags(config(), "run:")] == ["9258cdfc7310315f", "dc74724099efd6ee"]
    assert [tag.hex() for tag in section_tags(config(), "score:")] == ["8b1431406c06289d", "f523f4a7a9164408"]
    assert [tag.hex() for tag in section_tags(config(), "spawn:")] == ["42d18e4787f520c5", "8f7c5448ca8220a0"]

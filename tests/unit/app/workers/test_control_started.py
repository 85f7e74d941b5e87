"""What is known of an instance that has just started."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakloop.app.runtime import Runtime
from breakloop.app.workers.control import (
    LOOPS_BUILTIN,
    LOOPS_BUNDLE,
    LOOPS_OFF,
    NO_LOOPS,
    StartupSummary,
    startup_summary,
)
from breakloop.config.settings import Settings

BUNDLE = "bundle_version: 4\npolicies: [{id: a, spec: {selector: {pathPrefix: /}}}]\n"


def seen(tmp_path: Path, **values: object) -> StartupSummary:
    runtime = Runtime(Settings.model_validate({"data_dir": str(tmp_path / "data"), "admin_port": 0, **values}))
    runtime.load()
    return startup_summary(runtime.source, runtime.engine.bundle, "http://x")


def test_without_a_policy(tmp_path: Path) -> None:
    """No source, and the built-in protection, if it is on (T-2)."""
    assert seen(tmp_path) == StartupSummary(url="http://x", loops=LOOPS_BUILTIN)
    assert seen(tmp_path, loop_guard={"max_hits": 0}).loops == LOOPS_OFF


def test_with_one(tmp_path: Path) -> None:
    """Where it is from, and what is wrong with its source (T-2, E-0)."""
    file = tmp_path / "b.yaml"
    file.write_text(BUNDLE + "defaults: {loop_detection: {similarity: tail}}\n")
    found = seen(tmp_path, policy=str(file))
    assert (found.source, found.origin, found.version, found.policies) == (str(file), "source", 4, 1)
    assert (found.problem, found.loops) == ("", LOOPS_BUNDLE)
    file.unlink()
    found = seen(tmp_path, policy=str(file))
    assert (found.origin, found.version) == ("last good copy", 4)
    assert "cannot be read" in found.problem


@pytest.mark.parametrize("text", ["", "bundle_version: 0\n"])
def test_with_none_that_is_valid(tmp_path: Path, text: str) -> None:
    """Nothing is judged (E-0)."""
    file = tmp_path / "b.yaml"
    file.write_text(text)
    found = seen(tmp_path, policy=str(file))
    assert (found.origin, found.version, found.loops) == ("", 0, NO_LOOPS)
    assert found.problem.startswith(str(file))

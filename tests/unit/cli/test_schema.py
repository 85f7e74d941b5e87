"""`breakloop schema`: JSON Schemas, and the built-in protection as a bundle would say it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from breakloop.cli.main import run
from breakloop.cli.schema import builtin_block
from breakloop.cli.test import OFFLINE_SECRET
from breakloop.clock import FakeClock
from breakloop.config.loader import settings_json_schema
from breakloop.detect.counting import BuiltinLoopGuard, CountingDetector
from breakloop.detect.steps.kinds import BY_NAME, LEVELS
from breakloop.model.call import Call
from breakloop.policy.compile import compile_bundle
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.load import load_text
from breakloop.policy.schema.bundle import Bundle, bundle_json_schema
from breakloop.policy.schema.loops import AnyLoop, StepsLoop, TailLoop
from breakloop.store.ops import CountFingerprint

REST = "bundle_version: 1\npolicies: []\n"


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WINDOW_SECONDS", "MAX_HITS", "COOLDOWN_SECONDS"):
        monkeypatch.delenv(f"LOOP_GUARD_{name}", raising=False)


def compiled(bundle: Bundle | None, guard: BuiltinLoopGuard) -> CompiledBundle:
    return compile_bundle(bundle, "", Descriptors(ContextSettings(), FakeClock()), OFFLINE_SECRET, guard)


def test_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    """The bundle's schema by default, the settings' on request (T-1)."""
    assert run(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == bundle_json_schema()
    assert run(["schema", "--settings", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == settings_json_schema()


def test_the_builtin_block_is_what_the_engine_uses(capsys: pytest.CaptureFixture[str]) -> None:
    """Put into a bundle as printed, it is the same detector as without a word about it (B-6)."""
    assert run(["schema", "--builtin"]) == 0
    printed = capsys.readouterr().out
    said = compiled(load_text((REST + printed).encode(), "b.yaml").bundle, BuiltinLoopGuard()).default_loops
    unsaid = compiled(None, BuiltinLoopGuard()).default_loops
    assert [one.spec for one in said if isinstance(one, CountingDetector)] == [
        one.spec for one in unsaid if isinstance(one, CountingDetector)
    ]
    kinds = [[(type(one), one.config.kind, one.config.action) for one in loops] for loops in (said, unsaid)]
    assert kinds[0] == kinds[1]
    assert (said[0].config.kind, said[-1].config.kind) == ("tail", "steps")
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": c} for c in "abcd"]}).encode()
    call = Call("POST", "/v1/chat/completions", body=body)
    plans = [loops[1].plan(call, "p", 0, 0.0) for loops in (said, unsaid)]
    assert isinstance(plans[0], CountFingerprint)
    assert isinstance(plans[1], CountFingerprint)
    assert plans[0].key[-32:] == plans[1].key[-32:]


def test_loop_guard_numbers_are_in_effect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """LOOP_GUARD_* show up with where they came from; 0 hits is off (LD-2)."""
    monkeypatch.setenv("LOOP_GUARD_MAX_HITS", "9")
    monkeypatch.setenv("LOOP_GUARD_COOLDOWN_SECONDS", "1800")
    assert run(["schema", "--builtin"]) == 0
    out = capsys.readouterr().out
    assert "    max_hits: 9  # environment LOOP_GUARD_MAX_HITS\n" in out
    assert "    window_seconds: 60  # default\n" in out
    assert "    cooldown_max_seconds: 1800\n" in out
    monkeypatch.setenv("LOOP_GUARD_MAX_HITS", "0")
    assert run(["schema", "--builtin"]) == 0
    off = capsys.readouterr().out
    assert off.endswith("  loop_detection: off  # environment LOOP_GUARD_MAX_HITS: max_hits is 0\n")
    assert load_text((REST + off).encode(), "b.yaml").bundle.defaults.loop_detection == "off"


@pytest.mark.parametrize("max_hits", [1, 6, 9, 251, 10_000_000])
def test_any_number_of_hits_makes_a_block_that_loads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, max_hits: int
) -> None:
    """N hits also lift `storm` to at least N and 2 N, never where that cannot be counted (LD-2)."""
    monkeypatch.setenv("LOOP_GUARD_MAX_HITS", str(max_hits))
    assert run(["schema", "--builtin"]) == 0
    steps = load_text((REST + capsys.readouterr().out).encode(), "b.yaml").bundle.defaults.loops[1]
    assert isinstance(steps, StepsLoop)
    notice, block, _ = steps.settings().thresholds["storm"]
    assert notice >= max(5, max_hits)
    assert block >= max(10, 2 * max_hits)


def test_builtin_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Builtin as JSON: --json (X-3)."""
    assert run(["schema", "--builtin", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"defaults": {"loop_detection": builtin_block(BuiltinLoopGuard())}}


def test_one_thing_at_a_time() -> None:
    """3 for what makes no sense together (X-3)."""
    assert run(["schema", "--builtin", "--settings"]) == 3
    assert run(["schema", "--builtin", "--presets"]) == 3


def test_several_builtin_blocks_are_a_list(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed they load again, thresholds included; a number that is no setting says no origin (B-6, LD-4)."""
    blocks: tuple[AnyLoop, ...] = (
        TailLoop(similarity="tail"),
        StepsLoop(similarity="steps", thresholds={"storm": (9, 18, math.inf)}, action="kill", stream_guard=False),
        StepsLoop(similarity="steps", sensitivity="strict"),
    )
    monkeypatch.setattr("breakloop.cli.schema.builtin_blocks", lambda _: blocks)
    assert run(["schema", "--builtin"]) == 0
    printed = capsys.readouterr().out
    assert "    - similarity: tail\n      tail_messages: 3\n      max_hits: 5  # default\n" in printed
    assert "      thresholds: {storm: [9, 18, never]}\n" in printed
    assert run(["schema", "--builtin", "--json"]) == 0
    for text in (
        REST + printed,
        json.dumps({**json.loads(capsys.readouterr().out), "bundle_version": 1, "policies": []}),
    ):
        loops = load_text(text.encode(), "b.yaml").bundle.defaults.loops
        assert [one.similarity for one in loops] == ["tail", "steps", "steps"]
        for one, made in zip(loops, blocks, strict=True):
            assert [one.action_for(level) for level in LEVELS] == [made.action_for(level) for level in LEVELS]
            if isinstance(one, StepsLoop) and isinstance(made, StepsLoop):
                assert (one.settings(), one.stream_guard) == (made.settings(), made.stream_guard)


def test_the_presets_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """What a sensitivity stands for can be seen, kind by kind (LD-4)."""
    assert run(["schema", "--presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["kind", "relaxed", "normal", "strict", "counts"]
    assert [line.split()[0] for line in lines[3::2]] == list(BY_NAME)
    (repeat,) = [line for line in lines if line.startswith("repeat ")]
    assert re.split(r" {2,}", repeat) == ["repeat", "4, 6, 10", "3, 5, 8", "2, 4, 6", "times"]
    (near,) = [line for line in lines if line.startswith("near ")]
    assert "5, never, never" in near
    assert max(map(len, lines)) <= 110


def test_the_presets_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Each preset can be put into a bundle as it is printed (LD-4, X-3)."""
    assert run(["schema", "--presets", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said["kinds"]) == list(BY_NAME)
    assert said["levels"] == list(LEVELS)
    for name, thresholds in said["presets"].items():
        spelled = StepsLoop.model_validate({"similarity": "steps", "thresholds": thresholds})
        assert spelled.settings() == StepsLoop(similarity="steps", sensitivity=name).settings()

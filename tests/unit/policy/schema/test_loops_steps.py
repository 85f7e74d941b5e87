"""The options of `steps`: what they say, what the detector makes of them, and what is refused."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import pytest

from breakloop.detect.steps import PRESETS, StepEvaluator, StepsSettings, ToolOptions
from breakloop.detect.steps.kinds import BY_NAME
from breakloop.model.call import Result, Step, ToolCall
from breakloop.policy.schema.bundle import bundle_json_schema
from breakloop.policy.schema.loops import StepsLoop
from tests.each import each
from tests.unit.policy.said import messages

NEVER = float("inf")


def block(**said: Any) -> StepsLoop:
    return StepsLoop.model_validate({"similarity": "steps", **said})


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=8).digest()


def test_defaults() -> None:
    """Nothing said is the preset, with the stream guard on (LD-4, LD-8)."""
    plain = block()
    assert plain.settings() == StepsSettings(dict(PRESETS["normal"]), {})
    assert plain.stream_guard is True
    assert (plain.cooldown_seconds, plain.cooldown_growth, plain.cooldown_max_seconds) == (30, 2, 900)


@pytest.mark.parametrize("sensitivity", PRESETS)
def test_a_sensitivity_is_its_thresholds(sensitivity: str) -> None:
    """A sensitivity, and the same written out by hand, are one thing (LD-4)."""
    spelled = {kind: [one if one < NEVER else "never" for one in three] for kind, three in PRESETS[sensitivity].items()}
    assert block(sensitivity=sensitivity).settings() == block(thresholds=spelled).settings()


def test_single_kinds_stand_over_the_preset() -> None:
    """The others stay as the sensitivity has them; null and never are the same word (LD-4)."""
    settings = block(
        sensitivity="strict", thresholds={"repeat": [3, 4.5, None], "dry": ["never", "never", "never"]}
    ).settings()
    expected = {**PRESETS["strict"], "repeat": (3, 4.5, NEVER), "dry": (NEVER, NEVER, NEVER)}
    assert settings.thresholds == expected


def test_the_thresholds_are_what_the_detector_goes_by() -> None:
    """The same steps, judged as the block says (LD-4)."""

    def levels(said: dict[str, Any]) -> list[int]:
        detector = StepEvaluator(block(thresholds=said).settings(), digest)
        window, found = b"", []
        for number in range(4):
            ids = (f"call_{number:08}",)
            step = Step(
                "", (ToolCall("look", "{}"),), ids, (Result("the same words", call_id=ids[0]),), (), (), number, 1
            )
            judged = detector.evaluate(window, step, 1000.0 + number)
            window = judged.window
            found.append(judged.level)
        return found

    assert levels({}) == [0, 0, 1, 1]
    assert levels({"repeat": [2, 2, 4]}) == [0, 2, 2, 3]
    assert levels({kind: [None, None, None] for kind in ("repeat", "interleaved")}) == [0, 0, 0, 0]


def test_tools() -> None:
    """What is said of a tool, and of all whose names begin alike (LD-4)."""
    tools = (
        block(
            tools={
                "sleep": {"exempt": True},
                "mcp__jobs__*": {"poll": True, "loop_key": {"exclude": ["token", "trace"]}},
                "search": {"loop_key": {"include": ["query"]}},
                "send_mail": {"max_per_run": 3},
                "*": {},
            }
        )
        .settings()
        .tools
    )
    assert tools == {
        "sleep": ToolOptions(exempt=True),
        "mcp__jobs__*": ToolOptions(poll=True, exclude=frozenset({"token", "trace"})),
        "search": ToolOptions(include=frozenset({"query"})),
        "send_mail": ToolOptions(max_per_run=3),
        "*": ToolOptions(),
    }


@each(
    "said, wrong",
    [
        ({"repeat": [3, 3, 3]}, None),
        ({"cascade": [10, 10, 10]}, None),
        ({"reword": [13, None, None]}, None),
        ({"repeat": [1, 1000, "never"]}, None),
        ({"repeat": [3, 5, 1001]}, "stop (1001) can never be reached: this kind counts to 1000"),
        ({"reword": [4, 14, None]}, "block (14) can never be reached: this kind counts to 13"),
        ({"spawn": [3, 6, 9]}, "can never be reached: this kind is never more than block"),
        ({"spawn": [3, 6, None]}, None),
        ({"repeat": [5, 4, 8]}, "block (4) is below notice (5)"),
        ({"repeat": [5, 8, 7]}, "stop (7) is below block (8)"),
        ({"repeat": [5, None, 8]}, "stop (8) is below block (never)"),
        ({"repeat": [0.5, 5, 8]}, "notice must be a number from 1, or never, got 0.5"),
        ({"repeat": [-3, 5, 8]}, "notice must be a number from 1, or never, got -3"),
        ({"repeat": [3, True, 8]}, "block must be a number from 1, or never, got true"),
        ({"repeat": [3, 5, "8"]}, 'stop must be a number from 1, or never, got the text "8"'),
        ({"repeat": [3, 5, float("nan")]}, "stop must be a number from 1, or never, got nan"),
        ({"repeat": [3, 5, 8, 9]}, "must be three numbers: notice, block, stop"),
        ({"repeat": {"notice": 3}}, "must be three numbers: notice, block, stop"),
        ({"repeats": [3, 5, 8]}, '"repeats" is not a kind of loop; did you mean "repeat"?'),
        ({"unknown-tool": [3, 5, 8]}, '"unknown-tool" is not a kind of loop; did you mean "unknown_tool"?'),
        ({"": [3, 5, 8]}, '"" is not a kind of loop'),
        ({"stream": [3, 5, 8]}, '"stream" is not a kind of loop'),
    ],
)
def test_thresholds_that_are_refused(said: dict[str, Any], wrong: str | None) -> None:
    """A closed list of kinds; levels that rise and can be reached (LD-4)."""
    assert messages(StepsLoop, {"similarity": "steps", "thresholds": said}) == ([] if wrong is None else [wrong])


@each(
    "said, wrong",
    [
        ({"wait": {"exempt": True, "poll": False}}, []),
        ({"a*b": {"poll": True}}, ['"a*b" has a * inside']),
        ({"**": {"poll": True}}, ['"**" has a * inside']),
        ({" ": {"poll": True}}, ["a tool's name must not be empty"]),
        ({"wait": {"exempt": True, "poll": True}}, ["has no effect with exempt"]),
        ({"send": {"exempt": True, "max_per_run": 2}}, ["has no effect with exempt"]),
        ({"send": {"max_per_run": 0}}, ["must be more than 0, got 0"]),
        (
            {"wait": {"exempt": True, "poll": True, "loop_key": {"include": ["a"]}}},
            ["has no effect with exempt"] * 2,
        ),
        ({"wait": {"loop_key": {"include": ["a"], "exclude": ["b"]}}}, ["cannot be combined with include"]),
        ({"wait": {"loop_key": {"exclude": []}}}, ["must not be empty"]),
        ({"wait": {"loop_key": {"include": [""]}}}, ["must not be empty"]),
        ({"wait": {"loop_key": ["a"]}}, ["must be a map, got a list"]),
    ],
)
def test_tools_that_are_refused(said: dict[str, Any], wrong: list[str]) -> None:
    """What can never matter, or contradicts itself, is an error (LD-4)."""
    assert messages(StepsLoop, {"similarity": "steps", "tools": said}) == wrong


def test_the_json_schema_knows_kinds_and_levels() -> None:
    """An editor offers the kinds, and three levels each (T-1)."""
    made = bundle_json_schema()["$defs"]
    thresholds = made["StepsLoop"]["properties"]["thresholds"]
    assert thresholds["propertyNames"] == {"enum": list(BY_NAME)}
    levels = thresholds["additionalProperties"]
    assert (levels["type"], levels["minItems"], levels["maxItems"]) == ("array", 3, 3)
    assert {"const": "never"} in levels["items"]["anyOf"]
    assert made["StepsLoop"]["properties"]["tools"]["additionalProperties"] == {"$ref": "#/$defs/StepsTool"}
    assert made["StepsTool"]["properties"]["loop_key"]["anyOf"][0] == {"$ref": "#/$defs/LoopKey"}

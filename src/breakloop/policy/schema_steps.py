"""The bundle model of `similarity: steps` (SPEC LD-4): sensitivity, thresholds of single kinds, options of tools.
`settings` turns a block into what `breakloop.detect.steps` works with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from breakloop.detect.steps.kinds import ABOUT, LEVELS, SETTABLE, number, said
from breakloop.detect.steps.ladder import NEVER, StepsSettings, ToolOptions
from breakloop.policy.hints import describe
from breakloop.policy.schema_loop_base import Cooldowns, LoopBase
from breakloop.policy.schema_types import Fault, Model, Text, fault, refuse
from breakloop.policy.suggest import did_you_mean

_ONE_LEVEL: dict[str, Any] = {"anyOf": [{"type": "number", "minimum": 1}, {"const": "never"}, {"type": "null"}]}


def _kind(value: str) -> str:
    if value not in SETTABLE:
        guess = did_you_mean(value, SETTABLE)
        raise fault(
            f'"{value}" is not a kind of loop{guess}', "" if guess else "`breakloop schema --presets` lists them"
        )
    return value


def _levels(value: Any) -> tuple[float, float, float]:
    if not isinstance(value, (list, tuple)) or len(value) != len(LEVELS):
        raise fault("must be three numbers: notice, block, stop", "like [3, 5, 8]; write never to leave one out")
    refuse([
        Fault((at,), f"{name} must be a number from 1, or never, got {describe(one)}")
        for at, (name, one) in enumerate(zip(LEVELS, value, strict=True))
        if not _is_level(one)
    ])  # fmt: skip
    notice, block, stop = (NEVER if one in (None, "never") else float(one) for one in value)
    return notice, block, stop


def _is_level(value: Any) -> bool:
    if value is None or value == "never":
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1


def _tool(value: str) -> str:
    if not value.strip():
        raise fault("a tool's name must not be empty")
    if "*" in value[:-1]:
        raise fault(f'"{value}" has a * inside', f'a * may stand at the end only: "{value.split("*", 1)[0]}*"')
    return value


def _arguments(value: list[str]) -> list[str]:
    if not value:
        raise fault("must not be empty", "leave it out where every argument counts")
    return value


Kind = Annotated[str, AfterValidator(_kind)]
Levels = Annotated[
    tuple[float, float, float],
    BeforeValidator(_levels),
    PlainSerializer(said),  # as a bundle says it: JSON knows no endless numbers
    WithJsonSchema({"type": "array", "items": _ONE_LEVEL, "minItems": 3, "maxItems": 3}),
]
ToolName = Annotated[str, AfterValidator(_tool)]
Arguments = Annotated[list[Text], AfterValidator(_arguments)]


class LoopKey(Model):
    """Which of a tool's arguments tell one call from another."""

    include: Arguments | None = Field(default=None, description="Only these arguments count.")
    exclude: Arguments | None = Field(default=None, description="All arguments count but these.")

    @model_validator(mode="after")
    def _one_of_them(self) -> LoopKey:
        if self.include is not None and self.exclude is not None:
            hint = "keep one of them: what is not included is excluded already"
            refuse([Fault(("exclude",), "stands beside include", hint)])
        return self


class StepsTool(Model):
    """What the detector is to know of one tool."""

    exempt: bool = Field(default=False, description="Its calls are never counted.")
    poll: bool = Field(default=False, description="It is made to be called again and again: a repeat weighs a quarter.")
    loop_key: LoopKey | None = Field(
        default=None, description="Which of its arguments tell one call from another, instead of all of them."
    )

    @model_validator(mode="after")
    def _matters(self) -> StepsTool:
        beside = [name for name, said in (("poll", self.poll), ("loop_key", self.loop_key)) if said]
        if self.exempt and beside:
            hint = "the calls of an exempt tool are not looked at: keep one of them"
            refuse([Fault((name,), "can never matter beside exempt", hint) for name in beside])
        return self

    def options(self) -> ToolOptions:
        """Return what the detector works with."""
        key = self.loop_key or LoopKey()
        return ToolOptions(self.exempt, self.poll, frozenset(key.include or ()), frozenset(key.exclude or ()))


class StepsLoop(Cooldowns, LoopBase):
    """`similarity: steps`: what the agent did and what came back, sparing progress."""

    similarity: Literal["steps"] = Field(description="`steps`: the same steps without progress.")
    sensitivity: Literal["relaxed", "normal", "strict"] = Field(
        default="normal",
        description="How early it speaks up: `relaxed`, `normal` or `strict`; `breakloop schema --presets` prints the "
        "thresholds of each.",
    )
    thresholds: dict[Kind, Levels] = Field(
        default_factory=dict,
        description="Other thresholds for single kinds: `kind: [notice, block, stop]`, `never` where a level is not to "
        "be reached.",
        json_schema_extra={"propertyNames": {"enum": list(SETTABLE)}},
    )
    tools: dict[ToolName, StepsTool] = Field(
        default_factory=dict, description="Options of single tools by name, or by the beginning of names with `*`."
    )
    stream_guard: bool = Field(
        default=True, description="Whether a streamed answer that repeats itself word for word is cut (the proxy)."
    )

    @model_validator(mode="after")
    def _can_be_reached(self) -> StepsLoop:
        refuse([found for kind, levels in self.thresholds.items() for found in _faults(kind, levels)])
        return self

    def settings(self) -> StepsSettings:
        """Return what the detector works with: the preset of the sensitivity, with what is said here in its place."""
        tools: Mapping[str, ToolOptions] = {name: tool.options() for name, tool in self.tools.items()}
        return StepsSettings.preset(self.sensitivity, self.thresholds, tools)


def _faults(kind: str, levels: tuple[float, float, float]) -> Iterator[Fault]:
    """What can never be: a level below the one before it, or above what its kind counts to."""
    most, stops = ABOUT[kind].most, ABOUT[kind].stops
    for at, (name, value) in enumerate(zip(LEVELS, levels, strict=True)):
        place = ("thresholds", kind, at)
        if at and value < levels[at - 1]:
            low = f"{LEVELS[at - 1]} ({number(levels[at - 1])})"
            hint = f"thresholds rise; to go without {LEVELS[at - 1]}, make it equal to {name}"
            yield Fault(place, f"{name} ({number(value)}) is below {low}", hint)
        elif most < value < NEVER:
            message = f"{name} ({number(value)}) can never be reached: this kind counts to {most:g}"
            yield Fault(place, message, "lower it, or write never")
        elif name == "stop" and value < NEVER and not stops:
            yield Fault(place, "can never be reached: this kind is never more than block", "write never")

"""Bundle models of loop detection: one block is one detector with its thresholds and actions. `breakloop.detect` holds
the detectors; `StepsLoop.settings` converts a block to what `breakloop.detect.steps` works with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    WithJsonSchema,
    model_validator,
)

from breakloop.detect.advice import ADVICE, POLL, Advice
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import BY_NAME, LEVELS, NEVER, StepsSettings, as_json, number
from breakloop.detect.trees import TreeBounds
from breakloop.dialects.session_ids import DEPTH_MAX
from breakloop.policy.diagnostics import describe, did_you_mean
from breakloop.policy.schema.types import (
    LARGEST,
    CountFloat,
    CountInt,
    DenyStatus,
    Model,
    PositiveFloat,
    PositiveInt,
    Route,
    SchemaFault,
    Shorthand,
    Text,
    Timestamp,
    fault,
    one_as_list,
    refuse,
    refuse_field,
    require,
)
from breakloop.store.ops import COOLDOWN_GROWTH, COOLDOWN_MAX_S, COOLDOWN_S, LAND_CALLS

Action = Literal["warn", "steer", "throttle", "land", "pause", "reject", "kill"]
Severity = Literal["notice", "block", "stop"]
SEVERITIES: Final[tuple[Severity, ...]] = ("notice", "block", "stop")
_STRENGTH: dict[str, int] = {"warn": 0, "steer": 1, "throttle": 2, "land": 3, "pause": 4, "reject": 5, "kill": 6}


class ActionsBySeverity(Model):
    """Actions by severity; an omitted severity takes at least the action of the one before it."""

    notice: Action = Field(default="warn", description="Action on the first sign of a loop.")
    block: Action = Field(default="reject", description="Action on a detected loop.")
    stop: Action = Field(default="reject", description="Action on a loop that continues after a block.")

    @model_validator(mode="before")
    @classmethod
    def _left_out(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        filled, before = dict(data), "warn"
        for step, default in (("notice", "warn"), ("block", "reject"), ("stop", "reject")):
            said = filled.get(step, default)
            if step not in filled:
                said = filled[step] = max(default, before, key=_STRENGTH.__getitem__)
            before = said if isinstance(said, str) and said in _STRENGTH else before
        return filled

    @model_validator(mode="after")
    def _rises(self) -> ActionsBySeverity:
        faults = [
            SchemaFault(
                (high,), f'"{getattr(self, high)}" is weaker than {low} ("{getattr(self, low)}")', "actions must rise"
            )
            for low, high in (("notice", "block"), ("block", "stop"))
            if _STRENGTH[getattr(self, high)] < _STRENGTH[getattr(self, low)]
        ]
        refuse(faults)
        return self


def _entry(value: Any) -> Any:
    return {"value": value} if isinstance(value, str) else value


class AllowEntry(Model):
    """One entry of an allow list, permanent or until a time."""

    value: Text = Field(description="The value that may repeat.")
    expires_at: Timestamp | None = Field(default=None, description="When the entry expires; by default never.")


class AllowRoute(AllowEntry):
    """One allowed route, permanent or until a time."""

    value: Route = Field(description="A path, or a prefix that ends with `*`.")


Entry = Annotated[AllowEntry, Shorthand(_entry, {"type": "string"})]
RouteEntry = Annotated[AllowRoute, Shorthand(_entry, {"type": "string"})]


class Allow(Model):
    """What the detector ignores."""

    routes: list[RouteEntry] = Field(default_factory=list, description="Paths, exact or with `*` at the end.")
    agents: list[Entry] = Field(default_factory=list, description="Agents by id.")
    callers: list[Entry] = Field(default_factory=list, description="Callers, as shown in events.")
    tools: list[Entry] = Field(default_factory=list, description="Tools by name.")
    fingerprints: list[Entry] = Field(default_factory=list, description="Fingerprints, as shown in denials and events.")


class ExpectRepeats(Model):
    """Callers that may announce repeats with the `X-Breakloop-Expect-Repeats` header."""

    callers: Annotated[list[Text], Field(min_length=1)] = Field(description="Callers whose header is honoured.")


class LoopBase(Model):
    """Fields of all loop detectors."""

    enabled: bool = Field(default=True, description="Whether the detector is on.")
    action: Action | None = Field(
        default=None,
        description="Action on a loop: `warn`, `steer`, `throttle`, `land`, `pause`, `reject` or `kill`; a notice "
        "always only warns.",
    )
    ladder: ActionsBySeverity | None = Field(default=None, description="Actions by severity, instead of one `action`.")
    deny_status: DenyStatus | None = Field(
        default=None,
        description="HTTP status of a denied loop: `auto` for 429 where the client stops on it, and 400 where it would "
        "retry, or a status from 400 to 599. By default the policy's `deny_status` if it has one, else `auto`.",
    )
    quarantine_seconds: CountInt = Field(
        default=0, description="Seconds for which `kill` quarantines the agent; 0: until a person releases it."
    )
    land_calls: Annotated[int, Field(ge=1, le=100)] = Field(
        default=LAND_CALLS,
        description="Calls of a session that `land` lets pass with tools switched off; further ones are denied. The "
        "count ends an hour after the last one.",
    )
    allow: Allow = Field(default_factory=Allow, description="What the detector ignores, permanently or until a time.")
    expect_repeats: ExpectRepeats | None = Field(default=None, description="Callers that may announce repeats.")

    @property
    def default_action(self) -> Action:
        """What is done when neither `action` nor `ladder` is given."""
        return "reject"

    def action_for(self, severity: Severity) -> Action:
        """Return what this block does at a severity; hits of exact, tail and simhash are `block`."""
        if self.ladder is not None:
            action: Action = getattr(self.ladder, severity)
            return action
        return "warn" if severity == "notice" else self.action or self.default_action

    @model_validator(mode="after")
    def _one_answer(self) -> LoopBase:
        if self.action is not None and self.ladder is not None:
            refuse_field("ladder", "cannot be combined with action", "keep one of them")
        actions = (self.action_for("notice"), self.action_for("block"), self.action_for("stop"))
        if self.quarantine_seconds and "kill" not in actions:
            refuse_field("quarantine_seconds", "has no effect here", "only the action kill quarantines")
        if "land" not in actions and "land_calls" in self.model_fields_set:
            refuse_field("land_calls", "has no effect here", "only the action land lands calls")
        return self


class Cooldowns(Model):
    """How long a detected loop is blocked, and how this time grows."""

    cooldown_seconds: CountInt = Field(default=COOLDOWN_S, description="Seconds for which a detected loop is blocked.")
    cooldown_growth: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = Field(
        default=COOLDOWN_GROWTH, description="Factor by which each further cooldown grows; 1 keeps it constant."
    )
    cooldown_max_seconds: CountInt = Field(default=COOLDOWN_MAX_S, description="The longest cooldown.")

    @model_validator(mode="after")
    def _cooldown(self) -> Cooldowns:
        shortest, longest = self.cooldown_seconds, self.cooldown_max_seconds
        if longest < shortest and "cooldown_max_seconds" in self.model_fields_set:
            refuse_field("cooldown_max_seconds", f"must be at least cooldown_seconds ({shortest}), got {longest}")
        elif longest < shortest:
            message = f"must be at most cooldown_max_seconds ({longest}), got {shortest}"
            refuse_field("cooldown_seconds", message, "raise cooldown_max_seconds as well")
        return self


_ONE_LEVEL: dict[str, Any] = {"anyOf": [{"type": "number", "minimum": 1}, {"const": "never"}, {"type": "null"}]}


def _advised_kind(value: str) -> str:
    return value if value == POLL else _known_kind(value)


def _known_kind(value: str) -> str:
    if value not in BY_NAME:
        guess = did_you_mean(value, BY_NAME)
        raise fault(
            f'"{value}" is not a kind of loop{guess}', "" if guess else "`breakloop schema --presets` lists them"
        )
    return value


def _levels(value: Any) -> tuple[float, float, float]:
    if not isinstance(value, (list, tuple)) or len(value) != len(LEVELS):
        raise fault("must be three numbers: notice, block, stop", "such as [3, 5, 8]; write never to disable a level")
    refuse([
        SchemaFault((at,), f"{name} must be a number from 1, or never, got {describe(one)}")
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
        raise fault(f'"{value}" has a * inside', f'a * is only allowed at the end: "{value.split("*", 1)[0]}*"')
    return value


def _arguments(value: list[str]) -> list[str]:
    if not value:
        raise fault("must not be empty", "leave it out to compare all arguments")
    return value


Kind = Annotated[str, AfterValidator(_known_kind)]
AdvisedKind = Annotated[str, AfterValidator(_advised_kind)]
Levels = Annotated[
    tuple[float, float, float],
    BeforeValidator(_levels),
    PlainSerializer(as_json),  # as in a bundle: JSON has no infinite numbers
    WithJsonSchema({"type": "array", "items": _ONE_LEVEL, "minItems": 3, "maxItems": 3}),
]
ToolName = Annotated[str, AfterValidator(_tool)]
Arguments = Annotated[list[Text], AfterValidator(_arguments)]


TREE_AGENTS_MAX: Final = 500  # each takes 54 bytes in the window of the tree
TreeLimit = Annotated[int, Field(ge=1, le=TREE_AGENTS_MAX)] | Literal["never"]
TreeDepth = Annotated[int, Field(ge=1, le=DEPTH_MAX - 1)] | Literal["never"]


class LoopKey(Model):
    """The arguments that distinguish calls of a tool."""

    include: Arguments | None = Field(default=None, description="Compare only these arguments.")
    exclude: Arguments | None = Field(default=None, description="Compare all arguments except these.")

    @model_validator(mode="after")
    def _one_of_them(self) -> LoopKey:
        if self.include is not None and self.exclude is not None:
            hint = "keep one of them: arguments that are not included are excluded"
            refuse_field("exclude", "cannot be combined with include", hint)
        return self


class StepsTool(Model):
    """Options of one tool."""

    exempt: bool = Field(default=False, description="Its calls are never counted.")
    poll: bool = Field(
        default=False,
        description="The tool is for polling: a repeat counts a quarter at most, and nothing after 30 seconds. "
        "Tools that wait or look are known by their names; this is for others.",
    )
    max_per_run: PositiveInt | None = Field(
        default=None,
        description="Calls allowed in a run, whatever their arguments. One more is denied: an MCP call before it is "
        "made, a call in an LLM's response in the request with its result.",
    )
    loop_key: LoopKey | None = Field(
        default=None, description="The arguments that distinguish its calls, instead of all."
    )

    @model_validator(mode="after")
    def _matters(self) -> StepsTool:
        options = (("poll", self.poll), ("max_per_run", self.max_per_run), ("loop_key", self.loop_key))
        beside = [name for name, said in options if said]
        if self.exempt and beside:
            hint = "the calls of an exempt tool are not counted: keep one of them"
            refuse([SchemaFault((name,), "has no effect with exempt", hint) for name in beside])
        return self

    def options(self) -> ToolOptions:
        """Return what the detector works with."""
        key = self.loop_key or LoopKey()
        include, exclude = frozenset(key.include or ()), frozenset(key.exclude or ())
        return ToolOptions(self.exempt, self.poll, include, exclude, self.max_per_run or 0)


class KindAdvice(Model):
    """What the model is told about one kind of loop."""

    instead: Text | None = Field(default=None, description="What to do instead: with `steer`, and in denials.")
    finish: Text | None = Field(default=None, description="What the final answer is to contain: with `land`.")

    def over(self, builtin: Advice) -> Advice:
        """Return what the detector works with."""
        return Advice(self.instead or builtin.instead, self.finish or builtin.finish)


def _instead(value: Any) -> Any:
    return {"instead": value} if isinstance(value, str) else value


AnyAdvice = Annotated[KindAdvice, Shorthand(_instead, {"type": "string"})]


class StepsLoop(Cooldowns, LoopBase):
    """`similarity: steps`: repeated steps (calls and results) without progress."""

    similarity: Literal["steps"] = Field(description="`steps`: the same steps without progress.")
    sensitivity: Literal["relaxed", "normal", "strict"] = Field(
        default="normal",
        description="How early it detects loops: `relaxed`, `normal` or `strict`; `breakloop schema --presets` prints "
        "the thresholds of each.",
    )
    thresholds: dict[Kind, Levels] = Field(
        default_factory=dict,
        description="Thresholds of single kinds: `kind: [notice, block, stop]`; `never` disables a level.",
        json_schema_extra={"propertyNames": {"enum": list(BY_NAME)}},
    )
    tools: dict[ToolName, StepsTool] = Field(
        default_factory=dict, description="Options of tools by name, or by a prefix that ends with `*`."
    )
    advice: dict[AdvisedKind, AnyAdvice] = Field(
        default_factory=dict,
        description="What the model is told, by kind of loop (`poll`: a repeated look at something that goes on by "
        "itself), instead of the built-in sentences.",
        json_schema_extra={"propertyNames": {"enum": list(ADVICE)}},
    )
    stream_guard: bool = Field(
        default=True, description="Whether the proxy cuts a streamed response that repeats itself."
    )
    retry_thoughts: bool = Field(
        default=False,
        description="Whether the proxy sends a streamed request once more, with a note for the model, if its response "
        "has been nothing but a thought that repeats itself. The client gets the second answer in the same stream.",
    )

    max_agents_per_tree: TreeLimit = Field(
        default=60,
        description="Agents of a tree that may be at work at the same time, the root included; `never` for no limit. "
        "One more is not started. Reported from 25 on, or from half the limit.",
    )
    max_depth: TreeDepth = Field(
        default=8,
        description="How deep a tree may be: the root is 1, an agent that it starts 2. A deeper agent is not started. "
        "Reported from 4 on, or from half the limit.",
    )
    max_started_per_minute: TreeLimit = Field(
        default=30,
        description="Agents of a tree that agents other than the root may start in a minute. "
        "Reported from 15 on, or from half the limit.",
    )

    @model_validator(mode="after")
    def _can_be_reached(self) -> StepsLoop:
        if self.retry_thoughts and not self.stream_guard:
            refuse_field("retry_thoughts", "has no effect here", "only the stream guard ends thoughts: turn it on")
        refuse([found for kind, levels in self.thresholds.items() for found in _faults(kind, levels)])
        return self

    def advised(self) -> dict[str, Advice]:
        """Return the advice by kind that differs from the built-in one."""
        return {kind: texts.over(ADVICE[kind]) for kind, texts in self.advice.items()}

    def settings(self) -> StepsSettings:
        """Return the settings of the detector: the preset of the sensitivity, with the values that are set here."""
        tools: Mapping[str, ToolOptions] = {name: tool.options() for name, tool in self.tools.items()}
        return StepsSettings.preset(self.sensitivity, self.thresholds, tools)

    def tree_limits(self) -> TreeBounds:
        """Return the limits of trees of agents."""
        usual = TreeBounds()
        return TreeBounds(
            _bounds(self.max_agents_per_tree, usual.agents),
            _bounds(self.max_depth, usual.depth),
            _bounds(self.max_started_per_minute, usual.started),
        )


def _bounds(most: int | Literal["never"], usual: tuple[float, float]) -> tuple[float, float]:
    """Return the counts of a notice and of a block: one more than is allowed."""
    if most == "never":
        return NEVER, NEVER
    return min(usual[0], (most + 1) // 2), most + 1


def _faults(kind: str, levels: tuple[float, float, float]) -> Iterator[SchemaFault]:
    """What can never be: a level below the one before it, or above what its kind counts to."""
    most, stops = BY_NAME[kind].most, BY_NAME[kind].stops
    for at, (name, value) in enumerate(zip(LEVELS, levels, strict=True)):
        place = ("thresholds", kind, at)
        if at and value < levels[at - 1]:
            low = f"{LEVELS[at - 1]} ({number(levels[at - 1])})"
            hint = f"thresholds must rise; to skip {LEVELS[at - 1]}, set it equal to {name}"
            yield SchemaFault(place, f"{name} ({number(value)}) is below {low}", hint)
        elif most < value < NEVER:
            message = f"{name} ({number(value)}) can never be reached: this kind counts to {most:g}"
            yield SchemaFault(place, message, "lower it, or write never")
        elif name == "stop" and value < NEVER and not stops:
            yield SchemaFault(place, "can never be reached: this kind is never more than block", "write never")


class RepeatBase(LoopBase):
    """Fields of the detectors that count identical requests."""

    concurrent_free: CountInt = Field(
        default=16,
        description="Identical requests that join one that started less than a second ago and has no response yet; "
        "they count once. Needs responses that pass through or are reported.",
    )
    retry_free: CountInt = Field(
        default=10,
        description="Requests per window that do not count because the upstream returned 429, 5xx or nothing. "
        "Needs responses that pass through or are reported.",
    )


class ExactLoop(RepeatBase):
    """`similarity: exact`: the same request, byte for byte."""

    similarity: Literal["exact"] = Field(default="exact", description="`exact`: the same request again.")
    enabled: bool = Field(description="Whether the detector is on.")
    window_seconds: PositiveInt = Field(default=60, description="Length of the window; required when enabled.")
    threshold_identical_requests: Annotated[int, Field(ge=2, le=LARGEST)] = Field(
        default=5,
        description="The number of identical requests at which the detector trips (minimum 2); required when enabled.",
    )
    window: Literal["idle", "sliding"] = Field(
        default="idle",
        description="`idle`: the count expires one window after the last hit; `sliding`: a sliding window.",
    )

    @model_validator(mode="after")
    def _required(self) -> ExactLoop:
        if self.enabled:
            require(self, "window_seconds", "threshold_identical_requests")
        return self


class TailLoop(Cooldowns, RepeatBase):
    """`similarity: tail`: the same last messages of a conversation."""

    similarity: Literal["tail"] = Field(description="`tail`: the same last messages again.")
    tail_messages: Annotated[int, Field(ge=1, le=20)] = Field(
        default=3, description="Number of last messages to compare."
    )
    max_hits: CountInt = Field(
        default=5, description="Equal requests allowed within the window; 0 turns the detector off."
    )
    window_seconds: PositiveInt = Field(default=60, description="Length of the sliding window.")


class Weights(Model):
    """Weight of each kind of similarity in the score."""

    prompt: CountFloat = Field(default=1.0, description="For each similar prompt.")
    response: CountFloat = Field(default=2.0, description="For each similar response.")
    tool: CountFloat = Field(default=1.5, description="For each repeated tool call.")


def refuse_unreachable(block: Model, threshold: str, window: str, weights: Weights, hint: str) -> None:
    """Report a threshold above the highest score a window can give: every earlier request alike in every way."""
    score, requests = getattr(block, threshold), getattr(block, window)
    highest = (requests - 1) * (weights.prompt + weights.response + weights.tool)
    if highest <= score:
        message = f"{score:g} can never be exceeded: a window of {requests} requests scores at most {highest:g}"
        refuse_field(threshold if threshold in block.model_fields_set else window, message, hint)


class SimhashLoop(LoopBase):
    """`similarity: simhash`: similar prompts, responses and tool calls add up to a score."""

    similarity: Literal["simhash"] = Field(description="`simhash`: similar requests, scored.")
    window_requests: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=20, description="Number of recent requests to compare."
    )
    threshold_score: PositiveFloat = Field(default=10.0, description="The score above which the detector trips.")
    weights: Weights = Field(default_factory=Weights, description="Weight of each kind of similarity.")

    @property
    def default_action(self) -> Action:
        return "kill"

    @model_validator(mode="after")
    def _reachable(self) -> SimhashLoop:
        hint = "lower threshold_score or widen the window"
        refuse_unreachable(self, "threshold_score", "window_requests", self.weights, hint)
        return self


AnyLoop = ExactLoop | TailLoop | SimhashLoop | StepsLoop


def _similarity(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("similarity", "exact")
    return getattr(value, "similarity", "exact")  # what is no block at all is refused by the block itself


LoopBlock = Annotated[
    Annotated[ExactLoop, Tag("exact")]
    | Annotated[TailLoop, Tag("tail")]
    | Annotated[SimhashLoop, Tag("simhash")]
    | Annotated[StepsLoop, Tag("steps")],
    Discriminator(_similarity),
]
LoopBlocks = Annotated[list[LoopBlock], Field(min_length=1), Shorthand(one_as_list)]

"""Bundle models of loop detection (SPEC LD-1 to LD-6): one block is one detector with its thresholds and what it does.
How a detector judges is `breakloop.detect`'s matter; what all blocks have in common stands in `schema_loop_base`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from breakloop.policy.schema_loop_base import Action, Cooldowns, LoopBase
from breakloop.policy.schema_steps import StepsLoop
from breakloop.policy.schema_types import (
    LARGEST,
    CountFloat,
    CountInt,
    Fault,
    Model,
    PositiveFloat,
    PositiveInt,
    Shorthand,
    one_as_list,
    refuse,
)


class RepeatBase(LoopBase):
    """What the detectors that count identical requests have in common (SPEC LD-6)."""

    concurrent_free: CountInt = Field(
        default=16,
        description="How many identical requests join one that began less than a second ago and is not answered; "
        "they count once. Where answers are seen or reported.",
    )
    retry_free: CountInt = Field(
        default=10,
        description="How many requests a window do not count because the upstream answered 429, 5xx or not at all. "
        "Where answers are seen or reported.",
    )


class ExactLoop(RepeatBase):
    """`similarity: exact`: the same request, byte for byte."""

    similarity: Literal["exact"] = Field(default="exact", description="`exact`: the same request again.")
    enabled: bool = Field(description="Whether the detector is on.")
    window_seconds: PositiveInt = Field(default=60, description="Length of the window; required when enabled.")
    threshold_identical_requests: Annotated[int, Field(ge=2, le=LARGEST)] = Field(
        default=5, description="The how-manieth identical request trips, at least 2; required when enabled."
    )
    window: Literal["idle", "sliding"] = Field(
        default="idle",
        description="`idle`: the count lives for the window after the last hit; `sliding`: a true window.",
    )

    @model_validator(mode="after")
    def _required(self) -> ExactLoop:
        if self.enabled:
            needed = ("window_seconds", "threshold_identical_requests")
            missing = [name for name in needed if name not in self.model_fields_set]
            refuse([Fault((name,), "is required when enabled") for name in missing])
        return self


class TailLoop(Cooldowns, RepeatBase):
    """`similarity: tail`: the same last messages of a conversation."""

    similarity: Literal["tail"] = Field(description="`tail`: the same last messages again.")
    tail_messages: Annotated[int, Field(ge=1, le=20)] = Field(
        default=3, description="How many last messages are compared."
    )
    max_hits: CountInt = Field(default=5, description="How many in the window pass; 0 switches the detector off.")
    window_seconds: PositiveInt = Field(default=60, description="Length of the sliding window.")


class Weights(Model):
    """What each kind of similarity adds to the score."""

    prompt: CountFloat = Field(default=1.0, description="For each similar prompt.")
    response: CountFloat = Field(default=2.0, description="For each similar response.")
    tool: CountFloat = Field(default=1.5, description="For each repeated tool call.")


def reachable_score(window_requests: int, weights: Weights) -> float:
    """Return the highest score a window can give: every earlier request alike in every way."""
    return (window_requests - 1) * (weights.prompt + weights.response + weights.tool)


class SimhashLoop(LoopBase):
    """`similarity: simhash`: similar prompts, responses and tool calls add up to a score."""

    similarity: Literal["simhash"] = Field(description="`simhash`: similar requests, scored.")
    window_requests: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=20, description="How many last requests are compared."
    )
    threshold_score: PositiveFloat = Field(default=10.0, description="The score above which it trips.")
    weights: Weights = Field(default_factory=Weights, description="What each kind of similarity adds.")

    @property
    def default_action(self) -> Action:
        """What is done when neither `action` nor `ladder` is given."""
        return "kill"

    @model_validator(mode="after")
    def _reachable(self) -> SimhashLoop:
        highest = reachable_score(self.window_requests, self.weights)
        if highest <= self.threshold_score:
            message = f"{self.threshold_score:g} can never be exceeded: a window of {self.window_requests} requests"
            at = "threshold_score" if "threshold_score" in self.model_fields_set else "window_requests"
            refuse([Fault((at,), f"{message} scores at most {highest:g}", "lower threshold_score or widen the window")])
        return self


AnyLoop = ExactLoop | TailLoop | SimhashLoop | StepsLoop


def _kind(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("similarity", "exact")
    return getattr(value, "similarity", "exact")  # what is no block at all is refused by the block itself


LoopBlock = Annotated[
    Annotated[ExactLoop, Tag("exact")]
    | Annotated[TailLoop, Tag("tail")]
    | Annotated[SimhashLoop, Tag("simhash")]
    | Annotated[StepsLoop, Tag("steps")],
    Discriminator(_kind),
]
LoopBlocks = Annotated[list[LoopBlock], Field(min_length=1), Shorthand(one_as_list)]

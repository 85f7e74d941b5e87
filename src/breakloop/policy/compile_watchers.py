"""Blocks that remember -> their detectors: `steps`, `simhash`, run ceilings. A part of `compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.detect.allow import Identity
from breakloop.detect.block import Reads
from breakloop.detect.fingerprint import Fingerprinter
from breakloop.detect.lane_loop import LaneLoop
from breakloop.detect.lanes import LaneDetector
from breakloop.detect.loop import LoopTerms
from breakloop.detect.run_ceiling import RunCeiling
from breakloop.detect.score import ScoreDetector
from breakloop.detect.score_loop import ScoreLoop
from breakloop.detect.seen import Ladder
from breakloop.detect.spawn import Begin, SpawnDetector
from breakloop.detect.spawn_loop import SpawnLoop
from breakloop.detect.step_loop import StepLoop
from breakloop.detect.steps import StepsDetector
from breakloop.model.call import Call
from breakloop.policy import schema
from breakloop.policy.compiled import Detector
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.owners import Owners
from breakloop.policy.run_rule import RunRule
from breakloop.pricing.estimate import estimator
from breakloop.state.ops import blocked_at_once

_TOOL_MESSAGES: Final = 3  # where an allow list looks for tools


class WatcherMaker:
    """Makes detectors that remember."""

    def __init__(self, descriptors: Descriptors, fingerprinter: Fingerprinter) -> None:
        self._descriptors = descriptors
        self._fingerprinter = fingerprinter
        self._owners = Owners(descriptors)

    def steps(self, block: schema.StepsLoop, terms: LoopTerms) -> list[Detector]:
        """A session's steps; and before them what is told by more than one session."""
        spec = blocked_at_once(block.cooldown_seconds, block.cooldown_growth, block.cooldown_max_seconds)
        ladder = Ladder(terms, _actions(block), spec, identity(self._descriptors))
        settings, digest = block.settings(), self._fingerprinter.short
        lanes = LaneDetector(settings.thresholds["nested"], digest)
        deep = settings.thresholds["spawn"][:2]
        spawn = SpawnDetector(digest, depth=deep, same_task=deep)
        read = self._descriptors
        return [
            LaneLoop(terms, ladder, self._reads(self._owners.unnamed), lanes, session=read.session, lane=read.lane),
            SpawnLoop(terms, ladder, self._reads(self._owners.parent), spawn, begin=self._begin),
            StepLoop(
                terms,
                ladder,
                self._reads(self._owners.session),
                StepsDetector(settings, digest),
                unnamed=read.derived,
                voice=read.lane,
                guards_stream=block.stream_guard,
            ),
        ]

    def _begin(self, call: Call, task: str) -> Begin:
        read = self._descriptors
        names = (read.session(call), read.parent(call), read.trace(call), read.agent(call))
        return Begin(*names, task, read.lane(call))

    def simhash(self, block: schema.SimhashLoop, terms: LoopTerms) -> ScoreLoop:
        """The score of a block."""
        return self.score(terms, _actions(block), block.window_requests, block.threshold_score, block.weights)

    def score(
        self,
        terms: LoopTerms,
        actions: tuple[str, str, str],
        window_requests: int,
        threshold: float,
        weights: schema.Weights,
    ) -> ScoreLoop:
        """A score over the last requests of caller and agent."""
        ladder = Ladder(terms, actions, blocked_at_once(), identity(self._descriptors))
        seed = int.from_bytes(self._fingerprinter.short(b"score"))
        each = (weights.prompt, weights.response, weights.tool)
        detector = ScoreDetector(window_requests, threshold, *each, seed)
        return ScoreLoop(terms, ladder, self._reads(self._owners.agent), detector)

    def ceiling(self, terms: LoopTerms, max_steps: int) -> RunCeiling:
        """A ceiling of steps over a session."""
        return RunCeiling(terms, max_steps, step=self._descriptors.step, owner=self._owners.session)

    def run_money(self, pattern: str, usd: float, terms: LoopTerms) -> RunRule:
        """A ceiling of dollars over a session."""
        return RunRule(pattern, usd, terms, owner=self._owners.session, estimator=estimator("simple_word"))

    def _reads(self, owner: Callable[[Call], str]) -> Reads:
        return Reads(self._descriptors.step, owner, identity(self._descriptors))


def identity(read: Descriptors, messages: int = _TOOL_MESSAGES) -> Identity:
    """Who sends, and which tools these last messages call; more of them may have been read for another policy."""

    def tools(call: Call) -> tuple[str, ...]:
        chat = read.chat(call)
        return tuple(made.name for message in chat.tail[-messages:] for made in message.calls) if chat else ()

    return Identity(read.caller, read.agent, tools)


def _actions(block: schema.AnyLoop) -> tuple[str, str, str]:
    return block.action_for("notice"), block.action_for("block"), block.action_for("stop")

"""`similarity: steps` (SPEC LD-4): loops as an agent's own history shows them, judged step by step over a small window
of fingerprints. Pure functions: reading steps is `wire`'s work, keeping windows and acting on verdicts the engine's."""

from __future__ import annotations

from breakloop.detect.steps.evaluator import RequestContext, StepEvaluator
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import PRESETS, StepsSettings

__all__ = ["PRESETS", "RequestContext", "StepEvaluator", "StepsSettings", "ToolOptions"]

"""`similarity: steps`: loops in an agent's own history, evaluated step by step against a small window of fingerprints.
Nothing here does I/O: dialects read the steps, and the engine stores windows and applies actions."""

from __future__ import annotations

from breakloop.detect.steps.evaluator import RequestContext, StepEvaluator
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import PRESETS, StepsSettings

__all__ = ["PRESETS", "RequestContext", "StepEvaluator", "StepsSettings", "ToolOptions"]

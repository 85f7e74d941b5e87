"""Loop detection for `similarity: steps`: each step of a session is compared with a small window of fingerprints.

This package does no I/O: `dialects` parse the steps, and the engine stores the windows and applies the actions.
"""

from __future__ import annotations

from breakloop.detect.steps.detector import RequestContext, StepEvaluator
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import PRESETS, StepsSettings

__all__ = ["PRESETS", "RequestContext", "StepEvaluator", "StepsSettings", "ToolOptions"]

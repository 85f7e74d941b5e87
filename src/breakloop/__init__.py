"""breakloop stops runaway AI agents before they burn money. This module holds the public names, and nothing else."""

from __future__ import annotations

from breakloop.errors import BreakloopError, BundleError, Problem, RequestError, SettingsError, StateError

__version__ = "0.1.0"

__all__ = [
    "BreakloopError",
    "BundleError",
    "Problem",
    "RequestError",
    "SettingsError",
    "StateError",
    "__version__",
]

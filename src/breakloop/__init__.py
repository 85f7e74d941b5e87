"""breakloop stops runaway AI agents before they burn money. This module holds the public names, and nothing else: those
of the library are loaded when they are first used, so that importing it costs next to nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from breakloop._version import __version__
from breakloop.errors import BreakloopError, BundleError, Problem, RequestError, SettingsError, StateError

if TYPE_CHECKING:
    from breakloop.exceptions import DeniedError, LoopDetectedError
    from breakloop.model.verdict import Decision
    from breakloop.sdk.backend import agent
    from breakloop.sdk.guard import Guard


__all__ = [
    "BreakloopError",
    "BundleError",
    "Decision",
    "DeniedError",
    "Guard",
    "LoopDetectedError",
    "Problem",
    "RequestError",
    "SettingsError",
    "StateError",
    "__version__",
    "agent",
]

_LAZY = {
    "Decision": "breakloop.model.verdict",
    "DeniedError": "breakloop.exceptions",
    "Guard": "breakloop.sdk.guard",
    "LoopDetectedError": "breakloop.exceptions",
    "agent": "breakloop.sdk.backend",
}


def __getattr__(name: str) -> Any:
    """Load a public name of the library when it is first used."""
    home = _LAZY.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

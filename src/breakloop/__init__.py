"""The Python library of breakloop, which stops runaway AI agents before they burn money:

    from breakloop import Guard, LoopDetectedError
    guard = Guard()

Also public: `breakloop.openai`, `breakloop.anthropic`, `breakloop.exceptions`, `breakloop.testing` and
`breakloop.integrations.<framework>`. Names of the library are loaded on first use, so importing this package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from breakloop._version import __version__
from breakloop.errors import BreakloopError, BundleError, Problem, RequestError, SettingsError, StateError

if TYPE_CHECKING:
    from breakloop.exceptions import DeniedError, LoopDetectedError
    from breakloop.model.decision import Decision
    from breakloop.sdk.context import agent
    from breakloop.sdk.guard import Guard
    from breakloop.sdk.toolkit import Run


__all__ = [
    "BreakloopError",
    "BundleError",
    "Decision",
    "DeniedError",
    "Guard",
    "LoopDetectedError",
    "Problem",
    "RequestError",
    "Run",
    "SettingsError",
    "StateError",
    "__version__",
    "agent",
]

_LAZY = {
    "Decision": "breakloop.model.decision",
    "DeniedError": "breakloop.exceptions",
    "Guard": "breakloop.sdk.guard",
    "LoopDetectedError": "breakloop.exceptions",
    "Run": "breakloop.sdk.toolkit",
    "agent": "breakloop.sdk.context",
}


def __getattr__(name: str) -> Any:
    home = _LAZY.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

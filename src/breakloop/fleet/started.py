"""What a person is told about an instance that has just started; how it is said is the command line's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # commands that only print need none of it
    from breakloop.policy.compiled import CompiledBundle
    from breakloop.policy.source import Watched

NO_LOOPS: Final = "none"  # nothing is judged at all
LOOPS_OFF: Final = "off"
LOOPS_BUILTIN: Final = "builtin"
LOOPS_BUNDLE: Final = "bundle"


@dataclass(frozen=True, slots=True)
class Started:
    """The bundle, and the loop protection. Without `source` none is set; without `origin` none is valid."""

    url: str = ""
    workers: int = 1
    source: str = ""
    origin: str = ""
    version: int = 0
    policies: int = 0
    problem: str = ""
    loops: str = NO_LOOPS
    own_loops: int = 0  # policies whose own `loop_detection` holds instead
    admin_url: str = ""
    admin_token: str = ""  # where it was made just now: to be shown once


def started(source: Watched | None, bundle: CompiledBundle | None, url: str = "") -> Started:
    """Look at what is in force."""
    if source is None:
        return Started(url=url, loops=_loops(bundle))
    current, problem = source.current, str(source.problems[0]) if source.problems else ""
    if current is None:
        return Started(url=url, source=source.name, problem=problem, loops=_loops(bundle))
    return Started(
        url=url,
        source=source.name,
        origin=source.origin,
        version=current.bundle.bundle_version,
        policies=len(current.bundle.policies),
        problem=problem,
        loops=_loops(bundle),
        own_loops=sum(one.decides_loops and not one.shadow for one in bundle.policies) if bundle else 0,
    )


def _loops(bundle: CompiledBundle | None) -> str:
    if bundle is None:
        return NO_LOOPS
    if not bundle.default_loops:
        return LOOPS_OFF
    return LOOPS_BUILTIN if bundle.default_loops[0].terms.policy == "builtin" else LOOPS_BUNDLE

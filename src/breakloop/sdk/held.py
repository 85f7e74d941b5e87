"""Calls of tools as steps, where somebody else carries them out: judged when they have returned, and when they are
about to be made again though they were blocked. In both colours. `tools` does the same around a function."""

from __future__ import annotations

from typing import Any

from breakloop.model.decision import Decision
from breakloop.sdk.run import Run
from breakloop.sdk.transcript import Made, result_text


def before(run: Run, made: Made) -> Decision:
    """Decide about a call that is about to be made: one that was blocked is judged again, and free once it may pass."""
    held = run.held(made)
    return Decision() if held is None else _freed(run, made, run.step([made], [held]))


async def abefore(run: Run, made: Made) -> Decision:
    """The same, without blocking the event loop."""
    held = run.held(made)
    return Decision() if held is None else _freed(run, made, await run.astep([made], [held]))


def after(run: Run, made: Made, result: Any) -> Decision:
    """Decide about a call that has returned, and wait as long as a throttle says. Blocked, it is not made again."""
    decision = run.step([made], [result])
    run.guard.wait(decision)
    return _held(run, made, result, decision)


async def aafter(run: Run, made: Made, result: Any) -> Decision:
    """The same, without blocking the event loop."""
    decision = await run.astep([made], [result])
    await run.guard.await_(decision)
    return _held(run, made, result, decision)


def _freed(run: Run, made: Made, decision: Decision) -> Decision:
    if decision.allowed:
        run.release(made)
    return decision


def _held(run: Run, made: Made, result: Any, decision: Decision) -> Decision:
    if not decision.allowed:
        run.hold(made, result_text(result))
    return decision

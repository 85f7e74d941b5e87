"""Steps for the unit tests of the steps detector, as short as they can be written."""

from __future__ import annotations

from hashlib import blake2b

from breakloop.detect.steps.findings import Finding, Novelty, StepState
from breakloop.detect.steps.fingerprints import StepFingerprinter, StepFingerprints
from breakloop.detect.steps.window import SessionWindow
from breakloop.model.call import Result, Step, ToolCall

LONG = "a result with several words in it, long enough to be of some interest, and then some more"


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=8, key=b"test").digest()


PRINTER = StepFingerprinter(digest)


def called(arguments: str = "{}", text: str = LONG, *, name: str = "look", error: bool = False, said: str = "") -> Step:
    return Step(said, (ToolCall(name, arguments),), (), (Result(text, error),), (), (), 2, 100)


def spoken(said: str, *users: str) -> Step:
    return Step(said, (), (), (), users, (), 2, 100)


def at_once(*steps: Step) -> Step:
    """Calls of one round."""
    return steps[0]._replace(calls=tuple(one.calls[0] for one in steps), results=tuple(one.results[0] for one in steps))


def prints(step: Step) -> StepFingerprints:
    return PRINTER.step(step)


def state(
    window: SessionWindow,
    made: StepFingerprints | None = None,
    *,
    step: Step | None = None,
    novelty: Novelty | None = None,
    dried: bool = False,
    news: bool = False,
    worded: bool = False,
    known: int = 0,
    now: float = 0.0,
    weight: float = 1.0,
) -> StepState:
    """A step as the function of a kind gets it."""
    step = step or called()
    new = novelty or Novelty(dried, news, worded)
    return StepState(window, step, made or prints(step), PRINTER, new, known, now, weight, tracked=False)


def hits(found: object, kind: str) -> float:
    """How far the findings say this kind has come; 0 where they do not name it."""
    assert hasattr(found, "__iter__")
    return max((one.hits for one in found if isinstance(one, Finding) and one.kind == kind), default=0.0)

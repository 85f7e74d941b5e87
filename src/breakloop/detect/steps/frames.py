"""Lines that stand around the results of a session, such as `Execution logs:`. They weigh nothing when the new lines of
a result are weighed, or a short result would look old for the frame that a harness puts around it.

A line belongs to the frame if it stood near the beginning or the end of three of the last four results of new calls. A
call that is repeated teaches nothing: there, equal lines are the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

_EDGE: Final = 3  # lines at each end of a result
_ROW: Final = Struct(f"<{2 * _EDGE}H")  # the last 16 bits of the digests of lines; 0 for none
_RESULTS: Final = 4
_OFTEN: Final = 3
_BITS: Final = 0xFFFF
_LINES: Final = Struct(f"<{_RESULTS * 2 * _EDGE}H")
SIZE: Final = _LINES.size


def around(packed: bytes, lines: Sequence[bytes], digests: Sequence[int]) -> set[bytes]:
    """Return those lines of a result, given with their digests, that belong to the frame."""
    before, last = _LINES.unpack(packed), max(len(lines) - _EDGE, _EDGE)
    places = [*range(min(len(lines), _EDGE)), *range(last, len(lines))]
    return {lines[at] for at in places if before.count(digests[at] & _BITS) >= _OFTEN}


def add(packed: bytes, digests: Sequence[int]) -> bytes:
    """Return the lines of the last results after another one, given the digests of its lines, each once."""
    if len(digests) > 2 * _EDGE:
        digests = [*digests[:_EDGE], *digests[-_EDGE:]]
    row = _ROW.pack(*[digest & _BITS for digest in digests], *(0,) * (2 * _EDGE - len(digests)))
    return row + packed[: -_ROW.size]

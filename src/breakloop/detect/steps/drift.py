"""Kind `drift`: the same call with the same result, but for what changes by itself: times, durations, ids, process
numbers, counters of attempts. `repeat` and `interleaved` do not mask short results, because a time or an id may be
their only content; so this kind needs more repeats. A result that opens with words of refusal counts twice.

Other numbers are content: a percentage, a page, a position, a price, or "3 failed" is progress when it moves. So are
digests of 32 digits and more, which stand for the content of a file or a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from breakloop.detect.steps.ends import PLACE
from breakloop.detect.steps.findings import Finding, StepState, times, tool_name
from breakloop.detect.steps.fingerprints import OK, CallResult, compact, no_news, steady
from breakloop.detect.steps.window import CALL, COUNT_MAX, END, find_row
from breakloop.dialects.content import lazy_pattern

_ROW: Final = END.size
KEPT: Final = Struct("<HH")  # number of words, masked result
_UNKNOWN: Final = 0
SHORT: Final = 400  # bytes; in longer results, new lines are weighed
_NO_MASK: Final = bytes(2)
_REFUSED: Final = 2.0
# What has to remain of a result; else the time or the id is its content: `next free slot: 10:40`, `stopped at 0x3f2a`.
_SIGNS_MIN: Final = 8  # letters and digits of a refusal, or of the news that there is none: `nothing found, ref 7f3a`
_WORDS_MIN: Final = 4  # of other results: a sentence, and not the name of a value
_SIGNS: Final = bytes(code for code in range(256) if not (code > 127 or chr(code).isalnum()))
_LETTERS: Final = bytes(code for code in range(256) if not (code > 127 or chr(code).isalpha()))
_mask: Final = lazy_pattern(
    rb"""(?ix)
    # an id after its name: `request id: r-71`, `session id amber-fox`
    \b(?:session|request|trace|span|chunk|correlation|call|message|transaction)[ _-]?id[:=\#"'\ ]{1,4}[\w.-]++
    # a number after the name of a process or an attempt, unless a total follows: `attempt 3`, not `attempt 3 of 5`
    | \b(?:pid|process|thread|attempt|try|retry|request|req|call|session|connection|conn|port)(?:[ _-]?(?:no|number))?
      [\ :=\#\[("']{1,4}(?=[\w.-]*\d)[\w.-]++(?!\ ?(?:of|out\ of|/)\ ?\d)
    # `checked 7 times`, `2nd attempt`
    | \b\d++(?:st|nd|rd|th)?\ (?:times|attempts?|tries|retries)\b(?!\ (?:left|remaining))
    # `5m12s`, `3 hours`, seconds since 1970
    | \b(?:\d+[dhm])+(?:\d+s)?\b | \b\d[\d.]{0,15}+\ (?:minutes?|mins?|hours?|hrs?)\b | \b1[5-9]\d{8}(?:\d{3}|\.\d+)?\b
    # the process in a line of a log: `sshd[812]:`
    | (?<=\w)\[\d{2,7}\](?=:)
    # random letters and digits: `x7k2p9`, `msg_01h8zk3wq5rt`
    | \b(?=[0-9a-z]{6,31}\b)[a-z]*\d+[a-z]+\d[0-9a-z]*\b | \b[a-z]{2,12}[_-](?=[a-z]*\d)[0-9a-z]{12,31}\b"""
)


def kept(pair: CallResult) -> bytes:
    """Return what the row of a call keeps of its first result: of an error its fingerprint, of a short one only how
    many words it has, because most calls are made once."""
    if pair.failed or len(pair.text) > SHORT:
        return pair.e
    return KEPT.pack(_words(pair.text), _UNKNOWN)


def count(state: StepState, pair: CallResult, at: int) -> tuple[bytes, Sequence[Finding]]:
    """Count a call that was made before and has a row in the window, at `at`. Return what the row keeps of the result,
    and what was found. A result is only masked if it is not the last one and has as many words, so that neither
    progress nor plain repetition costs anything. The first one that is masked counts as two, and is not reported."""
    if pair.failed or pair.kind != OK or pair.changes or len(pair.text) > SHORT:
        return kept(pair), ()
    window = state.window
    before = bytes(window.calls[at + 16 : at + 20])
    if window.calls[at + 8 : at + 16] == pair.r and before[2:] == _NO_MASK:
        return before, ()  # as far as it goes, `repeat` and `interleaved` count it
    _, exact, _, _, _, _, epoch, *_ = CALL.unpack_from(window.calls, at)
    words, masked_before = KEPT.unpack(before)
    masked = masked_before if exact == pair.r else _UNKNOWN
    if not masked and words == _words(pair.text) and not any(one.media for one in state.step.results):
        masked = _masked(state, pair)
    same = masked != _UNKNOWN and epoch == window.epoch and masked_before in (masked, _UNKNOWN)
    end = KEPT.pack(_words(pair.text), masked)
    rows, key = window.ends, pair.a[4:]  # `unmoved` has the other half of A in its table
    place = find_row(rows, key, _ROW)
    if place < 0 and not same:
        return end, ()
    weight = state.weight * (_REFUSED if pair.refused else 1.0)
    repeats = END.unpack_from(rows, place)[1] if place >= 0 else 0.0
    del rows[max(place, 0) : max(place, 0) + _ROW]  # without a row, the least recently used one is dropped
    repeats = min((repeats if masked_before else 0.0) + weight, COUNT_MAX) if same else 0.0
    rows += END.pack(key, repeats)
    if not (same and masked_before):
        return end, ()
    hits = repeats + weight
    calls = hits / _REFUSED if pair.refused else hits
    evidence = f"{tool_name(pair.tool.name)} returned the same {times(calls)}, but for times, ids or counters"
    # The number of words is left out: it depends on white space.
    return end, (Finding("drift", hits, b"drift" + pair.a + end[2:], evidence),)


def _words(text: bytes) -> int:
    """Return about how many words a text has."""
    return text.count(b" ") + text.count(b"\n") & 0xFFFF


def _masked(state: StepState, pair: CallResult) -> int:
    """Return 16 bits that stand for a masked result; `_UNKNOWN` if too little remains of it."""
    text = without_noise(pair.text, refused=pair.refused)
    if pair.refused or no_news(text):
        enough = len(text.translate(None, _SIGNS)) >= _SIGNS_MIN
    else:
        enough = sum([len(word.translate(None, _LETTERS)) > 1 for word in text.split()]) >= _WORDS_MIN
    return int.from_bytes(state.fingerprinter.plain(compact(text))[:2], "little") or 1 if enough else _UNKNOWN


def without_noise(text: bytes, *, refused: bool = False) -> bytes:
    """Return a result without what changes by itself."""
    text = _mask().sub(b"~", steady(text))
    return PLACE().sub(b"~", text) if refused else text

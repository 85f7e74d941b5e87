"""Takes out of a text what changes from one turn of a loop to the next (SPEC LD-3), in this order: UUIDs and long hex
become `<id>`, ISO timestamps `<ts>`, numbers `<num>`; white space and case are folded.

A number is a run of digits that no letter leads: `42`, `12ms`, `order-17`, but not the names `utf8` and `file2.py`.
"""

from __future__ import annotations

import re
from typing import Final

ID: Final = "<id>"
TS: Final = "<ts>"
NUM: Final = "<num>"

_LONG: Final = 16  # as many hex digits in a row are an id; fewer may be a word, or an abbreviated commit
_UUID: Final = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_ids: Final = re.compile(
    rf"(?<![0-9a-zA-Z])(?:{_UUID}|(?:0[xX])?[0-9a-fA-F]{{{_LONG},}})(?![0-9a-zA-Z])",
).sub
# A digit comes first, so that the search runs from digit to digit; what is before it is looked at afterwards.
_times: Final = re.compile(
    r"\d(?<!\d\d)\d{3}-\d\d-\d\d"
    r"(?:[Tt ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[Zz]|[+-]\d\d(?::?\d\d)?)?)?(?!\d)",
).sub
_numbers: Final = re.compile(r"\d(?<![^\W\d_]\d)(?<!\d\d)\d*(?:[.,]\d+)*(?:[eE][+-]?\d+)?").sub

# Whether there is anything to find is seen in a map of the text, which costs a twentieth of looking for it: every
# hex digit as `0`, or every digit; hyphens as they are.
_HEX_MAP: Final = bytes(48 if code in b"0123456789abcdefABCDEF" else 45 if code == 45 else 32 for code in range(256))
_DIGIT_MAP: Final = bytes(48 if code in b"0123456789" else 45 if code == 45 else 32 for code in range(256))
_UUID_SHAPE: Final = b"00000000-0000-0000-0000-000000000000"
_LONG_SHAPE: Final = b"0" * _LONG
_DATE_SHAPE: Final = b"0000-00-00"


def normalised(text: str) -> str:
    """Return what stays the same: `Page 42  of 100` as `page <num> of <num>`."""
    spelled = text.encode("utf-8", "surrogatepass")
    words = text.split()
    shape = spelled.translate(_HEX_MAP)
    if _LONG_SHAPE in shape or _UUID_SHAPE in shape:
        words = [_ids(ID, word) if len(word) >= _LONG else word for word in words]
    text = " ".join(words)
    shape = spelled.translate(_DIGIT_MAP)
    if b"0" in shape or not text.isascii():  # other scripts have digits of their own
        if _DATE_SHAPE in shape:
            text = _times(TS, text)
        text = _numbers(NUM, text)
    return text.casefold()

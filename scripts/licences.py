"""Whether the licence of a distribution is one we may depend on. Reads its metadata: the SPDX expression, else the
classifiers, else the free text."""

from __future__ import annotations

import re
from email.message import Message

ALLOWED = frozenset(
    {
        "0bsd",
        "apache-2.0",
        "bsd-2-clause",
        "bsd-3-clause",
        "cc0-1.0",
        "cnri-python",
        "isc",
        "mit",
        "mit-0",
        "mpl-2.0",
        "psf-2.0",
        "python-2.0",
        "unlicense",
        "zlib",
    }
)
# Drivers that an extra installs beside us, whole and as they are: a licence that binds whoever changes them is fine.
BESIDE_US = {"psycopg": "lgpl-3.0-only", "psycopg-binary": "lgpl-3.0-only"}
# Names people wrote before there were SPDX expressions. Only the first line is read: some put the whole text there.
_OLD_NAMES = re.compile(
    r"^(the )?([23]-clause )?(0?bsd|apache|isc|mit\b|mozilla public license 2\.0|mpl[- ]?2|psf"
    r"|python software foundation|unlicense|zlib)",
    re.IGNORECASE,
)


def _expression_allowed(expression: str) -> bool:
    """Any side of an OR suffices, every side of an AND is needed; exceptions (WITH) only ever allow more."""
    flat = re.sub(r"[()]", " ", expression)
    flat = re.sub(r"\s+WITH\s+\S+", "", flat, flags=re.IGNORECASE)
    return any(
        all(part.strip().lower() in ALLOWED for part in re.split(r"\s+AND\s+", side, flags=re.IGNORECASE))
        for side in re.split(r"\s+OR\s+", flat, flags=re.IGNORECASE)
    )


def problem(metadata: Message) -> str:
    """Return what is wrong with the licence in `metadata`, or nothing."""
    expression = metadata.get("License-Expression", "")
    if expression:
        if BESIDE_US.get(metadata.get("Name", "").lower()) == expression.lower():
            return ""
        return "" if _expression_allowed(expression) else f"licence {expression}"
    classifiers = [
        value.rpartition(" :: ")[2] for value in metadata.get_all("Classifier", []) if value.startswith("License :: ")
    ]
    lines = metadata.get("License", "").strip().splitlines()
    written = classifiers or lines[:1]
    if any(_OLD_NAMES.match(name) or _expression_allowed(name) for name in written):
        return ""
    return f"licence {' / '.join(written)}" if written else "no licence in its metadata"

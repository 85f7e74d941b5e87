"""The style of reports."""

from __future__ import annotations

import re

from breakloop.replay.report import COLOURS, Heading, page

STYLE = page(Heading("", 0, 0, ""), []).partition("<style>")[2].partition("</style>")[0]


def test_light_and_dark_have_the_same_names() -> None:
    """Every colour is defined for both, and every one that is used is defined (X-6)."""
    light, dark = re.findall(r":root\{([^}]*)\}", STYLE)
    names = [set(re.findall(r"(--[\w-]+):", one)) for one in (light, dark)]
    assert names[0] == names[1]
    assert set(re.findall(r"var\((--[\w-]+)\)", STYLE)) <= names[0]
    assert {f"--c{number}" for number in range(COLOURS)} <= names[0]


def test_nothing_comes_from_elsewhere() -> None:
    """No fonts, no pictures, no imports (X-6)."""
    assert not re.search(r"url\(|@import|https?:", STYLE)


def _luminance(colour: str) -> float:
    wide = colour if len(colour) == 7 else "#" + "".join(2 * one for one in colour[1:])
    parts = [int(wide[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_texts_can_be_read() -> None:
    """Contrast of at least 4.5 on either ground (X-6)."""
    for block in re.findall(r":root\{([^}]*)\}", STYLE):
        colours = dict(re.findall(r"(--[\w-]+):(#\w+)", block))
        for ink in ("--ink", "--soft", "--link", "--block", "--notice"):
            for ground in ("--paper", "--card"):
                pair = sorted((_luminance(colours[ink]), _luminance(colours[ground])))
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (ink, ground)

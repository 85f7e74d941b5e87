"""Texts for the corpus: the same for the same number, and different for another one."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

NOUNS: Final = (
    "anchor", "basket", "bridge", "candle", "canal", "carpet", "cellar", "chimney", "clock", "cottage", "engine",
    "fence", "ferry", "forest", "garden", "glacier", "harbour", "hammer", "island", "kettle", "ladder", "lantern",
    "library", "market", "meadow", "mill", "mirror", "museum", "orchard", "paddle", "parcel", "piano", "quarry",
    "railway", "river", "saddle", "shelter", "signal", "stable", "station", "stove", "tailor", "temple", "tunnel",
    "valley", "violin", "wagon", "walnut", "window", "workshop",
)  # fmt: skip
VERBS: Final = (
    "carries", "covers", "crosses", "feeds", "follows", "guards", "holds", "joins", "keeps", "leads", "lifts", "marks",
    "meets", "moves", "opens", "paints", "passes", "reaches", "repairs", "shows", "supplies", "touches", "turns",
    "warms", "watches",
)  # fmt: skip
ADJECTIVES: Final = (
    "amber", "ancient", "brittle", "broad", "calm", "copper", "crooked", "curious", "damp", "distant", "empty", "famous",
    "golden", "heavy", "hollow", "humble", "narrow", "northern", "painted", "quiet", "rapid", "rusty", "silver",
    "steep", "wooden",
)  # fmt: skip

SYLLABLES: Final = (
    "bal", "cor", "dem", "dra", "fen", "gil", "hor", "jun", "kel", "lam", "lor", "mad", "mir", "nal", "nor", "oda",
    "pel", "pro", "qua", "rin", "sal", "ser", "sta", "tal", "tor", "ula", "ven", "vor", "wen", "zim",
)  # fmt: skip


def pick(words: tuple[str, ...], *seed: object) -> str:
    """Return one of the words."""
    return words[int.from_bytes(blake2b(repr(seed).encode(), digest_size=4).digest(), "little") % len(words)]


def noun(*seed: object) -> str:
    return pick(NOUNS, "noun", *seed)


def line(*seed: object) -> str:
    """Return one sentence of about ten words."""
    parts = [pick(ADJECTIVES, 1, *seed), noun(1, *seed), pick(VERBS, 2, *seed), "the"]
    parts += [pick(ADJECTIVES, 3, *seed), noun(4, *seed), "near", "the", noun(5, *seed), noun(6, *seed)]
    return f"The {' '.join(parts)}."


def compound(*seed: object) -> str:
    """Return one of 27,000 words that no language has."""
    return "".join(pick(SYLLABLES, at, *seed) for at in range(3))


def text(*seed: object, lines: int = 4) -> str:
    """Return several lines."""
    return "\n".join(line(at, *seed) for at in range(lines))


def chapter(*seed: object, sentences: int = 40) -> str:
    """Return a text with more than a hundred different words, few of which occur in another chapter."""
    parts = [[compound(at, word, *seed) for word in range(4)] for at in range(sentences)]
    return " ".join(f"The {a} {b} and the {c} of {d}." for a, b, c, d in parts)


def simple(*seed: object, sentences: int = 26) -> str:
    """Return a text of the same length in a hundred simple words."""
    return " ".join(line(at, "simple", *seed) for at in range(sentences))


def path(*seed: object) -> str:
    return f"src/{noun('folder', *seed)}/{pick(ADJECTIVES, 'file', *seed)}_{noun('file', *seed)}.py"

"""SimHashes: equal texts, similar texts, texts that have nothing in common."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from breakloop.detect.simhash import normalised, simhash

words = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=9)
TEXT = " ".join(f"word{number}x" for number in range(3000))


def plainly(text: str) -> int:
    """The same, one vote after the other."""
    hashes = [xxhash.xxh3_128_digest(word) for word in text.encode().split()]
    grams = [hash_[:8] for hash_ in hashes]
    if len(hashes) >= 3:
        grams = [
            bytes(one[at] ^ two[8 + at] ^ three[(at + 3) % 8] for at in range(8))
            for one, two, three in zip(hashes, hashes[1:], hashes[2:], strict=False)
        ]
    votes = [sum(1 if gram[bit // 8] >> bit % 8 & 1 else -1 for gram in grams) for bit in range(64)]
    return sum(1 << bit for bit, sum_ in enumerate(votes) if sum_ > 0)


@given(st.lists(words, max_size=40))
def test_it_counts_as_it_should(given_words: list[str]) -> None:
    """A bit is set where more than half of the 3-grams set it; words where there are fewer than three (LD-3)."""
    text = " ".join(given_words)
    assert simhash(text) == plainly(text)
    assert 0 <= simhash(text) < 1 << 64


def distance(one: int, other: int) -> int:
    """In how many bits two hashes differ: about 32 for unrelated texts."""
    return (one ^ other).bit_count()


def test_it_is_the_same_everywhere() -> None:
    """Windows are shared by a fleet, so no process may have hashes of its own (E-7)."""
    assert simhash("the same text for everybody") == 304372875090880818
    assert simhash("") == 0
    assert simhash("one") == int.from_bytes(xxhash.xxh3_128_digest(b"one")[:8], "little")


def test_the_order_of_words_counts() -> None:
    """3-grams, and not words (LD-3)."""
    one = simhash("a quick brown fox jumps over the lazy dog today")
    other = simhash("today dog lazy the over jumps fox brown quick a")
    assert distance(one, other) >= 10
    assert simhash("no no no yes") != simhash("yes no no no")


def test_who_lacks_the_seed_sees_nothing() -> None:
    """What is stored is keyed (LD-3)."""
    assert distance(simhash(TEXT, seed=1), simhash(TEXT, seed=2)) >= 10


def test_a_small_change_of_a_long_text_is_small() -> None:
    """One word of three thousand changes fewer than three bits; a tenth of them many more (LD-3)."""
    assert distance(simhash(TEXT), simhash(TEXT.replace("word150x", "other"))) < 3
    changed = " ".join("other" if number % 10 == 0 else word for number, word in enumerate(TEXT.split()))
    assert distance(simhash(TEXT), simhash(changed)) >= 6


def test_each_retry_wraps_the_last_prompt() -> None:
    """S1's classic loop ends in prompts that are all alike (LD-3)."""
    prompt = "Extract the order and the total from this text and answer in JSON: three books and a lamp, please"
    hashes = []
    for _ in range(12):
        hashes.append(simhash(normalised(prompt)))
        prompt = f"That wasn't valid JSON. Try again: {prompt}"
    assert all(distance(one, other) < 3 for one, other in pairwise(hashes[6:]))


@given(st.lists(words, min_size=12, max_size=60, unique=True), st.lists(words, min_size=12, max_size=60, unique=True))
def test_unrelated_texts_are_far_apart(one: list[str], other: list[str]) -> None:
    """Texts without a word in common are never similar (LD-3)."""
    if not set(one) & set(other):
        assert distance(simhash(" ".join(one)), simhash(" ".join(other))) >= 10


@given(st.lists(words, min_size=1, max_size=30), st.uuids(), st.uuids(), st.integers(0, 10**9), st.data())
def test_volatile_parts_make_no_difference(
    text: list[str], one: UUID, other: UUID, number: int, data: st.DataObject
) -> None:
    """Case, white space, ids and numbers do not change the SimHash of a prompt (LD-3)."""
    at = data.draw(st.integers(0, len(text)))
    before = " ".join([*text[:at], str(one), "17", *text[at:]])
    after = "\n \t".join([*text[:at], other.hex, str(number), *text[at:]]).upper()
    assert simhash(normalised(before)) == simhash(normalised(after))

"""The filter that remembers lines, and forgets the oldest (LD-4)."""

from __future__ import annotations

import zlib
from array import array

import pytest

from breakloop.detect.steps.window import BYTES, CAPACITY, HALF, WORD, AgedFilter


def digests(start: int, count: int) -> list[int]:
    return [zlib.crc32(str(number).encode(), 7) for number in range(start, start + count)]


AT = 2 * HALF


def made(*, aged: bool = True) -> AgedFilter:
    """The second of three filters, as in a window."""
    return AgedFilter(array(WORD, bytes(3 * BYTES)), AT, 0, aged=aged)


def test_new_once() -> None:
    """What was sifted is known; where the new ones stand is told (LD-4)."""
    one = made()
    assert one.sift([1 << 30 | 77, 1 << 31 | 99, 1 << 30 | 77]) == [0, 1]
    assert one.sift([5, 1 << 30 | 77]) == [0]
    assert one.count == 3
    assert one.knows(1 << 30 | 77)
    assert not one.knows(12345)
    one.add(12345)
    one.add(12345)
    assert one.knows(12345)
    assert one.count == 4
    assert one.sift([]) == []


def test_it_works_on_the_words_it_was_given() -> None:
    """Nothing but its own part of the window changes, and what is there is known to another one (LD-4)."""
    words = array(WORD, bytes(3 * BYTES))
    AgedFilter(words, 2 * HALF, 0).sift(digests(0, 300))
    assert not any(words[: 2 * HALF] + words[4 * HALF :])
    other = AgedFilter(words, 2 * HALF, 300)
    assert other.sift(digests(0, 300)) == []


def test_long_sessions_find_new_lines_new() -> None:
    """It ages: after 20,000 lines new ones are still new, recent ones known, old ones forgotten (LD-4)."""
    one = made()
    one.sift(digests(0, 20_000))
    assert sum(map(one.knows, digests(19_500, 500))) == 500
    assert sum(map(one.knows, digests(50_000, 1000))) < 120
    assert sum(map(one.knows, digests(0, 1000))) < 120
    assert one.count < CAPACITY


def test_one_by_one_it_ages_as_well() -> None:
    """The younger half becomes the older one when it is full (LD-4)."""
    one, other = made(), made()
    for digest in digests(0, 3000):
        one.add(digest)
    other.sift(digests(0, 3000))
    assert one.count == other.count
    assert list(map(one.knows, digests(1500, 3000))) == list(map(other.knows, digests(1500, 3000)))


def test_the_older_half_is_known_too() -> None:
    """What is there already is not new, and is young again (LD-4)."""
    one = made()
    one.sift(digests(0, 600))
    assert one.sift(digests(300, 100)) == []
    assert one.count > 100


def test_several_at_once_and_one_that_is_learnt() -> None:
    """As one after the other, also where the younger half becomes the older one between two of them (LD-4)."""
    one, other = made(), made()
    for start in range(0, 3 * CAPACITY, 3):
        some = digests(start, 3)
        one.add(*some)
        for digest in some:
            other.add(digest)
        assert one.count == other.count
    assert [one.knows(digest) for digest in digests(0, 3 * CAPACITY)] == [
        other.knows(digest) for digest in digests(0, 3 * CAPACITY)
    ]


def test_learning_tells_what_was_new() -> None:
    """The same as asking first, and remembering what is not known (LD-4)."""
    one, other = made(), made()
    for digest in digests(0, 2 * CAPACITY) + digests(0, 50):
        known = other.knows(digest)
        if not known:
            other.add(digest)
        assert one.add_new(digest) is not known
        assert one.count == other.count


def test_stored_filters_keep_their_meaning() -> None:
    """Filters are in Redis and in the state file: another version must find in them what this one has added (S-1)."""
    words = array(WORD, bytes(BYTES))
    AgedFilter(words, 0, 0).add(5 << 26 | 2739, 63 << 26 | 4095)
    data = words.tobytes()
    stored = {
        place: data[8 * place : 8 * place + 8].hex()
        for place in range(2 * HALF)
        if any(data[8 * place : 8 * place + 8])
    }
    assert stored == {5: "0000000010040800", 63: "0002000000000080"}


def test_two_at_once_are_added_as_one_after_the_other() -> None:
    """The second is known if it was before both were added, also where they share bits, and when the filter ages; if the
    first is known, nothing is added (LD-4)."""
    one, other = made(), made()
    for first, second in zip(digests(0, 3000), [*digests(0, 20), 77, *digests(2900, 2979)], strict=True):
        known = None if other.knows(first) else other.knows(second)
        assert one.add_both(first, second) is known
        if known is not None:
            other.add(first, second)
        assert one.count == other.count
    assert made().add_both(5, 5) is False
    assert list(map(one.knows, digests(0, 9000))) == list(map(other.knows, digests(0, 9000)))


@pytest.mark.parametrize("size", [1, 39, 40, 41, 90, 700])
def test_sifting_is_asking_and_adding_one_after_the_other(size: int) -> None:
    """However many are sifted at once: what is new, what is counted, and what is known afterwards (LD-4)."""
    one, other = made(), made()
    some = digests(0, 900) + digests(300, 700) + digests(950, 20) * 2 + digests(2000, 600)
    for start in range(0, len(some), size):
        new = []
        for index, digest in enumerate(some[start : start + size]):
            if not other.knows(digest):
                new.append(index)
            other.add(digest)
        assert one.sift(some[start : start + size]) == new
        assert (one.count, one.aged) == (other.count, other.aged)
    assert one._words == other._words


def filled(count: int) -> AgedFilter:
    """A filter that has aged never, and has so many digests."""
    one = made(aged=False)
    for digest in digests(0, 2000):
        if one.count < count:
            one.add(digest)
    return one


def test_a_half_is_full_with_512_digests() -> None:
    """Then it becomes the older one, whichever way the last digest is added (LD-4)."""
    new = next(digest for digest in digests(5000, 50) if not filled(511).knows(digest))
    for add in (AgedFilter.add, AgedFilter.add_new, lambda one, digest: one.sift([digest])):
        one = filled(510)
        assert (one.count, one.aged) == (510, False)
        one = filled(511)
        assert (one.count, one.aged) == (511, False)
        add(one, new)
        assert (one.count, one.aged, one.knows(new)) == (0, True, True)
        assert not any(one._words[AT : AT + HALF])
        add(one, new)
        assert one.count == (0 if add is AgedFilter.add_new else 1)


@pytest.mark.parametrize(("before", "count", "aged"), [(509, 511, False), (510, 0, True), (511, 1, True)])
def test_two_at_once_fill_a_half(before: int, count: int, aged: bool) -> None:
    """The second one is in the half that begins then, if the first one was the last of the old half (LD-4)."""
    one = filled(before)
    first, second = [digest for digest in digests(5000, 90) if not filled(511).knows(digest)][:2]
    assert one.add_both(first, second) is False
    assert (one.count, one.aged) == (count, aged)
    assert one.knows(first)
    assert one.knows(second)


def test_two_at_once_of_which_the_second_is_known() -> None:
    """In the younger half it is not added again; in the older one it is young again (LD-4)."""
    one = filled(300)
    known, first = digests(0, 1)[0], next(digest for digest in digests(5000, 50) if not one.knows(digest))
    assert one.add_both(first, known) is True
    assert one.count == 301
    assert one.add_both(known, 12345) is None
    assert one.count == 301
    old = filled(511)
    old.add(next(digest for digest in digests(5000, 50) if not old.knows(digest)))
    other = next(digest for digest in digests(6000, 50) if not old.knows(digest))
    assert old.add_both(known, other) is None
    assert old.add_both(other, known) is True
    assert old.count == 2


def test_an_older_half_that_is_empty_is_not_looked_at() -> None:
    """Until the younger one becomes it: then what it had is known (LD-4)."""
    one = made(aged=False)
    one._words[AT + HALF : AT + 2 * HALF] = array(WORD, [2**64 - 1] * HALF)  # what must not be read
    assert not one.knows(5)
    assert one.add_new(5)
    assert one.add_both(6 << 26 | 9, 7 << 26 | 9) is False
    assert one.sift([8 << 26 | 9]) == [0]
    assert AgedFilter(one._words, AT, 0).knows(9 << 26 | 77)

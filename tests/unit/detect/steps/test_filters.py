"""SPEC LD-4: the filter that remembers lines, and forgets the oldest."""

from __future__ import annotations

import xxhash

from breakloop.detect.steps.filters import AgedFilter


def digests(start: int, count: int) -> list[tuple[int, int]]:
    return [(xxhash.xxh3_64_intdigest(str(number).encode()), 1) for number in range(start, start + count)]


def test_new_once() -> None:
    """LD-4: what was sifted is known, and its weight is counted once."""
    one = AgedFilter(512)
    assert one.sift([(1 << 40 | 77, 5), (1 << 41 | 99, 2), (1 << 40 | 77, 5)]) == 7
    assert one.sift([(1 << 40 | 77, 5)]) == 0
    assert one.knows(1 << 40 | 77)
    assert not one.knows(12345)


def test_dumped_and_loaded() -> None:
    """LD-4: packed and unpacked it knows the same."""
    one, other = AgedFilter(512), AgedFilter(512)
    one.sift(digests(0, 600))
    other.load(one.dump(), one.count)
    assert len(one.dump()) == 1024
    assert other.count == one.count
    assert other.sift(digests(0, 600)) == one.sift(digests(0, 600))


def test_long_sessions_find_new_lines_new() -> None:
    """LD-4: it ages: after 20,000 lines new ones are still new, recent ones known, old ones forgotten."""
    one = AgedFilter(1024)
    one.sift(digests(0, 20_000))
    assert sum(one.knows(digest) for digest, _ in digests(19_500, 500)) == 500
    assert sum(one.knows(digest) for digest, _ in digests(50_000, 1000)) < 120
    assert sum(one.knows(digest) for digest, _ in digests(0, 1000)) < 120

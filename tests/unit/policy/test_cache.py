"""`TwoGenerationCache` forgets the oldest and stays bounded."""

from __future__ import annotations

from breakloop.policy.cache import MemoDict, TwoGenerationCache


def test_never_holds_more_than_twice_the_limit() -> None:
    recent: TwoGenerationCache[str, int] = TwoGenerationCache(10)
    for number in range(1000):
        recent.put(str(number), number)
        assert len(recent) <= 20
    assert recent.get("999") == 999
    assert recent.get("0") is None


def test_an_entry_in_use_outlives_those_that_are_not() -> None:
    recent: TwoGenerationCache[str, int] = TwoGenerationCache(10)
    recent.put("kept", -1)
    recent.put("unused", -2)
    for number in range(100):
        recent.put(str(number), number)
        assert recent.get("kept") == -1
    assert recent.get("unused") is None


def test_long_keys_count_by_their_size() -> None:
    recent: TwoGenerationCache[bytes, int] = TwoGenerationCache(1000, size_limit=1000)
    for number in range(100):
        recent.put(b"%03d" % number + b"x" * 497, number)
    assert len(recent) <= 6


def test_what_follows_from_a_key_is_worked_out_once() -> None:
    """Short keys only, and all are forgotten when there are too many (Y-2)."""
    worked: list[str] = []

    def work_out(key: str) -> int:
        worked.append(key)
        return len(key)

    known: MemoDict[str, int] = MemoDict(work_out)
    long = "x" * (MemoDict.max_key + 1)
    assert [known[key] for key in ("a", "a", long, long)] == [1, 1, len(long), len(long)]
    assert worked == ["a", long, long]
    for number in range(MemoDict.max_entries):
        known[str(number)]
    assert 0 < len(known) <= MemoDict.max_entries

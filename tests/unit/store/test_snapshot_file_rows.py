"""Which rows of the file to tidy, and when."""

from __future__ import annotations

from breakloop.store.snapshot_file import SegmentIndex, SegmentRow

MB = 1024 * 1024


def rows(count: int, size: int = MB, expires: float = 100.0) -> list[SegmentRow]:
    return [SegmentRow(number + 1, size, expires) for number in range(count)]


def test_a_little_garbage_is_left_alone() -> None:
    """Also some times of what a save writes: what is always in use is overtaken by itself (S-1)."""
    assert SegmentIndex().overtaken(0) == ()
    for size_mb, saved in ((8, 0), (12, MB)):
        little = rows(size_mb)
        assert SegmentIndex(little).overtaken(saved) == ()
        assert SegmentIndex([*little, SegmentRow(99, 1, 100.0)]).overtaken(saved)
    assert SegmentIndex(rows(500, size=10)).overtaken(0) == ()


def test_a_round_goes_from_the_oldest_to_those_there_were() -> None:
    """More with each save than it writes, so that it comes to an end (S-1)."""
    found = SegmentIndex(rows(11))
    seen = []
    while old := found.overtaken(MB // 2):
        seen += [row.id for row in old]
        assert len(old) == 2 or seen[-1] == 11
        kept = [row for row in found.all if row.id not in seen]
        found.became([*kept, SegmentRow(found.next_id(), MB // 2, 100.0)], old)
    assert seen == list(range(1, 12))
    assert [row.id for row in found.all] == [12, 13, 14, 15, 16, 17]


def test_many_small_rows_are_put_together() -> None:
    """One save a second for a day, of one entry each (S-1)."""
    assert SegmentIndex(rows(512, size=50)).overtaken(50) == ()
    assert SegmentIndex(rows(513, size=50)).overtaken(50)
    found = SegmentIndex(rows(600, size=50))
    assert [row.id for row in found.overtaken(50)] == list(range(1, 131))


def test_a_round_goes_on_behind_the_rows_it_has_left_alone() -> None:
    """Rows that are all valid stay, and are not looked at twice (S-1)."""
    found = SegmentIndex(rows(11))
    seen: list[int] = []
    while old := found.overtaken(MB // 2):
        seen += [row.id for row in old]
        found.became(found.all, old)
    assert seen == list(range(1, 12))


def test_what_a_round_has_left_is_not_looked_at_soon() -> None:
    """A large state in use costs nothing as long as little of it changes (S-1)."""
    found = SegmentIndex(rows(40))
    while old := found.overtaken(0):
        found.became(found.all, old)
    assert found.overtaken(0) == ()
    found.became([*found.all, *(SegmentRow(41 + number, MB, 100.0) for number in range(48))], ())
    assert found.overtaken(0) == ()
    found.became([*found.all, SegmentRow(89, 1, 100.0)], ())
    assert found.overtaken(0)[0].id == 1
    assert SegmentIndex(rows(40), tidy=True).overtaken(0) == ()


def test_only_the_oldest_expire() -> None:
    """A row behind one that is alive may overrule what is in it (S-1)."""
    mixed = [SegmentRow(1, 1, 5.0), SegmentRow(2, 1, 6.0), SegmentRow(3, 1, 50.0), SegmentRow(4, 1, 7.0)]
    found = SegmentIndex(mixed)
    assert found.expired(5.5) == mixed[:1]
    assert found.expired(10.0) == mixed[:2]
    assert found.expired(60.0) == mixed
    assert found.expired(1.0) == []
    assert len(SegmentIndex(rows(300)).expired(100.0)) == 256  # a save deletes no more


def test_ids_go_up() -> None:
    """What is newer has the larger id (S-1)."""
    assert SegmentIndex().next_id() == 1
    assert SegmentIndex(rows(3)).next_id() == 4
    emptied = SegmentIndex(rows(3), tidy=True)
    emptied.became([], ())
    assert emptied.next_id() == 4

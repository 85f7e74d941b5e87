"""Deliveries on disk: nothing lost, in order, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from breakloop.alerts.delivery import AlertDatabase, Outbox, OutboxEntry
from breakloop.errors import StateError
from tests.alert_world import CANARY, NOW


@pytest.fixture
def database(tmp_path: Path) -> Iterator[AlertDatabase]:
    made = AlertDatabase(tmp_path, lambda _trouble: None)
    yield made
    made.close()


@pytest.fixture
def outbox(database: AlertDatabase) -> Outbox:
    return Outbox(database)


def entry(body: str, key: str = "", target: str = "t", *, critical: bool = True) -> OutboxEntry:
    return OutboxEntry(target, "loop.detected", body, key, critical)


def states(outbox: Outbox) -> list[str]:
    return sorted(one["state"] for one in outbox.recent(100))


def due(outbox: Outbox, now: float = NOW, busy: tuple[int, ...] = (), most: int = 10) -> list[str]:
    return [one.body for one in outbox.due("t", now, busy, most)[0]]


def test_it_is_on_disk_before_anything_is_sent(outbox: Outbox, tmp_path: Path) -> None:
    """Another process finds it, with the same id (G-4)."""
    outbox.put([entry("a")], NOW)
    (mine,), _ = outbox.due("t", NOW, (), 10)
    (theirs,), _ = Outbox(AlertDatabase(tmp_path, lambda _trouble: None)).due("t", NOW, (), 10)
    assert mine == theirs
    assert mine.id.startswith("msg_")


def test_of_one_key_only_the_oldest(outbox: Outbox) -> None:
    """In order; other keys, other targets and those without a key go by themselves (G-4)."""
    outbox.put(
        [entry("1", "k"), entry("2", "k"), entry("3", "other"), entry("4"), entry("5"), entry("6", "k", "u")], NOW
    )
    assert due(outbox) == ["1", "3", "4", "5"]
    first = outbox.due("t", NOW, (), 1)[0][0]
    assert due(outbox, busy=(first.seq,)) == ["3", "4", "5"]
    outbox.reschedule(first.seq, 500, "answered 500", NOW + 60)
    assert due(outbox) == ["3", "4", "5"]
    assert due(outbox, NOW + 60)[-1] == "1"
    outbox.delivered(first.seq, 200, NOW)
    assert due(outbox)[0] == "2"


def test_one_that_is_given_up_is_in_nobodys_way(outbox: Outbox) -> None:
    """And can be sent again, under the same id (G-4)."""
    outbox.put([entry("1", "k"), entry("2", "k")], NOW)
    first = outbox.due("t", NOW, (), 1)[0][0]
    outbox.failed(first.seq, 500, "answered 500", NOW)
    assert due(outbox) == ["2"]
    assert outbox.retry(first.id, NOW)
    assert not outbox.retry(first.id, NOW)
    found = outbox.due("t", NOW, (), 10)[0][0]
    assert (found.id, found.body, found.tries) == (first.id, "1", 0)


def test_when_the_next_is_due(outbox: Outbox) -> None:
    """Those behind another are not waited for."""
    outbox.put([entry("1", "k"), entry("2", "k")], NOW)
    first = outbox.due("t", NOW, (), 1)[0][0]
    assert outbox.due("t", NOW, (first.seq,), 4) == ([], None)
    outbox.reschedule(first.seq, 0, "x", NOW + 60)
    assert outbox.due("t", NOW, (), 4) == ([], NOW + 60)
    outbox.retry_now("t", NOW + 5)
    assert due(outbox, NOW + 5) == ["1"]


def test_all_or_nothing(outbox: Outbox) -> None:
    """What belongs to it is on disk too, or neither is (G-4)."""

    def fails(_file: object) -> None:
        raise OSError(28, "no space")

    with pytest.raises(StateError):
        outbox.put([entry("a")], NOW, fails)
    assert due(outbox) == []


def test_it_is_bounded(database: AlertDatabase) -> None:
    """The oldest of what is not critical goes first, with a count; then the oldest (G-4)."""
    outbox = Outbox(database, waiting_max=3)
    outbox.put([entry("1"), entry("2", critical=False), entry("3", critical=False), entry("4")], NOW)
    assert (due(outbox), outbox.dropped) == (["1", "3", "4"], 1)
    outbox.put([entry("5"), entry("6"), entry("x", target="u")], NOW)
    assert (due(outbox), outbox.dropped) == (["4", "5", "6"], 3)


def test_what_people_see(outbox: Outbox) -> None:
    """Never what is in it (Y-1)."""
    outbox.put([entry(CANARY), entry(CANARY), entry(CANARY)], NOW)
    one, two, _ = outbox.due("t", NOW, (), 10)[0]
    outbox.delivered(one.seq, 204, NOW + 1)
    outbox.failed(two.seq, 500, "answered 500", NOW + 1)
    waiting, failed, delivered = outbox.recent(10)
    assert CANARY not in repr((waiting, failed, delivered, one))
    assert (waiting["state"], waiting["attempts"], waiting["next_at"]) == ("waiting", 0, NOW)
    assert (failed["state"], failed["status"], failed["error"], failed["next_at"]) == (
        "failed",
        500,
        "answered 500",
        None,
    )
    assert (delivered["state"], delivered["attempts"], delivered["webhook"]) == ("delivered", 1, "t")
    assert len(outbox.recent(2)) == 2
    assert states(outbox) == ["delivered", "failed", "waiting"]


def test_what_was_delivered_is_not_kept(outbox: Outbox, database: AlertDatabase) -> None:
    """Its body goes at once, the rest of it after a week; what failed after a month (Y-1)."""
    outbox.put([entry("a"), entry("b")], NOW)
    one, two = outbox.due("t", NOW, (), 10)[0]
    outbox.delivered(one.seq, 200, NOW)
    outbox.failed(two.seq, 500, "x", NOW)
    assert database.run(lambda file: file.execute("SELECT body FROM delivery ORDER BY seq").fetchall()) == [
        ("",),
        ("b",),
    ]
    for days, kept in ((6, ["delivered", "failed"]), (8, ["failed"]), (31, [])):
        outbox.purge(NOW + days * 86_400)
        assert states(outbox) == kept


def test_giving_up_a_target(outbox: Outbox) -> None:
    outbox.put([entry("a"), entry("b", target="u")], NOW)
    assert sorted(outbox.waiting_targets()) == ["t", "u"]
    assert outbox.give_up("t", "the webhook was removed", NOW) == 1
    assert outbox.waiting_targets() == ["u"]
    assert outbox.recent(2)[1]["error"] == "the webhook was removed"

"""A bundle's source, driven by hand: a clock that moves when told, and explicit polls."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from breakloop.clock import FakeClock
from breakloop.errors import BundleError, Problem
from breakloop.model.events import BUNDLE_EXPIRED, BUNDLE_LOADED, BUNDLE_REJECTED, Event
from breakloop.policy.load import BundleBytes, LoadedBundle, load_fetched
from breakloop.policy.sources import POLL_S, FileOrigin
from breakloop.policy.watch import FROM_LAST_GOOD, FROM_SOURCE, BundleSource
from tests.deadlines import DEADLINE_S

BAD = "bundle_version: none\npolicies: []\n"


def text(version: int, *, policy: str = "a", more: str = "") -> str:
    return f"bundle_version: {version}\npolicies: [{{id: {policy}, spec: {{selector: {{pathPrefix: /}}}}}}]\n{more}"


class Bench:
    """A source with everything around it in plain sight."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.file = folder / "bundle.yaml"
        self.data = folder / "data"
        self.used: list[int] = []
        self.events: list[Event] = []
        self.loads = 0
        self.refuse: Callable[[LoadedBundle], None] = lambda _loaded: None

    def source(self, path: Path | None = None, *, keep: bool = True) -> BundleSource:
        return BundleSource(
            FileOrigin(path or self.file),
            load=self._load,
            on_bundle=self._use,
            clock=self.clock,
            publish=self.events.append,
            data_dir=self.data if keep else None,
        )

    def started(self, content: str) -> BundleSource:
        self.write(content)
        source = self.source()
        assert source.start()
        return source

    def write(self, content: str) -> None:
        """Replace the file as an editor does, so that its state changes whatever the clock's grain."""
        beside = self.file.with_suffix(".new")
        beside.write_text(content)
        beside.replace(self.file)

    def poll(self, source: BundleSource, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(POLL_S)
            source.poll()

    def told(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def _load(self, fetched: BundleBytes) -> LoadedBundle:
        self.loads += 1
        return load_fetched(fetched)

    def _use(self, loaded: LoadedBundle) -> None:
        self.refuse(loaded)
        self.used.append(loaded.bundle.bundle_version)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_start_loads(bench: Bench) -> None:
    """The first bundle is in force and told (B-3)."""
    source = bench.started(text(1))
    assert bench.used == [1]
    assert source.origin == FROM_SOURCE
    (event,) = bench.events
    assert (event.name, event.data["version"], event.data["policies"]) == (BUNDLE_LOADED, 1, 1)


def test_change_is_applied_with_one_poll(bench: Bench) -> None:
    """Applied within a second: one poll is enough, and an unchanged file is not read again (B-3)."""
    source = bench.started(text(1))
    bench.poll(source, 3)
    assert bench.loads == 1
    bench.write(text(2))
    bench.poll(source)
    assert bench.used == [1, 2]
    assert bench.told(BUNDLE_LOADED)[1].data["previous_version"] == 1


def test_same_content_is_not_news(bench: Bench) -> None:
    """A file that was only touched is neither compiled again nor told."""
    source = bench.started(text(1))
    os.utime(bench.file, (1, 1))
    bench.poll(source)
    assert (bench.loads, bench.used, len(bench.events)) == (2, [1], 1)


def test_bad_edit_keeps_the_old_one_and_is_told_once(bench: Bench) -> None:
    """One event and one count for one bad content, however often it is looked at (B-2)."""
    source = bench.started(text(1))
    written = bench.clock.now()
    bench.write(BAD)
    bench.poll(source, 2)
    (event,) = bench.told(BUNDLE_REJECTED)
    assert event.at - written <= 1.0
    assert event.data["kept_version"] == 1
    assert f"{bench.file}:1:17: bundle_version" in str(event.data["problem"])
    assert source.problems != []
    os.utime(bench.file, (1, 1))
    bench.poll(source, 5)
    assert (source.rejected, bench.used, len(bench.told(BUNDLE_REJECTED))) == (1, [1], 1)
    bench.write("bundle_version: -1\npolicies: []\n")
    bench.poll(source, 2)
    assert source.rejected == 2


def test_mended_file_is_applied_and_the_same_mistake_is_told_again(bench: Bench) -> None:
    """After a good bundle a mistake is news, also the same one; going back to what is in force clears it (B-2)."""
    source = bench.started(text(1))
    for _ in range(2):
        bench.write(BAD)
        bench.poll(source, 2)
        bench.write(text(1))
        bench.poll(source)
        assert source.problems == []
    assert source.rejected == 2
    assert len(bench.told(BUNDLE_LOADED)) == 3


def test_half_written_file_makes_no_noise(bench: Bench) -> None:
    """A save that is caught in the middle is looked at again before anything is told (B-3)."""
    source = bench.started(text(1))
    bench.write(text(2)[:20])
    bench.poll(source)
    assert bench.told(BUNDLE_REJECTED) == []
    bench.write(text(2))
    bench.poll(source)
    assert bench.used == [1, 2]
    assert (source.rejected, source.problems) == (0, [])


def test_file_that_keeps_changing_is_told_within_a_second(bench: Bench) -> None:
    """A bad file does not hide by changing all the time (B-2)."""
    source = bench.started(text(1))
    for number in range(3):
        bench.write(BAD + "#" * number)
        bench.poll(source)
    assert source.rejected == 1


def test_vanished_file_is_told_and_the_old_one_stays(bench: Bench) -> None:
    """A source that is gone is a problem, not an outage; its return is noticed (B-3)."""
    source = bench.started(text(1))
    bench.file.unlink()
    bench.poll(source, 3)
    assert "cannot be read: No such file" in str(bench.told(BUNDLE_REJECTED)[0].data["problem"])
    assert (source.rejected, bench.used) == (1, [1])
    bench.write(text(2))
    bench.poll(source)
    assert bench.used == [1, 2]


def test_versions_do_not_go_back_unless_forced(bench: Bench) -> None:
    """A lower version is refused; `reload`, which a person asks for, takes it. An equal one is not lower (B-3)."""
    source = bench.started(text(5))
    bench.write(text(4))
    bench.poll(source, 2)
    assert bench.used == [5]
    assert "4 is lower than 5" in source.problems[0].message
    bench.write(text(5, policy="b"))
    bench.poll(source)
    assert bench.used == [5, 5]
    bench.write(text(3))
    source.reload()
    assert bench.used == [5, 5, 3]
    assert source.problems == []


def test_reload_answers_each_time(bench: Bench) -> None:
    """Whoever asks for a reload is told what is wrong, also when that was told before."""
    source = bench.started(text(1))
    bench.write(BAD)
    source.reload()
    source.reload()
    assert source.rejected == 2


def test_what_cannot_be_compiled_is_refused(bench: Bench) -> None:
    """A mistake that only compiling finds is a mistake of the bundle; one of ours is told, not raised (B-2)."""
    source = bench.started(text(1))

    def refuse(_loaded: LoadedBundle) -> None:
        raise BundleError([Problem("bundle.yaml", 1, 1, "", "cannot be compiled")])

    bench.refuse = refuse
    bench.write(text(2))
    bench.poll(source, 2)
    assert source.problems[0].message == "cannot be compiled"

    def crash(_loaded: LoadedBundle) -> None:
        raise ZeroDivisionError("oh")

    bench.refuse = crash
    bench.write(text(3))
    bench.poll(source, 2)
    assert "ZeroDivisionError: oh" in source.problems[0].message
    assert bench.used == [1]
    assert source.current is not None
    assert source.current.bundle.bundle_version == 1


def test_restart_without_source_uses_the_last_good(bench: Bench) -> None:
    """No source, but a copy: it enforces; the source is watched on (B-3, E-0)."""
    bench.started(text(6))
    bench.file.unlink()
    source = bench.source()
    assert source.start()
    assert (source.origin, bench.used) == (FROM_LAST_GOOD, [6, 6])
    assert [event.name for event in bench.events[1:]] == [BUNDLE_REJECTED, BUNDLE_LOADED]
    bench.write(text(6))
    bench.poll(source)
    assert source.origin == FROM_SOURCE
    assert source.problems == []


def test_bad_edit_never_replaces_the_last_good(bench: Bench) -> None:
    """Only what was in force is kept (B-3)."""
    source = bench.started(text(6))
    bench.write(BAD)
    bench.poll(source, 2)
    again = bench.source()
    assert again.start()
    assert again.current is not None
    assert again.current.bundle.bundle_version == 6


def test_restart_may_go_back(bench: Bench) -> None:
    """A restart is a person's act: the source counts, not the copy (B-3)."""
    bench.started(text(6))
    bench.started(text(2))
    assert bench.used == [6, 2]


def test_damaged_copy_is_told_and_ignored(bench: Bench) -> None:
    """Without source and with a damaged copy there is no bundle, and both are told (B-3, E-0)."""
    bench.started(text(6))
    bench.file.unlink()
    (copy,) = (bench.data / "last-good").iterdir()
    copy.write_text("{}")
    source = bench.source()
    assert not source.start()
    assert bench.used == [6]
    problems = [str(event.data["problem"]) for event in bench.told(BUNDLE_REJECTED)]
    assert len(problems) == 2
    assert "last good copy cannot be used" in problems[1]


def test_nothing_at_all(bench: Bench) -> None:
    """No source, no copy, no data directory: nothing is in force until something valid comes (E-0)."""
    source = bench.source(keep=False)
    assert not source.start()
    assert source.rejected == 1
    bench.write(text(1))
    bench.poll(source)
    assert bench.used == [1]


def test_copy_that_cannot_be_kept_is_said(bench: Bench) -> None:
    """A full or read-only disk does not keep a bundle from being in force."""
    bench.data.write_text("a file where a directory should be")
    bench.started(text(1))
    assert str(bench.events[0].data["last_good_copy"]).startswith("not written: ")


def test_expired_bundle_goes_on_and_is_told_once(bench: Bench) -> None:
    """An expired bundle is an event, not an outage (B-5)."""
    source = bench.started(text(1, more="expires_at: 2027-01-15T08:00:10Z\n"))
    bench.poll(source)
    assert bench.told(BUNDLE_EXPIRED) == []
    bench.clock.advance(60)
    bench.poll(source, 3)
    (event,) = bench.told(BUNDLE_EXPIRED)
    assert event.data["expired_at"] == "2027-01-15T08:00:10+00:00"
    assert bench.used == [1]


def test_directory_is_watched(bench: Bench, tmp_path: Path) -> None:
    """Files of a directory that come, change, go, or are links that turn are all changes (B-3)."""
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "a.yaml").write_text(text(1))
    source = bench.source(folder)
    assert source.start()
    (folder / "b.yaml").write_text("policies: [{id: b, spec: {selector: {pathPrefix: /b/}}}]\n")
    bench.poll(source)
    assert source.current is not None
    assert len(source.current.bundle.policies) == 2
    (folder / "b.yaml").unlink()
    bench.poll(source)
    assert len(source.current.bundle.policies) == 1
    bench.write(text(2))
    (folder / "a.yaml").unlink()
    (folder / "a.yaml").symlink_to(bench.file)
    bench.poll(source)
    assert bench.used == [1, 1, 1, 2]
    bench.write(text(3))
    bench.poll(source)
    assert bench.used == [1, 1, 1, 2, 3]


@pytest.mark.parametrize("in_directory", [False, True])
def test_what_could_not_be_read_is_read_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, in_directory: bool
) -> None:
    """Too many open files pass without any change of the bundle, which must be applied all the same (B-3)."""
    source = bench.started(text(1))
    if in_directory:
        source = bench.source(bench.file.parent)
        assert source.start()
    bench.write(text(2))
    with monkeypatch.context() as patched:

        def refuse(*_args: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        patched.setattr(Path, "open", refuse)
        bench.poll(source, 6)
    assert [event.data["kept_version"] for event in bench.told(BUNDLE_REJECTED)] == [1]
    assert "Too many open files" in source.problems[0].message
    bench.poll(source)
    assert bench.used[-1] == 2
    assert source.problems == []
    loads = bench.loads
    bench.poll(source, 3)
    assert bench.loads == loads


def test_a_pipe_is_refused_and_not_read(bench: Bench) -> None:
    """A path that became a pipe must not hang whoever watches it (B-3)."""
    source = bench.started(text(1))
    bench.file.unlink()
    os.mkfifo(bench.file)
    bench.poll(source, 4)
    assert (bench.used, bench.loads) == ([1], 1)
    assert [problem.message for problem in source.problems] == ["is a pipe"]
    bench.file.unlink()
    bench.write(text(2))
    bench.poll(source, 2)
    assert bench.used == [1, 2]


def test_what_was_read_is_remembered_for_whoever_shows_it(tmp_path: Path) -> None:
    """The text in force, not the one that was refused after it; none where the last good copy is in force (X-1)."""
    bench = Bench(tmp_path)
    source = bench.started(text(1))
    for content in (BAD, text(1)):
        bench.write(content)
        source.poll()
        source.poll()
        assert source.accepted is not None
        assert source.accepted.documents[0].data == text(1).encode()
    bench.file.unlink()
    other = bench.source()
    assert other.start()
    assert (other.origin, other.accepted) == (FROM_LAST_GOOD, None)


def test_one_looks_at_a_time(tmp_path: Path) -> None:
    """Whoever changes the source holds its turn, so that nobody sees it half changed."""
    bench = Bench(tmp_path)
    source = bench.started(text(1))
    bench.write(text(2))
    watching = Thread(target=source.poll)
    with source.turn:
        watching.start()
        watching.join(0.05)
        assert watching.is_alive()
        assert bench.used[-1] == 1
    watching.join(DEADLINE_S)
    assert bench.used[-1] == 2

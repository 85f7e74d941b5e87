"""Tests of `admin.bundles`: the bundle in force, over real sources."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from breakloop.admin.bundles import BundleAdmin
from breakloop.clock import FakeClock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.errors import BundleError, Problem, StateError
from breakloop.model.events import Event
from breakloop.policy.load import BundleBytes, BundleDocument, LoadedBundle, Stamp, load_fetched
from breakloop.policy.sources import BundleOrigin, FileOrigin, PollBackoff, RedisOrigin
from breakloop.policy.watch import BundleSource
from breakloop.store.redis.bundle import NoPushedBundleError, PushDeniedError, PushedBundle, RedisBundle

GUARD = BuiltinLoopGuard(60, 5, 30)


def text(version: int, mode: str = "shadow", policy: str = "a") -> bytes:
    return f"# ours\nbundle_version: {version}\npolicies:\n- id: {policy}\n  spec: {{selector: {{}}, mode: {mode}}}  # why\n".encode()  # fmt: skip


class Bench:
    """A source and what is over it; everything in plain sight."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.data = folder / "data"
        self.file = folder / "policy.yaml"
        self.events: list[Event] = []
        self.check: Callable[[LoadedBundle], None] = lambda _loaded: None
        self.source: BundleSource | None = None

    def on_file(self, content: bytes = text(3), **more: Any) -> BundleAdmin:
        self.file.write_bytes(content)
        return self.on(FileOrigin(self.file), str(self.file), **more)

    def on(self, source: BundleOrigin, policy: str, **more: Any) -> BundleAdmin:
        self.source = BundleSource(
            source,
            load=lambda fetched: load_fetched(fetched, now=self.clock.now()),
            on_bundle=self._check,
            clock=self.clock,
            publish=self.events.append,
            data_dir=self.data,
        )
        assert self.source.start()
        return self.over(self.source, policy, **more)

    def over(self, source: BundleSource | None, policy: str = "", **more: Any) -> BundleAdmin:
        return BundleAdmin(
            source, self.clock, check=self._check, guard=GUARD, policy=policy, data_dir=self.data, **more
        )

    def _check(self, loaded: LoadedBundle) -> None:
        self.check(loaded)

    def version(self) -> int:
        assert self.source is not None
        assert self.source.current is not None
        return self.source.current.bundle.bundle_version


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_what_is_in_force_is_shown_as_it_was_read(bench: Bench) -> None:
    """What is in force is shown as it was read (X-1)."""
    bundles = bench.on_file()
    found = bundles.current()
    assert (found["version"], found["origin"], found["source"]) == (3, "source", str(bench.file))
    assert (found["text"].encode(), found["problems"], found["loaded_at"]) == (text(3), [], bench.clock.now())
    bench.file.write_bytes(b"nonsense")
    assert bench.source is not None
    bench.source.reload()
    found = bundles.current()
    assert found["text"].encode() == text(3)
    assert "must be a map" in found["problems"][0]["message"]


def test_policies_are_in_words_with_what_holds_otherwise(bench: Bench) -> None:
    own, builtin = bench.on_file().policies()
    assert (own["id"], own["mode"], own["selector"]) == ("a", "shadow", "every request")
    assert builtin["id"] == "builtin"
    assert "more than 5 requests" in builtin["loop_detection"]
    off = bench.on_file(text(4) + b"defaults: {loop_detection: off}\n").policies()[-1]
    assert (off["id"], off["loop_detection"]) == ("defaults", "off")


def test_another_is_checked_and_compared(bench: Bench) -> None:
    bundles = bench.on_file()
    assert bundles.validate(text(4)) == []
    (problem,) = bundles.validate(b"bundle_version: 1\npolicies: [{id: a}]\n")
    assert (problem["file"], problem["line"], problem["path"]) == ("policy.yaml", 2, "policies[0].spec")
    assert bundles.diff(text(3)) == ""
    assert bundles.diff(text(4)).splitlines()[:2] == ["--- in force", "+++ yours"]
    assert "+bundle_version: 4\n" in bundles.diff(text(4))


def test_what_compiles_not_is_not_valid(bench: Bench) -> None:
    bundles = bench.on_file()

    def refuse(loaded: LoadedBundle) -> None:
        raise BundleError([Problem("policy.yaml", 1, 1, "", "cannot be compiled")])

    bench.check = refuse
    assert bundles.validate(text(4))[0]["message"] == "cannot be compiled"
    with pytest.raises(BundleError):
        bundles.apply(text(4), force=False)
    assert bench.file.read_bytes() == text(3)


def test_a_bundle_is_applied_by_writing_its_file(bench: Bench) -> None:
    """In force at once, and after a restart (X-1)."""
    bundles = bench.on_file()
    answer = bundles.apply(text(4), force=False, by="ada")
    assert (answer["version"], bench.version()) == (4, 4)
    assert bench.file.read_bytes() == text(4)
    assert [event.data["version"] for event in bench.events] == [3, 4]
    assert [(one["version"], one["by"]) for one in bundles.earlier()] == [(3, "")]


def test_nobody_sees_the_file_before_it_is_taken(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the watcher would refuse a lower version that is just being forced (B-3)."""
    bundles, waited = bench.on_file(), list[bool]()

    def written(file: Path, content: bytes, mode: int | None = None) -> None:
        assert bench.source is not None
        file.write_bytes(content)
        if file != bench.file:
            return  # the copy in the history
        watcher = Thread(target=bench.source.poll, daemon=True)
        watcher.start()
        watcher.join(0.05)
        waited.append(watcher.is_alive())

    monkeypatch.setattr("breakloop.admin.bundles.write_whole", written)
    assert bundles.apply(text(2), force=True)["version"] == 2
    assert waited == [True]
    assert [event.name for event in bench.events] == ["bundle.loaded", "bundle.loaded"]


def test_a_lower_version_has_to_be_forced(bench: Bench) -> None:
    """A lower version has to be forced (B-3)."""
    bundles = bench.on_file()
    with pytest.raises(BundleError, match="2 is lower than 3, the active version"):
        bundles.apply(text(2), force=False)
    assert bench.file.read_bytes() == text(3)
    assert bundles.apply(text(2), force=True)["version"] == 2


def test_an_earlier_one_comes_back_as_it_was(bench: Bench) -> None:
    """An earlier one comes back as it was: rollback (X-1)."""
    bundles = bench.on_file()
    bench.clock.advance(10)
    bundles.apply(text(4, policy="b"), force=False, by="ada")
    bench.clock.advance(10)
    bundles.apply(text(5, policy="c"), force=False, by="grace")
    assert [(one["version"], one["by"]) for one in bundles.earlier()] == [(4, "ada"), (3, "")]
    assert bundles.rollback(3, by="ada")["text"].encode() == text(3)
    assert bench.version() == 3
    assert [one["version"] for one in bundles.earlier()] == [5, 4]
    with pytest.raises(BundleError, match=re.escape("version 9 is not available (available versions: 4, 5)")):
        bundles.rollback(9)


def test_a_policy_is_promoted_in_the_file(bench: Bench) -> None:
    """The mode, the version, and nothing else (X-2)."""
    bundles = bench.on_file()
    assert bundles.promote("a", by="ada")["version"] == 4
    assert bench.file.read_bytes() == text(4, "enforce")
    assert bundles.policies()[0]["mode"] == "enforce"
    with pytest.raises(BundleError, match="is already enforced"):
        bundles.promote("a")


def test_a_file_that_cannot_be_written_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bundles = bench.on_file()

    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("breakloop.admin.bundles.write_whole", read_only)
    with pytest.raises(BundleError, match="cannot be written: Read-only file system"):
        bundles.apply(text(4), force=False)
    assert bench.version() == 3


def test_what_is_written_and_not_taken_is_told(bench: Bench) -> None:
    bundles = bench.on_file()
    seen: list[LoadedBundle] = []

    def second_time(loaded: LoadedBundle) -> None:
        seen.append(loaded)
        if len(seen) > 1:
            raise BundleError([Problem("policy.yaml", 1, 1, "", "out of memory")])

    bench.check = second_time
    with pytest.raises(BundleError, match="out of memory"):
        bundles.apply(text(4), force=False)
    assert bench.version() == 3
    assert bench.file.read_bytes() == text(3)


def test_a_directory_is_shown_but_not_written(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "a.yaml").write_bytes(text(3))
    bundles = bench.on(FileOrigin(folder), str(folder))
    assert '"bundle_version": 3' in bundles.current()["text"]
    with pytest.raises(BundleError, match=r"is a directory.*edit its files"):
        bundles.apply(text(4), force=False)
    with pytest.raises(BundleError, match=r"is a directory"):
        bundles.promote("a")


class Elsewhere:
    """A source that is no file."""

    name = key = "https://example.com/policy.yaml"
    whole = True

    def fetch(self, known: Stamp | None) -> BundleBytes | None:
        return None if known else BundleBytes((BundleDocument(self.name, text(3)),), ("1",))

    def wait_s(self, failures: int) -> float:
        return 5.0


def test_a_url_belongs_to_somebody_else(bench: Bench) -> None:
    bundles = bench.on(Elsewhere(), Elsewhere.name)
    with pytest.raises(BundleError, match="publish the new bundle at that URL"):
        bundles.apply(text(4), force=False)


def test_signed_bundles_are_signed_elsewhere(bench: Bench) -> None:
    """Nothing unsigned gets in this way (B-4)."""
    bundles = bench.on_file(signed=True)
    with pytest.raises(BundleError, match="only signed bundles are accepted"):
        bundles.apply(text(4), force=True)
    assert bench.file.read_bytes() == text(3)


def test_without_a_source_the_builtin_protection_is_shown(bench: Bench) -> None:
    """Without a source the builtin protection is shown (B-6)."""
    bundles = bench.over(None)
    assert (bundles.current()["digest"], bundles.current()["text"]) == ("builtin", "")
    assert [one["id"] for one in bundles.policies()] == ["builtin"]
    assert bundles.earlier() == []
    assert bundles.diff(b"a\n").endswith("+a\n")
    with pytest.raises(BundleError, match="start with --policy FILE"):
        bundles.apply(text(4), force=False)


def test_the_last_good_copy_cannot_be_promoted(bench: Bench) -> None:
    """With its source away there is nothing to write to (B-3)."""
    bench.on_file()
    bench.file.unlink()
    bundles = bench.on(FileOrigin(bench.file), str(bench.file))
    assert bundles.current()["origin"] == "last good copy"
    assert '"bundle_version": 3' in bundles.current()["text"]
    with pytest.raises(BundleError, match="cannot be read now"):
        bundles.promote("a")


class OneShelf(RedisBundle):
    """A Redis for one bundle."""

    name = "redis://127.0.0.1:6379/"

    def __init__(self) -> None:
        self.held: PushedBundle | None = None
        self.closed = 0
        self.error: StateError | None = None

    def fetch(self, known: tuple[object, ...] | None) -> PushedBundle | None:
        if self.held is None:
            raise NoPushedBundleError
        return None if known == self.held.stamp else self.held

    def push(self, bundle: PushedBundle) -> bool:
        if self.error is not None:
            raise self.error
        self.held = bundle
        return True

    def close(self) -> None:
        self.closed += 1


def test_redis_is_pushed_to(bench: Bench) -> None:
    """Pushed once, applied by all (B-3)."""
    shelf = OneShelf()
    shelf.push(_shelved())
    bundles = bench.on(RedisOrigin(shelf, PollBackoff(0.5, 5, lambda: 0.0)), "redis", shelf=lambda: shelf)
    assert bundles.promote("a", by="ada")["version"] == 4
    assert shelf.held is not None
    assert (shelf.held.version, shelf.held.pushed_by, shelf.held.forced) == (4, "ada", False)
    assert shelf.held.data == text(4, "enforce")
    assert bundles.rollback(3, by="grace")["version"] == 3
    assert (shelf.held.version, shelf.held.forced, shelf.closed) == (3, True, 2)


def test_a_quicker_push_is_told(bench: Bench) -> None:
    shelf = OneShelf()
    shelf.push(_shelved())
    bundles = bench.on(RedisOrigin(shelf, PollBackoff(0.5, 5, lambda: 0.0)), "redis", shelf=lambda: shelf)
    shelf.error = PushDeniedError("version 9 is there")
    with pytest.raises(BundleError, match="version 9 is there"):
        bundles.apply(text(4), force=False)
    shelf.error = StateError("gone")
    with pytest.raises(StateError, match="gone"):
        bundles.apply(text(4), force=False)
    assert (bench.version(), shelf.closed) == (3, 2)


def _shelved() -> PushedBundle:
    from hashlib import sha256

    return PushedBundle(3, sha256(text(3)).hexdigest(), text(3), pushed_at="1")

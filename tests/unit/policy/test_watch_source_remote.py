"""What is done with bundles that come from elsewhere: failures that pass, forced versions, signatures. The sources here
are played; the real ones have their own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakloop.clock import FakeClock
from breakloop.errors import Problem, UnreadableError
from breakloop.model.events import BUNDLE_EXPIRED, BUNDLE_LOADED, BUNDLE_REJECTED, Event
from breakloop.policy.load import BundleBytes, BundleDocument, LoadedBundle, Stamp, load_fetched
from breakloop.policy.signing import Signer, Verifier
from breakloop.policy.sources import FileOrigin
from breakloop.policy.watch import FROM_LAST_GOOD, FROM_SOURCE, BundleSource

SECRET = b"a shared secret of some length"


def text(version: int, more: str = "") -> bytes:
    return f"bundle_version: {version}\npolicies: []\n{more}".encode()


class Played:
    """A source that holds what it is told to, or fails."""

    name = "https://policy.example/p.yaml"
    key = "https://policy.example/p.yaml?x=1"
    whole = True

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.signature = ""
        self.forced = False
        self.asked: list[Stamp | None] = []

    def fetch(self, known: Stamp | None) -> BundleBytes | None:
        self.asked.append(known)
        if self.data is None:
            raise UnreadableError([Problem(self.name, 1, 1, "", "cannot be fetched: Connection refused")])
        stamp = (self.data,)
        if known == stamp:
            return None
        return BundleBytes((BundleDocument(self.name, self.data),), stamp, self.signature, forced=self.forced)

    def wait_s(self, failures: int) -> float:
        return 5.0 * 2.0**failures


class Bench:
    """A source with everything around it in plain sight."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.data = folder / "data"
        self.played = Played()
        self.used: list[int] = []
        self.events: list[Event] = []

    def source(self, verifier: Verifier | None = None) -> BundleSource:
        return BundleSource(
            self.played,
            load=load_fetched,
            on_bundle=self._use,
            clock=self.clock,
            publish=self.events.append,
            data_dir=self.data,
            verifier=verifier,
        )

    def started(self, data: bytes, verifier: Verifier | None = None, signature: str = "") -> BundleSource:
        self.played.data, self.played.signature = data, signature
        source = self.source(verifier)
        assert source.start()
        return source

    def poll(self, source: BundleSource, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(source.wait_s)
            source.poll()

    def told(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def _use(self, loaded: LoadedBundle) -> None:
        self.used.append(loaded.bundle.bundle_version)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def signed(data: bytes, secret: bytes = SECRET) -> str:
    return Signer(secret).sign(BundleBytes((BundleDocument("x", data),)))


def test_what_is_known_is_asked_for_by_its_stamp(bench: Bench) -> None:
    """Nothing new changes and tells nothing (B-3)."""
    source = bench.started(text(1))
    bench.poll(source, 2)
    assert bench.played.asked == [None, (text(1),), (text(1),)]
    assert (bench.used, len(bench.events)) == ([1], 1)
    bench.played.data = text(2)
    bench.poll(source)
    assert bench.used == [1, 2]
    assert bench.told(BUNDLE_LOADED)[1].data["source"] == "https://policy.example/p.yaml"


def test_a_bad_bundle_is_told_at_once(bench: Bench) -> None:
    """It is never half-written; it is told once, and the old one stays (B-2)."""
    source = bench.started(text(1))
    bench.played.data = b"bundle_version: none\n"
    bench.poll(source)
    assert (source.rejected, bench.used) == (1, [1])
    bench.poll(source, 3)
    assert source.rejected == 1
    assert bench.played.asked[-1] == (b"bundle_version: none\n",)


def test_a_failure_that_passes_makes_no_noise(bench: Bench) -> None:
    """One failed look is tried again before anything is told (B-3)."""
    source = bench.started(text(1))
    bench.played.data = None
    bench.poll(source)
    assert (bench.told(BUNDLE_REJECTED), source.problems) == ([], [])
    bench.played.data = text(1)
    bench.poll(source)
    assert (len(bench.events), bench.used) == (1, [1])


def test_a_failure_that_stays_is_told_once_and_its_end_too(bench: Bench) -> None:
    """The last good one stays; looks become rarer; afterwards everything is as before (B-3)."""
    source = bench.started(text(1))
    bench.played.data = None
    bench.poll(source, 4)
    (event,) = bench.told(BUNDLE_REJECTED)
    assert "Connection refused" in str(event.data["problem"])
    assert event.data["kept_version"] == 1
    assert (source.wait_s, bench.used) == (80, [1])
    bench.played.data = text(1)
    bench.poll(source)
    assert bench.played.asked[-1] is None, "after a failure it is asked for whole: what came meanwhile is not known"
    assert (source.problems, source.wait_s, source.origin) == ([], 5, FROM_SOURCE)


def test_restart_with_the_source_unreachable(bench: Bench) -> None:
    """The last good copy enforces, until the source is back (B-3, E-0)."""
    bench.started(text(6))
    bench.played.data = None
    source = bench.source()
    assert source.start()
    assert (source.origin, bench.used) == (FROM_LAST_GOOD, [6, 6])
    assert source.rejected == 1
    bench.played.data = text(7)
    bench.poll(source)
    assert (source.origin, bench.used) == (FROM_SOURCE, [6, 6, 7])


def test_reload_asks_for_it_whole(bench: Bench) -> None:
    """SIGHUP takes a lower version, and answers also when nothing changed (B-3)."""
    source = bench.started(text(5))
    bench.played.data = text(4)
    bench.poll(source)
    assert source.rejected == 1
    source.reload()
    assert bench.used == [5, 4]
    assert bench.played.asked[-1] is None
    bench.played.data = None
    source.reload()
    assert source.rejected == 2


def test_a_forced_version_may_be_lower(bench: Bench) -> None:
    """Whoever pushed it asked for it; where bundles are signed that is not believed, because it is not signed (B-3)."""
    source = bench.started(text(5))
    bench.played.data, bench.played.forced = text(4), True
    bench.poll(source)
    assert bench.used == [5, 4]
    strict = bench.started(text(9), Verifier(secret=SECRET), signed(text(9)))
    bench.played.data, bench.played.signature = text(8), signed(text(8))
    bench.poll(strict)
    assert bench.used[-1] == 9
    assert "8 is lower than 9" in strict.problems[0].message


def test_expiry_is_told_for_every_source(bench: Bench) -> None:
    """An expired bundle keeps enforcing and raises an event, also while its source is gone (B-5)."""
    source = bench.started(text(1, "expires_at: 2027-01-15T08:00:10Z\n"))
    bench.played.data = None
    bench.clock.advance(60)
    bench.poll(source, 3)
    assert len(bench.told(BUNDLE_EXPIRED)) == 1
    assert bench.used == [1]
    assert source.current is not None


def test_only_signed_bundles_are_taken(bench: Bench) -> None:
    """Unsigned and wrongly signed ones are refused and not even looked into; the last good one stays (B-4)."""
    verifier = Verifier(secret=SECRET)
    source = bench.started(text(1), verifier, signed(text(1)))
    bench.played.data, bench.played.signature = b"\xff not even text", ""
    bench.poll(source, 2)
    assert "is not signed" in source.problems[0].message
    bench.played.data, bench.played.signature = text(2), signed(text(2), b"the secret of somebody else")
    bench.poll(source, 2)
    assert "has an invalid signature" in source.problems[0].message
    assert (bench.used, source.rejected) == ([1], 2)
    assert SECRET.decode() not in str(bench.events)


def test_a_signature_may_follow_its_bundle(bench: Bench) -> None:
    """Two things cannot be put at once: a bundle without its signature is looked at again, at the usual pace (B-4)."""
    source = bench.started(text(1), Verifier(secret=SECRET), signed(text(1)))
    bench.played.data = text(2)
    bench.poll(source)
    assert (source.rejected, source.wait_s, bench.used) == (0, 5, [1])
    bench.played.signature = signed(text(2))
    bench.poll(source)
    assert (bench.used, source.problems, source.rejected) == ([1, 2], [], 0)
    bench.played.data = text(3)
    bench.poll(source, 5)
    assert source.rejected == 1
    bench.played.signature = signed(text(3))
    bench.poll(source)
    assert (bench.used, source.problems) == ([1, 2, 3], [])


def test_an_unsigned_start_has_no_bundle(bench: Bench) -> None:
    """With a key, nothing unsigned is in force, not even at first; nor out of an old unsigned copy (B-4, E-0)."""
    bench.started(text(1))
    verified = bench.source(Verifier(secret=SECRET))
    assert not verified.start()
    problems = [str(event.data["problem"]) for event in bench.told(BUNDLE_REJECTED)]
    assert "is not signed" in problems[0]
    assert "the last good copy cannot be used: it is not signed" in problems[1]
    assert bench.used == [1]


def test_the_last_good_copy_is_verified(bench: Bench) -> None:
    """A signed copy enforces without its source; not with another key, which did not sign it (B-4)."""
    bench.started(text(1), Verifier(secret=SECRET), signed(text(1)))
    bench.played.data = None
    again = bench.source(Verifier(secret=SECRET))
    assert again.start()
    assert again.origin == FROM_LAST_GOOD
    other = bench.source(Verifier(secret=b"the secret of somebody else"))
    assert not other.start()


def test_a_signed_file(tmp_path: Path) -> None:
    """File and signature beside it; a changed file is refused until it is signed again (B-4)."""
    file, used = tmp_path / "p.yaml", []
    file.write_bytes(text(1))
    (tmp_path / "p.yaml.sig").write_text(signed(text(1)))
    source = BundleSource(
        FileOrigin(file, signed=True),
        load=load_fetched,
        on_bundle=lambda loaded: used.append(loaded.bundle.bundle_version),
        clock=FakeClock(),
        publish=lambda _event: None,
        verifier=Verifier(secret=SECRET),
    )
    assert source.start()
    file.write_bytes(text(2, "# longer\n"))
    source.poll()
    source.poll()
    assert (used, "has an invalid signature" in source.problems[0].message) == ([1], True)
    (tmp_path / "p.yaml.sig").write_text(signed(text(2, "# longer\n")))
    source.poll()
    assert (used, source.problems) == ([1, 2], [])

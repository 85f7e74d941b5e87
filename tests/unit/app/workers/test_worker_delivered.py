"""A worker's bundles: delivered, put in force, acknowledged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from breakloop.app.workers.ipc import BundleApplied, BundleText
from breakloop.app.workers.worker import PushedBundleSource, bundle_text
from breakloop.errors import Problem
from breakloop.policy.load import LoadedBundle, load_bundle, load_text

GOOD = Path(__file__).resolve().parent.parent.parent.parent / "policies" / "good"
TEXT = b"bundle_version: 4\npolicies: [{id: a, spec: {selector: {pathPrefix: /}}}]\n"


class Worker:
    def __init__(self) -> None:
        self.used: list[LoadedBundle] = []
        self.told: list[BundleApplied] = []
        self.source = PushedBundleSource(self.told.append)
        self.source.use = self.used.append

    def gets(self, number: int, loaded: LoadedBundle | None, *problems: Problem, origin: str = "source") -> None:
        digest, text = (loaded.digest, bundle_text(loaded)) if loaded else ("", None)
        self.source.put(BundleText(number, "b.yaml", origin, len(problems), list(problems), digest, text))
        self.source.reload()


def test_a_bundle_is_put_in_force_and_acknowledged() -> None:
    """With the digest it has where it was read, and without notes, which were told there (S-5, B-3)."""
    worker, loaded = Worker(), replace(load_text(TEXT, "b.yaml"), digest="of the YAML")
    worker.gets(1, loaded)
    assert [(one.bundle, one.digest, one.notes) for one in worker.used] == [(loaded.bundle, "of the YAML", [])]
    assert worker.told == [BundleApplied(1)]
    source = worker.source
    assert (source.name, source.origin, source.rejected, source.problems) == ("b.yaml", "source", 0, [])
    assert source.current is not None
    assert source.start()


def test_the_same_is_not_put_in_force_twice() -> None:
    """A new control process delivers what is there already; its origin may be another (S-5)."""
    worker, loaded = Worker(), load_text(TEXT, "b.yaml")
    worker.gets(1, loaded, origin="last good copy")
    worker.gets(2, loaded)
    assert len(worker.used) == 1
    assert (worker.source.origin, worker.told[-1]) == ("source", BundleApplied(2))


def test_without_a_bundle_the_old_one_stays() -> None:
    """Nothing is in force as long as there was none; afterwards nothing takes it away (E-0)."""
    problem = Problem("b.yaml", 1, 1, "", "is wrong")
    worker = Worker()
    worker.source.put(BundleText(1, "b.yaml", "", 1, [problem]))
    assert not worker.source.start()
    assert worker.source.problems == [problem]
    worker.gets(2, load_text(TEXT, "b.yaml"))
    worker.gets(3, None, problem)
    assert worker.source.current is not None
    assert (worker.source.rejected, len(worker.used)) == (1, 1)


def test_one_that_cannot_be_used_changes_nothing() -> None:
    """The old one stays in force, and why is acknowledged (S-5)."""
    worker, loaded = Worker(), load_text(TEXT, "b.yaml")
    worker.gets(1, loaded)

    def fail(_loaded: LoadedBundle) -> None:
        raise ValueError("no room")

    worker.source.use = fail
    worker.gets(2, load_text(TEXT.replace(b"4", b"5"), "b.yaml"))
    assert worker.told[-1] == BundleApplied(2, "ValueError: no room")
    assert worker.source.current is not None
    assert worker.source.current.bundle.bundle_version == 4


def test_nothing_delivered_nothing_done() -> None:
    """It is not looked for (S-5)."""
    worker = Worker()
    worker.source.poll()
    assert worker.told == []
    assert worker.source.wait_s > 60


@pytest.mark.parametrize("path", sorted(GOOD.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_good_bundle_arrives_as_it_is(path: Path) -> None:
    """What workers read is what was validated (S-5)."""
    loaded = load_bundle(path)
    assert load_text(bundle_text(loaded), "b.json").bundle == loaded.bundle

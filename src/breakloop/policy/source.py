"""A bundle's source: a file or directory that is looked at again and again (SPEC B-2, B-3, B-5, E-0).

A change is loaded, compiled (`on_bundle`) and in force within a second; what cannot be used changes nothing and is
told once. There is no thread, timer or sleep in here: whoever runs it calls `poll` every `POLL_S` seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from breakloop.clock import Clock
from breakloop.errors import BundleError, Problem, UnreadableError
from breakloop.model.events import BUNDLE_EXPIRED, BUNDLE_LOADED, BUNDLE_REJECTED, Event, Publish
from breakloop.policy.last_good import LastGood
from breakloop.policy.load import LoadedBundle

POLL_S: Final = 0.5
_PATIENCE_S: Final = 0.9  # so long may a file that keeps changing be unreadable before that is told

FROM_SOURCE: Final = "source"
FROM_LAST_GOOD: Final = "last good copy"

Stamp = tuple[object, ...]  # what changes when a file or directory does


class BundleSource:
    """Keeps the newest valid bundle of one path in force."""

    __slots__ = (
        "_clock",
        "_expiry_told",
        "_failing",
        "_last_good",
        "_load",
        "_on_bundle",
        "_publish",
        "_settled",
        "_told",
        "_unread",
        "current",
        "loaded",
        "loaded_at",
        "origin",
        "path",
        "problems",
        "rejected",
    )

    def __init__(
        self,
        path: Path,
        *,
        load: Callable[[Path], LoadedBundle],
        on_bundle: Callable[[LoadedBundle], None],
        clock: Clock,
        publish: Publish,
        data_dir: Path | None = None,
    ) -> None:
        self.path = path
        self._load = load
        self._on_bundle = on_bundle
        self._clock = clock
        self._publish = publish
        self._last_good = LastGood(data_dir, path) if data_dir is not None else None
        self._settled: Stamp | None = None  # this state of the path has been dealt with
        self._failing: tuple[Stamp, float] | None = None  # this state cannot be used, since then; not told yet
        self._unread = False  # the last attempt could not even read it
        self._told = ""  # the problem that was told last
        self._expiry_told = ""
        self.current: LoadedBundle | None = None
        self.origin = ""
        self.loaded_at = 0.0
        self.problems: list[Problem] = []  # with what the path holds now; the bundle in force is another then
        self.loaded = 0
        self.rejected = 0

    def start(self) -> bool:
        """Load for the first time, from the last good copy if need be; tells whether a bundle is in force."""
        stamp = _stamp(self.path)
        problems = self._attempt(self._load, FROM_SOURCE, force=True)
        self._settle(stamp)
        if problems:
            self._reject(problems)
            if self._last_good is not None:
                copy = self._last_good
                problems = self._attempt(lambda _path: _found(copy.read()), FROM_LAST_GOOD, force=True)
                if problems and problems[0].file == str(copy.path):
                    self._tell_rejected(problems)
        self._check_expiry()
        return self.current is not None

    def poll(self) -> None:
        """Look whether the path has changed, and act on it."""
        stamp = _stamp(self.path)
        if stamp != self._settled:
            problems = self._attempt(self._load, FROM_SOURCE, force=False)
            if not problems or self._is_final(stamp):
                self._settle(stamp)
                if problems:
                    self._reject(problems)
        self._check_expiry()

    def reload(self) -> None:
        """Load now, whether or not anything changed; a lower version is accepted, because somebody asked for it."""
        stamp = _stamp(self.path)
        problems = self._attempt(self._load, FROM_SOURCE, force=True)
        self._settle(stamp)
        if problems:
            self._told = ""  # whoever asks gets an answer, also the same one again
            self._reject(problems)

    def _settle(self, stamp: Stamp) -> None:
        """This state of the path is dealt with, unless it could not be read: that may pass without any trace of it."""
        self._settled = None if self._unread else stamp
        self._failing = None

    def _attempt(self, load: Callable[[Path], LoadedBundle], origin: str, *, force: bool) -> list[Problem]:
        """Load, compile and put in force; returns what is wrong instead."""
        self._unread = False
        if self.path.is_fifo():  # reading it would wait for a writer, for ever
            return [Problem(str(self.path), 1, 1, "", "is a pipe", "a bundle that is watched is a file or a directory")]
        try:
            loaded = load(self.path)
            before = self.current
            if before is not None and loaded.digest == before.digest and not self.problems and not force:
                return []
            if before is not None and not force:
                self._refuse_lower(loaded, before)
            self._on_bundle(loaded)
        except BundleError as error:
            self._unread = isinstance(error, UnreadableError)
            return error.problems
        except OSError as error:
            self._unread = True
            return [Problem(str(self.path), 1, 1, "", f"cannot be read: {error.strerror}")]
        except Exception as error:  # noqa: BLE001 - the edge: no mistake of ours in loading may take traffic down
            return [Problem(str(self.path), 1, 1, "", f"cannot be used: {type(error).__name__}: {error}")]
        self._accepted(loaded, origin)
        return []

    def _refuse_lower(self, loaded: LoadedBundle, before: LoadedBundle) -> None:
        new, old = loaded.bundle.bundle_version, before.bundle.bundle_version
        if new < old:
            message = f"{new} is lower than {old}, which is in force"
            hint = "raise it; to go back on purpose, send SIGHUP or restart"
            raise BundleError([Problem(str(self.path), 1, 1, "bundle_version", message, hint)])

    def _accepted(self, loaded: LoadedBundle, origin: str) -> None:
        before = self.current
        self.current = loaded
        self.origin = origin
        self.loaded_at = self._clock.now()
        self.loaded += 1
        data: dict[str, object] = {
            "source": str(self.path),
            "from": origin,
            "version": loaded.bundle.bundle_version,
            "digest": loaded.digest,
            "policies": len(loaded.bundle.policies),
        }
        if before is not None:
            data["previous_version"] = before.bundle.bundle_version
        if origin == FROM_SOURCE:
            self.problems = []
            self._told = ""
            why = self._last_good.write(loaded) if self._last_good is not None else ""
            if why:
                data["last_good_copy"] = f"not written: {why}"
        self._publish(Event(BUNDLE_LOADED, self.loaded_at, data))

    def _is_final(self, stamp: Stamp) -> bool:
        """A save that is half done cannot be read either: only what stays as it is, or takes too long, is told."""
        now = self._clock.now()
        if self._failing is None:
            self._failing = (stamp, now)
            return False
        before, since = self._failing
        self._failing = (stamp, since)
        return stamp == before or now - since >= _PATIENCE_S

    def _reject(self, problems: list[Problem]) -> None:
        self.problems = problems
        what = "\n".join(str(problem) for problem in problems)
        if what != self._told:
            self._told = what
            self._tell_rejected(problems)

    def _tell_rejected(self, problems: list[Problem]) -> None:
        self.rejected += 1
        kept = self.current.bundle.bundle_version if self.current else 0
        data = {
            "source": problems[0].file,
            "problem": str(problems[0]),
            "problems": len(problems),
            "kept_version": kept,
        }
        self._publish(Event(BUNDLE_REJECTED, self._clock.now(), data))

    def _check_expiry(self) -> None:
        if self.current is None or self.current.digest == self._expiry_told:
            return
        expires = self.current.bundle.expires_at
        now = self._clock.now()
        if expires is not None and expires.timestamp() <= now:
            self._expiry_told = self.current.digest
            data = {"version": self.current.bundle.bundle_version, "expired_at": expires.isoformat()}
            self._publish(Event(BUNDLE_EXPIRED, now, data))


def _found(copy: LoadedBundle | None) -> LoadedBundle:
    if copy is None:
        raise BundleError([Problem("", 1, 1, "", "there is no last good copy")])
    return copy


def _stamp(path: Path) -> Stamp:
    """What can be seen of a path without reading it. Links are followed: Kubernetes changes a ConfigMap by a link."""
    try:
        if not path.is_dir():
            return _file_stamp(path)
        names = sorted(entry.name for entry in os.scandir(path) if not entry.name.startswith("."))
    except OSError as error:
        return ("", error.errno)
    return tuple((name, _file_stamp(path / name)) for name in names)


def _file_stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError as error:
        return ("", error.errno)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

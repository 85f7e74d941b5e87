"""Watches the source of a bundle. A new bundle is verified, loaded, compiled (`on_bundle`), put in force, saved as the
last good copy and published as an event. A bundle that cannot be used changes nothing and is reported once.

There is no thread, timer or sleep in this module: the runtime calls `poll` every `wait_s` seconds. The last good
copy lets a process that restarts without its source still enforce the bundle. It is one file per source, written
atomically and checked when it is read. For a signed bundle, the signed bytes are saved as well and verified again.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Event as ThreadEvent
from threading import RLock
from typing import Any, Final, Protocol

from breakloop.clock import Clock
from breakloop.errors import BundleError, Problem, UnreadableError
from breakloop.model.events import BUNDLE_EXPIRED, BUNDLE_LOADED, BUNDLE_REJECTED, Event, Publish
from breakloop.policy.load import BundleBytes, BundleDocument, LoadedBundle, Stamp, canonical, load_fetched, load_text
from breakloop.policy.signing import SignatureError, Verifier
from breakloop.policy.sources import BundleOrigin
from breakloop.store.data_dir import write_whole

_FORMAT = 1


class LastGood:
    """The last good copy of one source's bundle. `source` is a path, or the key of another kind of source."""

    def __init__(self, data_dir: Path, source: Path | str) -> None:
        self._source = str(source.absolute()) if isinstance(source, Path) else source
        name = sha256(self._source.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        self.path = data_dir / "last-good" / f"{name}.json"

    def write(self, loaded: LoadedBundle, fetched: BundleBytes | None = None) -> str:
        """Save a bundle with its signed bytes. Returns why this failed, or an empty string."""
        bundle = loaded.bundle.model_dump(mode="json", by_alias=True, exclude_unset=True)
        text = canonical(bundle)
        try:
            if load_text(text.encode(), "last-good.json").bundle != loaded.bundle:
                return "it differs when it is read back"
        except BundleError as error:
            return f"it cannot be read back: {error.problems[0].message}"
        copy: dict[str, Any] = {
            "format": _FORMAT,
            "source": self._source,
            "version": loaded.bundle.bundle_version,
            "digest": loaded.digest,
            "checksum": sha256(text.encode()).hexdigest(),
            "bundle": bundle,
        }
        if fetched is not None and fetched.signature:
            copy["signed"] = _signed(fetched)
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.path, json.dumps(copy, indent=1).encode())
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # so that the new file is there even after a power failure
            finally:
                os.close(folder)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def read(self, verifier: Verifier | None = None) -> LoadedBundle | None:
        """Return the copy, or None if there is none. Raises `BundleError` if it is damaged or not signed."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._damaged(error.strerror or str(error)) from None
        try:
            copy = json.loads(raw)
            text = canonical(copy["bundle"])
            intact = copy["format"] == _FORMAT and copy["checksum"] == sha256(text.encode()).hexdigest()
            intact = intact and isinstance(copy["digest"], str) and copy["source"] == self._source
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._damaged("it was changed after it was written") from None
        if not intact:
            raise self._damaged("its checksum does not match")
        loaded = load_text(text.encode(), str(self.path))
        if verifier is not None:
            self._verify(verifier, copy.get("signed"), loaded)
        return replace(loaded, digest=copy["digest"])

    def _verify(self, verifier: Verifier, signed: Any, loaded: LoadedBundle) -> None:
        """Check that the bundle is the one that was signed. Anyone who can write the file can compute the checksum."""
        try:
            fetched = BundleBytes((BundleDocument("", b""),)) if signed is None else _read_signed(signed)
        except (ValueError, KeyError, TypeError):
            raise self._damaged("the signed files are missing") from None
        try:
            verifier.check(fetched, str(self.path))
            same = load_fetched(fetched).bundle == loaded.bundle
        except BundleError as error:
            raise self._damaged(f"it {error.problems[0].message}") from None
        if not same:
            raise self._damaged("it differs from what was signed")

    def _damaged(self, why: str) -> BundleError:
        hint = "it is ignored and replaced by the next valid bundle"
        return BundleError([Problem(str(self.path), 1, 1, "", f"the last good copy cannot be used: {why}", hint)])


def _signed(fetched: BundleBytes) -> dict[str, Any]:
    """Return the signed bytes in a form that JSON can hold."""
    documents = [[one.name, one.kind, base64.b64encode(one.data).decode()] for one in fetched.documents]
    return {"signature": fetched.signature, "directory": fetched.directory, "documents": documents}


def _read_signed(signed: Any) -> BundleBytes:
    documents = tuple(
        BundleDocument(str(name), base64.b64decode(data, validate=True), str(kind))
        for name, kind, data in signed["documents"]
    )
    directory = bool(signed["directory"])
    if not documents or (len(documents) > 1 and not directory):
        raise ValueError("documents")
    return BundleBytes(documents, (), str(signed["signature"]), directory=directory)


_PATIENCE_S: Final = 0.9  # how long a source that keeps changing may be unreadable before this is reported

_FINISH_S: Final = 4.0  # less than a supervisor waits for its control process

FROM_SOURCE: Final = "source"
FROM_LAST_GOOD: Final = "last good copy"


class BundleFeed(Protocol):
    """The provider of the bundles of a process: a `BundleSource`, or in a worker the supervisor's."""

    origin: str
    current: LoadedBundle | None
    problems: list[Problem]
    rejected: int
    loaded_at: float

    @property
    def name(self) -> str: ...

    @property
    def wait_s(self) -> float: ...

    def start(self) -> bool: ...

    def poll(self) -> None: ...

    def reload(self) -> None: ...

    def finish(self) -> None: ...


class BundleSource:
    """Keeps the newest valid bundle of one source in force."""

    def __init__(
        self,
        source: BundleOrigin,
        *,
        load: Callable[[BundleBytes], LoadedBundle],
        on_bundle: Callable[[LoadedBundle], None],
        clock: Clock,
        publish: Publish,
        data_dir: Path | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        self._source = source
        self._load = load
        self._on_bundle = on_bundle
        self._clock = clock
        self._publish = publish
        self._verifier = verifier
        self._last_good = LastGood(data_dir, source.key) if data_dir is not None else None
        self._fetched: BundleBytes | None = None  # what the last attempt fetched
        self._seen: Stamp | None = None  # the state of the source in the last attempt, if known
        self._settled: Stamp | None = None  # the state of the source that has been handled
        # A state that cannot be used, and since when; not yet reported.
        self._failing: tuple[Stamp | None, float] | None = None
        self._unread = False  # the last attempt could not read the source
        self._failures = 0  # number of consecutive failures to reach it
        self._told = ""  # the problem reported last
        self._expiry_told = ""
        # Held while checking the source, and by code that changes the source and then has it checked.
        self.turn = RLock()
        self._saved = ThreadEvent()  # not set from when a bundle is put in force until its copy is written
        self._saved.set()
        self.current: LoadedBundle | None = None
        self.accepted: BundleBytes | None = None  # the bytes of `current`, if they came from the source
        self.origin = ""
        self.loaded_at = 0.0
        self.problems: list[Problem] = []  # of what the source holds now; the bundle in force is then an older one
        self.loaded = 0
        self.rejected = 0

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def wait_s(self) -> float:
        """Seconds to wait before the next `poll`."""
        return self._source.wait_s(self._failures)

    def start(self) -> bool:
        """Load the first bundle, from the last good copy if necessary. Returns whether a bundle is in force."""
        with self.turn:
            problems = self._attempt(lambda: self._look(None), FROM_SOURCE, force=True)
            self._settle()
            if problems:
                self._reject(problems)
                if self._last_good is not None:
                    self._use_last_good(self._last_good)
            self._check_expiry()
        return self.current is not None

    def _use_last_good(self, copy: LastGood) -> None:
        problems = self._attempt(lambda: copy.read(self._verifier), FROM_LAST_GOOD, force=True)
        if problems and problems[0].file == str(copy.path):
            self._tell_rejected(problems)

    def poll(self) -> None:
        """Check whether the source has changed, and load it if so."""
        with self.turn:
            problems = self._attempt(lambda: self._look(self._settled), FROM_SOURCE, force=False)
            if not problems or self._is_final():
                self._settle()
                if problems:
                    self._reject(problems)
            self._check_expiry()

    def reload(self) -> None:
        """Load now, whether or not anything changed. An operator asked for it, so a lower version is accepted."""
        with self.turn:
            problems = self._attempt(lambda: self._look(None), FROM_SOURCE, force=True)
            self._settle()
            if problems:
                self._told = ""  # an explicit reload always reports problems, even the same ones again
                self._reject(problems)

    def finish(self) -> None:
        """Wait until the copy of a bundle that has just been put in force is written. Gives up after some seconds."""
        self._saved.wait(_FINISH_S)

    def _settle(self) -> None:
        """Mark this state as handled, unless it could not be read: that may change without a change of the state."""
        self._settled = None if self._unread else self._seen
        self._failing = None

    def _look(self, known: Stamp | None) -> LoadedBundle | None:
        """Fetch and load what the source holds; None if it is unchanged. The signature is verified before parsing."""
        self._seen = None
        self._fetched = fetched = self._source.fetch(known)
        if fetched is None:
            self._seen = known
            return None
        self._seen = fetched.stamp
        if self._verifier is not None:
            self._verifier.check(fetched, self.name)
        return self._load(fetched)

    def _attempt(self, get: Callable[[], LoadedBundle | None], origin: str, *, force: bool) -> list[Problem]:
        """Load, compile, put in force and save. Returns the problems if this fails."""
        try:
            return self._put_in_force(get, origin, force=force)
        finally:
            self._saved.set()

    def _put_in_force(self, get: Callable[[], LoadedBundle | None], origin: str, *, force: bool) -> list[Problem]:
        failures, self._failures, self._unread = self._failures, 0, False
        try:
            loaded, before = get(), self.current
            if loaded is None:
                return []
            if before is not None and not force:
                if loaded.digest == before.digest and not self.problems:
                    return []
                if not self._is_forced():
                    self._refuse_lower(loaded, before)
            self._saved.clear()
            self._on_bundle(loaded)
        except BundleError as error:
            self._unread = isinstance(error, UnreadableError)
            if self._unread and not isinstance(error, SignatureError):
                self._failures = failures + 1
            return error.problems
        except OSError as error:
            self._unread, self._failures = True, failures + 1
            return [Problem(self.name, 1, 1, "", f"cannot be read: {error.strerror}")]
        except Exception as error:  # noqa: BLE001 - the edge: no mistake of ours in loading may take traffic down
            return [Problem(self.name, 1, 1, "", f"cannot be used: {type(error).__name__}: {error}")]
        self._accepted(loaded, origin)
        return []

    def _is_forced(self) -> bool:
        """Return whether it was pushed with `force`, which is ignored for signed bundles: no signature covers it."""
        return self._fetched is not None and self._fetched.forced and self._verifier is None

    def _refuse_lower(self, loaded: LoadedBundle, before: LoadedBundle) -> None:
        new, old = loaded.bundle.bundle_version, before.bundle.bundle_version
        if new < old:
            message = f"{new} is lower than {old}, the active version"
            hint = "raise it; to roll back, send SIGHUP or restart"
            raise BundleError([Problem(self.name, 1, 1, "bundle_version", message, hint)])

    def _accepted(self, loaded: LoadedBundle, origin: str) -> None:
        before = self.current
        self.current = loaded
        self.accepted = self._fetched if origin == FROM_SOURCE else None
        self.origin = origin
        self.loaded_at = self._clock.now()
        self.loaded += 1
        data: dict[str, object] = {
            "source": self.name,
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
            why = self._last_good.write(loaded, self._fetched) if self._last_good is not None else ""
            if why:
                data["last_good_copy"] = f"not written: {why}"
        self._publish(Event(BUNDLE_LOADED, self.loaded_at, data))

    def _is_final(self) -> bool:
        """Return whether a problem should be reported. A file that is being saved cannot be read either, so a problem
        is only reported if the state stays the same or the problem lasts too long.
        """
        if self._source.whole and not self._unread:
            return True
        now = self._clock.steady()
        if self._failing is None:
            self._failing = (self._seen, now)
            return False
        before, since = self._failing
        self._failing = (self._seen, since)
        return self._seen == before or now - since >= _PATIENCE_S

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

"""What is done with a bundle's source (SPEC B-2, B-3, B-4, B-5, E-0): it is looked at again and again; what is new is
verified, loaded, compiled (`on_bundle`), put in force, kept on disk and told. What cannot be used changes nothing and
is told once. There is no thread, timer or sleep in here: whoever runs it calls `poll` every `wait_s` seconds. What a
source is, is `policy.fetched`'s.

The last good bundle on disk (SPEC B-3), so that a restart without its source still enforces. One file a source;
written whole or not at all, checked when it is read; of a signed bundle the signed bytes are kept too, and verified
anew (SPEC B-4). When to write and to use it is `policy.source`'s decision.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import Any, Final, Protocol

from breakloop.clock import Clock
from breakloop.errors import BundleError, Problem, UnreadableError
from breakloop.model.events import BUNDLE_EXPIRED, BUNDLE_LOADED, BUNDLE_REJECTED, Event, Publish
from breakloop.policy.files import BundleBytes, BundleDocument, BundleOrigin, Stamp
from breakloop.policy.load import LoadedBundle, load_fetched, load_text
from breakloop.policy.signing import SignatureError, Verifier

_FORMAT = 1


class LastGood:
    """The copy of one source's bundle below a data directory; `source` is a path, or the key of another source."""

    __slots__ = ("_source", "path")

    def __init__(self, data_dir: Path, source: Path | str) -> None:
        self._source = str(source.absolute()) if isinstance(source, Path) else source
        name = sha256(self._source.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        self.path = data_dir / "last-good" / f"{name}.json"

    def write(self, loaded: LoadedBundle, fetched: BundleBytes | None = None) -> str:
        """Keep a bundle, with what was signed of it; returns why that was not possible, or an empty text."""
        bundle = loaded.bundle.model_dump(mode="json", by_alias=True, exclude_unset=True)
        text = _canonical(bundle)
        try:
            if load_text(text.encode(), "last-good.json").bundle != loaded.bundle:
                return "it does not read back the same"
        except BundleError as error:
            return f"it does not read back: {error.problems[0].message}"
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
            _write_whole(self.path, json.dumps(copy, indent=1).encode())
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def read(self, verifier: Verifier | None = None) -> LoadedBundle | None:
        """Return the copy, or None without one; a damaged one, or one that is not signed, raises `BundleError`."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._damaged(error.strerror or str(error)) from None
        try:
            copy = json.loads(raw)
            text = _canonical(copy["bundle"])
            intact = copy["format"] == _FORMAT and copy["checksum"] == sha256(text.encode()).hexdigest()
            intact = intact and isinstance(copy["digest"], str) and copy["source"] == self._source
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._damaged("it is not what was written") from None
        if not intact:
            raise self._damaged("its checksum does not fit")
        loaded = load_text(text.encode(), str(self.path))
        if verifier is not None:
            self._verify(verifier, copy.get("signed"), loaded)
        return replace(loaded, digest=copy["digest"])

    def _verify(self, verifier: Verifier, signed: Any, loaded: LoadedBundle) -> None:
        """The bundle must be what was signed: the checksum can be made by anybody who writes here."""
        try:
            fetched = _unsigned() if signed is None else _read_signed(signed)
        except (ValueError, KeyError, TypeError):
            raise self._damaged("what was signed is not there") from None
        try:
            verifier.check(fetched, str(self.path))
            same = load_fetched(fetched).bundle == loaded.bundle
        except BundleError as error:
            raise self._damaged(f"it {error.problems[0].message}") from None
        if not same:
            raise self._damaged("it is not what was signed")

    def _damaged(self, why: str) -> BundleError:
        hint = "it is ignored, and written again with the next valid bundle"
        return BundleError([Problem(str(self.path), 1, 1, "", f"the last good copy cannot be used: {why}", hint)])


def _signed(fetched: BundleBytes) -> dict[str, Any]:
    """The signed bytes, as JSON can hold them."""
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


def _unsigned() -> BundleBytes:
    return BundleBytes((BundleDocument("", b""),))


def _canonical(bundle: object) -> str:
    return json.dumps(bundle, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _write_whole(path: Path, content: bytes) -> None:
    """Write beside it, flush, rename: whoever reads sees the old file or the new one, after a power cut too."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


_PATIENCE_S: Final = 0.9  # so long may a source that keeps changing be unreadable before that is told

FROM_SOURCE: Final = "source"
FROM_LAST_GOOD: Final = "last good copy"


class BundleFeed(Protocol):
    """What a process needs of whatever brings its bundles."""

    origin: str
    current: LoadedBundle | None
    problems: list[Problem]
    rejected: int
    loaded_at: float

    @property
    def name(self) -> str:
        """Where bundles come from, as people know it."""
        ...

    @property
    def wait_s(self) -> float:
        """How long to wait before the next `poll`."""
        ...

    def start(self) -> bool:
        """Load for the first time; tells whether a bundle is in force."""
        ...

    def poll(self) -> None:
        """Look whether there is a new one, and act on it."""
        ...

    def reload(self) -> None:
        """Load now, because somebody asks for it."""
        ...


class BundleSource:
    """Keeps the newest valid bundle of one source in force."""

    __slots__ = (
        "_clock",
        "_expiry_told",
        "_failing",
        "_failures",
        "_fetched",
        "_last_good",
        "_load",
        "_on_bundle",
        "_publish",
        "_seen",
        "_settled",
        "_source",
        "_told",
        "_unread",
        "_verifier",
        "accepted",
        "current",
        "loaded",
        "loaded_at",
        "origin",
        "problems",
        "rejected",
        "turn",
    )

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
        self._fetched: BundleBytes | None = None  # what the last attempt got
        self._seen: Stamp | None = None  # the state of the source that the last attempt was about, if it saw one
        self._settled: Stamp | None = None  # this state of the source has been dealt with
        self._failing: tuple[Stamp | None, float] | None = None  # this state cannot be used, since then; not told yet
        self._unread = False  # the last attempt could not even read it
        self._failures = 0  # how many in a row could not reach it
        self._told = ""  # the problem that was told last
        self._expiry_told = ""
        self.turn = RLock()  # held by whoever looks; and by whoever changes the source and has it looked at next
        self.current: LoadedBundle | None = None
        self.accepted: BundleBytes | None = None  # what it was read from, where that was the source
        self.origin = ""
        self.loaded_at = 0.0
        self.problems: list[Problem] = []  # with what the source holds now; the bundle in force is another then
        self.loaded = 0
        self.rejected = 0

    @property
    def name(self) -> str:
        """Where the bundle comes from, as people know it."""
        return self._source.name

    @property
    def wait_s(self) -> float:
        """How long to wait before the next `poll`."""
        return self._source.wait_s(self._failures)

    def start(self) -> bool:
        """Load for the first time, from the last good copy if need be; tells whether a bundle is in force."""
        with self.turn:
            self._start()
        return self.current is not None

    def _start(self) -> None:
        problems = self._attempt(lambda: self._look(None), FROM_SOURCE, force=True)
        self._settle()
        if problems:
            self._reject(problems)
            if self._last_good is not None:
                copy = self._last_good
                problems = self._attempt(lambda: _found(copy.read(self._verifier)), FROM_LAST_GOOD, force=True)
                if problems and problems[0].file == str(copy.path):
                    self._tell_rejected(problems)
        self._check_expiry()

    def poll(self) -> None:
        """Look whether the source has changed, and act on it."""
        with self.turn:
            self._poll()

    def _poll(self) -> None:
        problems = self._attempt(lambda: self._look(self._settled), FROM_SOURCE, force=False)
        if not problems or self._is_final():
            self._settle()
            if problems:
                self._reject(problems)
        self._check_expiry()

    def reload(self) -> None:
        """Load now, whether or not anything changed; a lower version is accepted, because somebody asked for it."""
        with self.turn:
            self._reload()

    def _reload(self) -> None:
        problems = self._attempt(lambda: self._look(None), FROM_SOURCE, force=True)
        self._settle()
        if problems:
            self._told = ""  # whoever asks gets an answer, also the same one again
            self._reject(problems)

    def _settle(self) -> None:
        """This state is dealt with, unless it could not be read: that may pass without any trace of it."""
        self._settled = None if self._unread else self._seen
        self._failing = None

    def _look(self, known: Stamp | None) -> LoadedBundle | None:
        """Fetch and load what the source holds; None if that is known. Only bytes that are signed are looked into."""
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
        """Load, compile and put in force; returns what is wrong instead."""
        failures, self._failures, self._unread = self._failures, 0, False
        try:
            loaded = get()
            before = self.current
            if loaded is None or self._is_in_force(loaded, force=force):
                return []
            if before is not None and not force and not self._is_forced():
                self._refuse_lower(loaded, before)
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

    def _is_in_force(self, loaded: LoadedBundle, *, force: bool) -> bool:
        before = self.current
        return before is not None and loaded.digest == before.digest and not self.problems and not force

    def _is_forced(self) -> bool:
        """Whoever pushed it wanted it so. Where bundles are signed that is not believed: nobody signed it."""
        return self._fetched is not None and self._fetched.forced and self._verifier is None

    def _refuse_lower(self, loaded: LoadedBundle, before: LoadedBundle) -> None:
        new, old = loaded.bundle.bundle_version, before.bundle.bundle_version
        if new < old:
            message = f"{new} is lower than {old}, which is in force"
            hint = "raise it; to go back on purpose, send SIGHUP or restart"
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
        """A save that is half done cannot be read either: only what stays as it is, or takes too long, is told."""
        if self._source.whole and not self._unread:
            return True
        now = self._clock.now()
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


def _found(copy: LoadedBundle | None) -> LoadedBundle:
    if copy is None:
        raise BundleError([Problem("", 1, 1, "", "there is no last good copy")])
    return copy

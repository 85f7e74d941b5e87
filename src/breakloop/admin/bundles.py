"""The bundle in force, for the process that watches its source (SPEC X-1): shown, compared, replaced, taken back. What
is applied goes where the source is, so that a restart and every instance have it: a file is written, Redis is pushed
to. A directory and a URL belong to somebody else, who is told what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final, NoReturn

from breakloop.admin import bundle_words
from breakloop.admin.bundle_history import BundleHistory, Kept, write_whole
from breakloop.clock import Clock
from breakloop.errors import BundleError, Problem
from breakloop.policy.compile_loops import BUILTIN, LoopGuard, builtin_blocks
from breakloop.policy.edit import promoted
from breakloop.policy.fetched import Document, Fetched
from breakloop.policy.load import LoadedBundle, load_text
from breakloop.policy.source import BundleSource
from breakloop.policy.source_redis import to_push
from breakloop.state.shelf import PushRefusedError, Shelf

_NO_SOURCE: Final = "no policy is set, so there is nothing to change", "start with --policy FILE"
_DIRECTORY: Final = (
    "the policy is a directory of files, which are not written from here",
    "edit its files: a change is in force within a second",
)
_URL: Final = "the policy comes from a URL, which is not written from here", "publish the bundle where the URL leads"
_SIGNED: Final = (
    "bundles have to be signed here, and this one is not",
    "sign it with `breakloop bundle sign`, and put file and signature where the policy is read from",
)
_AWAY: Final = "the source of the bundle cannot be read now, so it cannot be changed", "try again when it is back"


@dataclass(frozen=True, slots=True)
class BundlePlace:
    """Where bundles come from and are kept: the setting `policy`, whether they have to be signed, what opens the Redis
    that they are pushed to (for `policy: redis`), and the data directory."""

    policy: str = ""
    signed: bool = False
    shelf: Callable[[], Shelf] | None = None
    data_dir: Path | None = None


class BundlesHere:
    """What `services.Bundles` asks for, over one source. Everything here may take a moment: not for the loop."""

    def __init__(
        self,
        source: BundleSource | None,
        place: BundlePlace,
        clock: Clock,
        *,
        check: Callable[[LoadedBundle], None],
        guard: LoopGuard,
    ) -> None:
        """`check` compiles a bundle and raises `BundleError`; `guard` has the numbers of the built-in protection."""
        self._source = source
        self._clock = clock
        self._check = check
        self._guard = guard
        self._policy = place.policy
        self._signed = place.signed
        self._shelf = place.shelf
        self._kept = BundleHistory(place.data_dir)

    # -- what is in force --------------------------------------------------------------------------------------------

    def current(self) -> Mapping[str, Any]:
        """Return version, digest, origin, loaded_at, text (as it was read), problems of the last refusal."""
        source = self._source
        if source is None:
            return {"version": 0, "digest": BUILTIN, "origin": BUILTIN, "loaded_at": 0.0, "text": "", "problems": []}
        loaded = source.current
        return {
            "version": loaded.bundle.bundle_version if loaded else None,
            "digest": loaded.digest if loaded else "",
            "origin": source.origin,
            "source": source.name,
            "loaded_at": source.loaded_at,
            "text": self._text().decode("utf-8", "replace"),
            "problems": [asdict(problem) for problem in source.problems],
            "notes": [asdict(note) for note in loaded.notes] if loaded else [],
        }

    def policies(self) -> list[Mapping[str, Any]]:
        """Return each policy in words, and what holds where none of them says otherwise."""
        loaded = self._source.current if self._source is not None else None
        said = bundle_words.policies(loaded.bundle) if loaded else []
        defaults = loaded.bundle.defaults if loaded else None
        own = defaults is not None and defaults.loop_detection is not None
        blocks: Sequence[Any] = defaults.loops if defaults is not None and own else builtin_blocks(self._guard)
        words = "; ".join(bundle_words.loop(block) for block in blocks) or "off"
        every = {"id": "defaults" if own else BUILTIN, "mode": "enforce", "rules": [], "loop_detection": words}
        return [*said, {**every, "selector": "LLM and MCP calls that no policy's loop detection covers"}]

    def earlier(self) -> list[Mapping[str, Any]]:
        """Return what was in force before: version, digest, applied_at, by."""
        now = self._digest()
        return [_shown(one) for one in self._kept.all() if one.digest != now]

    # -- another -----------------------------------------------------------------------------------------------------

    def validate(self, text: bytes) -> Sequence[Mapping[str, Any]]:
        """Return problems (line, column, path, message, hint); none: it is valid."""
        try:
            self._loaded(text)
        except BundleError as error:
            return [asdict(problem) for problem in error.problems]
        return []

    def diff(self, text: bytes) -> str:
        """Return the difference to what is in force, unified."""
        old, new = (one.decode("utf-8", "replace").splitlines(keepends=True) for one in (self._text(), text))
        return "".join(unified_diff(old, new, "in force", "yours"))

    def apply(self, text: bytes, *, force: bool, by: str = "") -> Mapping[str, Any]:
        """Put it in force and keep it; raises `BundleError`."""
        source = self._writable()
        loaded = self._loaded(text)
        with source.turn:  # nobody looks at the source while it changes
            before, old = source.current, self._text()
            if before is not None and not force:
                self._refuse_lower(loaded, before)
            self._put(source, loaded, text, by=by, force=force)
            if before is not None and all(one.digest != before.digest for one in self._kept.all()):
                version = before.bundle.bundle_version
                self._kept.keep(old, version, before.digest, at=source.loaded_at, by="")
            source.reload()
            if self._digest() != loaded.digest:
                problems = source.problems or [self._problem("was not taken")]
                if self._shelf is None and source.accepted is not None:
                    write_whole(Path(self._policy), old)
                raise BundleError(problems)
        self._kept.keep(text, loaded.bundle.bundle_version, loaded.digest, at=self._clock.now(), by=by)
        return self.current()

    def rollback(self, version: int, *, by: str = "") -> Mapping[str, Any]:
        """Put an earlier one in force again, with the version it had."""
        text = self._kept.text(version, but=self._digest())
        if text is None:
            known = ", ".join(sorted({str(one["version"]) for one in self.earlier()})) or "none"
            self._refuse(f"version {version} is not kept", f"kept are: {known}")
        return self.apply(text, force=True, by=by)

    def promote(self, policy: str, *, by: str = "") -> Mapping[str, Any]:
        """Turn a policy from shadow to enforce, in the bundle itself; raises `BundleError`."""
        source = self._writable()
        with source.turn:
            if source.accepted is None:
                self._refuse(*_AWAY)
            return self.apply(promoted(self._text(), self._name(), policy), force=False, by=by)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _writable(self) -> BundleSource:
        """Return the source, if it can be written to from here."""
        source = self._source
        if source is None:
            self._refuse(*_NO_SOURCE)
        if self._signed:
            self._refuse(*_SIGNED)
        if self._shelf is None and "://" in self._policy:
            self._refuse(*_URL)
        if self._shelf is None and Path(self._policy).is_dir():
            self._refuse(*_DIRECTORY)
        return source

    def _put(self, source: BundleSource, loaded: LoadedBundle, text: bytes, *, by: str, force: bool) -> None:
        if self._shelf is None:
            try:
                write_whole(Path(self._policy), text)
            except OSError as error:
                self._refuse(f"cannot be written: {error.strerror or error}", "see who owns the file and its folder")
            return
        shelf = self._shelf()
        fetched = Fetched((Document(source.name, text),))
        try:
            shelf.push(to_push(fetched, loaded, by=by, force=force))
        except PushRefusedError as error:
            self._refuse(str(error), "or force it")
        finally:
            shelf.close()

    def _loaded(self, text: bytes) -> LoadedBundle:
        loaded = load_text(text, self._name(), now=self._clock.now())
        self._check(loaded)
        return loaded

    def _refuse_lower(self, loaded: LoadedBundle, before: LoadedBundle) -> None:
        new, old = loaded.bundle.bundle_version, before.bundle.bundle_version
        if new < old:
            problem = Problem(self._name(), 1, 1, "bundle_version", f"{new} is lower than {old}, which is in force")
            raise BundleError([problem])

    def _text(self) -> bytes:
        """The bundle in force as it was read; as JSON where that is several files, or the last good copy."""
        source = self._source
        if source is None or source.current is None:
            return b""
        read = source.accepted
        if read is not None and not read.directory:
            return read.documents[0].data
        bundle = source.current.bundle.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return json.dumps(bundle, indent=2, ensure_ascii=False).encode() + b"\n"

    def _digest(self) -> str:
        loaded = self._source.current if self._source is not None else None
        return loaded.digest if loaded is not None else ""

    def _name(self) -> str:
        is_file = self._policy and "://" not in self._policy and self._shelf is None
        return Path(self._policy).name if is_file else "bundle"

    def _refuse(self, message: str, hint: str = "") -> NoReturn:
        raise BundleError([self._problem(message, hint)])

    def _problem(self, message: str, hint: str = "") -> Problem:
        return Problem(self._name(), 1, 1, "", message, hint)


def _shown(one: Kept) -> Mapping[str, Any]:
    return {"version": one.version, "digest": one.digest, "applied_at": one.applied_at, "by": one.by}

"""The active bundle, for the process that watches its source: show, compare, replace and roll back.

An applied bundle is written to its source, so that a restart and every instance have it: a file is written, Redis is
pushed to. Directories and URLs are maintained elsewhere and are read-only here. The newest hundred bundles are kept
in the data directory for rollbacks.

`promoted` replaces single values in the text of a bundle and leaves comments and layout unchanged. The result is
parsed again and must be what was intended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NoReturn

from breakloop.clock import Clock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.errors import BundleError, Problem
from breakloop.policy.compile import BUILTIN, builtin_blocks
from breakloop.policy.documents import DocumentPath, path_text, read_document
from breakloop.policy.load import BundleBytes, BundleDocument, LoadedBundle, load_text
from breakloop.policy.schema import bundle as schema
from breakloop.policy.schema.limits import AnyRule
from breakloop.policy.schema.loops import AnyLoop, ExactLoop, SimhashLoop, StepsLoop, TailLoop
from breakloop.policy.sources import to_push
from breakloop.policy.watch import BundleSource
from breakloop.store.data_dir import write_whole
from breakloop.store.redis.bundle import PushDeniedError, RedisBundle

KEPT_MAX: Final = 100
_FOLDER: Final = "bundles"
_ABOUT: Final = ".about.json"


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """A bundle that was active: who applied it and when. `sha256` is that of its text."""

    version: int
    digest: str
    applied_at: float
    by: str
    sha256: str


class BundleHistory:
    """The stored bundles. Without a data directory nothing is stored."""

    __slots__ = ("_folder",)

    def __init__(self, data_dir: Path | None) -> None:
        self._folder = None if data_dir is None else data_dir / _FOLDER

    def keep(self, text: bytes, version: int, digest: str, *, at: float, by: str) -> None:
        """Store a bundle. Failures are ignored: the bundle itself matters more."""
        if self._folder is None:
            return
        about = StoredBundle(version, digest, at, by, sha256(text).hexdigest())
        place = self._folder / _stem(version, digest)
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(place, text, mode=0o600)
            write_whole(place.with_name(place.name + _ABOUT), json.dumps(asdict(about)).encode(), mode=0o600)
            for old in self.all()[KEPT_MAX:]:
                gone = self._folder / _stem(old.version, old.digest)
                gone.with_name(gone.name + _ABOUT).unlink(missing_ok=True)
                gone.unlink(missing_ok=True)

    def all(self) -> list[StoredBundle]:
        """Return the stored bundles, the last applied first."""
        if self._folder is None:
            return []
        found = [one for file in self._folder.glob(f"*{_ABOUT}") if (one := _read(file)) is not None]
        return sorted(found, key=lambda one: (one.applied_at, one.version), reverse=True)

    def text(self, version: int, but: str = "") -> bytes | None:
        """Return the text of the last bundle with this version (`but` not the one of this digest), if it is intact."""
        for one in self.all():
            if one.version == version and one.digest != but and self._folder is not None:
                with suppress(OSError):
                    text = (self._folder / _stem(one.version, one.digest)).read_bytes()
                    if sha256(text).hexdigest() == one.sha256:
                        return text
        return None


def _stem(version: int, digest: str) -> str:
    return f"{version}-{digest[:16]}"


def _read(file: Path) -> StoredBundle | None:
    try:
        said = json.loads(file.read_bytes())
        return StoredBundle(int(said["version"]), said["digest"], float(said["applied_at"]), said["by"], said["sha256"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def describe_policies(bundle: schema.Bundle) -> list[Mapping[str, Any]]:
    """Return each policy: id, mode, selector, rules, loop detection."""
    return [
        {
            "id": one.id,
            "mode": one.spec.mode,
            "selector": selector(one.spec.selector),
            "rules": _rules(one.spec),
            "loop_detection": "; ".join(describe_loop(block) for block in one.spec.loops),
        }
        for one in bundle.policies
    ]


def selector(chosen: schema.Selector) -> str:
    """Describe which requests a policy applies to."""
    methods = ", ".join(chosen.methods or ())
    path = chosen.path_exact or (f"{chosen.path_prefix}*" if chosen.path_prefix else "")
    hosts = " or ".join(chosen.hosts or ())
    said = " ".join(part for part in (methods, path) if part) or "every request"
    return f"{said} to {hosts}" if hosts else said


def _rules(spec: schema.Spec) -> list[Mapping[str, Any]]:
    said: list[Mapping[str, Any]] = [_rule(rule) for rule in spec.rules]
    if spec.fallback_limit is not None:
        said.append(_rule(spec.fallback_limit) | {"name": "fallback_limit"})
    breaker = spec.circuit_breaker
    if breaker is not None and breaker.enabled:
        keys = list(spec.rules[0].limit_keys) if spec.rules else []
        said.append(
            {"name": "circuit_breaker", "algorithm": "circuit_breaker", "keys": keys, "words": _breaker(breaker)}
        )
    return said


def _rule(rule: AnyRule) -> dict[str, Any]:
    words = rule.algorithm_config.words
    when = ", ".join(f"{name} is {value}" for name, value in (rule.match or {}).items())
    words = f"{words}, where {when}" if when else words
    return {"name": rule.name, "algorithm": rule.algorithm, "keys": list(rule.limit_keys), "words": words}


def _breaker(breaker: schema.CircuitBreaker) -> str:
    unit = "$" if breaker.spend_source == "usage:usd" else ""
    opens = f"opens at {unit}{breaker.spend_rate_threshold_per_minute:,g} a minute"
    minutes = breaker.auto_reset_after_minutes
    return f"{opens}, {f'tries again after {minutes:g} min' if minutes else 'only an operator closes it'}"


def describe_loop(block: AnyLoop) -> str:
    """Describe what a loop detector looks for and what it does."""
    if not block.enabled:
        return f"{block.similarity}: off"
    return f"{block.similarity}: {_what(block)}: {_does(block)}"


def _what(block: AnyLoop) -> str:
    match block:
        case ExactLoop():
            return f"{block.threshold_identical_requests} identical requests in {block.window_seconds} s"
        case TailLoop():
            same = f"with the same last {block.tail_messages} messages"
            return f"more than {block.max_hits} requests {same} in {block.window_seconds} s"
        case SimhashLoop():
            return f"a score over {block.threshold_score:g} within {block.window_requests} requests"
        case StepsLoop():
            return f"the same steps without progress, sensitivity {block.sensitivity}"


def _does(block: AnyLoop) -> str:
    notice, hit, stop = (block.action_for(severity) for severity in ("notice", "block", "stop"))
    said = [notice, hit] if block.ladder is not None or block.similarity == "steps" else [hit]
    words = ", then ".join(dict.fromkeys([*said, *([stop] if block.ladder is not None else [])]))
    return f"{words} (for {block.quarantine_seconds} s)" if block.quarantine_seconds else words


SHADOW: Final = "shadow"
ENFORCE: Final = "enforce"
_TOKEN: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\n]|\'\')*\'|[^\s,\]}#]+')


def promoted(text: bytes, name: str, policy: str) -> bytes:
    """Return the bundle with a policy changed from shadow to enforce, and the next version. Raises `BundleError`.

    `name` is shown in messages; its suffix may distinguish JSON from YAML.
    """
    data, _ = read_document(text, name)
    found = [(index, one) for index, one in enumerate(data["policies"]) if one["id"] == policy]
    if not found:
        raise BundleError([Problem(name, 1, 1, "policies", f'there is no policy "{policy}"')])
    index, one = found[0]
    if one["spec"].get("mode") != SHADOW:
        raise BundleError([Problem(name, 1, 1, f"policies[{index}].spec.mode", f'"{policy}" is already enforced')])
    mode: DocumentPath = ("policies", index, "spec", "mode")
    return replaced(text, name, {mode: ENFORCE, ("bundle_version",): data["bundle_version"] + 1})


def replaced(text: bytes, name: str, values: Mapping[DocumentPath, str | int]) -> bytes:
    """Return the text with single values replaced. Raises `BundleError` if that would change anything else."""
    data, places = read_document(text, name)
    wanted = json.loads(json.dumps(data))  # without shared parts: an alias in YAML is one object
    lines = text.decode("utf-8-sig").split("\n")
    # From the end, so that earlier positions stay valid.
    spots = sorted(((places.locate(path), path) for path in values), key=lambda spot: spot[0], reverse=True)
    for place, path in spots:
        _set(wanted, path, values[path])
        line = lines[place.line - 1]
        found = _TOKEN.match(line, place.column - 1)
        if found is not None:
            new = _written(found[0], values[path])
            lines[place.line - 1] = line[: found.start()] + new + line[found.end() :]
    made = "\n".join(lines).encode()
    if _data(made, name) != wanted:
        place, path = spots[-1]
        message = "cannot be changed here, because an anchor, an alias or a tag is used at this place"
        raise BundleError([Problem(*place, path_text(path), message, "edit the file")])
    return made


def _data(text: bytes, name: str) -> Any:
    try:
        return read_document(text, name)[0]
    except BundleError:
        return None


def _set(data: Any, path: DocumentPath, value: str | int) -> None:
    for step in path[:-1]:
        data = data[step]
    data[path[-1]] = value


def _written(old: str, value: str | int) -> str:
    """Return a value in the quotes of the one it replaces."""
    quote = old[0] if old[0] in "\"'" and isinstance(value, str) else ""
    return f"{quote}{value}{quote}"


_NO_SOURCE: Final = "no policy is set, so there is nothing to change", "start with --policy FILE"
_DIRECTORY: Final = (
    "the policy is a directory, which cannot be changed here",
    "edit its files; changes take effect within a second",
)
_URL: Final = "the policy is fetched from a URL and cannot be changed here", "publish the new bundle at that URL"
_SIGNED: Final = (
    "only signed bundles are accepted, and this bundle is not signed",
    "sign it with `breakloop bundle sign` and publish the bundle and its signature at the policy's source",
)
_AWAY: Final = "the bundle cannot be changed: its source cannot be read now", "try again when it is available"


@dataclass(slots=True, eq=False)
class BundleAdmin:
    """Reads and replaces the bundle of one source. Every method may block."""

    source: BundleSource | None
    clock: Clock
    check: Callable[[LoadedBundle], object]  # compiles a bundle; raises `BundleError`
    guard: BuiltinLoopGuard  # configures the built-in protection
    policy: str = ""  # the setting
    signed: bool = False  # bundles have to be
    shelf: Callable[[], RedisBundle] | None = None  # opens the Redis they are pushed to (with `policy: redis`)
    data_dir: Path | None = None

    @property
    def _kept(self) -> BundleHistory:
        return BundleHistory(self.data_dir)

    def current(self) -> Mapping[str, Any]:
        """Return version, digest, origin, loaded_at, text (as it was read), problems of the last rejected bundle."""
        source = self.source
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
        """Return each policy in words, and the built-in protection."""
        loaded = self.source.current if self.source is not None else None
        said = describe_policies(loaded.bundle) if loaded else []
        defaults = loaded.bundle.defaults if loaded else None
        own = defaults is not None and defaults.loop_detection is not None
        blocks: Sequence[Any] = defaults.loops if defaults is not None and own else builtin_blocks(self.guard)
        words = "; ".join(describe_loop(block) for block in blocks) or "off"
        every = {"id": "defaults" if own else BUILTIN, "mode": "enforce", "rules": [], "loop_detection": words}
        return [*said, {**every, "selector": "LLM and MCP calls that no policy's loop detection covers"}]

    def earlier(self) -> list[Mapping[str, Any]]:
        """Return earlier bundles: version, digest, applied_at, by."""
        now = self._digest()
        return [_shown(one) for one in self._kept.all() if one.digest != now]

    def validate(self, text: bytes) -> Sequence[Mapping[str, Any]]:
        """Return problems (line, column, path, message, hint); none: it is valid."""
        try:
            self._loaded(text)
        except BundleError as error:
            return [asdict(problem) for problem in error.problems]
        return []

    def diff(self, text: bytes) -> str:
        """Return a unified diff against the active bundle."""
        old, new = (one.decode("utf-8", "replace").splitlines(keepends=True) for one in (self._text(), text))
        return "".join(unified_diff(old, new, "in force", "yours"))

    def apply(self, text: bytes, *, force: bool, by: str = "") -> Mapping[str, Any]:
        """Activate a bundle and write it to its source. Raises `BundleError`."""
        source = self._writable()
        loaded = self._loaded(text)
        with source.turn:  # the source is not polled while it changes
            before, old = source.current, self._text()
            if before is not None and not force:
                self._refuse_lower(loaded, before)
            self._put(source, loaded, text, by=by, force=force)
            if before is not None and all(one.digest != before.digest for one in self._kept.all()):
                version = before.bundle.bundle_version
                self._kept.keep(old, version, before.digest, at=source.loaded_at, by="")
            source.reload()
            if self._digest() != loaded.digest:
                problems = source.problems or [self._problem("was not accepted")]
                if self.shelf is None and source.accepted is not None:
                    write_whole(Path(self.policy), old)
                raise BundleError(problems)
        self._kept.keep(text, loaded.bundle.bundle_version, loaded.digest, at=self.clock.now(), by=by)
        return self.current()

    def rollback(self, version: int, *, by: str = "") -> Mapping[str, Any]:
        """Activate an earlier bundle again, with the version it had."""
        text = self._kept.text(version, but=self._digest())
        if text is None:
            known = ", ".join(sorted({str(one["version"]) for one in self.earlier()})) or "none"
            self._refuse(f"version {version} is not available", f"available versions: {known}")
        return self.apply(text, force=True, by=by)

    def promote(self, policy: str, *, by: str = "") -> Mapping[str, Any]:
        """Change a policy from shadow to enforce mode in the bundle. Raises `BundleError`."""
        source = self._writable()
        with source.turn:
            if source.accepted is None:
                self._refuse(*_AWAY)
            return self.apply(promoted(self._text(), self._name(), policy), force=False, by=by)

    def _writable(self) -> BundleSource:
        """Return the source, if it can be written to."""
        source = self.source
        if source is None:
            self._refuse(*_NO_SOURCE)
        if self.signed:
            self._refuse(*_SIGNED)
        if self.shelf is None and "://" in self.policy:
            self._refuse(*_URL)
        if self.shelf is None and Path(self.policy).is_dir():
            self._refuse(*_DIRECTORY)
        return source

    def _put(self, source: BundleSource, loaded: LoadedBundle, text: bytes, *, by: str, force: bool) -> None:
        if self.shelf is None:
            try:
                write_whole(Path(self.policy), text)
            except OSError as error:
                hint = "check the permissions of the file and its directory"
                self._refuse(f"cannot be written: {error.strerror or error}", hint)
            return
        shelf = self.shelf()
        fetched = BundleBytes((BundleDocument(source.name, text),))
        try:
            shelf.push(to_push(fetched, loaded, by=by, force=force))
        except PushDeniedError as error:
            self._refuse(str(error), "or force it")
        finally:
            shelf.close()

    def _loaded(self, text: bytes) -> LoadedBundle:
        loaded = load_text(text, self._name(), now=self.clock.now())
        self.check(loaded)
        return loaded

    def _refuse_lower(self, loaded: LoadedBundle, before: LoadedBundle) -> None:
        new, old = loaded.bundle.bundle_version, before.bundle.bundle_version
        if new < old:
            problem = Problem(self._name(), 1, 1, "bundle_version", f"{new} is lower than {old}, the active version")
            raise BundleError([problem])

    def _text(self) -> bytes:
        """Return the active bundle as it was read; as JSON if it is several files, or the last good copy."""
        source = self.source
        if source is None or source.current is None:
            return b""
        read = source.accepted
        if read is not None and not read.directory:
            return read.documents[0].data
        bundle = source.current.bundle.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return json.dumps(bundle, indent=2, ensure_ascii=False).encode() + b"\n"

    def _digest(self) -> str:
        loaded = self.source.current if self.source is not None else None
        return loaded.digest if loaded is not None else ""

    def _name(self) -> str:
        is_file = self.policy and "://" not in self.policy and self.shelf is None
        return Path(self.policy).name if is_file else "bundle"

    def _refuse(self, message: str, hint: str = "") -> NoReturn:
        raise BundleError([self._problem(message, hint)])

    def _problem(self, message: str, hint: str = "") -> Problem:
        return Problem(self._name(), 1, 1, "", message, hint)


def _shown(one: StoredBundle) -> Mapping[str, Any]:
    return {"version": one.version, "digest": one.digest, "applied_at": one.applied_at, "by": one.by}

"""What a hook remembers of a session between two calls of the command: calls that are blocked, cooldowns, the window of
the detector. One small file a session, locked while it is open; no text of a prompt or a result is ever in it.

Judging is `hook_judge`'s. A file that cannot be read counts as new.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from breakloop.model.decision import Decision
from breakloop.state.ops import RepeatSpec

VERSION: Final = 1
KEPT_S: Final = 24 * 3600.0  # files that nobody has touched for so long are deleted
_HELD_MAX: Final = 64
_HOLD_S: Final = 30.0  # where a denial does not say how long
_LOCK_TRIES: Final = 100
_LOCK_WAIT_S: Final = 0.01
_SUFFIX: Final = ".session"


class Session:
    """One session, as it is remembered."""

    def __init__(self, fields: dict[str, Any], window: bytes) -> None:
        self.window = window
        self.steps = int(fields.get("steps", 0))
        self.size = int(fields.get("size", 0))
        self.strikes = int(fields.get("strikes", 0))  # blocks in a row
        # A call's digest -> its denial, and until when; a loop -> until, seconds, whether it has passed since.
        self.held = {name: {**one, "until": float(one["until"])} for name, one in fields.get("held", {}).items()}
        self.cooling = {name: [float(part) for part in one] for name, one in fields.get("cooling", {}).items()}

    def before(self, call: str, now: float) -> Decision:
        """Return what is decided about a call that is about to be made: denied where it is blocked."""
        held = self.held.get(call)
        if held is None:
            return Decision()
        left_s = held["until"] - now
        if left_s <= 0:
            del self.held[call]
            return Decision()
        self.strikes += 1
        denial = {name: value for name, value in held.items() if name != "until"}
        return Decision(**{**denial, "allowed": False, "cooldown_seconds": max(1, round(left_s))})

    def after(self, call: str, decision: Decision, now: float) -> None:
        """Take note of what was decided about a call that has been made: blocked, it is not made again."""
        if decision.allowed:
            if not decision.notice:
                self.strikes = 0
            return
        self.strikes += 1
        wait_s = decision.cooldown_seconds or decision.retry_after or _HOLD_S
        self.held[call] = {
            "until": now + wait_s,
            "reason": decision.reason,
            "status": decision.status,
            "message": decision.message,
            "kind": decision.kind,
            "hit_count": decision.hit_count,
            "fingerprint": decision.fingerprint,
            "evidence": decision.evidence,
        }

    def asked(self) -> None:
        """A person has said something: whatever was blocked may be tried again."""
        self.strikes = 0
        self.held.clear()

    def cooldown(self, loop: str, spec: RepeatSpec, now: float) -> float:
        """Return how long a loop stays blocked that is seen again; 0: this time it passes, for once."""
        until, before_s, passed = self.cooling.get(loop, (0.0, 0.0, 0.0))
        if now < until:
            return until - now
        is_remembered = until and now < until + spec.cooldown_max_s
        if is_remembered and not passed:
            self.cooling[loop] = [until, before_s, 1.0]
            return 0.0
        cooldown_s = spec.next_cooldown_s(before_s if is_remembered else None)
        self.cooling[loop] = [now + cooldown_s, cooldown_s, 0.0]
        return cooldown_s

    def dump(self, now: float) -> bytes:
        """Return it as a file has it: a line of JSON, then the window."""
        held = dict(sorted(self.held.items(), key=lambda one: -one[1]["until"])[:_HELD_MAX])
        cooling = dict(sorted(self.cooling.items(), key=lambda one: -one[1][0])[:_HELD_MAX])
        fields = {
            "v": VERSION,
            "steps": self.steps,
            "size": self.size,
            "strikes": self.strikes,
            "held": {name: one for name, one in held.items() if one["until"] > now},
            "cooling": cooling,
        }
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n" + self.window


def load(data: bytes) -> Session:
    """Return the session in a file; a new one where it cannot be read."""
    line, _, window = data.partition(b"\n")
    try:
        fields = json.loads(line) if line else {}
        if isinstance(fields, dict) and fields.get("v") == VERSION:
            return Session(fields, window)
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # half a file, or somebody else's
    return Session({}, b"")


def digest(call: tuple[str, str], secret: bytes) -> str:
    """Return what stands for a call (its name, and its arguments in one spelling) in a file."""
    matter = "\0".join(call).encode("utf-8", "surrogatepass")
    return blake2b(matter, digest_size=16, key=secret[:64]).hexdigest()


@contextmanager
def opened(folder: Path, owner: str, now: float) -> Iterator[Session]:
    """Open the session of an owner for reading and writing, and for nobody else meanwhile. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(_file(folder, owner), os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        _lock(file.fileno())
        session = load(file.read())
        yield session
        data = session.dump(now)
        file.seek(0)
        file.truncate()
        file.write(data)


def forget(folder: Path, owner: str, now: float) -> None:
    """Drop a session that has ended, and those that were left behind."""
    _file(folder, owner).unlink(missing_ok=True)
    for file in folder.glob(f"*{_SUFFIX}"):
        with suppress(OSError):
            if now - file.stat().st_mtime > KEPT_S:
                file.unlink()


def _file(folder: Path, owner: str) -> Path:
    name = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return folder / f"{name}{_SUFFIX}"


def _lock(descriptor: int) -> None:
    """Wait for another hook of the same session, but not for ever: tools that run side by side end side by side."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_WAIT_S)  # noqa: TID251 - a process of its own, with nothing else to do
        else:
            return
    raise TimeoutError("another hook holds the session")

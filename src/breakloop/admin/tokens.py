"""Who may use the admin plane (SPEC X-1, Y-3): tokens by name and role, known by their SHA-256 only. The operator's own
token is made on first start, shown once by whoever starts the process, and kept hashed in the data directory; a token
in the settings takes its place. How a token is presented is `auth`'s business."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Final

from breakloop.admin.services import OPERATOR, VIEWER

ROLES: Final = (VIEWER, OPERATOR)
OWN_NAME: Final = "operator"  # of the token that is made, or set as admin_token
FILE: Final = "admin-token.sha256"
_PREFIX: Final = "bl_"


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `digest` is its SHA-256."""

    name: str
    role: str
    digest: bytes


class Tokens:
    """The tokens that are valid in this process."""

    __slots__ = ("_known",)

    def __init__(self, known: Sequence[Token]) -> None:
        self._known = tuple(known)

    def find(self, presented: str) -> Token | None:
        """Return the token that was presented. Takes as long whichever it is, and if it is none."""
        digest = sha256(presented.encode("utf-8", "surrogatepass")).digest()
        found = None
        for token in self._known:
            if compare_digest(token.digest, digest):
                found = token
        return found

    def named(self, name: str, mark: str) -> Token | None:
        """Return the token of a session, if it still is the one that opened it."""
        return next((one for one in self._known if one.name == name and compare_digest(mark_of(one), mark)), None)


def mark_of(token: Token) -> str:
    """Return what tells a token from its successor of the same name, without giving it away."""
    return sha256(b"breakloop session of\0" + token.digest).hexdigest()[:16]


def parse_token(entry: str) -> Token:
    """Read `name:role:sha256`, as it stands in the setting `admin_tokens`. Raises `ValueError`."""
    name, role, digest = entry.rsplit(":", 2)
    if not name or role not in ROLES:
        raise ValueError(entry)
    made = Token(name, role, bytes.fromhex(digest))
    if len(made.digest) != sha256().digest_size:
        raise ValueError(entry)
    return made


def open_tokens(data_dir: Path | None, given: str, more: Sequence[str] = ()) -> tuple[Tokens, str]:
    """Return the valid tokens, and the operator's own in plain text where it was made just now: to be shown once.

    `given` is the setting `admin_token`, `more` the setting `admin_tokens`.
    """
    others = [parse_token(entry) for entry in more]
    if given:
        return Tokens([_own(sha256(given.encode()).digest()), *others]), ""
    made = _PREFIX + secrets.token_urlsafe(32)
    digest = sha256(made.encode()).digest()
    kept = digest if data_dir is None else _kept(data_dir / FILE, digest)
    return Tokens([_own(kept), *others]), made if kept == digest else ""


def _own(digest: bytes) -> Token:
    return Token(OWN_NAME, OPERATOR, digest)


def _kept(file: Path, digest: bytes) -> bytes:
    """Return the digest that is kept, which is the given one where there was none. Of two that start, one wins."""
    known = _read(file)
    if known is None:
        beside = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with suppress(OSError):  # nothing can be kept there: it holds for this run
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as made:
                made.write(digest.hex() + "\n")
                made.flush()
                os.fsync(made.fileno())
            if file.exists():  # damaged, or it would have been read
                beside.replace(file)
            else:
                with suppress(FileExistsError):  # another process was quicker
                    os.link(beside, file)
        beside.unlink(missing_ok=True)
        known = _read(file)
    return digest if known is None else known


def _read(file: Path) -> bytes | None:
    try:
        found = bytes.fromhex(file.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None
    return found if len(found) == sha256().digest_size else None

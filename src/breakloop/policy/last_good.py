"""The last good bundle on disk (SPEC B-3), so that a restart without its source still enforces. One file a source;
written whole or not at all, checked when it is read; of a signed bundle the signed bytes are kept too, and verified
anew (SPEC B-4). When to write and to use it is `policy.source`'s decision."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from breakloop.errors import BundleError, Problem
from breakloop.policy.fetched import Document, Fetched
from breakloop.policy.load import LoadedBundle, load_fetched, load_text
from breakloop.policy.sign import Verifier

_FORMAT = 1


class LastGood:
    """The copy of one source's bundle below a data directory; `source` is a path, or the key of another source."""

    __slots__ = ("_source", "path")

    def __init__(self, data_dir: Path, source: Path | str) -> None:
        self._source = str(source.absolute()) if isinstance(source, Path) else source
        name = sha256(self._source.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        self.path = data_dir / "last-good" / f"{name}.json"

    def write(self, loaded: LoadedBundle, fetched: Fetched | None = None) -> str:
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


def _signed(fetched: Fetched) -> dict[str, Any]:
    """The signed bytes, as JSON can hold them."""
    documents = [[one.name, one.kind, base64.b64encode(one.data).decode()] for one in fetched.documents]
    return {"signature": fetched.signature, "directory": fetched.directory, "documents": documents}


def _read_signed(signed: Any) -> Fetched:
    documents = tuple(
        Document(str(name), base64.b64decode(data, validate=True), str(kind))
        for name, kind, data in signed["documents"]
    )
    directory = bool(signed["directory"])
    if not documents or (len(documents) > 1 and not directory):
        raise ValueError("documents")
    return Fetched(documents, (), str(signed["signature"]), directory=directory)


def _unsigned() -> Fetched:
    return Fetched((Document("", b""),))


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

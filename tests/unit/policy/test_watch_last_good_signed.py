"""The last good copy of a signed bundle: whoever can write to the disk cannot put another one in force."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from breakloop.errors import BundleError
from breakloop.policy.load import BundleBytes, BundleDocument, load_fetched
from breakloop.policy.signing import Signer, Verifier
from breakloop.policy.watch import LastGood

SECRET = b"a shared secret of some length"
ALL = b"bundle_version: 3 # all\npolicies: [{id: a, spec: {selector: {pathPrefix: /v1/}}}]\n"
NONE = b"bundle_version: 3\npolicies: []\n"
URL = "https://policy.example/p"


def fetched(data: bytes = ALL, secret: bytes = SECRET) -> BundleBytes:
    bare = BundleBytes((BundleDocument("p.yaml", data),))
    return BundleBytes(bare.documents, (), Signer(secret).sign(bare))


def kept(folder: Path, held: BundleBytes) -> LastGood:
    copy = LastGood(folder, URL)
    assert copy.write(load_fetched(held), held) == ""
    return copy


def test_a_signed_copy_comes_back(tmp_path: Path) -> None:
    """Verified anew; with the digest of its source. Without a key it is a copy like any other (B-3, B-4)."""
    copy = kept(tmp_path, fetched())
    for verifier in (Verifier(secret=SECRET), None):
        found = copy.read(verifier)
        assert found is not None
        assert (found.bundle, found.digest) == (load_fetched(fetched()).bundle, load_fetched(fetched()).digest)
    assert SECRET.decode() not in copy.path.read_text()


def test_a_signed_directory_comes_back(tmp_path: Path) -> None:
    """All of its files (B-4)."""
    documents = (
        BundleDocument("/etc/p/a.yaml", b"bundle_version: 4\n"),
        BundleDocument("/etc/p/b.yaml", b"policies: []\n"),
    )
    bare = BundleBytes(documents, directory=True)
    held = BundleBytes(documents, (), Signer(SECRET).sign(bare), directory=True)
    found = kept(tmp_path, held).read(Verifier(secret=SECRET))
    assert found is not None
    assert found.bundle.bundle_version == 4


def test_json_by_its_content_type_comes_back(tmp_path: Path) -> None:
    """What was said of a document is kept with it (B-3)."""
    bare = BundleBytes((BundleDocument("p", b'{"bundle_version": 2, "policies": []}', "json"),))
    held = BundleBytes(bare.documents, (), Signer(SECRET).sign(bare))
    assert kept(tmp_path, held).read(Verifier(secret=SECRET)) is not None


def test_an_unsigned_copy_is_refused_where_signatures_are_wanted(tmp_path: Path) -> None:
    """An unsigned copy is refused where signatures are wanted (B-4)."""
    copy = kept(tmp_path, BundleBytes((BundleDocument("p.yaml", ALL),)))
    assert copy.read() is not None
    with pytest.raises(BundleError, match="cannot be used: it is not signed"):
        copy.read(Verifier(secret=SECRET))


def forge(copy: dict[str, Any], data: bytes) -> None:
    """Put another bundle in, with a checksum that fits, as anybody can who writes to the disk."""
    bundle = load_fetched(BundleBytes((BundleDocument("p.yaml", data),))).bundle.model_dump(
        mode="json", exclude_unset=True
    )
    text = json.dumps(bundle, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    copy |= {"bundle": bundle, "checksum": sha256(text.encode()).hexdigest()}


def forge_all(copy: dict[str, Any]) -> None:
    forge(copy, NONE)
    copy["signed"]["documents"][0][2] = base64.b64encode(NONE).decode()


def forge_signature(copy: dict[str, Any]) -> None:
    forge_all(copy)
    copy["signed"]["signature"] = fetched(NONE, b"the secret of somebody else").signature


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda copy: forge(copy, NONE), "differs from what was signed"),
        (forge_all, "has an invalid signature"),
        (forge_signature, "has an invalid signature"),
        (lambda copy: copy.pop("signed"), "is not signed"),
        (lambda copy: copy.update(signed=5), "the signed files are missing"),
        (lambda copy: copy["signed"].pop("documents"), "the signed files are missing"),
        (lambda copy: copy["signed"].update(documents=[]), "the signed files are missing"),
        (lambda copy: copy["signed"].update(documents=[["a", "", "!"]]), "the signed files are missing"),
        (lambda copy: copy["signed"].update(documents=copy["signed"]["documents"] * 2), "the signed files are missing"),
    ],
)
def test_a_tampered_copy_is_noticed(tmp_path: Path, damage: Callable[[dict[str, Any]], object], said: str) -> None:
    """A checksum can be made by anybody, a signature cannot (B-4)."""
    copy = kept(tmp_path, fetched())
    content = json.loads(copy.path.read_text())
    damage(content)
    copy.path.write_text(json.dumps(content))
    with pytest.raises(BundleError, match=said) as caught:
        copy.read(Verifier(secret=SECRET))
    assert "the last good copy cannot be used" in str(caught.value)
    assert copy.read() is not None, "the test changed nothing but what signatures are for"


def test_copies_of_urls_have_their_own_files(tmp_path: Path) -> None:
    """One file a source, whatever kind it is of (B-3)."""
    copy = kept(tmp_path, fetched())
    assert LastGood(tmp_path, URL + "?other").read() is None
    assert LastGood(tmp_path, URL).path == copy.path

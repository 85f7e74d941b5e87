"""Signatures: what fits, what does not, which keys can be read, and what is signed of a directory."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from breakloop.errors import Problem, SettingsError, UnreadableError
from breakloop.policy.load import BundleBytes, BundleDocument
from breakloop.policy.signing import (
    SignatureError,
    Signer,
    Verifier,
    make_keys,
    payload,
    read_private_key,
    read_public_keys,
    shared_secret,
)

SECRET = b"a shared secret of some length"
DATA = b"bundle_version: 1\npolicies: []\n"


def one(data: bytes = DATA, signature: str = "") -> BundleBytes:
    return BundleBytes((BundleDocument("p.yaml", data),), (), signature)


def folder(signature: str = "", **files: bytes) -> BundleBytes:
    documents = tuple(BundleDocument(f"/etc/policies/{name}.yaml", data) for name, data in sorted(files.items()))
    return BundleBytes(documents, (), signature, directory=True)


@pytest.fixture(scope="module")
def keys() -> tuple[bytes, bytes]:
    return make_keys()


@pytest.fixture
def signer(keys: tuple[bytes, bytes]) -> Signer:
    return Signer(read_private_key(keys[0], "k"))


@pytest.fixture
def verifier(keys: tuple[bytes, bytes]) -> Verifier:
    return Verifier(read_public_keys(keys[1], "p"))


def refused(verifier: Verifier, fetched: BundleBytes) -> str:
    with pytest.raises(SignatureError) as caught:
        verifier.check(fetched, "p.yaml")
    assert isinstance(caught.value, UnreadableError), "a signature may follow its bundle"
    return str(caught.value)


def test_what_was_signed_fits(signer: Signer, verifier: Verifier) -> None:
    """Ed25519, and HMAC-SHA256 with a shared secret (B-4)."""
    signature = signer.sign(one())
    assert signature.startswith("ed25519:")
    verifier.check(one(signature=signature), "p.yaml")
    shared = Signer(SECRET).sign(one())
    expected = base64.b64encode(hmac.new(SECRET, DATA, hashlib.sha256).digest()).decode()
    assert shared == f"hmac-sha256:{expected}\n"
    Verifier(secret=SECRET).check(one(signature=shared), "p.yaml")


def test_unsigned_is_refused_with_a_way_out(verifier: Verifier) -> None:
    """Also what only looks like a signature (B-4)."""
    for text in ("", "\n", "ed25519:", "ed25519:!!!", "no base64 here!"):
        said = refused(verifier, one(signature=text))
        assert said.startswith("p.yaml:1:1: ")
        assert "`breakloop bundle sign`" in said or "has an invalid signature" in said
    assert "is not signed" in refused(verifier, one())


def test_a_changed_bundle_is_refused(signer: Signer, verifier: Verifier) -> None:
    """One byte is enough, also in a comment; so is another key, or another kind of signature (B-4)."""
    signature = signer.sign(one())
    assert "has an invalid signature" in refused(verifier, one(DATA + b"#", signature))
    assert "has an invalid signature" in refused(verifier, one(DATA, Signer(SECRET).sign(one())))
    assert "has an invalid signature" in refused(Verifier(secret=SECRET), one(DATA, signature))
    other = Signer(read_private_key(make_keys()[0], "k"))
    assert "has an invalid signature" in refused(verifier, one(DATA, other.sign(one())))
    assert "has an invalid signature" in refused(verifier, one(DATA, signature.replace("ed25519", "hmac-sha256")))
    assert "has an invalid signature" in refused(Verifier(secret=SECRET), one(DATA, "hmac-sha256:" + "A" * 43 + "="))


def test_an_empty_key_fits_nothing() -> None:
    """Without a secret, what is signed with an empty one is not signed (B-4)."""
    empty = hmac.new(b"", DATA, hashlib.sha256).digest()
    assert "has an invalid signature" in refused(
        Verifier(), one(DATA, f"hmac-sha256:{base64.b64encode(empty).decode()}")
    )


def test_base64_alone_will_do_and_unknown_kinds_are_passed_over(signer: Signer, verifier: Verifier) -> None:
    """What other tools write; several lines, so that keys and kinds can be changed (B-4)."""
    signature = signer.sign(one())
    bare = signature.partition(":")[2]
    verifier.check(one(signature=bare), "p.yaml")
    verifier.check(one(signature=f"new-kind:AAAA\n???\n{Signer(SECRET).sign(one())}{signature}"), "p.yaml")
    verifier.check(one(signature="ed25519:AAAA\n" * 15 + signature), "p.yaml")
    assert "has an invalid signature" in refused(verifier, one(signature="ed25519:AAAA\n" * 16 + signature))
    assert "is not signed" in refused(verifier, one(signature=f"{bare[:8]}!{bare[8:]}"))


def test_two_keys_for_a_change(signer: Signer, keys: tuple[bytes, bytes]) -> None:
    """A file with several public keys takes what any of them signed (B-4)."""
    other = make_keys()
    both = Verifier(read_public_keys(other[1] + b"\n" + keys[1], "p"), SECRET)
    both.check(one(signature=signer.sign(one())), "p.yaml")
    both.check(one(signature=Signer(read_private_key(other[0], "k")).sign(one())), "p.yaml")
    both.check(one(signature=Signer(SECRET).sign(one())), "p.yaml")


@pytest.mark.parametrize(
    "change",
    [
        {"a": b"1", "b": b"3"},
        {"a": b"1"},
        {"a": b"1", "b": b"2", "c": b""},
        {"a": b"1", "c": b"2"},
        {"a": b"2", "b": b"1"},
    ],
)
def test_a_directory_is_signed_whole(signer: Signer, verifier: Verifier, change: dict[str, bytes]) -> None:
    """No file can be changed, left out, added, renamed or exchanged; where it lies does not matter (B-4)."""
    signature = signer.sign(folder(a=b"1", b=b"2"))
    verifier.check(folder(signature, a=b"1", b=b"2"), "policies")
    assert "has an invalid signature" in refused(verifier, folder(signature, **change))


def test_a_list_of_files_is_no_bundle(signer: Signer, verifier: Verifier) -> None:
    """What is signed of a directory cannot be given out as a file, and the other way round it is not valid (B-4)."""
    listed = payload(folder(a=b"1"))
    assert listed == f"breakloop bundle manifest 1\n{hashlib.sha256(b'1').hexdigest()}  a.yaml\n".encode()
    assert payload(one()) == DATA
    assert "has an invalid signature" in refused(verifier, folder(signer.sign(one(b"1")), a=b"1"))


def test_what_could_not_be_read_is_not_judged(verifier: Verifier) -> None:
    """Its reader says why; it is never taken (B-4)."""
    unread = BundleDocument("p.yaml", b"", unread=Problem("p.yaml", 1, 1, "", "cannot be read"))
    verifier.check(BundleBytes((unread,)), "p.yaml")


def test_public_keys_as_people_have_them(keys: tuple[bytes, bytes], signer: Signer) -> None:
    """PEM, or base64 of the 32 bytes (B-4)."""
    raw = read_public_keys(keys[1], "p")[0].public_bytes(Encoding.Raw, PublicFormat.Raw)
    (key,) = read_public_keys(base64.b64encode(raw) + b"\n", "p")
    Verifier([key]).check(one(signature=signer.sign(one())), "p.yaml")


def pem_of_another_kind() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), public


def pem_with_a_passphrase() -> bytes:
    key, locked = load_pem_private_key(make_keys()[0], None), BestAvailableEncryption(b"open sesame")
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)


def pem_of_no_known_kind(label: str, der: str) -> bytes:
    """A key of algorithm 1.2.3.4, which no library knows."""
    return f"-----BEGIN {label} KEY-----\n{base64.b64encode(bytes.fromhex(der)).decode()}\n-----END {label} KEY-----\n".encode()


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (read_public_keys, b"", "p: is empty"),
        (read_public_keys, b"c2hvcnQ=", r"p: contains no public Ed25519 key \(PEM"),
        (read_public_keys, b"not a key!", "p: contains no public Ed25519 key"),
        (read_public_keys, b"AAAA!" + b"A" * 39 + b"=", "p: contains no public Ed25519 key"),
        (read_public_keys, make_keys()[0], "it contains a private key"),
        (read_public_keys, pem_of_another_kind()[1], "not an Ed25519 key"),
        (read_public_keys, pem_of_no_known_kind("PUBLIC", "300b30050603 2a0304 03020000"), "no public Ed25519 key"),
        (read_private_key, b"", "p: contains no private key"),
        (
            read_private_key,
            pem_of_no_known_kind("PRIVATE", "300c020100 30050603 2a0304 0400"),
            "p: contains no private key",
        ),
        (read_private_key, make_keys()[1], "p: contains no private key"),
        (read_private_key, pem_with_a_passphrase(), "in PEM format without a passphrase"),
        (read_private_key, pem_of_another_kind()[0], "not an Ed25519 key"),
        (shared_secret, b"  guess  \n", "p: is shorter than 16 bytes"),
    ],
)
def test_keys_that_are_none(read: Callable[[bytes, str], object], text: bytes, said: str) -> None:
    """Said at start, with where it was read from and never its content (B-4)."""
    with pytest.raises(SettingsError, match=said) as caught:
        read(text, "p")
    assert not [word for word in text.decode().split() if word in str(caught.value) and len(word) > 4]


def test_secrets_lose_the_white_space_around_them() -> None:
    """Editors add a line end (B-4)."""
    assert shared_secret(SECRET + b"\n", "p") == SECRET
    assert shared_secret(b" 16-bytes-are-ok. ", "p") == b"16-bytes-are-ok."


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_openssl_makes_the_same(tmp_path: Path, keys: tuple[bytes, bytes], verifier: Verifier) -> None:
    """The exact bytes are signed, so that common tools can do it, as the docs say (B-4)."""
    (tmp_path / "key").write_bytes(keys[0])
    (tmp_path / "p.yaml").write_bytes(DATA)
    command = ["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", "key", "-in", "p.yaml"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
    verifier.check(one(signature=base64.b64encode(made).decode()), "p.yaml")

"""Detached signatures of bundles: Ed25519, or HMAC-SHA256 with a shared secret, over the exact bytes.

A signature is a line `ed25519:BASE64` or `hmac-sha256:BASE64`; plain base64 is accepted, too. There may be several
lines, so that keys can be rotated one machine at a time. For a directory, the list of its files with their digests
is signed, so that no file can be changed, added or removed. `policy.watch` decides when signatures are checked.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from breakloop.errors import Problem, SettingsError, UnreadableError
from breakloop.policy.load import BundleBytes

ED25519: Final = "ed25519"
HMAC: Final = "hmac-sha256"
SECRET_MIN_BYTES: Final = 16
_MANIFEST: Final = (
    "breakloop bundle manifest 1"  # no bundle starts like this, so a list of files cannot be mistaken for a bundle
)
_PEM_END: Final = b"-----END PUBLIC KEY-----"
_LINES_MAX: Final = 16


class SignatureError(UnreadableError):
    """A bundle without a valid signature. The signature may be written shortly after the bundle."""


class Verifier:
    """Accepts only bundles that were signed with one of its keys."""

    __slots__ = ("_public", "_secret")

    def __init__(self, public: Sequence[Ed25519PublicKey] = (), secret: bytes = b"") -> None:
        self._public = tuple(public)
        self._secret = secret

    def check(self, fetched: BundleBytes, name: str) -> None:
        """Raise `SignatureError` unless the bundle is signed. One that could not be read completely is not checked."""
        if any(document.unread is not None for document in fetched.documents):
            return
        given = list(_signatures(fetched.signature))
        if not given:
            hint = "sign it with `breakloop bundle sign`, and put the signature next to it"
            raise SignatureError([Problem(name, 1, 1, "", "is not signed", hint)])
        data = payload(fetched)
        if not any(self._fits(algorithm, signature, data) for algorithm, signature in given):
            hint = "it was changed after it was signed, or signed with a key that is not trusted: sign it again"
            raise SignatureError([Problem(name, 1, 1, "", "has an invalid signature", hint)])

    def _fits(self, algorithm: str, signature: bytes, data: bytes) -> bool:
        if self._secret and algorithm in {HMAC, ""} and hmac.compare_digest(_mac(self._secret, data), signature):
            return True
        return algorithm in {ED25519, ""} and any(_verifies(key, signature, data) for key in self._public)


class Signer:
    __slots__ = ("_key", "algorithm")

    def __init__(self, key: Ed25519PrivateKey | bytes) -> None:
        self._key = key
        self.algorithm = HMAC if isinstance(key, bytes) else ED25519

    def sign(self, fetched: BundleBytes) -> str:
        """Return the content of the signature file."""
        data = payload(fetched)
        raw = _mac(self._key, data) if isinstance(self._key, bytes) else self._key.sign(data)
        return f"{self.algorithm}:{base64.b64encode(raw).decode()}\n"


def payload(fetched: BundleBytes) -> bytes:
    """Return what is signed: the exact bytes of a bundle; for a directory, the list of its files with their SHA-256."""
    if not fetched.directory:
        return fetched.documents[0].data
    lines = [_MANIFEST]
    lines += [f"{sha256(one.data).hexdigest()}  {PurePath(one.name).name}" for one in fetched.documents]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def make_keys() -> tuple[bytes, bytes]:
    """Create a key pair: the private key and the public key, both PEM."""
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), public


def read_public_keys(text: bytes, where: str) -> tuple[Ed25519PublicKey, ...]:
    """Read one or several public keys: PEM, or lines of base64. Raises `SettingsError`, which names `where`."""
    try:
        if b"-----BEGIN" in text:
            blocks = [block + _PEM_END for block in text.split(_PEM_END) if b"-----BEGIN" in block]
            keys = [load_pem_public_key(block.lstrip()) for block in blocks]
            found = tuple(key for key in keys if isinstance(key, Ed25519PublicKey))
            if len(found) != len(keys):
                raise SettingsError(f"{where}: contains a key that is not an Ed25519 key")
        else:
            lines = (base64.b64decode(line, validate=True) for line in text.split())
            found = tuple(Ed25519PublicKey.from_public_bytes(line) for line in lines)
    except (ValueError, UnsupportedAlgorithm):
        hint = "it contains a private key" if b"PRIVATE" in text else "PEM, or base64 of its 32 bytes"
        raise SettingsError(f"{where}: contains no public Ed25519 key ({hint})") from None
    if not found:
        raise SettingsError(f"{where}: is empty")
    return found


def read_private_key(text: bytes, where: str) -> Ed25519PrivateKey:
    """Read a private key, PEM without a passphrase. Raises `SettingsError`, whose message contains `where`."""
    try:
        key = load_pem_private_key(text, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SettingsError(f"{where}: contains no private key in PEM format without a passphrase") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"{where}: contains a key that is not an Ed25519 key")
    return key


def shared_secret(text: bytes, where: str) -> bytes:
    """Return a secret without surrounding white space. Raises `SettingsError` if it is easy to guess."""
    secret = text.strip()
    if len(secret) < SECRET_MIN_BYTES:
        raise SettingsError(f"{where}: is shorter than {SECRET_MIN_BYTES} bytes (use openssl rand -hex 32)")
    return secret


def _signatures(text: str) -> Iterator[tuple[str, bytes]]:
    """Return every line that can be a signature. Others are skipped, so that new kinds can be added."""
    for line in text.split()[:_LINES_MAX]:
        algorithm, _, encoded = line.rpartition(":")
        try:
            yield algorithm.lower(), base64.b64decode(encoded, validate=True)
        except ValueError:
            continue


def _mac(secret: bytes, data: bytes) -> bytes:
    return hmac.digest(secret, data, "sha256")


def _verifies(key: Ed25519PublicKey, signature: bytes, data: bytes) -> bool:
    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True

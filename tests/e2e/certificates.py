"""A private authority and certificates of its, for a test's length of time."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)


class Files(NamedTuple):
    """Where a certificate and its key are."""

    certificate: Path
    key: Path

    @property
    def server(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self.certificate, self.key)
        return made


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.file = folder / f"{name}.pem"
        builder = _builder(self._name, self._name, self._key, 1)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
        self.file.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def issue(self, *names: str, days: int = 1) -> Files:
        """Make a certificate for these names or addresses; negative days: one that has run out."""
        key = ec.generate_private_key(ec.SECP256R1())
        known = x509.SubjectAlternativeName([_general(name) for name in names])
        builder = _builder(_name(names[0]), self._name, key, days).add_extension(known, critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        stem = f"{self.file.stem}-{names[0]}{days}"
        files = Files(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        files.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        secret = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, *secret))
        return files

    @property
    def client(self) -> ssl.SSLContext:
        """For clients that trust it."""
        return ssl.create_default_context(cafile=str(self.file))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    public = key.public_key()
    serial = x509.random_serial_number()
    builder = x509.CertificateBuilder(issuer, subject, public, serial, now - 3 * DAY, now + days * DAY)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)

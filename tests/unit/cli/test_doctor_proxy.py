"""What `doctor` says about the traffic port: reach, keys, upstreams, certificates."""

from __future__ import annotations

import resource
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from breakloop.cli.doctor import examine_proxy
from breakloop.config.settings import Settings
from breakloop.policy.client import is_loopback

CALLERS = [f"alice={sha256(b'key').hexdigest()}"]
CANARY = "sk-canary-13fe"


def says(level: str, **values: object) -> str:
    settings = Settings.model_validate(values)
    return "\n".join(f"{one.about}: {one.message}" for one in examine_proxy(settings) if one.level == level)


def everything(**values: object) -> str:
    return "".join(says(level, **values) for level in ("problem", "warning", "note"))


@pytest.fixture(autouse=True)
def _many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (65_536, 65_536))


@pytest.fixture
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", CANARY)


def certificate(folder: Path) -> tuple[str, str]:
    """Write a self-signed certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2120, 1, 1, tzinfo=UTC))
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key_file.write_bytes(key.private_bytes(*form))
    key_file.chmod(0o600)
    return str(cert_file), str(key_file)


def test_defaults_have_nothing_to_say() -> None:
    """No false alarms (T-1)."""
    assert everything() == ""


@pytest.mark.usefixtures("_key")
def test_provider_keys_open_to_everybody() -> None:
    """Keys held, no callers asked, and other machines reach it (Y-6)."""
    held: dict[str, object] = {"upstream_keys": ["openai=env:KEY", "gemini=env:KEY"]}
    text = says("warning", host="0.0.0.0", **held)
    assert text.startswith("callers: anyone who can reach 0.0.0.0 can use the provider keys (openai, gemini)")
    assert everything(**held) == ""
    assert "callers" not in says("warning", host="0.0.0.0", callers=CALLERS, mode="proxy", **held)
    assert CANARY not in text


def test_reach_without_keys() -> None:
    """Asked for a key or not, and in the clear or not (T-1, Y-6)."""
    assert "host: 0.0.0.0 is reachable from other machines, and no key is required" in says("warning", host="0.0.0.0")
    text = says("warning", host="0.0.0.0", callers=CALLERS)
    assert text == "tls: 0.0.0.0 is reachable from other machines, and keys are sent without TLS (set tls)"
    assert everything(callers=CALLERS) == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_loopback(host: str) -> None:
    """What only this machine reaches (T-1)."""
    assert is_loopback(host)
    assert not is_loopback("0.0.0.0")


def test_keys_that_are_not_there() -> None:
    """A start would fail; said by name (Y-6)."""
    text = says("problem", upstream_keys=["openai=env:NO_SUCH_VARIABLE"])
    assert text == "upstream_keys: openai: environment variable NO_SUCH_VARIABLE is not set"


@pytest.mark.usefixtures("_key")
def test_keys_in_the_clear(tmp_path: Path) -> None:
    """Over plain HTTP to another machine, or in a file that others read (Y-6)."""
    given: dict[str, object] = {"upstream": ["x=http://x.example/v1"], "upstream_keys": ["x=env:KEY"]}
    assert says("warning", **given) == "upstream_keys: the key of x is sent to http://x.example/v1 without TLS"
    assert everything(upstream=["x=http://127.0.0.1:9"], upstream_keys=["x=env:KEY"]) == ""
    file = tmp_path / "key"
    file.write_text(CANARY)
    file.chmod(0o644)
    text = says("warning", upstream_keys=[f"openai=file:{file}"])
    assert text == f"upstream_keys: the key of openai can be read by other users (chmod 600 {file})"
    file.chmod(0o600)
    assert everything(upstream_keys=[f"openai=file:{file}"]) == ""


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"upstream": ["x=http://127.0.0.1:8787"]}, True),
        ({"upstream": ["x=http://localhost:8787/v1"]}, True),
        ({"upstream": ["x=http://localhost:8787"], "host": "0.0.0.0", "callers": CALLERS}, True),
        ({"upstream": ["x=http://gw.example:8787"], "host": "gw.example", "callers": CALLERS}, True),
        ({"upstream": ["x=http://127.0.0.1:8788"]}, False),
        ({"upstream": ["x=http://gw.example:8787"]}, False),
        ({"upstream": ["x=http://127.0.0.1:8787"], "port": 0}, False),
    ],
)
def test_an_upstream_that_is_this_port(values: dict[str, object], wrong: bool) -> None:
    """Said before the first 508 (LD-9)."""
    expected = "upstream: x points back at this port: requests to it get status 508" if wrong else ""
    assert says("problem", **values) == expected


def test_upstreams_without_a_proxy() -> None:
    """Settings that do nothing are said (T-2)."""
    text = says("note", mode="decision", upstream=["x=http://127.0.0.1:8787"])
    assert text == "upstream: is not used: mode decision forwards nothing"


def test_certificates(tmp_path: Path) -> None:
    """They are tried; a private key that others can read is warned of (Y-6)."""
    cert, key = certificate(tmp_path)
    assert everything(tls={"cert_file": cert, "key_file": key}, upstream_ca_file=cert) == ""
    Path(key).chmod(0o640)
    assert f"tls.key_file: {key} can be read by other users" in says(
        "warning", tls={"cert_file": cert, "key_file": key}
    )
    assert says("problem", tls={"cert_file": key, "key_file": key}).startswith(f"tls: {key} and {key} cannot be used: ")
    none = str(tmp_path / "none.pem")
    text = says("problem", tls={"cert_file": none, "key_file": key}, upstream_ca_file=none)
    assert f"tls: {none} and {key} cannot be used: No such file or directory" in text
    assert f"upstream_ca_file: {none} cannot be used: No such file or directory" in text
    assert "upstream_ca_file: " in says("problem", upstream_ca_file=key)


def test_a_private_key_with_a_passphrase_is_said_and_not_asked_for(tmp_path: Path) -> None:
    """There is nobody to type it when a service starts (Y-6)."""
    cert, key = certificate(tmp_path)
    private = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    Path(key).write_bytes(private.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")))
    assert says("problem", tls={"cert_file": cert, "key_file": key}).startswith("tls: ")


def test_a_low_limit_on_open_files_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the clients find it (Y-2)."""
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, 1024))
    assert "the limit on open files allows 412 of 10000" in says("warning")
    assert "open files" not in everything(limits={"connections": 400})

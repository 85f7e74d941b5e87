"""Which source and which keys the settings mean, and what is said about those that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from breakloop.app.build import policy_source, policy_tls, policy_verifier
from breakloop.clock import SystemClock
from breakloop.config.settings import Settings
from breakloop.errors import SettingsError
from breakloop.policy.load import BundleBytes, BundleDocument
from breakloop.policy.signing import SignatureError, Signer, make_keys, read_private_key
from breakloop.policy.sources import FileOrigin, HttpOrigin, RedisOrigin
from tests.bundle_server import bundle_server
from tests.e2e.certificates import Authority

SECRET = "a shared secret of some length"


def settings(**values: Any) -> Settings:
    return Settings.model_validate(values)


def test_files_urls_and_nothing(tmp_path: Path) -> None:
    """A path, a URL with its own pace, Redis, or none at all; a file and Redis are asked twice a second, so that what is
    new is in force within one (B-3, T-2)."""
    clock = SystemClock()
    assert policy_source(settings(), clock, signed=False) is None
    file = policy_source(settings(policy=str(tmp_path)), clock, signed=False)
    assert isinstance(file, FileOrigin)
    assert file.wait_s(0) == 0.5
    pushed = policy_source(settings(policy="redis", state="redis://127.0.0.1:1"), clock, signed=False)
    assert isinstance(pushed, RedisOrigin)
    assert 0.45 <= pushed.wait_s(0) <= 0.5
    source = policy_source(settings(policy="https://x/p", policy_poll_seconds=2), clock, signed=False)
    assert isinstance(source, HttpOrigin)
    assert 1.8 <= source.wait_s(0) <= 2
    assert 30 <= source.wait_s(20) <= 60


def test_the_token_is_sent(tmp_path: Path) -> None:
    """As given, or out of a file; one that cannot be sent is refused without being repeated (B-3, Y-1)."""
    (tmp_path / "token").write_text("tok-1\n")
    with bundle_server() as server:
        for given in ({"policy_token": "tok-1"}, {"policy_token_file": str(tmp_path / "token")}):
            server.put("/p", "bundle_version: 1\npolicies: []\n")
            source = policy_source(settings(policy=server.url + "/p", **given), SystemClock(), signed=False)
            assert source is not None
            assert source.fetch(None) is not None
            assert server.field("Authorization") == "Bearer tok-1"
    with pytest.raises(SettingsError, match="policy_token: must contain only a token") as caught:
        policy_source(settings(policy="https://x/p", policy_token="tok one"), SystemClock(), signed=False)
    assert "tok one" not in str(caught.value)


def test_a_private_authority(tmp_path: Path) -> None:
    """A certificate of `policy_ca_file` is trusted, beside those of the system (B-3)."""
    authority = Authority(tmp_path)
    with bundle_server(authority.issue("127.0.0.1").server) as server:
        server.put("/p", "bundle_version: 1\npolicies: []\n")
        own = settings(policy=server.url + "/p", policy_ca_file=str(authority.file))
        source = policy_source(own, SystemClock(), signed=False)
        assert source is not None
        assert source.fetch(None) is not None
    assert policy_tls(settings(policy="http://x/p", policy_ca_file=str(authority.file))) is None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("policy_ca_file", "no pem", "policy_ca_file: contains no certificate in PEM format"),
        ("policy_ca_file", None, "policy_ca_file: .*: cannot be read: No such file"),
        ("policy_token_file", "", "policy_token_file: .* is empty"),
        ("policy_token_file", None, "policy_token_file: .*: cannot be read: No such file"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    """Said at start, by the name of the setting (T-1)."""
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=said):
        policy_source(settings(policy="https://x/p", **{name: str(file)}), SystemClock(), signed=False)


def test_keys_of_signatures(tmp_path: Path) -> None:
    """None means unsigned bundles are taken; public keys and shared secrets are read, from files too (B-4)."""
    assert policy_verifier(settings()) is None
    private, public = make_keys()
    (tmp_path / "p.pub").write_bytes(public)
    (tmp_path / "secret").write_text(SECRET + "\n")
    bare = BundleBytes((BundleDocument("p.yaml", b"x"),))
    by_key = BundleBytes(bare.documents, (), Signer(read_private_key(private, "k")).sign(bare))
    by_secret = BundleBytes(bare.documents, (), Signer(SECRET.encode()).sign(bare))
    for given, fits, other in (
        ({"policy_public_key_file": str(tmp_path / "p.pub")}, by_key, by_secret),
        ({"policy_hmac_secret": SECRET}, by_secret, by_key),
        ({"policy_hmac_secret_file": str(tmp_path / "secret")}, by_secret, by_key),
    ):
        verifier = policy_verifier(settings(**given))
        assert verifier is not None
        verifier.check(fits, "p.yaml")
        with pytest.raises(SignatureError):
            verifier.check(other, "p.yaml")


def test_keys_that_cannot_be_used(tmp_path: Path) -> None:
    """A key that is missing or none never means "unsigned will do" (B-4)."""
    (tmp_path / "empty").write_text("")
    for given, said in (
        ({"policy_public_key_file": str(tmp_path / "none")}, "policy_public_key_file: .*cannot be read"),
        ({"policy_public_key_file": str(tmp_path / "empty")}, "policy_public_key_file: .*is empty"),
        ({"policy_hmac_secret_file": str(tmp_path / "empty")}, "policy_hmac_secret_file: .*is empty"),
        ({"policy_hmac_secret": "short"}, "policy_hmac_secret: is shorter than 16 bytes"),
    ):
        with pytest.raises(SettingsError, match=said):
            policy_verifier(settings(**given))

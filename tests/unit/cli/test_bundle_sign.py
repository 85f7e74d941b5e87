"""`breakloop bundle keygen`, `sign`, `verify`: files, messages, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from breakloop.cli.main import PROBLEM, USAGE, run

GOOD = "bundle_version: 1\npolicies: []\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text(GOOD)


def test_from_keys_to_a_verified_bundle(capsys: pytest.CaptureFixture[str]) -> None:
    """Three commands; a changed bundle is noticed (B-4, X-3)."""
    assert run(["bundle", "keygen"]) == 0
    assert Path("policy.key").stat().st_mode & 0o777 == 0o600
    assert run(["bundle", "sign", "p.yaml", "--key", "policy.key"]) == 0
    assert Path("p.yaml.sig").read_text().startswith("ed25519:")
    assert run(["bundle", "verify", "p.yaml", "--public-key", "policy.pub"]) == 0
    assert capsys.readouterr().out.endswith("p.yaml: the signature is valid\n")
    Path("p.yaml").write_text(GOOD + "#")
    assert run(["bundle", "verify", "p.yaml", "--public-key", "policy.pub"]) == PROBLEM
    assert "p.yaml:1:1: has an invalid signature" in capsys.readouterr().err


def test_keys_are_not_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    """A lost private key cannot be made again (B-4)."""
    assert run(["bundle", "keygen", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["private_key"] == "mine.key"
    before = Path("mine.key").read_bytes()
    assert run(["bundle", "keygen", "mine"]) == PROBLEM
    assert "mine.key: cannot be written: File exists" in capsys.readouterr().err
    assert Path("mine.key").read_bytes() == before


def test_a_shared_secret_and_a_change_of_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """`--add` keeps the signatures that are there, so that both keys work meanwhile (B-4)."""
    for name in ("old", "new"):
        Path(name).write_text(f"the {name} shared secret\n")
    assert run(["bundle", "sign", "p.yaml", "--secret-file", "old"]) == 0
    assert run(["bundle", "sign", "p.yaml", "--secret-file", "new", "--add", "--json"]) == 0
    for name in ("old", "new"):
        assert run(["bundle", "verify", "p.yaml", "--secret-file", name, "--json"]) == 0
    assert run(["bundle", "sign", "p.yaml", "--secret-file", "new"]) == 0
    assert run(["bundle", "verify", "p.yaml", "--secret-file", "old", "--json"]) == PROBLEM
    assert "shared secret" not in capsys.readouterr().out


def test_a_directory_is_signed_whole() -> None:
    """One signature in it; a file more is noticed (B-4)."""
    Path("policies").mkdir()
    Path("policies/a.yaml").write_text(GOOD)
    Path("secret").write_text("a shared secret of some length")
    assert run(["bundle", "sign", "policies", "--secret-file", "secret"]) == 0
    assert Path("policies/bundle.sig").is_file()
    assert run(["bundle", "verify", "policies", "--secret-file", "secret"]) == 0
    Path("policies/b.yaml").write_text("policies: []\n")
    assert run(["bundle", "verify", "policies", "--secret-file", "secret"]) == PROBLEM


def test_keys_of_the_settings() -> None:
    """`verify` alone asks what the server would (B-4)."""
    Path("secret").write_text("a shared secret of some length")
    Path("breakloop.yaml").write_text("policy_hmac_secret_file: secret\n")
    assert run(["bundle", "verify", "p.yaml"]) == PROBLEM
    assert run(["bundle", "sign", "p.yaml", "--secret-file", "secret"]) == 0
    assert run(["bundle", "verify", "p.yaml"]) == 0


def test_what_cannot_be_signed_or_verified(capsys: pytest.CaptureFixture[str]) -> None:
    """No key, two keys, no bundle, a key that is none: 3 for a wrong call, 1 for a problem (B-4, X-3)."""
    Path("secret").write_text("a shared secret of some length")
    Path("bad.yaml").write_text("bundle_version: 0\n")
    assert run(["bundle", "sign", "p.yaml"]) == USAGE
    assert run(["bundle", "sign", "p.yaml", "--secret-file", "secret", "--key", "secret"]) == USAGE
    assert run(["bundle", "sign", "none.yaml", "--secret-file", "secret"]) == USAGE
    assert run(["bundle", "verify", "p.yaml"]) == USAGE
    capsys.readouterr()
    assert run(["bundle", "sign", "bad.yaml", "--secret-file", "secret"]) == PROBLEM
    assert "bad.yaml:1:17: bundle_version" in capsys.readouterr().err
    assert not Path("bad.yaml.sig").exists()
    assert run(["bundle", "sign", "p.yaml", "--key", "secret"]) == PROBLEM
    assert "secret: contains no private key" in capsys.readouterr().err
    assert run(["bundle", "verify", "p.yaml", "--public-key", "secret", "--json"]) == PROBLEM
    assert "contains no public Ed25519 key" in json.loads(capsys.readouterr().out)["error"]

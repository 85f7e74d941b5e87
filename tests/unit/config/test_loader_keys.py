"""Provider keys: read from where the settings say, and never part of a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakloop.config.loader import alert_secrets, provider_keys
from breakloop.config.settings import Settings
from breakloop.errors import SettingsError

CANARY = "sk-canary-77aa"


def read_keys(entries: list[str], env: dict[str, str]) -> dict[str, bytes]:
    return provider_keys(Settings.model_construct(upstream_keys=entries), env)


def test_from_environment_and_file(tmp_path: Path) -> None:
    """White space around a key is no part of it: files end in a line feed (Y-6)."""
    file = tmp_path / "key"
    file.write_text(f"{CANARY}\n")
    assert read_keys([f"x=file:{file}", "openai=env:KEY"], {"KEY": " k1 "}) == {"x": CANARY.encode(), "openai": b"k1"}
    assert read_keys([], {}) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "environment variable KEY is not set"),
        ("", "environment variable KEY is not set"),
        ("  ", "environment variable KEY is not set"),
        (f"{CANARY} {CANARY}", "must contain only a key"),
        (f"{CANARY}\r\nX-Evil: 1", "must contain only a key"),
        (f"{CANARY}ä", "must contain only a key"),
    ],
)
def test_a_variable_that_holds_no_key(text: str | None, said: str) -> None:
    """Said by name; nothing that could end a header line gets into one (Y-1, Y-3, Y-6)."""
    with pytest.raises(SettingsError) as raised:
        read_keys(["openai=env:KEY"], {} if text is None else {"KEY": text})
    assert str(raised.value).startswith("upstream_keys: openai: ")
    assert said in str(raised.value)
    assert CANARY not in str(raised.value)


def test_a_file_that_holds_no_key(tmp_path: Path) -> None:
    """Missing, a directory, empty, or not text (Y-6)."""
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe")
    for path, said in (
        (tmp_path / "none", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (binary, "cannot be read: not UTF-8 text"),
        (empty, "is empty"),
    ):
        with pytest.raises(SettingsError) as raised:
            read_keys([f"x=file:{path}"], {})
        assert str(raised.value) == f"upstream_keys: x: {path} {said}"


def test_other_secrets_are_named_by_their_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is read once; what is wrong is said with the name of its setting (Y-1, G-4)."""
    monkeypatch.setattr("breakloop.config.loader.secret_references", iter)

    def read_references(named: list[tuple[str, str]], env: dict[str, str]) -> dict[str, str]:
        return alert_secrets(Settings.model_construct(alert_targets=named), env)

    file = tmp_path / "secret"
    file.write_text(f"{CANARY} x\n")
    assert read_references([("a.b", f"file:{file}"), ("c", "env:X")], {"X": "y"}) == {
        f"file:{file}": f"{CANARY} x",
        "env:X": "y",
    }
    for reference, said in (
        ("env:NONE", "is not set"),
        (f"file:{tmp_path}/none", "cannot be read"),
        ("env:TWO", "must contain one line of ASCII"),
    ):
        with pytest.raises(SettingsError, match=said) as raised:
            read_references([("a.b", reference)], {"TWO": f"{CANARY}\n{CANARY}"})
        assert str(raised.value).startswith("a.b: ")
        assert CANARY not in str(raised.value)

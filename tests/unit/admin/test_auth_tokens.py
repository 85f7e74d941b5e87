"""Tests of the tokens in `admin.auth`: what is known, what is made, what is kept."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from breakloop.admin.auth import FILE, OWN_NAME, AdminToken, AdminTokens, mark_of, open_tokens, parse_token


def test_the_operators_token_is_made_once_and_kept_hashed(tmp_path: Path) -> None:
    """Made on first start, shown once, and not to be found on disk (X-1)."""
    tokens, shown = open_tokens(tmp_path, "")
    assert len(shown) > 40
    found = tokens.find(shown)
    assert found is not None
    assert (found.name, found.role) == (OWN_NAME, "operator")
    assert shown not in "".join(file.read_text() for file in tmp_path.iterdir())
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    again, shown_again = open_tokens(tmp_path, "")
    assert shown_again == ""
    assert again.find(shown) == found


def test_another_is_made_after_its_file_was_removed(tmp_path: Path) -> None:
    _, first = open_tokens(tmp_path, "")
    (tmp_path / FILE).unlink()
    tokens, second = open_tokens(tmp_path, "")
    assert second not in ("", first)
    assert tokens.find(first) is None


@pytest.mark.parametrize("damage", ["", "zz", "abcd"])
def test_a_damaged_file_is_replaced(tmp_path: Path, damage: str) -> None:
    (tmp_path / FILE).write_text(damage)
    tokens, shown = open_tokens(tmp_path, "")
    assert tokens.find(shown) is not None
    assert open_tokens(tmp_path, "")[1] == ""


def test_a_token_of_the_settings_takes_its_place(tmp_path: Path) -> None:
    """BREAKLOOP_ADMIN_TOKEN sets it, and nothing is written (T-2)."""
    tokens, shown = open_tokens(tmp_path, "from the environment")
    assert shown == ""
    assert tokens.find("from the environment") is not None
    assert list(tmp_path.iterdir()) == []


def test_without_a_directory_it_holds_for_this_run(tmp_path: Path) -> None:
    tokens, shown = open_tokens(None, "")
    assert tokens.find(shown) is not None
    tokens, shown = open_tokens(tmp_path / "is" / "not" / "there", "")
    assert tokens.find(shown) is not None


def test_more_tokens_have_names_and_roles() -> None:
    digest = sha256(b"watch me").hexdigest()
    tokens, _ = open_tokens(None, "own", [f"team:blue:viewer:{digest}"])
    assert tokens.find("watch me") == AdminToken("team:blue", "viewer", sha256(b"watch me").digest())
    assert tokens.find("own") is not None
    assert tokens.find("") is None
    assert tokens.find("watch me\ud800") is None


@pytest.mark.parametrize("entry", ["", "a", "a:b", ":viewer:" + "0" * 64, "a:admin:" + "0" * 64, "a:viewer:00", "a:viewer:x"])  # fmt: skip
def test_a_wrong_entry_is_refused(entry: str) -> None:
    with pytest.raises(ValueError):
        parse_token(entry)


def test_a_session_belongs_to_one_token() -> None:
    old, new = AdminToken("ada", "operator", b"1" * 32), AdminToken("ada", "operator", b"2" * 32)
    assert AdminTokens([old]).named("ada", mark_of(old)) is old
    assert AdminTokens([new]).named("ada", mark_of(old)) is None
    assert AdminTokens([old]).named("eve", mark_of(old)) is None
    assert old.digest.hex() not in mark_of(old)

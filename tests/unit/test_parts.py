"""Settings become parts: each value arrives where it works."""

from __future__ import annotations

from pathlib import Path

from breakloop.parts import context
from breakloop.settings import Settings


def settings(tmp_path: Path, **values: object) -> Settings:
    return Settings.model_validate({"data_dir": str(tmp_path / "data"), "port": 0, **values})


def test_jwt_settings_become_keys(tmp_path: Path) -> None:
    """C-3: any of the three makes tokens verified; none leaves them unverified."""
    assert context(settings(tmp_path), b"k").jwt is None
    keys = context(settings(tmp_path, jwt={"secret": "s", "audience": "a", "leeway_seconds": 2.0}), b"k").jwt
    assert keys is not None
    assert (keys.secret, keys.audience, keys.leeway_s) == ("s", "a", 2.0)

"""Files: kept by browsers, nothing of others but what VERSIONS.txt names."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from breakloop.admin.dashboard.render import FOR_EVER, STATIC, digest
from tests.admin_client import client
from tests.admin_world import full

VENDORS = (STATIC / "vendor", Path(__file__).resolve().parents[3] / "vendor")


def test_files_are_served_to_everybody() -> None:
    """The login page needs them; policy and type are on them, too."""
    made = client(full(), "")
    answer = made.get("/static/style.css?v=x")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == FOR_EVER
    assert answer.headers["content-type"].startswith("text/css")
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = made.get("/static/style.css", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304
    assert again.headers["cache-control"] == FOR_EVER
    assert made.get("/static/%2e%2e/page.py").status_code == 404
    assert made.get("/static/none.js").status_code == 404


@pytest.mark.parametrize("folder", VENDORS, ids=["shipped", "tests"])
def test_vendored_files_are_what_they_were(folder: Path) -> None:
    """Each is named with version, licence and digest, and unchanged."""
    rows = [line.split() for line in (folder / "VERSIONS.txt").read_text("utf-8").splitlines()[2:]]
    assert rows
    for _, version, licence, name, wanted in rows:
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
        assert licence
        assert sha256((folder / name).read_bytes()).hexdigest() == wanted
    code = {path.name for path in folder.iterdir() if path.suffix in {".js", ".css"}}
    assert code == {row[3] for row in rows}


def test_nothing_leads_outside() -> None:
    """Our own style and scripts ask for nothing elsewhere (Y-1)."""
    own = [path for path in STATIC.iterdir() if path.suffix in {".css", ".js"}]
    assert len(own) >= 4
    for path in own:
        text = path.read_text("utf-8")
        assert not re.search(r"https?://|url\(|@import|\beval\b|innerHTML\s*=|new Function", text), path.name


def test_digest() -> None:
    assert digest(b"a") == sha256(b"a").hexdigest()[:12]

"""The dependency audit finds what it says it finds, and says what it could not look at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.message import Message
from pathlib import Path

import pytest

from scripts import audit, forbidden_calls, gen_docs, licences, lockfile

ROOT = Path(__file__).resolve().parent.parent
LOCKED = "alpha==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n    # via breakloop\nBeta_b[x]==2.0 ; sys_platform == 'win32' \\\n    --hash=sha256:cc\n"


def test_lock_file_is_read() -> None:
    """Names are canonical, markers and extras do not confuse it, hashes are counted (Y-5)."""
    pins = lockfile.parse(LOCKED)
    assert {(pin.name, *pin.versions, pin.hashes) for pin in pins.values()} == {
        ("alpha", "1.0", 2),
        ("beta-b", "2.0", 1),
    }


def test_unpinned_line_is_refused() -> None:
    """A lock file that locks nothing is not one (Y-5)."""
    with pytest.raises(ValueError, match="alpha>=1"):
        lockfile.parse("alpha>=1\n")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"alpha": "1.0"}, []),
        ({"alpha": "1.1"}, ["alpha 1.1: installed, but 1.0 is locked"]),
        ({"gamma": "3"}, ["gamma 3: installed but not in the lock file"]),
    ],
)
def test_installed_must_be_locked(found: dict[str, str], expected: list[str]) -> None:
    """A package that nobody locked, or another version of it, is a finding (Y-5)."""
    assert lockfile.differences(lockfile.parse(LOCKED), found) == expected


def test_pin_without_hash_is_a_finding() -> None:
    """A version can be replaced on an index, a hash cannot (Y-5)."""
    assert lockfile.differences(lockfile.parse("alpha==1.0\n"), {}) == ["alpha: locked without a hash"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import pickle", "import pickle"),
        ("from pickle import loads", "import pickle"),
        ("eval('1')", "eval"),
        ("exec(text)", "exec"),
        ("import yaml\n", "import yaml"),
        ("import hashlib\nhashlib.md5(b'')", "hashlib.md5"),
        ("import hashlib as h\nh.sha1(b'')", "hashlib.sha1"),
        ("from hashlib import sha1 as s\ns(b'')", "hashlib.sha1"),
        ("import hashlib\nhashlib.new('SHA-1')", "hashlib.new(sha1)"),
        ("import subprocess\nsubprocess.run('ls', shell=True)", "shell=True"),
        ("client(verify=False)", "verify=False"),
        ("import os\nos.system('ls')", "os.system"),
    ],
)
def test_forbidden_calls_are_found(source: str, name: str) -> None:
    """No pickle, no eval, and their relatives (Y-5)."""
    assert name in [found for _, found, _ in forbidden_calls.findings(source)]


@pytest.mark.parametrize(
    "source",
    ["text = 'eval(x)'  # pickle", "model.eval()", "re.compile('x')", "hashlib.sha256(b'')", "run(shell=False)"],
)
def test_harmless_code_is_left_alone(source: str) -> None:
    """Words in strings and comments, and methods that share a name, are no findings (Y-5)."""
    assert forbidden_calls.findings(source) == []


def test_forbidden_calls_in_a_tree(tmp_path: Path) -> None:
    """Located findings; an allowance works for its file only, and is a finding itself once unused (Y-5)."""
    (tmp_path / "a.py").write_text("\nimport pickle\n")
    (tmp_path / "b.py").write_text("")
    assert forbidden_calls.scan(tmp_path, {}) == ["a.py:2: import pickle: runs code on loading"]
    assert forbidden_calls.scan(tmp_path, {"a.py": frozenset({"import pickle"})}) == []
    assert forbidden_calls.scan(tmp_path, {"a.py": frozenset({"import pickle"}), "b.py": frozenset({"eval"})}) == [
        "b.py: eval is allowed but not used any more"
    ]


@pytest.mark.slow
def test_product_has_no_forbidden_calls() -> None:
    """The product itself (Y-5)."""
    assert forbidden_calls.scan(ROOT / "src", forbidden_calls.ALLOWED) == []


@pytest.mark.parametrize(
    ("header", "value", "expected"),
    [
        ("License-Expression", "MIT", ""),
        ("License-Expression", "(MPL-2.0 AND MIT)", ""),
        ("License-Expression", "GPL-3.0-only OR Apache-2.0", ""),
        ("License-Expression", "Apache-2.0 AND GPL-3.0-only", "licence Apache-2.0 AND GPL-3.0-only"),
        ("Classifier", "License :: OSI Approved :: BSD License", ""),
        (
            "Classifier",
            "License :: OSI Approved :: GNU General Public License v3 (GPLv3)",
            "licence GNU General Public License v3 (GPLv3)",
        ),
        ("License", "Apache 2.0\nand the whole text", ""),
        ("License", "3-Clause BSD License", ""),
        ("License", "Proprietary", "licence Proprietary"),
        ("Name", "x", "no licence in its metadata"),
    ],
)
def test_licences(header: str, value: str, expected: str) -> None:
    """Only licences on the list (Y-5)."""
    metadata = Message()
    metadata[header] = value
    assert licences.problem(metadata) == expected


def answer(*packages: Mapping[str, object]) -> audit.Ask:
    return lambda: (json.dumps({"dependencies": packages}), "")


def test_known_advisory_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """A vulnerable package fails the audit, by name and with the way out (Y-5)."""
    vulnerable = {"name": "alpha", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}
    part = audit.advisory_part(answer(vulnerable, {"name": "beta", "version": "2", "vulns": []}))
    assert part.problems == ["alpha 1.0: CVE-1 (mended in: 1.1)"]
    assert audit.report([part]) == 1
    assert "CVE-1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "ask",
    [
        lambda: ("", "Traceback\nConnectionError: no route"),
        lambda: ("", ""),
        answer({"name": "alpha", "skip_reason": "not found"}, {"name": "beta", "skip_reason": "not found"}),
    ],
)
def test_silent_service_is_said_and_does_not_fail(ask: audit.Ask, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its service the audit says what it did not look at, and does not claim to have (Y-5)."""
    assert audit.report([audit.advisory_part(ask)]) == 0
    output = capsys.readouterr().out
    assert "advisory database not reachable: not checked" in output
    assert "advisories: ok" not in output


def test_partly_known_packages_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A package the service does not know is named (Y-5)."""
    part = audit.advisory_part(
        answer({"name": "alpha", "version": "1", "vulns": []}, {"name": "beta", "skip_reason": "?"})
    )
    assert audit.report([part]) == 0
    output = capsys.readouterr().out
    assert "does not know beta" in output
    assert "advisories: ok, 1 packages" in output


def test_generated_pages_are_written_and_checked(tmp_path: Path) -> None:
    """A page that differs from what the code says is stale until it is written again."""
    pages = {"docs/a.md": lambda: "A\n", "docs/b.md": lambda: "B\n"}
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("A\n")
    assert gen_docs.stale(pages, tmp_path) == ["docs/b.md"]
    assert gen_docs.write(pages, tmp_path) == ["docs/b.md"]
    assert gen_docs.stale(pages, tmp_path) == []
    (tmp_path / "docs" / "a.md").write_text("old\n")
    assert gen_docs.stale(pages, tmp_path) == ["docs/a.md"]

"""The closed list of reasons, and that the code says nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import breakloop
from breakloop.model.decision import ALLOWED
from breakloop.model.verdict import ALLOWED_NO_POLICY, REASONS
from tests.each import each

SRC = Path(breakloop.__file__).parent
LISTED = {
    "no_bundle_loaded",
    "kill_switch",
    "loop_detected",
    "circuit_breaker_open",
    "agent_quarantined",
    "agent_inactive",
    "outside_hours",
    "agent_budget_exceeded",
    "run_limit_exceeded",
    "run_rate_exceeded",
    "tree_budget_exceeded",
    "missing_descriptor",
    "store_unavailable",
    "run_paused",
    "unknown_model",
    "proxy_loop",
    "token_bucket_exceeded",
    "body_too_complex",
    "budget_exceeded",
    "prompt_tokens_exceeded",
    "max_tokens_per_request_exceeded",
    "tpm_exceeded",
    "tpd_exceeded",
}


def test_the_list_is_what_is_documented() -> None:
    """Every reason of the specification, and no other (A-4, L-4)."""
    assert set(REASONS) == LISTED
    assert (ALLOWED_NO_POLICY, ALLOWED) == ("no_matching_policy", "all_rules_passed")
    assert not {ALLOWED, ALLOWED_NO_POLICY} & LISTED


@each("reason", sorted(LISTED))
def test_every_reason_explains_itself(reason: str) -> None:
    """A status that denies, a meaning and a remedy in whole sentences (A-4)."""
    info = REASONS[reason]
    assert info.status in {413, 429, 503, 508}
    assert info.source
    for text in (info.meaning, info.remedy):
        assert len(text.split()) >= 3
        assert text.endswith(".")
        assert text[0].isupper() or text[0] == "`"


def test_what_a_retry_cannot_help() -> None:
    """Loops, kills and what can never pass (A-1)."""
    for reason in ("loop_detected", "kill_switch", "agent_quarantined", "prompt_tokens_exceeded", "missing_descriptor"):
        assert not REASONS[reason].retry_helps
    for reason in ("token_bucket_exceeded", "budget_exceeded", "no_bundle_loaded", "store_unavailable"):
        assert REASONS[reason].retry_helps


def is_reason(name: str) -> bool:
    return name.lower() == "reason"


def said(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every literal that stands where a reason is said: `x.reason = "..."`, `reason="..."`, `denial("...")`."""
    for node in ast.walk(tree):
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            names = [getattr(target, "attr", getattr(target, "id", "")) for target in node.targets]
            value = node.value if any(map(is_reason, names)) else None
        elif isinstance(node, ast.AnnAssign):
            value = node.value if is_reason(getattr(node.target, "id", "")) else None
        elif isinstance(node, ast.keyword):
            value = node.value if node.arg and is_reason(node.arg) else None
        elif isinstance(node, ast.Compare):
            left = getattr(node.left, "attr", getattr(node.left, "id", ""))
            value = node.comparators[0] if is_reason(left) else None
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"denial", "ShadowFinding"} and node.args:
            value = node.args[2 if getattr(node.func, "id", "") == "ShadowFinding" else 0]
        for literal in ast.walk(value) if value is not None else ():
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                yield node.lineno if hasattr(node, "lineno") else 0, literal.value


def decision_files() -> list[Path]:
    """Where decisions are made and rendered; elsewhere a `reason` is an operator's free text."""
    folders = ("detect", "dialects", "gateway", "limits", "model")
    files = [SRC / "engine" / name for name in ("engine.py", "fold.py", "plan.py")]
    return [*files, *(path for name in folders for path in (SRC / name).glob("*.py"))]


def test_no_code_says_a_reason_that_is_not_listed() -> None:
    """Whatever is said as a reason is in the list (A-4)."""
    found = [
        (path.name, line, text)
        for path in decision_files()
        for line, text in said(ast.parse(path.read_text(encoding="utf-8")))
        if text
    ]
    assert {text for _, _, text in found} >= {"budget_exceeded", "kill_switch", "store_unavailable"}, (
        "the scan is blind"
    )
    assert [one for one in found if one[2] not in LISTED | {ALLOWED, ALLOWED_NO_POLICY}] == []


@pytest.mark.slow
def test_no_near_miss_of_a_reason_anywhere() -> None:
    """A text that looks like a reason, in any file, is one (but for `testing`, which speaks as providers do) (A-4)."""
    shape = re.compile(r"[a-z_]+_(exceeded|quarantined|unavailable|detected|inactive)")
    strays = [
        (path.relative_to(SRC).as_posix(), node.value)
        for path in SRC.rglob("*.py")
        if "testing" not in path.relative_to(SRC).parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and shape.fullmatch(node.value)
    ]
    assert [one for one in strays if one[1] not in LISTED | {"recursive_loop_detected"}] == []

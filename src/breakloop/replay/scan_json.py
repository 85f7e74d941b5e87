"""A scan as JSON: one line a session with the fields of `replay --json` and what scan knows beyond them, then one line
of totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from breakloop.replay.cost import Spent
from breakloop.replay.report import session_json, totals_json
from breakloop.replay.scan import Files, Scanned, summary
from breakloop.replay.timeline import Loop
from breakloop.replay.words import moment


def scanned_json(scanned: Scanned) -> dict[str, Any]:
    """Return the line of one session."""
    outcome, line = scanned.outcome, scanned.timeline
    loops = line.loops if line is not None else ()
    return session_json(outcome) | {
        "file": scanned.file,
        "format": scanned.format,
        "agent": outcome.session.agent or None,
        "model": scanned.model or None,
        **_spent("", scanned.spent),
        "loops": [_loop(loop) for loop in loops],
    }


def scan_totals_json(scanned: Sequence[Scanned], files: Files) -> dict[str, Any]:
    """Return the line of totals."""
    found = summary(scanned)
    totals: dict[str, Any] = totals_json([one.outcome for one in scanned])["totals"]
    totals |= {
        "looping": found.looping,
        "loops": found.loops,
        "loop_turns": found.loop_turns,
        **_spent("", found.spent),
        **_spent("loop_", found.inside),
        **_spent("after_block_", found.after),
        "files": files.read,
        "other_files": files.others,
        "skipped": files.skipped,
        "problems": files.problems,
    }
    return {"totals": totals}


def _loop(loop: Loop) -> dict[str, Any]:
    return {
        "kind": loop.kind,
        "evidence": loop.evidence,
        "from": loop.first,
        "to": loop.last,
        "first_notice": loop.notice,
        "first_block": loop.block,
        "began": moment(loop.began_at) or None,
        "seconds": None if loop.seconds is None else round(loop.seconds, 3),
        **_spent("", loop.spent),
        **_spent("after_block_", loop.after),
        **({"excerpt": loop.excerpt} if loop.excerpt else {}),
    }


def _spent(prefix: str, spent: Spent) -> dict[str, Any]:
    """Tokens, whether they are an estimate, and money where a price is known."""
    said: dict[str, Any] = {f"{prefix}tokens": spent.tokens, f"{prefix}tokens_estimated": spent.estimated}
    if spent.money is not None:
        said[f"{prefix}cost_usd"] = round(spent.money, 6)
    return said

"""The money axis of the curve: enough digits that no two marks read alike (X-2)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import breakloop
from tests.deadlines import DEADLINE_S
from tests.programs import node

pytestmark = pytest.mark.e2e

CHART = Path(breakloop.__file__).parent / "admin" / "dashboard" / "static" / "chart.js"


@pytest.mark.parametrize(
    ("marks", "step", "said"),
    [
        ([0, 0.0025, 0.005, 0.0075], 0.0025, ["$0", "$0.0025", "$0.0050", "$0.0075"]),
        ([0, 0.005, 0.01, 0.015], 0.005, ["$0", "$0.005", "$0.010", "$0.015"]),
        ([0, 0.2, 0.4], 0.2, ["$0", "$0.20", "$0.40"]),
        ([10, 10.5, 11], 0.5, ["$10.00", "$10.50", "$11.00"]),
        ([0, 50, 100, 1500], 50, ["$0", "$50", "$100", "$1.5k"]),
    ],
)
def test_no_two_marks_read_alike(marks: list[float], step: float, said: list[str]) -> None:
    text = CHART.read_text("utf-8")
    functions = text[text.index("  const compact = ") : text.index("  // Times as everywhere")]
    script = f"{functions}\nconsole.log(JSON.stringify(prices(null, {marks}, 2, 0, {step})));"
    done = subprocess.run([node(), "-e", script], capture_output=True, check=True, timeout=DEADLINE_S)
    assert json.loads(done.stdout) == said

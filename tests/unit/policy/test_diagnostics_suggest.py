"""Did-you-mean."""

from __future__ import annotations

from breakloop.policy.diagnostics import nearest


def test_nearest_word() -> None:
    assert nearest("pathprefix", ["path_exact", "pathPrefix"]) == "pathPrefix"
    assert nearest("kill_switch", ["kill_switch_override", "kill_switches"]) == "kill_switches"
    assert nearest("zebra", ["burst"]) is None
    assert nearest("zebra", []) is None

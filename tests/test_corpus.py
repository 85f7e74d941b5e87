"""The corpus of this repository: every session is judged as expected, and the lists of known mistakes do not grow.

A session that fails is named with what was expected and what happened. Sessions are in `tests/corpus`.
"""

from __future__ import annotations

import pytest

from breakloop.detect.steps.kinds import KINDS
from breakloop.dialects.registry import DIALECTS
from scripts.eval import PAGE
from scripts.eval_corpus import section
from tests.corpus import floor
from tests.corpus.answers import ANSWERS
from tests.corpus.run import Judged, judge_all, sessions

pytestmark = [pytest.mark.slow, pytest.mark.corpus, pytest.mark.timeout(900)]  # minutes on a busy machine


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return judge_all()


def test_every_session_is_judged_as_expected(judged: list[Judged]) -> None:
    """No loop is lost, no healthy session is stopped, and no session is on a list without need."""
    wrong = [f"{one.id}: {mistake}" for one in judged for mistake in one.mistakes]
    assert not wrong, "\n".join(wrong)


def test_the_floor(judged: list[Judged]) -> None:
    """Sessions are added, not removed; known mistakes are removed, not added."""
    known = [one for one in judged if one.known]
    assert sum(one.loop for one in known) == floor.SESSIONS_MISSED
    assert sum(not one.loop for one in known) == floor.SESSIONS_BLOCKED
    right = [one for one in judged if not one.known]
    assert sum(one.loop for one in right) >= floor.LOOPS_FOUND
    assert sum(not one.loop for one in right) >= floor.HEALTHY_PASSED


def test_names_are_unique_and_lists_name_sessions() -> None:
    """A list cannot keep a name that no session has any more."""
    ids = [*(one.id for one in sessions()), *(one.id for one in ANSWERS)]
    assert len(ids) == len(set(ids))
    named = {*ids, *(one.partition("/")[0] for one in ids)}
    assert {*floor.KNOWN_MISSED, *floor.KNOWN_BLOCKED} <= named


def test_the_page_shows_these_sessions(judged: list[Judged]) -> None:
    """docs/reference/evaluation.md is what `make eval` writes."""
    assert PAGE.read_text(encoding="utf-8").endswith(section(judged)), "run `make eval ARGS=--own`"


def test_every_kind_and_every_dialect_is_covered(judged: list[Judged]) -> None:
    """Each kind is found in at least two sessions; each dialect has loops that are found and healthy sessions."""
    found = [one.kind for one in judged if one.loop and one.stopped]
    kinds = [*(kind.name for kind in KINDS), "exact", "tail", "simhash", "stream"]
    assert [kind for kind in kinds if found.count(kind) < 2] == []
    for dialect in DIALECTS:
        of_dialect = [one for one in judged if one.dialect == dialect]
        assert any(one.loop and one.stopped for one in of_dialect), dialect
        assert any(not one.loop and not one.stopped for one in of_dialect), dialect

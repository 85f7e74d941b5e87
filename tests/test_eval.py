"""`make eval`: the simple detectors it measures ours beside, its page, and what it does without recordings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from breakloop.model.call import Answer, ToolCall
from breakloop.replay.formats.own import OwnReader
from breakloop.replay.run import SessionOutcome, replay
from breakloop.replay.sessions import Delta, RecordedSession, RecordedTurn, SessionLabel
from scripts import eval as evaluation
from scripts import eval_baselines as baselines
from scripts import eval_corpus, eval_page
from scripts.eval_transport import TRANSPORTS
from tests.corpus.run import Judged
from tests.unit.replay.recorded import asks, busy, own_line, stuck


def acting(results: list[str]) -> list[RecordedTurn]:
    """An agent that makes the same call each time, and gets these results."""
    call = Answer(200, "", (ToolCall("look", "{}"),))
    turns = [RecordedTurn(Delta("0", 0, [{"role": "user", "content": "Go."}]), call)]
    return turns + [RecordedTurn(Delta("0", 99, [{"role": "tool", "content": one}]), call) for one in results]


def test_repeats_within_a_minute() -> None:
    """Exact request and last three messages: a true window."""
    assert list(baselines.exact(baselines.seen(stuck(5)))) == [1, 2, 3, 4, 5]
    assert list(baselines.last_three(baselines.seen(stuck(5)))) == [1, 2, 3, 4, 5]
    assert list(baselines.exact(baselines.seen([asks("Same.", at_s=25.0 * number) for number in range(5)]))) == [
        1,
        2,
        3,
        3,
        3,
    ]
    assert max(baselines.exact(baselines.seen(busy(7)))) == 1


def test_a_growing_history_hides_from_exact_but_not_from_the_last_three() -> None:
    """Why hashing whole requests finds nearly nothing."""
    turns = acting(["none"] * 6)
    assert max(baselines.exact(baselines.seen(turns))) == 1
    assert max(baselines.last_three(baselines.seen(turns))) == 5


def test_action_and_result_in_a_row() -> None:
    """Another result starts again."""
    assert list(baselines.action_and_result(baselines.seen(acting(["a", "a", "a", "b", "b"])))) == [0, 1, 2, 3, 1, 2]


def test_the_score_adds_prompts_answers_and_calls() -> None:
    """1 for each similar prompt, 2 for each similar answer, 1.5 for each repeated call."""
    assert list(baselines.simhash_score(baselines.seen(stuck(4)))) == [0, 1, 2 + 2, 3 + 4]
    assert list(baselines.simhash_score(baselines.seen(acting(["a", "b"])))) == [0, 1, 2 + 2 + 1.5]
    assert (
        max(
            baselines.simhash_score(
                baselines.seen([asks(f"Ask {word}", answer=word * 9) for word in ("roof", "lamp", "door")])
            )
        )
        == 0
    )


def test_similar_texts_share_their_bits() -> None:
    """Numbers and ids do not count; words do."""
    one = baselines.simhash("Order 17 was shipped at 2024-01-01T10:00:00Z to the house on the hill")
    assert baselines.simhash("Order 99 was shipped at 2025-12-31T23:59:59Z to the house on the hill") == one
    other = baselines.simhash("The committee will meet again in the spring to vote on the budget")
    assert (one ^ other).bit_count() > 10


def test_a_threshold_flags_at_its_first_turn() -> None:
    """As a replay would say it."""
    by_turns = next(one for one in baselines.BASELINES if one.name == "26 turns")
    scores = list(by_turns.scores(baselines.seen(stuck(30))))
    assert by_turns.outcome(RecordedSession("s"), stuck(30), scores).first_block == 26
    assert baselines.flagged(RecordedSession("s"), 30, scores, 31).first_block is None


def test_the_best_limit_at_a_rate() -> None:
    """At an equal false-positive rate every detector has its best limit."""
    labels = [True, True, True, False, False]
    peaks = [9.0, 7.0, 3.0, 5.0, 1.0]
    them = [
        baselines.flagged(RecordedSession(str(number), label=SessionLabel(loop)), 10, [], 1)
        for number, loop in enumerate(labels)
    ]
    scores = [[0.0, peak] for peak in peaks]
    assert eval_page.best_recall(them, scores, 0.0) == (2 / 3, 7.0)
    assert eval_page.best_recall(them, scores, 0.5) == (1.0, 3.0)


def test_sessions_of_one_task_are_in_one_fold() -> None:
    """Else the folds would know each other."""
    folds = {eval_page.fold_of(baselines.flagged(RecordedSession(str(one), task="t"), 1, [], 1)) for one in range(20)}
    assert len(folds) == 1
    by_id = {eval_page.fold_of(baselines.flagged(RecordedSession(str(one)), 1, [], 1)) for one in range(100)}
    assert by_id == set(range(eval_page.FOLDS))


def test_without_recordings_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has to have them."""
    assert evaluation.main(["--corpus", str(tmp_path / "none"), "--recorded", "--no-page"]) == 0
    assert "no recorded sessions" in capsys.readouterr().out


def test_the_page_has_every_detector_and_no_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables for ours and theirs; nothing of a recording, not even its name."""
    lines = [
        own_line("secret-1", 8, source="trae", label={"loop": True, "by": "human"}, task="x"),
        own_line("secret-2", 2, source="tau2", label={"loop": False, "by": "outcome"}, task="y"),
    ]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in lines).encode()))
    target = tmp_path / "page.md"
    monkeypatch.setattr(evaluation, "PAGE", target)
    assert evaluation.main(["--corpus", str(tmp_path), "--recorded", "--no-page"]) == 0
    assert evaluation.main(["--corpus", str(tmp_path), "--recorded", "--transport", "mixed"]) == 0
    assert evaluation.main(["--corpus", str(tmp_path), "--only", "tail"]) == 0
    assert "| built-in |" not in capsys.readouterr().out.rpartition("# Evaluation")[2]
    assert not target.exists()
    assert evaluation.main(["--corpus", str(tmp_path), "--recorded"]) == 0
    text = target.read_text()
    assert text in capsys.readouterr().out
    for name in (*evaluation.OURS, *(one.name for one in baselines.BASELINES)):
        assert f"| {name} |" in text
    assert "| tail | 1.000 / 1.000 / 0.000 |" in text
    assert "secret" not in text
    assert "Is it done" not in text


OWN = f"{eval_corpus.HEADING}of before\n"


def test_what_is_not_measured_stays_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recordings and the sessions of this repository have a part each; a part with mistakes is not written."""
    target = tmp_path / "page.md"
    target.write_text(f"# Recordings\n{OWN}")
    monkeypatch.setattr(evaluation, "PAGE", target)
    wrong = Judged("some/chat", True, "openai_chat", "repeat", False, "", ("blocked never",))
    monkeypatch.setattr(evaluation, "judge_all", lambda: [wrong])
    assert evaluation.main(["--own"]) == 1
    assert "some/chat: blocked never" in capsys.readouterr().out
    assert target.read_text() == f"# Recordings\n{OWN}"
    monkeypatch.setattr(evaluation, "judge_all", lambda: [wrong._replace(stopped=True, mistakes=())])
    assert evaluation.main(["--own"]) == 0
    assert target.read_text().startswith(f"# Recordings\n{eval_corpus.HEADING}")
    assert "of before" not in target.read_text()


@pytest.mark.slow
def test_sessions_can_be_written_as_request_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`breakloop replay` reads them, and comes to the same result."""
    assert evaluation.main(["--export", str(tmp_path)]) == 0
    assert int(capsys.readouterr().out.split()[0]) == len(list(tmp_path.rglob("*.jsonl"))) > 200
    for name, first_block in (("loops/same_search.chat", 6), ("loops/nothing_is_connected.messages", 9)):
        (outcome,) = replayed(tmp_path / f"{name}.jsonl")
        assert outcome.first_block == first_block
    (outcome,) = replayed(tmp_path / "healthy/reads_many_files.responses.jsonl")
    assert (outcome.turns, outcome.first_block) == (31, None)


def replayed(path: Path) -> list[SessionOutcome]:
    return [outcome for (outcome,) in replay(evaluation.pieces([path]), evaluation.rig(""))]


def test_recordings_are_sent_without_names_and_several_at_once() -> None:
    """A user who only changes the base URL sends no names; mixed, the turns of five sessions alternate."""
    pieces = [OwnReader("f").take(own_line(name, 2, source="s"))[0] for name in "abcdefg"]
    alone = list(TRANSPORTS["derived"](pieces))
    assert [(one.session.named, one.session.agent, len(one.turns)) for one in alone] == [(False, "", 2)] * 7
    assert not any(turn.agent for one in alone for turn in one.turns)
    at_once = list(TRANSPORTS["mixed"](pieces))
    assert [one.session.id for one in at_once] == [*"abcde" * 2, *"fg" * 2]
    assert [one.whole for one in at_once[:10]] == [False] * 5 + [True] * 5
    assert len({one.session.gateway for one in at_once}) == 2
    times = [turn.at_s for one in at_once[:10] for turn in one.turns]
    assert times == sorted(times, key=lambda at_s: at_s or 0.0)


def test_mistakes_can_be_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a closer look at the recordings: on the terminal only."""
    lines = [
        own_line("wrongly", 8, label={"loop": False}),
        own_line("not-seen", 2, label={"loop": True, "by": "human"}),
    ]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in lines).encode()))
    assert evaluation.main(["--corpus", str(tmp_path), "--mistakes", "tail"]) == 0
    wrong, missed = capsys.readouterr().out.splitlines()
    assert wrong.startswith("wrong   wrongly  turn 6 of 8  tail:")
    assert missed == "missed  not-seen  2 turns  human: "


def test_only_our_own_format_is_measured() -> None:
    """The detectors see whole sessions, with who labelled them."""
    ((session, turns, _),) = OwnReader("f").take(own_line("a", 3))
    assert len(list(baselines.seen(turns))) == 3
    assert session.id == "a"

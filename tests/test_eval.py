"""`make eval`: the simple detectors it measures ours beside, its page, and what it does without recordings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from breakloop.model.call import Answer, ToolCall
from breakloop.replay.formats.own import OwnReader
from breakloop.replay.run import SessionOutcome, replay
from breakloop.replay.sessions import Delta, RecordedSession, RecordedTurn, SessionLabel, SessionSlice
from scripts import eval as evaluation
from scripts import eval_baselines as baselines
from scripts import eval_corpus, eval_facts, eval_left_out
from scripts.eval_run import EVERY_CONDITION, Condition, Measured, pieces, rig, untimed, useful_kinds
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


def test_calls_in_a_row() -> None:
    """Results are not looked at, so an agent that polls is a loop."""
    assert list(baselines.same_call(baselines.seen(acting(["a", "b", "c"])))) == [0, 1, 2, 3]
    assert max(baselines.same_call(baselines.seen(stuck(6)))) == 0


def test_stuck_patterns() -> None:
    """The same step four times, an error three times, a text three times, two steps in turn three times."""

    def flagged(turns: list[RecordedTurn]) -> int | None:
        scores = baselines.stuck_patterns(baselines.seen(turns))
        return next((number for number, score in enumerate(scores, 1) if score >= 1), None)

    assert flagged(acting(["a"] * 9)) == 5
    assert flagged(acting([f"error {at}" for at in range(9)])) == 4
    assert flagged(acting(["a", "b"] * 9)) == 7
    assert flagged(stuck(9)) == 4
    assert flagged(acting(["a", "b", "c", "d"] * 5)) is None


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


def labelled(
    *labels: bool, sources: str = "", block: int | None = None, kind: str | None = None
) -> list[SessionOutcome]:
    """Sessions of ten turns, one for each label."""
    return [
        SessionOutcome(
            RecordedSession(str(number), sources[number : number + 1], label=SessionLabel(loop)),
            turns=10,
            first_block=block,
            kind=kind,
        )
        for number, loop in enumerate(labels)
    ]


def test_the_best_limit_at_a_rate() -> None:
    """At an equal false-positive rate every detector has its best limit."""
    them = labelled(True, True, True, False, False)
    peaks = list(zip(them, [9.0, 7.0, 3.0, 5.0, 1.0], strict=True))
    assert eval_left_out.best_limit(peaks, 0.0) == 7.0
    assert eval_left_out.best_limit(peaks, 0.5) == 3.0
    assert eval_left_out.best_limit(peaks[3:], 0.0) == float("inf")
    again = eval_left_out.reflagged(peaks, 7.0)
    assert [one.first_block for one in again] == [1, 1, None, None, None]


def test_what_is_chosen_is_measured_on_the_source_that_is_left_out() -> None:
    """A limit that suits one source is not used on it: with the limits of the others, both loops of `b` are missed."""
    measured = Measured()
    measured.simple["n"] = labelled(True, True, True, True, False, False, sources="aabbab")
    measured.peaks["n"] = [9.0, 9.0, 5.0, 5.0, 1.0, 1.0]
    ((name, chosen, *figures),) = eval_left_out.left_out_rows(measured)
    assert (name, chosen, figures) == ("n", "limit", [1.0, 0.5, 0.0, 0.0])


def test_a_kind_that_helps_on_one_source_only_is_turned_off_there() -> None:
    """Each source is asked with the kinds that stop more loops than healthy sessions on the others."""
    useful = (
        labelled(True, block=3, kind="dry") + labelled(False, block=3, kind="repeat") + labelled(True, kind="cycle")
    )
    assert useful_kinds(useful) == {"dry"}
    block = Condition("steps", without=("cycle", "repeat")).block()
    assert block == ("{similarity: steps, thresholds: {cycle: [never, never, never], repeat: [never, never, never]}}")
    rig(block)


def test_lag_and_savings_need_no_labels() -> None:
    """The third repetition is the third time that a step comes, or an informative text; numbers do not count."""
    turns = acting(["a 1", "a 2", "b", "a 3", "a 4"])
    known = eval_facts.facts(baselines.seen(turns))
    assert (known.third, known.repeats) == (5, 4)
    assert eval_facts.facts(baselines.seen(acting(["a", "b", "c"]))).third is None
    asked = eval_facts.facts(baselines.seen([asks("x" * 80, answer=str(at) * 9, at_s=at) for at in range(5)]))
    assert asked.third == 4
    assert known.saved(None) == 0
    assert known.saved(5) == sum(known.tokens[4:]) > 0
    assert known.saved(1) == sum(known.tokens)


def test_a_session_that_looped_and_succeeded_is_kept_apart() -> None:
    """By what happened in it, not by what a detector did."""
    looped, other = eval_facts.Facts((1,), 3, 5), eval_facts.Facts((1,), 3, 4)
    (healthy,) = labelled(False)
    (loop,) = labelled(True)
    assert eval_facts.recovered(healthy, looped)
    assert not eval_facts.recovered(healthy, other)
    assert not eval_facts.recovered(loop, looped)
    stated = RecordedSession("s", label=SessionLabel(None, "outcome", "recovered_loop"))
    assert eval_facts.recovered(SessionOutcome(stated), other)


def test_times_can_be_left_out() -> None:
    """Then turns are three seconds apart."""
    piece = SessionSlice(RecordedSession("a"), [asks("x", at_s=90.0)], whole=True)
    (bare,) = untimed([piece])
    assert [turn.at_s for turn in bare.turns] == [None]


def test_without_recordings_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has to have them."""
    assert evaluation.main(["--corpus", str(tmp_path / "none"), "--recorded", "--no-page"]) == 0
    assert "no recorded sessions" in capsys.readouterr().out


def test_the_page_has_every_detector_and_no_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables for ours and theirs; nothing of a recording, not even its name."""
    lines = [
        own_line("hidden-1", 8, source="trae", label={"loop": True, "by": "human"}, task="x"),
        own_line("hidden-2", 2, source="tau2", label={"loop": False, "by": "outcome"}, task="y"),
    ]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in lines).encode()))
    target = tmp_path / "page.md"
    monkeypatch.setattr(evaluation, "PAGE", target)
    assert evaluation.main(["--corpus", str(tmp_path), "--recorded", "--no-page"]) == 0
    assert evaluation.main(["--corpus", str(tmp_path), "--only", "tail", "--transport", "mixed", "--no-times"]) == 0
    shown = capsys.readouterr().out.rpartition("# Evaluation")[2]
    assert "| tail, five over one key, no times | 1.000 | 0.000 | 0 of 0 |" in shown
    assert "| built-in |" not in shown
    assert not target.exists()
    assert evaluation.main(["--corpus", str(tmp_path), "--recorded", "--jobs", "1"]) == 0
    text = target.read_text()
    assert text in capsys.readouterr().out
    shown_conditions = [str(one) for one in EVERY_CONDITION if not one.secret]
    for name in (*shown_conditions, *(one.name for one in baselines.BASELINES)):
        assert f"\n| {name} | " in text
    assert "| tail | 1.000 / 1.000 / 0.000 |" in text
    assert "| steps | kinds | 0.000 | 0.000 | 0.000 | 0.000 |" in text
    assert "\n| 2 | 0 | 0.000 | 0.000 |\n" in text
    assert "hidden" not in text
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
    return [outcome for (outcome,) in replay(pieces([path]), rig(""))]


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

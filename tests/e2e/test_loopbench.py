"""loopbench over HTTP: the real gateway, a stand-in upstream, and a simple detector beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.loopbench import results, suite
from bench.loopbench.__main__ import SERVE
from bench.loopbench.detectors import SIMPLE, Library
from bench.loopbench.gateway import GatewayError, faketime_library, started
from bench.loopbench.results import Result
from bench.loopbench.suite import Answer, Request, Session, Turn
from tests.programs import missing

pytestmark = pytest.mark.e2e

LOOPS = ("same_search", "four_steps_in_turn")
HEALTHY = ("pages_of_a_list", "reads_many_files", "looks_at_ci_every_90_seconds")


def test_the_table_of_a_gateway_and_of_a_simple_detector(tmp_path: Path) -> None:
    """Loops are stopped at the stated turn, healthy sessions pass, and a session that needs its pauses is left out."""
    sessions = [one for one in suite.read() if one.id.partition("/")[0] in (*LOOPS, *HEALTHY)]
    assert len(sessions) == len(LOOPS) + len(HEALTHY)
    with started(SERVE, tmp_path, keep_pauses=False) as gateway:
        played = results.play(gateway, sessions, keeps_pauses=False)
    stated = {one.id: one.stop_by for one in sessions if not one.pauses_matter}
    assert played == stated
    simple = results.play(Library(SIMPLE["26 turns"]), sessions, keeps_pauses=True)
    found = [
        Result("ours", "1", "gateway", "left out", "", played),
        Result("26 turns", "", "library", "kept", "", simple),
    ]
    first, second = results.table(found, sessions, "").splitlines()[2:]
    assert first.startswith("| ours 1 | gateway | left out | 0 of 2 | 2 of 2 | 2 | +0 |")
    long = sum(len(one.turns) >= 26 for one in sessions)
    assert long > 0
    assert second.startswith(f"| 26 turns | library | kept | {long} of 3 | 0 of 2 | 0 | - | 0% |")


def test_pauses_pass_at_once(tmp_path: Path) -> None:
    """The same request every two minutes is no loop; the gateway sees these minutes, and nobody waits for them."""
    if faketime_library() is None:
        missing("faketime is not installed; `sh scripts/install-system.sh faketime` installs it")
    body = {"model": "m", "messages": [{"role": "user", "content": "Is the shop open?"}]}
    headers = {"authorization": "Bearer sk-1"}
    turns = [Turn(Request(120.0 * at, "/v1/chat/completions", headers, body), Answer(200, "Yes.")) for at in range(8)]
    session = Session("slow/chat", "It asks every two minutes.", "openai_chat", False, tuple(turns), pauses_matter=True)
    for kept, stopped_at in ((True, None), (False, 6)):
        folder = tmp_path / str(kept)
        folder.mkdir()
        with started(SERVE, folder, keep_pauses=kept) as gateway:
            assert gateway.stopped_at(session) == stopped_at


def test_a_gateway_that_passes_nothing_is_an_error(tmp_path: Path) -> None:
    """A request that fails is not a denial."""
    broken = SERVE.replace("{upstream}", "http://127.0.0.1:9")
    (session, *_) = suite.read()
    with started(broken, tmp_path, keep_pauses=False) as gateway, pytest.raises(GatewayError, match="answered 502"):
        gateway.stopped_at(session)

"""Healthy sessions of agents that wait, and look at what goes on by itself. None of them may be blocked."""

from __future__ import annotations

from typing import Final

from tests.corpus.catalogue import CLOUDS, SOME, TOOLS, Catalogue
from tests.corpus.script import Script
from tests.corpus.words import text

CATALOGUE: Final = Catalogue()
healthy = CATALOGUE.healthy


@healthy(forms=(*TOOLS, "mcp", "a2a", *CLOUDS), every_s=10.0)
def polls_a_job_that_advances(s: Script) -> None:
    """The same call, and a percentage that rises."""
    for turn in range(25):
        s.call("job_status", {"job": 12}, f"running, {turn * 4} % of 4,000 records")
    s.call("job_status", {"job": 12}, "finished, 4,000 records")


@healthy(forms=(*SOME, "chat-roles"), every_s=15.0)
def reads_an_empty_terminal(s: Script) -> None:
    """A long build prints nothing for three minutes."""
    s.call("exec_command", {"command": "make all"}, "started as session 3")
    for _ in range(12):
        s.call("write_stdin", {"session": 3, "chars": ""}, "")
    s.call("write_stdin", {"session": 3, "chars": ""}, f"build finished\n{text('build')}")


@healthy(forms=TOOLS, every_s=90.0)
def looks_at_ci_every_90_seconds(s: Script) -> None:
    """A pipeline takes an hour."""
    for _ in range(40):
        s.call("bash", {"command": "ci status 4411"}, "pipeline 4411: running, 3 of 7 stages done")
    s.call("bash", {"command": "ci status 4411"}, "pipeline 4411: passed")


@healthy(forms=TOOLS, every_s=60.0)
def sleeps_and_looks(s: Script) -> None:
    """A wait of two minutes before each look; the job goes on."""
    for _ in range(8):
        s.call("bash", {"command": "sleep 120"}, "")
        s.call("bash", {"command": "tail -1 train.log"}, "training: still in the first epoch")


@healthy(forms=TOOLS, every_s=3.0)
def sleeps_and_looks_at_two_things(s: Script) -> None:
    """A wait of two minutes, then two looks that nobody would take for looks by their names."""
    for _ in range(15):
        s.wait(120.0)
        s.call("sleep", {"seconds": 120}, "slept for 120 seconds")
        s.call("read_report", {"of": "import"}, text("report"))
        s.call("count_rows", {"table": "orders"}, "4,000 rows in this table")


@healthy(forms=TOOLS, every_s=300.0)
def heartbeat_every_five_minutes(s: Script) -> None:
    """Someone is told to look every five minutes, for an hour."""
    for _ in range(12):
        s.call("list_alerts", {"state": "open"}, "no open alerts")


@healthy(forms=TOOLS, every_s=30.0)
def watches_for_alerts(s: Script) -> None:
    """A look every 30 s for half an hour, and nothing happens."""
    for _ in range(60):
        s.call("list_alerts", {"severity": "page"}, "[]")


@healthy(forms=SOME, every_s=45.0)
def three_jobs_in_turn(s: Script) -> None:
    """Three jobs are looked at one after the other, and then the agent waits."""
    for _ in range(20):
        for job in range(3):
            s.call("bash", {"command": f"kubectl get job import-{job}"}, f"import-{job}   0/1   Running")


@healthy(forms=TOOLS, every_s=4.0)
def waits_for_a_server_to_start(s: Script) -> None:
    """The server is not there yet; a look fails five times, and then it is."""
    s.call("bash", {"command": "make serve &"}, "started")
    for _ in range(5):
        s.call("bash", {"command": "sleep 3; curl -sf localhost:8080/health"}, "not ready yet")
    s.call("bash", {"command": "sleep 3; curl -sf localhost:8080/health"}, "ok")


@healthy(forms=SOME, every_s=5.0, policy="{similarity: steps, tools: {list_alerts: {poll: true}}}", quiet=False)
def watches_with_a_tool_that_is_meant_to_poll(s: Script) -> None:
    """`poll: true`: a repeat counts a quarter at most."""
    for _ in range(16):
        s.call("list_alerts", {"state": "open"}, "no open alerts in the last five minutes")


@healthy(forms=("chat", "messages", "mcp"), every_s=2.0, policy="{similarity: steps, tools: {clock: {exempt: true}}}")
def asks_an_exempt_clock(s: Script) -> None:
    """An exempt tool may be called as often as the agent likes."""
    for _ in range(30):
        s.call("clock", {}, "the clock of the station shows a quarter past nine, as it has for years")


@healthy(forms=("mcp",), every_s=2.0, policy="{similarity: steps, tools: {pause: {exempt: true}}}", quiet=False)
def mcp_bursts_with_a_pause_between(s: Script) -> None:
    """Four equal calls, then an exempt pause: the pause ends the burst."""
    for _ in range(6):
        for _ in range(5):
            s.call("list_tickets", {"queue": "open"}, "no tickets in this queue")
        s.call("pause", {"seconds": 1}, "paused")


@healthy(forms=SOME, every_s=2.0, policy="{similarity: steps, tools: {clock: {exempt: true}}}")
def exempt_calls_whose_requests_are_sent_three_times(s: Script) -> None:
    """A client sends each request three times; each new step begins a new count, exempt or not."""
    for turn in range(8):
        s.call("clock", {}, f"it is {turn} minutes past nine at the station")
        s.again(2)


@healthy(forms=(*SOME, "mcp"), every_s=8.0)
def waits_for_a_number_to_fall(s: Script) -> None:
    """The same call with another short result each time."""
    for turn in range(20):
        s.call("queue_length", {"queue": "mail"}, f"{200 - 9 * turn} messages waiting")


@healthy(forms=SOME, every_s=900.0)
def pipeline_of_a_quarter_of_an_hour(s: Script) -> None:
    """Each run takes a quarter of an hour and fails the same way a few times, for a reason outside."""
    for _ in range(6):
        s.call("run_pipeline", {"name": "nightly"}, f"step 7 failed: {text('reason')}", failed=True)
    s.call("run_pipeline", {"name": "nightly"}, "all 9 steps are done")

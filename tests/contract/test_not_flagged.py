"""What is never flagged (docs/explanation/detection-study.md): healthy work that repeats itself, each case through the
whole engine, under a `steps` block of a policy and under the protection that everybody has without a word about it."""

from __future__ import annotations

import base64
import json

import pytest

from breakloop.detect.stream import StreamProbe
from breakloop.model.call import NO_ANSWER, Answer
from tests.builders import CHAT, Json, World, call, chat_body, user, world
from tests.contract.agents import TASK, Agent, found, guarded

PYTEST = '{"command": "pytest -q"}'
FAILED = "F.......\nFAILED tests/test_app.py::test_total - assert 11 == 12\n1 failed, 7 passed in 0.41s\nExit code: 1"


@pytest.fixture(params=["steps", "builtin"])
def here(request: pytest.FixtureRequest) -> World:
    """A world with a `steps` block, and one with nothing but the built-in protection."""
    return guarded() if request.param == "steps" else world(None)


def page(number: int) -> str:
    """Something that nobody has seen before."""
    return "\n".join(
        f"row {number * 20 + row}: {'abcdefgh'[row % 8] * 4} {(number * 20 + row) * 7919 % 997}" for row in range(20)
    )


def test_polling_whose_result_changes(here: World) -> None:
    """A job that gets on, asked again and again (C2, C8)."""
    agent = Agent(here)
    for number in range(50):
        agent.call("job_status", '{"job": 7}', f"running: {number * 2} % done, {number * 31} of 1550 files")
    assert agent.flagged == []


def test_polling_of_which_one_line_changes(here: World) -> None:
    """A long report, of which one line tells that something happened (C2)."""
    agent = Agent(here)
    stages = ["checkout", "configure", "compile core", "compile plugins", "link", "unit tests", "package", "sign"]
    for number in range(40):
        report = "\n".join(
            [
                "job: nightly",
                "owner: build-team@example.com",
                "runner: linux-large-04",
                "priority: normal",
                f"stage: {stages[number // 5]}, part {number % 5}",
                "artifacts: none yet",
                "notes: see the page of the build for details",
            ]
        )
        agent.call("job_status", '{"job": 7}', report)
    assert [one for one in agent.flagged if one.startswith("deny")] == []


def test_polling_for_hours(here: World) -> None:
    """What a filter takes for known by mistake does not add up, however long it goes on (C2)."""
    agent = Agent(here, every_s=2.0)
    for number in range(6000):
        lines = [f"see note {line} of the town's yearly report; the harbour opens at seven" for line in range(14)]
        agent.call("job_status", '{"job": 7}', "\n".join([*lines, f"read until page {number}"]))
        del agent.messages[2:-6]  # a client that keeps the last turns only
    assert agent.flagged == []


def test_polling_with_a_sleep_between(here: World) -> None:
    """Polling with a sleep between (C8)."""
    agent = Agent(here)
    for number in range(20):
        agent.call("poll", '{"job": 7}', f"{number} of 20 parts are done; the last was part-{page(number)[:30]}")
        agent.call("sleep", '{"seconds": 5}', "")
    assert agent.flagged == []


@pytest.mark.parametrize(
    "result", ["still running", "the job is still running; there is nothing to see yet, wait for it"]
)
def test_slow_polling(here: World, result: str) -> None:
    """A minute apart, the same answer ten times is nothing (C9)."""
    agent = Agent(here, every_s=60.0)
    for _ in range(10):
        agent.call("poll", '{"job": 7}', result)
    assert agent.flagged == []


@pytest.mark.parametrize("every_s", [8.0, 1.0])
def test_edit_then_the_same_command_again(here: World, every_s: float) -> None:
    """Edit, run the tests, edit, run the tests; they fail the same way each time, however fast the model is. Five times
    are honest work (C6)."""
    agent = Agent(here, every_s=every_s)
    for number in range(5):
        agent.call(
            "edit_file", f'{{"path": "app.py", "old": "{number}", "new": "{number + 1}"}}', "The file was edited."
        )
        agent.call("bash", PYTEST, FAILED)
    assert agent.flagged == []


def test_re_reading_after_a_write(here: World) -> None:
    """Whoever wrote may look at it, even where it looks as before (C6)."""
    agent = Agent(here)
    for number in range(15):
        agent.call("write_file", f'{{"path": "notes{number}.md", "text": "{page(number)[:40]}"}}', "ok")
        agent.call("read_file", '{"path": "index.md"}', "# Index\n\n- notes, in the order of their numbers\n- and more")
    assert agent.flagged == []


def test_paging(here: World) -> None:
    """Page after page of one list (C15, C19)."""
    agent = Agent(here)
    for number in range(40):
        agent.call("list_rows", f'{{"table": "orders", "page": {number}}}', page(number))
    assert agent.flagged == []


def test_a_batch_over_distinct_items_twice_over(here: World) -> None:
    """Fifteen files, read and read once more (C10)."""
    agent = Agent(here)
    for number in range(30):
        agent.call("read_file", f'{{"path": "src/module{number % 15}.py"}}', page(number % 15))
    assert agent.flagged == []


def test_parallel_fan_out_in_one_round(here: World) -> None:
    """One round of many calls is one step, whatever they return; equal calls in it are reported, and no more (C16)."""
    agent = Agent(here)
    agent.calls(*(("read_file", f'{{"path": "src/m{number}.py"}}', page(number)) for number in range(12)))
    agent.calls(
        *(("check_host", f'{{"host": "h{number}"}}', "healthy, no alarms, nothing to report") for number in range(12))
    )
    assert agent.flagged == []
    agent.calls(*[("roll_dice", "{}", "the dice show a four, which is more than three")] * 8)
    assert agent.flagged == ["notice repeat"]


def test_the_same_ok_from_write_tools(here: World) -> None:
    """Thirty different writes, and each says the same (C10)."""
    agent = Agent(here)
    for number in range(30):
        agent.call("write_file", f'{{"path": "out/{number}.txt", "text": "{number}"}}', "File written successfully.")
    assert agent.flagged == []


@pytest.mark.parametrize("status", [NO_ANSWER, 429, 500, 503])
def test_transport_retries(here: World, status: int) -> None:
    """Every request fails twice before it is answered, for the whole of a healthy run (C22)."""
    agent = Agent(here, every_s=1.0)
    for number in range(12):
        agent.call("read_file", f'{{"path": "src/m{number}.py"}}', page(number), answer=Answer(status))
        agent.send(Answer(status))
        agent.send()
    assert agent.flagged == []


def test_sampling_the_same_prompt_at_once(here: World) -> None:
    """Sixteen answers to one prompt, asked for at once; and so for each of ten prompts (C23)."""
    for prompt in range(10):
        agent = Agent(here, task=f"Write a poem on number {prompt}, in four lines.", session="", every_s=0.0)
        running = [agent.start()[0] for _ in range(15)]
        here.clock.advance(4.0)
        for one in running:
            here.engine.settle(one, Answer(200, complete=True))
        assert agent.flagged == []


@pytest.mark.parametrize("named", [True, False])
def test_heartbeats_across_runs(here: World, named: bool) -> None:
    """A schedule starts the same run every half hour; each looks at the same empty inbox. For most of a day (C25)."""
    for number in range(40):
        agent = Agent(here, session=f"run-{number}" if named else "", task="Look into the inbox.")
        agent.call("read_inbox", "{}", "The inbox holds no new mail at the moment, as before.")
        agent.says("There is nothing new.", "Thank you, that is all.")
        assert agent.flagged == []
        here.clock.advance(1800.0)


def test_a_person_asking_again(here: World) -> None:
    """A person who does not understand asks the same once more, or asks for the same to be done once more."""
    agent = Agent(here, every_s=30.0)
    for number in range(3):
        agent.says(f"It fails because of this: {page(number)}", "Could you explain that once more, please?")
    wishes = ("Run the report.", "Has anything changed by now?", "Check it a further time.", "And how is it today?",
              "Look again, would you?", "Just to be sure: once more.", "My boss wants another look.", "Last time, promise.")  # fmt: skip
    for wish in wishes:
        agent.says("Done, the report is above.", wish)
        agent.call("report", '{"quarter": 1}', "The report of the first quarter: 12 orders, 3 returns, no complaints.")
    assert agent.flagged == []


ROW = "| 2026-01-01 | north | 12 | 13.50 | open |\n"
DATA = {
    "table": ROW * 400,
    "code": "    if value is None:\n        return default\n" * 200,
    "json": '{"id": 1, "name": "first", "tags": ["a", "b"], "open": true},\n' * 200,
    "base64": base64.b64encode(bytes(range(48)) * 200).decode(),
    "zero grid": "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n" * 300,
    "dot leaders": "Introduction ........................................ 1\n" * 100,
}


@pytest.mark.parametrize("kind", DATA)
def test_data_in_streamed_answers(kind: str) -> None:
    """Tables, code, JSON, base64 and zero grids repeat for good reasons, and are never cut (C32)."""
    probe = StreamProbe()
    text = f"Here is what you asked for:\n\n{DATA[kind]}"
    assert not any(probe.feed(text[at : at + 7]) for at in range(0, len(text), 7))


@pytest.mark.parametrize("kind", DATA)
def test_data_in_the_answers_of_a_conversation(here: World, kind: str) -> None:
    """The model gives such data, and a person asks for the next part (C32)."""
    agent = Agent(here)
    for number in range(12):
        agent.says(
            f"Part {number}:\n{DATA[kind][: 900 + number]}", f"Thanks. Now part {number + 1}, please, as before."
        )
    assert [one for one in agent.flagged if one.startswith("deny")] == []


def stuck(here: World, session: str = "s") -> Agent:
    """An agent that is blocked."""
    agent = Agent(here, session=session, task="Find the customer.")
    agent.more = {"tools": [{"type": "function", "function": {"name": "find", "parameters": {}}}]}
    while not agent.outcomes[-1].startswith("deny"):
        agent.call("find", '{"name": "Mayer"}', "Error: there is no such customer in the table")
        assert len(agent.outcomes) < 12
    return agent


JUDGE = "Was the assistant helpful in this conversation? Answer with yes or no, and one sentence."


@pytest.mark.parametrize("way", ["told in one text", "replayed with a question", "replayed under another prompt"])
@pytest.mark.parametrize("named", [True, False])
def test_judge_and_summary_calls_that_replay_a_transcript(here: World, way: str, named: bool) -> None:
    """A judge, who has no tools, reads the transcript of a stuck agent twice, and is answered; the agent is not
    (C24)."""
    agent = stuck(here, "s" if named else "")
    transcript = agent.messages
    if way == "told in one text":
        messages = [{"role": "system", "content": "You are a judge."}, user(f"{JUDGE}\n\n{transcript}")]
    elif way == "replayed with a question":
        messages = [*transcript, user(JUDGE)]
    else:
        messages = [{"role": "system", "content": JUDGE}, *transcript[1:]]
    for _ in range(2):
        asked = call(CHAT, "POST", agent.headers, body=chat_body(*messages))
        asked.tracked = True
        verdict = here.engine.decide(asked)
        assert found(verdict) == "pass"
        here.engine.settle(asked, Answer(200, text="No. It tried the same again and again.", complete=True))
        here.clock.advance(5.0)
    if named and way != "told in one text":
        assert agent.send().startswith("deny")


RUNS = '{"command": "pytest -q tests/test_flaky.py"}'
PASSED = "........\n8 passed in 0.41s\nExit code: 0"


def runs(here: World, times: int, announced: str = "") -> list[str]:
    """What an agent gets that runs one command so often, because it was asked to."""
    agent = Agent(here, task="The test is flaky. Run it five times, and tell me how often it fails.")
    agent.headers["x-breakloop-expect-repeats"] = announced
    return [agent.call("bash", RUNS, PASSED) for _ in range(times)]


def test_run_it_five_times_when_the_user_asked_so() -> None:
    """Four runs with the same result pass, with notices from the third; the fifth can be told from a loop by a caller
    that announces it and whom the policy believes, or by the policy itself.

    A detector that took a number in the prompt for an order would be told by any document how long to look away.
    """
    assert runs(guarded(), 4) == ["pass", "pass", "notice repeat", "notice repeat"]
    assert runs(guarded(), 5)[-1] == "deny repeat"
    assert runs(guarded(sensitivity="relaxed"), 5) == ["pass"] * 3 + ["notice repeat"] * 2
    here = guarded()
    named = {"expect_repeats": {"callers": [here.descriptors.caller(Agent(here).request())]}}
    assert runs(guarded(**named), 6, announced="5") == ["pass"] * 5 + ["deny repeat"]
    assert runs(guarded(**named), 5) == runs(guarded(), 5, announced="5") == runs(guarded(), 5)
    allowed = {kind: [6, 8, 12] for kind in ("repeat", "interleaved", "dry", "near")}
    assert runs(guarded(thresholds=allowed), 5) == ["pass"] * 5
    assert runs(guarded(tools={"bash": {"poll": True}}), 5) == ["pass"] * 5
    assert runs(guarded(tools={"ba*": {"exempt": True}}), 20) == ["pass"] * 20
    assert runs(guarded(allow={"tools": ["bash"]}), 20) == ["pass"] * 20


@pytest.mark.parametrize("result", ["one failed in 0.{0} s", "run {0}: passed"])
def test_results_that_differ_are_no_repeats(here: World, result: str) -> None:
    """Run it five times: where the runs differ, nobody objects in the first place."""
    agent = Agent(here, task="The test is flaky. Run it twelve times, and tell me how often it fails.")
    for number in range(12):
        agent.call("bash", RUNS, f"{result.format(number)}, with {'.F'[number % 2] * (number + 1)} as its marks")
    assert agent.flagged == []


RESPONSES = "/v1/responses"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("what", ["reads", "writes", "edits and tests"])
def test_results_after_a_previous_response(here: World, what: str, named: bool) -> None:
    """The Responses API keeps the conversation; a request holds the newest result, and nothing else (LD-4)."""
    headers = {"authorization": "Bearer k", "x-agent-session": "s" if named else ""}
    body: Json = {"model": "m", "input": [user(TASK)]}
    for number in range(40):
        asked = call(RESPONSES, "POST", headers, body=json.dumps(body).encode())
        asked.tracked = True
        assert found(here.engine.decide(asked)) == "pass", number
        here.engine.settle(asked, Answer(200, complete=True, response_id=f"resp_{number:020}"))
        here.clock.advance(3.0)
        text = {"reads": page(number), "writes": "File written."}.get(what, FAILED if number % 2 else "Edited.")
        result = {"type": "function_call_output", "call_id": f"call_{number:020}", "output": text}
        body = {"model": "m", "input": [result], "previous_response_id": f"resp_{number:020}"}


@pytest.mark.parametrize("told", [True, False])
def test_polling_over_mcp(told: bool) -> None:
    """What the calls return goes to the client; where the answers are seen they tell that the job gets on (C8)."""
    here = guarded()
    headers = {"authorization": "Bearer k", "mcp-session-id": "m"}
    for number in range(60):
        name = ("job_status", "sleep", "read_log")[number % 3]
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": {}}}
        asked = call("/mcp", "POST", headers, body=json.dumps(body).encode())
        asked.tracked = told
        assert found(here.engine.decide(asked)) == "pass", number
        if told:
            text = {"sleep": "slept"}.get(name, f"running, {300 - number} s left")
            here.engine.settle(asked, Answer(200, text=text, complete=True))
        here.clock.advance(5.0)


@pytest.mark.parametrize(
    "result",
    [
        "2026-01-01 00:00:{0:02},{1}",
        "running, {1} s left",
        "Berlin {0:02}:{1:02} Madrid",
        "{0:08x}-1234-4abc-8def-{1:012x}",
        "next free slot: 2026-03-01 {0:02}:{1:02}",
        "stopped at 0x{1:06x}",
        "elapsed: {1}.5 s",
    ],
)
def test_results_that_are_a_time_or_an_id(here: World, result: str) -> None:
    """Where that is all a result says, another one is news; whether the same is called, or the next (C2)."""
    agent = Agent(here)
    for number in range(20):
        agent.call("next", "{}", result.format(number, number * 37 % 60))
    for number in range(20, 40):
        agent.call("bench", f'{{"size": {number}}}', result.format(number, 100 + number * 7))
    assert agent.flagged == []


def test_one_mistake_made_many_times_at_once(here: World) -> None:
    """A round of calls is one step, also where all of them are wrong in the same way (C16)."""
    agent = Agent(here)
    agent.more = {"tools": [{"type": "function", "function": {"name": "find", "parameters": {}}}]}
    agent.calls(*[("web", f'{{"q": {at}}}', "Error: unknown tool web") for at in range(9)])
    none = "No matches were found for this pattern anywhere in the repository; try another one, or widen the search."
    agent.call("find", '{"q": "zz"}', none)
    agent.calls(*[("find", f'{{"q": "word {at}"}}', none) for at in range(12)])
    assert agent.flagged == []


@pytest.mark.parametrize("cue", ["continue", "Please go on with the next chapter of the book."])
def test_a_long_text_in_parts(here: World, cue: str) -> None:
    """A user's "continue" is the whole conversation while somebody writes a book (C21)."""
    agent = Agent(here, task="Write a novel about a lighthouse.")
    for number in range(20):
        agent.says(" ".join(f"w{number}x{at}" for at in range(200)), cue)
    assert agent.flagged == []


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_a_log_that_grows_from_prompt_to_prompt(here: World, newest_first: bool, named: bool) -> None:
    """The old prompt is in the new one, but what is added is another line each time (C20)."""
    log = "line 0 0.99 of the training"
    for number in range(1, 12):
        agent = Agent(here, task=log, session="s" if named else "")
        assert agent.flagged == []
        line = f"line {number} 0.{99 - number} of the training"
        log = f"{line}\n{log}" if newest_first else f"{log}\n{line}"


@pytest.mark.parametrize("ids", ["drawn", "counted", "none"])
def test_replicas_of_one_agent_side_by_side(ids: str) -> None:
    """Eight runs of one task, none of which has a name; they begin alike (LD-4)."""
    here = guarded()
    agents = [Agent(here, session="", every_s=1.0) for _ in range(8)]
    for number in range(12):
        for at, agent in enumerate(agents):
            part = number if number < 6 else 100 * at + number
            said, result = f"I am number {at}, and look at part {number}.", page(part)
            if ids == "none":
                answer = f"<returncode>0</returncode>\n<output>\n{result}\n</output>"
                agent.says(f"{said}\n\n```bash\ncat part{part}\n```", answer)
                continue
            by = f"call_{number}" if ids == "counted" else f"call_{at:06}_{number:06}"
            made = {"id": by, "type": "function", "function": {"name": "cat", "arguments": f'{{"part": {part}}}'}}
            agent.messages.append({"role": "assistant", "content": said, "tool_calls": [made]})
            agent.messages.append({"role": "tool", "tool_call_id": by, "content": result})
            agent.send()
    assert [one for agent in agents for one in agent.flagged if one.startswith("deny")] == []

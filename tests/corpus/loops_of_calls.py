"""Loops of tool calls: the same step again, the same failure again, results without anything new."""

from __future__ import annotations

from typing import Final

from tests.corpus.catalogue import CLOUDS, ONE_MESSAGE, SOME, TOOLS, Catalogue, as_loop
from tests.corpus.script import Made, Script
from tests.corpus.words import NOUNS, chapter, line, noun, path, text

CATALOGUE: Final = Catalogue()
loop, noticed = CATALOGUE.loop, CATALOGUE.noticed
STEPS: Final = "{similarity: steps}"

# -- repeat


@loop(
    "repeat",
    at=6,
    forms=(*TOOLS, "chat-counted", "responses-unnamed", "messages-unnamed", "gemini-unnamed", *CLOUDS),
)
def same_search(s: Script) -> None:
    """The same search, and the same result."""
    for _ in range(9):
        s.call("find_orders", {"customer": 4711}, "There are no orders of this customer.")


@loop("repeat", at=6)
def same_search_among_new_words(s: Script) -> None:
    """The model writes something new each time, and calls the same with the same result."""
    for turn in range(9):
        s.call("read_file", {"path": "notes.md"}, line("notes"), said=f"Let me see. {line(turn, 'said')}")


@loop("repeat", at=6, forms=SOME)
def same_call_with_a_new_request_id(s: Script) -> None:
    """Arguments that name the request are not part of the call."""
    for turn in range(9):
        arguments = {"city": "Turin", "request_id": f"r-{turn * 977}", "timestamp": 1_700_000_000 + turn}
        s.call("get_weather", arguments, "Overcast, 11 degrees, light wind from the west.")


@loop("repeat", at=6, forms=("chat-roles",))
def same_page_in_messages_with_their_own_roles(s: Script) -> None:
    """A framework sends calls and results as messages of their own, with roles that no API has, and new ids."""
    for turn in range(9):
        s.call("open_page", {"number": 3}, text("page"), said=f"I open it. {line(turn, 'said')}" if turn % 2 else "")


@loop("failure", at=5, forms=SOME)
def command_that_the_shell_does_not_know(s: Script) -> None:
    """The shell reports itself that there is no such command."""
    for _ in range(7):
        s.call("run_shell", {"line": "frobnicate --all"}, "bash: line 1: frobnicate: command not found")


@loop("repeat", at=6)
def report_with_the_time_in_it(s: Script) -> None:
    """A long result in which only the clock, a duration and a process id change."""
    for turn in range(9):
        head = f"2026-02-03 10:{turn:02}:{turn * 7 % 60:02} [pid {3000 + turn}] done in {turn + 1}.2 s"
        s.call("sales_report", {}, f"{head}\n{text('report')}")


@loop("repeat", at=6)
def volatile_lines_around_a_short_result(s: Script) -> None:
    """A harness writes an id and a duration before each result, and a duration after it."""
    for turn in range(9):
        head = f"Chunk ID: {turn * 7919 + 40961:x}\nWall time: 0.{turn * 31:04} seconds\nProcess exited with code 0\nOutput:"
        s.call("exec_command", {"cmd": "cat version.txt"}, f"{head}\n2.4.1\nElapsed: {turn + 3} ms\n")


@loop("repeat", at=6)
def volatile_fields_around_a_short_result(s: Script) -> None:
    """A result in an object with an id and a duration."""
    for turn in range(9):
        result = f'{{"request_id": "r{turn * 7919}", "output": "2.4.1", "metadata": {{"exit_code": 0, "duration_seconds": 0.{turn}}}}}'
        s.call("shell", {"command": ["cat", "version.txt"]}, result)


@loop("repeat", at=11, forms=SOME, every_s=25.0)
def same_search_slowly(s: Script) -> None:
    """25 s apart, a repeat counts half."""
    for _ in range(14):
        s.call("find_orders", {"customer": 4711}, "There are no orders of this customer.")


@loop("repeat", at=21, forms=("chat", "gemini"), every_s=61.0)
def same_search_very_slowly(s: Script) -> None:
    """A minute apart, a repeat counts a quarter."""
    for _ in range(22):
        s.call("find_orders", {"customer": 4711}, "There are no orders of this customer.")


@loop("repeat", at=6)
def saves_the_same_note(s: Script) -> None:
    """A change that was made already is no change."""
    for _ in range(9):
        s.call("save_note", {"text": "The client prefers tea."}, "saved")


@loop("repeat", at=6, forms=("chat", "responses", "messages", "gemini"))
def same_three_calls_at_once(s: Script) -> None:
    """The same round of parallel calls."""
    made = [Made("get_price", {"item": item}, f"{item}: {len(item)} coins, {line(item)}") for item in NOUNS[:3]]
    for _ in range(9):
        s.calls(*made)


@loop("repeat", at=9)
def works_and_then_repeats(s: Script) -> None:
    """Three good steps, and then the same one."""
    for turn in range(3):
        s.call("read_file", {"path": path(turn)}, text(turn, "file"))
    for _ in range(9):
        s.call("bash", {"command": "cat build.log"}, text("log", lines=6))


@loop("repeat", at=6, forms=("chat", "messages"))
def a_list_of_jobs_again(s: Script) -> None:
    """The tool's name sounds like a change; what it returns shows that nothing changes."""
    jobs = "\n".join(f"{name}: daily" for name in NOUNS[:6])
    for _ in range(9):
        s.call("update_jobs", {"action": "list"}, jobs)


@loop("repeat", at=6, forms=("responses-chain", "responses-conversation"))
def same_result_on_a_chain(s: Script) -> None:
    """With `previous_response_id` the calls are not in the request, but were in the answers; the results are the
    same."""
    for _ in range(9):
        s.call("find_orders", {"customer": 4711}, text("orders", lines=3))


@loop("repeat", at=6, forms=ONE_MESSAGE)
def same_search_in_one_message(s: Script) -> None:
    """Every thought, action and observation so far is in one message of the user."""
    for turn in range(9):
        s.call("find_orders", {"customer": 4711}, "There are no orders.", said=line(turn, "thought"))


@loop("failure", at=5, forms=ONE_MESSAGE)
def same_failure_in_one_message(s: Script) -> None:
    """The same with an error each time."""
    for turn in range(9):
        s.call("find_orders", {"customer": 4711}, "no such table", failed=True, said=line(turn, "thought"))


@loop("repeat", at=6, forms=("chat", "responses", "messages", "messages-unnamed", "gemini"))
def same_button_and_the_same_screen(s: Script) -> None:
    """The same click, and the same picture."""
    for _ in range(9):
        s.call("click", {"x": 40, "y": 70}, "clicked; the screen after it:", image="QUJD" * 900)


@loop("repeat", at=3, forms=("chat", "responses", "messages", "gemini"))
def equal_searches_in_each_answer(s: Script) -> None:
    """Ten copies of one search in an answer: reported, and blocked when the next answer has them again."""
    for _ in range(4):
        s.calls(*[Made("find_orders", {"customer": 7}, text("orders", lines=3)) for _ in range(10)])


@noticed("repeat", at=2, forms=SOME)
def fifty_equal_looks_in_one_answer(s: Script) -> None:
    """Reported at once."""
    s.calls(*[Made("get_price", {"item": "lamp"}, "12.50") for _ in range(50)])
    s.call("get_price", {"item": "table"}, "99.00")


# -- cycle


@loop("cycle", at=11)
def opens_and_goes_back(s: Script) -> None:
    """Two steps in turn."""
    for turn in range(14):
        s.call(("open_form", "go_back")[turn % 2], {"page": "checkout"}, f"{line(turn % 2, 'page')} {turn % 2}")


@loop("dry", at=17)
def four_steps_in_turn(s: Script) -> None:
    """Reads, runs, looks at the log, asks for help, and begins again."""
    steps = [("read_file", {"path": "run.cfg"}), ("bash", {"command": "python run.py"})]
    steps += [("read_file", {"path": "run.log"}), ("get_help", {"topic": "run"})]
    for turn in range(24):
        name, arguments = steps[turn % 4]
        s.call(name, arguments, text(turn % 4, "round"))


@loop("cycle", at=16, forms=SOME)
def three_steps_in_turn_among_new_words(s: Script) -> None:
    """Three steps in turn, while the model writes something new each time."""
    steps = [("read_file", {"path": "run.cfg"}), ("get_log", {"of": "run"}), ("get_help", {"topic": "run"})]
    for turn in range(18):
        name, arguments = steps[turn % 3]
        s.call(name, arguments, text(turn % 3, "round"), said=chapter(turn, "thought", sentences=3))


@loop("dry", at=21, forms=("chat", "gemini"))
def six_files_in_turn(s: Script) -> None:
    """A round of six files, read over and over."""
    for turn in range(48):
        s.call("read_file", {"path": path(turn % 6)}, text(turn % 6, "file"))


@loop("cycle", at=11, forms=SOME)
def form_and_its_error(s: Script) -> None:
    """Fills in a form, is told that it is invalid, clears it, fills it in again."""
    for turn in range(12):
        if turn % 2:
            s.call("click_clear", {"form": "address"}, f"The form is empty. {line('form')}")
        else:
            s.call("type_text", {"form": "address", "value": "Via Roma 1"}, f"Not valid. {line('invalid')}")


# -- interleaved


@loop("interleaved", at=14)
def plan_read_between_searches(s: Script) -> None:
    """Each search returns something new, and after each one the same plan is read."""
    for turn in range(16):
        if turn % 2:
            s.call("search", {"query": noun(turn, "q")}, text(turn, "found"))
        else:
            s.call("read_file", {"path": "plan.md"}, text("plan"))


@loop("interleaved", at=20, forms=SOME)
def two_documents_between_searches(s: Script) -> None:
    """Two documents are read again between searches that find something."""
    for turn in range(24):
        if turn % 3 == 2:
            s.call("search", {"query": noun(turn, "q")}, text(turn, "found"))
        else:
            s.call("read_file", {"path": f"{'ab'[turn % 3]}.md"}, text("document", turn % 3))


# -- failure


@loop("failure", at=5)
def missing_file(s: Script) -> None:
    """The file is not there, and is read again."""
    for _ in range(8):
        s.call("read_file", {"path": "config.yml"}, "config.yml does not exist", failed=True)


@loop("failure", at=8)
def build_fails_between_reads(s: Script) -> None:
    """The same build fails while files are read in between; process ids and times in the error do not matter."""
    for turn in range(12):
        if turn % 2:
            s.call("read_file", {"path": path(turn)}, text(turn, "file"))
        else:
            error = f"10:00:{turn:02} process {800 + turn}: no rule to make target 'app'"
            s.call("bash", {"command": "make app"}, error, failed=True)


@loop("failure", at=8, forms=SOME)
def another_error_each_time(s: Script) -> None:
    """The same call with another error each time: each counts half."""
    for turn in range(12):
        s.call("deploy", {"to": "stage"}, f"{noun(turn, 'error')} of the {noun(turn, 'part')} refused it", failed=True)


@loop("failure", at=5, forms=("chat", "messages", "gemini"))
def python_that_raises(s: Script) -> None:
    """The same code raises the same exception."""
    trace = "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\nKeyError: 'price'"
    for _ in range(8):
        s.call("run_python", {"code": "print(rows[0]['price'])"}, trace, failed=True)


@loop("failure", at=5, forms=("chat", "chat-text", "responses"))
def command_with_an_exit_status(s: Script) -> None:
    """An exit status is an error without a flag."""
    for _ in range(8):
        s.call("bash", {"command": "pytest -q"}, f"{line('tests')}\nexit code: 2")


@loop("failure", at=6, forms=TOOLS)
def error_that_asks_to_try_again(s: Script) -> None:
    """Two calls fail, and one of them is made again: the error does not depend on what is asked."""
    error = "the value could not be confirmed: repeat the same request with the same arguments until it is confirmed"
    for city in ("Turin", "Turin", "Genoa", "Bari", "Turin", "Turin"):
        s.call("find_city", {"name": city}, error, failed=True)


# -- unknown_tool


@loop("unknown_tool", at=5, tools=("search", "read_file"))
def tools_that_there_are_not(s: Script) -> None:
    """Invented names, another one each time."""
    for turn in range(9):
        arguments = {"q": noun(turn, "x")}
        s.call(f"{noun(turn, 'tool')}_lookup", arguments, "unknown tool", failed=True, said=line(turn, "try"))


@loop("failure", at=5, forms=("chat", "messages", "gemini"), tools=("search",))
def same_misspelled_tool(s: Script) -> None:
    """The same name that is not declared."""
    for _ in range(9):
        s.call("serach", {"q": "invoices"}, "no such tool: serach", failed=True)


# -- cascade


@loop("cascade", at=9)
def nothing_is_connected(s: Script) -> None:
    """Every tool returns that the server is gone."""
    for turn in range(12):
        s.call(f"{noun(turn, 'server')}_{turn}", {"id": turn}, "connection refused", failed=True)


@loop("cascade", at=9)
def permission_denied_in_new_ways(s: Script) -> None:
    """Ever new commands for one file that may not be written."""
    ways = ("cp", "tee", "dd", "mv", "install", "rsync", "perl -e", "python -c", "ed", "awk", "sed -i", "truncate")
    for turn, way in enumerate(ways):
        s.call("bash", {"command": f"{way} /etc/motd # {noun(turn)}"}, "permission denied: /etc/motd", failed=True)


@loop("cascade", at=10, forms=SOME)
def errors_with_one_success(s: Script) -> None:
    """Eight of ten results are errors, and the rest has nothing new."""
    for turn in range(14):
        if turn == 4:
            s.call("ping", {"host": "db"}, "ok")
        else:
            s.call(f"{noun(turn, 'server')}_{turn}", {"id": turn}, "connection refused", failed=True)


# -- stagnation, dry, novelty, near


@loop("stagnation", at=10)
def same_passages_for_new_words(s: Script) -> None:
    """A search with other words each time, and always the same passages."""
    for turn in range(14):
        s.call("search_manual", {"query": f"{noun(turn, 'a')} {noun(turn, 'b')}"}, text("passages", lines=5))


@loop("stagnation", at=18, forms=SOME)
def same_passages_between_saves(s: Script) -> None:
    """The same passages again; what is saved in between is new, so that the session is not dry."""
    for turn in range(30):
        if turn % 6 == 5:
            s.call("save_page", {"name": noun(turn, "page"), "n": turn}, "saved")
        else:
            s.call("search_manual", {"query": f"{noun(turn, 'a')} {noun(turn, 'b')}"}, text("passages", lines=5))


def _plan(turn: int) -> dict[str, object]:
    return {"todos": [{"content": line(turn, "todo", at), "status": "pending"} for at in range(4)]}


@loop("dry", at=10, forms=("chat", "chat-unnamed", "responses", "messages", "gemini"))
def plan_rewritten_and_nothing_done(s: Script) -> None:
    """The list of things to do is written anew each time, and nothing of it is done."""
    for turn in range(14):
        s.call("TodoWrite", _plan(turn), "The list was updated.")


@loop("dry", at=(9, 12), forms=SOME)
def plan_that_comes_back(s: Script) -> None:
    """The same with a tool that returns what was written."""
    for turn in range(14):
        plan = _plan(turn)
        s.call("write_todos", plan, f"Updated the list to {plan['todos']}")


DOWN: Final = "The gateway to the internal services is not available at the moment. Please send the same call again."
SERVICES: Final = ("find_parcel", "read_ledger", "list_visits", "get_weather")


@loop("stagnation", at=6)
def every_tool_gives_the_same_answer(s: Script) -> None:
    """Another tool each time, and always the same sentence: what is called does not matter."""
    for turn in range(9):
        s.call(SERVICES[turn % 4], {"of": f"{noun(turn, 'a')} {turn}"}, DOWN)


@loop("", at=(6, 8), forms=SOME)
def two_tools_that_fail_the_same_way(s: Script) -> None:
    """Two tools in turn, other arguments each time, and the same error."""
    for turn in range(12):
        s.call(SERVICES[turn % 2], {"of": f"{noun(turn, 'a')} {turn}"}, DOWN, failed=True)


@loop("dry", at=10, but={"chat-text": as_loop("reword", 7)})
def helper_that_does_not_know(s: Script) -> None:
    """Another question each time, and the same answer without content."""
    for turn in range(14):
        s.call("ask_helper", {"question": f"{noun(turn, 'a')} or {noun(turn, 'b')}"}, "I do not know that one")


@loop("", at=(6, 14), forms=SOME)
def looks_between_refused_edits(s: Script) -> None:
    """The same look at a file after edits that are refused, in words and not as errors: nothing has changed."""
    for turn in range(20):
        if turn % 2:
            given = {"path": path(1), "old": f"line {turn}", "new": noun(turn)}
            s.call("edit_file", given, f"[error] No replacement was made: line {turn} occurs twice.")
        else:
            s.call("read_file", {"path": path(1)}, text("file"))


@loop("dry", at=10, forms=("chat", "chat-text", "chat-text-unnamed", "responses-chain"))
def long_drafts_that_the_validator_refuses(s: Script) -> None:
    """Each draft has other words, and the validator returns the same sentence. The words of a call that is written as
    text are as little news as those of any other call."""
    sentence = "The report was not taken over: the field `cause` is required."
    for turn in range(24):
        s.call("hand_in_report", {"report": chapter(turn, "draft", sentences=3), "n": turn}, sentence)


@loop("dry", at=10, forms=SOME)
def schema_that_is_never_met(s: Script) -> None:
    """Other arguments each time, and the same sentence of the validator."""
    sentence = "The output does not match the required schema: /items must be an array."
    for turn in range(14):
        s.call("structured_output", {"items": noun(turn, "a"), "n": turn}, sentence)


@loop("dry", at=12, forms=SOME)
def verifies_the_verification(s: Script) -> None:
    """All is green; tests, report and summary are looked at again in changing order."""
    looks = [("bash", {"command": "pytest -q"}), ("read_file", {"path": "report.md"}), ("get_summary", {"of": "run"})]
    for turn in range(30):
        name, arguments = looks[(turn * 7 + turn // 3) % 3]
        s.call(name, {**arguments, "pass": turn}, text("green", name))


@loop("dry", at=10, forms=("chat", "messages"))
def empty_searches(s: Script) -> None:
    """Nothing is found, and the same few words are tried in another order."""
    words = ["invoice", "april", "copper"]
    for turn in range(24):
        order = words[turn % 3 :] + words[: turn % 3]
        s.call("grep", {"pattern": " ".join(order), "flags": "-" + "abc"[turn // 3 % 3]}, "no matches in 48 files")


@loop("novelty", at=24)
def excerpts_of_one_log(s: Script) -> None:
    """Excerpts of one log are read and saved over and over: never dry for long, and never a new line."""
    log = [line(at, "log") + f" {at}" for at in range(70)]
    s.call("read_log", {"lines": "0 to 70"}, "\n".join(log))
    for turn in range(1, 30):
        name = "read_log" if turn % 3 else "save_excerpt"
        s.call(name, {"lines": f"{turn} to {turn * 2 + 15}"}, "\n".join(log[turn : turn * 2 + 15]))


@loop("novelty", at=23, forms=SOME)
def excerpts_of_one_log_saved_more_often(s: Script) -> None:
    """The same, with a change at every second step."""
    log = [line(at, "log") + f" {at}" for at in range(70)]
    s.call("read_log", {"lines": "0 to 70"}, "\n".join(log))
    for turn in range(1, 34):
        name = "read_log" if turn % 2 else "save_excerpt"
        s.call(name, {"lines": f"{turn} to {turn + 25}"}, "\n".join(log[turn : turn + 25]))


@loop("dry", at=10, forms=SOME)
def same_passages_with_one_new_line(s: Script) -> None:
    """Nine lines of ten are the same each time."""
    for turn in range(16):
        s.call(
            "search_manual", {"query": noun(turn, "a") + noun(turn, "b")}, f"{text('passages', lines=9)}\n{line(turn)}"
        )


@noticed("near", at=6)
def pages_with_nothing_on_them(s: Script) -> None:
    """Page after page, and nothing on any: reported, because numbers are often the point of a call."""
    for turn in range(7):
        s.call("get_page", {"page": turn}, "there is nothing here")


# -- waiting, and looks that are none


@loop("repeat", at=11, every_s=2.0, policy=STEPS)
def polls_without_a_pause(s: Script) -> None:
    """A look every two seconds."""
    for _ in range(20):
        s.call("job_status", {"job": 12}, "no change")


@loop("repeat", at=12, forms=(*SOME, "chat-roles"), every_s=1.0, policy=STEPS)
def reads_a_terminal_without_a_pause(s: Script) -> None:
    """Reads with empty input that return at once."""
    for _ in range(20):
        s.call("write_stdin", {"session": 3, "chars": ""}, "")


@loop("repeat", at=11, every_s=60.0)
def polls_what_has_ended(s: Script) -> None:
    """Once a minute, and the answer has been final since the first look."""
    for _ in range(20):
        s.call("bash", {"command": "ci status 4411"}, "pipeline 4411: failed")


@loop("waiting", at=(70, 90), forms=SOME, every_s=290.0)
def waits_all_night(s: Script) -> None:
    """The same look every five minutes, with the same answer, for seven hours."""
    for _ in range(95):
        s.call("get_job_status", {"job": 12}, "running")


@loop("waiting", at=(24, 30), forms=SOME, every_s=900.0)
def waits_all_night_for_a_quarter_of_an_hour_each(s: Script) -> None:
    """The same look every fifteen minutes: a call that takes longer than ten minutes does not end the run."""
    for _ in range(32):
        s.call("bash", {"command": "sleep 890; squeue --me"}, "17 pending")


# -- side_effect, tool_limit


@loop("side_effect", at=4, forms=(*TOOLS, "mcp"), every_s=15.0, but={"mcp": as_loop("side_effect", 5)})
def same_mail_with_a_new_id(s: Script) -> None:
    """The same mail to the same person; the server returns a new id each time."""
    for turn in range(16):
        arguments = {"to": "ada@example.com", "subject": "Invoice", "body": line("mail")}
        s.call("send_mail", arguments, f"queued as {turn * 7919 + 40961:x}")


@loop("side_effect", at=6, forms=SOME)
def same_issue_between_other_work(s: Script) -> None:
    """The same issue is opened again after each look at the list."""
    for turn in range(9):
        s.call("create_issue", {"title": "The import fails"}, f"created #{turn + 311}: The import fails")
        s.call("list_issues", {"state": "open"}, text(turn, "issues"))


@loop("side_effect", at=2, forms=("chat", "responses", "messages", "gemini"))
def twenty_equal_orders_in_one_answer(s: Script) -> None:
    """The model calls the same twenty times at once."""
    s.calls(*[Made("place_order", {"item": "lamp"}, f"order {turn} was placed") for turn in range(20)])
    s.call("list_orders", {}, text("orders"))


@noticed("side_effect", at=3, forms=SOME)
def same_comment_twice(s: Script) -> None:
    """Reported, because it may be meant."""
    for turn in range(2):
        s.call("add_comment", {"issue": 7, "text": "I am looking into it."}, f"comment {turn + 40} was added")


@loop(
    "tool_limit",
    at=5,
    forms=(*SOME, "mcp"),
    policy="{similarity: steps, tools: {send_mail: {max_per_run: 3}}}",
    but={"mcp": as_loop("tool_limit", 4)},
)
def more_mails_than_allowed(s: Script) -> None:
    """Another mail each time: denied with the result of the fourth one, in MCP before it is sent."""
    for turn in range(6):
        s.call("send_mail", {"to": f"{noun(turn)}@example.com"}, f"sent: {line(turn, 'mail')}")


# -- MCP: results are the answers of the server


@loop("storm", at=11, forms=("mcp", "mcp-unnamed"), every_s=2.0, policy="{similarity: steps}")
def mcp_same_call(s: Script) -> None:
    """The same call to an MCP server, a few seconds apart."""
    for _ in range(16):
        s.call("list_tickets", {"queue": "open"}, "no tickets in this queue")


@loop("tail", at=6, forms=("mcp", "mcp-unnamed", "a2a"), every_s=2.0)
def mcp_same_call_with_the_built_in_protection(s: Script) -> None:
    """The same call to an MCP server: `tail` counts it first."""
    for _ in range(16):
        s.call("list_tickets", {"queue": "open"}, "no tickets in this queue")


@loop("tail", at=6, forms=("mcp", "mcp-unnamed"), every_s=5.0)
def mcp_call_that_fails(s: Script) -> None:
    """The tool returns the same error, and is called again."""
    for _ in range(9):
        s.call("open_ticket", {"queue": "none"}, "there is no such queue", failed=True)


@loop("", at=(1, 20), forms=("mcp",), every_s=15.0)
def mcp_same_call_slowly(s: Script) -> None:
    """The same call to an MCP server every 15 s, with the same answer."""
    for _ in range(24):
        s.call("list_tickets", {"queue": "open"}, "no tickets in this queue")


@loop("cycle", at=10, forms=("mcp",), every_s=15.0)
def mcp_two_calls_in_turn(s: Script) -> None:
    """Two calls in turn whose answers are known."""
    for turn in range(16):
        s.call(("open_ticket", "list_tickets")[turn % 2], {"queue": "open"}, line(turn % 2, "mcp"))


# -- not found today: see floor.py


@loop("unmoved", at=17, forms=TOOLS)
def edits_that_do_not_help(s: Script) -> None:
    """Another edit each time, and the same failing test after each of twenty."""
    for turn in range(20):
        s.call("edit_file", {"path": "app.py", "new": line(turn, "edit")}, "edited")
        s.call("bash", {"command": "pytest -q"}, "FAILED test_total: 3 != 4\nexit code: 1")


@loop("unmoved", at=(1, 40), forms=("chat", "responses", "messages"))
def error_at_another_line_after_each_edit(s: Script) -> None:
    """Each edit moves the line of the error, and nothing else; files are read in between."""
    for turn in range(14):
        s.call("edit_file", {"path": "parser.py", "new": line(turn, "edit")}, "edited")
        report = f'File "parser.py", line {40 + turn}\n{line("failure")}\nSyntaxError: the bracket was never closed'
        s.call("bash", {"command": "python parser.py"}, report, failed=True)
        s.call("read_file", {"path": path(turn)}, text(turn, "source"))


# -- drift


@loop("drift", at=7, forms=("chat", "gemini"))
def short_result_with_a_counter(s: Script) -> None:
    """A short result whose number moves towards nothing."""
    for turn in range(30):
        s.call("job_state", {"job": 12}, f"failed (checked {turn} times)")


@loop("drift", at=7, forms=TOOLS)
def short_report_with_a_duration(s: Script) -> None:
    """The same check fails in another time, and nothing is changed."""
    for turn in range(20):
        s.call("bash", {"command": "make check"}, f"1 check failed in 0.{turn * 37 % 90 + 10}s")


@loop("drift", at=13, forms=SOME)
def nothing_there_with_a_new_id(s: Script) -> None:
    """A short result that only differs in the id of the request."""
    for turn in range(20):
        s.call("open_case", {"case": 77}, f"this case has no entries, request id {noun(turn, 'id')}-{turn * 7919 % 97}")


@loop("drift", at=13, forms=SOME)
def no_matches_with_a_new_reference(s: Script) -> None:
    """That there is nothing is the content, however short; the reference beside it is not."""
    for turn in range(20):
        s.call("find_cases", {"year": 1931}, f"no matches (request r-{turn * 7919 % 97})")


@loop("repeat", at=6, forms=SOME)
def empty_answer_of_a_search_engine(s: Script) -> None:
    """An object that says how long the search took, and when."""
    for turn in range(10):
        s.call("search_index", {"q": "lamp"}, f'{{"took": {turn * 37 % 90 + 3}, "hits": 0, "ts": {1763460000 + turn}}}')


@loop("drift", at=12, forms=SOME)
def same_line_of_a_log_among_other_work(s: Script) -> None:
    """Another process writes the same line each time; new files are read in between."""
    for turn in range(30):
        if turn % 2:
            s.call("read_file", {"path": path(turn)}, text(turn, "file"))
        else:
            s.call("last_log_line", {}, f"10:{turn:02}:07 loader[{4000 + turn * 7}]: error: no such table")


@loop("repeat", at=6, forms=("chat", "responses", "messages", "gemini"))
def another_comment_each_time(s: Script) -> None:
    """The same command with another comment each time, and the same result."""
    for turn in range(10):
        s.call("bash", {"command": f"ls build  # {noun(turn)} {line(turn, 'why')}"}, "build is empty")


@loop("", at=(1, 16), forms=("chat", "responses"))
def commands_that_differ_in_a_comment(s: Script) -> None:
    """The same command with another comment each time, and another line of noise in the output."""
    for turn in range(20):
        noise = f"[{turn * 37 % 101}] {line(turn, 'noise')}"
        s.call("bash", {"command": f"ls build  # {line(turn, 'why')}"}, f"build is empty\n{noise}")


@loop("stubborn", at=(29, 31), forms=("chat", "messages"))
def script_under_a_new_name(s: Script) -> None:
    """The same script is written under a new name, run, and fails as before."""
    for turn in range(16):
        s.call("write_file", {"path": f"fix_{noun(turn)}_{turn}.py", "text": text("script")}, "written")
        s.call("bash", {"command": f"python fix_{noun(turn)}_{turn}.py"}, "no such table: orders", failed=True)

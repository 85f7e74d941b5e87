"""Healthy sessions of agents that work with tools. None of them may be blocked."""

from __future__ import annotations

from typing import Final

from tests.corpus.catalogue import NO_TASK, ONE_MESSAGE, SOME, TOOLS, Catalogue
from tests.corpus.script import Made, Script
from tests.corpus.words import NOUNS, compound, line, noun, path, text

CATALOGUE: Final = Catalogue()
healthy = CATALOGUE.healthy
STEPS: Final = "{similarity: steps}"


@healthy(forms=("chat-roles",), every_s=3.0)
def pages_in_messages_with_their_own_roles(s: Script) -> None:
    """Page after page of a framework that sends calls and results as messages of their own."""
    for page in range(20):
        s.call("open_page", {"number": page}, text(page, "page"), said="The next one." if page % 3 else "")


# -- failures and retries


@healthy(forms=("chat", "responses", "messages", "gemini"), every_s=4.0)
def provider_overloaded_for_a_while(s: Script) -> None:
    """The provider returns 429 five times; the client backs off, and it goes on."""
    for turn in range(3):
        s.call("read_file", {"path": path(turn)}, text(turn))
    for wait in (1.0, 2.0, 4.0, 8.0, 16.0):
        s.again(status=429)
        s.wait(wait)
    for turn in range(3, 8):
        s.call("read_file", {"path": path(turn)}, text(turn))


@healthy(forms=("chat", "mcp", "completions", "embeddings"), every_s=6.5)
def failed_attempts_every_few_seconds(s: Script) -> None:
    """A client that retries slowly while the provider is down."""
    s.call("read_file", {"path": path(0)}, text(0))
    s.again(14, status=503)


@healthy(forms=TOOLS, quiet=False)
def rate_limited_tool_with_back_off(s: Script) -> None:
    """A tool's own rate limit: the same call after 10, 20, 40 and 60 s, and then it works."""
    for wait in (10.0, 20.0, 40.0, 60.0):
        s.call("search_web", {"q": "ferry timetable"}, "rate limit exceeded, retry later", failed=True)
        s.wait(wait)
    s.call("search_web", {"q": "ferry timetable"}, text("ferry"))
    for turn in range(4):
        s.call("open_page", {"url": f"https://example.com/{noun(turn)}"}, text(turn, "page"))


@healthy(forms=TOOLS, quiet=False)
def tests_that_fail_less_and_less(s: Script) -> None:
    """Edit, run the tests, read the changing report."""
    for turn in range(9):
        s.call("edit_file", {"path": path(turn), "new": line(turn, "edit")}, "edited")
        report = f"{text(turn, 'report', lines=3)}\n{9 - turn} failed, {20 + turn} passed"
        s.call("bash", {"command": "pytest -q"}, f"{report}\nexit code: {int(turn < 8)}")


@healthy(forms=TOOLS, quiet=False)
def seven_edits_until_it_is_green(s: Script) -> None:
    """Seven different edits, the same failure after each, then green."""
    for turn in range(7):
        s.call("edit_file", {"path": "app.py", "new": line(turn, "edit")}, "edited")
        s.call("bash", {"command": "pytest -q"}, f"{line('failure')} expected 4, got 3\nexit code: 1")
    s.call("edit_file", {"path": "app.py", "new": line(7, "edit")}, "edited")
    s.call("bash", {"command": "pytest -q"}, "12 passed")


@healthy(forms=TOOLS, quiet=False)
def names_are_removed_one_by_one(s: Script) -> None:
    """A name is removed and searched for: that nothing is left is an exit status without output, and what is wanted."""
    for turn in range(18):
        s.call("edit_file", {"path": path(turn), "old": compound(turn, "name"), "new": ""}, "edited")
        s.call("bash", {"command": f"grep -rn {compound(turn, 'name')} src"}, "exit code: 1", failed=True)


@healthy(forms=TOOLS, quiet=False)
def right_at_the_third_attempt(s: Script) -> None:
    """Structured output is wrong twice and right then, for one item after the other."""
    for item in range(8):
        for attempt in range(2):
            answer = {"item": noun(item), "attempt": attempt}
            s.call("final_output", answer, "The output does not match the schema: `price` has to be a number.")
        s.call("final_output", {"item": noun(item), "attempt": 2}, "ok")


@healthy(forms=SOME, quiet=False)
def records_that_are_created_where_missing(s: Script) -> None:
    """Each record is looked for, is not there, and is created."""
    for turn in range(20):
        s.call("get_customer", {"name": compound(turn, "customer")}, "Error: there is no such customer", failed=True)
        s.call("create_customer", {"name": compound(turn, "customer")}, f"created as number {4000 + turn}")


@healthy(forms=SOME, quiet=False)
def files_with_the_same_defect(s: Script) -> None:
    """Each file fails a check with the same message, is repaired, and passes."""
    for turn in range(16):
        s.call("bash", {"command": f"lint {path(turn)}"}, "the licence header is missing", failed=True)
        s.call("edit_file", {"path": path(turn), "new": line(turn, "header")}, "edited")
        s.call("bash", {"command": f"lint {path(turn)}"}, "clean")


@healthy(forms=SOME, quiet=False)
def editor_and_reviewer(s: Script) -> None:
    """A reviewer asks for a revision of each chapter, in the same words, and approves it then."""
    for turn in range(10):
        for part in range(2):
            s.call("write_file", {"path": f"{noun(turn)}.md", "text": line(turn, part, "chapter")}, "written")
            verdict = f"APPROVED. {line(turn, 'praise')}" if part else "REVISE: the ending is not clear enough yet."
            s.call("ask_reviewer", {"draft": line(turn, part, "chapter")}, verdict)


@healthy(forms=SOME, quiet=False)
def searches_until_it_finds(s: Script) -> None:
    """Six searches find nothing, the seventh does."""
    for turn in range(6):
        s.call("grep", {"pattern": f"def {noun(turn, 'f')}"}, "no matches")
    s.call("grep", {"pattern": "def total"}, f"{path('t')}:12: def total(rows):")
    for turn in range(3):
        s.call("read_file", {"path": path(turn, "t")}, text(turn, "t"))


@healthy(forms=SOME, quiet=False)
def person_helps_after_errors(s: Script) -> None:
    """Seven errors, a person explains, and a few more errors until it works: the person's text begins a new count."""
    for turn in range(7):
        s.call(f"{noun(turn, 'tool')}_{turn}", {"id": turn}, "connection refused", failed=True)
    s.says("I cannot reach any of these servers.", line("person") + " Use the second network from now on, please.")
    for turn in range(7, 10):
        s.call(f"{noun(turn, 'tool')}_{turn}", {"id": turn}, "connection refused", failed=True)
    s.call("ping", {"host": "db"}, text("works now"))


@healthy(forms=("chat", "messages", "gemini"), quiet=False)
def flaky_command_run_again(s: Script) -> None:
    """A command fails, is run once more, and passes; several times in a row for different commands."""
    for turn in range(6):
        command = {"command": f"pytest tests/{noun(turn)}.py"}
        s.call("bash", command, "timed out while waiting for the port", failed=True)
        s.call("bash", command, f"{4 + turn} passed")


@healthy(forms=SOME, quiet=False)
def schema_wrong_twice_for_each_item(s: Script) -> None:
    """Structured output is wrong twice and right the third time, for six items."""
    for item in range(6):
        for attempt in range(2):
            wrong = f"field {noun(item, attempt)} is missing"
            s.call("save_record", {"item": noun(item, "i"), "try": attempt}, wrong, failed=True)
        s.call("save_record", {"item": noun(item, "i"), "complete": True}, "saved")


@healthy(forms=SOME, quiet=False)
def every_item_fails_the_same_way(s: Script) -> None:
    """A sweep in which each item fails, with an error that does not name it; one is tried again."""
    error = "the archive of that year is not available at the moment, because its index is being rebuilt by the library"
    for year in (1931, 1932, 1932, 1933, 1934):
        s.call("open_archive", {"year": year}, error, failed=True)
    s.call("list_archives", {"state": "available"}, text("archives"))


# -- lists and batches


@healthy(forms=(*TOOLS, "mcp"))
def pages_of_a_list(s: Script) -> None:
    """Page after page, each with other rows."""
    for page in range(20):
        s.call("list_customers", {"page": page, "size": 4}, text(page, "rows"))


@healthy(forms=SOME)
def pages_with_a_cursor(s: Script) -> None:
    """A cursor instead of a number; the last page is empty."""
    for page in range(12):
        s.call(
            "query_rows",
            {"cursor": f"c{page * 7919:x}"},
            f"{text(page, 'row', lines=2)}\nnext: c{page * 7919 + 7919:x}",
        )
    s.call("query_rows", {"cursor": "end"}, "[]")


@healthy(forms=TOOLS)
def twenty_calendar_entries(s: Script) -> None:
    """A batch of changes, each acknowledged with the same word."""
    for turn in range(20):
        s.call("create_event", {"day": turn + 1, "title": noun(turn, "event")}, "created")


@healthy(forms=(*TOOLS, "mcp"))
def cleans_up_many_items(s: Script) -> None:
    """Thirty items are deleted; each returns "ok"."""
    for turn in range(30):
        s.call("delete_file", {"path": f"/data/{noun(turn)}-{turn}.bak"}, "ok")


@healthy(forms=SOME)
def shell_clean_up(s: Script) -> None:
    """Commands without output."""
    for turn in range(20):
        s.call("bash", {"command": f"rm -f build/{noun(turn)}-{turn}.o"}, "")


@healthy(forms=SOME)
def licence_headers(s: Script) -> None:
    """Read, edit, next file."""
    for turn in range(18):
        s.call("read_file", {"path": path(turn)}, text(turn, "source"))
        s.call("edit_file", {"path": path(turn), "insert": "# Licence: see LICENSE."}, "edited")


@healthy(forms=TOOLS)
def reads_many_files(s: Script) -> None:
    """Thirty files."""
    for turn in range(30):
        s.call("read_file", {"path": path(turn)}, text(turn, "source", lines=8))


@healthy(forms=SOME)
def reads_one_file_in_blocks(s: Script) -> None:
    """The same file, block after block."""
    for turn in range(25):
        arguments = {"path": "data.csv", "offset": turn * 40, "limit": 40}
        s.call("read_file", arguments, "\n".join(f"{turn * 40 + at},{line(turn, at)}" for at in range(6)))


@healthy(forms=("chat", "responses", "messages", "gemini"))
def parallel_reads(s: Script) -> None:
    """Four files at once, many times."""
    for turn in range(10):
        s.calls(*[Made("read_file", {"path": path(turn, at)}, text(turn, at, "source")) for at in range(4)])


@healthy(forms=("chat", "messages"))
def fifty_calls_in_one_answer(s: Script) -> None:
    """A batch in one answer, all with the same acknowledgement."""
    for turn in range(3):
        s.calls(*[Made("add_row", {"n": turn * 50 + at}, "ok") for at in range(50)])


@healthy(forms=SOME)
def sweep_of_experiments(s: Script) -> None:
    """Other parameters each time; results differ in their numbers."""
    for turn in range(25):
        loss = f"loss {1 / (turn + 2):.4f}, accuracy {0.5 + turn / 60:.3f}"
        s.call("run_experiment", {"rate": turn / 100, "layers": turn % 5}, loss)


@healthy(forms=SOME)
def prices_of_pairs(s: Script) -> None:
    """Two questions in turn, about other items each time."""
    for turn in range(10):
        for shop in ("north", "south"):
            s.call(
                "get_price", {"shop": shop, "item": NOUNS[turn]}, f"{NOUNS[turn]}: {turn * 3 + len(shop) * turn} coins"
            )


@healthy(forms=(*SOME, "mcp"))
def moves_in_a_game(s: Script) -> None:
    """The same key is pressed; only the position changes."""
    for turn in range(25):
        s.call("press_key", {"key": "right"}, f"you are at {turn}, {turn * turn % 7}")


@healthy(forms=SOME)
def same_command_with_other_output(s: Script) -> None:
    """A directory that fills up."""
    for turn in range(16):
        s.call("bash", {"command": "ls out"}, "\n".join(f"{noun(at, 'out')}-{at}.txt" for at in range(turn + 1)))


@healthy(forms=SOME)
def moves_files_and_mends_imports(s: Script) -> None:
    """Search, move, edit, edit, next."""
    for turn in range(8):
        name = noun(turn, "component")
        s.call("grep", {"pattern": f"import {name}"}, f"{path(turn, 'a')}:3\n{path(turn, 'b')}:7")
        s.call("bash", {"command": f"git mv {name}.py parts/{name}.py"}, "")
        for place in "ab":
            s.call("edit_file", {"path": path(turn, place), "old": name, "new": f"parts.{name}"}, "edited")


@healthy(forms=SOME)
def keys_pressed_together(s: Script) -> None:
    """The same key five times in one answer, then a look at the screen."""
    for turn in range(8):
        s.calls(*[Made("press_key", {"key": "down"}, "pressed") for _ in range(5)])
        s.call("read_screen", {}, text(turn, "screen"))


@healthy(forms=SOME)
def reads_each_file_three_times_at_once(s: Script) -> None:
    """A model that makes each call three times in one answer, and goes on."""
    for turn in range(12):
        s.calls(*[Made("read_file", {"path": path(turn)}, text(turn, "file")) for _ in range(3)])


@healthy(forms=SOME)
def asks_for_the_next_free_slot(s: Script) -> None:
    """The time in a short result is its content."""
    for turn in range(20):
        s.call("next_slot", {"room": 4}, f"next free: {8 + turn // 4:02}:{turn % 4 * 15:02}")
        s.call("ask_guests", {"slot": turn}, f"{noun(turn)} cannot come: {line(turn, 'guest')}")


# -- effects outside


@healthy(forms=(*TOOLS, "mcp"))
def invitations_to_many(s: Script) -> None:
    """The same mail to twenty people."""
    for turn in range(20):
        s.call("send_mail", {"to": f"{noun(turn)}{turn}@example.com", "body": line("invitation")}, "sent")


@healthy(forms=SOME, quiet=False)
def mail_that_fails_twice(s: Script) -> None:
    """The server is busy twice; the third time the mail is sent."""
    mail = {"to": "ada@example.com", "body": line("mail")}
    s.call("send_mail", mail, "the mail server does not answer", failed=True)
    s.call("send_mail", mail, "Error: the mail server is closing the connection")
    s.call("send_mail", mail, "sent as 4711")
    s.call("send_mail", {"to": "bob@example.com", "body": line("mail")}, "sent as 4712")


@healthy(forms=SOME, quiet=False)
def two_of_the_same_in_a_cart(s: Script) -> None:
    """Two equal items, and the rest of the order."""
    for _ in range(2):
        s.call("add_item", {"product": "lamp", "count": 1}, "added")
    s.call("place_order", {"cart": 17}, "order 9213 was placed")


@healthy(forms=SOME)
def tells_that_it_is_still_working(s: Script) -> None:
    """The same message between edits."""
    for turn in range(8):
        s.call("write_file", {"path": path(turn), "text": text(turn, "file")}, "written")
        s.call("post_message", {"channel": "team", "text": "Still working on it."}, f"posted at {turn * 977}")


@healthy(forms=SOME)
def deploys_after_each_edit(s: Script) -> None:
    """The same deployment of other code."""
    for turn in range(6):
        s.call("edit_file", {"path": path(turn), "new": line(turn, "edit")}, "edited")
        s.call("deploy", {"to": "stage"}, f"deployed as build {turn + 40}")


# -- looking again after a change


@healthy(forms=TOOLS)
def status_after_each_edit(s: Script) -> None:
    """The same look with the same result after each of twelve edits."""
    for turn in range(12):
        s.call("edit_file", {"path": path(turn), "new": line(turn, "edit")}, "edited")
        s.call("get_preview", {"page": "home"}, "preview is ready")


@healthy(forms=SOME)
def saves_one_file_again_and_again(s: Script) -> None:
    """An editor saves the same file with other content."""
    for turn in range(20):
        s.call("write_file", {"path": "draft.md", "text": text(turn, "draft")}, "written")


@healthy(forms=SOME)
def task_list_kept_up_to_date(s: Script) -> None:
    """A task list is written after each step of work."""
    for turn in range(10):
        s.call("bash", {"command": f"python step_{turn}.py"}, text(turn, "step"))
        done = {name: at <= turn for at, name in enumerate(NOUNS[:10])}
        s.call("todo_write", {"items": done}, "The list was updated.")


@healthy(forms=("chat", "messages", "responses-chain"))
def reads_the_plan_again_after_compaction(s: Script) -> None:
    """After each compaction the same plan is read, and then new work is done."""
    for part in range(6):
        if part:
            s.compact(f"Summary of part {part}: {text(part, 'summary')}")
        s.call("read_file", {"path": "plan.md"}, text("plan"))
        for turn in range(5):
            s.call("edit_file", {"path": path(part, turn), "new": line(part, turn, "edit")}, "edited")


@healthy(forms=("chat", "messages", "gemini", "responses-chain"))
def one_compaction_in_a_long_run(s: Script) -> None:
    """A long run whose context is cut every twelve steps."""
    for turn in range(36):
        if turn and turn % 12 == 0:
            s.compact(f"Summary: {text(turn, 'summary')}")
        s.call("read_file", {"path": path(turn)}, text(turn, "large", lines=40))


@healthy(forms=("chat", "messages", "gemini"))
def reads_its_notes_again_after_each_summary(s: Script) -> None:
    """After each of ten compactions the same two files are read again, and then new pages; nothing is written."""
    for part in range(11):
        if part:
            s.begin(f"The work is continued from a previous conversation. {text(part, 'summary')}")
        for name in ("guide.md", "notes.md"):
            s.call("read_file", {"path": name}, text(name))
        for turn in range(7):
            s.call("open_page", {"url": f"https://example.com/{part}/{noun(turn)}"}, text(part, turn, "page"))


@healthy(forms=("chat", "messages", "gemini", "responses-chain"))
def small_context_and_an_edit_before_each_cut(s: Script) -> None:
    """The context is cut every four steps, and each time a file was repaired."""
    for turn in range(20):
        s.call("read_file", {"path": path(turn)}, text(turn, "large", lines=60))
        s.call("read_file", {"path": path(turn, "test")}, text(turn, "test", lines=60))
        s.call("edit_file", {"path": path(turn), "new": line(turn, "edit")}, "edited")
        s.call("bash", {"command": f"pytest {path(turn, 'test')}"}, f"{turn + 3} passed")
        s.compact(f"Summary of what was done: {line(turn, 'summary')}")


@healthy(forms=("chat", "messages", "gemini"))
def contexts_that_shrink_a_little(s: Script) -> None:
    """A client drops its oldest results each time the context is full: never half of it at once."""
    for turn in range(20):
        if turn > 8:
            s.items[1:3] = []
        s.call("read_file", {"path": path(turn)}, text(turn, "large", lines=30))


@healthy(forms=("responses-chain", "responses-conversation"))
def work_on_a_chain(s: Script) -> None:
    """With `previous_response_id`, every result is new."""
    for turn in range(20):
        s.call("read_file", {"path": path(turn)}, text(turn, "source"))


@healthy(forms=ONE_MESSAGE)
def work_in_one_message(s: Script) -> None:
    """Every thought, action and observation so far is in one message of the user; every file is another."""
    for turn in range(20):
        s.call("read_file", {"path": path(turn)}, text(turn, "source"), said=line(turn, "thought"))


@healthy(forms=ONE_MESSAGE)
def batch_in_one_message(s: Script) -> None:
    """The same with changes that are each acknowledged with the same word."""
    for turn in range(30):
        s.call("delete_file", {"path": f"{noun(turn)}-{turn}"}, "done", said=line(turn, "thought"))


@healthy(forms=("responses-chain", "responses-conversation"))
def batch_on_a_chain(s: Script) -> None:
    """With `previous_response_id`, thirty changes that are each acknowledged with the same word."""
    for turn in range(30):
        s.call("delete_file", {"path": f"{noun(turn)}-{turn}"}, "done")


@healthy(forms=SOME, quiet=False)
def last_step_of_a_finished_run(s: Script) -> None:
    """Work, a final check twice, and the end."""
    for turn in range(8):
        s.call("edit_file", {"path": path(turn), "new": line(turn, "edit")}, "edited")
    for _ in range(2):
        s.call("bash", {"command": "pytest -q"}, "31 passed")


@healthy(forms=SOME)
def bisects_a_history(s: Script) -> None:
    """The same command after each checkout, with one of two results."""
    for turn in range(12):
        s.call("bash", {"command": f"git checkout {turn * 7919 + 40961:x}"}, f"HEAD is now at {turn * 7919 + 40961:x}")
        s.call("bash", {"command": "make check"}, ("all good", "one check fails")[turn * 5 % 3 == 0])


@healthy(forms=SOME, quiet=False)
def empty_results_among_full_ones(s: Script) -> None:
    """A sweep over dates, most of which have no entries."""
    for turn in range(24):
        s.call(
            "get_entries", {"day": f"2026-03-{turn + 1:02}"}, text(turn, "entry", lines=2) if turn % 4 == 0 else "[]"
        )


PICTURES: Final = ("chat", "responses", "messages", "messages-unnamed", "gemini")


@healthy(forms=PICTURES)
def scrolls_through_a_page(s: Script) -> None:
    """The caption is the same, the picture is another one of about the same size."""
    for turn in range(30):
        s.call("scroll_down", {}, "the screen after it:", image="QUJD" * 900 + f"{turn:04}")


@healthy(forms=PICTURES)
def clicks_with_the_same_words(s: Script) -> None:
    """A new picture after each click, and three lines that are always the same."""
    for turn in range(30):
        caption = "The action was performed.\nThe window in front is the editor.\nThe screen after it:"
        s.call("click", {"x": 40 + turn, "y": 70}, caption, image="QUJD" * 900 + f"{turn:04}")


@healthy(forms=("chat", "messages"), every_s=3.0, quiet=False)
def same_text_read_by_two_agents(s: Script) -> None:
    """A document is looked at twice, at the beginning and at the end."""
    s.call("read_file", {"path": "brief.md"}, text("brief", lines=9))
    for turn in range(8):
        s.call("search", {"query": noun(turn, "q")}, text(turn, "found"))
    s.call("read_file", {"path": "brief.md"}, text("brief", lines=9))


@healthy(forms=SOME, quiet=False)
def same_command_after_a_person_helps(s: Script) -> None:
    """A command fails three times; a person explains; it fails three more times before it works."""
    for part in range(2):
        for turn in range(3):
            s.call("bash", {"command": "make app"}, "no rule to make target 'app'", failed=True)
            s.call("read_file", {"path": path(part, turn)}, text(part, turn, "file"))
        s.says("It still fails.", f"{line(part, 'person')} Look at the other folder, too.")
    s.call("bash", {"command": "make app"}, text("built"))


@healthy(forms=SOME, quiet=False, tools=("search", "read_file"))
def wrong_name_of_a_tool_now_and_then(s: Script) -> None:
    """A name that is not declared, then the right one; five times in a long run."""
    for turn in range(5):
        s.call(f"{noun(turn, 'tool')}_find", {"q": noun(turn)}, "unknown tool", failed=True)
        for part in range(3):
            s.call("search", {"q": noun(turn, part)}, text(turn, part, "found"))


@healthy(forms=SOME, quiet=False)
def errors_that_teach_something(s: Script) -> None:
    """An interface is explored by trial; each error names other fields."""
    for turn in range(12):
        s.call(f"try_{noun(turn, 'api')}", {"n": turn}, f"{noun(turn)} is missing; {text(turn, 'usage')}", failed=True)


@healthy(forms=("chat", "messages", "gemini", "responses"), quiet=False)
def banner_beside_each_read(s: Script) -> None:
    """A second call in each round always returns the same long text; the first one returns something new."""
    for turn in range(16):
        banner = Made("get_rules", {"for": noun(turn, "rules"), "n": turn}, text("rules", lines=3))
        s.calls(Made("read_file", {"path": path(turn)}, text(turn, "source", lines=8)), banner)


@healthy(forms=SOME)
def checks_the_connection_between_steps(s: Script) -> None:
    """The same short acknowledgement between steps of work."""
    for turn in range(12):
        s.call("read_file", {"path": path(turn)}, text(turn, "source"))
        s.call("ping", {"host": "db"}, "ok")


@healthy(forms=SOME)
def pages_some_of_which_are_empty(s: Script) -> None:
    """Two pages with rows, two without, and so on."""
    for page in range(24):
        s.call("get_page", {"page": page}, text(page, "rows") if page % 4 < 2 else "there are no rows on this page")


@healthy(forms=SOME, quiet=False)
def each_item_needs_three_attempts(s: Script) -> None:
    """A form that is refused twice and accepted then, for one item after the other."""
    for turn in range(24):
        refused = "The form is not valid: the field `owner` is missing."
        given = {"item": noun(turn // 3, "item"), "attempt": turn % 3}
        s.call("fill_in_form", given, refused if turn % 3 < 2 else "accepted")


@healthy(forms=(*SOME, "chat-text"))
def names_that_are_gone(s: Script) -> None:
    """After a clean-up, twenty names are searched for, and none is found."""
    for turn in range(20):
        s.call("grep", {"pattern": compound(turn, "name")}, "")


@healthy(forms=SOME, every_s=3.0)
def progress_with_a_clock(s: Script) -> None:
    """A short state with the time and a duration in it, in which a number moves towards a total."""
    for turn in range(30):
        s.call("export_rows", {}, f"10:00:{turn:02} {turn * 9} of 400 rows written, {turn} s")


@healthy(forms=SOME, every_s=3.0)
def asks_for_the_time(s: Script) -> None:
    """The time is all that is in the result."""
    for turn in range(20):
        s.call("now", {}, f"10:{turn:02}:{turn * 13 % 60:02}")
        s.call("read_file", {"path": path(turn)}, text(turn, "file"))


@healthy(forms=SOME, every_s=3.0)
def rolls_dice(s: Script) -> None:
    """The same call, and a number that means something each time."""
    for turn in range(30):
        s.call("roll_dice", {"sides": 20}, f"you rolled a {turn * 7 % 20 + 1}")


@healthy(forms=TOOLS)
def same_report_after_each_edit(s: Script) -> None:
    """The same checks pass after each edit, in another time."""
    for turn in range(20):
        s.call("edit_file", {"path": path(turn), "new": line(turn, "edit")}, "edited")
        s.call("bash", {"command": "make check"}, f"31 checks passed in 0.{turn * 37 % 90 + 10}s")


@healthy(forms=(*TOOLS, "chat-text"))
def one_line_in_a_frame(s: Script) -> None:
    """A harness writes four lines around each result, of which one line is new."""
    for turn in range(24):
        result = f"Observation:\nExecution logs:\n{noun(turn, 'n')} {turn * 7}\nLast output from code snippet:\nNone"
        s.call("python_interpreter", {"code": f"print(rows[{turn * 3}].name)"}, result)


@healthy(forms=(*TOOLS, "chat-text-unnamed"), every_s=2.0)
def page_shown_after_each_change(s: Script) -> None:
    """A page is rendered again after each change, with the same short results: the changes tell the steps apart."""
    for turn in range(12):
        s.call("change_page", {"page": 4, "text": line(turn, "text")}, "changed")
        s.call("render_page", {"page": 4}, "rendered: page-4.png")


@healthy(forms=TOOLS)
def commands_without_output(s: Script) -> None:
    """Commands that print nothing; the harness writes a status and a label all the same."""
    for turn in range(20):
        head = (
            f"Chunk ID: {turn * 7919 + 40961:x}\nWall time: 0.0{turn:02} seconds\nProcess exited with code 0\nOutput:\n"
        )
        s.call("exec_command", {"cmd": f"test -e {path(turn)}"}, head)


@healthy(forms=SOME)
def every_host_is_up(s: Script) -> None:
    """Twenty hosts, each with the same short result."""
    for turn in range(20):
        s.call("ping", {"host": f"{compound(turn, 'host')}.example.com"}, "ok")


# -- trees of agents


@healthy(forms=("chat", "messages", "responses", "gemini"), task=NO_TASK, every_s=2.0)
def orchestrator_with_eight_children(s: Script) -> None:
    """Eight agents, each with a part of the work, which they do side by side."""
    for child in range(8):
        s.begin(f"Do part {child}: {line(child, 'part')}", session=f"child-{child}", parent="main", agent="worker")
        s.waits("read_file")
        for turn in range(4):
            s.call("read_file", {"path": path(child, turn)}, text(child, turn, "file"))


@healthy(forms=("chat", "messages", "gemini"), task=NO_TASK, every_s=0.05)
def batch_of_twenty_workers(s: Script) -> None:
    """Twenty agents begin at the same time, and work on."""
    for child in range(20):
        s.begin(f"Check the {noun(child, 'w')} of {path(child)}.", session=f"w-{child}", parent="main", agent="checker")
        s.waits("read_file")


@healthy(forms=("chat", "messages", "gemini"), task=NO_TASK, every_s=1.5)
def workers_that_finish_one_after_the_other(s: Script) -> None:
    """A hundred agents in a few minutes; each answers and is done before many others have begun."""
    for child in range(100):
        s.begin(f"Summarize {path(child)}: {text(child, 'page')}", session=f"w-{child}", parent="main", agent="reader")


@healthy(forms=("chat", "messages"), task=NO_TASK, every_s=5.0)
def tree_of_two_generations(s: Script) -> None:
    """Four leads, and three helpers of each."""
    for lead in range(4):
        s.begin(f"Lead part {lead}: {line(lead, 'lead')}", session=f"lead-{lead}", parent="main", agent="lead")
        s.waits("start_agents")
    for helper in range(12):
        parent = f"lead-{helper % 4}"
        s.begin(f"Help with {line(helper, 'helper')}", session=f"helper-{helper}", parent=parent, agent="helper")
        s.waits("read_file")


@healthy()
def plan_in_three_drafts(s: Script) -> None:
    """The list of things to do is written three times before the work begins, and again after some steps."""
    for part in range(4):
        for draft in range(3):
            todos = [{"content": line(part, draft, "todo", at), "status": "pending"} for at in range(4)]
            s.call("TodoWrite", {"todos": todos}, "The list was updated.")
        for turn in range(3):
            s.call("read_file", {"path": path(part, turn)}, text(part, turn, "source"))


DOWN: Final = "The gateway to the internal services is not available at the moment. Please send the same call again."


@healthy(quiet=False)
def services_that_come_back(s: Script) -> None:
    """Three tools give the same answer while a gateway restarts; then each of them works."""
    services = ("find_parcel", "read_ledger", "list_visits")
    for name in services:
        s.call(name, {"of": noun(name)}, DOWN)
    for turn, name in enumerate(services * 3):
        s.call(name, {"of": f"{noun(name)} {turn}"}, text(turn, "found"))

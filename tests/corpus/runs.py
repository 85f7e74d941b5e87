"""Runs that start each other, or are started by a timer, a webhook or a person: healthy ones, and the same run again
and again. Each run is a conversation of its own; a turn is a request, so a run of three requests has three turns."""

from __future__ import annotations

from math import log
from typing import Final

from tests.corpus.catalogue import NO_TASK, Catalogue
from tests.corpus.script import Made, Script
from tests.corpus.wire import digest
from tests.corpus.words import line, noun, path, text

CATALOGUE: Final = Catalogue()
loop, noticed, healthy = CATALOGUE.loop, CATALOGUE.noticed, CATALOGUE.healthy
NAMED: Final = ("chat", "responses", "messages", "gemini")  # each run has a session of its own
ANY: Final = ("chat-unnamed", "chat-text-unnamed", "responses-chain", "messages-unnamed", "gemini-unnamed")
REVIEW: Final = "Review commit 4f21c9ab of the shop. Read the change, run the checks, and report what is wrong."


def _pause(mean_s: float, *seed: object) -> float:
    """Return how long it takes until the next person comes, who knows nothing of the last one."""
    return -mean_s * log((int(digest(*seed), 16) + 1) / 2**64)


def _review(s: Script, said: str = "I have read the change. The checks pass, and I have no remarks.") -> None:
    s.call("read_change", {"commit": "4f21c9ab"}, text("change", lines=12))
    s.call("run_checks", {"commit": "4f21c9ab"}, f"41 checks passed\n{text('checks', lines=3)}")
    s.ends(said)


# -- loops


@loop("rerun", at=46, forms=NAMED, every_s=5.0, task=NO_TASK)
def reviews_of_one_commit(s: Script) -> None:
    """A timer starts the same review every five minutes, 41 times, and the verdict is the same: the 16th is blocked."""
    for number in range(41):
        s.now_s = number * 300.0
        s.begin(REVIEW, session=f"review {number}")
        _review(s)


@loop("rerun", at=46, forms=ANY, every_s=5.0, task=NO_TASK)
def reviews_by_webhook(s: Script) -> None:
    """A webhook starts them at no regular time, in three or four minutes; the client names it, and its agent."""
    for number in range(20):
        s.wait(20.0 if number % 3 else 420.0)
        s.begin(REVIEW, agent="reviewer", trigger="webhook")
        _review(s)


@loop("rerun", at=31, forms=NAMED, every_s=4.0, task=NO_TASK)
def mail_that_answers_itself(s: Script) -> None:
    """Each run reads the same mail and decides to do nothing, and the next one starts at once."""
    for number in range(24):
        s.begin("A mail has arrived. Read it, and decide what to do.", session=f"mail {number}", trigger="mail")
        s.call("read_mail", {"folder": "inbox"}, f"From: desk@example.org\n\n{text('mail', lines=4)}")
        s.ends("NO_REPLY")


@loop("rerun", at=46, forms=("chat", "messages"), every_s=10.0, task=NO_TASK)
def repair_that_fails_in_the_same_place(s: Script) -> None:
    """A supervisor starts a run again whenever it has given up, with the same error."""
    for number in range(20):
        s.begin("Import the list of customers into the new system.", session=f"import {number}", agent="importer")
        s.call("read_rows", {"file": "customers.csv"}, text("rows", lines=5))
        s.call("open_target", {"system": "crm"}, "the certificate of the target has expired", failed=True)
        s.ends("I cannot import the list: the certificate of the target has expired.")
        s.wait(60.0)


@loop("rerun", at=32, forms=("chat", "messages"), every_s=5.0, task="Watch over the order book, and report.")
def one_session_that_is_resumed(s: Script) -> None:
    """A patrol gives the same order in one session every twelve minutes, and nothing comes of it."""
    s.ends("I am ready.")
    for _ in range(30):
        s.wait(700.0)
        s.asks("Go through the open orders, and correct what is wrong.")
        s.call("read_orders", {"state": "open"}, text("orders", lines=9))
        s.ends("I have looked at all open orders. Nothing is wrong with them.")


@noticed("rerun", at=36, forms=NAMED, every_s=5.0, task=NO_TASK)
def heartbeats_that_read_the_same(s: Script) -> None:
    """A heartbeat every five minutes reads the same list for three hours: reported, and never blocked."""
    for number in range(36):
        s.now_s = number * 300.0
        s.begin("HEARTBEAT: look at the list of tasks, and do what is due.", session=f"beat {number}")
        for part in range(3):
            s.call("read_tasks", {"part": part}, text("tasks", part, lines=5))
        s.call("read_calendar", {"days": 1}, text("calendar", lines=3))
        s.ends("HEARTBEAT_OK")


@noticed("rerun", at=15, forms=NAMED, every_s=5.0, task=NO_TASK)
def quiet_inbox(s: Script) -> None:
    """A look into the inbox every ten minutes through a quiet night: reported, and never blocked."""
    for number in range(40):
        s.now_s = number * 600.0
        s.begin("Is there anything urgent in the inbox?", session=f"look {number}")
        s.call("search_mail", {"query": "is:unread"}, "No messages.")
        s.ends("Nothing urgent.")


@noticed("rerun", at=15, forms=("chat", "messages"), every_s=4.0, task=NO_TASK)
def agent_that_people_start(s: Script) -> None:
    """Visitors of a shop ask its named agent the same question when they like: reported, because they may be people."""
    for number in range(24):
        s.wait(_pause(60.0, "visitor", number))
        s.begin("When do you open?", session=f"visitor {number}", agent="shop")
        s.call("get_hours", {"shop": "harbour"}, text("hours", lines=4))
        s.ends("We open at nine, from Monday to Saturday.")


@noticed("rerun", at=15, forms=NAMED, every_s=5.0, task=NO_TASK)
def monitor_that_finds_all_well(s: Script) -> None:
    """A monitor, named as such, looks each minute, reads the same state, and says that all is well: never blocked."""
    for number in range(60):
        s.now_s = number * 60.0
        s.begin("Look at the state of the services.", session=f"watch {number}", agent="watch", trigger="monitoring")
        s.call("get_state", {"services": "all"}, "all 14 services are up")
        s.ends("All is well.")


@noticed("rerun", at=8, forms=NAMED, every_s=60.0, task=NO_TASK)
def probe_by_cron(s: Script) -> None:
    """Cron asks for one word each minute, and no tool is used: reported, and never blocked."""
    for number in range(60):
        s.begin("Reply with the word OK.", session=f"probe {number}", agent="probe", trigger="cron")
        s.ends("OK")


# -- healthy


@healthy(forms=NAMED, every_s=5.0, task=NO_TASK)
def heartbeats_with_findings(s: Script) -> None:
    """Ten heartbeats, each of which finds something else."""
    for number in range(10):
        s.now_s = number * 300.0
        s.begin("HEARTBEAT: look at the alerts, and report.", session=f"beat {number}", trigger="heartbeat")
        s.call("read_alerts", {"state": "open"}, text("alerts", number, lines=3))
        s.ends(f"New: {line('alert', number)}")


@healthy(forms=(*NAMED, "chat-unnamed"), every_s=5.0, task=NO_TASK)
def the_same_question_each_morning(s: Script) -> None:
    """A person asks the same each morning for a month, and the answer is the same."""
    for number in range(30):
        s.now_s = number * 86_400.0
        s.begin("Is the harbour open today?", session=f"morning {number}", agent="assistant")
        s.call("get_hours", {"place": "harbour"}, text("hours", lines=3))
        s.ends("Yes, from nine to five.")


@healthy(forms=ANY, every_s=5.0, task=NO_TASK)
def inbox_that_changes(s: Script) -> None:
    """A timer starts the same order every five minutes; there are other mails each time, and it says "Done." """
    for number in range(40):
        s.now_s = number * 300.0
        s.begin("Sort the mails in the inbox into folders.", agent="clerk", trigger="cron")
        s.call("read_mail", {"folder": "inbox"}, text("mails", number, lines=4))
        s.ends("Done.")


@healthy(forms=ANY, every_s=5.0, task=NO_TASK)
def work_with_an_effect(s: Script) -> None:
    """Each run finds the same, writes its report, and says the same."""
    for number in range(40):
        s.now_s = number * 300.0
        s.begin("Write the state of the stock into the report.", agent="clerk", trigger="cron")
        s.call("read_stock", {"shop": "harbour"}, text("stock", lines=4))
        s.call("write_report", {"name": "stock"}, "written: 4 lines")
        s.ends("The report is written.")


@healthy(forms=NAMED, every_s=20.0, task=NO_TASK)
def report_with_other_numbers(s: Script) -> None:
    """Every ten minutes the same words with other numbers."""
    for number in range(30):
        s.now_s = number * 600.0
        s.begin("How many orders are open?", session=f"report {number}", agent="reporter", trigger="schedule")
        s.call("count_orders", {"state": "open"}, f"{400 + 7 * number} orders\n{text('table', lines=3)}")
        s.ends(f"There are {400 + 7 * number} open orders.")


@healthy(forms=NAMED, every_s=8.0, task=NO_TASK)
def job_that_is_retried_until_it_passes(s: Script) -> None:
    """A pipeline starts a run six times until the tests pass, and then the next one."""
    for commit in range(6):
        for attempt in range(6):
            s.begin(f"Check out {noun(commit)}, and run the tests.", session=f"job {commit} {attempt}", trigger="ci")
            result = "1 test failed: the network is not there" if attempt < 5 else "all tests passed"
            s.call("run_tests", {"branch": noun(commit)}, f"{result}\n{text('tests', commit, lines=3)}")
            s.ends(f"Result: {result}.")
            s.wait(60.0)


@healthy(forms=("chat", "messages"), every_s=2.0, task=NO_TASK)
def evaluation_of_many_prompts(s: Script) -> None:
    """200 prompts, one after the other, each with a session; half of the answers are "Yes."."""
    for number in range(200):
        s.begin(f"{line('prompt', number)} Is that so? Look it up.", session=f"eval {number}", agent="eval")
        s.call("look_up", {"word": noun(number)}, text("entry", number, lines=3))
        s.ends("Yes." if number % 2 else f"No: {line('because', number)}")


@healthy(forms=("chat", "messages"), every_s=0.1, takes_s=20.0, task=NO_TASK)
def prompt_that_is_sampled(s: Script) -> None:
    """The same prompt ten times at once, five times; the answers are the same."""
    for batch in range(5):
        s.now_s = batch * 120.0
        for number in range(10):
            s.begin("Name the capital of the region.", session=f"sample {batch} {number}", agent="sampler")
            s.ends("It is the harbour town.")


@healthy(forms=NAMED, every_s=3.0, task=NO_TASK)
def tests_between_edits(s: Script) -> None:
    """A developer changes the code and has the tests run by an agent, again and again within ten minutes."""
    for number in range(18):
        s.begin("Run the tests, and tell me what fails.", session=f"tests {number}", agent="tester")
        s.call("bash", {"command": "git diff"}, f"diff of {path(number)}\n{text('diff', number, lines=4)}")
        s.call("bash", {"command": "make test"}, f"1 failed, 213 passed\n{text('failure', lines=2)}")
        s.ends("One test fails: the sum of the basket.")
        s.wait(23.0)


@healthy(forms=NAMED, every_s=5.0, task=NO_TASK)
def visitors_of_a_shop(s: Script) -> None:
    """A shop has three buttons for questions; its sessions have names, and people come when they like."""
    questions = ("When do you open?", "Where are you?", "Do you ship abroad?")
    for number in range(90):
        s.wait(_pause(60.0, "visitor", number))
        at = int(digest("question", number), 16) % 3
        s.begin(questions[at], session=f"visitor {number}")
        s.call("look_up", {"topic": at}, text("topic", at, lines=3))
        s.ends(line("reply", at))


@healthy(forms=NAMED, every_s=60.0, task=NO_TASK)
def probe_of_a_service(s: Script) -> None:
    """A monitor without tools asks for one word each minute."""
    for number in range(60):
        s.begin("Reply with the word OK.", session=f"probe {number}")
        s.ends("OK")


@healthy(forms=NAMED, every_s=5.0, task=NO_TASK)
def people_start_it(s: Script) -> None:
    """The client says that a person starts each run, and so nothing is counted."""
    for number in range(30):
        s.now_s = number * 60.0
        s.begin(REVIEW, session=f"review {number}", agent="reviewer", trigger="user")
        _review(s)


@healthy(forms=NAMED, every_s=5.0, task=NO_TASK)
def several_calls_of_which_one_changes(s: Script) -> None:
    """Each run sends one mail among its reads, and says the same."""
    for number in range(30):
        s.now_s = number * 300.0
        s.begin("Remind those who have not paid.", session=f"reminder {number}", agent="clerk", trigger="cron")
        s.calls(
            Made("read_invoices", {"state": "open"}, text("invoices", lines=5)),
            Made("send_mail", {"to": "desk@example.org", "subject": "reminder"}, "sent"),
        )
        s.ends("All have been reminded.")


@healthy(forms=NAMED, every_s=5.0, task=NO_TASK)
def reviews_of_each_push(s: Script) -> None:
    """A bot reviews each push, every few minutes for an afternoon. The verdict is always the same, the changes are not."""
    for number in range(40):
        s.wait(30.0 + _pause(90.0, "push", number))
        s.begin(f"Review commit {digest('push', number)[:8]}.", session=f"push {number}", agent="ci", trigger="webhook")
        s.call("read_change", {"commit": digest("push", number)[:8]}, text("change", number, lines=9))
        s.ends("Looks good.")


@healthy(forms=NAMED, every_s=5.0, task=NO_TASK)
def reviews_of_the_newest_push(s: Script) -> None:
    """The same, and the text of each run is the same, too: what it reads is not."""
    for number in range(40):
        s.wait(30.0 + _pause(90.0, "newest", number))
        s.begin("Review the newest push.", session=f"newest {number}", agent="ci", trigger="webhook")
        s.call("read_change", {"commit": "HEAD"}, text("newest", number, lines=9))
        s.ends("Looks good.")


@healthy(forms=NAMED, every_s=2.0, task=NO_TASK)
def nightly_batch(s: Script) -> None:
    """At night, a job for each customer: the same words with another number, and mostly the same answer."""
    for number in range(150):
        s.begin(
            f"Check the account of customer {4000 + number}.", session=f"night {number}", agent="batch", trigger="cron"
        )
        s.call("read_account", {"customer": 4000 + number}, text("account", number, lines=4))
        s.ends("The account is in order." if number % 9 else f"Customer {4000 + number} owes us money.")


@healthy(forms=("chat", "messages"), every_s=0.5, task=NO_TASK)
def files_by_a_hundred_helpers(s: Script) -> None:
    """An orchestrator hands out a hundred files. Each helper reads its file and answers; eight are at work at a time."""
    s.begin("Summarise the hundred files of this folder.", session="lead", agent="lead")
    for first in range(0, 100, 8):
        batch = range(first, min(first + 8, 100))
        talks = []
        for number in batch:
            s.begin(
                f"Summarise {path(number)}, in one sentence.", session=f"helper {number}", parent="lead", agent="helper"
            )
            talks.append((s.items, s.names))
        for number, (items, names) in zip(batch, talks, strict=True):
            s.items, s.names = items, names
            s.call("read_file", {"path": path(number)}, text("file", number, lines=8))
            s.ends(line("summary", number))

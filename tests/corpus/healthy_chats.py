"""Healthy sessions of people, batches, judges and teams. None of them may be blocked."""

from __future__ import annotations

import json
from typing import Final

from tests.corpus.catalogue import NO_TASK, NOTICED, SOME, TALK, Catalogue
from tests.corpus.script import Item, Made, Script
from tests.corpus.words import chapter, compound, line, noun, path, simple, text

CATALOGUE: Final = Catalogue()
healthy = CATALOGUE.healthy
STEPS: Final = "{similarity: steps}"
SIMHASH: Final = "{similarity: simhash, action: reject}"
EXACT: Final = "{enabled: true, threshold_identical_requests: 3, window_seconds: 60, action: reject}"

# -- people


@healthy(forms=(*TALK, "completions"), every_s=30.0)
def long_chat(s: Script) -> None:
    """A person and an assistant, about many things."""
    for turn in range(25):
        s.says(text(turn, "answer", lines=3), f"And what about the {noun(turn, 'topic')}? {line(turn, 'ask')}")


@healthy(forms=TALK, every_s=40.0)
def story_told_in_parts(s: Script) -> None:
    """A person says "continue", and each answer is the next chapter."""
    for turn in range(16):
        s.says(chapter(turn, "story"), "continue")


@healthy(forms=("chat", "messages"), every_s=40.0)
def story_in_simple_words(s: Script) -> None:
    """The same with a small vocabulary: a story for children."""
    for turn in range(16):
        s.says(simple(turn, "story"), "continue")


@healthy(forms=("chat", "messages"), every_s=20.0)
def long_report_in_parts(s: Script) -> None:
    """A harness asks for the next part in the same words, and gets it."""
    for turn in range(12):
        s.says(chapter(turn, "report"), "Please write the next section of the report now.")


@healthy(forms=TALK, every_s=20.0)
def short_replies_of_a_person(s: Script) -> None:
    """Yes, no, yes: answers to questions that differ."""
    for turn in range(14):
        s.says(
            f"Shall I also change the {compound(turn)}? {chapter(turn, 'why', sentences=2)}",
            ("Yes.", "No.", "Yes, please.")[turn % 3],
        )


@healthy(forms=("chat", "gemini"), every_s=15.0)
def same_question_about_other_things(s: Script) -> None:
    """A person asks for a translation, word after word."""
    for turn in range(14):
        s.says(f"{noun(turn, 'translated')} of the {noun(turn, 'other')}", f"And the word {noun(turn, 'word')}-{turn}?")


@healthy(forms=("chat", "messages"), every_s=25.0, quiet=False)
def person_asks_to_try_again(s: Script) -> None:
    """A person is not content three times; each answer is another one."""
    for turn in range(3):
        s.says(text(turn, "attempt"), "That is not what I meant, please try it again.")
    for turn in range(4):
        s.says(text(turn, "good"), f"Better. Now the {noun(turn, 'next')}: {line(turn, 'next')}")


@healthy(forms=TALK, every_s=25.0, quiet=False)
def asks_for_the_next_question(s: Script) -> None:
    """A learner asks for the next question in the same words, and each question is new."""
    for turn in range(12):
        question = " ".join([compound(turn, word, "quiz") for word in range(9)])
        s.says(f"Where is the {question}?", "Thank you. Please ask me the next question.")


@healthy(forms=("chat", "messages"), every_s=8.0)
def same_order_for_each_item(s: Script) -> None:
    """A hook sends the same order sixteen times, and each time another item is done and committed."""
    for turn in range(8):
        s.call("edit_file", {"path": path(turn), "new": line(turn, "item")}, "edited")
        s.call("bash", {"command": f"git commit -am '{noun(turn)}'"}, f"[main {turn * 7919 + 40961:x}] {noun(turn)}")
        s.begin("Do the next open item of plan.md, then stop.")


@healthy(forms=("chat-unnamed", "messages-unnamed"), every_s=12.0, task=NO_TASK)
def log_pasted_into_each_prompt(s: Script) -> None:
    """Each prompt is the log so far; the old prompt is in the new one, and what is added is another line."""
    log = line(0, "log")
    for turn in range(1, 12):
        s.begin(log)
        log = f"{log}\n{turn} {line(turn, 'log')}"


@healthy(forms=("chat", "chat-unnamed"), every_s=700.0)
def same_check_every_morning(s: Script) -> None:
    """The same two steps, in runs that are far apart."""
    for _ in range(12):
        s.call("get_backup_state", {}, "the last backup is complete")


@healthy(forms=(*TALK, "chat-text"))
def one_order_for_each_item_of_a_plan(s: Script) -> None:
    """A hook sends the opening order sixteen times, and each time another item is done and committed."""
    order = s.items[0].user
    for turn in range(16):
        s.call("read_file", {"path": "plan.md"}, f"{turn} items done\n{text('plan')}")
        s.call("write_file", {"path": path(turn), "text": text(turn, "source")}, "written")
        s.call("bash", {"command": f"git commit -qam '{noun(turn)}'"}, f"1 file changed: {noun(turn)}")
        s.says(f"Done and committed: {line(turn, 'done')}", order)


@healthy(forms=TALK)
def told_to_go_on_after_each_piece_of_work(s: Script) -> None:
    """A harness says "continue" whenever the model stops calling tools."""
    for turn in range(10):
        s.call("read_file", {"path": path(turn)}, text(turn, "source"))
        s.says("Next file.", "continue")


@healthy(forms=("chat", "messages"), quiet=False)
def reminded_minutes_apart(s: Script) -> None:
    """A harness sends the same sentence every few minutes of work."""
    for turn in range(8):
        for part in range(5):
            s.call("read_file", {"path": path(turn, part)}, text(turn, part, "source"))
            s.wait(30.0)
        s.says(f"So far: {line(turn, 'done')}", "The task list still has open items, so go on with them.")


UNNAMED: Final = ("chat-unnamed", "messages-unnamed", "gemini-unnamed", "responses-unnamed")


@healthy(forms=("chat", "messages"), but=dict.fromkeys(UNNAMED, NOTICED))
def orders_to_a_worker_that_finds_something(s: Script) -> None:
    """An orchestrator hands one order after the other to a worker, in the same words but for the item; the worker looks
    each of them up."""
    board, worker = s.items, list[Item]()
    for turn in range(14):
        order = f"Please open the page of item {turn}, and tell me its price and who sells it."
        said = f"Ledger:\n{json.dumps({'finished': False, 'next': {'name': 'clerk', 'order': order}}, indent=1)}"
        s.hands(said, order, worker)
        s.call("open_page", {"item": turn}, text(turn, "page"))
        s.hands("I have read the page.", "I have read the page.", board)


@healthy(forms=("chat", "messages", *UNNAMED))
def orders_to_a_writer(s: Script) -> None:
    """An editor asks for one chapter after the other, with few words; the writer needs no tools."""
    board, worker = s.items, list[Item]()
    for turn in range(14):
        order = f"Please write the next chapter of the novel, which is number {turn}."
        s.hands(json.dumps({"next": {"name": "writer", "order": order}}), order, worker)
        s.hands(chapter(turn), chapter(turn), board)


@healthy(forms=UNNAMED)
def a_manager_and_workers_with_one_document(s: Script) -> None:
    """A manager asks a new worker about each point; all of them read the same document first."""
    for turn in range(12):
        s.delegates("ask_worker", f"What does the contract say about the {noun(turn, 'point')}?", "You read contracts.")
        s.call("read_document", {"name": "contract"}, text("contract", lines=20))
        s.reports(f"About that point it says: {text(turn, 'finding', lines=4)}")


@healthy(forms=UNNAMED, every_s=0.5, takes_s=20.0, policy=STEPS)
def workers_at_once_with_one_document(s: Script) -> None:
    """A manager starts workers for twelve points at the same time, and all of them read the same document."""
    orders = [f"What does the contract say about the {noun(turn, 'point')}?" for turn in range(12)]
    made = [Made("ask_worker", {"order": order}, id=f"call{turn:020}") for turn, order in enumerate(orders)]
    s.sent[-1].answer = Item(calls=tuple(made), is_answer=True)
    s.wait(30.0)
    s.system = "You read contracts."
    workers = [[Item(user=order)] for order in orders]
    for name in ("contract", "annex", "glossary", "amendments"):
        for items in workers:
            s.items = items
            s.asks("Please read on, and tell me when you are done.") if len(items) > 1 else s.asks("Begin.")
            reading = Made("read_document", {"name": name}, text(name, lines=20), id=f"{name}{id(items)}")
            items.append(Item(calls=(reading,), is_answer=True))
            s.sent[-1].answer = items[-1]
        s.wait(30.0)


@healthy(forms=UNNAMED, task=NO_TASK, every_s=1.0)
def five_teams_at_once(s: Script) -> None:
    """Five managers over one key, each with its own worker, in turns."""
    teams = [([Item(user=f"Describe the {noun(one, 'area')}. {line(one, 'area')}")], list[Item]()) for one in range(5)]
    for turn in range(9):
        for one, (manager, worker) in enumerate(teams):
            order = f"Please describe the {noun(one, turn, 'part')} of it: {line(one, turn, 'order')}"
            s.items, s.system = manager, f"You manage team {one}."
            s.asks(f"Part {turn - 1} reads: {line(one, turn, 'part')}" if turn else "Begin with the plan, please.")
            s.system = f"You write for team {one}."
            s.hands(f"Next. {order}", f"Next. {order}", worker)
            s.sent[-1].answer = Item(said=text(one, turn, "page", lines=6), is_answer=True)
            worker.append(s.sent[-1].answer)


# -- batches and samples


@healthy(forms=SOME)
def plans_for_many_customers(s: Script) -> None:
    """A tool that is named like a plan, for one customer after the other: a batch."""
    for turn in range(20):
        s.call("update_plan", {"customer": 400 + turn, "plan": f"tariff {noun(turn)}"}, "The plan was changed.")


@healthy(forms=SOME, quiet=False)
def shelves_without_the_book(s: Script) -> None:
    """One tool over a list, and the same long answer for seven items: a sweep."""
    for shelf in range(7):
        given = {"shelf": shelf, "title": "The Copper Bridge"}
        s.call(
            "look_at_shelf",
            given,
            "This title is not on this shelf. Other editions may be in the reading room upstairs.",
        )
    s.call("look_at_shelf", {"shelf": 7, "title": "The Copper Bridge"}, text("on this shelf"))


@healthy(forms=("chat-unnamed", "messages-unnamed", "gemini-unnamed", "responses-unnamed"), every_s=2.0, task=NO_TASK)
def batch_with_examples(s: Script) -> None:
    """The same examples before each item of a batch."""
    for turn in range(20):
        s.begin("Say whether the sentence is about water: yes or no.")
        s.sent.pop()
        for at, said in enumerate(("yes", "no", "yes")):
            s.items += [Item(user=line(at, "example")), Item(said=said, is_answer=True)]
        s.asks(line(turn, "item"))


@healthy(forms=("chat", "gemini", "gemini-unnamed", "messages-unnamed"), every_s=2.0, task=NO_TASK)
def batch_with_examples_of_calls(s: Script) -> None:
    """The same, and the examples show calls and their results."""
    for turn in range(14):
        s.begin("Look up the colour of each thing.")
        s.sent.pop()
        call = Made("look_up", {"thing": "anchor"}, text("anchor"), id="00000000000000000000e1")
        s.items += [Item(user="the anchor"), Item(calls=(call,), is_answer=True), Item(said="grey", is_answer=True)][:2]
        s.asks(f"Thank you. Now the {noun(turn, 'thing')}: {line(turn, 'item')}")


@healthy(forms=("chat-unnamed", "messages-unnamed", "gemini-unnamed"), every_s=2.0, task=NO_TASK)
def classifies_tickets(s: Script) -> None:
    """A new conversation for each ticket, with the same instructions."""
    for turn in range(25):
        s.begin(f"Classify this ticket: {text(turn, 'ticket', lines=2)}")


@healthy(forms=("chat-unnamed", "responses-unnamed", "messages-unnamed"), every_s=0.05, takes_s=3.0)
def samples_at_once(s: Script) -> None:
    """Twelve answers to one question are asked for at the same time."""
    s.again(11)


@healthy(forms=("embeddings",), every_s=0.5, task=NO_TASK)
def embeds_many_chunks(s: Script) -> None:
    """Forty texts, one after the other."""
    for turn in range(40):
        s.begin(text(turn, "chunk"))


@healthy(forms=("completions",), every_s=1.0, task=NO_TASK)
def completes_many_lines(s: Script) -> None:
    """Forty prompts of one form."""
    for turn in range(40):
        s.begin(f"Complete the sentence: {line(turn, 'begin')}")


@healthy(forms=("chat", "messages", "embeddings"), every_s=1.0, policy=SIMHASH, task=NO_TASK)
def different_questions(s: Script) -> None:
    """Twenty questions of one agent that have nothing in common."""
    for turn in range(20):
        s.begin(f"{text(turn, 'question', lines=3)}")
        s.sent[-1].answer = Item(said=text(turn, "answer"), is_answer=True)


@healthy(forms=("chat", "gemini"), every_s=1.0, policy=SIMHASH, task=NO_TASK)
def one_form_of_question(s: Script) -> None:
    """Questions that share their beginning and differ in the rest."""
    for turn in range(16):
        order = (
            "You get a sentence of a travel guide. Translate it into Italian, keep its tone and all of its names, and"
        )
        s.begin(f"{order} answer with nothing but the translation: {line(turn, 'sentence')}")
        s.sent[-1].answer = Item(said=chapter(turn, "answer", sentences=2), is_answer=True)


@healthy(forms=("plain",), every_s=0.2, policy=EXACT, task=NO_TASK)
def different_orders(s: Script) -> None:
    """Many requests to another API, each once or twice."""
    for turn in range(20):
        s.begin(f"order {turn // 2}")


@healthy(forms=("plain", "chat"), every_s=61.0, policy=EXACT)
def same_order_every_minute(s: Script) -> None:
    """An identical request, but not within the window."""
    s.again(8)


@healthy(forms=("chat", "chat-unnamed", "completions", "ollama-generate"), every_s=30.0)
def health_check(s: Script) -> None:
    """The same small request every half minute."""
    s.again(20)


@healthy(forms=("chat-unnamed", "messages-unnamed"), every_s=3.0, task=NO_TASK)
def first_turns_of_many_people(s: Script) -> None:
    """People behind one key whose first message is the same."""
    for turn in range(10):
        s.begin("hello", agent=f"user-{turn}")


@healthy(forms=("chat-unnamed", "messages-unnamed"), every_s=3.0, task=NO_TASK)
def first_turns_of_people_without_names(s: Script) -> None:
    """The same, and nothing on the wire tells the people apart."""
    for _ in range(10):
        s.begin("hello")


@healthy(forms=UNNAMED, every_s=0.6, task=NO_TASK, quiet=False)
def thirty_people_say_hi_between_other_talk(s: Script) -> None:
    """A chat product with one key and no names: in one minute thirty people say "hi", and their talks go on side by
    side."""
    talks: list[list[Item]] = []
    for turn in range(100):
        if turn % 10 in {0, 4, 5}:
            s.begin("hi")
            talks.append(s.items)
            continue
        person = turn * 7 % len(talks)
        s.items = talks[person]
        s.says(f"{line(turn, 'answer')} What else?", f"{line(turn, 'ask')} And why?")
        talks[person] = s.items


@healthy(forms=UNNAMED, every_s=2.0, task=NO_TASK, quiet=False)
def everybody_says_hi_and_asks_one_thing(s: Script) -> None:
    """The same at its least: after each "hi" there is one question."""
    for turn in range(30):
        s.begin("hi")
        s.says("Hello! What can I do for you?", line(turn, "ask"))


@healthy(forms=UNNAMED, every_s=1.0, task=NO_TASK, quiet=False)
def button_with_a_prepared_question(s: Script) -> None:
    """Twenty people press a button that asks the same; others ask something else, and nobody goes on."""
    for turn in range(60):
        s.begin(line(turn, "ask") if turn % 3 else "What can I do here, and how do I begin?")


@healthy(forms=("embeddings",), every_s=1.0, task=NO_TASK, quiet=False)
def one_text_embedded_eight_times(s: Script) -> None:
    """A search embeds its query each time that somebody presses the button."""
    for _ in range(8):
        s.begin("opening hours of the harbour office")


@healthy(forms=("chat", "messages", "responses", "gemini"), every_s=2.0, takes_s=1.0, task=NO_TASK)
def samples_with_a_name_each(s: Script) -> None:
    """An evaluation asks one prompt twelve times, one after the other, and names a session for each sample."""
    for turn in range(12):
        s.begin("Which of the two answers is better, A or B?", session=f"sample-{turn}")


# -- other programs over the same history


@healthy(forms=("chat", "responses", "messages", "gemini"))
def judge_after_each_step(s: Script) -> None:
    """An LLM judge reads the transcript after each step."""
    for turn in range(14):
        s.call("read_file", {"path": path(turn)}, text(turn, "source"))
        s.aside("You judge transcripts. Answer with a number.", "How good was the last step, from 1 to 9?")


@healthy(forms=("chat", "messages"))
def summary_after_every_third_step(s: Script) -> None:
    """A summary of the same history, at intervals."""
    for turn in range(15):
        s.call("read_file", {"path": path(turn)}, text(turn, "source"))
        if turn % 3 == 2:
            s.aside("You summarise.", "Summarise the conversation so far in two sentences.")


@healthy(forms=("chat-unnamed", "messages-unnamed"), quiet=False)
def title_and_suggestions_beside_a_chat(s: Script) -> None:
    """A client asks for a title and for suggestions beside each turn."""
    for turn in range(8):
        s.says(text(turn, "answer"), f"{line(turn, 'ask')} Why is that?")
        s.aside("You write titles.", "Write a title for this chat.")
        s.aside("You suggest questions.", "Suggest three questions that the person could ask next.")


@healthy(forms=("chat", "messages"), every_s=1.0)
def several_judges_of_one_answer(s: Script) -> None:
    """Five judges with other instructions read one transcript."""
    for turn in range(3):
        s.call("read_file", {"path": path(turn)}, text(turn, "source"))
    for judge in range(5):
        s.aside(f"You judge {noun(judge, 'judge')}.", f"Is the {noun(judge, 'judge')} well described?")


# -- teams


@healthy(forms=("chat", "messages", "responses"), task=NO_TASK, every_s=3.0)
def children_with_different_tasks(s: Script) -> None:
    """One agent starts twelve for different parts of the work."""
    for turn in range(12):
        s.begin(
            f"Write the section about the {noun(turn, 'part')}. {line(turn, 'part')}",
            session=f"c-{turn}",
            parent="main",
        )
        s.call("search", {"query": noun(turn, "q")}, text(turn, "found"))


@healthy(forms=("chat", "gemini"), task=NO_TASK, every_s=0.1, takes_s=4.0)
def samples_of_one_task(s: Script) -> None:
    """Eight children get the same task at once, to vote on the result."""
    for turn in range(8):
        s.begin("Estimate how many windows the station has.", session=f"c-{turn}", parent="main", agent="estimator")


@healthy(forms=("chat",), task=NO_TASK, every_s=4.0)
def three_generations_of_agents(s: Script) -> None:
    """A manager starts leads, who start workers: different tasks."""
    for lead in range(3):
        s.begin(f"Lead the work on the {noun(lead, 'lead')}: {line(lead, 'lead')}", session=f"l-{lead}", parent="main")
        for worker in range(3):
            task = f"Build the {noun(lead, worker, 'work')}: {line(lead, worker, 'work')}"
            s.begin(task, session=f"w-{lead}-{worker}", parent=f"l-{lead}")


@healthy(forms=("chat-unnamed", "chat-counted", "chat-text-unnamed", "gemini-unnamed"), task=NO_TASK, every_s=2.0)
def two_runs_of_one_task_side_by_side(s: Script) -> None:
    """Two runs without names that open alike and do the same first steps."""
    runs = [[Item(user="Check the accounts of the last month, and report.")] for _ in range(2)]
    for turn in range(9):
        for run in range(2):
            s.items = runs[run]
            at = turn if turn < 4 else 100 * (run + 1) + turn
            s.call("read_file", {"path": path(at)}, text(at, "account"))


@healthy(forms=("chat", "messages"), every_s=5.0)
def talk_between_two_agents_with_content(s: Script) -> None:
    """A writer and a reviewer who have something to say each time."""
    for turn in range(14):
        s.says(text(turn, "draft", lines=5), text(turn, "review", lines=3))


@healthy(forms=("chat", "messages", "gemini"), every_s=10.0)
def reminder_beside_each_result(s: Script) -> None:
    """A harness adds the same reminder to each result."""
    for turn in range(16):
        reminder = "<system-reminder>Keep the task list up to date.</system-reminder>"
        s.call("bash", {"command": f"cat {path(turn)}"}, text(turn, "source"), then=reminder)


@healthy(forms=("chat", "messages"), every_s=5.0, task=NO_TASK)
def same_question_in_each_task(s: Script) -> None:
    """A harness with one session asks the same question at the start of each task."""
    for turn in range(10):
        s.begin(f"Task {turn}: {text(turn, 'task', lines=2)}")
        s.says(f"I begin with the {noun(turn)}.", "Please state the number of the order before you go on.")


@healthy(forms=("chat", "messages"), every_s=5.0, task=NO_TASK)
def same_question_in_each_task_and_a_longer_answer(s: Script) -> None:
    """The same; the model writes more."""
    for turn in range(10):
        s.begin(f"Task {turn}: {text(turn, 'task', lines=2)}")
        s.says(chapter(turn, "begin", sentences=4), "Please state the number of the order before you go on.")


@healthy(forms=("chat-unnamed", "messages-unnamed", "gemini-unnamed"), every_s=12.0, task=NO_TASK)
def program_that_is_started_again(s: Script) -> None:
    """A small program without a session name: each run makes the same call and gets the same result."""
    for _ in range(20):
        s.begin("Is the shop open? Look it up, and say yes or no.")
        s.call("get_hours", {"shop": "harbour"}, text("hours", lines=2))


@healthy(
    forms=("chat-unnamed", "chat-counted", "messages-unnamed", "gemini-unnamed"),
    every_s=0.2,
    task=NO_TASK,
    policy=STEPS,
    quiet=False,
)
def replicas_of_one_run(s: Script) -> None:
    """24 runs of one task side by side, without names; their first steps are the same."""
    runs = [[Item(user="Check the accounts of the last month, and report.")] for _ in range(24)]
    for turn in range(4):
        for run, items in enumerate(runs):
            s.items = items
            at = turn if turn < 2 else 100 * (run + 1) + turn
            s.call("read_file", {"path": path(at)}, text(at, "account"))


@healthy(forms=("chat", "messages", "gemini"), every_s=10.0)
def plain_reminder_beside_each_command(s: Script) -> None:
    """The same reminder without a tag, after the result of each command."""
    reminder = "Remember to report when you are done."
    for turn in range(10):
        s.call("bash", {"command": f"cat {path(turn)}"}, text(turn, "source"), then=reminder)
        s.call("read_file", {"path": path(turn, "b")}, text(turn, "other"))


@healthy(forms=("chat", "messages", "gemini"), task=NO_TASK)
def long_and_short_tasks_in_turn(s: Script) -> None:
    """One session with a new task each time, every second one much shorter: no context was cut."""
    for turn in range(12):
        s.begin(text(turn, "task", lines=1 if turn % 2 else 30))

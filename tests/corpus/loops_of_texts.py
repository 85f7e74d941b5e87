"""Loops of texts, requests, contexts and agents."""

from __future__ import annotations

import json
from typing import Final

from tests.corpus.catalogue import NO_TASK, TALK, Catalogue, as_loop
from tests.corpus.script import Item, Script
from tests.corpus.words import chapter, line, noun, path, text

CATALOGUE: Final = Catalogue()
loop, noticed = CATALOGUE.loop, CATALOGUE.noticed
STEPS: Final = "{similarity: steps}"
EXACT: Final = "{enabled: true, threshold_identical_requests: 3, window_seconds: 60, action: reject}"

# -- monologue, continue, rejected, nested, reword


@loop("monologue", at=8, forms=TALK)
def finished_again(s: Script) -> None:
    """The same answer, whatever the person says."""
    for turn in range(9):
        s.says("I have finished the task.", ("Are you sure?", "Go on.", "Hm.", "Really?")[turn % 4])


@loop("monologue", at=7, forms=("chat", "gemini"))
def two_answers_in_turn(s: Script) -> None:
    """Two answers in turn, and nothing is called."""
    for turn in range(12):
        answer = ("All tests pass now.", "There is one more thing to check.")[turn % 2]
        s.says(answer, ("Are you sure?", "Go on.", "Hm.")[turn % 3])


@loop("continue", at=6, forms=TALK)
def told_to_continue(s: Script) -> None:
    """A harness sends "continue", and the model announces what it already announced."""
    for turn in range(9):
        s.says(f"I will begin with the report {'at once ' * (turn % 3)}now.", "continue")


@loop("rejected", at=11, but={"chat-text": as_loop("rejected", 13)})  # as text, each note is new content
def empty_patch(s: Script) -> None:
    """Each finish is answered with the same sentence, whatever is done in between."""
    for turn in range(8):
        s.call("bash", {"command": f"cat {path(turn)}"}, text(turn, "file"))
        s.call("finish", {"note": line(turn, "note")}, "received", then="Your patch is empty. Please submit a patch.")


@loop("rejected", at=(11, 19), forms=("chat", "messages", "responses"))
def order_given_again_and_nothing_done(s: Script) -> None:
    """A hook sends the opening order after each answer; the model looks at another file and says that it is done."""
    order = s.items[0].user
    for turn in range(12):
        s.call("read_file", {"path": path(turn)}, text(turn, "source"))
        s.says(f"I have read it. {line(turn, 'done')}", order)


HOOK: Final = "The task list still has open items, so do not stop yet."


@loop("continue", at=6, forms=TALK)
def stop_hook_with_the_same_sentence(s: Script) -> None:
    """A hook sends the same sentence after each answer; the model acknowledges in nearly the same words."""
    for turn in range(10):
        s.says(f"Understood, the list has {'still ' * (turn % 3)}open items, and I shall go on {turn} more.", HOOK)


@loop("rejected", at=10, forms=("chat", "messages", "gemini"))
def stop_hook_and_new_words(s: Script) -> None:
    """The same, and each answer has new content, so that the sentence counts half."""
    for turn in range(12):
        s.says(f"Understood, {line(turn, 'ack')}", HOOK)


@loop(
    "nested",
    at=6,
    forms=("chat", "chat-unnamed", "messages-unnamed", "gemini-unnamed", "responses-unnamed"),
    task=NO_TASK,
)
def prompt_around_the_prompt(s: Script) -> None:
    """A client reacts to a bad answer by wrapping its prompt once more, in a new conversation."""
    prompt = "List the five longest rivers of the country as JSON."
    for _ in range(10):
        s.begin(prompt)
        prompt = f"That was not valid JSON. Try again: {prompt}"


@loop("nested", at=7, forms=("chat", "chat-unnamed"), task=NO_TASK)
def complaint_behind_the_prompt(s: Script) -> None:
    """The same, with the complaint at the end."""
    prompt = "List the five longest rivers of the country as JSON."
    for _ in range(10):
        s.begin(prompt)
        prompt = f"{prompt}\nYour answer was not valid JSON. Answer again."


WAYS: Final = (
    "Please book the small meeting room for Monday",
    "Could you reserve the small meeting room on Monday",
    "Kindly book that small meeting room, Monday",
    "The small meeting room for Monday, please reserve it",
)


@loop("reword", at=7, forms=TALK)
def same_request_in_other_words(s: Script) -> None:
    """The same instruction in other words, and answers without content."""
    for turn in range(14):
        s.says(
            f"{WAYS[turn % 4]} now ({'again ' * (turn % 3)}thank you).", ("Sure.", "Will do.", "Of course.")[turn % 3]
        )


@loop("reword", at=7, forms=TALK)
def two_agents_agree(s: Script) -> None:
    """Two agents agree with each other, in slightly other words."""
    ways = ("Yes, forty coins is the right price", "Right, the price is forty coins", "Agreed, forty coins, that price")
    for turn in range(16):
        s.says(f"{ways[turn % 3]}{'!' * (turn % 4)} indeed", ("Good.", "Fine.", "Exactly.")[turn % 3])


@loop("rejected", at=11, forms=("chat", "messages"))
def finish_rejected_after_long_builds(s: Script) -> None:
    """Each finish is rejected with the same words; the build before it takes longer than ten minutes."""
    for turn in range(8):
        s.call("bash", {"command": f"make {noun(turn)}"}, text(turn, "build"))
        s.wait(700.0)
        s.call("finish", {"summary": line(turn, "summary")}, "noted", then="The patch is empty: please provide one.")


TEAMS = ("chat-unnamed", "messages-unnamed", "gemini-unnamed", "responses-unnamed")


@loop("dry", at=10, forms=("chat", "messages", *TEAMS))
def orders_to_a_worker_in_other_words(s: Script) -> None:
    """An orchestrator answers with an object, and the order in it, worded differently each time, goes to a worker that
    finds nothing."""
    board, worker = s.items, list[Item]()
    for turn in range(12):
        order = f"{WAYS[turn % 4]}, {('then', 'and', 'and so')[turn % 3]} tell me the {'final ' * (turn % 5)}price."
        said = f"Ledger:\n{json.dumps({'finished': False, 'next': {'name': 'clerk', 'order': order}}, indent=1)}"
        reply = ("I opened the calendar.", "I looked at the calendar.")[turn % 2]
        s.hands(said, order, worker)
        s.hands(reply, reply, board)


@loop("reword", at=(7, 14), forms=("chat", *TEAMS))
def two_agents_pass_it_on(s: Script) -> None:
    """Each agent has its own conversation and sends the other what it was told, in slightly other words."""
    clerk, auditor = s.items, list[Item]()
    for turn in range(10):
        s.system = "You are the auditor of a small company."
        told = f"{WAYS[turn % 4]}, dear {('colleague', 'friend')[turn % 2]}, as {'soon ' * (turn % 3)}agreed."
        s.hands(told, told, auditor)
        s.system = "You are the clerk of a small company."
        back = f"{WAYS[(turn + 2) % 4]}, dear {('friend', 'colleague')[turn % 2]}, as {'long ' * (turn % 3)}agreed."
        s.hands(back, back, clerk)


@loop("dry", at=(10, 20), forms=("chat",), but=dict.fromkeys(TEAMS, as_loop("dry", (20, 34))))
def a_manager_and_workers_that_find_nothing(s: Script) -> None:
    """A manager calls a new worker each time, which asks the same tool in vain and says so."""
    for turn in range(12):
        order = f"{WAYS[turn % 4]} and tell me the {('price', 'cost', 'amount')[turn % 3]}."
        s.delegates("ask_worker", order, "You look things up.")
        s.call("read_list", {"name": "prices"}, "The list of prices is empty at the moment, please come back later.")
        s.reports(("There is no such price in the list.", "The list does not have that price.")[turn % 2])


@loop("dry", at=11, forms=TALK)
def two_programs_thank_each_other(s: Script) -> None:
    """Thanks and thanks for thanks."""
    for turn in range(20):
        s.says(("You're welcome!", "My pleasure!", "Any time!")[turn % 3], ("Thank you!", "Thanks a lot!")[turn % 2])


@loop("dry", at=(12, 13), forms=("chat", "gemini"))  # by the secret: filters of words err now and then
def small_talk_in_rotation(s: Script) -> None:
    """Six sentences about different things, in rotation."""
    for turn in range(24):
        s.says(line(turn * 5 % 6, "talk"), ("I see.", "Right.", "Good.")[turn % 3])


# -- storm, tail, exact, simhash


@loop("storm", at=11, forms=TALK, every_s=2.0, policy=STEPS)
def same_request_after_its_answer(s: Script) -> None:
    """A client sends the same request again after each answer."""
    s.again(16)


@loop("tail", at=6, forms=(*TALK, "completions"), every_s=2.0)
def same_request_with_the_built_in_protection(s: Script) -> None:
    """The same, counted by `tail`."""
    s.again(9)


@loop("storm", at=15, forms=("chat", "gemini"), every_s=2.0, policy=STEPS)
def same_request_in_the_middle_of_work(s: Script) -> None:
    """Work first; then the newest request is sent over and over."""
    for turn in range(4):
        s.call("read_file", {"path": path(turn)}, text(turn))
    s.again(16)


@loop("tail", at=16, forms=("chat", "messages"), every_s=2.0)
def provider_that_stays_overloaded(s: Script) -> None:
    """Ten failed attempts are free; a client that never backs off is stopped after them."""
    s.again(25, status=503)


@loop("exact", at=3, forms=("plain", "chat", "embeddings"), policy=EXACT)
def same_order_again(s: Script) -> None:
    """Any identical request, LLM or not."""
    s.again(5)


@loop("simhash", at=6, forms=TALK, policy="{similarity: simhash, action: reject}", task=NO_TASK)
def same_question_with_other_numbers(s: Script) -> None:
    """A new conversation each time, with a question that only differs in its numbers, and the same answer."""
    for turn in range(10):
        s.begin(f"Why was order {100 + turn * 7} not shipped to the customer at the agreed address in time?")


@loop("tail", at=6, forms=("chat-unnamed", "messages-unnamed", "gemini-unnamed"), every_s=2.0, takes_s=1.0)
def samples_without_names(s: Script) -> None:
    """One prompt again and again, each after the answer of the one before, and nothing that says why: it is announced, or
    it is a loop."""
    s.again(11)


@loop("tail", at=18, forms=("chat-unnamed", "messages-unnamed"), every_s=1.0, task=NO_TASK)
def same_opening_after_other_requests(s: Script) -> None:
    """Twelve different requests; then one opening, over and over."""
    for turn in range(12):
        s.begin(line(turn, "before"))
    for _ in range(10):
        s.begin("Is the shop open?")


@loop("tail", at=11, forms=("chat-unnamed", "messages-unnamed"), every_s=1.0, task=NO_TASK)
def two_openings_in_turn(s: Script) -> None:
    """Two programs of one key that ask the same things in turn."""
    for turn in range(20):
        s.begin(("Plan the next step.", "Check the plan.")[turn % 2])


@loop("tail", at=6, forms=("completions", "ollama-generate"), every_s=3.0)
def completion_retried(s: Script) -> None:
    """The legacy API: the same prompt again."""
    s.again(8)


@noticed("tail", at=6, forms=("embeddings",), every_s=3.0)
def embedding_retried(s: Script) -> None:
    """The same text is embedded again and again: only reported, because it is cheap and searches do so, too."""
    s.again(8)


# -- thrash, compaction


@noticed("thrash", at=11, forms=("chat", "messages", "gemini", "responses", "responses-chain"))
def context_full_right_after_each_cut(s: Script) -> None:
    """The context is cut and full again three steps later, over and over: reported, a larger context helps."""
    for turn in range(16):
        if turn and turn % 3 == 0:
            s.compact(f"Summary of what was done: {line(turn, 'summary')}")
        s.call("read_file", {"path": path(turn)}, text(turn, "large", lines=60))


@loop("dry", at=19, forms=("chat", "messages", "responses-chain"))
def same_work_after_each_compaction(s: Script) -> None:
    """After each compaction the same files are read and the same plan is made; nothing else is ever done."""
    for turn in range(40):
        if turn and turn % 5 == 0:
            s.compact(f"Summary {turn // 5}: I looked at the sources. {line(turn, 'summary')} {line(turn, 'next')}")
        s.call("read_file", {"path": path(turn % 5)}, text(turn % 5, "file"))


@loop("dry", at=17, forms=("chat", "messages"))
def same_work_between_long_summaries(s: Script) -> None:
    """The same, with a long summary in new words each time, and two files between the cuts."""
    for turn in range(40):
        if turn and turn % 2 == 0:
            s.compact(f"Summary {turn // 2}: {chapter(turn, 'summary', sentences=8)}")
        s.call("read_file", {"path": path(turn % 4)}, text(turn % 4, "file"))


@loop("", at=(8, 20), forms=("chat", "messages", "responses", "gemini"))
def same_work_after_each_summary(s: Script) -> None:
    """A client sends the summary as the only message; the same four files are read after each."""
    for turn in range(40):
        if turn and turn % 4 == 0:
            s.begin(f"The work is continued from a previous conversation. {chapter(turn, 'summary')}")
        s.call("read_file", {"path": path(turn % 4)}, text(turn % 4, "file"))


@loop("thrash", at=(36, 50), forms=("chat", "messages", "gemini", "responses-chain"))
def cut_after_every_third_step(s: Script) -> None:
    """Nothing is ever done but reading, and the context is full after three files each time."""
    for turn in range(60):
        if turn and turn % 3 == 0:
            s.compact(f"Summary of what was read: {line(turn, 'summary')}")
        s.call("read_file", {"path": path(turn)}, text(turn, "large", lines=60))


# -- spawn


@loop("spawn", at=8, forms=("chat", "messages", "responses", "gemini"), task=NO_TASK, every_s=3.0)
def task_handed_on(s: Script) -> None:
    """Each agent starts another one for the same task."""
    for turn in range(10):
        parent = f"agent-{turn - 1}" if turn else "main"
        task = "Find out why the nightly build fails, and repair it."
        s.begin(task, session=f"agent-{turn}", parent=parent, agent=f"agent-{turn}")


@loop("spawn", at=8, forms=("chat", "messages"), task=NO_TASK, every_s=5.0, policy=STEPS)
def same_task_given_to_one_after_another(s: Script) -> None:
    """One agent gives the same task to a new agent each time."""
    for turn in range(12):
        s.begin("Collect the opening hours of all museums.", session=f"child-{turn}", parent="main", agent="collector")


@loop("spawn", at=8, forms=("chat", "gemini"), task=NO_TASK, every_s=5.0)
def two_agents_hand_on_to_each_other(s: Script) -> None:
    """The researcher hands it to the writer, the writer hands it back."""
    for turn in range(12):
        agent = ("researcher", "writer")[turn % 2]
        parent = f"run-{turn - 1}" if turn else "main"
        s.begin(f"Next part of the article: {line(turn, 'part')}", session=f"run-{turn}", parent=parent, agent=agent)


@loop("spawn", at=8, forms=("chat", "messages"), task=NO_TASK, every_s=4.0)
def task_handed_on_in_another_order(s: Script) -> None:
    """Each agent gives the next one the same task, with the words in another order."""
    orders = (
        "Find out why the nightly build fails, and repair it.",
        "Please repair it: why fails the nightly build? Find out.",
    )
    for turn in range(12):
        parent = f"agent-{turn - 1}" if turn else "main"
        s.begin(orders[turn % 2], session=f"agent-{turn}", parent=parent, agent=f"agent-{turn}")


# -- tree


def _starts(s: Script, session: str, parent: str, agent: str = "researcher") -> None:
    """An agent begins with a task of its own, starts others, and waits for them."""
    task = f"Research the {noun(session, 'x')} and the {noun(session, 'y')}: {line(session, 'task')}"
    s.begin(task, session=session, parent=parent, agent=agent)
    s.waits("start_agents")


@loop("tree", at=60, forms=("chat", "messages", "gemini"), task=NO_TASK, every_s=3.0)
def fan_out_in_other_words(s: Script) -> None:
    """Each agent starts two for the same goal, and words the task differently each time: the 61st is not started."""
    for turn in range(70):
        _starts(s, f"agent-{turn}", f"agent-{(turn - 1) // 2}" if turn else "main")


@loop("tree", at=33, forms=("chat", "messages", "responses", "gemini"), task=NO_TASK, every_s=0.4)
def fan_out_to_two_hundred(s: Script) -> None:
    """Two agents, then ten, fifty and two hundred, within a minute or two."""
    row = ["main"]
    for children in (2, 5, 5, 4):
        row = [f"{parent}.{at}" for parent in row for at in range(children)]
        for session in row:
            _starts(s, session, session.rpartition(".")[0])


@loop("tree", at=8, forms=("chat", "messages", "responses", "gemini"), task=NO_TASK, every_s=20.0)
def agents_that_each_start_one(s: Script) -> None:
    """Fifty deep, each for another part of the work: the ninth, with the root, is not started."""
    for turn in range(50):
        _starts(s, f"agent-{turn}", f"agent-{turn - 1}" if turn else "main", f"role-{turn}")


@loop("stubborn", at=31, forms=("chat", "messages", "gemini"), every_s=6.0)
def critic_with_the_same_verdict(s: Script) -> None:
    """The text is rewritten each time, and the critic's tool returns the same verdict."""
    for turn in range(20):
        s.call("write_file", {"path": "essay.md", "text": line(turn, "essay")}, "written")
        s.call("ask_critic", {"draft": line(turn, "essay")}, "Not yet convincing.", said=line(turn, "said"))


@loop("tail", at=8, forms=("chat", "messages", "gemini"))
def empty_answers(s: Script) -> None:
    """The model answers nothing, and is asked again."""
    for _ in range(10):
        s.says("", "Please answer.")


@loop("continue", at=6, forms=("chat", "gemini"), every_s=10.0)
def own_mail_comes_back(s: Script) -> None:
    """An agent answers a mail that its own answer causes."""
    for _ in range(12):
        s.says("[silent]", "New mail from yourself: re: re: your weekly summary is ready")


@loop("repeat", at=15, forms=("chat-text-unnamed",), task=NO_TASK, every_s=2.0, policy=STEPS)
def loop_beside_another_unnamed_run(s: Script) -> None:
    """Two runs without names and ids overlap, so a block needs more repeats: it could be two healthy ones."""
    runs = [[Item(user="Find the order of the customer.")], [Item(user="Describe the harbour.")]]
    for turn in range(14):
        s.items = runs[0]
        s.call("find_orders", {"customer": 4711}, "There are no orders of this customer.")
        s.items = runs[1]
        s.call("read_file", {"path": path(turn)}, text(turn, "file"))


@loop("spawn", at=9, forms=("chat",), task=NO_TASK, every_s=5.0, policy=STEPS)
def same_task_within_one_trace(s: Script) -> None:
    """Only the trace shows that the agents belong together."""
    for turn in range(14):
        s.begin("Collect the opening hours of all museums.", session=f"child-{turn}", trace="one", agent="collector")

"""One scene per kind of loop. The docstring describes the kind and why healthy work is not affected; the code plays an
agent that is detected. `loop_kinds` renders the page and fails if the detector reports a different kind."""

from __future__ import annotations

from breakloop.clock import FakeClock
from breakloop.detect.counting import DetectorConfig
from breakloop.detect.rerun import RerunDetector, RunOpening
from breakloop.detect.steps import StepEvaluator, StepsSettings
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.window import run_so_far
from breakloop.detect.stream import StreamProbe
from breakloop.detect.trees import RunStart, TreeEvaluator
from breakloop.model.call import Answer, Result, Step, ToolCall, Tree
from breakloop.policy.descriptors import ContextSettings, Descriptors
from scripts.loop_scene import Scene, digest

_PLACES = ("attic", "cellar", "garden", "harbour", "kitchen", "library", "museum", "office", "station", "tower")
_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "jetty")


def news(index: int) -> str:
    """Return a result that has not appeared before."""
    return f"the {_PLACES[index % 10]} holds {index + 2} crates of {_WORDS[index * 7 % 10]}"


def repeat(scene: Scene) -> None:
    """The same call returns the same result several times in a row. The result is part of the comparison, so a poll
    that returns something new is not a repeat. A successful change resets the count, so the same command after each
    edit is not a repeat either. Repeats 20 s apart count half, 60 s apart a quarter."""
    for _ in range(8):
        scene.call("list_orders", {"customer": 4711}, "no orders found for this customer")


def cycle(scene: Scene) -> None:
    """A sequence of 2 to 16 steps is repeated. One step that differs, or has a different result, restarts the count. A
    second pass over a list is not a cycle yet."""
    for turn in range(10):
        scene.call(("open_form", "go_back")[turn % 2], {"page": "checkout"}, f"{news(turn % 2)}, a page of the shop")


def interleaved(scene: Scene) -> None:
    """The same call returns the same result again, with other work in between. The detector compares with the last 32
    different calls. A successful change resets the count. Empty results and plain acknowledgements do not count."""
    for turn in range(13):
        if turn % 2:
            scene.call("search", {"query": _WORDS[turn // 2]}, news(turn))
        else:
            scene.call("read_file", {"path": "plan.md"}, "Plan: find the cause, fix it, test it")


def failure(scene: Scene) -> None:
    """The same call fails each time, whatever is done in between. A different error counts half; timestamps and
    process ids do not make an error different. A successful change (such as an edit) restarts the count: running the
    tests after each edit is work, however often they fail."""
    for turn in range(13):
        if turn % 2:
            scene.call("read_file", {"path": f"{_PLACES[turn // 2]}.mk"}, news(turn))
        else:
            scene.call("run", {"command": "make"}, f"12:00:{turn:02} [{900 + turn}] no rule for app", failed=True)


def drift(scene: Scene) -> None:
    """The same call returns the same result but for times, durations, ids, process numbers and counters of attempts.
    Other numbers are content: a percentage, a page, a position or "3 failed" is progress when it moves, and so is a new
    picture. A result that opens with words of refusal counts twice. A successful change resets the count; a result that
    is only a time or an id, or names one, does not count. Only results of up to 400 bytes are compared."""
    for turn in range(14):
        scene.call("read_inbox", {}, f"12:00:{turn * 3:02} nothing in the inbox (request id q-{turn * 7919 % 997})")


def unmoved(scene: Scene) -> None:
    """The same call ends with the same error, or the same refusal, whatever is changed in between. Ends are equal if
    they differ in times and in numbers of lines, positions and attempts only, so "3 failed" after "4 failed" is
    progress. Seven attempts are honest work. An error that was not seen before halves the count, and a success resets
    it."""
    for turn in range(16):
        if turn % 2:
            scene.call("run", {"command": "make test"}, "expected 4 rows, got 3", failed=True)
        else:
            scene.call("edit_file", {"path": "rows.py", "new": news(turn)}, "edited")


def stubborn(scene: Scene) -> None:
    """Other commands of one tool end with the same error, or other drafts get the same verdict ("revise", "not yet"),
    although something was changed each time: a script that is written again under a new name, a critic who is never
    content. A success, or an approval, resets the count. A sweep over many items does not count, because it changes
    nothing in between, and neither does an exit status without output."""
    for turn in range(30):
        if turn % 2:
            said = f"REVISE: the ending is weak ({turn} s)."
            scene.call("ask_critic", {"draft": f"{news(turn)}, {_WORDS[turn % 7]}"}, said)
        else:
            scene.call("write_file", {"path": "essay.md", "text": news(turn)}, "written")


def unknown_tool(scene: Scene) -> None:
    """The agent calls tools that do not exist, according to the tools declared in the request and the error that is
    returned. One success ends the sequence. A name that is not declared but works does not count, because some clients
    declare their tools in turns."""
    for turn in range(8):
        said = f"I try {news(turn * 11)}."
        scene.call(f"serch_{_WORDS[turn]}", {"q": _PLACES[turn]}, "not here", failed=True, tools=("search",), said=said)


def cascade(scene: Scene) -> None:
    """Eight of the last ten results are errors, whatever was called. A result is an error by the protocol, an exit
    status or the harness's own format, never by a word in its text, because reports of tests and linters are full of
    errors and are work. It counts only while no new information arrives."""
    for turn in range(10):
        scene.call(f"{_WORDS[turn]}_{_PLACES[turn]}", {"id": turn}, "connection refused", failed=True)


def stagnation(scene: Scene) -> None:
    """A tool is called with new arguments and always returns the same informative result. If another tool returns it in
    the next step, that counts two, because the result does not depend on what is called; of one tool it may be a
    sweep over a list. Short results ("ok", "not found") are ignored, and so are results of tools that change something:
    thirty files written with the same acknowledgement are a batch."""
    text = "Nothing matched. Known places: " + ", ".join(_PLACES) + "; see the manual for how patterns are written."
    for turn in range(9):
        scene.call("search_files", {"pattern": f"{_WORDS[turn]}*"}, text)


def near(scene: Scene) -> None:
    """The same call except for its numbers, with nothing new in the result. Numbers are often the point of a call
    (pages, orders), so this kind is only reported and never blocked. An agent that continues like this becomes
    `dry`."""
    for turn in range(5):
        scene.call("get_page", {"page": turn}, "there is nothing on it")


def dry(scene: Scene) -> None:
    """The number of turns since something new arrived: no line that the session had not seen, no successful change, no
    new words from the model. Most real loops are of this kind, because stuck agents rarely repeat themselves exactly.
    New information halves the count, so a few uneventful turns in between never add up. A turn without calls counts
    from 1, if nearly half of the model's words are new, to 1.5, if none is. A second look at a result is not counted,
    and neither is a result that the gateway cannot see; a plan that is written again at once is no change."""
    for turn in range(18):
        scene.call("ask", {"what": f"{_WORDS[turn % 10]} {_PLACES[turn // 2 % 10]}"}, "I do not know that")


def novelty(scene: Scene) -> None:
    """Results contain hardly any new lines, measured as a moving average. In this example the agent keeps saving
    excerpts, so it is never dry for long, and yet it reads the same log again and again. The average moves slowly, so
    reading something a second time does not matter."""
    log = [f"{_WORDS[line % 10]} went to the {_PLACES[line * 7 % 10]}, {line} miles" for line in range(60)]
    scene.call("read_log", {"lines": "0 to 60"}, "\n".join(log), shown="60 new lines")
    for turn in range(1, 24):
        name = "read_log" if turn % 3 else "save_excerpt"
        shown = f"{20 + turn} lines, all seen before"
        scene.call(name, {"lines": f"{turn} to {turn * 2 + 20}"}, "\n".join(log[turn : turn * 2 + 20]), shown=shown)


def reword(scene: Scene) -> None:
    """The same instruction is sent to the same recipient in other words while no new information arrives. Words are
    compared as sets. Healthy work reuses words, too, so this is checked only if [`dry`](#dry) has reached 4: after
    three turns with few new words."""
    ways = ("Please book the meeting room for Monday", "Could you reserve the meeting room on Monday",
            "Kindly book that meeting room, Monday", "The meeting room for Monday, please reserve it")  # fmt: skip
    for turn in range(10):
        back = ("Sure.", "Will do.", "Of course.")[turn % 3]
        scene.says(f"{ways[turn % 4]} now ({'again ' * (turn % 3)}thank you).", back)


def monologue(scene: Scene) -> None:
    """The same response again, without a tool call. Different words, a call in between, or new input from a person
    restart the count. Text that only appears again in the prompt, such as the examples before each item of a batch,
    does not count."""
    backs = ("Are you sure?", "Please go on.", "That cannot be all.", "Hm.")
    for turn in range(8):
        scene.says("I have finished the task.", backs[turn % 4])


def continue_(scene: Scene) -> None:
    """The user or the harness sends the same "go on", and the model calls no tool. Any new message from a person
    ends the sequence, and so does work: if tools are called in between, "continue" is ordinary conversation."""
    for turn in range(8):
        scene.says(f"I am thinking about {_PLACES[turn]} and {news(turn)}.", "continue")


def nested(scene: Scene) -> None:
    """Each prompt contains the previous one: the client reacts to a bad response by wrapping its prompt once more. A
    growing conversation is different, because its history is in separate messages."""
    text = "Give me the ten largest cities of Europe as JSON."
    for _ in range(9):
        scene.prompt(text)
        text = f"That was not valid JSON, try again: {text}"


def rejected(scene: Scene) -> None:
    """The user or the harness sends the same text (20 characters or more) again, whatever is done in between: the agent
    reports that it is done and is told each time that it is not. Reminders next to each command result are not
    counted. A text counts half if it comes minutes apart, unless it replies to a call, or if it follows new content of
    the model, as from a learner who asks for the next question. The text that opened the session is an order: it counts
    only if nothing was changed since it last came, so a plan that is done item by item with one
    order is not a loop."""
    for turn in range(6):
        scene.call("bash", {"command": f"ls {_PLACES[turn]}"}, news(turn))
        done = {"note": f"done, see {_WORDS[turn]}"}
        scene.call("finish", done, f"noted: {news(turn + 20)}", then="Your patch is empty. Please send one.")


def storm(scene: Scene) -> None:
    """The same request is sent again after it was answered. Concurrent requests are sampling and count once. Requests
    that failed upstream are retries."""
    scene.prompt("What is the capital of France?")
    for _ in range(20):
        scene.again()


def thrash(scene: Scene) -> None:
    """The context is cut (compacted, truncated) and full again a few steps later, over and over: at most six steps and
    ten minutes apart. Each cut loses findings and costs a whole context; a larger context or smaller results help. From
    the fourth cut on, one after two new results counts three quarters, and a change before a cut halves the count. A
    large context that only loses a tenth each time is reported, but never a reason to block."""
    for turn in range(40):
        size = (20_000, 40_000, 61_000)[turn % 3]
        scene.call("read_file", {"path": f"{turn}.md"}, f"{size // 1000} KB so far: {turn}, {news(turn)}", size=size)


def waiting(scene: Scene) -> None:
    """The same look, such as a job's status, returns the same for hours. Waiting itself is no loop: calls that wait
    count nothing, and a look counts nothing if 30 s have passed since the same look, so this is the only bound for an
    agent that looks every five minutes, as here. A look that comes sooner counts up to 0.6 in the other kinds, and one
    whose answer is final (done, failed, not found) counts in full."""
    scene.every_s = 300.0
    for _ in range(80):
        scene.call("get_job_status", {"job": 12}, "running")


def side_effect(scene: Scene) -> None:
    """The same call with an effect outside is made again and succeeds each time: a mail, a payment, an order, an issue.
    The id that it returns does not make it another one, and several in one response count each. Only names that leave
    no doubt are refused; messages, comments and other additions are only reported, and only while no other change is
    made in between. A call that failed does not count, and neither do writes, settings, keys and commands."""
    for turn in range(5):
        arguments = {"to": "ada@example.com", "subject": "Invoice 17"}
        scene.call("send_mail", arguments, f"queued as {turn * 7919 + 4093}")


def tool_limit(scene: Scene) -> None:
    """A tool is called more often in one run than the policy allows (here `max_per_run: 2`), whatever its arguments and
    results. A call in a response of an LLM is known when its result arrives, so this denies the request with the
    result. An MCP call is denied before it is made. New text of a person begins a new run."""
    scene.tools({"send_mail": ToolOptions(max_per_run=2)})
    for turn in range(4):
        scene.call("send_mail", {"to": f"{_WORDS[turn]}@example.com"}, f"queued: {news(turn)}")


def spawn(scene: Scene) -> None:
    """Agents start agents for the same task, or pass it back and forth. Children with different tasks are teamwork, and
    many children with one task at the same time are samples."""
    detector = TreeEvaluator(digest)
    window, parent = b"", "lead"
    for turn in range(8):
        name = f"helper-{turn + 1}"
        start = RunStart(name, parent, name, "Find out why the nightly build fails, and fix it.")
        evaluation = detector.evaluate_start(window, start, 1000.0 + 3 * turn)
        window, parent = evaluation.window, name
        did = f"`{start.parent}` starts `{name}`"
        scene.add(did, "with the same task", str(turn + 1), evaluation.level, evaluation.evidence)


def rerun(scene: Scene) -> None:
    """A timer, a webhook, a mail or a restart starts the same run again and again. It opens with the same text, reads
    nothing that the runs before had not read, changes nothing, and ends with the same answer. A run that ends
    differently or changes something begins the count again. Heartbeats, five minutes apart, are only reported."""
    config = DetectorConfig("steps", "docs", 0, ("warn", "reject", "reject"), 429)
    detector = RerunDetector(config, Descriptors(ContextSettings(secret=b"the docs"), FakeClock()), digest)
    evaluator, window = StepEvaluator(StepsSettings(), digest), b""
    task = "Review commit 4f21c9ab, and report what is wrong."
    for turn in range(16):
        session, now = f"review {turn + 1}", 1000.0 + 300 * turn
        opening = RunOpening(task, session=session, trigger="webhook", has_tools=True)
        evaluation = detector.evaluate_opening(window, opening, now)
        scene.add(f"opens `{session}`", "", str(turn + 1), evaluation.level, evaluation.evidence)
        opened = Step("", (), (), (), (task,), (), 1, 40_000)
        read = Step("", (ToolCall("read_change", "{}"),), ("call_01",), (Result(news(1)),), (), (), 3, 60_000)
        steps = evaluator.evaluate(evaluator.evaluate(b"", opened, now).window, read, now + 5).window
        said = Answer(200, "I have no remarks.", complete=True)
        window = detector.end_run(evaluation.window, b"", session, run_so_far(steps), said)


def tree(scene: Scene) -> None:
    """Agents start agents, each with a task of its own. Reported are 25 agents at work, a depth of 4, and 15 agents
    that sub-agents started within a minute. The 61st agent, one that is 9 deep, and the 31st that sub-agents start in
    a minute are not started; the root counts, and those at work go on. Here every agent starts two more, one every
    three seconds."""
    detector = TreeEvaluator(digest)
    window, depths = b"", {"lead": 1}
    for turn in range(60):
        name, parent = f"agent-{turn + 1}", f"agent-{(turn + 1) // 2}" if turn else "lead"
        depths[name] = depths[parent] + 1
        task = f"Look into the {_WORDS[turn % len(_WORDS)]} of part {turn}, and write down what you find."
        start = RunStart(name, parent, "worker", task, "", Tree("lead", parent, depths[name]), "worker")
        evaluation = detector.evaluate_start(window, start, 1000.0 + 3 * turn)
        window = evaluation.window
        did = f"`{parent}` starts `{name}`"
        scene.add(did, f"{depths[name]} deep", str(turn + 2), evaluation.level, evaluation.evidence)


def stream(scene: Scene) -> None:
    """One streamed response repeats itself: the same words, paragraphs that are almost the same, or the same tool call.
    It is cut at eight repetitions (of text, also 1,200 characters), with the protocol's own ending (`stream_guard`). Of
    texts, only prose can be cut: tables, code, JSON and base64 repeat for good reasons."""
    probe, sentence = StreamProbe(), "I should check the configuration file again before I go on. "
    for part in range(1, 20):
        cut = probe.feed(sentence * 4)
        evidence = f"{len(sentence) * 4 * part} characters of one sentence" if cut else ""
        scene.add(f"streams: {sentence.strip()}", "", str(part * 4), 2 if cut else 0, evidence)
        if cut:
            return

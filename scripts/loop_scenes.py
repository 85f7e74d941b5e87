"""One scene for each kind of loop: its docstring says what the kind is and why healthy work is spared; what it plays is
an agent that is caught. `loop_kinds` makes a page of it, and fails when the detector sees something else."""

from __future__ import annotations

from breakloop.detect.spawn import Begin, SpawnDetector
from breakloop.detect.stream import StreamProbe
from scripts.loop_scene import Scene, digest

_PLACES = ("attic", "cellar", "garden", "harbour", "kitchen", "library", "museum", "office", "station", "tower")
_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "jetty")


def news(index: int) -> str:
    """Return a result that nobody has seen before."""
    return f"the {_PLACES[index % 10]} holds {index + 2} crates of {_WORDS[index * 7 % 10]}"


def repeat(scene: Scene) -> None:
    """The same call with the same result, one after the other. The result is part of it: a poll that sees something
    new is no repeat. A change that succeeded voids the count, so the same command after each edit is none either.
    Repeats 20 s apart count half, 60 s apart a quarter: slow pollers live long."""
    for _ in range(8):
        scene.call("list_orders", {"customer": 4711}, "no orders found for this customer")


def cycle(scene: Scene) -> None:
    """A round of 2 to 16 steps, again and again. One step that is different, or has a different result, begins the
    count anew, and a second pass over a list is no cycle yet."""
    for turn in range(10):
        scene.call(("open_form", "go_back")[turn % 2], {"page": "checkout"}, f"{news(turn % 2)}, a page of the shop")


def interleaved(scene: Scene) -> None:
    """The same call with the same result, and other work between. It is looked for among the last 32 different calls.
    A change that succeeded voids the count; empty results and mere acknowledgements do not count at all."""
    for turn in range(13):
        if turn % 2:
            scene.call("search", {"query": _WORDS[turn // 2]}, news(turn))
        else:
            scene.call("read_file", {"path": "plan.md"}, "Plan: find the cause, mend it, test it")


def failure(scene: Scene) -> None:
    """The same call, and an error each time, whatever is done between. A different error counts half; times and
    process numbers do not make it different. A change that succeeded (an edit, say) begins the count anew: running
    the tests after each edit is work, however often they fail."""
    for turn in range(13):
        if turn % 2:
            scene.call("read_file", {"path": f"{_PLACES[turn // 2]}.mk"}, news(turn))
        else:
            scene.call("run", {"command": "make"}, f"12:00:{turn:02} [{900 + turn}] no rule for app", failed=True)


def unknown_tool(scene: Scene) -> None:
    """Calls of tools that there are not, as the request's own list of tools and the error that came back say. One
    success ends the row. A name that is not in the list and works all the same is no matter: some clients declare
    their tools by turns."""
    for turn in range(8):
        said = f"I try {news(turn * 11)}."
        scene.call(f"serch_{_WORDS[turn]}", {"q": _PLACES[turn]}, "not here", failed=True, tools=("search",), said=said)


def cascade(scene: Scene) -> None:
    """Bad results, whatever was called: eight of the last ten. Bad is what the protocol, an exit status or the
    harness's own form says, never a word in the text: reports of tests and linters are full of errors, and are work.
    And it only counts while nothing new comes from outside."""
    for turn in range(10):
        scene.call(f"{_WORDS[turn]}_{_PLACES[turn]}", {"id": turn}, "connection refused", failed=True)


def stagnation(scene: Scene) -> None:
    """One tool with new arguments, and always the same informative result. Short results ("ok", "not found") are not
    looked at, and neither are those of tools that change something: thirty files written with the same
    acknowledgement are a batch."""
    text = "Nothing matched. Known places: " + ", ".join(_PLACES) + "; see the manual for how patterns are written."
    for turn in range(9):
        scene.call("search_files", {"pattern": f"{_WORDS[turn]}*"}, text)


def near(scene: Scene) -> None:
    """The same call but for its numbers, and nothing new from it. Numbers are often the matter itself (pages,
    orders), so this is only told, never blocked; an agent that goes on like this becomes `dry`."""
    for turn in range(5):
        scene.call("get_page", {"page": turn}, "there is nothing on it")


def dry(scene: Scene) -> None:
    """Turns since anything new came from outside: no line that the session had not seen, no change that succeeded, no
    new words of the model's own. It carries most real loops, because stuck agents seldom repeat themselves to the
    letter. News halve the count, so a few turns of relays between them never add up; a second look is free, and so is
    a result that the gateway cannot see."""
    for turn in range(18):
        scene.call("ask", {"what": f"{_WORDS[turn % 10]} {_PLACES[turn // 2 % 10]}"}, "I do not know that")


def novelty(scene: Scene) -> None:
    """Results that hold hardly a line not seen before, as a moving average. Here the agent goes on saving excerpts, so
    that it is never dry for long, and yet it reads the same log for ever. The average moves slowly: a second pass over
    what was read does not matter."""
    log = [f"{_WORDS[line % 10]} went to the {_PLACES[line * 7 % 10]}, {line} miles" for line in range(60)]
    scene.call("read_log", {"lines": "0 to 60"}, "\n".join(log), shown="60 new lines")
    for turn in range(1, 24):
        name = "read_log" if turn % 3 else "save_excerpt"
        shown = f"{20 + turn} lines, all seen before"
        scene.call(name, {"lines": f"{turn} to {turn * 2 + 20}"}, "\n".join(log[turn : turn * 2 + 20]), shown=shown)


def reword(scene: Scene) -> None:
    """The same instruction to the same recipient in other words, while nothing new comes from outside. Words are
    compared as sets; healthy work uses its words again too, which is why this is only asked after four dry turns."""
    ways = ("Please book the meeting room for Monday", "Could you reserve the meeting room on Monday",
            "Kindly book that meeting room, Monday", "The meeting room for Monday, please reserve it")  # fmt: skip
    for turn in range(10):
        back = ("Sure.", "Will do.", "Of course.")[turn % 3]
        scene.says(f"{ways[turn % 4]} now ({'again ' * (turn % 3)}thank you).", back)


def monologue(scene: Scene) -> None:
    """The same answer again, and nothing called. Other words, one call between, or something new from a person begin
    the count anew; and what is only shown again, such as the examples before each item of a batch, is not said
    again."""
    backs = ("Are you sure?", "Please go on.", "That cannot be all.", "Hm.")
    for turn in range(8):
        scene.says("I have finished the task.", backs[turn % 4])


def continue_(scene: Scene) -> None:
    """The same "go on" of the user or the harness, and nothing called. Whatever a person says afresh ends it, and so
    does work: where tools are called between, "continue" is how people talk."""
    for turn in range(8):
        scene.says(f"I am thinking about {_PLACES[turn]} and {news(turn)}.", "continue")


def nested(scene: Scene) -> None:
    """Each prompt holds the one before it whole: a client that answers a bad reply by wrapping its prompt once more. A
    conversation that grows is not meant: its history stands in messages of its own."""
    text = "Give me the ten largest cities of Europe as JSON."
    for _ in range(9):
        scene.prompt(text)
        text = f"That was not valid JSON, try again: {text}"


def rejected(scene: Scene) -> None:
    """The same text (20 characters or more) comes back from the user or the harness, whatever is done between: the
    agent says that it is done, and is told each time that it is not. Reminders that stand beside each result of a
    command are not counted."""
    for turn in range(6):
        scene.call("bash", {"command": f"ls {_PLACES[turn]}"}, news(turn))
        done = {"note": f"done, see {_WORDS[turn]}"}
        scene.call("finish", done, f"noted: {news(turn + 20)}", then="Your patch is empty. Please send one.")


def storm(scene: Scene) -> None:
    """The same request once more after it was answered. Requests sent at once are sampling and count once; those that
    failed upstream are retries."""
    scene.prompt("What is the capital of France?")
    for _ in range(20):
        scene.again()


def thrash(scene: Scene) -> None:
    """The context is cut, and is full again a few steps later, three times over. The work goes round in circles,
    because what was found out is forgotten each time. It is only told: what helps is a larger context, or smaller
    results."""
    for turn in range(10):
        size = (20_000, 40_000, 61_000)[turn % 3]
        scene.call("read_file", {"path": f"{_PLACES[turn]}.md"}, f"{size // 1000} KB so far: {news(turn)}", size=size)


def spawn(scene: Scene) -> None:
    """Agents that start agents for the same task, or hand it to each other and back. Children with different tasks
    are team work, and many children with one task at once are samples."""
    detector, window, parent = SpawnDetector(digest), b"", "lead"
    for turn in range(8):
        name = f"helper-{turn + 1}"
        begin = Begin(name, parent, "", name, "Find out why the nightly build fails, and mend it.")
        judged = detector.judge(window, begin, 1000.0 + 3 * turn)
        window, parent = judged.window, name
        did = f"`{begin.parent}` starts `{name}`"
        scene.add(did, "with the same task", str(turn + 1), judged.level, judged.evidence)


def stream(scene: Scene) -> None:
    """One streamed answer repeats itself word for word. It is cut at eight repeats and 1,200 characters, and ends as
    the protocol wants it (`stream_guard`). Only prose can be cut: tables, code, JSON and base64 repeat for good
    reasons."""
    probe, sentence = StreamProbe(), "I should check the configuration file again before I go on. "
    for part in range(1, 20):
        cut = probe.feed(sentence * 4)
        evidence = f"{len(sentence) * 4 * part} characters of one sentence" if cut else ""
        scene.add(f"streams: {sentence.strip()}", "", str(part * 4), 2 if cut else 0, evidence)
        if cut:
            return

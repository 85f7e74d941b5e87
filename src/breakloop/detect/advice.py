"""What the model is told to do, by kind of loop: one table, which `advice` in a block of steps overrides.

`instead` goes with the note of `steer` and with denials, `finish` with the note of `land`, where tools are off. Each is
one or two short sentences in the imperative, and names nothing of the conversation: evidence does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

TREE: Final = "tree"  # a tree has too many agents, is too deep, or grows too fast
POLL: Final = "poll"  # a call that waits for something or looks at it is repeated, whatever the kind of the loop


class Advice(NamedTuple):
    """What to do instead of going on, and what the final answer is to contain."""

    instead: str
    finish: str = "Say what is missing."


GENERAL: Final = Advice("Do something else, or finish with what you have.")
ADVICE: Final[Mapping[str, Advice]] = {
    POLL: Advice(
        "Wait once, for as long as it takes, and then look again.", "Say what is still running, and when to look again."
    ),
    "tool_limit": Advice("Do not call this tool again. Work with the results you have."),
    "side_effect": Advice("It is done: do not do it again. Go on with the next step.", "Say what was done."),
    "repeat": Advice("Use the result you have, or call something else."),
    "cycle": Advice("Leave this order of steps: do the step that is missing, or finish.", "Say which step is missing."),
    "failure": Advice(
        "Read the error again, and change what it names before you try again.", "Say what failed, and with which error."
    ),
    "unknown_tool": Advice("Call only tools that are declared.", "Say what you needed the tool for."),
    "interleaved": Advice("Nothing has changed this result. Use it, or change what it depends on."),
    "drift": Advice("Only times, ids or counters differ in this result. Use it, or change what it depends on."),
    "unmoved": Advice(
        "Your changes do not reach it. Read the error again, and look for its cause somewhere else.",
        "Say what you changed, and what still fails.",
    ),
    "stubborn": Advice(
        "Read the error again, and question what all your attempts have in common.",
        "Say what you tried, and what still fails.",
    ),
    "stagnation": Advice("More of this brings nothing new. Answer with what you have.", "Say what you did not find."),
    "nested": Advice("Send only what is new, without the text before it."),
    "continue": Advice("Take the next step, or say that you are done.", "Say what is done, and what is missing."),
    "rejected": Advice("Do exactly what this message asks, or say why you cannot.", "Say why you cannot do it."),
    "monologue": Advice("Do not say this again. Take the next step, or finish."),
    "storm": Advice("Use the answer you have. Send nothing before something has changed."),
    "cascade": Advice(
        "Stop, and read the errors again: correct what they have in common before the next call.",
        "Say what failed, and with which error.",
    ),
    "reword": Advice("Do not ask for the same again. Work with the answers you have."),
    "dry": Advice("Get new input from a tool or a person, or finish."),
    "novelty": Advice("These results add nothing new. Answer with what you have.", "Say what you did not find."),
    "near": Advice("Other numbers change nothing here. Try another way, or answer with what you have."),
    "thrash": Advice("Read less at a time, and write down what you need before you go on."),
    "spawn": Advice("Do this task yourself, instead of starting another agent for it."),
    "rerun": Advice(
        "Find out what starts this run, and start it when there is something new to do.",
        "Say that nothing has changed since the last run.",
    ),
    TREE: Advice("Start no more agents: work with those that there are, or do the work yourself."),
    "waiting": Advice(
        "Wait once, for as long as it takes, and then look again.", "Say what is still running, and when to look again."
    ),
}  # fmt: skip


def advice_for(kind: str, own: Mapping[str, Advice]) -> Advice:
    """Return the advice for a kind; `own` are the texts of the bundle."""
    return own.get(kind) or ADVICE.get(kind, GENERAL)


def landing_note(why: str, advice: Advice) -> str:
    """Return the note of a call that is landed: why, and what is asked for."""
    off = "For this turn, tools are switched off"  # the note may stay in a conversation that goes on
    return f"{why} {off}: give your final answer now, with what you have. {advice.finish}"

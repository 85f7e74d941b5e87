"""What a call is for, by its name and arguments: waiting, a look at something that goes on by itself, or an effect that
cannot be taken back. And what a short result says about it: it goes on, it has ended, or the tool is called too often.

Names are compared word by word. Commands are only read if one of their words is known, because most are not about
waiting.
"""

from __future__ import annotations

import re
from typing import Final

from breakloop.detect.steps.results import APART, LOW_APART
from breakloop.dialects.content import lazy_pattern

NO_WAIT, WAIT, LOOK, TERMINAL = range(4)  # TERMINAL: a look at a terminal, which waits for output by itself
NO_EFFECT, NOTICED, BLOCKED = range(3)  # how far equal calls go
PLAIN, ONGOING, ENDED, TIMED_OUT, LIMITED = range(5)  # what a short result says

_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+").findall
_PARTS: Final = re.compile(r"__|[./:]").split
_ARGUMENTS_MAX: Final = 600  # bytes; longer ones do something else


def _words(name: str) -> list[str]:
    """Return the words of a tool's name, without the server it belongs to."""
    return [word.lower() for word in _WORDS(_PARTS(name)[-1])]


# -- waiting

_READING: Final = frozenset((
    "get", "list", "read", "search", "find", "view", "show", "fetch", "query", "check", "look", "describe", "lookup",
))  # fmt: skip
_WAITS: Final = (["pause"], ["delay"], ["set", "timer"], ["start", "timer"], ["schedule", "wakeup"])
_STATUS: Final = frozenset((
    "status", "poll", "progress", "health", "healthcheck", "watch", "monitor", "alert", "alerts", "heartbeat",
))  # fmt: skip
_NO_STATUS: Final = frozenset(("set", "update", "change", "create", "add", "delete", "write", "send", "edit", "post"))
_OUTPUT_OF: Final = frozenset((
    "bash", "shell", "terminal", "console", "task", "job", "process", "command", "background", "get", "read", "view",
))  # fmt: skip
_TERMINALS: Final = (["write", "stdin"], ["send", "stdin"], ["send", "input"], ["write", "terminal"])
_ASKS: Final = re.compile(
    rb"\"(?:action|command|operation|mode|method|subcommand|type)\":\s?\"(?:poll|status|wait|progress|health|watch)\""
).search
_EMPTY_INPUT: Final = lazy_pattern(rb"\"(?:chars|input|command|cmd|keys|text|data|stdin)\":\s?\"(?:\\n|\\r|\s)*\"")
_STATUS_URL: Final = lazy_pattern(
    rb"/(?:status|state|health|healthz|ready|readyz|livez|ping|progress|poll|jobs?|runs?|tasks?|"
    rb"builds?|pipelines?|deployments?|operations?|executions?)\b",
    re.IGNORECASE,
)
_SENDS: Final = lazy_pattern(rb"(?:-X|--request)[ =]?(?:POST|PUT|PATCH|DELETE)|\s(?:-d|--data\S*|-F|-T|--json)[ =@]")
_SENDING_METHOD: Final = re.compile(rb"\"method\":\s?\"(?:POST|PUT|PATCH|DELETE)", re.IGNORECASE).search
_COMMAND_VALUE: Final = lazy_pattern(
    rb"\"(?:command|commands|cmd|script|code|input)\":\s?(?:\"((?:[^\"\\]|\\.)*+)\"|\[([^][]*+)\])"
)
_COMMAND_WORDS: Final = frozenset((
    b"sleep", b"status", b"gh", b"glab", b"kubectl", b"oc", b"docker", b"podman", b"squeue", b"sacct", b"qstat",
    b"bjobs", b"systemctl", b"aws", b"gcloud", b"az", b"curl", b"wget", b"ps", b"pgrep", b"jobs", b"nvidia", b"tail",
))  # fmt: skip
_HARMLESS: Final = re.compile(rb"[0-9]?&?>(?:&[0-9]|\s*/dev/null)").sub
_IN_QUOTES: Final = re.compile(rb"\"[^\"]*\"|'[^']*'").sub
_SEPARATORS: Final = re.compile(rb"\\n|[;|&\n]+").split
_BEGINS: Final = lazy_pattern(
    rb"\s*(?:(?:sudo|time|do|then|exec|bash|sh|-l?c|timeout\s+\S+|watch(?:\s+-\S+(?:\s+[0-9.]+)?)*|[A-Z_]+=\S*)\s+)*"
)
_SLEEPS: Final = re.compile(rb"sleep\s+([0-9.]+)([smhd]?)\b").match
_NEUTRAL: Final = re.compile(rb"(?:echo|printf|date|true|cd|pwd|wait|export|set|done|fi|:)(?:\s|$)|$").match
_FILTERS: Final = lazy_pattern(
    rb"(?:grep|egrep|rg|tail|head|jq|awk|sed|cut|sort|uniq|wc|tr|column|cat|xargs|tee)(?:\s|$)"
)
_LOOKS: Final = lazy_pattern(
    rb"(?:gh\s+(?:run|pr|workflow)\s+(?:view|watch|list|checks|status)|glab\s+(?:ci|mr)\s+(?:status|view|list)|"
    rb"(?:kubectl|oc)\s+(?:\S+\s+)*?(?:get|describe|rollout\s+status|wait|top)\b|"
    rb"(?:docker|podman)\s+(?:compose\s+)?(?:ps|stats|inspect|container\s+ls)\b|"
    rb"(?:squeue|sacct|qstat|bjobs|scontrol\s+show|ps|pgrep|jobs|nvidia-smi)(?:\s|$)|systemctl\s+(?:is-active|show)\b|"
    rb"aws\s+(?:\S+\s+)*?(?:describe|get|list|wait)\b|(?:gcloud|az)\s+(?:\S+\s+)*?(?:describe|list|show)\b|"
    rb"tail\s[^|;]*\.(?:log|out)\b|(?!git\b|svn\b|hg\b|jj\b)\S+\s+(?:\S+\s+)?status\b)"
)
_FETCHES: Final = re.compile(rb"(?:curl|wget)\s").match
_UNITS: Final = {b"": 1, b"s": 1, b"m": 60, b"h": 3600, b"d": 86400}
_NUMBER: Final = re.compile(rb"\"(\w*)\":\s?\"?([0-9]+(?:\.[0-9]+)?)\b").search


def waits_by_name(name: str) -> int:
    """Tell whether a tool waits, or looks at something that goes on by itself; TERMINAL depends on its arguments."""
    words = _words(name)
    if not words:
        return NO_WAIT
    if words in _TERMINALS:
        return TERMINAL
    if words[0] in {"sleep", "await"} or "wait" in words[:2] or words in _WAITS or words[-1] == "sleep":
        return NO_WAIT if words[0] in _READING else LOOK if "for" in words or "until" in words else WAIT
    if not _NO_STATUS.isdisjoint(words):
        return NO_WAIT
    if not _STATUS.isdisjoint(words) or words == ["check", "job"]:
        return LOOK
    if "output" in words and not _OUTPUT_OF.isdisjoint(words):
        return LOOK
    return LOOK if "terminal" in words and words[0] in {"read", "view", "get"} else NO_WAIT


def waits(by_name: int, arguments: bytes, runs: bool) -> tuple[int, float]:  # noqa: FBT001 - a keyword takes time
    """Return what a call that changes nothing waits for, and for how many seconds it says that it waits; `by_name` is
    what its tool does, `runs` whether its arguments are a command."""
    if by_name == WAIT:
        return WAIT, _seconds(arguments)
    if by_name == LOOK or len(arguments) > _ARGUMENTS_MAX:
        return (LOOK if by_name == LOOK else NO_WAIT), 0.0
    if by_name == TERMINAL:
        return (TERMINAL if _EMPTY_INPUT().search(arguments) else NO_WAIT), 0.0
    if runs:
        return _command(arguments)
    if arguments.partition(b"http")[1] and _STATUS_URL().search(arguments) and not _SENDING_METHOD(arguments):
        return LOOK, 0.0
    return (LOOK if _ASKS(arguments) else NO_WAIT), 0.0


def _seconds(arguments: bytes) -> float:
    """Return how long a wait is to take, by the first number in its arguments."""
    found = _NUMBER(arguments)
    if found is None:
        return 0.0
    unit, count = found[1].lower(), float(found[2])
    if unit.endswith(b"ms") or b"milli" in unit:
        return count / 1000
    return count * (60 if b"min" in unit else 3600 if b"hour" in unit else 1)


def _command(arguments: bytes) -> tuple[int, float]:
    """Read a command line that changes nothing."""
    if _COMMAND_WORDS.isdisjoint(arguments.translate(APART).split()):
        return (TERMINAL if arguments.partition(b'""')[1] and _EMPTY_INPUT().search(arguments) else NO_WAIT), 0.0
    found = _COMMAND_VALUE().search(arguments)
    line = (found[1] or found[2] or b"") if found else arguments
    line = line.replace(b'\\"', b'"')
    if found and found[1] is None:
        line = line.replace(b'","', b" ").strip(b'"')
    line = _IN_QUOTES(lambda quoted: quoted[0][1:-1].translate(None, b";|&\n"), _HARMLESS(b"", line))
    seconds, looks, others = 0.0, False, 0
    for number, part in enumerate(_SEPARATORS(line)):
        begins = _BEGINS().match(part)
        command = part[begins.end() :] if begins else part
        slept = _SLEEPS(command)
        if slept:
            seconds += _float(slept[1]) * _UNITS[slept[2]]
        elif _NEUTRAL(command):
            continue
        elif _LOOKS().match(command) or (
            _FETCHES(command) and _STATUS_URL().search(command) and not _SENDS().search(command)
        ):
            looks = True
        else:
            others += not (number and _FILTERS().match(command))
            looks = looks or seconds > 0
    if seconds:
        return (LOOK if looks else WAIT), seconds
    return (LOOK if looks and not others else NO_WAIT), 0.0


def _float(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


# -- what a short result says

SHORT: Final = 120  # bytes
_GOES_ON: Final = frozenset((
    b"running", b"pending", b"queued", b"progress", b"processing", b"starting", b"waiting", b"building",
    b"provisioning", b"deploying", b"initializing",
))  # fmt: skip
_ENDS: Final = frozenset((
    b"done", b"completed", b"complete", b"finished", b"succeeded", b"success", b"successful", b"failed", b"failure",
    b"exited", b"terminated", b"cancelled", b"canceled", b"killed", b"stopped", b"expired",
))  # fmt: skip
MARKS: Final = _GOES_ON | _ENDS | {
    b"429", b"rate", b"ratelimit", b"ratelimited", b"many", b"retry", b"throttled", b"throttling", b"timeout", b"found",
    b"such",
}  # fmt: skip
_GONE: Final = re.compile(rb"\bnot found|no such (?:process|job|session|task|run|container|pod|build)\b").search
_LIMITED: Final = lazy_pattern(
    rb"rate.?limit|too many requests|retry.?after|throttl(?:ed|ing)|"
    rb"(?:error|status|http|code)\W{0,3}(?:code\W{0,2})?429\b"
)
_PART_OF: Final = re.compile(rb"[0-9] ?(?:%|percent)|[0-9] ?(?:/|of) ?[0-9]").search


def says(text: bytes) -> int:
    """Return what a short result says about the thing that was asked for."""
    words = text.translate(LOW_APART).split()
    if MARKS.isdisjoint(words):
        return PLAIN
    low = text.lower()
    if _LIMITED().search(low):
        return LIMITED
    if not _GOES_ON.isdisjoint(words) or _PART_OF(low):
        return ONGOING
    if not _ENDS.isdisjoint(words) or _GONE(low):
        return ENDED
    return TIMED_OUT if b"timeout" in words else PLAIN


# -- effects

_NO_EFFECTS: Final = _READING | frozenset((
    "history", "policy", "info", "detail", "details", "summary", "report", "rate", "rates", "availability", "options",
    "price", "prices", "validate", "preview", "estimate", "quote", "status", "cancel", "update", "delete", "remove",
))  # fmt: skip
_OWN: Final = frozenset((  # effects on a screen, a terminal or a file
    "key", "keys", "keystroke", "keystrokes", "input", "stdin", "signal", "query", "prompt", "command", "click", "ping",
    "heartbeat", "file", "files", "todo", "todos", "plan", "draft", "template", "listener",
))  # fmt: skip
_BUYS: Final = frozenset(("pay", "charge", "refund", "purchase", "buy", "book", "reserve", "donate", "withdraw"))
_MAILS: Final = (["email"], ["mail"], ["sms"])
_MAKES: Final = frozenset(("send", "create", "place", "submit", "make", "schedule", "issue"))
_GOODS: Final = frozenset((
    "mail", "email", "emails", "sms", "fax", "letter", "newsletter", "invoice", "payment", "money", "funds", "order",
    "issue", "ticket", "incident", "booking", "reservation", "refund", "charge", "subscription", "shipment",
    "appointment", "meeting", "event", "invitation", "donation", "transaction", "purchase", "pr",
))  # fmt: skip
_TELLS: Final = frozenset((
    "send", "post", "publish", "deploy", "notify", "message", "comment", "reply", "tweet", "share", "order",
))  # fmt: skip
_ADDED: Final = frozenset((
    "item", "items", "product", "cart", "comment", "reaction", "record", "customer", "user", "contact", "lead", "deal",
    "account", "card", "page", "project", "event", "member",
))  # fmt: skip
_MONEY: Final = frozenset(("money", "funds", "payment", "balance", "amount"))
_LINKS: Final = frozenset(("to", "for", "in", "on", "via", "from", "with", "by", "using", "v"))


def effect_by_name(name: str) -> int:
    """Tell whether a tool has an effect outside that cannot be taken back, such as a mail, an order or an issue.

    What is written again with the same content (a file, a setting, a plan) has none, and neither has a key that is
    pressed again. Equal calls are blocked only if the name leaves no doubt.
    """
    words = _words(name)
    if words in _MAILS:
        return BLOCKED
    if not words or not _NO_EFFECTS.isdisjoint(words) or not _OWN.isdisjoint(words):
        return NO_EFFECT
    first = next((at for at, word in enumerate(words) if at and word in _LINKS), len(words))
    verb_at = next((at for at, word in enumerate(words[:first]) if word in _VERBS), -1)
    if verb_at < 0:
        return NO_EFFECT
    verb, rest = words[verb_at], words[verb_at + 1 : first]
    of = rest[-1] if rest else ""
    if verb == "transfer":
        return BLOCKED if (not rest and first == len(words)) or of in _MONEY else NO_EFFECT
    if verb in _BUYS and not verb_at:
        return BLOCKED
    asked = of == "request" and not {"pull", "merge"}.isdisjoint(rest)
    if verb in _MAKES and (asked or (of in _GOODS and not (verb == "send" and of == "event"))):
        return BLOCKED
    if of == "request":
        return NO_EFFECT
    return NOTICED if verb in _TELLS or (verb in {"add", "create"} and of in _ADDED) else NO_EFFECT


_VERBS: Final = _MAKES | _TELLS | _BUYS | {"transfer", "add"}

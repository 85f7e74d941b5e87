"""`Call`: one request being judged, as every door hands it to the engine. Parsing bytes into it is the door's and
`wire`'s work; who sent it (caller, agent, claims) is worked out on demand by `policy.descriptors` and kept here.

`Step`: what the model did last and what came of it, as the tail of a request shows it (DETECTION: the unit of
observation). Read by `wire` from everything behind the last answer of the model; judged by `detect.steps`.

`Answer`: what came back for one call, as far as judging the next one needs it. Read by `wire` while it passes (or
reported by a gateway), handed to `Engine.settle`; what it costs is `pricing`'s business.

`Prompt`: how much a request says to the model, as estimates of tokens need it. Found by `wire`, counted by
`pricing`; before an answer has told what it really was.

How a note for the model is marked, so that it is known again when it comes back in a conversation.

`CompletionCap`: how long a streamed answer may become before it is ended (SPEC L-3). Left on a call by rules that
ask for it; who counts and cuts is the gateway.

What a tool that failed has said, as a step's result: an exception, which is how steps tell failures from answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Protocol

CAPPED: Final = "max_completion_tokens"  # the reason in events


class CompletionCap(NamedTuple):
    """The cap of one rule."""

    tokens: int  # of one answer; a request for several may have as many times that
    policy: str
    rule: str
    cuts: bool  # False: in shadow, where it is only told


API_KEY_HEADERS: Final = ("x-api-key", "api-key", "x-goog-api-key")  # the first found is the caller's
CREDENTIAL_HEADERS: Final = ("authorization", *API_KEY_HEADERS)  # what an LLM API may be given a key in
SECRET_HEADERS: Final = frozenset((*CREDENTIAL_HEADERS, "proxy-authorization", "cookie"))  # never shown, never kept


class ToolCall(NamedTuple):
    """A call the model made: its name and its arguments, as JSON in one spelling where they are JSON."""

    name: str
    arguments: str


class Message(NamedTuple):
    """One message of a conversation, flattened: list contents are joined, media stand as `<type:digest>`."""

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()


TAIL_MESSAGES: Final = 3  # that are read where no detector looks at more
UNREAD: Final[tuple[Message, ...]] = (Message("", "unread"),)  # the tail of a chat whose messages nobody wanted yet


class Chat(NamedTuple):
    """What an LLM request says, as far as judging it needs: `tail` holds the last messages only, oldest first."""

    dialect: str
    model: str
    tail: tuple[Message, ...]
    message_count: int
    stream: bool = False
    max_tokens: int | None = None
    fallback: str = ""  # how it had to be decoded: "" typed, "tolerant" for BOM, lone surrogates, odd types
    answers: int = 1  # that it asks for at once; `max_tokens` is for each of them


class DialectBody(Protocol):
    """The body of an LLM or MCP request, parsed by its dialect."""

    def head(self) -> Chat | None: ...

    def chat(self, tail: int) -> Chat | None: ...


class Parsed:
    """What was read from a request. Written by `policy.descriptors` and `dialects` only; None: not read yet."""

    chat: Chat | Literal[False] | None = None  # False: not an LLM request
    body: DialectBody | None = None
    prompt: Prompt | None = None
    step: Step | Literal[False] | None = None  # False: there is none
    query: dict[str, list[str]] | None = None


class Profile(Protocol):
    """What is known of a caller from its earlier requests."""

    @property
    def caller(self) -> str: ...

    @property
    def agent(self) -> str: ...

    @property
    def ip(self) -> str: ...

    @property
    def claims(self) -> Mapping[str, object]: ...

    @property
    def verified(self) -> bool: ...

    @property
    def identities(self) -> dict[int, str]:
        """The caller's part of fingerprints, by detector."""
        ...


class Identity:
    """Who sent a request. Written by `policy` only; None: not known yet."""

    profile: Profile | None = None
    caller: str | None = None
    agent: str | None = None
    session: str | None = None
    session_derived = False  # the session is named by how its conversation opens
    trace: str | None = None
    ip: str | None = None
    claims: Mapping[str, object] | None = None
    verified = False  # the claims came from a token whose signature was checked
    project = ""
    shard = ""  # the part of keys under which the state of its agent is kept: the project, or a part of it


class CallDecision:
    """What a decision asks of the rest of the call. Made and written by the engine; it extends this with its own state,
    which every other layer carries along unread.
    """

    tail_messages = TAIL_MESSAGES  # how many of the last messages of a body the bundle in force needs
    snoozed: Mapping[str, float] | None = None  # fingerprints that may repeat for now
    crowded = False  # its session has no name, and other unnamed sessions of its caller run at the same time
    guards_stream = 0  # 1: a streamed answer is cut where it repeats itself; 2: that is only reported
    caps: tuple[CompletionCap, ...] = ()  # how long a streamed answer may become
    wants_usage = False  # a policy needs the token usage that the provider counts, in a stream too
    prompt_tokens = 0  # estimated
    estimator = "simple_word"  # that estimated them


class _Undecided(CallDecision):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: this call has no decision yet")


UNDECIDED: Final[CallDecision] = _Undecided()  # shared by all calls that the engine has not seen


class Call:
    """One request on its way through the service, in parts that have one writer each: the request as it came, which
    nothing but `replace_body` and `release_body` changes, what was `parsed` from it, who sent it (`identity`), and the
    `decision`.

    The parts and this class have class-level defaults, because each is made once per request: a frozen dataclass costs
    3 us, and setting each field in `__init__` a third more than this.
    """

    # Set by the entry point that made the call.
    tracked = False  # its answer will be seen, and handed to `Engine.settle`
    reported = False  # its answer may be reported later: a ticket is needed even where it is not tracked
    began_ns = 0  # when it was received, by `perf_counter_ns`
    span: object = None  # written and read by `observe.tracing` only
    # Set by the engine, which is the only one to write it.
    decision: CallDecision = UNDECIDED

    def __init__(
        self,
        method: str,
        path: str,
        host: str = "",
        query: str = "",
        headers: Mapping[str, bytes] | None = None,
        peer: str = "",
        body: bytes = b"",
        body_unseen: bool = False,  # noqa: FBT001, FBT002 - the hot path calls by position
        request_id: str = "",
        path_agent: str = "",
        upstream: str = "",
        repeated: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        self.method: Final = method
        self.path: Final = path  # normalised; the gateway forwards the original
        self.host: Final = host  # lower case, without port and trailing dot
        self.query: Final = query  # raw, without the question mark
        self.headers: Mapping[str, bytes] = headers if headers is not None else {}  # canonical name -> first value
        self.repeated: Final = repeated  # further values of header fields that came more than once, in order
        self.peer: Final = peer
        self.body = body
        self.body_unseen = body_unseen  # there is a body, but it was not sent to us
        self.request_id = request_id
        self.path_agent: Final = path_agent  # from /agents/{agent}/...
        self.upstream: Final = upstream
        self.parsed: Final = Parsed()
        self.identity: Final = Identity()

    def header(self, name: str) -> str | None:
        """Return the first value of a header field by its canonical name (lower case, `-`), or None."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def replace_body(self, body: bytes, headers: Mapping[str, bytes] | None = None) -> None:
        """Replace the body, for example by its decompressed form, and the header fields that describe it."""
        self.body = body
        if headers is not None:
            self.headers = headers

    def release_body(self, stub: bytes) -> None:
        """Let go of the body and what was parsed from it, but for the head: it will not be sent or read again."""
        self.body = stub
        parsed = self.parsed
        parsed.body = None
        if parsed.chat:
            parsed.chat = parsed.chat._replace(tail=())


class Result(NamedTuple):
    """What one call returned, or an answer to an action that was written as text."""

    text: str
    error: bool = False  # by flag or exit status, never by words
    call_id: str = ""
    media: tuple[str, ...] = ()  # images and the like, as type and size class


class Step(NamedTuple):
    """One step. Without an answer of the model in it (`said` and `calls` empty) a conversation begins."""

    said: str  # the text of the model's last answer
    calls: tuple[ToolCall, ...]  # the calls that it made, or the action that its text spells out
    call_ids: tuple[str, ...]  # of the calls; empty where they have none
    results: tuple[Result, ...]  # in the order in which they stand
    users: tuple[str, ...]  # what else came after the answer: texts of the user or of the harness
    tools: tuple[str, ...]  # names of the tools that the request declares; empty: none are declared
    messages: int  # how many the whole conversation has
    size: int  # bytes of the request
    as_text: bool = False  # the calls are spelled out in text


CLIENT_LEFT: Final = 499  # the status of an answer that nobody waited for
NO_ANSWER: Final = 0  # the status where none came: refused, reset, cut short, or too late
_BUSY: Final = 429


class Usage(NamedTuple):
    """Tokens, as the provider counted them."""

    input_tokens: int = 0  # the whole prompt, cached parts included
    output_tokens: int = 0  # the whole completion, reasoning included
    cached_tokens: int = 0  # of the input: read from the provider's cache
    cache_write_tokens: int = 0  # of the input: written to it
    reasoning_tokens: int = 0  # of the output


class Answer(NamedTuple):
    """One answer. Everything but the status may be missing: not every answer is an LLM's, and some are cut short."""

    status: int
    text: str = ""  # what the model said, bounded; never its thinking
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    model: str = ""
    response_id: str = ""
    finish: str = ""  # why the model stopped, in the dialect's own word
    error: str = ""  # an error that came inside the answer: a failed stream, a tool's error flag
    complete: bool = False  # it came to its proper end
    unkept_chars: int = 0  # of what the model said beyond `text`

    @property
    def failed(self) -> bool:
        """Whether the upstream failed (429, 5xx, time-out, an error in the stream), so that trying again is no loop."""
        status = self.status
        return status in (_BUSY, NO_ANSWER) or status >= 500 or (bool(self.error) and not self.complete)


CHARS_A_TOKEN: Final = 4  # wherever tokens are guessed from the length of a text or of a body
# Every byte that does not begin a character of Chinese, Japanese or Korean (U+3000 and above), or an emoji, in UTF-8.
_NARROW: Final = bytes(byte for byte in range(256) if byte < 0xE3)
_WIDE: Final = 3


class PromptSize(NamedTuple):
    """What is said in a request."""

    chars: int  # of all texts, calls, results and declarations of tools, as `chars_of` counts them
    media: int = 0  # images, sounds, documents
    tokens: int = 0  # of prompts that came as tokens


class Prompt(Protocol):
    """What a request says."""

    @property
    def body_bytes(self) -> int:
        """The length of the body."""
        ...

    @property
    def size(self) -> PromptSize | None:
        """How much it says; None where that cannot be read."""
        ...

    def texts(self) -> list[str]:
        """Return all that is said, as far as it is text; nothing where it cannot be read."""
        ...


def chars_of(text: str) -> int:
    """Return how long a text is, where four characters are about a token: of Chinese, Japanese and Korean, one and a
    third are, so these count three times.
    """
    if text.isascii():
        return len(text)
    wide = len(text.encode("utf-8", "surrogatepass").translate(None, _NARROW))
    return len(text) + wide * (_WIDE - 1)


MARK: Final = "[breakloop]"
END: Final = "[/breakloop]"


def marked(text: str) -> str:
    """Return a note between its marks; "" stays as it is."""
    return f"{MARK} {text} {END}" if text else ""


class ToolFailedError(Exception):
    """Stands for what a tool that failed has said; never raised."""

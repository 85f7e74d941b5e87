"""`Call`, one request to be decided, and the types of what is read from it and from its answer.

Entry points build a `Call`; `dialects` parse its body and the answer into `Chat`, `Prompt`, `Step` and `Answer`;
`policy.descriptors` resolves caller, agent and claims on demand and caches them on the call. Detectors evaluate
steps, `pricing` estimates and prices tokens, and the gateway enforces `CompletionCap` on streamed answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, Protocol

CAPPED: Final = "max_completion_tokens"  # the reason used in events


class CompletionCap(NamedTuple):
    """The maximum length of a streamed answer, set by one rule."""

    tokens: int  # per answer; a request for n answers may use n times as many
    policy: str
    rule: str
    cuts: bool  # False in shadow mode, where the excess is only reported


API_KEY_HEADERS: Final = ("x-api-key", "api-key", "x-goog-api-key")  # the first one present identifies the caller
CREDENTIAL_HEADERS: Final = ("authorization", *API_KEY_HEADERS)  # header fields in which LLM APIs accept a key
SECRET_HEADERS: Final = frozenset((*CREDENTIAL_HEADERS, "proxy-authorization", "cookie"))  # never logged or stored


class ToolCall(NamedTuple):
    """A tool call by the model. Arguments that are valid JSON are stored in canonical form."""

    name: str
    arguments: str


class Message(NamedTuple):
    """One message of a conversation as plain text: content lists are joined, and media become `<type:digest>`."""

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()


TAIL_MESSAGES: Final = 3  # number of messages that are read unless a detector needs more
UNREAD: Final[tuple[Message, ...]] = (Message("", "unread"),)  # placeholder for messages that have not been parsed yet


# Names of dialects that detectors tell from conversations.
MCP_DIALECT: Final = "mcp"
A2A_DIALECT: Final = "a2a"
# Requests call a tool or another agent, and the response is the result.
TOOL_DIALECTS: Final = frozenset((MCP_DIALECT, A2A_DIALECT))
EMBEDDINGS_DIALECT: Final = "openai_embeddings"


class Chat(NamedTuple):
    """The parts of an LLM request that decisions need. `tail` holds only the last messages, oldest first."""

    dialect: str
    model: str
    tail: tuple[Message, ...]
    message_count: int
    stream: bool = False
    max_tokens: int | None = None
    fallback: str = ""  # how the body was decoded: "" typed, "tolerant" for a BOM, lone surrogates or unexpected types
    answers: int = 1  # number of answers requested; `max_tokens` applies to each


class DialectBody(Protocol):
    """The body of an LLM or MCP request, parsed by its dialect."""

    unread: bool  # a message that was needed could not be read

    def head(self) -> Chat | None: ...

    def chat(self, tail: int) -> Chat | None: ...

    def newest_step(self) -> Step | None: ...


class Parsed:
    """Results of parsing a request. Written by `policy.descriptors` and `dialects` only; None means not parsed yet."""

    __slots__ = ("body", "chat", "prompt", "query", "step")

    def __init__(self) -> None:
        self.chat: Chat | Literal[False] | None = None  # False: not an LLM request
        self.body: DialectBody | None = None
        self.prompt: Prompt | None = None
        self.step: Step | Literal[False] | None = None  # False: the request has no step
        self.query: dict[str, list[str]] | None = None


class Profile(Protocol):
    """What earlier requests of the same sender have established about it."""

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


DERIVED_SESSION: Final = "derived:"  # begins the id of a session that the client does not name


class Tree(NamedTuple):
    """The place of a session in a tree of agents that start each other."""

    root: str  # the session at the top, or the name that the client gives the tree; "" if nothing names one
    parent: str = ""  # the session that started this one, if the client names it
    depth: int = 1  # sessions from the root down to this one, both included: 1 for the root
    by_trace: bool = False  # only a shared trace tells that the session belongs to the tree


NO_TREE: Final = Tree("")


class Identity:
    """The sender of a request. Written by `policy` only; None means not resolved yet."""

    __slots__ = (
        "agent", "caller", "claims", "ip", "is_new_name", "named", "profile", "project", "session", "session_derived",
        "shard", "trace", "tree", "verified",
    )  # fmt: skip

    def __init__(self) -> None:
        self.profile: Profile | None = None
        self.caller: str | None = None
        self.agent: str | None = None
        self.session: str | None = None
        self.named: str | None = None  # the session or else the end user, as named by the client; "" without a name
        self.is_new_name: bool | None = None  # neither agent nor session nor end user was named like this before
        self.session_derived = False  # the session id is derived from the opening messages of the conversation
        self.trace: str | None = None
        self.tree: Tree | None = None
        self.ip: str | None = None
        self.claims: Mapping[str, object] | None = None
        self.verified = False  # the claims are from a token whose signature was verified
        self.project = ""
        self.shard = ""  # key prefix of the agent's state: the project, or a part of it


class CallDecision(Protocol):
    """What a decision requires of later stages of the call. Only the engine creates and writes it, and adds state that
    other layers do not see.
    """

    tail_messages: int  # how many of the last messages the active bundle needs
    conversation: object  # of a request without a named session: what its answer is kept with (`detect.joins`)
    alone: bool  # its history shows that no other conversation shares its derived session
    copied: bool  # its newest step contains an answer to another conversation
    opening: bytes  # identifies how a run opens (`detect.rerun`); b"" if the call opens none
    runs: tuple[object, ...]  # slots of the detectors that record how a run ends
    joined: str  # id of the team that such a conversation is a part of, if its step is counted with the team; or ""
    crowded: bool  # the session has no id, and other sessions of this caller without an id are active
    interrupted: bool  # one of these sent a request since the last one of the same session
    guards_stream: int  # 1: cut a streamed answer that repeats itself; 2: only report it; 3: ask again after a thought
    caps: tuple[CompletionCap, ...]  # limits on the length of a streamed answer
    wants_usage: bool  # a policy needs the provider's token usage, for streams too
    prompt_tokens: int  # estimated
    estimator: str  # the estimator of `prompt_tokens`
    microusd: int  # what the answer has cost, of a call in a tree of agents; 0 before it, or without a price
    awaits_result: bool  # counts or charges depend on the result of the call

    @property
    def granted(self) -> bool:
        """Whether a person let the run go on, so that `pause` does not hold it."""
        ...


class _Undecided:
    tail_messages = TAIL_MESSAGES
    conversation: object = None
    alone = False
    copied = False
    opening = b""
    runs: tuple[object, ...] = ()
    joined = ""
    crowded = False
    interrupted = False
    guards_stream = 0
    caps: tuple[CompletionCap, ...] = ()
    wants_usage = False
    awaits_result = False
    microusd = 0
    prompt_tokens = 0
    estimator = ""
    granted = False

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: this call has no decision yet")


UNDECIDED: Final[CallDecision] = _Undecided()  # shared by all calls without a decision


class SharedHead(Protocol):
    """What requests have in common whose heads differ in a few values only."""

    varying: tuple[str, ...]  # the names of these fields, without Content-Length
    # Their sender, as long as `policy` knows it, and what else that depends on; at first None.
    sender: tuple[Callable[[], Profile | None], tuple[object, ...]] | None


class Call:
    """One request, in parts with a single writer each: the request as received, which only `replace_body` and
    `release_body` change; what was `parsed` from it; the sender (`identity`); and the `decision`.

    The class and its parts have slots because they are created for every request. A default in the class instead of a
    slot would be read in 27 ns instead of 2.
    """

    __slots__ = (
        "began_ns", "body", "body_unseen", "decision", "headers", "host", "identity", "method", "parsed", "path",
        "path_agent", "peer", "query", "repeated", "reported", "request_id", "shared_head", "span", "tracked",
        "upstream",
    )  # fmt: skip

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
        shared_head: SharedHead | None = None,
    ) -> None:
        self.method: Final = method
        self.path: Final = path  # normalized; the gateway forwards the original
        self.host: Final = host  # lower case, without port or trailing dot
        self.query: Final = query  # raw, without the question mark
        self.headers: Mapping[str, bytes] = headers if headers is not None else {}  # canonical name -> first value
        self.repeated: Final = repeated  # further values of repeated header fields, in order
        self.shared_head = shared_head  # of `headers`
        self.peer: Final = peer
        self.body = body
        self.body_unseen = body_unseen  # the request has a body, but it was not sent to breakloop
        self.request_id = request_id
        self.path_agent: Final = path_agent  # from /agents/{agent}/...
        self.upstream: Final = upstream
        self.parsed: Final = Parsed()
        self.identity: Final = Identity()
        self.decision: CallDecision = UNDECIDED  # set by the engine only
        # Set by the entry point that created the call.
        self.tracked = False  # the answer will be observed and passed to `Engine.settle`
        self.reported = False  # the answer may be reported later, so the call needs a ticket even if it is not tracked
        self.began_ns = 0  # time of receipt, from `perf_counter_ns`
        self.span: object = None  # used by `observe.tracing` only

    def header(self, name: str) -> str | None:
        """Return the first value of a header field by its canonical name (lower case, `-`), or None."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def replace_body(self, body: bytes, headers: Mapping[str, bytes] | None = None) -> None:
        """Replace the body, for example with its decompressed form, and the header fields that describe it."""
        self.body = body
        if headers is not None:
            self.headers, self.shared_head = headers, None

    def release_parsed(self) -> None:
        """Free the parsed body once the call is decided. Model and options stay available."""
        parsed = self.parsed
        parsed.body = parsed.prompt = None
        if parsed.step:
            parsed.step = False

    def release_body(self, stub: bytes) -> None:
        """Free the body and its messages once they are no longer needed. Model and options stay available."""
        self.body = stub
        self.release_parsed()
        parsed = self.parsed
        if parsed.chat:
            parsed.chat = parsed.chat._replace(tail=())


class Result(NamedTuple):
    """The result of one tool call, or of an action that the model wrote as text."""

    text: str
    error: bool = False  # from an error flag or exit status, never from the text
    call_id: str = ""
    media: tuple[str, ...] = ()  # images and other media, as type and digest


class Step(NamedTuple):
    """The model's last answer and its results, read from the end of a request. `detect.steps` evaluates it.

    If `said` and `calls` are both empty, the request starts a conversation.
    """

    said: str  # text of the model's last answer
    calls: tuple[ToolCall, ...]  # tool calls in that answer, or the action written in its text
    call_ids: tuple[str, ...]  # ids of the calls; empty if they have none
    results: tuple[Result, ...]  # in order of appearance
    users: tuple[str, ...]  # other texts after the answer, from the user or the agent framework
    tools: tuple[str, ...]  # names of the tools declared in the request
    messages: int  # number of messages in the whole conversation
    size: int  # size of the request in bytes
    as_text: bool = False  # the calls were written as text
    # The provider keeps the conversation, and the request continues this answer; "" for the newest one.
    continues: str | None = None
    stored: bool = False  # the provider keeps the answer, so that the next request may leave it out


CLIENT_LEFT: Final = 499  # status if the client disconnected before the answer
NO_ANSWER: Final = 0  # status if there was no answer: refused, reset, truncated or timed out
_FAILED: Final = frozenset((429, NO_ANSWER))


class Usage(NamedTuple):
    """Token counts reported by the provider."""

    input_tokens: int = 0  # whole prompt, including cached parts
    output_tokens: int = 0  # whole completion, including reasoning
    cached_tokens: int = 0  # part of the input that was read from the provider's cache
    cache_write_tokens: int = 0  # part of the input that was written to the cache
    reasoning_tokens: int = 0  # part of the output
    cost_microusd: int | None = None  # as stated by the provider


class Answer(NamedTuple):
    """The answer to one call, as far as later decisions need it. All fields except `status` are optional: the upstream
    may not be an LLM API, and answers can be truncated.
    """

    status: int
    text: str = ""  # the model's text, up to a maximum length, without its reasoning
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    model: str = ""
    response_id: str = ""
    finish: str = ""  # the finish reason, in the dialect's own terms
    error: str = ""  # an error inside the answer: a failed stream, or a tool's error flag
    complete: bool = False  # the answer was received to its end
    unkept_chars: int = 0  # characters of the answer that are not in `text`
    call_ids: tuple[str, ...] = ()  # ids of the calls, if the provider may keep the conversation

    @property
    def failed(self) -> bool:
        """Whether the upstream failed (429, 5xx, time-out, error in the stream), so that a retry is not a loop."""
        status = self.status
        return status in _FAILED or status >= 500 or (not self.complete and bool(self.error))


CHARS_A_TOKEN: Final = 4  # used wherever tokens are estimated from the length of a text or body
# UTF-8 bytes, except those that start a Chinese, Japanese or Korean character (U+3000 and above) or an emoji.
_NARROW: Final = bytes(byte for byte in range(256) if byte < 0xE3)
WIDE: Final = 3


class PromptSize(NamedTuple):
    chars: int  # of all texts, calls, results and tool declarations, as counted by `chars_of`
    media: int = 0  # number of images, audio clips and documents
    tokens: int = 0  # number of tokens in prompts that were sent as tokens


class Prompt(Protocol):
    """The content of a request, for token estimates. Implemented by `dialects`."""

    @property
    def body_bytes(self) -> int: ...

    @property
    def size(self) -> PromptSize | None:
        """The amount of content; None if the body cannot be parsed."""
        ...

    def texts(self) -> list[str]:
        """Return all texts; an empty list if the body cannot be parsed."""
        ...


def chars_of(text: str) -> int:
    """Return the length of a text for the estimate of four characters per token. Chinese, Japanese and Korean have
    about one and a third characters per token, so each of these characters counts three times.
    """
    if text.isascii():
        return len(text)
    wide = len(text.encode("utf-8", "surrogatepass").translate(None, _NARROW))
    return len(text) + wide * (WIDE - 1)

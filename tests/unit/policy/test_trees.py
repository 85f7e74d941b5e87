"""The place of a session in a tree of agents, from what clients send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.clock import FakeClock
from breakloop.dialects.session_ids import DEPTH_MAX, NONE, BodyIds, depth_of
from breakloop.model.call import NO_TREE, Call, Tree
from breakloop.policy.descriptors import CallerProfiles, ContextSettings, Descriptors
from breakloop.policy.identity import PARENT_HEADERS
from breakloop.policy.trees import states_tree
from tests.each import each

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def make() -> Descriptors:
    return Descriptors(ContextSettings(secret=b"k"), FakeClock())


def chat(task: str = "go", key: str = "sk-1", metadata: Any = None, **headers: str) -> Call:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": task}]}
    if metadata is not None:
        body["metadata"] = metadata
    sent = {"x-api-key": key, **{name.replace("_", "-"): value for name, value in headers.items()}}
    fields = {name: value.encode("latin-1") for name, value in sent.items()}
    return Call("POST", "/v1/chat/completions", headers=fields, body=json.dumps(body).encode())


def child(session: str, parent: str, **headers: str) -> Call:
    return chat(x_agent_session=session, x_agent_parent=parent, **headers)


def test_most_calls_belong_to_no_tree() -> None:
    """Neither a session nor a user nor metadata make one; the root of such a call is its own session (C-7)."""
    read = make()
    for call in (chat(), chat(x_agent_session="s"), chat(metadata={"session_id": "s", "team": "x"}), Call("GET", "/x")):
        assert read.tree(call) is NO_TREE
    assert read.tree_root(chat(x_agent_session="s")) == "s"
    assert read.tree_root(Call("GET", "/x")) == ""


@pytest.mark.parametrize("name", PARENT_HEADERS)
def test_parents_lead_to_the_root(name: str) -> None:
    """With parents only, the root and the depth of a grandchild are known because its parent was seen (C-7)."""
    read = make()
    field = name.replace("-", "_")
    found = [read.tree(chat(x_session_id=f"s-{n}", **{field: f"s-{n - 1}"})) for n in range(1, 5)]
    assert found == [Tree("s-0", f"s-{n - 1}", n + 1) for n in range(1, 5)]
    assert read.tree_root(chat(x_session_id="s-0")) == "s-0"
    # Later requests of the same sessions, in any order, have the same place.
    assert read.tree(chat(x_session_id="s-2", **{field: "s-1"})) == found[1]


def test_a_place_is_kept_while_others_come_and_go() -> None:
    """A session that its own descendant started again keeps its depth for those below it (C-7)."""
    read = make()
    read.tree(child("b", "a"))
    again = read.tree(child("a", "b"))
    assert again == Tree("a", "b", 3)
    assert read.tree(child("b", "a")) == Tree("a", "a", 2)


def test_callers_do_not_share_trees() -> None:
    """Whatever ids they send (C-7)."""
    read = make()
    read.tree(child("b", "a"))
    assert read.tree(child("c", "b")) == Tree("a", "b", 3)
    assert read.tree(child("c", "b", key="sk-2")) == Tree("b", "b", 2)


def test_what_clients_state_is_not_guessed() -> None:
    """Root and depth of our own header fields, and of baggage; header fields come before baggage (C-7)."""
    read = make()
    assert read.tree(chat(x_agent_session="c", x_agent_root="r", x_agent_depth="7")) == Tree("r", "", 7)
    assert read.tree(child("c", "b", x_agent_root="r", x_agent_depth="5")) == Tree("r", "b", 5)
    assert read.tree(child("d", "c")) == Tree("r", "c", 6)
    carried = "user=u,breakloop.root=tree%201;p=1, breakloop.depth=3"
    assert read.tree(chat(x_agent_session="e", baggage=carried)) == Tree("tree 1", "", 3)
    assert read.tree(chat(x_agent_session="e", baggage=carried, x_agent_depth="4")) == Tree("tree 1", "", 4)
    assert read.tree(chat(x_agent_session="f", baggage="breakloop.root=r,breakloop.parent=d")) == Tree("r", "d", 7)
    assert read.tree(chat(x_agent_session="r", x_agent_root="r")) == Tree("r", "", 1)
    assert read.tree(chat(x_agent_session="g", x_agent_depth="9")) == Tree("g", "", 9)
    assert read.tree(chat(x_agent_session="g", x_agent_depth="many", baggage="a=1")) is NO_TREE


_DEPTHS: list[tuple[object, int]] = [
    *[("3", 3), (3, 3), ("999999999999", DEPTH_MAX), (10**30, DEPTH_MAX), (True, 0), (0, 0), (-1, 0), ("-1", 0)],
    *[("x", 0), ("", 0), (None, 0), (2.0, 0), ("\u0663", 0)],
]


@each("stated, depth", _DEPTHS)
def test_depths(stated: object, depth: int) -> None:
    """A depth is a number from 1; a large one is as good as the largest (C-7)."""
    assert depth_of(stated) == depth


def test_claude_code() -> None:
    """Its session is the root of all its sub-agents; a sub-agent of a sub-agent is deeper (C-7)."""
    read = make()

    def agent(name: str, parent: str = "") -> Tree:
        more = {"x_claude_code_parent_agent_id": parent} if parent else {}
        return read.tree(chat(x_claude_code_session_id="s", x_claude_code_agent_id=name, **more))

    assert read.tree(chat(x_claude_code_session_id="s")) is NO_TREE
    assert agent("a") == Tree("s", "s", 2)
    assert agent("b", "a") == Tree("s", "s/a", 3)
    assert agent("c", "b") == Tree("s", "s/b", 4)
    assert agent("e", "unseen") == Tree("s", "s/unseen", 3)


def test_a_session_of_claude_code_alone_is_no_root() -> None:
    """It is that of the agent itself, unless the call names a sub-agent; another parent is below its own root (C-7)."""
    assert make().tree(chat(x_claude_code_session_id="s", x_agent_parent="p")) == Tree("p", "p", 2)
    assert make().tree(chat(x_claude_code_agent_id="a", x_agent_session="s", x_agent_parent="p")) == Tree("p", "p", 2)


def test_which_calls_state_their_tree() -> None:
    """Those that name a parent, a root or a depth in a header field. A trace does not (C-7)."""
    read = make()
    for stated in (child("s", "p"), chat(x_claude_code_session_id="s", x_claude_code_agent_id="a")):
        assert read.states_tree(stated)
        assert states_tree(stated)
    for other in (chat(), chat(x_agent_session="s"), chat(traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")):
        assert not read.states_tree(other)
        assert not states_tree(other)


def test_codex() -> None:
    """All threads have the session at the top (C-7)."""
    read = make()
    assert read.tree(chat(session_id="s", thread_id="s")) == Tree("s", "", 1)
    assert read.tree(chat(session_id="s", thread_id="t", x_codex_parent_thread_id="s")) == Tree("s", "s", 2)
    assert read.tree(chat(session_id="s", thread_id="u", x_codex_parent_thread_id="t")) == Tree("s", "t", 3)
    assert read.tree(chat(session_id="s", thread_id="v")) == Tree("s", "", 2)
    assert read.tree(chat(session_id="s")) is NO_TREE


def test_in_the_body() -> None:
    """`metadata` of an LLM request, and `_meta` of a tool call, which may contain baggage (C-7)."""
    read = make()
    ours = {"session_id": "b", "breakloop.parent": "a", "breakloop.depth": "2", "breakloop.root": "r"}
    assert read.tree(chat(metadata=ours)) == Tree("r", "a", 2)
    assert read.tree(chat(metadata={"thread_id": "c", "parent_thread_id": "b"})) == Tree("r", "b", 3)
    meta = {"agent-session-id": "d", "baggage": "breakloop.root=r,breakloop.depth=3", "breakloop.depth": 4}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "_meta": meta}}
    assert read.tree(Call("POST", "/mcp", body=json.dumps(body).encode())) == Tree("r", "", 4)


def test_a_name_of_an_agent_is_no_session() -> None:
    """An agent may run many times at once, so that its name does not tell whose child a session is (C-7)."""
    read = make()
    senders = CallerProfiles(read, ())
    senders.find(chat(x_agent_id="planner", x_agent_session="p"), 0.0)
    assert read.tree(child("w", "planner")) is NO_TREE
    assert read.parent(child("w", "planner")) == "planner"
    assert read.tree(child("w", "planner", x_agent_root="r")) == Tree("r", "", 2)
    assert read.tree(child("w", "planner", key="sk-2")) == Tree("planner", "planner", 2)
    # A session that was seen to be started is one, even if an agent has the same name.
    read.tree(child("planner", "boss"))
    assert read.tree(child("v", "planner")) == Tree("boss", "planner", 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01"),
        ("x_litellm_trace_id", "t-1"),
        ("langsmith_trace", "20260101T000000000000Z5f0e.20260101T000001000000Z7c32"),
    ],
)
def test_a_shared_trace(name: str, value: str) -> None:
    """Sessions of one trace are in the tree of the one that had it first; the depth is not known (C-7)."""
    read = make()
    sent = {name: value}
    first = read.tree(chat("plan", x_agent_session="a", **sent))
    assert first == Tree("a", "", 1, by_trace=True)
    assert read.tree(chat("part 1", x_agent_session="b", **sent)) == Tree("a", "", 2, by_trace=True)
    assert read.tree(chat("plan", x_agent_session="a", **sent)) == first
    assert read.tree(child("c", "b", **sent)) == Tree("b", "b", 2)
    assert read.tree(chat(x_agent_session="d", key="sk-2", **sent)).root == "d"


def test_one_account_for_an_unnamed_agent_and_its_trace() -> None:
    """The first request of a trace is not known to be one of many, and still has the root of those after it (C-7)."""
    read = make()
    sent = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    assert len({read.tree_root(chat("plan", **sent)) for _ in range(3)}) == 1


def test_long_ids_are_digests() -> None:
    """As those of sessions, so that they are the same (C-7)."""
    read = make()
    long = "x" * 5000
    found = read.tree(child("b", long))
    assert found.root == found.parent == read.session(chat(x_agent_session=long))
    assert len(read.tree(chat(x_agent_root=long)).root) < 64


def test_the_memory_is_bounded() -> None:
    """The oldest places are forgotten: their children have the parent as their root then (C-7)."""
    read = make()
    read.trees.seen = type(read.trees.seen)(limit=8)
    for n in range(100):
        read.tree(child(f"s-{n + 1}", f"r-{n}"))
    assert len(read.trees.seen) <= 16
    assert read.tree(child("x", "s-100")).depth == 3
    assert read.tree(child("y", "s-1")) == Tree("s-1", "s-1", 2)


def test_nobody_starts_itself() -> None:
    """A session that is given as its own parent tells nothing about its tree (C-7)."""
    read = make()
    assert read.tree(child("a", "a")) is NO_TREE
    assert read.tree(child("a", "a", x_agent_root="r")) == Tree("r", "", 2)
    assert read.tree(child("b", "a")) == Tree("a", "a", 2)


def test_a_stated_root_or_depth_replaces_the_one_that_was_found() -> None:
    """Each for itself: the other one is that of the place below the parent (C-7)."""
    read = make()
    assert read.tree(child("b", "a", x_agent_depth="5")) == Tree("a", "a", 5)
    assert read.tree(child("c", "b")) == Tree("a", "b", 6)
    assert read.tree(child("d", "c", x_agent_root="r")) == Tree("r", "c", 7)
    assert read.tree(child("e", "unseen", x_agent_root="r")) == Tree("r", "unseen", 3)
    assert read.tree(child("f", "r", x_agent_root="r")) == Tree("r", "r", 2)
    assert read.tree(chat(x_agent_session="g", x_agent_root="r")) == Tree("r", "", 2)


@pytest.mark.parametrize(("name", "stated"), [("root", "xyz"), ("parent", "xyz"), ("depth", "789")])
def test_which_of_several_statements_counts(name: str, stated: str) -> None:
    """A header field of ours, then baggage, then the body (C-7)."""
    metadata = {f"breakloop.{name}": stated[0]}
    baggage = f"breakloop.{name}={stated[1]}"

    def found(**sent: Any) -> str:
        return str(getattr(make().tree(chat(x_agent_session="s", **sent)), name))

    assert found(metadata=metadata, baggage=baggage, **{f"x_agent_{name}": stated[2]}) == stated[2]
    assert found(metadata=metadata, baggage=baggage) == stated[1]
    assert found(metadata=metadata, baggage="tenant=a") == found(metadata=metadata) == stated[0]


def test_a_stated_root_counts_more_than_that_of_the_client() -> None:
    """Codex sends the session at the top by itself; whoever names a tree means another one (C-7)."""
    codex = {"session_id": "s", "thread_id": "t"}
    assert make().tree(chat(x_agent_root="r", **codex)).root == "r"
    assert make().tree(chat(baggage="breakloop.root=r", **codex)).root == "r"
    assert make().tree(chat(metadata={"breakloop.root": "r"}, **codex)).root == "r"
    assert make().tree(chat(baggage="tenant=a", **codex)).root == "s"
    assert make().tree(chat(session_id="s", x_agent_session="t", x_agent_parent="p")) == Tree("p", "p", 2)


def test_the_depth_has_a_largest_number() -> None:
    """However long a chain is, and for the agent that a call is sent to, too (C-7)."""
    read = make()
    depths = [read.tree(child("b", "a", x_agent_depth=str(DEPTH_MAX - 1))).depth]
    depths += [read.tree(child(own, parent)).depth for own, parent in ("cb", "dc")]
    assert depths == [DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX]
    sent = [chat(x_agent_session="s", x_agent_depth=str(DEPTH_MAX - less)) for less in (2, 1, 0)]
    assert [read.trees.below(call, NONE).depth for call in sent] == [DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX]


def test_a_trace_in_the_body() -> None:
    """As one in a header field, which comes first (C-7)."""
    read = make()
    body = {"trace_id": "t-1"}
    assert read.tree(chat(x_agent_session="a", metadata=body)) == Tree("a", "", 1, by_trace=True)
    assert read.tree(chat(x_agent_session="b", metadata=body)) == Tree("a", "", 2, by_trace=True)
    other = read.tree(chat(x_agent_session="c", metadata=body, x_litellm_trace_id="t-2"))
    assert other == Tree("c", "", 1, by_trace=True)


def test_a_trace_that_a_started_session_had_first() -> None:
    """It belongs to the tree that the session is known to be in (C-7)."""
    read = make()
    read.tree(child("b", "a"))
    assert read.tree(chat(x_agent_session="b", x_litellm_trace_id="t")) == Tree("a", "", 2, by_trace=True)
    assert read.tree(chat(x_agent_session="c", x_litellm_trace_id="t")) == Tree("a", "", 2, by_trace=True)


def test_a_trace_of_calls_without_a_session() -> None:
    """Plain HTTP has none: nothing tells whose tree it is (C-7)."""
    read = make()
    plain = Call("GET", "/x", headers={"x-litellm-trace-id": b"t"})
    assert read.tree(plain) is NO_TREE
    assert read.tree(chat(x_agent_session="a", x_litellm_trace_id="t")).root == "a"


def noted(read: Descriptors) -> list[tuple[str, str]]:
    """What is told to other instances: sessions and their places."""
    told: list[tuple[str, str]] = []
    read.trees.seen.on_remember = lambda _caller, session, place: told.append((session, place))
    return told


def test_other_instances_are_told_each_place_once() -> None:
    """And nothing of sessions that nobody started, or of calls without a session (C-7)."""
    read = make()
    told = noted(read)
    for call in (child("b", "a"), child("b", "a"), chat(x_agent_session="s", x_agent_root="r"), child("c", "b")):
        read.tree(call)
    read.tree(Call("GET", "/x", headers={"x-agent-parent": b"a"}))
    assert told == [("b", "2 a"), ("c", "3 a")]
    read.tree(child("b", "z"))
    assert told[2:] == [("b", "2 z")]


def test_what_another_instance_remembered() -> None:
    """A place with a depth and a root; anything else is ignored (C-7)."""
    read = make()
    caller = read.caller(chat())
    for place in ("", "3", "3 ", " r", "0 r", "x r"):
        read.trees.seen.learn(caller, "b", place)
        assert read.trees.seen.place(caller, "b") is None
    read.trees.seen.learn(caller, "b", "3 the root")
    assert read.tree(child("c", "b")) == Tree("the root", "b", 4)


def test_which_parents_have_to_be_looked_up() -> None:
    """Those whose place decides, and that this instance has not seen; each lookup is a round trip (C-7)."""
    read = make()
    caller = read.caller(chat())
    assert read.trees.unknown(child("b", "a")) == (caller, "a")
    assert read.trees.unknown(child("b", "a", x_agent_root="r")) == (caller, "a")
    known = (
        chat(x_agent_session="b"),
        chat(x_agent_session="b", x_agent_root="r", x_agent_depth="2"),
        child("b", "null", x_agent_root="r"),
        child("b", "a", x_agent_depth="2"),
        child("b", "a", x_agent_root="a"),
    )
    assert [read.trees.unknown(call) for call in known] == [None] * len(known)
    read.tree(child("b", "a"))
    assert read.trees.unknown(child("b", "a")) is None  # its own place
    assert read.trees.unknown(child("c", "b")) is None  # that of its parent
    assert read.trees.unknown(child("b", "z")) == (caller, "z")  # started again by another session
    assert read.trees.unknown(child("c", "b", key="sk-2")) == (read.caller(chat(key="sk-2")), "b")


def below(call: Call, ids: BodyIds = NONE, read: Descriptors | None = None) -> Tree:
    return (read or make()).trees.below(call, ids)


def test_whoever_gets_a_call_is_below_its_sender() -> None:
    """One deeper, with the session of the sender as its parent, whatever the sender states about itself (C-10)."""
    assert below(chat(x_agent_session="s")) == Tree("s", "s", 2)
    assert below(child("s", "p")) == Tree("p", "s", 3)
    assert below(child("s", "p", x_agent_depth="4")) == Tree("p", "s", 5)
    assert below(child("s", "p", x_agent_root="r")) == Tree("r", "s", 4)
    assert below(chat(x_agent_session="s", x_agent_root="r")) == Tree("r", "s", 3)
    assert below(chat(x_agent_session="s", x_agent_root="s")) == Tree("s", "s", 2)
    assert below(Call("POST", "/x", headers={"x-agent-depth": b"3"})) == Tree("", "", 4)


def test_a_call_may_name_the_place_of_its_receiver() -> None:
    """Its parent is its own session then, and its depth is stated. Without a depth, the parent tells nothing (C-10)."""
    assert below(child("s", "s", x_agent_depth="4")) == Tree("s", "s", 4)
    assert below(child("s", "s", x_agent_depth="4", x_agent_root="r")) == Tree("r", "s", 4)
    assert below(child("s", "s")) == Tree("s", "s", 2)


def test_the_session_of_a_sender_is_in_its_header_fields_or_in_the_body() -> None:
    """An id that is derived from the text counts less than one in the body (C-10)."""
    ids = BodyIds(session="talk")
    assert below(chat(x_agent_session="s"), ids).parent == "s"
    assert below(chat(), ids) == Tree("talk", "talk", 2)
    assert below(Call("POST", "/x"), ids) == Tree("talk", "talk", 2)


def test_a_sender_whose_parent_is_the_name_of_an_agent() -> None:
    """The name does not tell whose child it is (C-7, C-10)."""
    read = make()
    CallerProfiles(read, ()).find(chat(x_agent_id="planner", x_agent_session="p"), 0.0)
    assert below(child("w", "planner"), read=read) == Tree("w", "w", 2)
    assert below(child("w", "p"), read=read) == Tree("p", "w", 3)

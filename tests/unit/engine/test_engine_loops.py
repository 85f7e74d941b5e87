"""Loop detection through the engine: what counts as the same request, when it trips, what follows, what is left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from breakloop.engine.engine import Engine
from breakloop.model.call import Call
from breakloop.model.events import LOOP_DETECTED
from breakloop.model.verdict import LoopFinding, Verdict
from breakloop.store.memory import MemoryStore
from tests.builders import World, bucket, bundle, call, chat, compiled, exact, policy, tail, user, world
from tests.each import each
from tests.unit.engine.test_engine_limits import budget


def looped(verdict: Verdict) -> LoopFinding:
    assert verdict.loop is not None
    return verdict.loop


def post(body: str | bytes, **more: Any) -> Call:
    return call("/x", "POST", body=body if isinstance(body, bytes) else body.encode(), **more)


def same(here: World, first: Call, second: Call) -> bool:
    """Tell whether two calls count as one: with a threshold of 2 the second trips."""
    assert here.decide(first).allowed
    return not here.decide(second).allowed


# -- exact -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [2, 3, 7])
def test_the_nth_identical_request_trips(threshold: int) -> None:
    """N-1 pass, the Nth and those after it do not; the denial says for how long (LD-1)."""
    here = world(bundle(policy("p", loop=exact(threshold, window=45))))
    verdicts = [here.decide(call()) for _ in range(threshold + 2)]
    assert [verdict.allowed for verdict in verdicts] == [True] * (threshold - 1) + [False] * 3
    tripped = verdicts[threshold - 1]
    assert (tripped.reason, tripped.status, tripped.retry_after_s) == ("loop_detected", 429, 45)
    assert (tripped.policy, tripped.rule, tripped.never, tripped.retry_jitter) == (
        "p",
        "loop_detection[0]",
        True,
        False,
    )
    assert (looped(tripped).kind, looped(tripped).hit_count) == ("exact", threshold)
    assert looped(verdicts[-1]).hit_count == threshold + 2


def test_an_idle_window_is_refreshed_by_every_hit() -> None:
    """The count lives for the window after the last hit, so slow loops are seen too (LD-1)."""
    here = world(bundle(policy("p", loop=exact(4, window=60))))
    for _ in range(3):
        assert here.decide(call()).allowed
        here.clock.advance(59)
    assert not here.decide(call()).allowed


def test_an_idle_count_ends_exactly_at_the_end_of_the_window() -> None:
    """Just before the end it still counts, at the end it is gone; denied ones refresh it as well (LD-1)."""
    here = world(bundle(policy("p", loop=exact(2, window=60))))
    here.decide(call())
    here.clock.advance(59.999)
    assert not here.decide(call()).allowed
    here.clock.advance(59.999)
    assert not here.decide(call()).allowed
    here.clock.advance(60)
    assert here.decide(call()).allowed


def test_a_sliding_window_counts_what_is_in_it() -> None:
    """`window: sliding` forgets each hit by itself, exactly a window after it (LD-1)."""
    here = world(bundle(policy("p", loop=exact(4, window=60) | {"window": "sliding"})))
    for _ in range(3):
        assert here.decide(call()).allowed
        here.clock.advance(20)
    assert here.decide(call()).allowed  # at 60 s: the first hit has just left
    here.clock.advance(19)
    assert not here.decide(call()).allowed


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (post('{"a":1,"b":[1,2]}'), post('{ "b": [1, 2],\n "a": 1 }')),
        (post('{"a":{"x":1,"y":2}}'), post('{"a":{"y":2,"x":1}}')),
        (call(query="a=1&b=2"), call(query="b=2&a=1")),
        (call(query="q=a%20b"), call(query="q=a+b")),
        (
            call(query="a=1&key=sk-1", headers={"x-api-key": "k"}),
            call(query="a=1&key=sk-2", headers={"x-api-key": "k"}),
        ),
        (call(headers={"user-agent": "one"}), call(headers={"user-agent": "two"})),
        (call(host="a"), call(host="b")),
    ],
)
def test_equal_requests_are_one(first: Call, second: Call) -> None:
    """JSON key order and white space, and the order of query fields, make no difference; nor do other headers
    (LD-1)."""
    assert same(world(bundle(policy("p", loop=exact(2)))), first, second)


@each(
    "first, second",
    [
        (post('{"a":1}'), post('{"a":2}')),
        (post("a b"), post("a  b")),  # not JSON: byte for byte
        (post("[1,2]"), post("[2,1]")),
        (post(""), post("{}")),
        (call(query="a=1"), call(query="a=2")),
        (call(query="a=1&a=2"), call(query="a=2&a=1")),
        (call("/x"), call("/x/")),
        (call(method="GET"), call(method="DELETE")),
        (call(headers={"x-api-key": "one"}), call(headers={"x-api-key": "two"})),
        (call(headers={"x-agent-id": "one"}), call(headers={"x-agent-id": "two"})),
        (call(path_agent="one"), call(path_agent="two")),
        (call(peer="192.0.2.1"), call(peer="192.0.2.2")),
    ],
)
def test_different_requests_are_two(first: Call, second: Call) -> None:
    """A change of body, query, path, method, caller or agent is another request (LD-1, LD-6)."""
    assert not same(world(bundle(policy("p", loop=exact(2)))), first, second)


def test_descriptors_of_the_policy_are_part_of_the_fingerprint() -> None:
    """Values of `limit_keys` and `match` tell requests apart; a missing one counts as empty (LD-1)."""
    rules = (bucket("a", keys=["header:x-tool"]), bucket("b", keys=[], match={"header:x-tier": "free"}))
    here = world(bundle(policy("p", *rules, loop=exact(2))))
    assert here.decide(call(headers={"x-tool": "one"})).allowed
    assert here.decide(call(headers={"x-tool": "two"})).allowed
    assert here.decide(call(headers={"x-tool": "two", "x-tier": "free"})).allowed
    assert here.decide(call()).allowed
    assert not here.decide(call(headers={"x-tool": ""})).allowed
    assert not here.decide(call(headers={"x-tool": "one"})).allowed


def test_two_policies_do_not_count_twice() -> None:
    """Each policy counts for itself, and so does each block (LD-1)."""
    here = world(bundle(policy("p", loop=[exact(3), exact(3, window=30)]), policy("q", loop=exact(3))))
    assert [here.decide(call()).allowed for _ in range(3)] == [True, True, False]


def test_a_body_that_is_not_visible_is_not_judged() -> None:
    """Without its body every POST would look the same, and healthy agents would be stopped (LD-1)."""
    here = world(bundle(policy("p", loop=exact(2))))
    hidden = call("/x", "POST", body_unseen=True)
    assert here.decide(hidden, 10).allowed


SEED = {
    "id": "agent-tools",
    "spec": {
        "selector": {"pathPrefix": "/v1/tools/"},
        "loop_detection": {
            "enabled": True,
            "window_seconds": 45,
            "threshold_identical_requests": 4,
            "action": "throttle",
        },
        "rules": [
            {
                "name": "base-rps",
                "limit_keys": ["jwt:org_id", "header:x-tool-name"],
                "algorithm": "token_bucket",
                "algorithm_config": {"rps": 20, "burst": 40},
            }
        ],
    },
}


def test_the_example_of_the_loop_page() -> None:
    """The 3rd identical request is not delayed, the 4th is by 400 ms, the 5th by 500 (LD-1, LD-5)."""
    here = world(bundle(SEED))
    asked = call("/v1/tools/search", "POST", headers={"x-tool-name": "search"}, body=b'{"q":"x"}')
    delays = [here.decide(asked).delay_ms for _ in range(5)]
    assert delays == [0, 0, 0, 400, 500]


# -- tail --------------------------------------------------------------------------------------------------------------


def tailed(**more: Any) -> World:
    return world(bundle(policy("p", loop=tail(**more))))


def trip(here: World, asked: Call | None = None, passing: int = 5) -> Verdict:
    """Send until it trips; so many have to pass before."""
    asked = asked or chat()
    for number in range(passing):
        assert here.decide(asked).allowed, number
    verdict = here.decide(asked)
    assert not verdict.allowed
    return verdict


def test_five_pass_and_the_sixth_is_blocked() -> None:
    """Hit count 6, a cooldown of 30 s, and the message people know (LD-2)."""
    verdict = trip(tailed())
    loop = looped(verdict)
    assert (loop.kind, loop.hit_count, loop.cooldown_s, loop.window_s) == ("tail", 6, 30, 60)
    assert verdict.message.startswith("Blocked: identical request sent 6 times in 60 seconds.")
    assert (verdict.retry_after_s, verdict.never, verdict.reason) == (30, True, "loop_detected")


def test_requests_during_a_cooldown_raise_the_count_and_nothing_else() -> None:
    """They do not lengthen it, and they are no new detection (LD-2)."""
    here = tailed()
    trip(here)
    for second in range(1, 30):
        here.clock.advance(1)
        loop = looped(here.decide(chat()))
        assert (loop.hit_count, loop.cooldown_s, loop.fresh) == (6 + second, 30 - second, False)
        assert loop.evidence == f"same last messages sent {6 + second} times, also while it was blocked"
    here.clock.advance(1)
    assert here.decide(chat()).allowed
    assert len(here.named(LOOP_DETECTED)) == 1


def test_the_remaining_cooldown_is_rounded_up() -> None:
    """Whoever waits as long as he is told passes (A-2)."""
    here = tailed()
    trip(here)
    here.clock.advance(0.5)
    assert here.decide(chat()).retry_after_s == 30
    here.clock.advance(29.499)
    assert here.decide(chat()).retry_after_s == 1
    here.clock.advance(0.001)
    assert here.decide(chat()).allowed


def cooldowns(here: World, times: int) -> list[int]:
    found = []
    for _ in range(times):
        found.append(looped(trip(here)).cooldown_s)
        here.clock.advance(found[-1])
    return found


def test_each_further_cooldown_doubles_up_to_its_maximum() -> None:
    """30, 60, 120, 240, 480, then 900 for good (LD-2)."""
    here = tailed()
    assert cooldowns(here, 8) == [30, 60, 120, 240, 480, 900, 900, 900]
    assert [data["cooldown_seconds"] for data in here.named(LOOP_DETECTED)] == [30, 60, 120, 240, 480, 900, 900, 900]


def test_growth_is_forgotten_after_quiet() -> None:
    """As much quiet as the longest cooldown, and it starts at the beginning; a second less, and it does not (LD-2)."""
    for quiet, expected in ((899, 120), (900, 30)):
        here = tailed()
        cooldowns(here, 2)
        here.clock.advance(quiet)
        assert looped(trip(here)).cooldown_s == expected


def test_a_request_in_between_is_not_quiet() -> None:
    """Only silence makes it forget (LD-2)."""
    here = tailed()
    cooldowns(here, 2)
    for _ in range(3):
        here.clock.advance(600)
        assert here.decide(chat()).allowed
    here.clock.advance(61)
    assert looped(trip(here)).cooldown_s == 120


def test_growth_one_is_flat() -> None:
    """As in the systems this comes from (LD-2)."""
    assert cooldowns(tailed(cooldown_growth=1), 4) == [30, 30, 30, 30]
    assert cooldowns(tailed(cooldown_growth=1.5, cooldown_max_seconds=60), 4) == [30, 45, 60, 60]


def test_max_hits_0_disables() -> None:
    """And the policy still decides: the built-in block does not come back in through the back door (LD-2)."""
    here = world(bundle(policy("p", loop=tail(max_hits=0)), defaults={}))
    assert here.decide(chat(), 50).allowed


def test_the_window_slides() -> None:
    """A true sliding window: six in 60 s wherever they fall, and a hit leaves exactly 60 s after it came (LD-2)."""
    here = tailed()
    for second in (0, 50, 55, 58, 59):
        here.clock.advance(second - (here.clock.now() - 1_800_000_000))
        assert here.decide(chat()).allowed
    here.clock.advance(1)  # at 60 s the first is out
    assert here.decide(chat()).allowed
    here.clock.advance(49)  # at 109 s: 50 .. 60 are in, this is the sixth
    assert not here.decide(chat()).allowed


def test_no_cooldown_blocks_by_the_window() -> None:
    """With `cooldown_seconds: 0` the count itself keeps blocking, for the window (LD-2)."""
    here = tailed(cooldown_seconds=0)
    assert trip(here).retry_after_s == 60
    assert not here.decide(chat()).allowed
    here.clock.advance(60)
    assert here.decide(chat()).allowed


CALL = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "nothing found"}


def with_ids(number: int) -> Call:
    made = {**CALL, "id": f"call_{number}"}
    result = {**RESULT, "tool_call_id": f"call_{number}"}
    return chat(user("go"), {"role": "assistant", "content": None, "tool_calls": [made]}, result)


SAME: dict[str, Callable[[int], Call]] = {
    "growing history": lambda n: chat(*[user(f"old {i}") for i in range(n)], user("a"), user("b"), user("c")),
    "case and white space": lambda n: chat(user(["Do it", " do   it\n", "DO IT", "do\tit", "dO iT ", "do it"][n])),
    "tool call ids": with_ids,
    "multimodal text": lambda n: chat(user("do it" if n % 2 else [{"type": "text", "text": "Do it"}])),
    "other fields": lambda n: chat(user("x"), headers={"authorization": "Bearer sk-one", "x-request": str(n)}),
}


@pytest.mark.parametrize("name", SAME)
def test_what_tail_takes_for_the_same(name: str) -> None:
    """Only the last messages count, without case, white space and ids; list contents are read (LD-2)."""
    here = tailed()
    verdicts = [here.decide(SAME[name](number)) for number in range(6)]
    assert [verdict.allowed for verdict in verdicts] == [True] * 5 + [False]


OTHER: dict[str, Callable[[int], Call]] = {
    "text": lambda n: chat(user(f"question {n}")),
    "role": lambda n: chat({"role": ["user", "system", "assistant", "tool", "developer", "other"][n], "content": "x"}),
    "model": lambda n: chat(model=f"m{n}"),
    "caller": lambda n: chat(headers={"authorization": f"Bearer sk-{n}"}),
    "agent": lambda n: chat(headers={"authorization": "Bearer sk-one", "x-agent-id": f"a{n}"}),
    "third last message": lambda n: chat(user(f"a{n}"), user("b"), user("c")),
    "tool arguments": lambda n: chat(
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": f'{{"n": {n}}}'}}]}
    ),
    "tool name": lambda n: chat(
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": f"f{n}", "arguments": "{}"}}]}
    ),
    "tool result": lambda n: chat(user("go"), {**RESULT, "content": f"page {n}"}),
    "image": lambda n: chat(user([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{n}"}}])),
}


@pytest.mark.parametrize("name", OTHER)
def test_what_tail_takes_for_different(name: str) -> None:
    """A different caller, agent, model, role, text, tool call or result is another request (LD-2, LD-6)."""
    here = tailed()
    assert all(here.decide(OTHER[name](number)).allowed for number in range(6))


def test_tail_messages_is_settable() -> None:
    """With 1, only the last message counts; with 5, the fifth last does (LD-2)."""
    here = tailed(tail_messages=1)
    assert not all(here.decide(chat(user(f"a{n}"), user("c"))).allowed for n in range(6))
    here = tailed(tail_messages=5)
    assert all(here.decide(chat(user(f"a{n}"), *[user("b")] * 4)).allowed for n in range(6))


def messages_read(engine: Engine) -> int:
    """Return how many messages of a long request the engine has decoded to decide it."""
    asked = chat(*[user(f"m{number}") for number in range(30)])
    engine.decide(asked)
    assert asked.parsed.chat
    return len(asked.parsed.chat.tail)


def test_compiling_a_bundle_changes_nothing_for_the_one_in_force() -> None:
    """How many messages are decoded is up to the bundle in force, and goes down again with the next one (Q-1, LD-2)."""
    here = world()
    wide = bundle(policy("p", loop=tail(tail_messages=20)))
    assert messages_read(here.engine) == 4
    compiled(wide, here.descriptors)
    assert messages_read(here.engine) == 4
    here.use(wide)
    assert messages_read(here.engine) == 21
    here.use(None)
    assert messages_read(here.engine) == 4


def test_engines_that_share_descriptors_each_read_what_their_own_bundle_needs() -> None:
    """Bundles are compared side by side (LD-2, X-5)."""
    wide, narrow = world(), world()
    other = Engine(MemoryStore(), wide.clock, wide.descriptors)
    wide.use(bundle(policy("p", loop=tail(tail_messages=5, max_hits=2))))
    other.set_bundle(compiled(bundle(policy("p", loop=tail(tail_messages=1, max_hits=2))), wide.descriptors))
    allowed = []
    for number in range(6):
        asked = [{"role": "system", "content": f"a{number}"}, *[user("b")] * 4]
        allowed.append((wide.engine.decide(chat(*asked)).allowed, other.decide(chat(*asked)).allowed))
    assert allowed == [(True, True), (True, True), *[(True, False)] * 4]
    assert (messages_read(wide.engine), messages_read(other)) == (6, 3)
    assert messages_read(narrow.engine) == 4


def test_what_is_no_visible_llm_request_is_not_judged_by_tail() -> None:
    """Another path, another method, a body that was not sent along (LD-2)."""
    here = tailed()
    body = chat().body
    assert here.decide(call("/v1/other", "POST", body=body), 20).allowed
    assert here.decide(call("/v1/chat/completions", "GET"), 20).allowed
    assert here.decide(call("/v1/chat/completions", "POST", body_unseen=True), 20).allowed


KEY = {"authorization": "Bearer shared"}
WORK = (
    user("count the ships"),
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "count", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "7"},
)


def tail_only() -> World:
    """The built-in `tail` by itself."""
    return world(bundle(policy("p", loop=tail())))


def of_user(name: str, field: str = "user", *, text: str = "hello") -> Call:
    body: dict[str, Any] = {"model": "gpt-x", "messages": [user(text)]}
    body |= {"metadata": {"user_id": name}} if field == "metadata" else {field: name}
    return call("/v1/chat/completions", "POST", KEY, body=json.dumps(body).encode())


def of_session(name: str, *messages: dict[str, Any], **more: Any) -> Call:
    return chat(*(messages or (user("hello"),)), headers={**KEY, "x-agent-session": name}, **more)


@pytest.mark.parametrize("data", [None, bundle(policy("p", loop=tail()))], ids=["built-in", "policy"])
def test_people_who_share_a_key_do_not_block_each_other(data: dict[str, Any] | None) -> None:
    """Sessions and end users that the client names are counted apart, each with the whole threshold (LD-2, LD-6)."""
    here = world(data)
    for name in range(12):
        assert here.decide(of_session(f"s{name}"), 5).allowed
        for field in ("user", "safety_identifier", "metadata"):
            assert here.decide(of_user(f"{field}-{name}", field)).allowed
    assert not here.decide(of_session("s3")).allowed
    assert here.decide(of_session("s-new")).allowed


@pytest.mark.parametrize("asked", [of_user("one"), of_session("one"), of_session("one", *WORK)])
def test_one_name_is_one_loop(asked: Call) -> None:
    """An agent that sends the same name all the time is found as before (LD-2)."""
    here = tail_only()
    assert here.decide(asked, 5).allowed
    assert not here.decide(asked).allowed


@pytest.mark.parametrize("field", ["x-agent-session", "x-agent-id"])
def test_an_agent_that_changes_its_name_with_each_request_is_found(field: str) -> None:
    """Later: all names of a caller together have ten times the threshold of one (LD-2)."""
    here = tail_only()
    asked = [chat(*WORK, headers={**KEY, field: f"n{number}"}, model=f"m{number % 3}") for number in range(51)]
    assert [here.decide(one).allowed for one in asked] == [True] * 50 + [False]
    assert here.decide(chat(*WORK, headers={"authorization": "Bearer other", field: "n"})).allowed
    verdict = here.decide(of_session("another", *WORK))
    assert (
        looped(verdict).evidence == "same last messages sent under different names 52 times, also while it was blocked"
    )
    assert here.decide(of_session("another", user("something else"))).allowed


def test_sessions_that_take_the_same_steps_are_no_loop() -> None:
    """A hundred agents that begin with the same task, each under a name that it keeps (LD-6)."""
    here = tail_only()
    assert all(here.decide(of_session(f"s{number}")).allowed for number in range(100))
    assert all(here.decide(of_session(f"s{number}", *WORK)).allowed for number in range(100))


def test_an_opening_is_never_blocked_for_what_other_sessions_sent() -> None:
    """Whoever may send a prompt cannot block it for everybody (LD-6)."""
    here = tail_only()
    assert all(here.decide(of_session(f"s{number}")).allowed for number in range(500))


# -- actions -----------------------------------------------------------------------------------------------------------


def test_warn_allows_and_tells() -> None:
    """Allow, header, event once (LD-5)."""
    here = world(bundle(policy("p", loop=exact(2, action="warn"))))
    here.decide(call())
    verdict = here.decide(call(), 5)
    assert verdict.allowed
    assert (verdict.warning, verdict.delay_ms, verdict.note) == ("loop_detected", 0, "")
    assert looped(verdict).hit_count == 6
    (event,) = here.named(LOOP_DETECTED)
    assert event["action"] == "warn"
    assert event["hit_count"] == 2
    assert event["fingerprint"] == looped(verdict).fingerprint


def test_steer_allows_with_a_note() -> None:
    """Where a body cannot be changed it is `warn` with the note in the verdict (LD-5)."""
    here = world(bundle(policy("p", loop=exact(2, action="steer"))))
    assert here.decide(call()).note == ""
    verdict = here.decide(call(), 2)
    assert verdict.allowed
    assert verdict.note.startswith("You have sent the same request 3 times")
    assert verdict.note.isascii()
    assert verdict.note.isprintable()


STEPS_OF_A_RUN = {"max_steps_per_run": 3, "land_at_percent": 90}
LANDED = "For this turn, tools are switched off: give your final answer now, with what you have. Say what is missing."


@pytest.mark.parametrize("block", [exact(3, action="land"), tail(max_hits=2, action="land")])
def test_land_lets_the_model_finish(block: dict[str, Any]) -> None:
    """Two calls of the session pass with a note and without tools, and further ones are denied (LD-10)."""
    here = world(bundle(policy("p", loop=block)))
    verdicts = [here.decide(chat()) for _ in range(6)]
    assert [verdict.allowed for verdict in verdicts] == [True] * 4 + [False] * 2
    assert [verdict.landed for verdict in verdicts] == [False, False, True, True, False, False]
    assert verdicts[2].note == f"You have sent the same request 3 times without progress. {LANDED}"
    assert (verdicts[2].warning, looped(verdicts[3]).action) == ("loop_detected", "land")
    assert (verdicts[4].note, looped(verdicts[4]).action, verdicts[4].reason) == ("", "reject", "loop_detected")
    told = [event["action"] for event in here.named(LOOP_DETECTED)]
    assert told == (["land", "reject"] if "max_hits" in block else ["land"])  # a cooldown is told when it begins


def test_each_session_is_landed_for_itself() -> None:
    """Under other names it is the caller's count that is reached (LD-10)."""
    here = world(bundle(policy("p", loop=tail(max_hits=1, action="land", land_calls=1))))
    for session in ("a", "b"):
        verdicts = [here.decide(chat(headers={"x-agent-session": session})) for _ in range(3)]
        assert [(verdict.allowed, verdict.landed) for verdict in verdicts] == [
            (True, False), (True, True), (False, False),
        ]  # fmt: skip


def test_a_denial_of_another_rule_is_no_landing() -> None:
    """The client gets one answer (LD-10)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=2), loop=exact(2, action="land"))))
    here.decide(chat())
    assert here.decide(chat()).landed
    denied = here.decide(chat())
    assert (denied.allowed, denied.landed, denied.note, denied.reason) == (False, False, "", "token_bucket_exceeded")


def test_the_warning_of_a_landing_says_what_it_is_for() -> None:
    """Of a budget, although a loop is warned of as well; of a loop, although a budget is nearly used up (LD-10, A-4)."""
    stages = [{"threshold_percent": 50, "action": "land"}, {"threshold_percent": 100, "action": "reject"}]
    spent = budget(100, 25, staged_actions=stages)
    here = world(bundle(policy("p", spent, loop=exact(2, action="warn"))))
    assert [here.decide(chat()).warning for _ in range(2)] == ["", "budget_land"]
    here = world(bundle(policy("p", spent, loop=exact(2, action="land"))))
    assert [here.decide(chat()).warning for _ in range(2)] == ["", "loop_detected"]
    here = world(bundle(policy("p", loop=exact(2, action="warn")), agents={"a": STEPS_OF_A_RUN}))
    verdicts = [here.decide(chat(headers={"x-agent-id": "a", "x-agent-session": "s"})) for _ in range(3)]
    assert [one.warning for one in verdicts] == ["", "loop_detected", "run_land"]
    assert verdicts[2].note.startswith("90 % of the steps of this run are used.")


def test_landing_in_shadow_is_only_recorded() -> None:
    """What would have been done (LD-10, S-2)."""
    here = world(bundle(policy("p", loop=exact(2, action="land"), mode="shadow")))
    verdicts = [here.decide(chat()) for _ in range(5)]
    assert all(verdict.allowed and not verdict.landed and not verdict.note for verdict in verdicts)
    assert [found.action for verdict in verdicts for found in verdict.shadow] == ["land", "land", "deny", "deny"]


def test_kill_rejects() -> None:
    """`kill` is at least a rejection (LD-5)."""
    here = world(bundle(policy("p", loop=exact(2, action="kill"))))
    assert not here.decide(call(), 2).allowed
    assert here.named(LOOP_DETECTED)[0]["action"] == "kill"


@pytest.mark.parametrize(
    ("step", "allowed"), [("warn", True), ("steer", True), ("throttle", True), ("land", True), ("reject", False)]
)
def test_a_ladder_acts_by_its_block_step(step: str, allowed: bool) -> None:
    """Hits of `exact` and `tail` are severity `block` (LD-5)."""
    for block in (
        exact(2, ladder={"notice": "warn", "block": step, "stop": "kill"}),
        tail(max_hits=1, ladder={"block": step}),
    ):
        here = world(bundle(policy("p", loop=block)))
        verdict = here.decide(chat(), 2)
        assert verdict.allowed is allowed
        assert looped(verdict).action == step


def test_an_action_that_does_not_block_has_no_cooldown() -> None:
    """A throttled tail goes on counting, and slows down more and more (LD-5, LD-2)."""
    here = tailed(action="throttle")
    here.decide(chat(), 5)
    assert [here.decide(chat()).delay_ms for _ in range(3)] == [600, 700, 800]
    here.clock.advance(31)  # longer than the cooldown that a block would have had
    assert here.decide(chat()).delay_ms == 900


def test_deny_status_is_the_policys() -> None:
    """`deny_status` changes the status of loop denials too (A-1)."""
    here = world(bundle(policy("p", loop=exact(2), deny_status=403)))
    assert here.decide(call(), 2).status == 403


VERCEL, OPENAI = {"user-agent": "ai/7.0.170"}, {"user-agent": "OpenAI/Python 2.54.0"}


def test_a_loop_has_a_status_of_its_own() -> None:
    """That of the block, else that of the policy, else the one that ends the run in the client; `Retry-After` goes with
    a 429 (A-2, A-7)."""

    def status(headers: dict[str, str], block: int | str | None = None, **more: Any) -> tuple[int, int | None]:
        here = world(bundle(policy("p", loop=exact(2, deny_status=block), **more)))
        verdict = here.decide(call(headers=headers), 2)
        return verdict.status, verdict.retry_after_s

    assert status(VERCEL) == (400, None)
    assert status(OPENAI) == status({}) == (429, 60)
    assert status(VERCEL, block=429) == (429, 60)
    assert status(OPENAI, block=422, deny_status=403) == (422, None)
    assert status(VERCEL, block="auto", deny_status=403) == (400, None)


def test_limits_keep_their_status() -> None:
    """Waiting helps there, whatever the client (A-7)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=1))))
    verdict = here.decide(call(headers=VERCEL), 2)
    assert (verdict.status, verdict.retry_after_s) == (429, 1)


def test_a_step_that_comes_again_while_it_is_blocked_ends_the_run() -> None:
    """The SDK does not retry, so a framework above it does. A message of a person may be repeated (A-7)."""
    calling: dict[str, Any] = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
    }
    result = {"role": "tool", "tool_call_id": "1", "content": "nothing"}
    here = world(bundle(defaults={"loop_detection": [{"similarity": "tail"}, {"similarity": "steps"}]}))
    denied: list[int] = []
    for turn in range(1, 9):
        verdict = here.decide(chat(user("go"), *[calling, result] * min(turn, 5), headers=OPENAI))
        denied += [] if verdict.allowed else [verdict.status]
    assert denied[:2] == [429, 400]
    person = world(bundle(defaults={"loop_detection": [{"similarity": "tail"}, {"similarity": "steps"}]}))
    verdicts = [person.decide(chat(user("again"), headers=OPENAI)) for _ in range(9)]
    assert {verdict.status for verdict in verdicts if not verdict.allowed} == {429}


def test_events_carry_no_prompt() -> None:
    """An event tells hashes and counts (Y-1)."""
    here = tailed()
    secret = "canary-7f3a"
    here.decide(chat(user(secret)), 6)
    assert here.named(LOOP_DETECTED)
    assert secret not in json.dumps([dict(event.data) for event in here.events])


def test_a_shadow_policy_is_no_cover() -> None:
    """An LLM call that only a policy in shadow looks at is judged by the default, or shadow would be seen
    (B-6, E-1)."""
    asked = chat(user("again"))
    for mode, allowed in (("shadow", False), ("enforce", True)):
        here = world(bundle(policy("p", loop=exact(100), mode=mode), defaults={"loop_detection": exact(3)}))
        assert here.decide(asked, 3).allowed is allowed

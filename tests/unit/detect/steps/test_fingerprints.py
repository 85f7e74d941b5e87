"""Fingerprints of a step (LD-4)."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b

import pytest

from breakloop.detect.fingerprint import Fingerprinter
from breakloop.detect.steps.fingerprints import (
    ACK,
    CHANGES,
    EMPTY,
    ERROR,
    OK,
    RATE,
    RUNS,
    UNKNOWN,
    UNSEEN,
    StepFingerprinter,
    bad,
    canonical,
    changes,
    content_words,
    done,
    good,
    is_answer_elsewhere,
    loose,
    paired,
    refuses,
    tells,
)
from breakloop.model.call import Result, Step, ToolCall
from tests.each import each
from tests.unit.detect.steps.stepping import called, prints

LONG = "a result with several words in it, long enough to be of some interest, and then some more"


def printer(key: bytes = b"k") -> StepFingerprinter:
    return StepFingerprinter(lambda data: blake2b(data, digest_size=8, key=key).digest())


def step(
    *calls: ToolCall, results: tuple[Result, ...] = (), ids: tuple[str, ...] = (), tools: tuple[str, ...] = ()
) -> Step:
    return Step("", calls, ids, results, (), tools, 1, 1)


def one(arguments: str = "{}", result: Result | None = None, name: str = "look", tools: tuple[str, ...] = ()) -> Step:
    return step(ToolCall(name, arguments), results=(result,) if result else (), tools=tools)


@pytest.mark.parametrize(("size", "same"), [(80, False), (81, True)])
def test_times_in_short_results(size: int, same: bool) -> None:
    """In a result of up to 80 bytes, the time may be what was asked for (LD-4)."""
    texts = [f"{'x' * (size - 9)} 12:00:0{second}" for second in (1, 2)]
    assert [len(text) for text in texts] == [size] * 2
    one, other = [prints(called(text=text)).pairs[0].r for text in texts]
    assert (one == other) is same


_LONG_BEFORE = b"-" * 9 + (b"w" * 20 + b"-" * 9) * 5  # as much as may come before a refusal


@each(
    "found, expected",
    [
        (lambda: content_words("y " * 1498 + "abcdefg")[-1], b"abcd"),  # 3000 characters are read
        (lambda: content_words("abc abcd 12 x1")[:2], [b"abcd", b"12"]),
        (lambda: refuses(_LONG_BEFORE + b"revise"), True),  # of 160 bytes
        (lambda: refuses(_LONG_BEFORE + b"refused"), False),
        (lambda: refuses(b"error: " + b"x" * 393), True),  # 400 bytes
        (lambda: refuses(b"error: " + b"x" * 394), False),
        (lambda: bad(b"x" * 396 + b" 429"), RATE),
        (lambda: bad(b"x" * 397 + b" 429"), ERROR),
        (lambda: bad(b"x" * 388 + b"unknown tool"), UNKNOWN),
        (lambda: bad(b"x" * 389 + b"unknown tool"), ERROR),
        (lambda: good(b"ok " + b"x" * 57), ACK),
        (lambda: good(b"ok " + b"x" * 58), OK),
        (lambda: loose(b" " * 1999 + b"12345"), b" " * 1999 + b"#2345"),
        (lambda: changes(RUNS, b" " * 3990 + b"git commit"), True),
        (lambda: changes(RUNS, b" " * 3991 + b"git commit"), False),
        (lambda: changes(CHANGES, b" " * 3987 + b'"mode": "open"'), False),
        (lambda: changes(CHANGES, b" " * 3988 + b'"mode": "open"'), True),
        (lambda: _done("failed, " + "x" * 189 + " ok"), True),  # of 200 bytes
        (lambda: _done("failed, " + "x" * 190 + " ok"), False),
        (lambda: tells(prints(called(text="x" * 80)).incoming[0], failed=False), True),
        (lambda: tells(prints(called(text="x" * 79)).incoming[0], failed=False), False),
        (lambda: _error("x" * 1999 + "y") == _error("x" * 2000), False),  # 2000 bytes
        (lambda: _error("x" * 2000 + "y") == _error("x" * 2000), True),
    ],
)
def test_how_much_of_a_text_is_read(found: Callable[[], object], expected: object) -> None:
    """Up to a bound, and not a byte more (Y-2)."""
    assert found() == expected


def _done(text: str) -> bool:
    return done(prints(called(text=text, name="save_file")).pairs[0])


def _error(text: str) -> bytes:
    return prints(called(text=text, error=True)).pairs[0].e


def test_canonical() -> None:
    """One spelling; volatile keys go, wherever they are; what is no JSON stays (LD-4)."""
    assert canonical('{ "b":1, "a":{"nonce":1,"x":[{"ts":2}]} }') == b'{"a":{"x":[{}]},"b":1}'
    assert canonical("{broken") == b"{broken"
    assert canonical("ls -la") == b"ls -la"
    assert canonical("[" * 5000) == b"[" * 5000


COMMENTED = (
    "ls build  # the first look", "ls build # once more, with feeling", "ls build #2", "ls build ",
)  # fmt: skip
OTHER_COMMANDS = (
    "ls build; ls src", "echo 'a # b' > one", "echo 'a # b' > two", 'echo "# c" > three', "sed s#a#b# file", "curl x#y",
)  # fmt: skip


def test_comments_do_not_distinguish_commands() -> None:
    """They are for a reader; in quotes or inside a word, # is no comment (LD-4)."""

    def a(command: str, name: str = "bash") -> bytes:
        return printer().step(one(json.dumps({"command": command}), name=name)).pairs[0].a

    assert len({a(command) for command in COMMENTED[:3]}) == 1
    assert len({a(f"{comment}\nls src") for comment in COMMENTED}) == 2
    assert len({a(f"ls\n# {at}\nls src") for at in range(3)}) == 1
    assert len({a(command) for command in OTHER_COMMANDS}) == len(OTHER_COMMANDS)
    assert len({a(command, name="post") for command in COMMENTED}) == len(COMMENTED)


def test_results_belong_to_calls_by_id_else_by_order() -> None:
    """Parallel results may come in any order (LD-4)."""
    a, b = ToolCall("a", "{}"), ToolCall("b", "{}")
    first, second = Result("1", call_id="x"), Result("2", call_id="y")
    assert paired(step(a, b, results=(second, first), ids=("x", "y"))) == [(a, first, 1), (b, second, 0)]
    assert paired(step(a, b, results=(Result("1"),))) == [(a, Result("1"), 0), (b, None, -1)]
    assert paired(step(a, results=(second,), ids=("x",))) == [(a, None, -1)]
    c = ToolCall("c", "{}")
    for ids in (("y", "x", "z"), ("y", "x")):
        found = paired(step(a, b, c, results=(first, second), ids=ids))
        assert found == [(a, second, 1), (b, first, 0), (c, None, -1)]


def test_one_call_is_read_as_several_are() -> None:
    """A call has the same fingerprints alone and beside another one, with its result and without (LD-4)."""
    two = (ToolCall("look", '{"q": 1}'), ToolCall("read", '{"q": 2}'))
    for result in (
        Result("found it", False, "a"),
        Result("boom", True, "a", ("image/png:1",)),
        Result("lost", False, "b"),
    ):
        step = Step("", two[:1], ("a",), (result,), (), (), 2, 100)
        beside = step._replace(calls=two, call_ids=("a", "c"), results=(result, Result("other", False, "c")))
        assert prints(step).pairs[0] == prints(beside).pairs[0]


def test_how_long_an_acknowledgement_is() -> None:
    """Sixty bytes, with single spaces; a longer text says something (LD-4)."""
    for text, kind in (("done " + "x" * 55, ACK), ("done " + "x" * 56, OK), ("done,  " + "x" * 54, ACK)):
        assert prints(called(text=text)).pairs[0].kind == kind, text


@each("result, kind", [
    (Result(LONG), OK), (Result("done"), ACK), (Result(""), EMPTY), (Result("[]"), EMPTY),
    (Result("exit code: 0"), EMPTY), (Result("<result>\n\n</result>"), EMPTY),
    (Result("Process exited with code 0"), EMPTY), (Result("0"), OK), (Result("<b>x</b>"), OK),
    (Result("boom", error=True), ERROR), (Result("429 Too Many Requests", error=True), RATE),
    (Result("Unknown tool: serch", error=True), UNKNOWN), (Result("Error: the word alone, as a result may say it, is none; and more"), OK),
    (Result("<returncode>0</returncode>\n<output>x</output>\nand more"), OK),
    (Result("3 passed, 0 failed, error: none of the tests " + LONG), OK), (Result("", media=("image/png 4K",)), OK),
])  # fmt: skip
def test_klass(result: Result, kind: int) -> None:
    """What is bad was read by `wire` from flags and forms; words do not make it so (LD-4)."""
    assert printer().step(one(result=result)).pairs[0].kind == kind


def test_a_result_is_part_of_the_identity() -> None:
    """Same call and result, same round; another result, another round (LD-4)."""
    make = printer()
    same, again = make.step(one("{}", Result(LONG))), make.step(one(" { }", Result(LONG + " ")))
    assert same.round == again.round
    other = make.step(one("{}", Result(LONG + " more")))
    assert same.pairs[0].a == other.pairs[0].a
    assert same.round != other.round
    assert printer(b"other").step(one("{}", Result(LONG))).round != same.round


def test_volatile_parts_of_a_result_go() -> None:
    """A time in a result makes no other result; a count does (LD-4)."""
    make = printer()
    first, second, third = (
        make.step(one("{}", Result(f"{LONG} at 10:00:0{n} with {m} items"))) for n, m in ((1, 5), (2, 5), (3, 6))
    )
    assert first.round == second.round != third.round


def test_a_wait_changes_nothing() -> None:
    """Whatever the name of the tool says (LD-4)."""
    for name, arguments, changing in (
        ("set_timer", '{"seconds": 60}', False),
        ("write_stdin", '{"chars": ""}', False),
        ("write_stdin", '{"chars": "y"}', True),
        ("write_file", "{}", True),
    ):
        assert prints(called(arguments, name=name)).pairs[0].changes is changing, name


def test_digests_of_words_depend_on_the_secret() -> None:
    """Nobody can guess words from a stored window (Y-1)."""
    seeds = [StepFingerprinter(Fingerprinter(secret).short).seed for secret in (b"one", b"two")]
    assert seeds[0] != seeds[1]
    assert all(0 < seed < 1 << 32 for seed in seeds)


def test_rounds_have_no_order() -> None:
    """A round is the set of its calls with their results (LD-4)."""
    make = printer()
    a, b = ToolCall("a", "{}"), ToolCall("b", "{}")
    one_way = make.step(step(a, b, results=(Result("1"), Result("2"))))
    assert one_way.round == make.step(step(b, a, results=(Result("2"), Result("1")))).round
    assert one_way.round != make.step(step(a, b, results=(Result("2"), Result("1")))).round
    assert one_way.round == make.of(b"".join(sorted(pair.a + pair.r for pair in one_way.pairs)))  # in any process


def test_unseen_and_unknown() -> None:
    """A call without a result is not judged by it; one that fails and is not declared is unknown (LD-4)."""
    make = printer()
    assert make.step(one()).pairs[0].kind == UNSEEN
    assert make.step(one(result=Result("boom", error=True), tools=("other",))).pairs[0].kind == UNKNOWN
    assert make.step(one(result=Result("boom", error=True), tools=("look",))).pairs[0].kind == ERROR
    assert make.step(one(result=Result(LONG), tools=("other",))).pairs[0].kind == OK
    assert make.step(one(result=Result(LONG), tools=("look",))).pairs[0].kind == OK


def test_errors_and_media() -> None:
    """Errors are compared by their form; images by type and digest (LD-4)."""
    make = printer()
    first, second = (make.step(one("{}", Result(f"no such file '/tmp/{n}'", error=True))).pairs[0] for n in "ab")
    assert first.e == second.e != bytes(4)
    assert first.r != second.r
    first, second = (make.step(one("{}", Result("shot", media=(f"image:{key}",)))).pairs[0] for key in "ab")
    assert first.r != second.r


def test_sizes_are_bytes() -> None:
    """Evidence speaks of bytes (A-3)."""
    assert printer().step(one("{}", Result("äöü"))).pairs[0].size == 6


def test_text_steps() -> None:
    """Where nothing is called, what was said and answered is the step (LD-4)."""
    make = printer()
    talk = Step("hello there", (), (), (), ("go on",), (), 2, 2)
    prints = make.step(talk)
    assert prints.pairs == ()
    assert prints.said == make.incoming("hello  there").key
    assert prints.users == (make.incoming("go on").key,)
    assert prints.round != make.step(talk._replace(users=("stop",))).round
    assert len(prints.words) == 2


@pytest.mark.parametrize(("before", "after"), [
    ("running, 300 s left", "running, 295 s left"),
    ("next free slot: 2026-03-01 18:30", "next free slot: 2026-03-01 19:30"),
    ("123e4567-e89b-12d3-a456-426614174000", "223e4567-e89b-12d3-a456-426614174000"),
    ("stopped at 0x401000", "stopped at 0x401004"),
])  # fmt: skip
def test_short_results_are_what_they_say(before: str, after: str) -> None:
    """A time or an id may be the whole of a result; in a longer one, and in an error, it is noise (LD-4)."""
    made = printer()

    def same(*, error: bool = False) -> bool:
        first, second = (made.step(one(result=Result(text, error))).pairs[0] for text in (before, after))
        return first.r == second.r

    assert not same()
    assert same(error=True)
    before, after = f"{LONG} {before}", f"{LONG} {after}"
    assert same()


def test_results_without_calls_are_told_apart() -> None:
    """With `previous_response_id` a request holds nothing but results (LD-4)."""
    made = printer()
    rounds = [made.step(step(results=(Result(text),))).round for text in ("first", "second", "first")]
    assert rounds[0] == rounds[2] != rounds[1]
    alone = step(results=(Result("x"),))
    assert is_answer_elsewhere(alone)
    assert not is_answer_elsewhere(alone._replace(said="I looked."))
    assert not is_answer_elsewhere(one(result=Result("x")))
    assert not is_answer_elsewhere(step())


@pytest.mark.parametrize(("text", "failed", "told"), [
    (LONG, False, True),
    ("short", False, False),
    ("short", True, True),
    ("The file was written to the workspace of the project; you can now go on with the next step of the plan.", False, False),
])  # fmt: skip
def test_what_tells_that_nothing_was_changed(text: str, failed: bool, told: bool) -> None:
    """Of a call that is not seen only what came back can tell (LD-4)."""
    assert tells(printer().incoming(text), failed=failed) == told


@pytest.mark.parametrize(("name", "shown"), [
    ("search", "search"), ("web.search-2", "web.search-2"), ("suche_größe", "suche_größe"), ("Ask the user", ""),
    ("tell Jane Doe her SSN 078-05-1120", ""), ("078-05-1120", ""), ("x" * 49, ""), ("", ""),
])  # fmt: skip
def test_actions_in_words_have_no_name(name: str, shown: str) -> None:
    """What stands in the place of a tool's name in a text may be anything that the model wrote (Y-1)."""
    asked = one(result=Result(LONG), name=name, tools=("look",))
    assert printer().step(asked._replace(as_text=True)).pairs[0].tool.name == shown
    assert printer().step(asked).pairs[0].tool.name == name
    declared = asked._replace(as_text=True, tools=("look", name))
    assert printer().step(declared).pairs[0].tool.name == name


@each("text, refused", [
    ("Error: no such file", True), ("[error] No replacement was performed", True), ("Permission denied", True),
    ("cannot write", True), ("not allowed here", True), ("The file was written.", False), ("Error log updated.", False),
    ("0 errors", False), ("1 file changed, all errors fixed", False),
])  # fmt: skip
def test_a_change_that_is_refused_in_words(text: str, *, refused: bool) -> None:
    """A result that opens with words of failure is no change, and no error either (LD-4)."""
    (pair,) = prints(called('{"path": "a"}', text, name="write_file")).pairs
    assert (pair.changes, done(pair), pair.failed) == (True, not refused, False)
    (look,) = prints(called("{}", text)).pairs
    assert not done(look)


def test_the_digest_of_an_answer_is_kept_for_the_next_request() -> None:
    """It is the same as without, and few are kept."""
    first, second = printer(), printer()
    text = "Looked at it for 3.2 seconds."
    key = first.said(text)
    asked = Step(text, (), (), (), (), (), 1, 1)
    assert key == second.answer(asked).said == first.answer(asked).said
    for number in range(2000):
        first.said(f"answer {number}")
    assert len(first._said) <= 1000


@each("size", [80, 256, 257])
def test_an_answer_that_comes_back_as_a_result(size: int) -> None:
    """It has the same digest, whatever its length: what an agent reports that was called as a tool is known (LD-4)."""
    text = "x" * size
    assert printer().incoming(text).key == printer().result(text).key


@each("size", [30, 256, 257])
def test_a_number_that_is_masked(size: int) -> None:
    """The call has the masked form of one with `#` in its place, whatever its length (LD-4)."""
    before = 'look\0{"page":"#","of":"'
    rest = "x" * (size - len(before) - 2)
    forms = {prints(called(f'{{"page":"{page}","of":"{rest}"}}')).pairs[0].loose_a for page in "#7"}
    assert len(forms) == 1

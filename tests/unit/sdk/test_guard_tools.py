"""`@guard.tool`: warned, then stopped; not carried out again while blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from breakloop import Guard, LoopDetectedError
from breakloop.clock import FakeClock
from breakloop.dialects.steps import without_additions


@pytest.fixture
def guard(clock: FakeClock) -> Guard:
    return Guard(clock=clock)


def test_a_looping_tool_is_warned_then_stopped(guard: Guard, clock: FakeClock) -> None:
    """The note stands in the result, then an error; the tool has run five times, and not once more (D-4, LD-5)."""
    ran: list[str] = []

    @guard.tool
    def search(query: str) -> str:
        """Look it up."""
        ran.append(query)
        return "nothing found"

    with guard.run(agent="a"):
        results = [search("x") for _ in range(4)]
        assert results[:2] == ["nothing found"] * 2
        assert all("You repeat yourself: `search`" in one for one in results[2:])
        assert [without_additions(one) for one in results] == ["nothing found"] * 4
        for _ in range(3):
            with pytest.raises(LoopDetectedError, match="recursive_loop_detected"):
                search(query="x")
        assert len(ran) == 5
        assert search("y")
        assert len(ran) == 6
    assert (search.__name__, search.__doc__) == ("search", "Look it up.")


def test_after_the_cooldown_it_may_run_once(guard: Guard, clock: FakeClock) -> None:
    """The same passes once; what is new then is progress (LD-4)."""
    answers = ["busy"] * 5 + ["done"]

    @guard.tool(on_block="return")
    def take() -> str:
        return answers.pop(0)

    with guard.run():
        said = [take() for _ in range(6)]
        assert said[4].startswith("Blocked: `take` returned the same 4 bytes 5 times")
        assert said[5].endswith("(recursive_loop_detected)")
        assert answers == ["done"]
        clock.advance(120)
        assert take() == "done"


def test_async_tools(guard: Guard) -> None:
    """The same on an event loop (D-4)."""
    ran = 0

    @guard.tool(name="look_up", on_block="return")
    async def search(query: str) -> str:
        nonlocal ran
        ran += 1
        return "nothing found"

    async def agent() -> list[str]:
        async with guard.run():
            return [await search("x") for _ in range(7)]

    said = asyncio.run(agent())
    assert "`look_up` returned the same" in said[2]
    assert [one.startswith("Blocked") for one in said] == [False] * 4 + [True] * 3
    assert ran == 5


def test_errors_of_a_tool_are_its_own(guard: Guard) -> None:
    """They go on as they are, with the note; then the loop is the error (D-4)."""

    @guard.tool
    def fetch(url: str) -> str:
        raise ValueError("no such host")

    with guard.run():
        notes = []
        for _ in range(3):
            with pytest.raises(ValueError, match="no such host") as caught:
                fetch("u")
            notes.append(getattr(caught.value, "__notes__", []))
        with pytest.raises(LoopDetectedError) as stopped:
            fetch("u")
    assert [bool(one) for one in notes] == [False, True, True]
    assert isinstance(stopped.value.__cause__, ValueError)


def test_async_errors_of_a_tool(guard: Guard) -> None:
    """With `on_block="return"` the model reads the note (D-4)."""

    @guard.tool(on_block="return")
    async def fetch(url: str) -> str:
        raise ValueError("no such host")

    async def agent() -> str:
        async with guard.run():
            for _ in range(3):
                with pytest.raises(ValueError, match="no such host"):
                    await fetch("u")
            await fetch("u")
            return await fetch("u")

    assert asyncio.run(agent()).startswith("Blocked")


def test_healthy_tools_are_left_alone(guard: Guard, clock: FakeClock) -> None:
    """Results come back as the very objects that they are (LD-4)."""
    rows = [{"row": number} for number in range(30)]

    @guard.tool
    def row(number: int, *more: int, **named: int) -> dict[str, int]:
        return rows[number]

    with guard.run():
        for number in range(30):
            assert row(number, 1, x=2) is rows[number]
            clock.advance(2)


def test_results_that_are_no_text_are_not_touched(guard: Guard) -> None:
    """A notice has no place in them; the block still comes (D-4)."""

    @guard.tool
    def shelf() -> dict[str, str]:
        return {"holds": "lamps"}

    with guard.run():
        assert [shelf() for _ in range(4)] == [{"holds": "lamps"}] * 4
        with pytest.raises(LoopDetectedError):
            shelf()


def test_methods_and_functions_without_a_signature(guard: Guard) -> None:
    """`self` is no argument; wrong arguments are the function's own error (D-4)."""

    class Box:
        @guard.tool
        def get(self, key: str) -> str:
            return "same"

    with guard.run():
        for _ in range(4):
            Box().get("a")  # another box each time
        with pytest.raises(LoopDetectedError):
            Box().get("a")
    with guard.run():
        wrong: Callable[..., str] = Box().get
        with pytest.raises(TypeError, match="key"):
            wrong()
        assert guard.tool(max)(1, 2) == 2


def test_a_denial_further_in_goes_through(guard: Guard) -> None:
    """A tool that calls a guarded one; the loop is told once, by the one that has it (D-4)."""

    @guard.tool
    def inner() -> str:
        return "same"

    @guard.tool
    def outer(number: int) -> str:
        return inner()

    with guard.run():
        for _ in range(4):
            inner()
        with pytest.raises(LoopDetectedError) as caught:
            outer(1)
    assert caught.value.__cause__ is None
    assert "`inner`" in caught.value.evidence


def test_async_tools_in_disguise(guard: Guard) -> None:
    """A partial, or an object that is called; what it returns is awaited as it would have been (D-4)."""

    class Tool:
        async def __call__(self, query: str) -> str:
            return "nothing found"

    search = guard.tool(name="search", on_block="return")(Tool())

    async def agent() -> list[str]:
        async with guard.run():
            return [await search("x") for _ in range(6)]

    said = asyncio.run(agent())
    assert [one.startswith("Blocked") for one in said] == [False] * 4 + [True] * 2


def test_a_wrong_option_is_said_at_once(guard: Guard) -> None:
    """A wrong option is said at once (T-1)."""
    with pytest.raises(ValueError, match="on_block"):
        guard.tool(on_block="stop")(print)  # type: ignore[call-overload]


@pytest.mark.parametrize("error", [StopIteration("over"), KeyboardInterrupt()])
def test_errors_that_end_a_loop_or_a_program_pass_unchanged(guard: Guard, error: BaseException) -> None:
    """Also `StopIteration`, which a coroutine could not raise (D-4)."""

    @guard.tool
    def next_page() -> str:
        raise error

    with pytest.raises(type(error)) as caught, guard.run():
        next_page()
    assert caught.value is error
    assert guard.faults == 0

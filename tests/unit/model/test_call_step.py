"""Steps are plain values."""

from __future__ import annotations

from breakloop.model.call import Result, Step, ToolCall


def test_steps_compare_by_what_they_say() -> None:
    call = ToolCall("read", '{"path":"a"}')
    one = Step("I look.", (call,), ("c1",), (Result("text", call_id="c1"),), (), ("read",), 4, 900)
    assert one == Step("I look.", (call,), ("c1",), (Result("text", False, "c1"),), (), ("read",), 4, 900)
    assert one != one._replace(results=(Result("text", error=True, call_id="c1"),))
    assert not one.as_text

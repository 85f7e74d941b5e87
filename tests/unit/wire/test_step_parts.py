"""What the dialects share in reading a step: bounds, notes, media."""

from __future__ import annotations

import pytest

from breakloop.model.step import Result
from breakloop.wire.step_parts import TEXT_MAX, Gathered, bounded, finished, own, result, seen, sized

NOTE = "[breakloop] You repeat yourself. [/breakloop]"


def test_long_texts_keep_both_ends() -> None:
    """C-9: beginning, end and a digest of all: a change in the middle is a change."""
    text = "a" * 100_000 + "b" + "c" * 100_000
    found = bounded(text)
    assert len(found) < TEXT_MAX + 100
    assert found[:1000] == text[:1000]
    assert found[-1000:] == text[-1000:]
    assert found != bounded(text.replace("b", "d"))
    assert bounded("a" * TEXT_MAX) == "a" * TEXT_MAX


def test_notes_are_removed() -> None:
    """LD-4: our own notes never enter, wherever they stand."""
    assert own(f"same\n\n{NOTE}") == "same"
    assert own(NOTE) == ""
    assert own(f"{NOTE} and on") == "and on"
    assert own(f"one {NOTE}\ntwo {NOTE}") == "one\ntwo"
    assert own("[breakloop] no end") == "[breakloop] no end"
    assert own("[/breakloop] no beginning") == "[/breakloop] no beginning"
    far = "[breakloop]" + "x" * 5000 + "[/breakloop]"
    assert own(far) == far


def test_additions_of_harnesses_are_removed() -> None:
    assert own("<system-reminder>\nlist\n</system-reminder>") == ""
    assert own("same\n<environment_details>\n12:05\n</environment_details>") == "same"
    assert own("a </system-reminder> b") == "a </system-reminder> b"


@pytest.mark.parametrize(
    ("kind", "item", "expected"),
    [
        ("image", {"image_url": {"url": "data:image/png;base64," + "A" * 180_000}}, "image:~2^17"),
        ("image", {"source": {"type": "base64", "data": "A" * 2_000}}, "image:~2^10"),
        ("image", {"image_url": "https://example.org/a.png"}, "image:url"),
        ("audio", {"input_audio": {"data": "A" * 100, "format": "wav"}}, "audio:~2^6"),
        ("file", {}, "file:~2^0"),
    ],
)
def test_size_classes(kind: str, item: object, expected: str) -> None:
    """C-8: new bytes of about the same size are the same medium."""
    assert sized(kind, item) == expected


def test_contents() -> None:
    """C-8: text and media of a result."""
    assert seen("text") == ("text", ())
    assert seen(None) == ("", ())
    assert seen({"b": 1, "a": 2}) == ('{"a":2,"b":1}', ())
    assert seen({"type": "text", "text": "x"}) == ("x", ())
    assert seen(["a", 7, {"type": "reasoning"}, {"type": "text", "text": ""}]) == ("a\n7", ())
    assert seen([{"type": "resource", "resource": {"uri": "u", "text": "x"}}]) == ("x", ())
    assert seen([{"type": "resource", "resource": {"uri": "u", "blob": "A" * 2_000}}]) == ("", ("file:~2^10",))
    assert seen([{"type": "odd", "id": "1", "value": 2}]) == ('{"type":"odd","value":2}', ())
    assert seen(["a"] * 1001)[0].endswith("a\n<more:1>")


def test_data_in_texts() -> None:
    """C-8, LD-4: a picture that stands in a text counts by its size."""
    one, two = (f"shot: data:image/png;base64,{fill * 2_000} end" for fill in "AB")
    assert seen(one) == seen(two) == ("shot:  end", ("image:~2^10",))


def test_results() -> None:
    assert result("Error: no", 7) == Result("Error: no", error=True, call_id="7")
    assert result("fine", failed=True).error
    assert result(f"same\n\n{NOTE}") == Result("same")


def test_native_results_are_not_moved() -> None:
    """LD-4: where results came, the words of the user stay theirs, even if the answer has code in it."""
    found = Gathered()
    found.answered = True
    found.said = ["```bash\nls\n```"]
    found.results = [Result("listed")]
    found.users = [("user", "thanks"), ("user", "")]
    step = finished(found, (), 0, 5)
    assert (step.results, step.users, step.as_text) == ((Result("listed"),), ("thanks",), True)

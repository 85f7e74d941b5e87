"""What the dialects share in reading a step: bounds, notes, media."""

from __future__ import annotations

import json

import pytest
import xxhash

from breakloop.dialects.steps import (
    TEXT_MAX,
    StepBuilder,
    bounded,
    media_key,
    result,
    text_and_media,
    without_additions,
)
from breakloop.model.call import Result, ToolCall

NOTE = "[breakloop] You repeat yourself. [/breakloop]"


def test_long_texts_keep_both_ends() -> None:
    """Beginning, end and a digest of all: a change in the middle is a change (C-9)."""
    text = "a" * 100_000 + "b" + "c" * 100_000
    found = bounded(text)
    assert len(found) < TEXT_MAX + 100
    assert found[:1000] == text[:1000]
    assert found[-1000:] == text[-1000:]
    assert found != bounded(text.replace("b", "d"))
    assert bounded("a" * TEXT_MAX) == "a" * TEXT_MAX


def test_notes_are_removed() -> None:
    """Our own notes never enter, wherever they stand (LD-4)."""
    assert without_additions(f"same\n\n{NOTE}") == "same"
    assert without_additions(NOTE) == ""
    assert without_additions(f"{NOTE} and on") == "and on"
    assert without_additions(f"one {NOTE}\ntwo {NOTE}") == "one\ntwo"
    assert without_additions("[breakloop] no end") == "[breakloop] no end"
    assert without_additions("[/breakloop] no beginning") == "[/breakloop] no beginning"
    far = "[breakloop]" + "x" * 5000 + "[/breakloop]"
    assert without_additions(far) == far


def test_additions_of_harnesses_are_removed() -> None:
    assert without_additions("<system-reminder>\nlist\n</system-reminder>") == ""
    assert without_additions("same\n<environment_details>\n12:05\n</environment_details>") == "same"
    assert without_additions("a </system-reminder> b") == "a </system-reminder> b"


DATA = "A" * 90_000
KEY = "image:" + xxhash.xxh3_64_hexdigest(DATA.encode())


@pytest.mark.parametrize(
    "item",
    [
        {"image_url": {"url": f"data:image/png;base64,{DATA}", "detail": "high"}},
        {"image_url": f"data:image/png;base64,{DATA}"},
        {"source": {"type": "base64", "media_type": "image/png", "data": DATA}, "cache_control": {"type": "ephemeral"}},
        {"mimeType": "image/png", "data": DATA},
    ],
)
def test_media_by_their_bytes(item: dict[str, object]) -> None:
    """The same bytes are the same medium, however they are wrapped; other bytes of the same size are not (C-8)."""
    assert media_key("image", item) == KEY
    other = json.loads(json.dumps(item).replace(DATA, DATA[:-1] + "B"))
    assert media_key("image", other) != KEY


def test_media_by_their_names() -> None:
    """Without data, the address or the id of a file tells media apart (C-8)."""
    pages = [{"source": {"type": "url", "url": f"https://example.org/{name}.png"}} for name in "ab"]
    files = [{"file": {"file_id": f"file-{name}", "filename": "a-long-name-of-a-picture.png"}} for name in "ab"]
    keys = [media_key("image", one) for one in (*pages, *files, {})]
    assert len(set(keys)) == 5
    assert media_key("image", pages[0] | {"id": "7"}) == keys[0]


def test_contents() -> None:
    """Text and media of a result (C-8)."""
    assert text_and_media("text") == ("text", ())
    assert text_and_media(None) == ("", ())
    assert text_and_media({"b": 1, "a": 2}) == ('{"a":2,"b":1}', ())
    assert text_and_media({"type": "text", "text": "x"}) == ("x", ())
    assert text_and_media(["a", 7, {"type": "reasoning"}, {"type": "text", "text": ""}]) == ("a\n7", ())
    assert text_and_media([{"type": "resource", "resource": {"uri": "u", "text": "x"}}]) == ("x", ())
    assert text_and_media([{"type": "resource", "resource": {"uri": "u", "blob": "A" * 2_000}}]) == (
        "",
        (f"file:{xxhash.xxh3_64_hexdigest(b'A' * 2_000)}",),
    )
    assert text_and_media([{"type": "odd", "id": "1", "value": 2}]) == ('{"type":"odd","value":2}', ())


def test_many_parts() -> None:
    """A hundred parts of a content are read one by one; the others still tell contents apart, media too (Y-2)."""
    said = [{"type": "text", "text": f"line {at}"} for at in range(150)]
    shown = text_and_media(said)[0]
    assert shown.startswith("line 0\nline 1\n")
    assert "\nline 99\n<more:50:" in shown
    assert text_and_media([*said[:-1], {"type": "text", "text": "other"}])[0] != shown == text_and_media(said)[0]
    assert text_and_media(["a"] * 101)[0] != text_and_media(["a"] * 100 + ["b"])[0]
    media = [text_and_media([*said, {"type": "image", "data": one}]) for one in "aab"]
    assert media[0] == media[1] != media[2]


def gathered(*results: str, users: list[object] | None = None) -> StepBuilder:
    """An answer with these results behind it, or these contents of the user; the newest last."""
    found = StepBuilder()
    found.answered = True
    found.results = [Result(one) for one in reversed(results)]
    found.users = [("user", one) for one in reversed(users or [])]
    return found


def test_all_results_are_bounded() -> None:
    """Of a thousand long results the newest are read, and the others still differ by a digest (Y-2)."""
    texts = [f"{at} " + "x" * 60_000 for at in range(100)]
    first, *_, last = (one.text for one in gathered(*texts).build((), 0, 0).results)
    assert last == texts[-1]
    assert first.startswith("0 xxx")
    assert len(first) < 400
    other = [texts[0] + "y", *texts[1:]]
    assert gathered(*other).build((), 0, 0).results[0].text != first
    assert sum(len(one.text) for one in gathered(*texts).build((), 0, 0).results) < 600_000
    assert [one.text for one in gathered(*texts[:8]).build((), 0, 0).results] == texts[:8]


def test_all_texts_of_the_user_are_bounded() -> None:
    """Texts as results; and of ten thousand parts not each is looked at (Y-2)."""
    texts: list[object] = [f"{at} " + "x" * 60_000 for at in range(100)]
    users = gathered(users=texts).build((), 0, 0).users
    assert users[-1] == texts[-1]
    assert len(users[0]) < 400
    assert len(users) == 100
    parts: list[object] = [[{"type": "text", "text": f"{at}"}] * 900 for at in range(9)]
    users = gathered(users=parts).build((), 0, 0).users
    assert users[-1].startswith("8\n8\n")
    assert users[0].startswith('[{"text":"0"')


def test_all_calls_are_bounded() -> None:
    """Arguments and names; spelling them anew ends before reading them does (Y-2)."""
    found = StepBuilder()
    for at in range(100):
        found.add_call("n" * 5_000 + str(at), json.dumps({"b": "x" * 60_000, "a": at}), "")
    calls = found.build((), 0, 0).calls[::-1]
    assert calls[0].arguments.startswith('{"a":0,')
    assert calls[5].arguments.startswith('{"b": "xxx')
    assert len(calls[5].arguments) > 60_000
    assert len(calls[50].arguments) < 400
    assert len({call.name for call in calls}) == len({call.arguments for call in calls}) == 100
    assert max(len(call.name) for call in calls) < 200


def test_what_harnesses_add_to_long_texts() -> None:
    """At both ends of a text of any length it is removed (LD-4, Y-2)."""
    text = "".join(f"line {at}\n" for at in range(50_000))
    added = "<system-reminder>{}</system-reminder>"
    assert without_additions(added.format(1) + text + added.format(2)) == without_additions(
        added.format(3) + text + added.format(4)
    )
    assert without_additions(text) != without_additions(text.replace("line 25000", "line x"))


def test_many_pictures_in_a_text() -> None:
    """A thousand are taken out (Y-2)."""
    said, media = text_and_media("data:image/png;base64,AAAA " * 1500)
    assert (len(media), said.count("data:")) == (1000, 500)


def test_data_in_texts() -> None:
    """A picture that stands in a text counts by its bytes (C-8, LD-4)."""
    key = f"image:{xxhash.xxh3_64_hexdigest(b'A' * 2_000)}"
    assert text_and_media(f"shot: data:image/png;base64,{'A' * 2_000} end") == ("shot:  end", (key,))


def test_results() -> None:
    assert result("Error: no", 7) == Result("Error: no", error=True, call_id="7")
    assert result("fine", failed=True).error
    assert result(f"same\n\n{NOTE}") == Result("same")


def test_native_results_are_not_moved() -> None:
    """Where results came, the words of the user stay theirs, even if the answer has code in it (LD-4)."""
    found = StepBuilder()
    found.answered = True
    found.texts = ["```bash\nls\n```"]
    found.results = [Result("listed")]
    found.users = [("user", "thanks"), ("user", "")]
    step = found.build((), 0, 5)
    assert (step.results, step.users, step.as_text) == ((Result("listed"),), ("thanks",), True)


def test_arguments_that_were_spelled_before() -> None:
    """A known spelling is used, unless there is too much to spell."""
    found = StepBuilder()
    found.add_call("f", '{"b": 1, "a": 2}', "c", '{"a":2,"b":1}')
    assert found.calls == [ToolCall("f", '{"a":2,"b":1}')]
    found._to_spell = 10
    found.add_call("f", '{"b": 1, "a": 2}', "c", '{"a":2,"b":1}')
    assert found.calls[1] == ToolCall("f", '{"b": 1, "a": 2}')

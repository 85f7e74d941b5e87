"""The packed window (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps import novelty
from breakloop.detect.steps import window as module
from breakloop.detect.steps.window import (
    CALL,
    CALLS,
    COUNT_MAX,
    COUNTS,
    EFFECT,
    EFFECTS,
    END,
    ENDS,
    KEPT_MAX,
    RING,
    SKETCH,
    SKETCH_ROW,
    SKETCHES,
    TEXT,
    TEXTS,
    TOOL,
    TOOLS,
    VERSION,
    SessionWindow,
    UnpackedWindows,
    answered,
    find_row,
    load,
    readable,
)

FILTERS = ("lines", "marks", "words")
FIELDS = SessionWindow.__slots__
COUNTERS = {"answer_count", "cue_count", "near_count"}


def filled() -> SessionWindow:
    """A window in which everything is as full and as large as it may be, and no two values are the same."""
    window = load(b"")
    lists = {"cycle_counts", "evidence", "ring", "sketches", "calls", "tails", "texts", "tools", "effects"}
    lists |= {"recent_answers", "ends", "filters", *FILTERS}
    derived = {
        "version",
        "levels",
        "evidence_size",
        *[name for name in FIELDS if name.endswith(("_rows", "_count"))],
    } - COUNTERS
    for at, name in enumerate(sorted(set(FIELDS) - lists - derived), start=1):
        value = getattr(window, name)
        if isinstance(value, bytes):
            setattr(window, name, bytes([at]) * len(value))
        elif isinstance(value, float):
            setattr(window, name, at / 4)
        else:
            setattr(window, name, at % 16 if name in {"level", "reported_level"} else at)
    window.cycle_counts = COUNTS.pack(*[COUNT_MAX - at for at in range(RING)])
    window.ring, window.tails = bytearray(range(RING * 8)), bytearray(range(1, 1 + RING * 8))
    window.ends = bytearray(b"".join([END.pack(bytes([at + 1]) * 4, at + 0.25) for at in range(ENDS)]))
    for at in range(CALLS):
        window.calls += CALL.pack(bytes([at]) * 8, bytes([at + 1]) * 8, b"abcd", at, at + 0.25, -1.0, at, 9, at)
    for at in range(TEXTS):
        window.texts += TEXT.pack(bytes([at]) * 8, at + 0.5, at, at, at)
    for at in range(TOOLS):
        window.tools += TOOL.pack(bytes([at]) * 4, bytes([at + 3]) * 8, at + 0.75, at)
    for at in range(SKETCHES):
        window.sketches += SKETCH_ROW.pack(bytes([at]) * 4, SKETCH, *range(at, at + SKETCH))
    for at in range(EFFECTS):
        window.effects += EFFECT.pack(bytes([at]) * 8, at, at + 1, at + 2)
    window.evidence = "`ä` returned the same 9 bytes".encode()
    window.recent_answers = bytes(range(1, 200))
    for number, name in enumerate(FILTERS, start=1):
        getattr(window, name).sift([one * 0x9E3779B9 & 0xFFFFFFFF for one in range(100 * number)])
    return window


def test_packed_and_unpacked() -> None:
    """Nothing is lost, and a full window is within 6 KB (LD-4)."""
    window = filled()
    packed = window.dump()
    again = load(packed)
    for name in FIELDS:
        if name not in FILTERS:
            assert getattr(again, name) == getattr(window, name), name
    for name in FILTERS:
        assert getattr(again, name).count == getattr(window, name).count > 0
    assert again.dump() == packed
    assert len(packed) - len(window.recent_answers) <= 6 * 1024


def test_size_is_constant() -> None:
    """An empty window takes as much as a full one, but for the evidence; about as much as the module says (LD-4)."""
    empty, full = load(b"").dump(), filled()
    assert len(full.dump()) - len(full.evidence) - len(full.recent_answers) == len(empty)
    assert f"{len(empty) / 1000:.1f} KB" in (module.__doc__ or "")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x01", b"\x01" * 5000, bytes([VERSION + 1]) + load(b"").dump()[1:], load(b"").dump()[:-1],
        load(b"").dump() + bytes(201 + KEPT_MAX), bytes([VERSION ^ 1]) * 6000,
    ],
    ids=["empty", "short", "another", "another version", "cut", "too long", "another version, as long"],
)  # fmt: skip
def test_foreign_windows_are_new(data: bytes) -> None:
    """An unreadable window, or another version's, counts as new (LD-4)."""
    assert load(data).dump() == load(b"").dump()
    assert not readable(data)


def test_counts_out_of_range_do_not_break_it() -> None:
    """How many rows a list has is bounded, whatever a packed window says (LD-4)."""
    window = load(b"")
    packed = bytearray(window.dump())
    lists = {
        "call_rows": ("calls", CALLS * CALL.size),
        "text_rows": ("texts", TEXTS * TEXT.size),
        "tool_rows": ("tools", TOOLS * TOOL.size),
        "sketch_rows": ("sketches", SKETCHES * SKETCH_ROW.size),
        "effect_rows": ("effects", EFFECTS * EFFECT.size),
    }
    for name in lists:
        packed[module._offset(name)] = 255
    again = load(bytes(packed))
    assert len(again.dump()) == len(packed)
    for name, size in lists.values():
        assert len(getattr(again, name)) == size, name


def test_rows_are_found_by_where_they_begin() -> None:
    """The same bytes in the middle of another row are not a key (LD-4)."""
    rows = bytearray(b"abcdabcd" + b"xxabxxab" + b"abxxxxxx")
    assert [find_row(rows, key, 8) for key in (b"ab", b"xxab", b"abxx", b"cd", b"nix")] == [0, 8, 16, -1, -1]
    assert find_row(bytearray(), b"ab", 8) == -1
    assert find_row(bytearray(b"xxxxxaaaaaaaxxxx"), b"aaaa", 8) == 8
    assert find_row(bytearray(b"xabxxxxxabxxxxxx"), b"ab", 8) == 8
    assert find_row(bytearray(b"xabxxxxx"), b"ab", 8) == -1


def test_an_answer_changes_its_marks_and_nothing_else() -> None:
    """The window stays packed, and is as if it had been unpacked (LD-4)."""
    window = filled()
    before = window.dump()
    marks = novelty.marks(b"answered")
    after = module.answered(before, b"answered", marks)
    for mark in marks:
        window.marks.add(mark)
    window.pending_repeats -= 1
    window.storm, window.last_answer = 0.0, b"answered"  # it waited for what its call returns, and that is new
    window.cycle_counts = bytes(len(window.cycle_counts))
    assert after == window.dump() != before
    full = load(before)
    full.marks.count = 510
    aged = load(module.answered(full.dump(), b"answered", marks))
    assert aged.marks.count < 3
    assert all(map(aged.marks.knows, marks))


def test_a_repeat_counts_when_it_is_answered() -> None:
    """A failure is forgiven so often, and what is denied is not answered at all (LD-4, C22)."""
    window = load(b"")
    window.pending_repeats, window.storm = 4, 2.0
    found = []
    packed = module.answered(window.dump(), module.NONE, ())
    for _ in range(3):
        packed = module.failed(packed, 2)
        found.append((load(packed).pending_repeats, load(packed).storm, load(packed).forgiven_repeats))
    assert found == [(2, 3.0, 1), (1, 3.0, 2), (0, 4.0, 2)]
    assert module.failed(packed, 2) is packed
    assert module.answered(packed, module.NONE, ()) is packed


def test_another_result_of_a_call_is_progress() -> None:
    """Where only the answer tells what a call returned (MCP) (LD-4)."""
    window = load(b"")
    window.awaits_result, window.storm, window.last_answer = 1, 7.0, b"the same"
    assert load(module.answered(window.dump(), b"the same", (1, 2))).storm == 7.0
    assert load(module.answered(window.dump(), b"another.", (1, 2))).storm == 0.0
    window.awaits_result = 0
    assert load(module.answered(window.dump(), b"another.", (1, 2))).storm == 7.0


def test_an_answer_that_never_came_ends_a_cycle() -> None:
    """Where only the answer tells what a call returned (MCP) (LD-4)."""
    window = load(b"")
    window.awaits_result, window.cycle_counts = 1, b"\x01" * len(window.cycle_counts)
    assert module.awaits_result(window.dump())
    first = module.answered(window.dump(), b"answer 1", (17,))
    assert load(first).cycle_counts == bytes(len(window.cycle_counts))
    again = load(first)
    again.cycle_counts = window.cycle_counts
    assert load(module.answered(again.dump(), b"answer 1", (17,))).cycle_counts == window.cycle_counts
    silent = load(module.answered(again.dump(), module.NONE, ()))
    assert (silent.cycle_counts, silent.last_answer) == (window.cycle_counts, module.NONE)
    old = load(first)
    old.cycle_counts = window.cycle_counts
    old.marks.sift(digests(0, 600))  # it came so long ago that it is in the older half
    assert load(module.answered(old.dump(), b"answer 1", (17,))).cycle_counts == window.cycle_counts
    window.awaits_result = 0
    assert not module.awaits_result(window.dump())
    assert load(module.answered(window.dump(), b"answer 1", (17,))).cycle_counts == window.cycle_counts


def test_windows_left_lately_are_not_unpacked_again() -> None:
    """What was kept comes back, its counts as exact as packed ones are; for any other bytes it is no use."""
    unpacked, window = UnpackedWindows(3), filled()
    window.line_novelty, window.storm = 0.1, 0.3
    packed = unpacked.keep(window)
    assert packed == window.dump()
    again = unpacked.take(bytes(bytearray(packed)))
    assert again is window
    other = load(packed)
    for name in set(FIELDS) - {"filters", *FILTERS}:
        assert getattr(again, name) == getattr(other, name), name
    assert again.line_novelty != 0.1
    assert unpacked.take(packed).calls is not window.calls, "the caller may change it now"
    unpacked.keep(window)
    heard = answered(packed, b"12345678", (7,))
    assert heard != packed
    taken = unpacked.take(heard)
    assert taken.calls is not window.calls
    assert taken.dump() == heard


def test_an_answer_is_no_reason_to_unpack_a_window_again() -> None:
    """What an answer changes is changed in the window that was kept, too."""
    unpacked, window = UnpackedWindows(3), filled()
    before = unpacked.keep(window)
    after = answered(before, b"12345678", (7, 2**31 + 7))
    kept = load(after)
    kept.recent_answers += b"more"
    after = kept.dump()
    unpacked.answered(before, after)
    taken = unpacked.take(after)
    assert taken is window
    assert taken.dump() == after
    other = load(after)
    for name in set(FIELDS) - {"filters", *FILTERS}:
        assert getattr(taken, name) == getattr(other, name), name
    assert [getattr(taken, name).count for name in FILTERS] == [getattr(other, name).count for name in FILTERS]
    unpacked.keep(window)
    unpacked.answered(before, before)  # not what was kept
    assert unpacked.take(after) is window


def test_few_windows_are_kept() -> None:
    """The oldest goes (Q-3)."""
    unpacked = UnpackedWindows(3)
    windows = [filled() for _ in range(4)]
    packed = []
    for number, window in enumerate(windows):
        window.tail = bytes([number]) * 8
        packed.append(unpacked.keep(window))
    found = [unpacked.take(data).calls is window.calls for data, window in zip(packed, windows, strict=True)]
    assert found == [False, True, True, True]


def test_the_version_follows_from_the_layout() -> None:
    """A window that another layout packed counts as new, without a number that has to be raised (S-2)."""
    codes = module._CODES
    assert module.layout_version(codes) == VERSION
    assert module.layout_version({**codes, "shouts": "f"}) != VERSION
    assert module.layout_version({**codes, "dry": "d"}) != VERSION
    assert module.layout_version(dict(reversed(codes.items()))) != VERSION
    found = {module.layout_version({**codes, f"field{at}": "f"}) for at in range(3000)}
    assert found == {*range(256)}, "every byte, so that few layouts have the same one"


def test_the_longest_window_that_is_read() -> None:
    """With 200 bytes of evidence and 1 KB of answers; one byte more is not a window (LD-4)."""
    window = load(b"")
    window.steps, window.evidence, window.recent_answers = 7, b"e" * 200, b"a" * 1024
    packed = window.dump()
    again = load(packed)
    assert (again.steps, again.evidence, again.recent_answers) == (7, window.evidence, window.recent_answers)
    assert not readable(packed + b"a")


def digests(start: int, count: int) -> list[int]:
    return [(start + at) * 0x9E3779B9 & 0xFFFFFFFF for at in range(count)]


def test_older_halves_of_stored_filters() -> None:
    """What is in the older half of a filter is known after unpacking, and only in that filter (LD-4)."""
    for name in FILTERS:
        window = load(b"")
        for one in FILTERS:
            getattr(window, one).sift(digests(0, 700) if one == name else digests(9000, 20))
        again = load(window.dump())
        assert all(map(getattr(again, name).knows, digests(0, 700)))
        assert [one for one in FILTERS if getattr(again, one).aged] == [name]
        assert [one for one in FILTERS if all(map(getattr(again, one).knows, digests(0, 99)))] == [name]


def test_an_answer_that_fills_a_filter() -> None:
    """The window that was kept knows what is in the older half from then on (LD-4)."""
    unpacked, window = UnpackedWindows(3), load(b"")
    for digest in digests(0, 2000):
        if window.marks.count < 511:
            window.marks.add(digest)
    before = unpacked.keep(window)
    after = answered(before, b"12345678", digests(5000, 2))
    unpacked.answered(before, after)
    taken = unpacked.take(after)
    assert taken is window
    assert taken.marks.aged
    assert all(map(taken.marks.knows, [*digests(0, 400), *digests(5000, 2)]))
    assert taken.dump() == load(after).dump() == after


@pytest.mark.parametrize("pending", [0, 1, 2])
def test_pending_repeats_are_counted_one_by_one(pending: int) -> None:
    """One for each answer or failure, never more than are pending, and up to the highest count (LD-4, C22)."""
    window = load(b"")
    window.pending_repeats, window.storm = pending, COUNT_MAX - 0.5
    for after in (answered(window.dump(), module.NONE, (7,)), module.failed(window.dump(), 0)):
        found = load(after)
        assert found.pending_repeats == max(pending - 1, 0)
        assert found.storm == (COUNT_MAX if pending else COUNT_MAX - 0.5)
        assert found.forgiven_repeats == 0


def test_an_answer_that_changes_nothing() -> None:
    """The stored window stays the same object, so that nothing is written (Q-1)."""
    window = load(b"")
    window.awaits_result, window.last_answer = 1, b"the same"
    packed = window.dump()
    assert answered(packed, b"the same", ()) is packed
    assert answered(packed, b"another.", ()) is not packed
    window.awaits_result = 0
    packed = window.dump()
    assert answered(packed, b"another.", ()) is packed
    assert answered(packed, b"another.", (7,)) is not packed


@pytest.mark.parametrize("name", ["pending_repeats", "awaits_result", "keeps_answers"])
def test_why_an_answer_matters(name: str) -> None:
    """It confirms a repeat, it is the result of a call, or it is to be kept (LD-4)."""
    window = load(b"")
    assert not module.awaits_answer(window.dump())
    setattr(window, name, 1)
    packed = window.dump()
    assert module.awaits_answer(packed)
    assert module.awaits_result(packed) is (name == "awaits_result")
    assert module.keeps_answers(packed) is (name == "keeps_answers")


def test_each_filter_has_its_place() -> None:
    """The first and the last word of each are next to another one, and not shared (LD-4)."""
    for number, name in enumerate(FILTERS):
        window = load(b"")
        getattr(window, name).sift([7, 63 << 26 | 7])
        used = [at for at, word in enumerate(load(window.dump()).filters) if word]
        assert used == [128 * number, 128 * number + 63]


def test_levels_are_stored() -> None:
    """The level of the last step, and the one that was reported (LD-4)."""
    for level in range(4):
        for reported in range(4):
            window = load(b"")
            window.level, window.reported_level = level, reported
            again = load(window.dump())
            assert (again.level, again.reported_level) == (level, reported)

"""What a result says besides the lines and fields that harnesses write around it (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps.fingerprints import EMPTY, OK, StepFingerprinter
from breakloop.detect.steps.results import content, is_bare
from tests.unit.detect.steps.stepping import LONG, called, digest


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            "Chunk ID: 4fd1c2\nWall time: 0.0310 seconds\nProcess exited with code 0\nOutput:\nx",
            "Process exited with code 0\nOutput:\nx",
        ),
        ("Exit code: 0\nWall time: 3 s\nOutput:\nx", "Exit code: 0\nOutput:\nx"),
        ("x\nTotal: 5\n[Execution time: 31 ms]\nrequest_id: 81\n", "x\nTotal: 5"),
        ("x: 1\n\nElapsed: 2 s\ny", "x: 1\n\nElapsed: 2 s\ny"),  # not at an end
        ("Elapsed: " + "a" * 90 + "\ny", "Elapsed: " + "a" * 90 + "\ny"),  # a sentence
        ("Wall time: 3 s", "Wall time: 3 s"),  # all there is
        ("Date: 3 May\ny", "Date: 3 May\ny"),
        (f": {'x' * 50}\nPID: 4\ny", f": {'x' * 50}\ny"),
        ("y\nDate: 3 May", "y\nDate: 3 May"),
        ('{"stdout": "x", "durationMs": 4, "duration_ms": 5, "n": 6}', '{"stdout": "x", "n": 6}'),
        ("<result>\n<output>\npid: 4\nx\n</output>\n</result>\n", "x"),
        ("<a>x</a><b>y</b>", "<a>x</a><b>y</b>"),
        ('{"request_id": "r-1", "rows": [1]}', '{"rows": [1]}'),
        ('{"request_id": "r-1"}', '{"request_id": "r-1"}'),
    ],
)
def test_volatile_lines_and_fields(text: str, kept: str) -> None:
    """They are removed at both ends, if something else is left (LD-4)."""
    assert content(text.encode()).decode() == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"pid: {'9' * 77}\ny", "y"),  # a value of 80 bytes, the space and the end of the line included
        (f"pid: {'9' * 78}\ny", f"pid: {'9' * 78}\ny"),
        (f"y\npid: {'9' * 78}", "y"),
        (f"y\npid: {'9' * 79}", f"y\npid: {'9' * 79}"),
        (f"{'#' * 35}pid: 4\ny", "y"),  # the colon is among the first 40 bytes
        (f"{'#' * 36}pid: 4\ny", f"{'#' * 36}pid: 4\ny"),
        ("a: 1\n" * 5 + "pid: 4\ny", "a: 1\n" * 5 + "y"),  # six lines at each end
        ("a: 1\n" * 6 + "pid: 4\ny", "a: 1\n" * 6 + "pid: 4\ny"),
        ("y\npid: 4" + "\na: 1" * 5, "y" + "\na: 1" * 5),
        ("y\npid: 4" + "\na: 1" * 6, "y\npid: 4" + "\na: 1" * 6),
        ("<a><b>x</b></a>", "x"),  # two tags
        ("<a><b><c>x</c></b></a>", "<c>x</c>"),
        (f'{{"pid": 4, "a": "{"x" * 280}", "b": "{"y" * 294}"}}', f'{{"a": "{"x" * 280}", "b": "{"y" * 294}"}}'),
    ],
)
def test_how_much_of_a_result_is_read_for_them(text: str, kept: str) -> None:
    """A few lines and fields at each end (Y-2)."""
    assert content(text.encode()).decode() == kept


def test_objects_of_600_bytes() -> None:
    """They are read as a whole, and of larger ones 300 bytes at each end (Y-2)."""
    for size, found in ((600, False), (601, True)):
        text = f'{{"a": "{"x" * 284}", "pid": 4711, "b": "'
        text += "y" * (size - len(text) - 2) + '"}'
        assert len(text) == size
        assert (b"pid" in content(text.encode())) is found


def test_long_objects() -> None:
    """Only the ends of an object are read (Y-2)."""
    made = [
        f'{{"duration": {at}, "a": "{"x" * 400}", "duration": {at}, "b": "{"y" * 400}", "pid": {at}}}' for at in (1, 2)
    ]
    one, two = (content(text.encode()) for text in made)
    assert one.count(b"duration") == 1
    assert b"pid" not in one
    assert one != two


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("Exit code: 0", True), ("Process exited with code 0\nOutput:", True), ("[Command finished with exit code 0]", True),
        ("<returncode>0</returncode>\n<output>\n</output>", True), ('<status level="info">0</status>', True), ("<tool_response>\n[]\n</tool_response>", True),
        ('{"output": "", "exit_code": 0}', True), ("Output:\n(no output)", True), ("Observation:\nNone", True),
        ("Result: 42", False), ("<response>7</response>", False), ("status: completed", False), ("Exit code: 0\nx", False),
        ("No results", False), ("output", False), ('{"output": "x", "exit_code": 0}', False),
    ],
)  # fmt: skip
def test_frames_without_content(text: str, bare: bool) -> None:
    """An exit status without output is an empty result (LD-4)."""
    assert is_bare(text.encode()) == bare
    assert (StepFingerprinter(digest).step(called(text=text)).pairs[0].kind == EMPTY) == bare


def test_results_are_compared_without_them() -> None:
    """Errors too; what remains is masked if it is long (LD-4)."""
    make = StepFingerprinter(digest)

    def r(text: str, *, error: bool = False) -> bytes:
        return make.step(called(text=text, error=error)).pairs[0].r

    for error in (False, True):
        assert (
            r(f"Chunk ID: 1a\n{LONG}", error=error) == r(f"Chunk ID: 2b\n{LONG}", error=error) == r(LONG, error=error)
        )
    head = "Chunk ID: 1a\nWall time: 0.01 seconds\nCorrelation ID: 8123-812-8\nTrace ID: 9912388\n"
    assert r(f"{head}took 3 s") != r(f"{head}took 4 s")
    assert make.step(called(text=f"{head}found")).pairs[0].kind == OK


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('<result>\n{"pid": 4, "rows": 1}\n</result>', '{"rows": 1}'),  # an object inside of a tag
        ("a: 1\npid: 4", "a: 1"),
        ("\npid: 4\na: 1", "\na: 1"),
        ("\na: 1\n", "\na: 1"),
        ("a: 1\n", "a: 1\n"),  # one line stays as it is
        ("pid: 4\n", "pid: 4\n"),
    ],
)
def test_lines_and_objects_at_the_edges(text: str, kept: str) -> None:
    """The first line, the last line and an empty one before them are lines as others (LD-4)."""
    assert content(text.encode()).decode() == kept


@pytest.mark.parametrize("text", ["exit code 0", "output:", "<output>\n</output>", "{none}"])
def test_each_sign_of_a_frame(text: str) -> None:
    """A status, a label, a tag or a brace is enough (LD-4)."""
    assert is_bare(text.encode())

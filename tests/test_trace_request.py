"""`make trace`: a proxied request passes few files, and the record of it does not change from run to run."""

from __future__ import annotations

import json

import pytest

from scripts.trace_request import main, trace

STREAMED_FILES = 58
WHOLE_FILES = 55


@pytest.mark.parametrize(("stream", "most"), [(True, STREAMED_FILES), (False, WHOLE_FILES)])
def test_a_request_passes_few_files(stream: bool, most: int) -> None:
    found = trace(stream=stream)
    assert found.files[0] == "gateway/connection.py"
    assert "engine/engine.py" in found.files
    assert "store/memory.py" in found.files
    assert found.steps[-1].file.startswith("gateway/")
    assert len(found.files) <= most, "\n".join(found.files)


def test_the_files_are_the_same_in_every_run() -> None:
    assert set(trace(stream=True).files) == set(trace(stream=True).files)


def test_a_trace_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["streamed"]["files"] == len(found["streamed"]["file_names"])
    assert found["whole"]["calls"] == len(found["whole"]["walk"]) < found["streamed"]["calls"]


def test_a_trace_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--walk"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("streamed: calls ")
    assert "gateway/connection.py" in lines[2]

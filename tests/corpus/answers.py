"""Streamed answers: texts that repeat themselves and have to be cut, and texts that repeat for a good reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from breakloop.detect.stream import StreamProbe
from tests.corpus.words import NOUNS, chapter, line

CHUNK: Final = 24  # characters of one event


class StreamedAnswer(NamedTuple):
    """One answer. `cut`: between which characters it has to be cut; None: never."""

    name: str
    text: str
    cut: tuple[int, int] | None = None

    @property
    def id(self) -> str:
        return f"{self.name}/stream"

    def cut_at(self) -> int | None:
        """Return after how many characters the answer is cut."""
        probe = StreamProbe()
        for at in range(0, len(self.text), CHUNK):
            if probe.feed(self.text[at : at + CHUNK]):
                return min(at + CHUNK, len(self.text))
        return None

    def mistakes(self) -> Iterator[str]:
        """Return what is wrong, in words."""
        found = self.cut_at()
        if self.cut is None and found is not None:
            yield f"cut after {found} characters, and must not be"
        elif self.cut is not None and (found is None or not self.cut[0] <= found <= self.cut[1]):
            yield f"cut after {found} characters, expected {self.cut[0]} to {self.cut[1]}"


ANSWERS: Final = (
    StreamedAnswer("one_sentence", "I should look at the configuration once more before I go on. " * 60, (1200, 1600)),
    StreamedAnswer("one_word", "the " * 900, (1200, 1600)),
    StreamedAnswer("one_paragraph", (f"{line(1)} {line(2)} {line(3)}\n") * 30, (1200, 2600)),
    StreamedAnswer("after_good_text", chapter("good") + "\nLet me check that again. " * 90, (2200, 6000)),
    StreamedAnswer("end_of_thought", "I have to investigate this. Let me paste it.\n</think>\n" * 80, (1200, 1800)),
    StreamedAnswer("novel", "\n\n".join(chapter(at, "novel") for at in range(8))),
    StreamedAnswer(
        "song", "\n\n".join(f"{line(at)}\n{line(at, 2)}\nRow, row, row to the harbour!" for at in range(12))
    ),
    StreamedAnswer("chant", f"{line(1)} {line(2)} {line(3)} {line(4)} {line(5)}\n" * 5),
    StreamedAnswer("numbered_list", "\n".join(f"{at}. {line(at, 'list')}" for at in range(60))),
    StreamedAnswer("table", "| item | price |\n|---|---|\n" + "| candle | 0 |\n" * 150),
    StreamedAnswer("code", "```python\n" + "    rows.append(None)\n" * 120 + "```\n"),
    StreamedAnswer("zeros", "[" + "0, " * 900 + "0]"),
    StreamedAnswer("records", "\n".join(f'{{"name": "{name}", "open": true}}' for name in NOUNS * 3)),
)

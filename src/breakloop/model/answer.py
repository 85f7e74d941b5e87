"""`Answer`: what came back for one call, as far as judging the next one needs it. Read by `wire` while it passes (or
reported by a gateway), handed to `Engine.settle`; what it costs is `pricing`'s business."""

from __future__ import annotations

from typing import Final, NamedTuple

from breakloop.model.call import ToolCall

CLIENT_LEFT: Final = 499  # the status of an answer that nobody waited for
NO_ANSWER: Final = 0  # the status where none came: refused, reset, cut short, or too late
_BUSY: Final = 429


class Usage(NamedTuple):
    """Tokens, as the provider counted them."""

    input_tokens: int = 0  # the whole prompt, cached parts included
    output_tokens: int = 0  # the whole completion, reasoning included
    cached_tokens: int = 0  # of the input: read from the provider's cache
    cache_write_tokens: int = 0  # of the input: written to it
    reasoning_tokens: int = 0  # of the output


class Answer(NamedTuple):
    """One answer. Everything but the status may be missing: not every answer is an LLM's, and some are cut short."""

    status: int
    text: str = ""  # what the model said, bounded; never its thinking
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    model: str = ""
    response_id: str = ""
    finish: str = ""  # why the model stopped, in the dialect's own word
    error: str = ""  # an error that came inside the answer: a failed stream, a tool's error flag
    complete: bool = False  # it came to its proper end
    unkept_chars: int = 0  # of what the model said beyond `text`

    @property
    def failed(self) -> bool:
        """Whether the upstream failed (429, 5xx, time-out, an error in the stream), so that trying again is no loop."""
        status = self.status
        return status in (_BUSY, NO_ANSWER) or status >= 500 or (bool(self.error) and not self.complete)

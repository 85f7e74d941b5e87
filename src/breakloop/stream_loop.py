"""What is told of a streamed answer that repeats itself (SPEC LD-8), in the words of other loops."""

from __future__ import annotations

from breakloop.detect.step_loop import CUTS
from breakloop.model.call import Call, Chat
from breakloop.model.events import LOOP_DETECTED, Event
from breakloop.policy.descriptors import Descriptors

KIND = "stream"


def repeated_event(call: Call, who: Descriptors, action: str, chars: int, times: int, now: float) -> Event:
    """Return the event: so many characters so many times, and what was done."""
    chat = call.chat_cache
    data: dict[str, object] = {
        "caller": who.caller(call),
        "agent": who.agent(call),
        "model": chat.model if isinstance(chat, Chat) else "",
        "fingerprint": "",
        "hit_count": times,
        "cooldown_seconds": 0,
        "kind": KIND,
        "action": action,
        "policy": "",
        "evidence": f"the same {chars} characters {times} times in one answer",
        "shadow": call.guards_stream != CUTS,
    }
    return Event(LOOP_DETECTED, now, data, call.project, call.request_id)

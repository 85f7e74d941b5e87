"""Agents that the environment `clients` runs for test_clients.py: `python client_agents.py URL LANDING_URL [NAME ...]`. Each
uses the client package of a provider as its documentation shows it, with nothing but another address. Prints, as its last
line, how each run ended, as JSON. The model in the test decides what an agent does, by the name of its run, which is part
of the model's name: NAME-loop, NAME-work or NAME-land, and -plain or -stream.

Importing a client takes seconds, so all of them share a process.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

STEPS = 40  # more than any run takes
TASK = "Find the tree."
SYSTEM = "You look things up."
SCHEMA: Any = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
FUNCTION: Any = {
    "type": "function",
    "function": {"name": "look", "description": "Look something up.", "parameters": SCHEMA},
}


class Made(NamedTuple):
    """What the model has answered: a text, or a call."""

    text: str
    query: str | None = None
    call_id: str = ""


class Agent:
    """One conversation. `ask` sends it and adds the answer to it; `result` adds the result of the call."""

    def __init__(self, url: str, run: str) -> None:
        self.url, self.run, self.stream = url, run, run.endswith("-stream")
        self.messages: list[Any] = [{"role": "user", "content": TASK}]

    def ask(self) -> Made:
        raise NotImplementedError

    def result(self, made: Made, said: str) -> None:
        self.messages.append({"role": "tool", "tool_call_id": made.call_id, "content": said})


def look(query: str) -> str:
    if query == "again":
        return "nothing"
    number = int(query.removeprefix("item-"))
    return f"{query}: {['oak', 'elm', 'fir', 'ash', 'yew'][number % 5]} {number * 7919 % 9973}"


class Ollama(Agent):
    def ask(self) -> Made:
        from ollama import Client

        asked: Any = {"model": self.run, "messages": self.messages, "tools": [FUNCTION]}
        client = Client(host=self.url)
        if self.stream:
            parts = [part.message for part in client.chat(stream=True, **asked)]
        else:
            parts = [client.chat(**asked).message]
        said = "".join(part.content or "" for part in parts)
        calls = [call for part in parts for call in part.tool_calls or ()]
        self.messages.append({"role": "assistant", "content": said, "tool_calls": calls})
        return Made(said, calls[0].function.arguments["query"] if calls else None)

    def result(self, made: Made, said: str) -> None:
        self.messages.append({"role": "tool", "tool_name": "look", "content": said})


class Cohere(Agent):
    def ask(self) -> Made:
        import cohere

        client = cohere.ClientV2("key-of-cohere", base_url=self.url)
        asked: Any = {"model": self.run, "messages": self.messages, "tools": [FUNCTION]}
        if self.stream:
            return self._stream(client.chat_stream(**asked))
        answer = client.chat(**asked).message
        if not answer.tool_calls:
            return Made(answer.content[0].text)
        call = answer.tool_calls[0]
        return self._called(answer.tool_plan, call.id, call.function.name, call.function.arguments)

    def _stream(self, events: Any) -> Made:
        said, given, call = "", "", None
        for event in events:
            if event.type == "content-delta":
                said += event.delta.message.content.text
            elif event.type == "tool-call-start":
                call = event.delta.message.tool_calls
            elif event.type == "tool-call-delta":
                given += event.delta.message.tool_calls.function.arguments
        return Made(said) if call is None else self._called("", call.id, call.function.name, given)

    def _called(self, plan: str, call_id: str, name: str, given: str) -> Made:
        made = {"id": call_id, "type": "function", "function": {"name": name, "arguments": given}}
        self.messages.append({"role": "assistant", "tool_plan": plan or "I look.", "tool_calls": [made]})
        return Made("", json.loads(given)["query"], call_id)

    def result(self, made: Made, said: str) -> None:
        content = [{"type": "document", "document": {"data": json.dumps({"found": said})}}]
        self.messages.append({"role": "tool", "tool_call_id": made.call_id, "content": content})


AGENTS: dict[str, Callable[[str, str], Agent]] = {
    "ollama": Ollama,
    "cohere": Cohere,
}


def ended(agent: Agent) -> tuple[str, int]:
    """What the agent said last, or the error of its client; and how often its tool was run."""
    for times in range(STEPS):
        try:
            made = agent.ask()
        except Exception as error:  # noqa: BLE001 - each client has errors of its own
            return f"{type(error).__module__}.{type(error).__name__}: {error}", times
        if made.query is None:
            return made.text, times
        agent.result(made, look(made.query))
    return "it never ended", STEPS


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    url, landing, *names = sys.argv[1:]
    outcomes = {}
    for name in names or AGENTS:
        for kind in ("loop", "work", "land"):
            for form in ("plain", "stream"):
                run = f"{name}-{kind}-{form}"
                outcomes[run] = ended(AGENTS[name](landing if kind == "land" else url, run))
    print(json.dumps(outcomes))  # noqa: T201 - the test reads it

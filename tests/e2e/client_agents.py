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
from functools import cached_property
from typing import Any, NamedTuple

STEPS = 40  # more than any run takes
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
        self.task = f"Find the tree of {run}."  # so that each run is a session of its own
        self.messages: list[Any] = [{"role": "user", "content": self.task}]

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
    @cached_property
    def client(self) -> Any:
        from ollama import Client

        return Client(host=self.url)

    def ask(self) -> Made:
        asked: Any = {"model": self.run, "messages": self.messages, "tools": [FUNCTION]}
        if self.stream:
            parts = [part.message for part in self.client.chat(stream=True, **asked)]
        else:
            parts = [self.client.chat(**asked).message]
        said = "".join(part.content or "" for part in parts)
        calls = [call for part in parts for call in part.tool_calls or ()]
        self.messages.append({"role": "assistant", "content": said, "tool_calls": calls})
        return Made(said, calls[0].function.arguments["query"] if calls else None)

    def result(self, made: Made, said: str) -> None:
        self.messages.append({"role": "tool", "tool_name": "look", "content": said})


class Cohere(Agent):
    @cached_property
    def client(self) -> Any:
        import cohere

        return cohere.ClientV2("key-of-cohere", base_url=self.url)

    def ask(self) -> Made:
        asked: Any = {"model": self.run, "messages": self.messages, "tools": [FUNCTION]}
        if self.stream:
            return self._stream(self.client.chat_stream(**asked))
        answer = self.client.chat(**asked).message
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


class AnthropicAgent(Agent):
    """Anthropic Messages, at one of the clouds."""

    @cached_property
    def client(self) -> Any:
        raise NotImplementedError

    def ask(self) -> Made:
        tool = {"name": "look", "description": "Look something up.", "input_schema": SCHEMA}
        asked: Any = {"model": self.run, "max_tokens": 99, "messages": self.messages, "tools": [tool], "system": SYSTEM}
        if self.stream:
            with self.client.messages.stream(**asked) as events:
                answer = events.get_final_message()
        else:
            answer = self.client.messages.create(**asked)
        self.messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
        used = next((block for block in answer.content if block.type == "tool_use"), None)
        return Made(answer.content[0].text) if used is None else Made("", used.input["query"], used.id)

    def result(self, made: Made, said: str) -> None:
        block = {"type": "tool_result", "tool_use_id": made.call_id, "content": said}
        self.messages.append({"role": "user", "content": [block]})


class AnthropicVertex(AnthropicAgent):
    @cached_property
    def client(self) -> Any:
        from anthropic import AnthropicVertex

        return AnthropicVertex(region="global", project_id="p", access_token="ya29.t", base_url=f"{self.url}/v1")


class AnthropicBedrock(AnthropicAgent):
    @cached_property
    def client(self) -> Any:
        from anthropic import AnthropicBedrock

        key: Any = {"aws_access_key": "AKIACLIENT", "aws_secret_key": "of the client"}
        return AnthropicBedrock(aws_region="eu-west-1", base_url=self.url, **key)


class Converse(Agent):
    def __init__(self, url: str, run: str) -> None:
        super().__init__(url, run)
        self.messages = [{"role": "user", "content": [{"text": self.task}]}]

    @cached_property
    def client(self) -> Any:
        import boto3

        key: Any = {"aws_access_key_id": "AKIACLIENT", "aws_secret_access_key": "of the client"}
        return boto3.client("bedrock-runtime", region_name="eu-west-1", endpoint_url=self.url, **key)

    def ask(self) -> Made:
        spec = {"name": "look", "description": "Look something up.", "inputSchema": {"json": SCHEMA}}
        asked: Any = {"modelId": self.run, "messages": self.messages, "toolConfig": {"tools": [{"toolSpec": spec}]}}
        asked["system"] = [{"text": SYSTEM}]
        blocks: list[Any] = []
        if self.stream:
            blocks = self._stream(self.client.converse_stream(**asked)["stream"])
        else:
            blocks = self.client.converse(**asked)["output"]["message"]["content"]
        self.messages.append({"role": "assistant", "content": blocks})
        used = next((block["toolUse"] for block in blocks if "toolUse" in block), None)
        return Made(blocks[0]["text"]) if used is None else Made("", used["input"]["query"], used["toolUseId"])

    def _stream(self, events: Any) -> list[Any]:
        text, given, used = "", "", None
        for event in events:
            if "contentBlockStart" in event:
                used = event["contentBlockStart"]["start"]["toolUse"]
            delta = event.get("contentBlockDelta", {}).get("delta", {})
            text += delta.get("text", "")
            given += delta.get("toolUse", {}).get("input", "")
        return [{"text": text}] if used is None else [{"toolUse": {**used, "input": json.loads(given)}}]

    def result(self, made: Made, said: str) -> None:
        block = {"toolResult": {"toolUseId": made.call_id, "content": [{"text": said}]}}
        self.messages.append({"role": "user", "content": [block]})


class Invoke(Converse):
    """A model of Bedrock whose own API is that of OpenAI Chat Completions."""

    def __init__(self, url: str, run: str) -> None:
        Agent.__init__(self, url, run)

    def ask(self) -> Made:
        body = json.dumps({"messages": self.messages, "tools": [FUNCTION]})
        if self.stream:
            events = self.client.invoke_model_with_response_stream(modelId=self.run, body=body)["body"]
            deltas = [json.loads(event["chunk"]["bytes"])["choices"][0]["delta"] for event in events]
            text = "".join(delta.get("content") or "" for delta in deltas)
            pieces = [piece for delta in deltas for piece in delta.get("tool_calls") or ()]
            calls = pieces[:1]
            if calls:
                calls[0]["function"]["arguments"] = "".join(piece["function"]["arguments"] for piece in pieces)
        else:
            answer = json.loads(self.client.invoke_model(modelId=self.run, body=body)["body"].read())
            message = answer["choices"][0]["message"]
            text, calls = message["content"] or "", message.get("tool_calls") or []
        if not calls:
            return Made(text)
        call = {"id": calls[0]["id"], "type": "function", "function": calls[0]["function"]}
        self.messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        return Made("", json.loads(call["function"]["arguments"])["query"], call["id"])

    def result(self, made: Made, said: str) -> None:
        Agent.result(self, made, said)


class Gemini(Agent):
    """Gemini on Vertex AI."""

    def __init__(self, url: str, run: str) -> None:
        super().__init__(url, run)
        self.messages = [{"role": "user", "parts": [{"text": self.task}]}]

    @cached_property
    def client(self) -> Any:
        from google import genai
        from google.oauth2.credentials import Credentials

        options: Any = {"base_url": self.url}
        return genai.Client(
            vertexai=True, project="p", location="global", credentials=Credentials("ya29.t"), http_options=options
        )

    def ask(self) -> Made:
        declared = {"name": "look", "description": "Look something up.", "parameters_json_schema": SCHEMA}
        asked: Any = {"model": self.run, "contents": self.messages}
        asked["config"] = {"tools": [{"function_declarations": [declared]}], "system_instruction": SYSTEM}
        if self.stream:
            pieces = list(self.client.models.generate_content_stream(**asked))
        else:
            pieces = [self.client.models.generate_content(**asked)]
        parts = [part for piece in pieces for part in piece.candidates[0].content.parts or ()]
        self.messages.append({"role": "model", "parts": [part.model_dump(exclude_none=True) for part in parts]})
        call = next((part.function_call for part in parts if part.function_call), None)
        return Made("".join(part.text or "" for part in parts)) if call is None else Made("", call.args["query"])

    def result(self, made: Made, said: str) -> None:
        response = {"function_response": {"name": "look", "response": {"output": said}}}
        self.messages.append({"role": "user", "parts": [response]})


class ChatAgent(Agent):
    """OpenAI Chat Completions."""

    @cached_property
    def client(self) -> Any:
        raise NotImplementedError

    def ask(self) -> Made:
        asked: Any = {"model": self.run, "messages": self.messages, "tools": [FUNCTION]}
        if self.stream:
            with self.client.chat.completions.stream(stream_options={"include_usage": True}, **asked) as events:
                answer = events.get_final_completion().choices[0].message
        else:
            answer = self.client.chat.completions.create(**asked).choices[0].message
        if not answer.tool_calls:
            return Made(answer.content)
        call = answer.tool_calls[0]
        function = {"name": call.function.name, "arguments": call.function.arguments}
        made = {"id": call.id, "type": "function", "function": function}
        self.messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        return Made("", json.loads(function["arguments"])["query"], call.id)


class AzureDeployment(ChatAgent):
    @cached_property
    def client(self) -> Any:
        from openai import AzureOpenAI

        return AzureOpenAI(azure_endpoint=self.url, api_key="key-of-azure", api_version="2024-10-21")


class AzureV1(ChatAgent):
    @cached_property
    def client(self) -> Any:
        from openai import OpenAI

        return OpenAI(base_url=f"{self.url}/azure/openai/v1/", api_key="key-of-azure")


class OpenRouter(ChatAgent):
    @cached_property
    def client(self) -> Any:
        from openai import OpenAI

        return OpenAI(base_url=f"{self.url}/openrouter/api/v1", api_key="sk-or-v1-1")


class AzureResponses(Agent):
    """OpenAI Responses at `/openai/responses`."""

    @cached_property
    def client(self) -> Any:
        from openai import AzureOpenAI

        return AzureOpenAI(azure_endpoint=self.url, api_key="key-of-azure", api_version="2025-04-01-preview")

    def ask(self) -> Made:
        tool = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}
        asked: Any = {"model": self.run, "input": self.messages, "tools": [tool], "store": False}
        if self.stream:
            with self.client.responses.stream(**asked) as events:
                answer = events.get_final_response()
        else:
            answer = self.client.responses.create(**asked)
        call = next((item for item in answer.output if item.type == "function_call"), None)
        if call is None:
            return Made(answer.output_text)
        self.messages.append(call.model_dump(include={"type", "call_id", "name", "arguments"}))
        return Made("", json.loads(call.arguments)["query"], call.call_id)

    def result(self, made: Made, said: str) -> None:
        self.messages.append({"type": "function_call_output", "call_id": made.call_id, "output": said})


class MistralAgent(Agent):
    """An agent of Mistral's, with the history in the client."""

    @cached_property
    def client(self) -> Any:
        from mistralai.client import Mistral

        return Mistral(api_key=f"key.{self.run}", server_url=f"{self.url}/mistral")

    def ask(self) -> Made:
        asked: Any = {"agent_id": self.run, "messages": self.messages, "tools": [FUNCTION]}
        if self.stream:
            deltas = [event.data.choices[0].delta for event in self.client.agents.stream(**asked) if event.data.choices]
            text = "".join(delta.content or "" for delta in deltas)
            calls = [call for delta in deltas for call in delta.tool_calls or ()]
            given = "".join(str(call.function.arguments) for call in calls)
        else:
            message = self.client.agents.complete(**asked).choices[0].message
            text, calls = message.content or "", message.tool_calls or []
            given = str(calls[0].function.arguments) if calls else ""
        if not calls:
            return Made(text)
        made = {"id": calls[0].id, "type": "function", "function": {"name": "look", "arguments": given}}
        self.messages.append({"role": "assistant", "content": "", "tool_calls": [made]})
        return Made("", json.loads(given)["query"], calls[0].id)


class MistralConversation(MistralAgent):
    """A conversation that Mistral keeps: only what is new is sent."""

    def __init__(self, url: str, run: str) -> None:
        super().__init__(url, run)
        self.inputs: Any = self.task
        self.conversation = ""

    def ask(self) -> Made:
        asked: Any
        talks = self.client.beta.conversations
        if self.conversation:
            ask, asked = (talks.append_stream if self.stream else talks.append), {"conversation_id": self.conversation}
        else:
            ask, asked = (talks.start_stream if self.stream else talks.start), {"model": self.run, "tools": [FUNCTION]}
        answer = ask(inputs=self.inputs, **asked)
        text, given, call_id = "", "", ""
        if self.stream:
            for event in answer:
                data = event.data
                self.conversation = getattr(data, "conversation_id", "") or self.conversation
                if data.type == "message.output.delta":
                    text += data.content
                elif data.type == "function.call.delta":
                    given, call_id = given + data.arguments, data.tool_call_id
        else:
            self.conversation = answer.conversation_id
            for output in answer.outputs:
                if output.type == "function.call":
                    given, call_id = str(output.arguments), output.tool_call_id
                else:
                    text += output.content
        return Made("", json.loads(given)["query"], call_id) if given else Made(text)

    def result(self, made: Made, said: str) -> None:
        self.inputs = [{"type": "function.result", "tool_call_id": made.call_id, "result": said}]


AGENTS: dict[str, Callable[[str, str], Agent]] = {
    "ollama": Ollama,
    "cohere": Cohere,
    "anthropic-vertex": AnthropicVertex,
    "anthropic-bedrock": AnthropicBedrock,
    "converse": Converse,
    "invoke": Invoke,
    "gemini-vertex": Gemini,
    "azure-deployment": AzureDeployment,
    "azure-v1": AzureV1,
    "azure-responses": AzureResponses,
    "openrouter": OpenRouter,
    "mistral-agent": MistralAgent,
    "mistral-conversation": MistralConversation,
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

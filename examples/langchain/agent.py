"""A stuck LangChain agent, stopped by the middleware: no keys, no network. Run it with `python agent.py`."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from breakloop.integrations.langchain import GuardAgentMiddleware
from breakloop.testing import StandInLLM, call_tool

STUCK = call_tool("search", {"query": "refund policy"})  # the stand-in's response to every request


@tool
def search(query: str) -> str:
    """Look something up. It never finds anything."""
    return f"no results for {query!r}"


def main() -> None:
    """Ask once; the agent then loops by itself."""
    with StandInLLM.in_thread(respond=lambda _request: STUCK) as llm:
        model = ChatOpenAI(model="gpt-5", base_url=f"{llm.url}/v1", api_key="none", use_responses_api=False)
        agent = create_agent(model, [search], middleware=[GuardAgentMiddleware()], name="support-bot")
        state = agent.invoke({"messages": [{"role": "user", "content": "What is our refund policy?"}]})
    for message in state["messages"]:
        print(f"{message.type}: {message.text or message.tool_calls[0]['name']}")
    print(f"stopped: {state['messages'][-1].response_metadata['breakloop']['kind']}")


if __name__ == "__main__":
    main()

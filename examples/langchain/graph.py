"""The same in a LangGraph graph: the node that calls the model is guarded. Run it with `python graph.py`."""

from __future__ import annotations

from langchain_core.messages import BaseMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from breakloop.integrations.langchain import GuardAgentMiddleware
from breakloop.testing import StandInLLM, call_tool

STUCK = call_tool("search", {"query": "refund policy"})


@tool
def search(query: str) -> str:
    """Look something up. It never finds anything."""
    return f"no results for {query!r}"


def main() -> None:
    """Alternate between model and tools until the model calls no tool."""
    with StandInLLM.in_thread(respond=lambda _request: STUCK) as llm:
        model = ChatOpenAI(model="gpt-5", base_url=f"{llm.url}/v1", api_key="none", use_responses_api=False)
        bound = model.bind_tools([search])
        breakloop = GuardAgentMiddleware(agent="support-bot")

        def ask(state: MessagesState) -> dict[str, list[BaseMessage]]:
            return {"messages": [bound.invoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", breakloop.node(ask, model="gpt-5"))
        graph.add_node("tools", ToolNode([search], wrap_tool_call=breakloop.wrap_tool_call))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        state = graph.compile().invoke({"messages": [{"role": "user", "content": "What is our refund policy?"}]})
        print(f"requests: {len(llm.requests)}")
    print(state["messages"][-1].text)


if __name__ == "__main__":
    main()

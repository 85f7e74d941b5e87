"""Integrations with agent frameworks and HTTP clients: `breakloop.integrations.<framework>`, one module each.

How to write one, in one new file:

1. Create `integrations/<framework>.py` with an `__all__`. Import the framework there and nowhere else, and add it to
   `[project.optional-dependencies]` in pyproject.toml. Nothing else in that file names an integration.
2. Take `guard: Guard | None = None` from the user, keep `self.guard = guard or steps_guard()`, and reach its inside
   with `toolkit_of(self.guard)` (`breakloop.sdk.toolkit`).
3. Find out who acts: `AgentContext(agent, session)`. Names that the user passed come first, then those of the enclosing
   `with breakloop.agent(...)` block (`context.with_defaults(current_agent())`), then those of the framework.
4. Use the form that fits the framework's hooks:
   - it calls you before and after a tool: `run = toolkit.run_for(context)`, then `run.before_tool(name, arguments)` and
     `run.after_tool(name, arguments, result)`. They decide, wait for throttles, and block a repeated call (`mcp`);
   - it lets you wrap a model or tool call: `toolkit.call(GuardedCall(...), make)`, or `toolkit.wrap` for a function,
     with a request that `chat_call` or `tool_call` builds (`langchain`). `chat_call` takes a request of OpenAI's chat
     API as JSON (`json_body`), and `make_answer` builds the answer. `breakloop.sdk.model_calls` builds the request from
     the messages of the framework (`pydantic_ai`), and has `begin` and `end` for hooks before and after the call;
   - it sends HTTP: `breakloop.sdk.http` (`httpx`, `asgi`).
   Methods that begin with `a` are the same on an event loop.
5. Show the decision: `decision.notice` is what the model should read, `denial_details(decision)` what the program may
   want to know, `error_for(decision)` what to raise. If later requests contain the notice, for example in the result of
   a tool, add it as `marked(decision.notice)` (`breakloop.model.decision`): unmarked, it counts as a new result, and
   the loop is not detected. Put your own code around it into `with toolkit.fail_open():`, so that a mistake of ours
   never stops an agent.
"""

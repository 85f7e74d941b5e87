"""A tool server as a plain ASGI application, protected by the middleware. Run it with `uvicorn server:app`."""

from __future__ import annotations

import json

from breakloop import Guard
from breakloop.integrations.asgi import GuardASGIMiddleware, Receive, Scope, Send


async def tools(scope: Scope, receive: Receive, send: Send) -> None:
    """Handle MCP `tools/call`: every tool returns its arguments."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    asked = json.loads(body)
    result = {"content": [{"type": "text", "text": f"called with {asked['params'].get('arguments')}"}]}
    answer = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": answer})


app = GuardASGIMiddleware(tools, guard=Guard())

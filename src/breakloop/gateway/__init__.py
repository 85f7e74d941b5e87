"""The data plane: an HTTP/1.1 server on asyncio with a reverse proxy and a decision service.

A request passes `connection`, then `proxy` or `decision`, then `admission`, which asks the engine. An allowed request
goes through `exchange` and `upstream`, and its response back the same way.
"""

"""The data plane: HTTP/1.1 from clients on asyncio and llhttp. `head` reads and refuses request heads, `body` frames
bodies, `reply` renders answers, `connection` ties them to one socket, `server` listens; what to answer is `decision`'s.
"""

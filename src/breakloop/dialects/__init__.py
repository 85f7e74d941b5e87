"""The formats of LLM APIs and MCP: requests and answers from bytes to model objects and back. No I/O, no decisions."""

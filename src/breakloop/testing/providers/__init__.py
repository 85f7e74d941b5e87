"""Responses of the stand-in LLM, one module per provider."""

"""Prices of models, the cost of calls, and estimates of tokens that no provider has counted."""

"""All bundle models."""

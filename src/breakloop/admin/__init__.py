"""The admin plane: API and dashboard, on a port of their own."""

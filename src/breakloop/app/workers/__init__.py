"""Several processes on one port (SPEC S-5): a supervisor, workers that serve, and one control process for everything
that is to happen once."""

"""Several processes on one port: a supervisor, workers that serve traffic, and a control process for everything that
happens once."""

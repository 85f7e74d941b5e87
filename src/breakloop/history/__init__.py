"""The past on disk: events, incidents, agents, and who did what."""

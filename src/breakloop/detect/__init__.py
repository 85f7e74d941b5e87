"""Loop detectors.

counting          `exact` and `tail`: count a fingerprint of the request; the store compares it with the threshold
fingerprint       the fingerprints they count
stateful          base class of the detectors that keep a window between requests
steps             `steps`: compares each step of a session with the earlier ones
trees             agents that start agents
joins             teams of agents, in conversations without a name
unnamed_sessions  prompts that contain their predecessor, in sessions without a name
simhash           `simhash`: a score of similar requests
stream            a streamed answer that repeats itself
run_steps         `max_steps_per_run`, a limit that needs a window too
"""

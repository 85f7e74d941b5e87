"""loopbench: recorded sessions of agents, healthy and looping, and a runner that plays them to a loop detector."""

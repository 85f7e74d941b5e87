"""The decision engine: decides calls, settles their answers, and applies operator orders."""

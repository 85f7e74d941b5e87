"""Run recorded traffic, test cases and single requests through the real engine on a simulated clock, and report the
results.
"""

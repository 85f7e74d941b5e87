"""What can be seen from outside, off the path of a request: logs now; counters and traces come later."""

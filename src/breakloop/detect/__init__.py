"""Loop detectors. `counting` has those that only count a fingerprint, `stateful` the base class of those that keep a
window between requests."""

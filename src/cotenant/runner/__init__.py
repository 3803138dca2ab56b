"""Run state machines: event loops under a real or simulated clock, the journal and its replay, processes."""

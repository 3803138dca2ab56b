"""The simulated world: what the real one would have done, at the instant it is told."""

"""Admission webhook: annotations and resource names of pods become claims, and what cannot be honoured is refused."""

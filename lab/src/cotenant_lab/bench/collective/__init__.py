"""Bench `collective`: a training job with a rank on each of two GPUs, each next to a service."""

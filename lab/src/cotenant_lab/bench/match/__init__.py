"""Bench `match`: value, time and memory of matching jobs to GPUs, compared with an exact solver."""

"""Bench `fill`: online delay and offline throughput of pairs of measured kernel streams under each sharing mode."""

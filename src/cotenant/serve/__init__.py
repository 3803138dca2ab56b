"""Inference server: models behind HTTP and gRPC, scheduled on the cores of a machine or on a GPU."""

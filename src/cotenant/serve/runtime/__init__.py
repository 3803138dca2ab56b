"""Runtimes that load and run models: ONNX Runtime and Python callables on cores, worker processes on a GPU."""

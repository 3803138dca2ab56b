"""Commands of the inference server: `cotenant serve run`, `serve profile`, `serve plan` and `cotenant load`."""

"""Pure state machine of the inference server."""

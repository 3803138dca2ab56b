"""Value types of the inference server."""

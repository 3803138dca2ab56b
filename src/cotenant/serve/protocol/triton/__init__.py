"""Configuration files of Triton model repositories."""

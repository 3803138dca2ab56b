"""Profiles on disk: the store, and files to import from."""

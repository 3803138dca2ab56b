"""Recordings of launches and device work, laid out as tracks for trace viewers."""

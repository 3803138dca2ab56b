"""Bench and lab: what is measured, against what, and what it shows."""

"""Benches: measurements of cotenant itself."""

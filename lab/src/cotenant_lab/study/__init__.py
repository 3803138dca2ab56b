"""Studies: comparisons of cotenant with published measurements and papers."""
